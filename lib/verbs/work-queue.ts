import { binding } from '../native/binding.ts';
import { QUEUE_HEAD, QUEUE_TAIL } from '../native/native.ts';
import type { Resource } from './resource.ts';

/** What a request uses, memory regions and address handles: nothing, one, or several. */
export type Held = Resource | readonly Resource[] | null;

/** What is in flight on one queue. */
export interface InFlight {
  /** What the addon knows it by. */
  readonly id: number;
  /** Requests that may be in flight: the granted capacity. */
  readonly capacity: number;
  /** Requests in flight. */
  readonly length: number;
  /** Whether requests may be posted here now. */
  postable: boolean;
  /** Sequence numbers that wrap around, at QUEUE_HEAD and QUEUE_TAIL: their difference is what is in flight. */
  readonly words: Int32Array;
  /**
   * Holds what requests use that were posted just now.
   *
   * @param start - what QUEUE_TAIL was before
   * @param count - how many
   * @param held - what each of them uses
   * @param isWhole - whether the array may be kept, and will not be changed
   * @param list - the words of the requests, whose first is the number that the addon gave it
   * @param wrSize - words of a request
   */
  hold(start: number, count: number, held: readonly Held[], isWhole: boolean, list: Int32Array, wrSize: number): void;
  /** Requests in flight that use an object. */
  uses(resource: Resource): number;
  /** Nothing that is in flight will complete. */
  clear(): void;
  /** The queue is gone. */
  close(): void;
}

/**
 * What is in flight on one send or receive queue. The addon counts (native/datapath/work_queue.h); here is held what the
 * requests use, so that it outlives them.
 *
 * Requests that use the same are one run, however many follow each other: posting the same list again and again costs
 * two comparisons. What has completed is let go of when the next run begins.
 */
export class WorkQueue implements InFlight {
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
    const { memory, id } = binding().createWorkQueue(capacity, true);
    this.words = new Int32Array(memory);
    this.id = id;
  }

  /** Requests in flight, unsignalled ones too. */
  get length(): number {
    return ((this.words[QUEUE_TAIL] as number) - (this.words[QUEUE_HEAD] as number)) | 0;
  }

  hold(start: number, count: number, held: readonly Held[], isWhole: boolean): void {
    if (isWhole) this.#run(start, count, null, held);
    else for (let i = 0; i < count; i++) this.#run((start + i) | 0, 1, held[i] as Held, null);
  }

  // Either each of the requests uses `held`, or they use what is in `list`, one after another.
  #run(start: number, count: number, held: Held, list: readonly Held[] | null): void {
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
  uses(region: Resource): number {
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

/**
 * What is in flight on a shared receive queue, whose requests complete in any order: the addon numbers them by free
 * slots, and says of each slot whether it is in use.
 */
export class SharedWorkQueue implements InFlight {
  readonly id: number;
  readonly capacity: number;
  postable = true;
  readonly words: Int32Array;
  readonly #inUse: Uint8Array;
  readonly #held: Held[];

  constructor(capacity: number) {
    const { memory, id } = binding().createWorkQueue(capacity, false);
    this.capacity = capacity;
    this.id = id;
    this.words = new Int32Array(memory, 0, 2);
    this.#inUse = new Uint8Array(memory, this.words.byteLength);
    this.#held = new Array<Held>(this.#inUse.length).fill(null);
  }

  get length(): number {
    return ((this.words[QUEUE_TAIL] as number) - (this.words[QUEUE_HEAD] as number)) | 0;
  }

  hold(
    _start: number,
    count: number,
    held: readonly Held[],
    _isWhole: boolean,
    list: Int32Array,
    wrSize: number,
  ): void {
    for (let i = 0; i < count; i++) this.#held[list[i * wrSize] as number] = held[i] as Held;
  }

  uses(resource: Resource): number {
    let count = 0;
    this.#inUse.forEach((isUsed, slot) => {
      const held = this.#held[slot];
      if (isUsed && (held === resource || (Array.isArray(held) && held.includes(resource)))) count++;
      // What has completed is let go of when somebody asks.
      if (!isUsed) this.#held[slot] = null;
    });
    return count;
  }

  clear(): void {
    this.words[QUEUE_HEAD] = this.words[QUEUE_TAIL] as number;
    this.#inUse.fill(0);
    this.#held.fill(null);
  }

  close(): void {
    this.postable = false;
    binding().destroyWorkQueue(this.id);
    this.clear();
  }
}
