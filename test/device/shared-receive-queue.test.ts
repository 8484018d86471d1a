/** Shared receive queues: receives that several queue pairs take, completing in any order. */
import { describe, expect, it } from 'vitest';
import { openDevice, type QueuePair, WcStatus, WrOpcode } from '../../lib/index.ts';
import {
  ALL_ACCESS,
  completion,
  completions,
  connectSides,
  deviceA,
  deviceB,
  expectNoLeaks,
  fill,
  openSide,
  type Side,
  thrown,
} from './fixture.ts';

expectNoLeaks();

/** One sender per queue pair of b, all of which take their receives from one queue. */
async function shared(count: number, maxWr = 32) {
  const context = openDevice(deviceB);
  const pd = context.allocPd();
  const srq = pd.createSrq({ maxWr, maxSge: 2 });
  const cq = context.createCq(256);
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

  it('can be asked, and be given a limit', async () => {
    using context = openDevice(deviceA);
    using pd = context.allocPd();
    using srq = pd.createSrq({ maxWr: 20 });
    expect(srq.maxWr).toBeGreaterThanOrEqual(20);
    srq.modify({ srqLimit: 5 });
    expect(srq.query()).toMatchObject({ srqLimit: 5 });
    expect(thrown(() => srq.modify({ srqLimit: 2 ** 30 }))).toMatchObject({ syscall: 'ibv_modify_srq' });
    expect(() => srq.modify({ limit: 5 } as never)).toThrow(/limit/);
    expect(() => pd.createSrq({ maxWr: 0 })).toThrow(/attr\.maxWr/);
  });
});
