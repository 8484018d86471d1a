/** Dynamically connected transport: requests that name their target, on the backend that has it. */
import { inspect } from 'node:util';
import { describe, expect, it } from 'vitest';
import {
  Mlx5dvDcType,
  mlx5dv,
  openDevice,
  QpState,
  QpType,
  SendFlags,
  SendOpsFlags,
  type SendWr,
  WcOpcode,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import { completion, completions, deviceA, deviceB, expectNoLeaks, fill, isRxe, openSide, thrown } from './fixture.ts';
import { addressOf, createTarget, DC_KEY, DcPair, openInitiator, openTarget, startInitiator } from './mlx5-fixture.ts';

expectNoLeaks();

const suite: (name: string, tests: () => void) => void = isRxe ? () => {} : describe;

if (isRxe) {
  it('does not exist here: EOPNOTSUPP from mlx5dv_create_qp, for both ends', () => {
    const { context, pd, cq } = openSide(deviceA);
    const srq = pd.createSrq({ maxWr: 4 });
    const calls = [
      () => mlx5dv.createQp(pd, { sendCq: cq }, { dcType: Mlx5dvDcType.DCI }),
      () => createTarget(pd, cq, srq),
    ];
    for (const call of calls) {
      expect(thrown(call)).toMatchObject({ name: 'RdmaError', code: 'EOPNOTSUPP', syscall: 'mlx5dv_create_qp' });
    }
    context.close({ cascade: true });
  });
}

suite('dynamically connected transport', () => {
  it('writes, and the bytes are those that were sent, no more and no less', async () => {
    using pair = new DcPair();
    const { a, b, remote, target } = pair;
    const sent = fill(a.mr.buffer, 3);
    const before = fill(b.mr.buffer, 4);
    a.dci.postSend({
      wrId: 7,
      opcode: WrOpcode.RDMA_WRITE,
      sgList: [a.mr.slice(100, 3000), a.mr.slice(10_000, 5), a.mr.slice(20_000, 4000)],
      remote: remote.slice(8192),
      ...target,
    });
    expect(await completion(a.cq)).toMatchObject({ wrId: 7, status: WcStatus.SUCCESS, opcode: WcOpcode.RDMA_WRITE });
    const written = Buffer.concat([
      sent.subarray(100, 3100),
      sent.subarray(10_000, 10_005),
      sent.subarray(20_000, 24_000),
    ]);
    expect(b.mr.buffer.subarray(8192, 8192 + 7005).equals(written)).toBe(true);
    expect(b.mr.buffer.subarray(0, 8192).equals(before.subarray(0, 8192))).toBe(true);
    expect(b.mr.buffer.subarray(8192 + 7005).equals(before.subarray(8192 + 7005))).toBe(true);
  });

  it('sends to the shared receive queue of the target, with immediate data', async () => {
    using pair = new DcPair();
    const { a, b, target } = pair;
    b.srq.postRecv([0, 1].map((i) => ({ wrId: 40 + i, sgList: b.mr.slice(i * 1024, 1024) })));
    const sent = fill(a.mr.buffer.subarray(0, 700), 9);
    const sends: SendWr[] = [
      { opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 700), ...target },
      {
        opcode: WrOpcode.SEND_WITH_IMM,
        immData: 0xcafe_f00d,
        sgList: a.mr.slice(0, 30),
        sendFlags: SendFlags.SIGNALED | SendFlags.INLINE,
        ...target,
      },
    ];
    a.dci.postSend(sends);
    await completions(a.cq, 2, 'the sends');
    const [first, second] = await completions(b.cq, 2, 'the receives');
    const { qpNum } = b.dct;
    expect(first).toMatchObject({ wrId: 40, status: WcStatus.SUCCESS, byteLen: 700, qpNum, srcQp: a.dci.qpNum });
    expect(second).toMatchObject({ wrId: 41, status: WcStatus.SUCCESS, byteLen: 30, qpNum, immData: 0xcafe_f00d });
    expect(b.mr.buffer.subarray(0, 700).equals(sent)).toBe(true);
    expect(b.mr.buffer.subarray(1024, 1054).equals(sent.subarray(0, 30))).toBe(true);
    expect(b.srq.recvsInFlight).toBe(0);
  });

  it('reads', async () => {
    using pair = new DcPair();
    const { a, b, remote, target } = pair;
    const there = fill(b.mr.buffer, 5);
    const opcode = WrOpcode.RDMA_READ;
    a.dci.postSend({ opcode, sgList: a.mr.slice(512, 6000), remote: remote.slice(100, 6000), ...target });
    expect((await completion(a.cq)).status).toBe(WcStatus.SUCCESS);
    expect(a.mr.buffer.subarray(512, 6512).equals(there.subarray(100, 6100))).toBe(true);
  });

  it('does atomics on all 64 bits', async () => {
    using pair = new DcPair();
    const { a, b, remote, target } = pair;
    b.mr.buffer.writeBigUInt64LE(0xffff_ffff_ffff_fffen, 64);
    const atomic = { sgList: a.mr.slice(0, 8), remote: remote.slice(64, 8), ...target };
    a.dci.postSend({ opcode: WrOpcode.ATOMIC_FETCH_AND_ADD, compareAdd: 5n, ...atomic });
    expect((await completion(a.cq)).status).toBe(WcStatus.SUCCESS);
    expect(a.mr.buffer.readBigUInt64LE(0)).toBe(0xffff_ffff_ffff_fffen);
    expect(b.mr.buffer.readBigUInt64LE(64)).toBe(3n);
    const swap = 0x8000_0000_0000_0001n;
    a.dci.postSend({ opcode: WrOpcode.ATOMIC_CMP_AND_SWP, compareAdd: 3n, swap, ...atomic });
    expect((await completion(a.cq)).status).toBe(WcStatus.SUCCESS);
    expect(a.mr.buffer.readBigUInt64LE(0)).toBe(3n);
    expect(b.mr.buffer.readBigUInt64LE(64)).toBe(swap);
  });

  it('sends from one initiator to several targets, and from several initiators to one', async () => {
    using pair = new DcPair();
    using other = new DcPair();
    const away = addressOf(pair.a, other.b);
    const remote = other.remote.slice(0, 8);
    pair.a.mr.buffer.writeBigUInt64LE(11n, 0);
    other.a.mr.buffer.writeBigUInt64LE(22n, 0);
    const wr = { opcode: WrOpcode.RDMA_WRITE, sgList: pair.a.mr.slice(0, 8) };
    pair.a.dci.postSend([
      { ...wr, remote: pair.remote.slice(0, 8), ...pair.target },
      { ...wr, remote, ah: away, remoteDctn: other.b.dct.qpNum, remoteDcKey: DC_KEY },
      { ...wr, remote: pair.remote.slice(8, 8), ...pair.target },
    ]);
    other.a.dci.postSend({ ...wr, sgList: other.a.mr.slice(0, 8), remote: other.remote.slice(8, 8), ...other.target });
    await completions(pair.a.cq, 3);
    await completion(other.a.cq);
    expect([0, 8].map((at) => pair.b.mr.buffer.readBigUInt64LE(at))).toEqual([11n, 11n]);
    expect([0, 8].map((at) => other.b.mr.buffer.readBigUInt64LE(at))).toEqual([11n, 22n]);
  });

  it('posts prepared requests again and again, through the wrap of the queue, changed in place', async () => {
    using pair = new DcPair();
    const { a, b, remote, target } = pair;
    const list = a.dci.prepareSend(
      [0, 1, 2].map((i) => ({
        wrId: i,
        opcode: WrOpcode.RDMA_WRITE,
        sgList: [a.mr.slice(i * 64, 32), a.mr.slice(i * 64 + 32, 32)],
        remote: remote.slice(i * 64, 64),
        ...target,
      })),
    );
    for (let round = 0; round < 50; round++) {
      const sent = fill(a.mr.buffer.subarray(0, 192), round);
      list.setWrId(2, 100 + round);
      list.post();
      expect((await completions(a.cq, 3)).map(({ wrId }) => wrId)).toEqual([0, 1, 100 + round]);
      expect(b.mr.buffer.subarray(0, 192).equals(sent)).toBe(true);
    }
  });

  it('holds the address handle of a request in flight', async () => {
    using pair = new DcPair();
    const { a, target } = pair;
    // Nobody has posted a receive, so it waits.
    a.dci.modifySync({ qpState: QpState.RESET });
    a.dci.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 1 });
    a.dci.modifySync({ qpState: QpState.RTR, pathMtu: 3 });
    a.dci.modifySync({ qpState: QpState.RTS, sqPsn: 0, timeout: 8, retryCnt: 1, rnrRetry: 7, maxRdAtomic: 4 });
    a.dci.postSend({ opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 8), ...target });
    expect(thrown(() => pair.ah.close())).toMatchObject({ code: 'EBUSY', message: expect.stringMatching(/in flight/) });
    pair.b.srq.postRecv({ sgList: pair.b.mr.slice(0, 64) });
    expect((await completion(a.cq)).status).toBe(WcStatus.SUCCESS);
    await completion(pair.b.cq);
    pair.ah.close();
    expect(thrown(() => a.dci.postSend({ opcode: WrOpcode.SEND, ...target })).code).toBe('ERR_RDMA_CLOSED');
  });
});

