/** What extended posting adds, and where it differs; that all else is the same is tested where posting is. */
import { describe, expect, it } from 'vitest';
import {
  AccessFlags,
  GRH_BYTES,
  MwType,
  PlacementType,
  QpCreateFlags,
  QpState,
  QpType,
  type QueuePair,
  RemoteRegion,
  readDatagram,
  SendFlags,
  SendOpsFlags,
  WcOpcode,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import {
  ALL_ACCESS,
  completion,
  completions,
  deviceA,
  deviceB,
  expectNoLeaks,
  fill,
  isRxe,
  openSide,
  Pair,
  postings,
  thrown,
} from './fixture.ts';

expectNoLeaks();

const SUCCESS = WcStatus.SUCCESS;

describe.each(postings)('by $verb', ({ verb, attr, connect }) => {
  it('sends datagrams, in memory and inline, of one element and of several', async () => {
    const sendOps = attr as { sendOpsFlags?: number };
    const ops =
      sendOps.sendOpsFlags === undefined ? {} : { sendOpsFlags: SendOpsFlags.SEND | SendOpsFlags.SEND_WITH_IMM };
    const sides = [deviceA, deviceB].map((device) => {
      const side = openSide(device);
      const cap = { maxSendSge: 3, maxInlineData: 64 };
      const qp = side.pd.createQp({ sendCq: side.cq, qpType: QpType.UD, cap, ...ops });
      qp.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 1, qkey: 0x1234 });
      qp.modifySync({ qpState: QpState.RTR });
      qp.modifySync({ qpState: QpState.RTS, sqPsn: 0 });
      return { ...side, qp };
    });
    const [a, b] = sides as [(typeof sides)[0], (typeof sides)[0]];
    const gid = b.context.selectGid();
    const ah = a.pd.createAh({ grh: { dgid: gid.gid, sgidIndex: a.context.selectGid().gidIndex } });
    const to = { ah, remoteQpn: b.qp.qpNum, remoteQkey: 0x1234 };
    const sent = fill(a.mr.buffer.subarray(0, 60), 3);
    const whole = a.mr.slice(0, 60);
    const pieces = [a.mr.slice(0, 7), a.mr.slice(7, 33), a.mr.slice(40, 20)];
    const inline = SendFlags.INLINE | SendFlags.SIGNALED;
    for (const [sgList, sendFlags] of [
      [whole, SendFlags.SIGNALED],
      [pieces, SendFlags.SIGNALED],
      [whole, inline],
      [pieces, inline],
    ] as const) {
      b.mr.buffer.fill(0);
      b.qp.postRecv({ sgList: b.mr.slice(0, GRH_BYTES + 64) });
      a.qp.postSend({ opcode: WrOpcode.SEND_WITH_IMM, immData: 0xfeed_0001, sgList, sendFlags, ...to });
      expect(await completion(a.cq, 'the send')).toMatchObject({ status: SUCCESS, opcode: WcOpcode.SEND });
      const wc = await completion(b.cq, 'the receive');
      expect(wc).toMatchObject({ status: SUCCESS, immData: 0xfeed_0001, srcQp: a.qp.qpNum, byteLen: GRH_BYTES + 60 });
      expect(readDatagram(wc, b.mr.buffer).payload.equals(sent)).toBe(true);
    }
    ah.close({});
    for (const { context } of sides) context.close({ cascade: true });
  });

  it('binds a window, and takes it back by LOCAL_INV and by SEND_WITH_INV of the peer', async () => {
    using pair = await connect({ access: ALL_ACCESS | AccessFlags.MW_BIND });
    const { a, b } = pair;
    const access = AccessFlags.REMOTE_WRITE;
    for (const type of [MwType.MW_TYPE_1, MwType.MW_TYPE_2]) {
      const mw = b.pd.allocMw(type);
      for (const by of type === MwType.MW_TYPE_1 ? ['unbinding'] : ['LOCAL_INV', 'SEND_WITH_INV']) {
        const rkey = b.qp.bindMw(mw, { wrId: 6, local: b.mr.slice(512, 256), access });
        expect(await completion(b.cq)).toMatchObject({ wrId: 6, status: SUCCESS, opcode: WcOpcode.BIND_MW });
        const sent = fill(a.mr.buffer.subarray(0, 256), rkey);
        const remote = new RemoteRegion(mw.remote()!).slice();
        a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 256), remote });
        expect((await completion(a.cq)).status).toBe(SUCCESS);
        expect(b.mr.buffer.subarray(512, 768).equals(sent)).toBe(true);
        if (by === 'unbinding') {
          b.qp.bindMw(mw, { local: b.mr.slice(0, 0), access });
          expect((await completion(b.cq)).status).toBe(SUCCESS);
        } else if (by === 'LOCAL_INV') {
          b.qp.postSend({ opcode: WrOpcode.LOCAL_INV, invalidateRkey: rkey });
          expect(await completion(b.cq)).toMatchObject({ status: SUCCESS, opcode: WcOpcode.LOCAL_INV });
        } else {
          b.qp.postRecv({});
          a.qp.postSend({ opcode: WrOpcode.SEND_WITH_INV, invalidateRkey: rkey });
          expect((await completion(a.cq)).status).toBe(SUCCESS);
          expect(await completion(b.cq)).toMatchObject({ status: SUCCESS, invalidatedRkey: rkey });
        }
      }
      mw.close();
    }
  });

  it('gives one list of every kind of request the same order, results and counts', async () => {
    using pair = await connect({ cap: { maxSendSge: 3, maxInlineData: 64 } });
    const { a, b, remote } = pair;
    const sent = fill(a.mr.buffer.subarray(0, 4096), 11);
    b.mr.buffer.writeBigUInt64LE(41n, 8192);
    b.qp.postRecv([{ wrId: 1, sgList: b.mr.slice(0, 64) }, { wrId: 2 }, { wrId: 3, sgList: b.mr.slice(64, 64) }]);
    const at = (offset: number, length: number) => remote.slice(offset, length);
    const inline = SendFlags.INLINE | SendFlags.SIGNALED;
    const counter = at(8192, 8);
    a.qp.postSend([
      { wrId: 10, opcode: WrOpcode.SEND, sgList: [a.mr.slice(0, 10), a.mr.slice(10, 21), a.mr.slice(31, 1)] },
      { wrId: 11, opcode: WrOpcode.RDMA_WRITE_WITH_IMM, immData: 5, sgList: a.mr.slice(32, 32), remote: at(4096, 32) },
      { wrId: 12, opcode: WrOpcode.SEND_WITH_IMM, immData: 6, sgList: a.mr.slice(64, 64), sendFlags: inline },
      { wrId: 13, opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 2048), remote: at(5000, 2048), sendFlags: 0 },
      {
        wrId: 14,
        opcode: WrOpcode.RDMA_READ,
        sgList: [a.mr.slice(9000, 1000), a.mr.slice(11_000, 1048)],
        remote: at(5000, 2048),
      },
      {
        wrId: 15,
        opcode: WrOpcode.ATOMIC_FETCH_AND_ADD,
        sgList: a.mr.slice(13_000, 8),
        remote: counter,
        compareAdd: 1n,
      },
      {
        wrId: 16,
        opcode: WrOpcode.ATOMIC_CMP_AND_SWP,
        sgList: a.mr.slice(13_008, 8),
        remote: counter,
        compareAdd: 42n,
        swap: 7n,
      },
      { wrId: 17, opcode: WrOpcode.RDMA_WRITE, remote: at(0, 8) },
    ]);
    expect(a.qp.sendsInFlight).toBe(8);
    const found = await completions(a.cq, 7);
    expect(found.map(({ wrId, status }) => [wrId, status])).toEqual(
      [10, 11, 12, 14, 15, 16, 17].map((id) => [id, SUCCESS]),
    );
    expect(a.qp.sendsInFlight).toBe(0);
    const received = await completions(b.cq, 3);
    expect(received.map(({ wrId, byteLen, immData, wcFlags }) => [wrId, byteLen, wcFlags & 2 ? immData : 0])).toEqual([
      [1, 32, 0],
      [2, 32, 5],
      [3, 64, 6],
    ]);
    expect(b.mr.buffer.subarray(0, 32).equals(sent.subarray(0, 32))).toBe(true);
    expect(b.mr.buffer.subarray(4096, 4128).equals(sent.subarray(32, 64))).toBe(true);
    expect(b.mr.buffer.subarray(64, 128).equals(sent.subarray(64, 128))).toBe(true);
    expect(a.mr.buffer.subarray(9000, 10_000).equals(sent.subarray(0, 1000))).toBe(true);
    expect(a.mr.buffer.subarray(11_000, 12_048).equals(sent.subarray(1000, 2048))).toBe(true);
    expect([13_000, 13_008].map((from) => a.mr.buffer.readBigUInt64LE(from))).toEqual([41n, 42n]);
    expect(b.mr.buffer.readBigUInt64LE(8192)).toBe(7n);
  });

  it('refuses ATOMIC_WRITE and FLUSH that the queue pair was not made for, and says how to make one', async () => {
    using pair = await connect();
    const { a, remote } = pair;
    for (const opcode of [WrOpcode.ATOMIC_WRITE, WrOpcode.FLUSH]) {
      expect(thrown(() => a.qp.postSend({ opcode, sgList: a.mr.slice(0, 8), remote: remote.slice() }))).toMatchObject({
        code: 'ERR_INVALID_ARG_VALUE',
        message: expect.stringContaining('sendOpsFlags'),
      });
    }
    expect(a.qp.sendsInFlight).toBe(0);
    expect(a.qp.sendOpsFlags === undefined).toBe(verb === 'ibv_post_send');
  });
});

