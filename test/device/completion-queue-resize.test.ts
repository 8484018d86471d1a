/** Completion queues that change: their length, and when they tell of what they have. */
import { describe, expect, it, vi } from 'vitest';
import { type CompletionQueue, CqOverrunError, openDevice, QpState, WcStatus, WrOpcode } from '../../lib/index.ts';
import {
  collect,
  completion,
  completions,
  deviceA,
  expectNoLeaks,
  isRxe,
  Pair,
  thrown,
  until,
  within,
} from './fixture.ts';

expectNoLeaks();

const cap = (maxSendWr: number, maxRecvWr: number) => ({ maxSendWr, maxRecvWr });

/** Posts `count` signalled empty writes at a. */
function write(pair: Pair, count: number, firstId = 0): void {
  const remote = pair.remote.slice(0, 0);
  const wrs = Array.from({ length: count }, (_, i) => ({ wrId: firstId + i, opcode: WrOpcode.RDMA_WRITE, remote }));
  pair.a.qp.postSend(wrs);
}

/** Writes, and waits until all of their completions are in the queue of a, where nobody has polled them. */
async function fillQueue(pair: Pair, count: number, firstId = 0): Promise<void> {
  write(pair, count - 1, firstId);
  pair.b.qp.postRecv({});
  const remote = pair.remote.slice(0, 0);
  pair.a.qp.postSend({ wrId: firstId + count - 1, opcode: WrOpcode.RDMA_WRITE_WITH_IMM, remote, immData: 0 });
  await completion(pair.b.cq, 'the last write');
}

const upTo = (count: number) => Array.from({ length: count }, (_, i) => i);

type Resize = (cq: CompletionQueue, cqe: number) => Promise<void>;
const ways: [name: string, resize: Resize][] = [
  ['resize', (cq, cqe) => cq.resize(cqe)],
  ['resizeSync', async (cq, cqe) => cq.resizeSync(cqe)],
];

