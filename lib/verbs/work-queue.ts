import type { MemoryRegion } from './memory-region.ts';

/**
 * What is in flight on one send or receive queue. The wr_id that the NIC carries is ours: which queue (high word) and
 * which request of it (low word, a sequence number). So a completion finds the caller's wrId and what to let go of by
 * two array reads, whatever wrId the caller chose, and one of a queue that is gone is recognised.
 *
 * A queue completes in order: a completion also ends the unsignalled requests in front of it.
 */
export class WorkQueue {
  /** High word of its wr_ids: a place in `queues`, and a generation that tells it from earlier ones there. */
  readonly id: number;
  /** Requests that may be in flight: the granted capacity. */
  readonly capacity: number;
  /** Whether the queue pair is open, and in a state in which requests may be posted here. */
  postable = false;
  // Sequence numbers of the oldest request in flight and of the next one, as 32-bit integers that wrap around. They
  // begin shortly before the wrap, so that no queue lives without passing it.
  #head = -64;
  #tail = -64;
  readonly #mask: number;
  readonly #wrIds: Float64Array;
  readonly #held: Held[];

  constructor(capacity: number) {
    const size = 2 ** Math.ceil(Math.log2(Math.max(capacity, 1)));
    this.capacity = capacity;
    this.#mask = size - 1;
    this.#wrIds = new Float64Array(size);
    this.#held = new Array<Held>(size).fill(null);
    this.id = enter(this);
  }

  /** Requests in flight, unsignalled ones too. */
  get length(): number {
    return (this.#tail - this.#head) | 0;
  }

  /** Sequence number of the next request. */
  get next(): number {
    return this.#tail;
  }

  /** A request was posted: its memory is held from now on. */
  push(wrId: number, held: Held): void {
    const slot = this.#tail & this.#mask;
    this.#wrIds[slot] = wrId;
    this.#held[slot] = held;
    this.#tail = (this.#tail + 1) | 0;
  }

  /** A request was completed. Returns the caller's wrId, or NaN for one that is not in flight. */
  complete(sequence: number): number {
    const head = this.#head;
    const mask = this.#mask;
    const ahead = (sequence - head) | 0;
    if (ahead < 0 || ahead >= ((this.#tail - head) | 0)) return Number.NaN;
    for (let i = head; i !== sequence; i = (i + 1) | 0) this.#held[i & mask] = null;
    this.#held[sequence & mask] = null;
    this.#head = (sequence + 1) | 0;
    return this.#wrIds[sequence & mask] as number;
  }

  /** Requests in flight that use a region. Counted when somebody asks, which costs the data path nothing. */
  uses(region: MemoryRegion): number {
    let count = 0;
    for (let i = this.#head; i !== this.#tail; i = (i + 1) | 0) {
      const held = this.#held[i & this.#mask];
      if (held === region || (Array.isArray(held) && held.includes(region))) count++;
    }
    return count;
  }

  /** The queue pair is gone: nothing will complete any more. */
  close(): void {
    this.postable = false;
    this.#held.fill(null);
    this.#head = this.#tail;
    leave(this.id);
  }
}

/** The regions that a request uses: none, one, or several. */
export type Held = MemoryRegion | readonly MemoryRegion[] | null;

const PLACE_BITS = 20;
const PLACE_MASK = (1 << PLACE_BITS) - 1;

// The queues of this environment, by the place in their id.
const queues: (WorkQueue | undefined)[] = [];
const freeIds: number[] = [];

function enter(queue: WorkQueue): number {
  // A place is used again with the next generation, 4096 times before one repeats.
  const id = freeIds.length > 0 ? ((freeIds.shift() as number) + (1 << PLACE_BITS)) | 0 : queues.length;
  if ((id & PLACE_MASK) === PLACE_MASK) throw new RangeError(`More than ${PLACE_MASK} queues in one process`);
  queues[id & PLACE_MASK] = queue;
  return id;
}

function leave(id: number): void {
  if (queues[id & PLACE_MASK]?.id !== id) return;
  queues[id & PLACE_MASK] = undefined;
  freeIds.push(id);
}

/** The queue that a completion's wr_id names, or undefined when it is gone. */
export function queueOf(id: number): WorkQueue | undefined {
  const queue = queues[id & PLACE_MASK];
  return queue !== undefined && queue.id === id ? queue : undefined;
}
