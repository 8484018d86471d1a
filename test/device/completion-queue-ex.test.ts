/** Extended completion queues: used as any other, and their completions tell more. */
import { describe, expect, it } from 'vitest';
import {
  type CompletionQueue,
  CompletionQueueEx,
  CreateCqAttrFlags,
  CreateCqWcFlags,
  Endpoint,
  openDevice,
  QpState,
  type QueuePair,
  RemoteRegion,
  WcOpcode,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import { binding } from '../../lib/native/binding.ts';
import {
  ALL_ACCESS,
  collect,
  completions,
  connectSides,
  deviceA,
  deviceB,
  expectNoLeaks,
  isRxe,
  openSide,
  type Side,
  thrown,
  until,
  within,
} from './fixture.ts';

expectNoLeaks();

const { WITH_COMPLETION_TIMESTAMP, WITH_COMPLETION_TIMESTAMP_WALLCLOCK } = CreateCqWcFlags;
const ALL_WC_FLAGS = Object.values(CreateCqWcFlags).reduce((all: number, flag) => all | flag, 0);

interface ExSide extends Side {
  cq: CompletionQueueEx;
}

/** As openSide(), with an extended queue. */
function openExSide(device: string, wcFlags?: number, flags = 0, depth = 64): ExSide {
  const context = openDevice(device);
  const pd = context.allocPd();
  const cq = context.createCqEx(2 * depth, { flags, ...(wcFlags !== undefined && { wcFlags }) });
  const qp = pd.createQp({ sendCq: cq, cap: { maxSendWr: depth, maxRecvWr: depth } });
  const mr = pd.allocSync(16 * 1024, { access: ALL_ACCESS });
  return { context, pd, cq, qp, mr };
}

/** Two sides with extended queues, connected; closed at the end. */
class ExPair implements Disposable {
  readonly a: ExSide;
  readonly b: ExSide;
  private constructor(a: ExSide, b: ExSide) {
    this.a = a;
    this.b = b;
  }
  static async connect(wcFlags?: number, flags = 0, depth = 64): Promise<ExPair> {
    const [a, b] = [openExSide(deviceA, wcFlags, flags, depth), openExSide(deviceB, wcFlags, flags, depth)];
    await connectSides(a, b);
    return new ExPair(a, b);
  }
  [Symbol.dispose](): void {
    for (const { qp } of [this.a, this.b]) qp.close();
    for (const { context } of [this.a, this.b]) context.close({ cascade: true });
  }
}

/** Waits for that many, as objects of their own. */
async function take(cq: CompletionQueueEx, count: number) {
  const found: ReturnType<CompletionQueueEx['pollWc']> = [];
  await until(() => {
    found.push(...cq.pollWc());
    return found.length >= count;
  }, `${count} completions`);
  expect(found).toHaveLength(count);
  return found;
}

describe('context.createCqEx', () => {
  it('makes a completion queue that is used as any other', async () => {
    using pair = await ExPair.connect();
    const { a, b } = pair;
    expect(a.cq).toBeInstanceOf(CompletionQueueEx);
    expect(a.cq.claimed).toBe(128);
    expect([a.cq.flags, a.cq.wcFlags]).toEqual([0, 127]);
    b.qp.postRecv([
      { wrId: 2 ** 52 + 1, sgList: b.mr.slice(0, 64) },
      { wrId: 8, sgList: b.mr.slice(64, 64) },
    ]);
    a.mr.buffer.write('told by an extended queue');
    a.qp.postSend({ wrId: 5, opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 25) });
    const [sent] = await take(a.cq, 1);
    const [received] = await take(b.cq, 1);
    expect(sent).toMatchObject({ wrId: 5, status: WcStatus.SUCCESS, opcode: WcOpcode.SEND, qpNum: a.qp.qpNum });
    expect(received).toMatchObject({ wrId: 2 ** 52 + 1, opcode: WcOpcode.RECV, byteLen: 25, qpNum: b.qp.qpNum });
    expect(b.mr.buffer.toString('utf8', 0, 25)).toBe('told by an extended queue');
    const write = new RemoteRegion(b.mr.remote()).slice(128, 8);
    a.qp.postSend({
      opcode: WrOpcode.RDMA_WRITE_WITH_IMM,
      sgList: a.mr.slice(0, 8),
      remote: write,
      immData: 0x01020304,
    });
    await take(a.cq, 1);
    expect(await take(b.cq, 1)).toMatchObject([
      { wrId: 8, opcode: WcOpcode.RECV_RDMA_WITH_IMM, immData: 0x01020304, byteLen: 8 },
    ]);
    expect([a.qp.sendsInFlight, b.qp.recvsInFlight]).toEqual([0, 0]);
  });

  it('takes thousands of completions through all the waits, each once and in order', { timeout: 240_000 }, async () => {
    // rdma_rxe of rdma-core 44 corrupts its queue where a poll runs into its end: this runs into it all the time.
    using pair = await ExPair.connect(undefined, 0, 60);
    const { a, b } = pair;
    const total = isRxe ? 3_000 : 12_000;
    const remote = new RemoteRegion(b.mr.remote()).slice(0, 0);
    let seed = 11;
    const random = (n: number): number => {
      seed = (seed * 1_103_515_245 + 12_345) & 0x7fff_ffff;
      return (seed >> 8) % n;
    };
    let posted = 0;
    let taken = 0;
    const see = (wrId: number) => {
      if (wrId !== taken++) throw new Error(`wrId ${wrId} came at place ${taken - 1}`);
    };
    const consumer = (async () => {
      while (taken < total) {
        const way = random(4);
        if (way < 2) {
          const count = await a.cq.wait();
          for (let i = 0; i < count; i++) see(a.cq.at(i).wrId);
        } else if (way === 2) {
          for (let count = a.cq.poll(1 + random(8)), i = 0; i < count; i++) see(a.cq.at(i).wrId);
          await new Promise((resolve) => setImmediate(resolve));
        } else {
          for await (const { wrId } of a.cq) {
            see(wrId);
            break;
          }
        }
      }
    })();
    while (posted < total) {
      const room = Math.min(1 + random(40), total - posted, a.qp.cap.maxSendWr - a.qp.sendsInFlight);
      if (room > 0) {
        const first = posted;
        a.qp.postSend(
          Array.from({ length: room }, (_, i) => ({ wrId: first + i, opcode: WrOpcode.RDMA_WRITE, remote })),
        );
      }
      posted += Math.max(room, 0);
      if (room < 1 || random(3) === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    await within(consumer, 'the last completion');
    expect([taken, a.cq.poll(), a.qp.sendsInFlight]).toEqual([total, 0, 0]);
  });

  it('serves an endpoint', async () => {
    using pair = await ExPair.connect();
    const { a, b } = pair;
    const [client, server] = [new Endpoint(a.qp), new Endpoint(b.qp)];
    const received = server.recv(b.mr.slice(0, 64));
    await within(client.send(a.mr.slice(0, 10), { immData: 77 }), 'the send');
    expect(await within(received, 'the message')).toEqual({ byteLen: 10, immData: 77 });
    await Promise.all([client.close(), server.close()]);
  });

  // What the device can tell of a completion, in each way.
  const { WITH_QP_NUM, WITH_CVLAN, WITH_FLOW_TAG, WITH_TM_INFO } = CreateCqWcFlags;
  const told: [string, number | undefined][] = [
    ['nothing more', undefined],
    ...(isRxe
      ? []
      : ([
          ['the time', WITH_COMPLETION_TIMESTAMP | WITH_QP_NUM],
          ['the time of day', WITH_COMPLETION_TIMESTAMP_WALLCLOCK | WITH_QP_NUM],
          ['all that there is', ALL_WC_FLAGS],
          ['what packets have', WITH_CVLAN | WITH_FLOW_TAG | WITH_TM_INFO | WITH_QP_NUM],
        ] satisfies [string, number][])),
  ];

  it.each(told)('that tells %s tells of failures, and of flushed requests, as data', async (_what, wcFlags) => {
    using pair = await ExPair.connect(wcFlags);
    const { a, b } = pair;
    const wrong = new RemoteRegion({ ...b.mr.remote(), rkey: b.mr.rkey ^ 0x5500 });
    const good = new RemoteRegion(b.mr.remote()).slice(0, 8);
    const write = { opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8) };
    b.qp.postRecv([{ wrId: 4 }, { wrId: 5 }]);
    // What a place of the queue held before does not show through.
    a.qp.postSend({ ...write, wrId: 9, remote: good });
    expect(await take(a.cq, 1)).toMatchObject([{ wrId: 9, status: WcStatus.SUCCESS }]);
    a.qp.postSend([
      { ...write, wrId: 1, remote: wrong.slice(0, 8) },
      { wrId: 2, opcode: WrOpcode.SEND },
    ]);
    const noMore = {
      completionTs: undefined,
      completionWallclockNs: undefined,
      cvlan: undefined,
      flowTag: undefined,
      tmInfo: undefined,
    };
    const failed = { vendorErr: expect.any(Number), opcode: 0, byteLen: 0, qpNum: a.qp.qpNum, ...noMore };
    // The error codes of a ConnectX, which people know from the logs of libmlx5.
    expect(await take(a.cq, 2)).toMatchObject([
      { ...failed, wrId: 1, status: WcStatus.REM_ACCESS_ERR, ...(!isRxe && { vendorErr: 0x88 }) },
      { ...failed, wrId: 2, status: WcStatus.WR_FLUSH_ERR, ...(!isRxe && { vendorErr: 0xf9 }) },
    ]);
    b.qp.modifySync({ qpState: QpState.ERR });
    const flushed = { ...failed, qpNum: b.qp.qpNum, status: WcStatus.WR_FLUSH_ERR };
    const found = await take(b.cq, 2);
    expect(found).toMatchObject([4, 5].map((wrId) => ({ ...flushed, wrId, ...(!isRxe && { vendorErr: 0xf9 }) })));
    expect(JSON.parse(JSON.stringify(found[0]))).not.toHaveProperty('completionTs');
    expect([a.qp.sendsInFlight, b.qp.recvsInFlight]).toEqual([0, 0]);
  });

  it.each(told)('that tells %s drops what a closed queue pair has left', async (_what, wcFlags) => {
    using pair = await ExPair.connect(wcFlags);
    const { a, b } = pair;
    b.qp.modifySync({ qpState: QpState.ERR });
    b.qp.postRecv(Array.from({ length: 20 }, (_, wrId) => ({ wrId })));
    b.qp.close();
    expect(b.cq.poll()).toBe(0);
    expect(b.cq.claimed).toBe(0);
    expect(a.cq.poll()).toBe(0);
  });

  it('can be resized, and shared with ordinary queues at one channel', async () => {
    using pair = await ExPair.connect();
    const { a, b } = pair;
    const ordinary: CompletionQueue = b.context.createCq(4);
    expect(ordinary.channel).toBe(b.cq.channel);
    b.qp.postRecv([{ wrId: 1 }, { wrId: 2 }]);
    a.qp.postSend({ opcode: WrOpcode.SEND });
    await take(a.cq, 1);
    await b.cq.resize(1000);
    expect(b.cq.cqe).toBeGreaterThanOrEqual(1000);
    a.qp.postSend({ opcode: WrOpcode.SEND });
    await take(a.cq, 1);
    expect((await take(b.cq, 2)).map(({ wrId }) => wrId)).toEqual([1, 2]);
    const waiting = b.cq.wait();
    b.qp.postRecv({ wrId: 3 });
    a.qp.postSend({ opcode: WrOpcode.SEND });
    expect(await within(waiting, 'the event')).toBe(1);
    await take(a.cq, 1);
  });

  it('leaves out what was not asked for', async () => {
    using pair = await ExPair.connect(CreateCqWcFlags.WITH_QP_NUM);
    const { a, b } = pair;
    b.qp.postRecv({ wrId: 1, sgList: b.mr.slice(0, 64) });
    a.qp.postSend({ opcode: WrOpcode.SEND_WITH_IMM, sgList: a.mr.slice(0, 10), immData: 9 });
    await take(a.cq, 1);
    const [received] = await take(b.cq, 1);
    expect(received).toEqual({
      wrId: 1,
      status: WcStatus.SUCCESS,
      opcode: WcOpcode.RECV,
      vendorErr: 0,
      byteLen: 0,
      immData: 0,
      invalidatedRkey: 0,
      qpNum: b.qp.qpNum,
      srcQp: 0,
      wcFlags: expect.any(Number),
      pkeyIndex: 0,
      slid: 0,
      sl: 0,
      dlidPathBits: 0,
      completionTs: undefined,
      completionWallclockNs: undefined,
      cvlan: undefined,
      flowTag: undefined,
      tmInfo: undefined,
    });
    const nothing = await ExPair.connect(0);
    nothing.b.qp.postRecv({ wrId: 4 });
    nothing.a.qp.postSend({ opcode: WrOpcode.SEND });
    await take(nothing.a.cq, 1);
    expect((await take(nothing.b.cq, 1))[0]).toMatchObject({ wrId: 4, status: WcStatus.SUCCESS, qpNum: 0 });
    nothing[Symbol.dispose]();
  });

  it('can be for one thread only', async () => {
    using pair = await ExPair.connect(undefined, CreateCqAttrFlags.SINGLE_THREADED);
    const { a, b } = pair;
    expect(a.cq.flags).toBe(CreateCqAttrFlags.SINGLE_THREADED);
    b.qp.postRecv({ wrId: 1 });
    a.qp.postSend({ opcode: WrOpcode.SEND });
    await take(a.cq, 1);
    await take(b.cq, 1);
    // What other queues have done on a thread of the pool is done here.
    const resizing = a.cq.resize(500);
    expect(a.cq.cqe).toBeGreaterThanOrEqual(500);
    await resizing;
    const resetting = a.qp.modify({ qpState: QpState.RESET });
    await Promise.resolve();
    expect((a.qp as QueuePair).state).toBe(QpState.RESET);
    await resetting;
  });

  it('refuses options that it does not know or that are no flags', () => {
    using context = openDevice(deviceA);
    for (const name of ['wcFlags', 'flags']) {
      for (const value of [-1, 1.5, 2 ** 32, '1', null]) {
        const error = thrown(() => context.createCqEx(4, { [name]: value } as never));
        expect(error.code, `${name} ${value}`).toMatch(/^ERR_(OUT_OF_RANGE|INVALID_ARG_TYPE)$/);
        expect(error.message).toContain(`options.${name}`);
      }
    }
    expect(thrown(() => context.createCqEx(4, { wc_flags: 1 } as never)).message).toContain("'wcFlags'");
    expect(thrown(() => context.createCqEx(0)).code).toBe('ERR_OUT_OF_RANGE');
    expect(thrown(() => context.createCqEx(4, { compVector: context.numCompVectors })).code).toBe('ERR_OUT_OF_RANGE');
    expect(thrown(() => context.createCqEx(4, { wcFlags: 1 << 30 }))).toMatchObject({
      code: 'EOPNOTSUPP',
      syscall: 'ibv_create_cq_ex',
    });
    const cq = context.createCq(4);
    expect(() => binding().createWcRingEx(cq.handle, 8)).toThrow(/not extended/);
    context.close({ cascade: true });
    expect(thrown(() => context.createCqEx(4)).code).toBe('ERR_RDMA_CLOSED');
  });

  it('is collected with its ring', async () => {
    const before = binding().census();
    (() => {
      const context = openDevice(deviceA);
      const cq = context.createCqEx(4);
      cq.poll();
      cq.close();
      context.close({ cascade: true });
    })();
    await collect();
    expect(binding().census()).toEqual(before);
  });
});

describe('what a device without a clock says', () => {
  it.runIf(isRxe)('is EOPNOTSUPP', () => {
    using context = openDevice(deviceA);
    for (const wcFlags of [
      WITH_COMPLETION_TIMESTAMP,
      WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
      CreateCqWcFlags.WITH_CVLAN,
      CreateCqWcFlags.WITH_FLOW_TAG,
      CreateCqWcFlags.WITH_TM_INFO,
    ]) {
      expect(thrown(() => context.createCqEx(4, { channel: null, wcFlags }))).toMatchObject({
        name: 'RdmaError',
        code: 'EOPNOTSUPP',
        syscall: 'ibv_create_cq_ex',
      });
    }
    expect(thrown(() => context.queryRtValues())).toMatchObject({
      code: 'EOPNOTSUPP',
      syscall: 'ibv_query_rt_values_ex',
    });
    const flags = CreateCqAttrFlags.IGNORE_OVERRUN;
    expect(thrown(() => context.createCqEx(4, { channel: null, flags }))).toMatchObject({ code: 'EOPNOTSUPP' });
  });
});

describe.runIf(!isRxe)('timestamps', () => {
  const both = WITH_COMPLETION_TIMESTAMP | WITH_COMPLETION_TIMESTAMP_WALLCLOCK | CreateCqWcFlags.WITH_QP_NUM;

  it('say when a completion happened, by both clocks', async () => {
    using pair = await ExPair.connect(both);
    const { a, b } = pair;
    const { completionTimestampMask, hcaCoreClock } = a.context.queryDeviceEx();
    expect(completionTimestampMask).toBeGreaterThan(0n);
    let last = 0n;
    for (let i = 0; i < 20; i++) {
      const before = { raw: a.context.queryRtValues().rawClock as bigint, wall: BigInt(Date.now()) * 1_000_000n };
      b.qp.postRecv({});
      a.qp.postSend({ opcode: WrOpcode.SEND });
      const [sent] = await take(a.cq, 1);
      const [received] = await take(b.cq, 1);
      const after = { raw: a.context.queryRtValues().rawClock as bigint, wall: BigInt(Date.now() + 1) * 1_000_000n };
      for (const wc of [sent, received]) {
        expect(wc!.completionTs).toBeGreaterThanOrEqual(before.raw);
        expect(wc!.completionTs).toBeLessThanOrEqual(after.raw);
        // The clock of the machine may be set while this runs; within a second it is the same time.
        expect(wc!.completionWallclockNs).toBeGreaterThan(before.wall - 1_000_000_000n);
        expect(wc!.completionWallclockNs).toBeLessThan(after.wall + 1_000_000_000n);
      }
      expect(sent!.completionTs).toBeGreaterThanOrEqual(last);
      last = sent!.completionTs as bigint;
    }
    // kHz: 20 messages take less than an hour.
    expect(hcaCoreClock).toBeGreaterThan(0n);
    expect(a.cq.describe()).toContain('CompletionQueueEx');
  });

  it('are read in place, and survive as JSON', async () => {
    using pair = await ExPair.connect(both | CreateCqWcFlags.WITH_BYTE_LEN);
    const { a, b } = pair;
    b.qp.postRecv({ sgList: b.mr.slice(0, 64) });
    a.qp.postSend({ opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 33) });
    await take(a.cq, 1);
    await until(() => b.cq.poll() === 1, 'the receive');
    const wc = b.cq.at(0);
    expect(typeof wc.completionTs).toBe('bigint');
    expect(typeof wc.completionWallclockNs).toBe('bigint');
    const copy = JSON.parse(JSON.stringify(wc));
    expect(copy).toMatchObject({ byteLen: 33, completionTs: wc.completionTs!.toString() });
    expect(BigInt(copy.completionWallclockNs)).toBe(wc.completionWallclockNs);
  });

  it('come with fields of raw packets and of tag matching where they are asked for', async () => {
    const { WITH_CVLAN, WITH_FLOW_TAG, WITH_TM_INFO } = CreateCqWcFlags;
    using pair = await ExPair.connect(WITH_CVLAN | WITH_FLOW_TAG | WITH_TM_INFO);
    const { a, b } = pair;
    b.qp.postRecv({});
    a.qp.postSend({ opcode: WrOpcode.SEND });
    await take(a.cq, 1);
    const [wc] = await take(b.cq, 1);
    expect(wc).toMatchObject({ cvlan: expect.any(Number), flowTag: expect.any(Number), completionTs: undefined });
    expect(wc!.tmInfo).toEqual({ tag: expect.any(BigInt), priv: expect.any(Number) });
  });

  it('IGNORE_OVERRUN makes no event of an overrun', async () => {
    const a = openSide(deviceA);
    const context = openDevice(deviceB);
    const pd = context.allocPd();
    const cq = context.createCqEx(4, { flags: CreateCqAttrFlags.IGNORE_OVERRUN, allowOverrun: true });
    const depth = cq.cqe + 8;
    const qp = pd.createQp({ sendCq: cq, cap: { maxSendWr: 1, maxRecvWr: depth } });
    const mr = pd.allocSync(64, { access: ALL_ACCESS });
    await connectSides(a, { context, pd, cq, qp, mr });
    const reason = new Error('no event');
    const aborter = new AbortController();
    const event = context.getAsyncEvent({ signal: aborter.signal }).catch((error) => error);
    qp.postRecv(Array.from({ length: depth }, (_, wrId) => ({ wrId })));
    a.qp.postSend(Array.from({ length: depth }, (_, wrId) => ({ wrId, opcode: WrOpcode.SEND })));
    await completions(a.cq, depth, 'the sends');
    for (let i = 0; i < 20; i++) await new Promise((resolve) => setImmediate(resolve));
    aborter.abort(reason);
    expect(await within(event, 'the abort')).toBe(reason);
    a.qp.close();
    a.context.close({ cascade: true });
    context.close({ cascade: true });
  });
});