describe('sendOpsFlags', () => {
  it('are all that can be sent', async () => {
    using pair = await Pair.connect({ attr: { sendOpsFlags: SendOpsFlags.RDMA_WRITE } });
    const { a, b, remote } = pair;
    a.mr.buffer.write('only this');
    a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 9), remote: remote.slice() });
    expect((await completion(a.cq)).status).toBe(SUCCESS);
    expect(b.mr.buffer.toString('latin1', 0, 9)).toBe('only this');
    const expected = { code: 'ERR_INVALID_ARG_VALUE', message: expect.stringContaining('sendOpsFlags without SEND') };
    expect(thrown(() => a.qp.postSend({ opcode: WrOpcode.SEND }))).toMatchObject(expected);
    const mw = a.pd.allocMw(MwType.MW_TYPE_2);
    const bind = () => a.qp.bindMw(mw, { local: a.mr.slice(), access: 0 });
    expect(thrown(bind)).toMatchObject({ code: 'ERR_INVALID_ARG_VALUE', message: expect.stringContaining('BIND_MW') });
    mw.close();
  });

  it('that no device has are EOPNOTSUPP from ibv_create_qp_ex', () => {
    using side = closing(openSide(deviceA));
    const error = thrown(() => side.pd.createQp({ sendCq: side.cq, sendOpsFlags: 2 ** 31 }));
    expect(error).toMatchObject({ code: 'EOPNOTSUPP', syscall: 'ibv_create_qp_ex' });
    const udRead = { sendCq: side.cq, qpType: QpType.UD, sendOpsFlags: SendOpsFlags.RDMA_READ };
    expect(thrown(() => side.pd.createQp(udRead))).toMatchObject({ code: 'EOPNOTSUPP' });
  });

  it('FLUSH is EOPNOTSUPP with the library of these tests, and names the release that has it', () => {
    using side = closing(openSide(deviceA));
    expect(thrown(() => side.pd.createQp({ sendCq: side.cq, sendOpsFlags: SendOpsFlags.FLUSH }))).toMatchObject({
      code: 'EOPNOTSUPP',
      syscall: 'ibv_create_qp_ex',
      message: expect.stringContaining('rdma-core 45'),
    });
    const wr = { opcode: WrOpcode.FLUSH, placementType: PlacementType.GLOBAL };
    expect(() => side.qp.postSend(wr)).toThrow(/sendOpsFlags/);
  });
});

