/** mlx5dv beside dynamically connected transport; and all of it where the device is of another make. */
import { inspect } from 'node:util';
import { describe, expect, it } from 'vitest';
import {
  Mlx5dvContextFlags,
  Mlx5dvCqeCompResFormat,
  Mlx5dvCqInitAttrFlags,
  Mlx5dvDcType,
  Mlx5dvQpCreateFlags,
  mlx5dv,
  openDevice,
  QpState,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import {
  completion,
  connectSides,
  deviceA,
  deviceB,
  expectNoLeaks,
  fill,
  isRxe,
  openSide,
  Pair,
  thrown,
} from './fixture.ts';

expectNoLeaks();

describe('isSupported', () => {
  it('says whether a device is of libmlx5, by its name or open', () => {
    using context = openDevice(deviceA);
    expect(mlx5dv.isSupported(deviceA)).toBe(!isRxe);
    expect(mlx5dv.isSupported(context)).toBe(!isRxe);
    expect(thrown(() => mlx5dv.isSupported('none0'))).toMatchObject({
      name: 'RdmaError',
      code: 'ENODEV',
      syscall: 'mlx5dv_is_supported',
    });
    for (const wrong of [undefined, 5, {}, null]) {
      expect(() => mlx5dv.isSupported(wrong as never)).toThrow(/device must be the name of a device or a Context/);
    }
    context.close();
    expect(thrown(() => mlx5dv.isSupported(context)).code).toBe('ERR_RDMA_CLOSED');
  });
});

if (isRxe) {
  describe('a device of another make', () => {
    it('answers EOPNOTSUPP to each function, which names itself, and makes nothing', async () => {
      using pair = await Pair.connect();
      const { context, pd, cq, qp } = pair.a;
      const srq = pd.createSrq();
      const calls: [string, () => unknown][] = [
        ['mlx5dv_query_device', () => mlx5dv.queryDevice(context)],
        ['mlx5dv_get_clock_info', () => mlx5dv.getClockInfo(context)],
        ['mlx5dv_create_cq', () => mlx5dv.createCq(context, 16, {}, { cqeSize: 64 })],
        ['mlx5dv_create_qp', () => mlx5dv.createQp(pd, { sendCq: cq })],
        ['mlx5dv_create_qp', () => mlx5dv.createQp(pd, { sendCq: cq }, { dcType: Mlx5dvDcType.DCI })],
        [
          'mlx5dv_create_qp',
          () => mlx5dv.createQp(pd, { sendCq: cq, srq }, { dcType: Mlx5dvDcType.DCT, dctAccessKey: 1n }),
        ],
        ['mlx5dv_modify_qp_udp_sport', () => mlx5dv.modifyQpUdpSport(qp, 50_000)],
        ['mlx5dv_modify_qp_lag_port', () => mlx5dv.modifyQpLagPort(qp, 1)],
        ['mlx5dv_query_qp_lag_port', () => mlx5dv.queryQpLagPort(qp)],
        ['mlx5dv_dci_stream_id_reset', () => mlx5dv.dciStreamIdReset(qp, 1)],
      ];
      for (const [syscall, call] of calls) {
        expect(thrown(call), syscall).toMatchObject({ name: 'RdmaError', code: 'EOPNOTSUPP', syscall });
      }
      pair.a.qp.postSend({
        opcode: WrOpcode.RDMA_WRITE,
        sgList: pair.a.mr.slice(0, 8),
        remote: pair.remote.slice(0, 8),
      });
      expect((await completion(cq)).status).toBe(WcStatus.SUCCESS);
    });
  });
} else {
  describe('queryDevice', () => {
    it('tells every group of fields that rdma-core 44 knows, and none that it does not', () => {
      using context = openDevice(deviceA);
      const device = mlx5dv.queryDevice(context);
      expect(device).toMatchObject({
        version: 0,
        cqeCompCaps: { maxNum: expect.any(Number), supportedFormat: expect.any(Number) },
        swParsingCaps: { swParsingOffloads: expect.any(Number), supportedQpts: expect.any(Number) },
        stridingRqCaps: { minSingleStrideLogNumOfBytes: expect.any(Number), supportedQpts: expect.any(Number) },
        tunnelOffloadsCaps: expect.any(Number),
        maxDynamicBfregs: expect.any(Number),
        flowActionFlags: expect.any(Number),
        dcOdpCaps: expect.any(Number),
        hcaCoreClock: true,
        numLagPorts: 2,
        sigCaps: { blockSize: 0, blockProt: 0, t10difBg: 0, crcType: 0 },
        dciStreamsCaps: { maxLogNumConcurent: 5, maxLogNumErrored: 4 },
        maxWrMemcpyLength: 0n,
        cryptoCaps: { failedSelftests: 0, cryptoEngines: 0, wrappedImportMethod: 0, logMaxNumDeks: 0, flags: 0 },
      });
      expect(device.maxClockInfoUpdateNsec).toBe(1n << 43n);
      const { CQE_V1, CQE_128B_COMP, CQE_128B_PAD, ENHANCED_MPW } = Mlx5dvContextFlags;
      expect(device.flags & (CQE_V1 | CQE_128B_COMP | CQE_128B_PAD)).toBe(CQE_V1 | CQE_128B_COMP | CQE_128B_PAD);
      expect(device.flags & ENHANCED_MPW).toBe(0);
      expect(inspect(device)).toContain('flags: CQE_V1 | CQE_128B_COMP | CQE_128B_PAD');
      expect(inspect(device)).toContain('supportedFormat: HASH | CSUM');
      // Of rdma-core 47, 50 and 55. A younger library may know them; the device here has none of it.
      expect(Object.keys(device)).not.toContain('oooRecvWrsCaps');
    });

    it('of a device that is no bond has no ports of one', () => {
      using context = openDevice(deviceB);
      expect(mlx5dv.queryDevice(context).numLagPorts).toBeUndefined();
      context.close();
      expect(thrown(() => mlx5dv.queryDevice(context)).code).toBe('ERR_RDMA_CLOSED');
      expect(() => mlx5dv.queryDevice({} as never)).toThrow(/context must be a Context/);
    });
  });

  describe('the clock', () => {
    it('is translated into nanoseconds, ahead and behind', () => {
      using context = openDevice(deviceA);
      const now = BigInt(Date.now()) * 1_000_000n;
      const info = mlx5dv.getClockInfo(context);
      const minute = 60_000_000_000n;
      expect(info.nsec > now - minute && info.nsec < now + minute).toBe(true);
      expect(mlx5dv.tsToNs(info, info.lastCycles)).toBe(info.nsec);
      // 156.25 MHz: 6.4 ns a cycle.
      for (const [cycles, ns] of [
        [156_250_000n, 1_000_000_000n],
        [-156_250_000n, -1_000_000_000n],
        [1n, 6n],
      ] as const) {
        const found = mlx5dv.tsToNs(info, (info.lastCycles + cycles) & info.mask) - info.nsec;
        const off = found - ns;
        expect(off >= -100n && off <= 100n, `${cycles} cycles are ${found} ns`).toBe(true);
      }
    });
  });

  describe('createCq', () => {
    it.each([
      ['entries of 64 bytes', { cqeSize: 64 }],
      ['entries of 128 bytes', { cqeSize: 128 }],
      ['padded entries of 128 bytes', { cqeSize: 128, flags: Mlx5dvCqInitAttrFlags.CQE_PAD }],
      ['compression', { cqeCompResFormat: Mlx5dvCqeCompResFormat.CSUM }],
      ['nothing special', {}],
    ])('makes a queue with %s that is waited for, and polled, as any other', async (_what, mlx5Attr) => {
      const a = openSide(deviceA);
      const b = openSide(deviceB);
      const cq = mlx5dv.createCq(a.context, 100, {}, mlx5Attr);
      expect(cq.cqe).toBeGreaterThanOrEqual(100);
      const qp = a.pd.createQp({ sendCq: cq, cap: { maxSendWr: 16, maxRecvWr: 16 } });
      const { context, pd, mr } = a;
      await connectSides({ context, pd, mr, cq, qp }, b);
      for (const bytes of [1, 30, 60, 4000]) {
        const sent = fill(b.mr.buffer.subarray(0, bytes), bytes);
        qp.postRecv({ wrId: bytes, sgList: mr.slice(0, 4096) });
        b.qp.postSend({ opcode: WrOpcode.SEND, sgList: b.mr.slice(0, bytes) });
        expect(await completion(cq)).toMatchObject({ wrId: bytes, status: WcStatus.SUCCESS, byteLen: bytes });
        expect(mr.buffer.subarray(0, bytes).equals(sent)).toBe(true);
        await completion(b.cq);
      }
      qp.close();
      for (const side of [a, b]) side.context.close({ cascade: true });
    });

    it('refuses what the device does not have with EINVAL, and what is wrong by its name', () => {
      using context = openDevice(deviceA);
      const refused = [
        { cqeSize: 96 },
        { cqeSize: 64, flags: Mlx5dvCqInitAttrFlags.CQE_PAD },
        { cqeCompResFormat: 128 },
        { cqeCompResFormat: Mlx5dvCqeCompResFormat.HASH | Mlx5dvCqeCompResFormat.CSUM },
        { flags: 0x80 },
      ];
      for (const mlx5Attr of refused) {
        const error = thrown(() => mlx5dv.createCq(context, 16, {}, mlx5Attr));
        expect(error, JSON.stringify(mlx5Attr)).toMatchObject({ code: 'EINVAL', syscall: 'mlx5dv_create_cq' });
      }
      expect(() => mlx5dv.createCq(context, 16, {}, { cqeSize: 0 })).toThrow(/mlx5Attr\.cqeSize/);
      expect(() => mlx5dv.createCq(context, 16, {}, { flags: -1 })).toThrow(/mlx5Attr\.flags/);
      expect(() => mlx5dv.createCq(context, 16, {}, { size: 64 } as never)).toThrow(/'size'/);
      expect(() => mlx5dv.createCq(context, 0)).toThrow(/cqe/);
      expect(() => mlx5dv.createCq({} as never, 16)).toThrow(/context must be a Context/);
    });
  });

  describe('createQp', () => {
    it.each([
      ['DISABLE_SCATTER_TO_CQE', Mlx5dvQpCreateFlags.DISABLE_SCATTER_TO_CQE],
      ['ALLOW_SCATTER_TO_CQE', Mlx5dvQpCreateFlags.ALLOW_SCATTER_TO_CQE],
      ['no flag', 0],
    ])('makes a reliable connection with %s', async (_what, createFlags) => {
      const [a, b] = [openSide(deviceA), openSide(deviceB)] as const;
      const cap = { maxSendWr: 8, maxRecvWr: 8 };
      const qp = mlx5dv.createQp(a.pd, { sendCq: a.cq, cap }, { createFlags });
      await connectSides({ ...a, qp }, b);
      const sent = fill(b.mr.buffer.subarray(0, 20), 2);
      qp.postRecv({ sgList: a.mr.slice(0, 64) });
      b.qp.postSend({ opcode: WrOpcode.SEND, sgList: b.mr.slice(0, 20) });
      expect((await completion(a.cq)).byteLen).toBe(20);
      expect(a.mr.buffer.subarray(0, 20).equals(sent)).toBe(true);
      qp.close();
      for (const { context } of [a, b]) context.close({ cascade: true });
    });

    it('of out-of-order receives names the release that has them', () => {
      const { context, pd, cq } = openSide(deviceA);
      const error = thrown(() => mlx5dv.createQp(pd, { sendCq: cq }, { createFlags: Mlx5dvQpCreateFlags.OOO_DP }));
      expect(error).toMatchObject({ name: 'RdmaError', code: 'EOPNOTSUPP', syscall: 'mlx5dv_create_qp' });
      expect(error.message).toContain('rdma-core 55');
      const { DISABLE_SCATTER_TO_CQE, ALLOW_SCATTER_TO_CQE } = Mlx5dvQpCreateFlags;
      const both = { createFlags: DISABLE_SCATTER_TO_CQE | ALLOW_SCATTER_TO_CQE };
      expect(thrown(() => mlx5dv.createQp(pd, { sendCq: cq }, both)).code).toBe('EINVAL');
      expect(() => mlx5dv.createQp(pd, { sendCq: cq }, { createFlags: -1 })).toThrow(/mlx5Attr\.createFlags/);
      context.close({ cascade: true });
    });
  });

  describe('the ports of a connection', () => {
    it('are set and told, and the connection goes on', async () => {
      using pair = await Pair.connect();
      const { a, b } = pair;
      mlx5dv.modifyQpUdpSport(a.qp, 55_555);
      expect(mlx5dv.queryQpLagPort(a.qp)).toEqual({ portNum: 1, activePortNum: 1 });
      mlx5dv.modifyQpLagPort(a.qp, 2);
      expect(mlx5dv.queryQpLagPort(a.qp)).toEqual({ portNum: 2, activePortNum: 2 });
      expect(thrown(() => mlx5dv.modifyQpLagPort(a.qp, 3))).toMatchObject({
        name: 'RdmaError',
        code: 'EINVAL',
        syscall: 'mlx5dv_modify_qp_lag_port',
      });
      for (const call of [() => mlx5dv.queryQpLagPort(b.qp), () => mlx5dv.modifyQpLagPort(b.qp, 1)]) {
        expect(thrown(call), 'not a bond').toMatchObject({ code: 'EOPNOTSUPP' });
      }
      a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: pair.remote.slice(0, 8) });
      expect((await completion(a.cq)).status).toBe(WcStatus.SUCCESS);
    });

    it('cannot be set in another state, or of another type, and the reason is said', () => {
      const { context, pd, cq, qp } = openSide(deviceA);
      const error = thrown(() => mlx5dv.modifyQpUdpSport(qp, 50_000));
      expect(error).toMatchObject({ code: 'EOPNOTSUPP', syscall: 'mlx5dv_modify_qp_udp_sport' });
      expect(error.message).toContain('must be in RTS');
      const ud = pd.createQp({ sendCq: cq, qpType: 4, cap: { maxSendWr: 4, maxRecvWr: 4 } });
      expect(thrown(() => mlx5dv.modifyQpUdpSport(ud, 50_000)).message).toContain('for RC, UC only');
      expect(thrown(() => mlx5dv.dciStreamIdReset(qp, 1)).message).toContain('for DRIVER only');
      for (const port of [-1, 65_536, 1.5, '5']) {
        expect(() => mlx5dv.modifyQpUdpSport(qp, port as never)).toThrow(/udpSport/);
      }
      expect(() => mlx5dv.modifyQpLagPort(qp, 0)).toThrow(/portNum/);
      expect(() => mlx5dv.dciStreamIdReset(qp, -1)).toThrow(/streamId/);
      expect(() => mlx5dv.modifyQpUdpSport(cq as never, 5)).toThrow(/qp must be a AnyQueuePair/);
      expect(qp.state).toBe(QpState.RESET);
      context.close({ cascade: true });
      expect(thrown(() => mlx5dv.queryQpLagPort(qp)).code).toBe('ERR_RDMA_CLOSED');
    });
  });
}