describe('context.queryDeviceEx', () => {
  it('tells what queryDevice() tells, and more', () => {
    using context = openDevice(deviceA);
    const attr = context.queryDeviceEx();
    expect(attr.origAttr).toEqual(context.queryDevice());
    expect(attr).toMatchObject({
      odpCaps: { generalCaps: expect.any(BigInt), perTransportCaps: { rcOdpCaps: expect.any(Number) } },
      completionTimestampMask: isRxe ? 0n : 0xffff_ffff_ffff_ffffn,
      hcaCoreClock: isRxe ? 0n : 156_250n,
      tsoCaps: { maxTso: expect.any(Number), supportedQpts: expect.any(Number) },
      rssCaps: { rxHashFieldsMask: expect.any(BigInt) },
      packetPacingCaps: { qpRateLimitMax: expect.any(Number) },
      tmCaps: { maxNumTags: expect.any(Number) },
      cqModCaps: isRxe ? { maxCqCount: 0, maxCqPeriod: 0 } : { maxCqCount: 65_535, maxCqPeriod: 4095 },
      maxDmSize: expect.any(BigInt),
      pciAtomicCaps: { fetchAdd: expect.any(Number), swap: expect.any(Number), compareSwap: expect.any(Number) },
      xrcOdpCaps: expect.any(Number),
      physPortCntEx: expect.any(Number),
    });
    expect(Number(attr.deviceCapFlagsEx & 0xffff_ffffn) >>> 0).toBe(attr.origAttr.deviceCapFlags >>> 0);
    context.close();
    expect(thrown(() => context.queryDeviceEx()).code).toBe('ERR_RDMA_CLOSED');
    expect(thrown(() => context.queryRtValues()).code).toBe('ERR_RDMA_CLOSED');
  });
});