suite('a failure of dynamically connected transport', () => {
  const cases: [string, (pair: DcPair) => Partial<SendWr>, number][] = [
    ['a wrong key of the target', () => ({ remoteDcKey: DC_KEY ^ 1n }), WcStatus.REM_ACCESS_ERR],
    [
      'a key that differs in its high half only',
      () => ({ remoteDcKey: DC_KEY ^ (1n << 63n) }),
      WcStatus.REM_ACCESS_ERR,
    ],
    ['a number that no target has', () => ({ remoteDctn: 0xff_fff0 }), WcStatus.RETRY_EXC_ERR],
    ['a number that is of another queue pair', ({ a }) => ({ remoteDctn: a.dci.qpNum }), WcStatus.RETRY_EXC_ERR],
  ];
  it.each(cases)('%s takes the initiator down, and not the target', async (_what, wrong, status) => {
    using pair = new DcPair();
    const { a, b, remote, target } = pair;
    const write = { opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: remote.slice(0, 8), ...target };
    const before = Buffer.from(b.mr.buffer);
    fill(a.mr.buffer, 77);
    a.dci.postSend([
      { ...write, wrId: 1, ...wrong(pair) },
      { ...write, wrId: 2 },
    ]);
    const [first, second] = await completions(a.cq, 2);
    expect(first).toMatchObject({ wrId: 1, status });
    expect(second).toMatchObject({ wrId: 2, status: WcStatus.WR_FLUSH_ERR });
    expect(b.mr.buffer.equals(before)).toBe(true);
    expect(a.dci.query().qpState).toBe(QpState.ERR);
    expect(b.dct.query().qpState).toBe(QpState.RTR);
    a.dci.modifySync({ qpState: QpState.RESET });
    startInitiator(a.dci);
    a.dci.postSend(write);
    expect((await completion(a.cq)).status).toBe(WcStatus.SUCCESS);
    expect(b.mr.buffer.subarray(0, 8).equals(a.mr.buffer.subarray(0, 8))).toBe(true);
  });

  it('is RNR_RETRY_EXC_ERR when the target has no receive, and REM_INV_REQ_ERR when that is too short', async () => {
    using pair = new DcPair();
    const { a, b, target } = pair;
    const send = { opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 100), ...target };
    a.dci.postSend(send);
    expect((await completion(a.cq)).status).toBe(WcStatus.RNR_RETRY_EXC_ERR);
    a.dci.modifySync({ qpState: QpState.RESET });
    startInitiator(a.dci);
    b.srq.postRecv({ wrId: 5, sgList: b.mr.slice(0, 50) });
    a.dci.postSend(send);
    expect((await completion(a.cq)).status).toBe(WcStatus.REM_INV_REQ_ERR);
    expect(await completion(b.cq)).toMatchObject({ wrId: 5, status: WcStatus.LOC_LEN_ERR });
  });

  it('of a target that is closed is RETRY_EXC_ERR', async () => {
    using pair = new DcPair();
    const { a, b, target } = pair;
    b.dct.close();
    b.dct.close();
    a.dci.postSend({
      opcode: WrOpcode.RDMA_WRITE,
      sgList: a.mr.slice(0, 8),
      remote: pair.remote.slice(0, 8),
      ...target,
    });
    expect((await completion(a.cq)).status).toBe(WcStatus.RETRY_EXC_ERR);
    expect(thrown(() => b.dct.query()).code).toBe('ERR_RDMA_CLOSED');
  });
});