describe('ATOMIC_WRITE', () => {
  const sendOpsFlags = SendOpsFlags.ATOMIC_WRITE | SendOpsFlags.RDMA_WRITE;

  it('writes 8 bytes, as they are at the post; or the device says EOPNOTSUPP and we since when', async () => {
    if (!isRxe) {
      using side = closing(openSide(deviceA));
      expect(thrown(() => side.pd.createQp({ sendCq: side.cq, sendOpsFlags }))).toMatchObject({
        code: 'EOPNOTSUPP',
        message: expect.stringContaining('ATOMIC_WRITE came with rdma-core 44'),
      });
      return;
    }
    using pair = await Pair.connect({ attr: { sendOpsFlags } });
    const { a, b, remote } = pair;
    const wr = { opcode: WrOpcode.ATOMIC_WRITE, sgList: a.mr.slice(8, 8), remote: remote.slice(64, 8) };
    for (const value of [0n, 1n, 2n ** 63n, 0x0102_0304_0506_0708n, 2n ** 64n - 1n]) {
      b.mr.buffer.fill(0x55, 56, 80);
      a.mr.buffer.writeBigUInt64LE(value, 8);
      a.qp.postSend({ wrId: 3, ...wr });
      a.mr.buffer.writeBigUInt64LE(~value & 0xffff_ffff_ffff_ffffn, 8);
      expect(await completion(a.cq)).toMatchObject({ wrId: 3, status: SUCCESS, opcode: WcOpcode.ATOMIC_WRITE });
      expect(b.mr.buffer.readBigUInt64LE(64)).toBe(value);
      expect([56, 72].map((at) => b.mr.buffer.readBigUInt64LE(at))).toEqual(Array(2).fill(0x5555_5555_5555_5555n));
    }
    const list = a.qp.prepareSend([wr, { ...wr, wrId: 9 }]);
    list.setRemote(1, remote.slice(4096, 8));
    list.setLocal(1, a.mr.slice(128, 8));
    a.mr.buffer.writeBigUInt64LE(77n, 128);
    list.post();
    expect((await completions(a.cq, 2)).map(({ wrId, status }) => [wrId, status])).toEqual([
      [0, SUCCESS],
      [9, SUCCESS],
    ]);
    expect(b.mr.buffer.readBigUInt64LE(4096)).toBe(77n);
    refusesBadAtomicWrites(a.qp, pair);
  });

  function refusesBadAtomicWrites(qp: QueuePair, { a, remote }: Pair): void {
    const opcode = WrOpcode.ATOMIC_WRITE;
    const ok = { opcode, sgList: a.mr.slice(0, 8), remote: remote.slice(0, 8) };
    for (const [wr, message] of [
      [{ ...ok, sgList: a.mr.slice(0, 7) }, /8 bytes/],
      [{ ...ok, sgList: a.mr.slice(0, 16) }, /8 bytes/],
      [{ opcode, remote: ok.remote }, /sgList is missing/],
      [{ ...ok, remote: remote.slice(0, 4) }, /remote must have the 8 bytes/],
      [{ ...ok, remote: remote.slice(4, 8) }, /multiple of 8/],
      [{ ...ok, compareAdd: 1n }, /atomics only/],
      [{ ...ok, sendFlags: SendFlags.INLINE }, /INLINE/],
    ] as const) {
      expect(() => qp.postSend(wr)).toThrow(message);
    }
    expect(qp.sendsInFlight).toBe(0);
  }
});