describe.each(ways)('cq.%s', (_name, resize) => {
  it('grants at least what was asked for, more and less', async () => {
    using context = openDevice(deviceA);
    using cq = context.createCq(16);
    for (const cqe of [300, 1000, 20, 1, 4000]) {
      await resize(cq, cqe);
      expect(cq.cqe).toBeGreaterThanOrEqual(cqe);
      expect(cq.poll()).toBe(0);
    }
    expect(cq.cqe).toBeLessThan(16_000);
    context.close({ cascade: true });
  });

  it('keeps the completions that wait, those that come, and those that were taken', async () => {
    using pair = await Pair.connect({ cap: cap(100, 4), cqe: 104 });
    const { a } = pair;
    await fillQueue(pair, 40);
    await until(() => a.cq.poll(1) === 1, 'the first');
    const first = a.cq.at(0);
    await resize(a.cq, 700);
    // What the last poll took is still there to be read.
    expect([first.wrId, a.cq.at(0).wrId, a.cq.at(0).status]).toEqual([0, 0, WcStatus.SUCCESS]);
    write(pair, 50, 40);
    await resize(a.cq, 1500);
    const rest = await completions(a.cq, 89);
    expect(rest.map(({ wrId }) => wrId)).toEqual(upTo(90).slice(1));
    await resize(a.cq, 104);
    write(pair, 100, 1000);
    expect((await completions(a.cq, 100)).map(({ wrId }) => wrId)).toEqual(upTo(100).map((i) => 1000 + i));
    expect(a.qp.sendsInFlight).toBe(0);
  });

  it('refuses less than its queue pairs claim, with the sum', async () => {
    using pair = await Pair.connect({ cap: cap(100, 20), cqe: 500 });
    const { cq } = pair.a;
    const before = cq.cqe;
    const error = await resize(cq, 119).catch((reason) => reason);
    expect(error).toBeInstanceOf(CqOverrunError);
    expect(error).toMatchObject({ code: 'EINVAL', syscall: 'ibv_resize_cq', cqe: 119, claimed: 120, asked: 0 });
    expect(error.message).toContain('would have 119 entries for 120 claimed completions;');
    expect(cq.cqe).toBe(before);
    await resize(cq, 120);
    expect(cq.cqe).toBeGreaterThanOrEqual(120);
    expect(cq.cqe).toBeLessThan(before);
  });

  it('makes room for another queue pair, and for fewer', async () => {
    using pair = await Pair.connect({ cap: cap(10, 10), cqe: 20 });
    const { cq, pd } = pair.a;
    expect(thrown(() => pd.createQp({ sendCq: cq, cap: cap(200, 200) }))).toBeInstanceOf(CqOverrunError);
    await resize(cq, 420);
    const qp = pd.createQp({ sendCq: cq, cap: cap(200, 200) });
    await expect(resize(cq, 100)).rejects.toMatchObject({ name: 'CqOverrunError', claimed: 420 });
    qp.close();
    await resize(cq, 100);
  });

  it('refuses less than waits in it, where the queue does not count', async () => {
    using pair = await Pair.connect({ cap: cap(100, 4), cqe: 8, allowOverrun: true, b: { cqe: 128 } });
    const { a } = pair;
    await resize(a.cq, 110);
    const before = a.cq.cqe;
    await fillQueue(pair, 60);
    await expect(resize(a.cq, 8)).rejects.toMatchObject({
      name: 'RdmaError',
      code: 'EINVAL',
      syscall: 'ibv_resize_cq',
      message: expect.stringContaining('more completions wait'),
    });
    expect(a.cq.cqe).toBe(before);
    expect((await completions(a.cq, 60)).map(({ wrId }) => wrId)).toEqual(upTo(60));
    await resize(a.cq, 8);
  });

  it('refuses more than the device has, and what is no number of entries', async () => {
    using context = openDevice(deviceA);
    using cq = context.createCq(16);
    const { maxCqe } = context.queryDevice();
    await expect(resize(cq, maxCqe + 1)).rejects.toMatchObject({
      code: 'EINVAL',
      message: expect.stringContaining(`maxCqe of the device ${maxCqe}`),
    });
    for (const cqe of [0, -1, 1.5, Number.NaN, 2 ** 31, '16', undefined, null]) {
      await expect(resize(cq, cqe as number), String(cqe)).rejects.toMatchObject({
        code: expect.stringMatching(/^ERR_(OUT_OF_RANGE|INVALID_ARG_TYPE)$/),
        message: expect.stringContaining('cqe'),
      });
    }
    cq.close();
    await expect(resize(cq, 16)).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    context.close({ cascade: true });
  });

  it('still wakes who waits', async () => {
    using pair = await Pair.connect({ cap: cap(20, 20), cqe: 40 });
    const { a, b } = pair;
    b.qp.postRecv([{ wrId: 1 }, { wrId: 2 }]);
    const waiting = b.cq.wait();
    await new Promise((done) => setImmediate(done));
    await resize(b.cq, 900);
    a.qp.postSend({ opcode: WrOpcode.SEND });
    expect(await within(waiting, 'the message')).toBe(1);
    a.qp.postSend({ opcode: WrOpcode.SEND });
    expect(await within(b.cq.wait(), 'the next')).toBe(1);
    expect(b.cq.at(0).wrId).toBe(2);
    await completions(a.cq, 2);
  });
});

describe('cq.resize', () => {
  it('holds the queue while it is under way, and counts by the smaller length', async () => {
    using context = openDevice(deviceA);
    using pd = context.allocPd();
    const cq = context.createCq(500);
    const resizing = cq.resize(10);
    expect(thrown(() => cq.close())).toMatchObject({ code: 'EBUSY' });
    expect(thrown(() => cq.resizeSync(100))).toMatchObject({ code: 'ERR_INVALID_STATE' });
    expect(thrown(() => pd.createQp({ sendCq: cq, cap: cap(100, 100) }))).toBeInstanceOf(CqOverrunError);
    await resizing;
    expect(cq.cqe).toBeLessThan(100);
    cq.close();
    context.close({ cascade: true });
  });

  it('loses nothing while completions arrive and are polled', async () => {
    using pair = await Pair.connect({ cap: cap(64, 4), cqe: 68 });
    const { a } = pair;
    const seen: number[] = [];
    const total = isRxe ? 600 : 4000;
    let posted = 0;
    let resizes = 0;
    let isOver = false;
    const resizer = (async () => {
      for (; !isOver; resizes++) await a.cq.resize(resizes % 2 === 0 ? 2000 : 68);
    })();
    await until(() => {
      const room = Math.min(a.qp.cap.maxSendWr - a.qp.sendsInFlight, total - posted);
      if (room > 0) write(pair, room, posted);
      posted += Math.max(room, 0);
      const count = a.cq.poll(40);
      for (let i = 0; i < count; i++) seen.push(a.cq.at(i).wrId);
      return seen.length === total;
    }, 'all completions');
    isOver = true;
    await within(resizer, 'the last resize');
    expect(seen).toEqual(upTo(total));
    expect(resizes).toBeGreaterThan(1);
  });

  it('leaves nothing behind', async () => {
    using context = openDevice(deviceA);
    const cq = context.createCq(16);
    for (let i = 0; i < 50; i++) {
      await cq.resize(i % 2 === 0 ? 600 : 16);
      // libmlx5 tells the device only then that it has taken the mark where the old memory ends.
      expect(cq.poll()).toBe(0);
    }
    await collect();
    cq.close();
    context.close({ cascade: true });
  });
});