suite('stream channels', () => {
  it('fail alone, until one too many has failed; a reset lets one send again', async () => {
    using pair = new DcPair({ dciStreams: { logNumConcurent: 3, logNumErrored: 1 } });
    const { a, remote, target } = pair;
    const write = { opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: remote.slice(0, 8), ...target };
    const statusOf = async (wr: SendWr) => {
      a.dci.postSend(wr);
      return (await completion(a.cq)).status;
    };
    const wrong = { ...write, remoteDcKey: 1n };
    expect(await statusOf({ ...wrong, streamId: 2 })).toBe(WcStatus.REM_ACCESS_ERR);
    expect(await statusOf({ ...write, streamId: 2 })).toBe(WcStatus.WR_FLUSH_ERR);
    expect(await statusOf({ ...write, streamId: 1 })).toBe(WcStatus.SUCCESS);
    expect(a.dci.query().qpState).toBe(QpState.RTS);
    mlx5dv.dciStreamIdReset(a.dci, 2);
    expect(thrown(() => mlx5dv.dciStreamIdReset(a.dci, 2))).toMatchObject({
      name: 'RdmaError',
      code: 'EINVAL',
      syscall: 'mlx5dv_dci_stream_id_reset',
    });
    expect(await statusOf({ ...write, streamId: 2 })).toBe(WcStatus.SUCCESS);
    expect(await statusOf({ ...wrong, streamId: 0xffff })).toBe(WcStatus.REM_ACCESS_ERR);
    expect(await statusOf({ ...wrong, streamId: 3 })).toBe(WcStatus.REM_ACCESS_ERR);
    expect(a.dci.query().qpState).toBe(QpState.ERR);
    expect(thrown(() => mlx5dv.dciStreamIdReset(a.dci, 3))).toMatchObject({ code: 'EOPNOTSUPP', message: /in RTS/ });
  });

  it('are refused beyond what the device has', () => {
    using context = openDevice(deviceA);
    using pd = context.allocPd();
    using cq = context.createCq(256);
    const { maxLogNumConcurent = 0 } = mlx5dv.queryDevice(context).dciStreamsCaps ?? {};
    const dciStreams = { logNumConcurent: maxLogNumConcurent + 1, logNumErrored: 0 };
    const error = thrown(() => mlx5dv.createQp(pd, { sendCq: cq }, { dcType: Mlx5dvDcType.DCI, dciStreams }));
    expect(error).toMatchObject({ name: 'RdmaError', code: 'EINVAL', syscall: 'mlx5dv_create_qp' });
  });
});

