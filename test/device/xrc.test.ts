/** Extended reliable connections: domains, shared receive queues with numbers, queue pairs that send and that receive. */
import { closeSync, constants, mkdtempSync, openSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import {
  type AnyQueuePair,
  type CompletionQueue,
  type Context,
  type MemoryRegion,
  openDevice,
  type ProtectionDomain,
  type QpAttr,
  QpState,
  QpType,
  type QueuePair,
  RemoteRegion,
  SendFlags,
  type SendWr,
  type SharedReceiveQueue,
  SrqType,
  WcOpcode,
  WcStatus,
  WrOpcode,
  type XrcDomain,
  type XrcRecvQueuePair,
} from '../../lib/index.ts';
import {
  ALL_ACCESS,
  completion,
  completions,
  deviceA,
  deviceB,
  expectNoLeaks,
  fill,
  initAttr,
  isRxe,
  postings,
  rtsAttr,
  thrown,
} from './fixture.ts';

expectNoLeaks();

const SUCCESS = WcStatus.SUCCESS;
const folder = mkdtempSync(join(tmpdir(), 'node-rdma-xrc-'));
afterAll(() => rmSync(folder, { recursive: true }));

/** A sender on one device; on the other a receiving queue pair and two shared receive queues, each with a queue for itself. */
class Xrc implements Disposable {
  readonly a: { context: Context; pd: ProtectionDomain; cq: CompletionQueue; mr: MemoryRegion; qp: QueuePair };
  readonly b: { context: Context; pd: ProtectionDomain; mr: MemoryRegion; xrcd: XrcDomain; qp: XrcRecvQueuePair };
  readonly srqs: { srq: SharedReceiveQueue; cq: CompletionQueue }[];
  readonly remote: RemoteRegion;

  constructor(attr: object, path?: string) {
    const [context, other] = [openDevice(deviceA), openDevice(deviceB)] as const;
    const pd = context.allocPd();
    const cq = context.createCq(256);
    const mr = pd.allocSync(16_384, { access: ALL_ACCESS });
    const cap = { maxSendWr: 64, maxSendSge: 3, maxInlineData: 64 };
    const qp = pd.createQp({ sendCq: cq, qpType: QpType.XRC_SEND, cap, ...attr });
    this.a = { context, pd, cq, mr, qp };
    const xrcd = other.openXrcd(path === undefined ? {} : { path });
    const recvPd = other.allocPd();
    this.b = {
      context: other,
      pd: recvPd,
      mr: recvPd.allocSync(16_384, { access: ALL_ACCESS }),
      xrcd,
      qp: other.createQp({ qpType: QpType.XRC_RECV, xrcd }),
    };
    this.srqs = [1, 2].map(() => {
      const srqCq = other.createCq(256);
      return { cq: srqCq, srq: recvPd.createSrq({ srqType: SrqType.XRC, xrcd, cq: srqCq, maxWr: 32, maxSge: 2 }) };
    });
    this.remote = new RemoteRegion(this.b.mr.remote());
  }

  path(from: Context, to: Context, destQpNum: number): QpAttr {
    return {
      qpState: QpState.RTR,
      pathMtu: from.queryPort(1).activeMtu as NonNullable<QpAttr['pathMtu']>,
      destQpNum,
      rqPsn: 0,
      ahAttr: { grh: { dgid: to.selectGid().gid, sgidIndex: from.selectGid().gidIndex } },
    };
  }

  async connect(): Promise<this> {
    const { a, b } = this;
    await b.qp.modify(initAttr());
    await b.qp.modify({ ...this.path(b.context, a.context, a.qp.qpNum), maxDestRdAtomic: 4, minRnrTimer: 1 });
    await a.qp.modify(initAttr());
    await a.qp.modify(this.path(a.context, b.context, b.qp.qpNum));
    await a.qp.modify(rtsAttr());
    return this;
  }

  [Symbol.dispose](): void {
    this.a.qp.close();
    for (const { context } of [this.a, this.b]) context.close({ cascade: true });
  }
}

describe.runIf(isRxe)('on a device without XRC', () => {
  it('each part of it is EOPNOTSUPP', () => {
    const context = openDevice(deviceA);
    const pd = context.allocPd();
    const sendCq = context.createCq(256);
    expect(thrown(() => context.openXrcd())).toMatchObject({ code: 'EOPNOTSUPP', syscall: 'ibv_open_xrcd' });
    const path = join(folder, 'rxe');
    expect(thrown(() => context.openXrcd({ path }))).toMatchObject({ code: 'EOPNOTSUPP' });
    const create = () => pd.createQp({ sendCq, qpType: QpType.XRC_SEND });
    expect(thrown(create)).toMatchObject({ code: 'EOPNOTSUPP', syscall: 'ibv_create_qp' });
    using srq = pd.createSrq();
    expect(thrown(() => srq.srqNum)).toMatchObject({ code: 'EOPNOTSUPP', syscall: 'ibv_get_srq_num' });
    const tags = { srqType: SrqType.TM, cq: sendCq, maxNumTags: 4 };
    expect(thrown(() => pd.createSrq(tags))).toMatchObject({ code: 'EOPNOTSUPP', syscall: 'ibv_create_srq_ex' });
    srq.close();
    context.close({ cascade: true });
  });
});

describe.skipIf(isRxe).each(postings)('XRC by $verb', ({ attr }) => {
  it('puts each message into the shared receive queue that it names, and completes it there', async () => {
    using xrc = await new Xrc(attr).connect();
    const { a, b, srqs } = xrc;
    expect(new Set([...srqs.map(({ srq }) => srq.srqNum)]).size).toBe(2);
    for (const [i, { srq }] of srqs.entries()) {
      srq.postRecv(
        Array.from({ length: 4 }, (_, k) => ({ wrId: 10 * i + k, sgList: b.mr.slice(i * 4096 + k * 512, 512) })),
      );
      expect(srq.recvsInFlight).toBe(4);
    }
    const sent = fill(a.mr.buffer.subarray(0, 4096), 5);
    const wrs = [0, 1, 1, 0].map((to, k): SendWr => {
      const remoteSrqn = (srqs[to] as (typeof srqs)[0]).srq.srqNum;
      const sgList = a.mr.slice(k * 512, 100 + k);
      return { wrId: k, opcode: WrOpcode.SEND_WITH_IMM, immData: 100 + k, sgList, remoteSrqn };
    });
    a.qp.postSend(wrs);
    const found = await completions(a.cq, 4, 'the sends');
    expect(found.map(({ wrId, status }) => [wrId, status])).toEqual([0, 1, 2, 3].map((id) => [id, SUCCESS]));
    for (const [i, messages] of [
      [0, 3],
      [1, 2],
    ].entries()) {
      const { srq, cq } = srqs[i] as (typeof srqs)[0];
      const received = await completions(cq, 2, `the receives of queue ${i}`);
      expect(received).toMatchObject(
        messages.map((k, n) => ({
          wrId: 10 * i + n,
          status: SUCCESS,
          opcode: WcOpcode.RECV,
          byteLen: 100 + k,
          immData: 100 + k,
          qpNum: b.qp.qpNum,
          srcQp: a.qp.qpNum,
        })),
      );
      for (const [n, k] of messages.entries()) {
        const at = i * 4096 + n * 512;
        expect(b.mr.buffer.subarray(at, at + 100 + k).equals(sent.subarray(k * 512, k * 512 + 100 + k))).toBe(true);
      }
      expect(srq.recvsInFlight).toBe(2);
    }
  });

  it('writes, reads and does atomics in the domain of the queue that is named', async () => {
    using xrc = await new Xrc(attr).connect();
    const { a, b, srqs, remote } = xrc;
    const [{ srq, cq }] = srqs as [(typeof srqs)[0]];
    const remoteSrqn = srq.srqNum;
    const sent = fill(a.mr.buffer.subarray(0, 3000), 9);
    srq.postRecv({ wrId: 77 });
    b.mr.buffer.writeBigUInt64LE(41n, 8192);
    const counter = remote.slice(8192, 8);
    const inline = SendFlags.INLINE | SendFlags.SIGNALED;
    const at = (offset: number, length: number) => remote.slice(offset, length);
    a.qp.postSend([
      {
        opcode: WrOpcode.RDMA_WRITE,
        sgList: [a.mr.slice(0, 1000), a.mr.slice(1000, 2000)],
        remote: at(0, 3000),
        remoteSrqn,
      },
      { opcode: WrOpcode.RDMA_WRITE_WITH_IMM, immData: 6, sgList: a.mr.slice(0, 8), remote: at(4096, 8), remoteSrqn },
      {
        opcode: WrOpcode.RDMA_WRITE,
        sgList: [a.mr.slice(0, 5), a.mr.slice(5, 9)],
        remote: at(5000, 14),
        remoteSrqn,
        sendFlags: inline,
      },
      { opcode: WrOpcode.RDMA_READ, sgList: a.mr.slice(4096, 3000), remote: at(0, 3000), remoteSrqn },
      {
        opcode: WrOpcode.ATOMIC_FETCH_AND_ADD,
        sgList: a.mr.slice(8000, 8),
        remote: counter,
        compareAdd: 1n,
        remoteSrqn,
      },
      {
        opcode: WrOpcode.ATOMIC_CMP_AND_SWP,
        sgList: a.mr.slice(8008, 8),
        remote: counter,
        compareAdd: 42n,
        swap: 7n,
        remoteSrqn,
      },
    ]);
    expect((await completions(a.cq, 6)).map(({ status }) => status)).toEqual(Array(6).fill(SUCCESS));
    expect(b.mr.buffer.subarray(0, 3000).equals(sent)).toBe(true);
    expect(b.mr.buffer.subarray(4096, 4104).equals(sent.subarray(0, 8))).toBe(true);
    expect(b.mr.buffer.subarray(5000, 5014).equals(sent.subarray(0, 14))).toBe(true);
    expect(a.mr.buffer.subarray(4096, 7096).equals(sent)).toBe(true);
    expect([8000, 8008].map((from) => a.mr.buffer.readBigUInt64LE(from))).toEqual([41n, 42n]);
    expect(b.mr.buffer.readBigUInt64LE(8192)).toBe(7n);
    expect(await completion(cq, 'the receive')).toMatchObject({
      wrId: 77,
      immData: 6,
      opcode: WcOpcode.RECV_RDMA_WITH_IMM,
    });
  });

  it('waits for a receive of that queue, and ends for a queue that is not there', async () => {
    using xrc = await new Xrc(attr).connect();
    const { a, b, srqs } = xrc;
    const [{ srq, cq }] = srqs as [(typeof srqs)[0]];
    a.mr.buffer.write('later');
    a.qp.postSend({ opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 5), remoteSrqn: srq.srqNum });
    for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve));
    expect(a.cq.poll()).toBe(0);
    srq.postRecv({ sgList: b.mr.slice(0, 64) });
    expect((await completion(a.cq)).status).toBe(SUCCESS);
    expect((await completion(cq)).byteLen).toBe(5);
    expect(b.mr.buffer.toString('latin1', 0, 5)).toBe('later');
    a.qp.postSend({ opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 5), remoteSrqn: 0xff_ffff });
    expect((await completion(a.cq)).status).toBe(WcStatus.REM_INV_REQ_ERR);
    expect(b.qp.query().qpState).toBe(QpState.ERR);
  });

  it('prepares requests, and changes them in place', async () => {
    using xrc = await new Xrc(attr).connect();
    const { a, b, srqs } = xrc;
    const [{ srq, cq }] = srqs as [(typeof srqs)[0]];
    srq.postRecv([{ sgList: b.mr.slice(0, 64) }, { sgList: b.mr.slice(64, 64) }]);
    const list = a.qp.prepareSend({ opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 4), remoteSrqn: srq.srqNum });
    a.mr.buffer.write('one twotwo');
    list.post();
    list.setLocal(0, a.mr.slice(4, 6));
    list.post();
    await completions(a.cq, 2);
    expect((await completions(cq, 2)).map(({ byteLen }) => byteLen)).toEqual([4, 6]);
    expect([b.mr.buffer.toString('latin1', 0, 4), b.mr.buffer.toString('latin1', 64, 70)]).toEqual(['one ', 'twotwo']);
  });

  it('goes on past the end of the queue, with requests of every length', async () => {
    using xrc = await new Xrc(attr).connect();
    const { a, b, srqs, remote } = xrc;
    const remoteSrqn = srqs[0]!.srq.srqNum;
    for (let i = 0; i < 200; i++) {
      const sent = fill(a.mr.buffer.subarray(0, 96), i);
      const pieces = [a.mr.slice(0, 20), a.mr.slice(20, 44), a.mr.slice(64, 32)].slice(0, 1 + (i % 3));
      const length = pieces.reduce((sum, piece) => sum + piece.length, 0);
      const sendFlags = length <= 64 && i % 2 ? SendFlags.INLINE | SendFlags.SIGNALED : SendFlags.SIGNALED;
      const wr = { wrId: i, sgList: pieces, remote: remote.slice(i, length), sendFlags, remoteSrqn };
      a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, ...wr });
      expect(await completion(a.cq)).toMatchObject({ wrId: i, status: SUCCESS });
      expect(b.mr.buffer.subarray(i, i + length).equals(sent.subarray(0, length))).toBe(true);
    }
  });

  it('refuses what is wrong with a request, naming it', async () => {
    using xrc = await new Xrc(attr).connect();
    const { a, srqs } = xrc;
    const remoteSrqn = srqs[0]!.srq.srqNum;
    for (const value of [undefined, -1, 2 ** 24, '1', null]) {
      expect(() => a.qp.postSend({ opcode: WrOpcode.SEND, remoteSrqn: value } as never)).toThrow(/remoteSrqn/);
    }
    expect(() => a.qp.postSend({ opcode: WrOpcode.SEND, remoteSrqn, remoteQpn: 1 })).toThrow(/UD queue pairs only/);
    expect(() => a.qp.postRecv({})).toThrow(/maxRecvWr 0/);
    using rc = a.pd.createQp({ sendCq: a.cq });
    expect(() => rc.postSend({ opcode: WrOpcode.SEND, remoteSrqn })).toThrow(/XRC_SEND queue pairs only/);
    expect(a.qp.sendsInFlight).toBe(0);
  });
});

