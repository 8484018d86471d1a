import { binding } from '../native/binding.ts';
import { QUEUE_HEAD, QUEUE_TAIL } from '../native/native.ts';
import type { MemoryRegion } from './memory-region.ts';

/** The regions that a request uses: none, one, or several. */
export type Held = MemoryRegion | readonly MemoryRegion[] | null;

/**
 * What is in flight on one send or receive queue. The addon counts (native/datapath/work_queue.h); here is held what the
 * requests use, so that it outlives them.
 *
 * Requests that use the same are one run, however many follow each other: posting the same list again and again costs
 * two comparisons. What has completed is let go of when the next run begins.
 */
export class WorkQueue {
  /** What the addon knows it by. */
  readonly id: number;
  /** Requests that may be in flight: the granted capacity. */
  readonly capacity: number;
  /** Whether the queue pair is open, and in a state in which requests may be posted here. */
  postable = false;
  /** Sequence numbers that wrap around, at QUEUE_HEAD and QUEUE_TAIL. */
  readonly words: Int32Array;
  // The runs: numbers that wrap around too, and what is known of each at number & mask.
  #firstRun = 0;
  #nextRun = 0;
  readonly #mask: number;
  readonly #starts: Int32Array;
  readonly #ends: Int32Array;
  // What each request of the run uses; or null, where what they use repeats with the list that they came from.
  readonly #held: Held[];
  readonly #lists: (readonly Held[] | null)[];

  constructor(capacity: number) {
    const size = 2 ** Math.ceil(Math.log2(Math.max(capacity, 1)));
    this.capacity = capacity;
    this.#mask = size - 1;
    this.#starts = new Int32Array(size);
    this.#ends = new Int32Array(size);
    this.#held = new Array<Held>(size).fill(null);
    this.#lists = new Array<readonly Held[] | null>(size).fill(null);
    const { memory, id } = binding().createWorkQueue(capacity);
    this.words = new Int32Array(memory);
    this.id = id;
  }

  /** Requests in flight, unsignalled ones too. */
  get length(): number {
    return ((this.words[QUEUE_TAIL] as number) - (this.words[QUEUE_HEAD] as number)) | 0;
  }

  /**
   * Holds what requests use that were posted just now.
   *
   * @param start - sequence number of the first
   * @param count - how many
   * @param held - what each of them uses, or null for `list`
   * @param list - what they use one after another; it must not be changed any more
   */
  hold(start: number, count: number, held: Held, list: readonly Held[] | null): void {
    const youngest = (this.#nextRun - 1) & this.#mask;
    const end = (start + count - 1) | 0;
    if (
      this.#firstRun !== this.#nextRun &&
      this.#held[youngest] === held &&
      this.#lists[youngest] === list &&
      (this.#ends[youngest] as number) + 1 === start
    ) {
      const before = (start - (this.#starts[youngest] as number)) | 0;
      // A run ends before its numbers could wrap around, and where a list was taken only in part.
      if (before > 0 && before < 0x4000_0000 && (list === null || before % list.length === 0)) {
        this.#ends[youngest] = end;
        return;
      }
    }
    this.#release();
    const slot = this.#nextRun & this.#mask;
    this.#starts[slot] = start;
    this.#ends[slot] = end;
    this.#held[slot] = held;
    this.#lists[slot] = list;
    this.#nextRun = (this.#nextRun + 1) | 0;
  }

  // Lets go of the runs that have completed.
  #release(): void {
    const head = this.words[QUEUE_HEAD] as number;
    while (this.#firstRun !== this.#nextRun) {
      const slot = this.#firstRun & this.#mask;
      if (((head - (this.#ends[slot] as number)) | 0) <= 0) return;
      this.#held[slot] = null;
      this.#lists[slot] = null;
      this.#firstRun = (this.#firstRun + 1) | 0;
    }
  }

  /** Requests in flight that use a region. Counted when somebody asks, which costs the data path nothing. */
  uses(region: MemoryRegion): number {
    this.#release();
    const head = this.words[QUEUE_HEAD] as number;
    let count = 0;
    for (let number = this.#firstRun; number !== this.#nextRun; number = (number + 1) | 0) {
      const slot = number & this.#mask;
      const list = this.#lists[slot];
      const start = this.#starts[slot] as number;
      const requests = ((this.#ends[slot] as number) - start + 1) | 0;
      // Of the oldest run a part may have completed.
      for (let i = Math.max((head - start) | 0, 0); i < requests; i++) {
        const held = list ? list[i % list.length] : this.#held[slot];
        if (held === region || (Array.isArray(held) && held.includes(region))) count++;
      }
    }
    return count;
  }

  /** Nothing that is in flight will complete: the queue pair was reset. */
  clear(): void {
    this.words[QUEUE_HEAD] = this.words[QUEUE_TAIL] as number;
    this.#release();
  }

  /** The queue pair is gone. */
  close(): void {
    this.postable = false;
    binding().destroyWorkQueue(this.id);
    this.clear();
  }
}