describe('createFlags and their like', () => {
  it('select ibv_create_qp_ex; a device that lacks them says so', () => {
    using side = closing(openSide(deviceA));
    const make = (attr: object) => () => side.pd.createQp({ sendCq: side.cq, ...attr });
    const loopback = { createFlags: QpCreateFlags.BLOCK_SELF_MCAST_LB };
    if (isRxe) {
      expect(thrown(make(loopback))).toMatchObject({ code: 'EOPNOTSUPP', syscall: 'ibv_create_qp_ex' });
    } else {
      using qp = make(loopback)();
      expect(qp.query().initAttr.cap).toEqual(qp.cap);
    }
    const raw = { createFlags: QpCreateFlags.SCATTER_FCS | QpCreateFlags.CVLAN_STRIPPING };
    expect(thrown(make(raw))).toMatchObject({ code: 'EOPNOTSUPP', syscall: 'ibv_create_qp_ex' });
    const underlay = { sourceQpn: 0x12, qpType: QpType.UD };
    expect(thrown(make(underlay))).toMatchObject({ code: 'EOPNOTSUPP', syscall: 'ibv_create_qp_ex' });
    for (const [name, values] of Object.entries({
      createFlags: [-1, 2 ** 32, 1.5, '1', null],
      sourceQpn: [-1, 2 ** 24, '1', null],
      maxTsoHeader: [-1, 2 ** 16, '1', null],
      sendOpsFlags: [-1, 2 ** 32, '1', null],
    })) {
      for (const value of values) expect(make({ [name]: value })).toThrow(`attr.${name}`);
    }
    expect(make({ sendOps: 1 })).toThrow(/Unknown option 'sendOps'/);
  });

  it('leave the granted capacities readable, and what the kernel keeps of them the same', () => {
    using side = closing(openSide(deviceA));
    const cap = { maxSendWr: 33, maxRecvWr: 17, maxSendSge: 3, maxRecvSge: 2, maxInlineData: 20 };
    using plain = side.pd.createQp({ sendCq: side.cq, cap });
    using extended = side.pd.createQp({ sendCq: side.cq, cap, sendOpsFlags: SendOpsFlags.SEND });
    for (const qp of [plain, extended]) {
      // A request by ibv_wr_* may have less room for inline data.
      for (const [name, wanted] of Object.entries(cap)) {
        expect(qp.cap[name as keyof typeof cap], name).toBeGreaterThanOrEqual(wanted);
      }
      const { cap: granted, ...rest } = qp.query().initAttr;
      expect(rest).toEqual({ qpType: QpType.RC, sqSigAll: false });
      for (const [name, value] of Object.entries(qp.cap)) {
        expect(granted[name as keyof typeof cap], name).toBeGreaterThanOrEqual(value);
      }
    }
  });
});

/** A side that is closed with all that is in it. */
function closing<T extends { context: { close(options: { cascade: boolean }): void } }>(side: T): T & Disposable {
  return Object.assign(side, { [Symbol.dispose]: () => side.context.close({ cascade: true }) });
}