suite('the two ends of dynamically connected transport', () => {
  it('have their own states, and say which attributes a transition lacks', () => {
    const { context, pd, cq, srq } = openTarget(deviceA);
    const dct = createTarget(pd, cq, srq);
    expect(dct).toMatchObject({ qpNum: 0, state: QpState.RESET, qpType: QpType.DRIVER, srq, recvCq: cq });
    expect(thrown(() => dct.query()).code).toBe('EINVAL');
    expect(thrown(() => dct.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 1 })).message).toContain(
      'RESET -> INIT needs ACCESS_FLAGS',
    );
    expect(thrown(() => dct.modifySync({ qpState: QpState.RTS })).message).toContain('no transition RESET -> RTS');
    const dci = mlx5dv.createQp(pd, { sendCq: cq, cap: { maxSendWr: 4 } }, { dcType: Mlx5dvDcType.DCI });
    expect(dci.qpNum).toBeGreaterThan(0);
    expect(dci.cap).toMatchObject({ maxRecvWr: 0 });
    expect(dci.sendOpsFlags).toBeGreaterThan(0);
    dci.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 1 });
    expect(thrown(() => dci.modifySync({ qpState: QpState.RTR, pathMtu: 3, destQpNum: 5 })).message).toContain(
      'INIT -> RTR does not take DEST_QPN',
    );
    expect(thrown(() => dci.postSend({ opcode: WrOpcode.SEND } as SendWr)).message).toContain('ah');
    context.close({ cascade: true });
  });

  it('have a number each, the target from RTR on, and it can be asked', async () => {
    const { context, dct, pd, cq, srq } = openTarget(deviceA);
    const second = createTarget(pd, cq, srq);
    expect(dct.qpNum).toBeGreaterThan(0);
    expect(dct.query()).toMatchObject({ qpState: QpState.RTR, portNum: 1, minRnrTimer: 1 });
    expect(second.qpNum).toBe(0);
    expect(inspect(second)).toMatch(/DctQueuePair.*RESET.*srq: SharedReceiveQueue/s);
    expect(thrown(() => srq.close())).toMatchObject({ code: 'EBUSY' });
    expect(thrown(() => dct.modifySync({ qpState: QpState.ERR })).message).toContain('no transition RTR -> ERR');
    context.close({ cascade: true });
  });

  it('can be limited to some operations', () => {
    const { context, pd, cq } = openInitiator(deviceA);
    const sendOpsFlags = SendOpsFlags.RDMA_WRITE;
    const dci = mlx5dv.createQp(pd, { sendCq: cq, sendOpsFlags }, { dcType: Mlx5dvDcType.DCI });
    startInitiator(dci);
    expect(thrown(() => dci.postSend({ opcode: WrOpcode.SEND })).message).toContain('without SEND');
    context.close({ cascade: true });
  });
});