describe('cq.modify', () => {
  it.runIf(isRxe)('is EOPNOTSUPP here', () => {
    using context = openDevice(deviceA);
    using cq = context.createCq(16, { channel: null });
    expect(thrown(() => cq.modify({ cqCount: 4, cqPeriod: 10 }))).toMatchObject({
      name: 'RdmaError',
      code: 'EOPNOTSUPP',
      syscall: 'ibv_modify_cq',
    });
  });

  it.runIf(!isRxe)('makes one event of several completions', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    b.cq.modify({ cqCount: 4, cqPeriod: 0 });
    const onEvent = vi.spyOn(b.cq, 'onEvent');
    b.qp.postRecv(upTo(5).map((wrId) => ({ wrId })));
    const waiting = b.cq.wait();
    for (let i = 0; i < 3; i++) {
      a.qp.postSend({ opcode: WrOpcode.SEND });
      await completion(a.cq);
    }
    for (let i = 0; i < 50; i++) await new Promise((resolve) => setImmediate(resolve));
    expect(onEvent).not.toHaveBeenCalled();
    a.qp.postSend({ opcode: WrOpcode.SEND });
    expect(await within(waiting, 'the fourth')).toBe(4);
    expect(onEvent).toHaveBeenCalledTimes(1);
    await completion(a.cq);
    // And an event for each again.
    b.cq.modify({ cqCount: 0, cqPeriod: 0 });
    const next = b.cq.wait();
    a.qp.postSend({ opcode: WrOpcode.SEND });
    expect(await within(next, 'the fifth')).toBe(1);
    await completion(a.cq);
  });

  it.runIf(!isRxe)('lets the first completion wait no longer than its period', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    b.cq.modify({ cqCount: 100, cqPeriod: 4000 });
    b.qp.postRecv({ wrId: 9 });
    const waiting = b.cq.wait();
    const begin = performance.now();
    a.qp.postSend({ opcode: WrOpcode.SEND });
    expect(await within(waiting, 'the event')).toBe(1);
    expect(performance.now() - begin).toBeGreaterThanOrEqual(3.9);
    await completion(a.cq);
  });

  it.runIf(!isRxe)('refuses a period that the device does not have with EINVAL', () => {
    using context = openDevice(deviceA);
    using cq = context.createCq(16, { channel: null });
    const { maxCqPeriod } = context.queryDeviceEx().cqModCaps;
    expect(thrown(() => cq.modify({ cqCount: 1, cqPeriod: maxCqPeriod + 1 }))).toMatchObject({
      code: 'EINVAL',
      syscall: 'ibv_modify_cq',
    });
    cq.modify({ cqCount: 1, cqPeriod: maxCqPeriod });
  });

  it('takes both figures, of 16 bits each', () => {
    using context = openDevice(deviceA);
    using cq = context.createCq(16, { channel: null });
    for (const attr of [
      {},
      { cqCount: 1 },
      { cqPeriod: 1 },
      { cqCount: -1, cqPeriod: 0 },
      { cqCount: 0, cqPeriod: 65_536 },
      { cqCount: 1.5, cqPeriod: 0 },
      { cqCount: '1', cqPeriod: 0 },
    ]) {
      const error = thrown(() => cq.modify(attr as never));
      expect(error.code, JSON.stringify(attr)).toMatch(/^ERR_(OUT_OF_RANGE|INVALID_ARG_TYPE)$/);
      expect(error.message).toMatch(/attr\.cq(Count|Period)/);
    }
    expect(thrown(() => cq.modify({ cq_count: 1, cqPeriod: 0 } as never)).message).toContain("'cqCount'");
    expect(thrown(() => cq.modify(5 as never)).code).toBe('ERR_INVALID_ARG_TYPE');
    cq.close();
    expect(thrown(() => cq.modify({ cqCount: 1, cqPeriod: 1 })).code).toBe('ERR_RDMA_CLOSED');
  });
});

describe('a queue pair that is reset', () => {
  it('leaves its claim', async () => {
    using pair = await Pair.connect({ cap: cap(8, 8) });
    const { cq, qp } = pair.a;
    const claimed = cq.claimed;
    await qp.modify({ qpState: QpState.RESET });
    expect(cq.claimed).toBe(claimed);
  });
});
