import type { MemoryRegion } from './memory-region.ts';

/** The regions that a request uses: none, one, or several. */
export type Held = MemoryRegion | readonly MemoryRegion[] | null;

/**
 * What is in flight on one send or receive queue. The wr_id that the NIC carries is ours: which queue (high word) and
 * which request of it (low word, a sequence number). So a completion finds the caller's wrId and what to let go of by
 * a few array reads, whatever wrId the caller chose, and one of a queue that is gone is recognised.
 *
 * A queue completes in order: a completion also ends the unsignalled requests in front of it. Requests that were posted
 * together are one run, whatever their number, so that a batch costs hardly more than one request.
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
  // The runs in flight: numbers that wrap around too, and what is known of each at number & mask.
  #firstRun = 0;
  #nextRun = 0;
  readonly #mask: number;
  // Sequence number of its last request.
  readonly #ends: Int32Array;
  // For a run of one request: its wrId, and what it uses.
  readonly #wrIds: Float64Array;
  readonly #held: Held[];
  // For a run of several, else null.
  readonly #runs: (Run | null)[];

  constructor(capacity: number) {
    const size = 2 ** Math.ceil(Math.log2(Math.max(capacity, 1)));
    this.capacity = capacity;
    this.#mask = size - 1;
    this.#ends = new Int32Array(size);
    this.#wrIds = new Float64Array(size);
    this.#held = new Array<Held>(size).fill(null);
    this.#runs = new Array<Run | null>(size).fill(null);
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
    const slot = this.#nextRun & this.#mask;
    this.#ends[slot] = this.#tail;
    this.#wrIds[slot] = wrId;
    this.#held[slot] = held;
    this.#nextRun = (this.#nextRun + 1) | 0;
    this.#tail = (this.#tail + 1) | 0;
  }

  /** The first `count` requests of a list were posted. The arrays must not be changed any more. */
  pushRun(count: number, wrIds: Float64Array, held: readonly Held[]): void {
    const slot = this.#nextRun & this.#mask;
    this.#ends[slot] = this.#tail + count - 1;
    this.#runs[slot] = { start: this.#tail, wrIds, held };
    this.#nextRun = (this.#nextRun + 1) | 0;
    this.#tail = (this.#tail + count) | 0;
  }

  /** A request was completed. Returns the caller's wrId, or NaN for one that is not in flight. */
  complete(sequence: number): number {
    const ahead = (sequence - this.#head) | 0;
    if (ahead < 0 || ahead >= this.length) return Number.NaN;
    let slot = this.#firstRun & this.#mask;
    while (((sequence - (this.#ends[slot] as number)) | 0) > 0) {
      this.#endRun(slot);
      slot = this.#firstRun & this.#mask;
    }
    const run = this.#runs[slot] as Run | null;
    const wrId = run === null ? this.#wrIds[slot] : run.wrIds[(sequence - run.start) | 0];
    if (sequence === this.#ends[slot]) this.#endRun(slot);
    this.#head = (sequence + 1) | 0;
    return wrId as number;
  }

  #endRun(slot: number): void {
    this.#held[slot] = null;
    this.#runs[slot] = null;
    this.#firstRun = (this.#firstRun + 1) | 0;
  }

  /** Requests in flight that use a region. Counted when somebody asks, which costs the data path nothing. */
  uses(region: MemoryRegion): number {
    let count = 0;
    const test = (held: Held | undefined) => {
      if (held === region || (Array.isArray(held) && held.includes(region))) count++;
    };
    for (let number = this.#firstRun; number !== this.#nextRun; number = (number + 1) | 0) {
      const slot = number & this.#mask;
      const run = this.#runs[slot];
      if (!run) {
        test(this.#held[slot]);
        continue;
      }
      const requests = ((this.#ends[slot] as number) - run.start + 1) | 0;
      // Of the oldest run a part may have completed.
      for (let i = Math.max((this.#head - run.start) | 0, 0); i < requests; i++) test(run.held[i]);
    }
    return count;
  }

  /** The queue pair is gone: nothing will complete any more. */
  close(): void {
    this.postable = false;
    this.#held.fill(null);
    this.#runs.fill(null);
    this.#head = this.#tail;
    this.#firstRun = this.#nextRun;
    leave(this.id);
  }
}

// Requests that were posted together: the sequence number of the first, and what is known of each.
interface Run {
  start: number;
  wrIds: Float64Array;
  held: readonly Held[];
}

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