suite('arguments of dynamically connected transport', () => {
  it('are named when they are wrong, and nothing is posted', () => {
    using pair = new DcPair();
    const { a, target, remote } = pair;
    const write = { opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: remote.slice(0, 8), ...target };
    const wrong: [object, RegExp][] = [
      [{ ah: undefined }, /wr\.ah must be an AddressHandle/],
      [{ ah: {} }, /wr\.ah must be an AddressHandle/],
      [{ remoteDctn: undefined }, /wr\.remoteDctn must be a number/],
      [{ remoteDctn: 2 ** 24 }, /wr\.remoteDctn must be an integer from 0 to 16777215/],
      [{ remoteDcKey: 5 }, /wr\.remoteDcKey must be a bigint/],
      [{ remoteDcKey: -1n }, /wr\.remoteDcKey must fit 64 bits/],
      [{ remoteDcKey: 1n << 64n }, /wr\.remoteDcKey must fit 64 bits/],
      [{ streamId: 0x1_0000 }, /wr\.streamId must be an integer/],
      [{ remoteQpn: 5 }, /UD queue pairs only/],
      [{ opcode: WrOpcode.LOCAL_INV }, /LOCAL_INV is not for/],
    ];
    for (const [change, message] of wrong) {
      expect(() => a.dci.postSend({ ...write, ...change } as SendWr), String(message)).toThrow(message);
    }
    expect(a.dci.sendsInFlight).toBe(0);
    const side = openSide(deviceB);
    const foreign = side.pd.createAh({ grh: { dgid: '::1', sgidIndex: side.context.selectGid().gidIndex } });
    expect(() => a.dci.postSend({ ...write, ah: foreign })).toThrow(/of another protection domain/);
    expect(() => side.qp.prepareSend({ opcode: WrOpcode.SEND, ...target })).toThrow(/UD queue pairs only/);
    expect(() => side.qp.prepareSend({ opcode: WrOpcode.SEND, streamId: 1 })).toThrow(/DC initiators only/);
    side.context.close({ cascade: true });
  });

  it('of creation are named too', () => {
    const { context, pd, cq, srq, mr } = openTarget(deviceA);
    const { DCT, DCI } = Mlx5dvDcType;
    const attr = { sendCq: cq, srq };
    const wrong: [() => unknown, RegExp][] = [
      [() => mlx5dv.createQp(mr as never, attr), /pd must be a ProtectionDomain/],
      [() => mlx5dv.createQp(pd, attr, { dcType: DCT } as never), /mlx5Attr\.dctAccessKey must be a bigint/],
      [() => mlx5dv.createQp(pd, attr, { dcType: DCT, dctAccessKey: 1n << 64n }), /must fit 64 bits/],
      [() => mlx5dv.createQp(pd, attr, { dcType: 3 as never }), /mlx5Attr\.dcType must be a Mlx5dvDcType/],
      [() => mlx5dv.createQp(pd, attr, { dcTyp: DCI } as never), /dcTyp/],
      [() => mlx5dv.createQp(pd, attr, { dctAccessKey: 1n } as never), /for targets/],
      [() => mlx5dv.createQp(pd, attr, { dciStreams: { logNumConcurent: 1, logNumErrored: 1 } }), /for initiators/],
      [() => mlx5dv.createQp(pd, { sendCq: cq }, { dcType: DCT, dctAccessKey: 1n }), /attr\.srq/],
      [() => mlx5dv.createQp(pd, { ...attr, qpType: QpType.RC }, { dcType: DCI }), /QpType\.DRIVER/],
      [() => mlx5dv.createQp(pd, { ...attr, qpType: QpType.RC }, { dcType: DCT, dctAccessKey: 1n }), /QpType\.DRIVER/],
      [() => mlx5dv.createQp(pd, { ...attr, sqSigAll: true }, { dcType: DCT, dctAccessKey: 1n }), /sqSigAll/],
      [() => pd.createQp({ sendCq: cq, qpType: QpType.DRIVER }), /DC by mlx5dv/],
    ];
    for (const [call, message] of wrong) expect(call, String(message)).toThrow(message);
    const other = openDevice(deviceB);
    const foreign = other.createCq(16);
    expect(() => mlx5dv.createQp(pd, { sendCq: foreign, srq }, { dcType: DCT, dctAccessKey: 1n })).toThrow(/device/);
    other.close({ cascade: true });
    context.close({ cascade: true });
  });
});
