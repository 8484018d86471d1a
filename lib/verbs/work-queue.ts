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
  // Sequence numbers of the oldest request in flight and of the next one, as 32-bit integers that wrap around. They
  // begin shortly before the wrap, so that no queue lives without passing it.
  #head = -64;
  #tail = -64;
  readonly #mask: number;
  readonly #wrIds: Float64Array;
  readonly #regions: (MemoryRegion | null)[];
  // Regions beyond the first, of requests with several scatter/gather elements.
  readonly #more = new Map<number, readonly MemoryRegion[]>();

  constructor(capacity: number) {
    const size = 2 ** Math.ceil(Math.log2(Math.max(capacity, 1)));
    this.capacity = capacity;
    this.#mask = size - 1;
    this.#wrIds = new Float64Array(size);
    this.#regions = new Array<MemoryRegion | null>(size).fill(null);
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
  push(wrId: number, region: MemoryRegion | null, more: readonly MemoryRegion[] | undefined): void {
    const slot = this.#tail & this.#mask;
    this.#wrIds[slot] = wrId;
    this.#regions[slot] = region;
    if (region !== null) region.inFlight++;
    if (more !== undefined) {
      this.#more.set(slot, more);
      for (const other of more) other.inFlight++;
    }
    this.#tail = (this.#tail + 1) | 0;
  }

  /** A request was completed. Returns the caller's wrId, or NaN for one that is not in flight. */
  complete(sequence: number): number {
    const ahead = (sequence - this.#head) | 0;
    if (ahead < 0 || ahead >= this.length) return Number.NaN;
    while (this.#head !== sequence) this.#release();
    const wrId = this.#wrIds[sequence & this.#mask] as number;
    this.#release();
    return wrId;
  }

  /** The queue pair is gone: nothing will complete any more. */
  close(): void {
    while (this.length > 0) this.#release();
    leave(this.id);
  }

  #release(): void {
    const slot = this.#head & this.#mask;
    const region = this.#regions[slot] as MemoryRegion | null;
    if (region !== null) {
      region.inFlight--;
      this.#regions[slot] = null;
    }
    if (this.#more.size > 0) {
      const more = this.#more.get(slot);
      if (more !== undefined) {
        for (const other of more) other.inFlight--;
        this.#more.delete(slot);
      }
    }
    this.#head = (this.#head + 1) | 0;
  }
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

/** Forgets a queue. Also for one whose queue pair was collected open. */
export function leave(id: number): void {
  if (queues[id & PLACE_MASK]?.id !== id) return;
  queues[id & PLACE_MASK] = undefined;
  freeIds.push(id);
}

/** The queue that a completion's wr_id names, or undefined when it is gone. */
export function queueOf(id: number): WorkQueue | undefined {
  const queue = queues[id & PLACE_MASK];
  return queue !== undefined && queue.id === id ? queue : undefined;
}
