/** Shared receive queues: receives that several queue pairs take, completing in any order. */
import { describe, expect, it } from 'vitest';
import {
  type CompletionQueue,
  type Context,
  CreateCqWcFlags,
  openDevice,
  QpState,
  type QueuePair,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import {
  ALL_ACCESS,
  backend,
  completion,
  completions,
  connectSides,
  DEADLINE_MS,
  deviceA,
  deviceB,
  expectNoLeaks,
  fill,
  isRxe,
  openSide,
  type Side,
  thrown,
} from './fixture.ts';

expectNoLeaks();

/** Sends messages, and returns when so many have completed there, but gives the event loop no turn. */
function send(side: Side, count: number, completed = count): void {
  const wr = { opcode: WrOpcode.SEND, sgList: side.mr.slice(0, 8) };
  side.qp.postSend(Array.from({ length: count }, () => wr));
  const end = performance.now() + DEADLINE_MS;
  for (let found = 0; found < completed; found += side.cq.poll()) {
    if (performance.now() > end) throw new Error(`${found} of ${completed} sends completed within ${DEADLINE_MS} ms`);
  }
}

/** One sender per queue pair of b, all of which take their receives from one queue. */
async function shared(
  count: number,
  maxWr = 32,
  createCq = (context: Context): CompletionQueue => context.createCq(256),
) {
  const context = openDevice(deviceB);
  const pd = context.allocPd();
  const srq = pd.createSrq({ maxWr, maxSge: 2 });
  const cq = createCq(context);
  const mr = pd.allocSync(64 * 1024, { access: ALL_ACCESS });
  const senders: Side[] = [];
  const receivers: QueuePair[] = [];
  for (let i = 0; i < count; i++) {
    const sender = openSide(deviceA);
    const qp = pd.createQp({ sendCq: cq, srq, cap: { maxSendWr: 8 } });
    await connectSides(sender, { context, pd, cq, qp, mr });
    senders.push(sender);
    receivers.push(qp);
  }
  const close = () => {
    for (const { qp } of senders) qp.close();
    for (const side of senders) side.context.close({ cascade: true });
    context.close({ cascade: true });
  };
  return { context, pd, srq, cq, mr, senders, receivers, close };
}

describe('a shared receive queue', () => {
  it('serves several queue pairs, each receive exactly once, with exact counts', async () => {
    const { srq, cq, mr, senders, receivers, close } = await shared(3);
    srq.postRecv(Array.from({ length: 12 }, (_, i) => ({ wrId: 100 + i, sgList: mr.slice(i * 256, 256) })));
    expect(srq.recvsInFlight).toBe(12);
    const seen = new Map<number, number>();
    for (let round = 0; round < 4; round++) {
      for (const [i, sender] of senders.entries()) {
        const sent = fill(sender.mr.buffer.subarray(0, 64), 10 * round + i);
        sender.qp.postSend({ opcode: WrOpcode.SEND, sgList: sender.mr.slice(0, 64) });
        await completion(sender.cq, 'the send');
        const wc = await completion(cq, 'the receive');
        expect(wc).toMatchObject({ status: WcStatus.SUCCESS, byteLen: 64, qpNum: receivers[i]?.qpNum });
        const at = (wc.wrId - 100) * 256;
        expect(mr.buffer.subarray(at, at + 64).equals(sent)).toBe(true);
        seen.set(wc.wrId, (seen.get(wc.wrId) ?? 0) + 1);
      }
      // One more than is taken out stays in.
      srq.postRecv({ wrId: 200 + round, sgList: mr.slice(32 * 1024 + round * 256, 256) });
    }
    expect([...seen.values()]).toEqual(new Array(12).fill(1));
    expect(srq.recvsInFlight).toBe(4);
    expect(receivers[0]?.recvsInFlight).toBe(0);
    close();
  });

  it('holds the memory of its receives, and of each only as long as it is in flight', async () => {
    const { pd, srq, cq, senders, close } = await shared(1);
    const regions = [1, 2, 3].map(() => pd.allocSync(4096, { access: ALL_ACCESS }));
    srq.prepareRecv(regions.map((region, i) => ({ wrId: i, sgList: region.slice() }))).post();
    for (const region of regions) expect(thrown(() => region.close())).toMatchObject({ code: 'EBUSY' });
    const [sender] = senders as [Side];
    sender.qp.postSend({ opcode: WrOpcode.SEND, sgList: sender.mr.slice(0, 8) });
    const { wrId } = await completion(cq, 'the receive');
    regions[wrId]?.close();
    expect(regions.map(({ closed }) => closed).filter(Boolean)).toHaveLength(1);
    expect(srq.recvsInFlight).toBe(2);
    close();
  });

  it('refuses the receive that is one too many with its index, and takes others later', async () => {
    const { srq, cq, mr, senders, close } = await shared(1, 4);
    const depth = srq.maxWr;
    const error = thrown(() =>
      srq.postRecv(Array.from({ length: depth + 2 }, (_, i) => ({ wrId: i, sgList: mr.slice(0, 64) }))),
    );
    expect(error).toMatchObject({ name: 'PostError', code: 'ENOMEM', index: depth, syscall: 'ibv_post_srq_recv' });
    expect(srq.recvsInFlight).toBe(depth);
    const [sender] = senders as [Side];
    sender.qp.postSend([1, 2].map(() => ({ opcode: WrOpcode.SEND, sgList: sender.mr.slice(0, 8) })));
    await completions(cq, 2, 'the receives');
    srq.postRecv([{ sgList: mr.slice(0, 64) }, { sgList: mr.slice(0, 64) }]);
    expect(srq.recvsInFlight).toBe(depth);
    close();
  });

  it('is needed by its queue pairs, which post no receives themselves', async () => {
    const { srq, mr, receivers, close } = await shared(1);
    expect(thrown(() => srq.close())).toMatchObject({ code: 'EBUSY', syscall: 'ibv_destroy_srq' });
    expect(() => receivers[0]?.postRecv({ sgList: mr.slice(0, 8) })).toThrow(/srq/);
    close();
    expect(thrown(() => srq.postRecv({ sgList: mr.slice(0, 8) })).code).toBe('ERR_RDMA_CLOSED');
  });

  it('holds the memory of what was posted, and nothing else, when it is closed with its queue pairs', async () => {
    const { pd, srq, cq, senders, close } = await shared(1, 4);
    const region = pd.allocSync(4096, { access: ALL_ACCESS });
    srq.postRecv([1, 2].map(() => ({ sgList: region.slice() })));
    send(senders[0]!, 1);
    srq.close({ cascade: true });
    expect([srq.recvsInFlight, cq.poll()]).toEqual([0, 0]);
    region.close();
    close();
  });

  it('can be asked, and be given a limit', async () => {
    using context = openDevice(deviceA);
    using pd = context.allocPd();
    using srq = pd.createSrq({ maxWr: 20 });
    expect(srq.maxWr).toBeGreaterThanOrEqual(20);
    srq.modify({ srqLimit: 5 });
    expect(srq.query()).toMatchObject({ srqLimit: 5 });
    expect(thrown(() => srq.modify({ srqLimit: 2 ** 30 }))).toMatchObject({ syscall: 'ibv_modify_srq' });
    expect(thrown(() => srq.modify({ srqLimit: 5000 })).message).toMatch(/EINVAL: .*the limit is 5000, of 20 receives/);
    expect(() => srq.modify({ limit: 5 } as never)).toThrow(/limit/);
    expect(() => srq.modify({})).toThrow(/attr has no attributes/);
    expect(() => srq.modify({ maxWr: 0 })).toThrow(/attr\.maxWr/);
    expect(() => pd.createSrq({ maxWr: 0 })).toThrow(/attr\.maxWr/);
  });
});

const { WITH_BYTE_LEN } = CreateCqWcFlags;
const ends: Record<string, (qp: QueuePair) => Promise<void> | void> = {
  'is closed': (qp) => qp.close(),
  'is reset': (qp) => qp.modifySync({ qpState: QpState.RESET }),
  'is reset by a promise': (qp) => qp.modify({ qpState: QpState.RESET }),
  'is closed in the error state': (qp) => {
    qp.modifySync({ qpState: QpState.ERR });
    qp.close();
  },
};

const queues = [
  ['a completion queue', (context: Context) => context.createCq(256), Object.entries(ends)],
  [
    'an extended one that does not tell whose a completion is',
    (context: Context) => context.createCqEx(256, { wcFlags: WITH_BYTE_LEN }),
    Object.entries(ends).slice(0, 2),
  ],
] as const;

describe.each(queues)('when a queue pair goes whose receives were not polled: %s', (_queue, createCq, ends) => {
  it.each(ends)('which %s', async (_end, end) => {
    const { pd, srq, cq, senders, receivers, mr, close } = await shared(2, 4, createCq);
    const region = pd.allocSync(4096, { access: ALL_ACCESS });
    const recv = (wrId: number) => ({ wrId, sgList: (wrId < 2 ? region : mr).slice(wrId * 64, 64) });
    srq.postRecv([0, 1, 2, 3].map(recv));
    // Asleep, with an event on its way when the queue pair goes.
    const waiting = cq.wait({ signal: AbortSignal.timeout(DEADLINE_MS) });
    send(senders[0]!, 2);
    send(senders[1]!, 1);
    expect(srq.recvsInFlight).toBe(4);
    const ended = end(receivers[0]!);
    // One that the other has taken, and one that nobody has.
    if (ended === undefined) expect(srq.recvsInFlight).toBe(2);
    expect([await waiting, cq.at(0).wrId, cq.at(0).byteLen]).toEqual([1, 2, 8]);
    await ended;
    expect([srq.recvsInFlight, cq.poll()]).toEqual([1, 0]);
    region.close();

    srq.postRecv([4, 5, 6].map(recv));
    expect(srq.recvsInFlight).toBe(srq.maxWr);
    send(senders[1]!, 4);
    expect((await completions(cq, 4)).map(({ wrId }) => wrId)).toEqual([3, 4, 5, 6]);
    expect([srq.recvsInFlight, cq.poll()]).toEqual([0, 0]);
    close();
  });

  it('and does not go, since the device refuses: they are given out', async () => {
    const { srq, cq, senders, receivers, mr, close } = await shared(1, 4, createCq);
    srq.postRecv([1, 2, 3].map((wrId) => ({ wrId, sgList: mr.slice(0, 64) })));
    send(senders[0]!, 3);
    const error = thrown(() => receivers[0]!.modifySync({ qpState: QpState.RESET, pkeyIndex: 0 }));
    expect(error).toMatchObject({ code: 'EINVAL', syscall: 'ibv_modify_qp' });
    expect([srq.recvsInFlight, cq.poll(2), cq.at(1).wrId, srq.recvsInFlight]).toEqual([3, 2, 2, 1]);
    expect([cq.poll(), cq.at(0).wrId, srq.recvsInFlight, cq.poll()]).toEqual([1, 3, 0, 0]);
    close();
  });
});

describe('a queue pair that goes in the middle of messages', () => {
  it('leaves as many receives as are counted', async () => {
    const rounds = isRxe ? 4 : 50;
    for (let round = 0; round < rounds; round++) {
      const { srq, cq, mr, senders, receivers, close } = await shared(2, 16);
      srq.postRecv(Array.from({ length: 16 }, (_, wrId) => ({ wrId, sgList: mr.slice(0, 64) })));
      // At once, or when they arrive; and now and then some have been polled.
      send(senders[0]!, 16, round % 2);
      const polled = round % 4 < 2 ? 0 : cq.poll(4);
      receivers[0]!.close();
      const left = srq.recvsInFlight;
      expect(left).toBeLessThanOrEqual(16 - polled);
      expect(cq.poll()).toBe(0);
      // All of them are there: the other takes every one, and has none to wait for.
      srq.postRecv(Array.from({ length: 16 - left }, (_, i) => ({ wrId: 16 + i, sgList: mr.slice(0, 64) })));
      send(senders[1]!, 16, 0);
      const wrIds = (await completions(cq, 16, `round ${round}`)).map(({ wrId }) => wrId);
      expect(wrIds).toEqual([
        ...Array.from({ length: left }, (_, i) => 16 - left + i),
        ...Array.from({ length: 16 - left }, (_, i) => 16 + i),
      ]);
      expect(srq.recvsInFlight).toBe(0);
      close();
    }
  });
});

describe('a shared receive queue of another length', () => {
  it.runIf(backend === 'model')('is refused by a device that has none, which the error says', async () => {
    const { srq, cq, close } = await shared(1, 4);
    const { claimed } = cq;
    const error = thrown(() => srq.modify({ maxWr: 8 }));
    expect(error).toMatchObject({ code: 'EINVAL', syscall: 'ibv_modify_srq' });
    expect(error.message).toMatch(/the device cannot resize shared receive queues/);
    expect([srq.maxWr, cq.claimed]).toEqual([4, claimed]);
    close();
  });

  it('has room in the completion queues that it completes in', async () => {
    const { srq, cq, close } = await shared(2, 4);
    // Two queue pairs of 8 sends, and what they share.
    expect(cq.claimed).toBe(2 * 8 + 4);
    const error = thrown(() => srq.modify({ maxWr: cq.cqe }));
    expect(error).toMatchObject({ name: 'CqOverrunError', syscall: 'ibv_modify_srq', claimed: 20, asked: cq.cqe - 4 });
    expect([srq.maxWr, cq.claimed]).toEqual([4, 20]);
    close();
  });

  it.runIf(isRxe)('keeps what is in flight, takes as many as it says, and is counted so', async () => {
    const { srq, cq, mr, senders, receivers, close } = await shared(1, 4);
    const recvs = (from: number, count: number) =>
      Array.from({ length: count }, (_, i) => ({ wrId: from + i, sgList: mr.slice((from + i) * 64, 64) }));
    srq.postRecv(recvs(0, 4));
    srq.modify({ maxWr: 100 });
    expect([srq.maxWr, srq.recvsInFlight, cq.claimed]).toEqual([100, 4, 8 + 100]);
    expect(srq.query().maxWr).toBeGreaterThanOrEqual(100);
    const error = thrown(() => srq.postRecv(recvs(4, 97)));
    expect(error).toMatchObject({ name: 'PostError', code: 'ENOMEM', index: 96 });
    expect(srq.recvsInFlight).toBe(100);
    expect(thrown(() => mr.close())).toMatchObject({ code: 'EBUSY', message: /100 work request\(s\) in flight/ });

    const less = thrown(() => srq.modify({ maxWr: 99 }));
    expect(less).toMatchObject({ code: 'EINVAL', syscall: 'ibv_modify_srq' });
    expect(less.message).toMatch(/attr\.maxWr is 99, but 100 receives are in flight/);
    const sent = [];
    for (let round = 0; round < 12; round++) {
      send(senders[0]!, 8);
      sent.push(...(await completions(cq, 8)).map(({ wrId }) => wrId));
    }
    expect(sent).toEqual(Array.from({ length: 96 }, (_, i) => i));
    expect(srq.recvsInFlight).toBe(4);
    srq.modify({ maxWr: 6, srqLimit: 2 });
    expect([srq.maxWr, cq.claimed, srq.query().srqLimit]).toEqual([6, 8 + 6, 2]);
    expect(thrown(() => srq.postRecv(recvs(100, 3)))).toMatchObject({ code: 'ENOMEM', index: 2 });
    const { maxSrqWr } = receivers[0]!.context.queryDevice();
    expect(thrown(() => srq.modify({ maxWr: 1 })).message).toMatch(/6 receives are in flight/);
    receivers[0]!.close();
    expect(cq.claimed).toBe(0);
    // Nothing completes anywhere, so that the device is asked.
    expect(thrown(() => srq.modify({ maxWr: maxSrqWr + 1 })).message).toMatch(/maxSrqWr of the device/);
    close();
  });
});