describe.skipIf(isRxe)('the objects of XRC', () => {
  it('hold each other, and are closed in order or by cascade', async () => {
    const xrc = await new Xrc({}).connect();
    const { b, srqs } = xrc;
    const [{ srq, cq }] = srqs as [(typeof srqs)[0]];
    expect([srq.srqType, srq.xrcd, srq.cq]).toEqual([SrqType.XRC, b.xrcd, cq]);
    expect(thrown(() => b.xrcd.close())).toMatchObject({ code: 'EBUSY', syscall: 'ibv_close_xrcd' });
    expect(thrown(() => cq.close())).toMatchObject({ code: 'EBUSY' });
    b.qp.close();
    b.qp.close();
    expect(thrown(() => b.qp.query())).toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    for (const one of srqs) one.srq.close();
    cq.close();
    b.xrcd.close();
    expect(thrown(() => b.context.createQp({ qpType: QpType.XRC_RECV, xrcd: b.xrcd }))).toMatchObject({
      code: 'ERR_RDMA_CLOSED',
    });
    xrc[Symbol.dispose]();
  });

  it('are found by a file from another context, whose queues the same connection fills', async () => {
    const path = join(folder, 'domain');
    const two = openDevice(deviceB);
    expect(thrown(() => two.openXrcd({ path, oflags: 0 }))).toMatchObject({ code: 'ENOENT' });
    const xrc = await new Xrc({}, path).connect();
    const { a, b } = xrc;
    const fd = openSync(path, 'r');
    const exclusive = () => two.openXrcd({ fd, oflags: constants.O_CREAT | constants.O_EXCL });
    expect(thrown(exclusive)).toMatchObject({ code: 'EINVAL', syscall: 'ibv_open_xrcd' });
    const xrcd = two.openXrcd({ fd, oflags: 0 });
    closeSync(fd);
    const [pd, cq] = [two.allocPd(), two.createCq(256)];
    const mr = pd.allocSync(4096);
    const srq = pd.createSrq({ srqType: SrqType.XRC, xrcd, cq });
    srq.postRecv({ wrId: 3, sgList: mr.slice(100, 100) });
    const sent = fill(a.mr.buffer.subarray(0, 90), 4);
    a.qp.postSend({ opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 90), remoteSrqn: srq.srqNum });
    expect((await completion(a.cq)).status).toBe(SUCCESS);
    expect(await completion(cq)).toMatchObject({ wrId: 3, status: SUCCESS, byteLen: 90, qpNum: b.qp.qpNum });
    expect(mr.buffer.subarray(100, 190).equals(sent)).toBe(true);
    // libmlx5 cannot close such a handle, whatever its release.
    expect(thrown(() => two.openQp({ xrcd, qpNum: b.qp.qpNum }))).toMatchObject({
      code: 'EOPNOTSUPP',
      syscall: 'ibv_open_qp',
      message: expect.stringContaining('libmlx5'),
    });
    two.close({ cascade: true });
    xrc[Symbol.dispose]();
    using gone = openDevice(deviceB);
    expect(thrown(() => gone.openXrcd({ path, oflags: 0 }))).toMatchObject({ code: 'EAGAIN' });
  });

  it('explain a transition of their own kinds', async () => {
    using xrc = new Xrc({});
    const { a, b } = xrc;
    const explained = async (qp: AnyQueuePair, attr: QpAttr) =>
      ((await qp.modify(attr).catch((error: Error) => error)) as Error).message;
    await a.qp.modify(initAttr());
    await b.qp.modify(initAttr());
    const rtr = (qp: AnyQueuePair) => xrc.path(qp.context, qp === a.qp ? b.context : a.context, 1);
    expect(await explained(b.qp, rtr(b.qp))).toContain('INIT -> RTR needs MIN_RNR_TIMER | MAX_DEST_RD_ATOMIC');
    await a.qp.modify(rtr(a.qp));
    expect(await explained(a.qp, { qpState: QpState.RTS, sqPsn: 0 })).toMatch(
      /RTR -> RTS needs MAX_QP_RD_ATOMIC|RTR -> RTS needs TIMEOUT/,
    );
    await b.qp.modify({ ...rtr(b.qp), maxDestRdAtomic: 1, minRnrTimer: 1 });
    await b.qp.modify({ qpState: QpState.RTS, sqPsn: 0, timeout: 14 });
    expect(b.qp.state).toBe(QpState.RTS);
  });

  it('refuse wrong arguments, naming them', () => {
    using xrc = new Xrc({});
    const { a, b, srqs } = xrc;
    const { context } = a;
    expect(() => context.createQp({ qpType: QpType.RC, xrcd: b.xrcd })).toThrow(/attr\.qpType/);
    expect(() => context.createQp({ qpType: QpType.XRC_RECV, xrcd: b.xrcd })).toThrow(
      /attr\.xrcd is of another device/,
    );
    expect(() => context.createQp({ qpType: QpType.XRC_RECV, xrcd: {} as never })).toThrow(/attr\.xrcd/);
    expect(() => context.openQp({ xrcd: b.xrcd, qpNum: 1 })).toThrow(/attr\.xrcd/);
    expect(() => b.context.openQp({ xrcd: b.xrcd, qpNum: 2 ** 24 })).toThrow(/attr\.qpNum/);
    expect(() => context.openXrcd({ fd: 0, path: '/tmp/x' })).toThrow(/two names/);
    expect(() => context.openXrcd({ fd: -1 })).toThrow(/attr\.fd/);
    expect(() => context.openXrcd({ file: 1 } as never)).toThrow(/file/);
    const { pd } = b;
    expect(() => pd.createSrq({ srqType: 9 as never })).toThrow(/attr\.srqType/);
    expect(() => pd.createSrq({ srqType: SrqType.XRC })).toThrow(/attr\.xrcd/);
    expect(() => pd.createSrq({ srqType: SrqType.XRC, xrcd: b.xrcd })).toThrow(/attr\.cq/);
    expect(() => pd.createSrq({ srqType: SrqType.XRC, xrcd: b.xrcd, cq: a.cq })).toThrow(/another device/);
    expect(() => pd.createSrq({ xrcd: b.xrcd })).toThrow(/attr\.xrcd is not for this srqType/);
    expect(() => pd.createSrq({ cq: srqs[0]!.cq })).toThrow(/attr\.cq is not for this srqType/);
    expect(() => pd.createSrq({ maxNumTags: 1 })).toThrow(/maxNumTags/);
    expect(() => pd.createSrq({ srqType: SrqType.TM, cq: srqs[0]!.cq })).toThrow(/maxNumTags/);
    // Tags need a queue of the extended kind, says libmlx5.
    const tags = { srqType: SrqType.TM, cq: srqs[0]!.cq, maxNumTags: 4 };
    expect(thrown(() => pd.createSrq(tags))).toMatchObject({ code: 'EINVAL', syscall: 'ibv_create_srq_ex' });
  });
});
