import { afterEach, describe, expect, it } from 'vitest';
import { QUEUE_HEAD, QUEUE_TAIL } from '../../lib/native/native.ts';
import type { MemoryRegion } from '../../lib/verbs/memory-region.ts';
import { type Held, NOTHING, WorkQueue } from '../../lib/verbs/work-queue.ts';

// Only their identity matters here.
const [a, b, c] = ['a', 'b', 'c'].map((name) => ({ name }) as unknown as MemoryRegion) as [
  MemoryRegion,
  MemoryRegion,
  MemoryRegion,
];

let queues: WorkQueue[] = [];
function make(capacity: number): WorkQueue {
  const queue = new WorkQueue(capacity);
  queues.push(queue);
  return queue;
}
afterEach(() => {
  for (const queue of queues) queue.close();
  queues = [];
});

/** What posting does (PostList): the addon moves the tail, the queue holds what it does not hold already. */
function post(queue: WorkQueue, count: number, held: Held, list: readonly Held[] | null = null): void {
  queue.words[QUEUE_TAIL] = (queue.words[QUEUE_TAIL] as number) + count;
  const all = list ?? new Array<Held>(count).fill(held);
  const isWhole = count > 1 && list !== null;
  if (queue.youngest !== (isWhole ? all : all[0]) || (count > 1 && !isWhole)) queue.hold(count, all, isWhole);
  if (list !== null && count < list.length) queue.youngest = NOTHING;
}

/** What a completion does: the addon moves the head behind it. */
function complete(queue: WorkQueue, count: number): void {
  queue.words[QUEUE_HEAD] = (queue.words[QUEUE_HEAD] as number) + count;
}

const uses = (queue: WorkQueue): number[] => [a, b, c].map((region) => queue.uses(region));

describe('WorkQueue', () => {
  it('counts the requests in flight that use each region', () => {
    const queue = make(16);
    post(queue, 1, a);
    post(queue, 2, b);
    post(queue, 1, [a, c]);
    post(queue, 1, null);
    expect(queue.length).toBe(5);
    expect(uses(queue)).toEqual([2, 2, 1]);
    complete(queue, 1);
    expect(uses(queue)).toEqual([1, 2, 1]);
    complete(queue, 1);
    expect(uses(queue)).toEqual([1, 1, 1]);
    complete(queue, 3);
    expect(uses(queue)).toEqual([0, 0, 0]);
    expect(queue.length).toBe(0);
  });

  it('counts each request once, also one that has a region twice', () => {
    const queue = make(4);
    post(queue, 1, [a, a, b]);
    expect(uses(queue)).toEqual([1, 1, 0]);
  });

  it('follows lists that are posted again and again, as a whole and in part', () => {
    const queue = make(32);
    const list: Held[] = [a, [a, b], null];
    post(queue, 3, null, list);
    post(queue, 3, null, list);
    expect(uses(queue)).toEqual([4, 2, 0]);
    complete(queue, 1);
    expect(uses(queue)).toEqual([3, 2, 0]);
    complete(queue, 3);
    expect(uses(queue)).toEqual([1, 1, 0]);
    // Only the first of the list fitted; then it is posted from its beginning.
    post(queue, 1, null, list);
    expect(uses(queue)).toEqual([2, 1, 0]);
    post(queue, 3, null, list);
    expect(uses(queue)).toEqual([4, 2, 0]);
    complete(queue, 3);
    expect(uses(queue)).toEqual([2, 1, 0]);
  });

  it('passes the wrap of its sequence numbers', () => {
    const queue = make(8);
    // It begins 64 before zero; this is the other end of the 32 bits.
    queue.words[QUEUE_HEAD] = queue.words[QUEUE_TAIL] = 0x7fff_fffc;
    for (let i = 0; i < 20; i++) {
      post(queue, 3, i % 2 === 0 ? a : b);
      post(queue, 1, c);
      expect(queue.length).toBe(4);
      expect(uses(queue)).toEqual(i % 2 === 0 ? [3, 0, 1] : [0, 3, 1]);
      complete(queue, 2);
      expect(uses(queue)).toEqual(i % 2 === 0 ? [1, 0, 1] : [0, 1, 1]);
      complete(queue, 2);
      expect(uses(queue)).toEqual([0, 0, 0]);
    }
  });

  it('lets go of what has completed when the next is posted, and of everything when it is cleared', async () => {
    const queue = make(8);
    let region: MemoryRegion | null = { name: 'short-lived' } as unknown as MemoryRegion;
    const ref = new WeakRef(region);
    post(queue, 1, region);
    region = null;
    const collect = async () => {
      for (let i = 0; i < 3; i++) {
        (globalThis.gc as () => void)();
        await new Promise((resolve) => setImmediate(resolve));
      }
    };
    await collect();
    expect(ref.deref()).toBeDefined();
    complete(queue, 1);
    post(queue, 1, a);
    await collect();
    expect(ref.deref()).toBeUndefined();
    queue.clear();
    expect([queue.length, ...uses(queue)]).toEqual([0, 0, 0, 0]);
  });

  it('agrees with a plain list of what is in flight, whatever happens', () => {
    const queue = make(64);
    const model: Held[] = [];
    let seed = 7;
    const below = (n: number): number => {
      seed = (Math.imul(seed, 1_664_525) + 1_013_904_223) >>> 0;
      return (seed >>> 8) % n;
    };
    const lists: Held[][] = [[a], [a, b], [null, [b, c], c], [a, a, a, a, [a, b, c]]];
    for (let step = 0; step < 5000; step++) {
      const room = queue.capacity - queue.length;
      const what = below(4);
      if (what === 0) {
        const count = below(queue.length + 1);
        complete(queue, count);
        model.splice(0, count);
      } else if (what === 1 && room > 0) {
        const held = [a, b, c, null, [a, c]][below(5)] as Held;
        const count = Math.min(1 + below(3), room);
        post(queue, count, held);
        for (let i = 0; i < count; i++) model.push(held);
      } else if (room > 0) {
        const list = lists[below(lists.length)]!;
        const count = Math.min(list.length, room);
        post(queue, count, null, list);
        model.push(...list.slice(0, count));
      }
      const expected = [a, b, c].map(
        (region) => model.filter((held) => held === region || (Array.isArray(held) && held.includes(region))).length,
      );
      expect([queue.length, ...uses(queue)], `step ${step}`).toEqual([model.length, ...expected]);
    }
  });

  it('has an id of its own, which is not used again soon', () => {
    const ids = new Set<number>();
    for (let i = 0; i < 500; i++) {
      const queue = new WorkQueue(4);
      expect(ids.has(queue.id)).toBe(false);
      ids.add(queue.id);
      queue.close();
    }
  });
});
