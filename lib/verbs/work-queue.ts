import { binding } from '../native/binding.ts';
import { QUEUE_HEAD, QUEUE_TAIL } from '../native/native.ts';
import type { Resource } from './resource.ts';

/** What a request uses, memory regions and address handles: nothing, one, or several. */
export type Held = Resource | readonly Resource[] | null;

/** What nothing that a request uses is equal to. */
export const NOTHING = Symbol('nothing');

/** Requests that use objects of a domain. */
export interface Using {
  /** How many of them use an object, which cannot be closed meanwhile. */
  uses(resource: Resource): number;
}

/** What is in flight on one queue. */
export interface InFlight extends Using {
  /** What the addon knows it by. */
  readonly id: number;
  /** Requests that may be in flight: the granted capacity. */
  readonly capacity: number;
  /** Requests in flight. */
  readonly length: number;
  /** Whether requests may be posted here now. */
  postable: boolean;
  /**
   * What the last request uses, or all of a list that was posted last: who posts the same again need not call `hold()`.
   * `NOTHING` when it must be called.
   */
  youngest: Held | readonly Held[] | typeof NOTHING;
  /**
   * Holds what requests use that were posted just now.
   *
   * @param count - how many
   * @param held - what each of them uses
   * @param isWhole - whether it is a list that may be posted again as a whole: the array is kept, and must not be changed
   * @param list - the words of the requests, whose first is the number that the addon gave it
   * @param wrSize - words of a request
   */
  hold(count: number, held: readonly Held[], isWhole: boolean, list: Int32Array, wrSize: number): void;
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
 * one comparison. What has completed is let go of when the next run begins.
 */
export class WorkQueue implements InFlight {
  /** What the addon knows it by. */
  readonly id: number;
  /** Requests that may be in flight: the granted capacity. */
  readonly capacity: number;
  /** Whether the queue pair is open, and in a state in which requests may be posted here. */
  postable = false;
  youngest: Held | readonly Held[] | typeof NOTHING = NOTHING;
  /** Sequence numbers that wrap around, at QUEUE_HEAD and QUEUE_TAIL: their difference is what is in flight. */
  readonly words: Int32Array;
  // The runs: numbers that wrap around too, and what is known of each at number & mask. A run ends where the next begins.
  #firstRun = 0;
  #nextRun = 0;
  readonly #mask: number;
  readonly #starts: Int32Array;
  // What each request of the run uses; or what those of a list use, one after another, that was posted again and again.
  readonly #held: (Held | readonly Held[])[];
  readonly #isList: Uint8Array;

  constructor(capacity: number) {
    const size = 2 ** Math.ceil(Math.log2(Math.max(capacity, 1)));
    this.capacity = capacity;
    this.#mask = size - 1;
    this.#starts = new Int32Array(size);
    this.#held = new Array<Held | readonly Held[]>(size).fill(null);
    this.#isList = new Uint8Array(size);
    const { memory, id } = binding().createWorkQueue(capacity, true);
    this.words = new Int32Array(memory);
    this.id = id;
  }

  get #head(): number {
    return this.words[QUEUE_HEAD] as number;
  }

  get #tail(): number {
    return this.words[QUEUE_TAIL] as number;
  }

  /** Requests in flight, unsignalled ones too. */
  get length(): number {
    return (this.#tail - this.#head) | 0;
  }

  hold(count: number, held: readonly Held[], isWhole: boolean): void {
    const start = (this.#tail - count) | 0;
    if (isWhole) this.#begin(start, held, 1);
    else {
      for (let i = 0; i < count; i++) {
        const own = held[i] as Held;
        if (own !== this.youngest) this.#begin((start + i) | 0, own, 0);
      }
    }
  }

  #begin(start: number, held: Held | readonly Held[], isList: number): void {
    this.#release(start);
    const slot = this.#nextRun & this.#mask;
    this.#starts[slot] = start;
    this.#held[slot] = held;
    this.#isList[slot] = isList;
    this.#nextRun = (this.#nextRun + 1) | 0;
    this.youngest = held;
  }

  // Lets go of the runs that have completed; the youngest ends in front of `end`.
  #release(end: number): void {
    const head = this.#head;
    while (this.#firstRun !== this.#nextRun) {
      const next = (this.#firstRun + 1) | 0;
      const runEnd = next === this.#nextRun ? end : (this.#starts[next & this.#mask] as number);
      if (((runEnd - head) | 0) > 0) return;
      this.#held[this.#firstRun & this.#mask] = null;
      this.#firstRun = next;
    }
    this.youngest = NOTHING;
  }

  /** Requests in flight that use a region. Counted when somebody asks, which costs the data path nothing. */
  uses(region: Resource): number {
    const head = this.#head;
    const tail = this.#tail;
    this.#release(tail);
    let count = 0;
    for (let run = this.#firstRun; run !== this.#nextRun; run = (run + 1) | 0) {
      const slot = run & this.#mask;
      const next = (run + 1) | 0;
      const start = this.#starts[slot] as number;
      const end = next === this.#nextRun ? tail : (this.#starts[next & this.#mask] as number);
      const requests = (end - start) | 0;
      const used = this.#held[slot] as Held | readonly Held[];
      const list = this.#isList[slot] === 1 ? (used as readonly Held[]) : null;
      // Of the oldest run a part may have completed.
      for (let i = Math.max((head - start) | 0, 0); i < requests; i++) {
        const held = list ? list[i % list.length] : used;
        if (held === region || (Array.isArray(held) && held.includes(region))) count++;
      }
    }
    return count;
  }

  /** Nothing that is in flight will complete: the queue pair was reset. */
  clear(): void {
    binding().clearWorkQueue(this.id);
    this.#release(this.#tail);
  }

  /** The queue pair is gone. */
  close(): void {
    this.postable = false;
    this.clear();
    binding().destroyWorkQueue(this.id);
  }
}

/**
 * What is in flight on a shared receive queue, whose requests complete in any order: the addon numbers them by free
 * slots, and says of each slot whether it is in use.
 */
export class SharedWorkQueue implements InFlight {
  readonly id: number;
  capacity: number;
  postable = true;
  // Requests complete one by one here, so each is held by itself.
  youngest: typeof NOTHING = NOTHING;
  #words: Int32Array;
  #inUse: Uint8Array;
  readonly #held: Held[];

  constructor(capacity: number) {
    const { memory, id } = binding().createWorkQueue(capacity, false);
    this.capacity = capacity;
    this.id = id;
    this.#words = new Int32Array(memory, 0, 2);
    this.#inUse = new Uint8Array(memory, this.#words.byteLength);
    this.#held = new Array<Held>(this.#inUse.length).fill(null);
  }

  get length(): number {
    return ((this.#words[QUEUE_TAIL] as number) - (this.#words[QUEUE_HEAD] as number)) | 0;
  }

  /** Takes another capacity, not less than what is in flight. */
  resize(capacity: number): void {
    const memory = binding().resizeWorkQueue(this.id, capacity);
    this.capacity = capacity;
    if (memory === null) return;
    this.#words = new Int32Array(memory, 0, 2);
    this.#inUse = new Uint8Array(memory, this.#words.byteLength);
    while (this.#held.length < this.#inUse.length) this.#held.push(null);
  }

  hold(count: number, held: readonly Held[], _isWhole: boolean, list: Int32Array, wrSize: number): void {
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
    binding().clearWorkQueue(this.id);
    this.#inUse.fill(0);
    this.#held.fill(null);
  }

  close(): void {
    this.postable = false;
    this.clear();
    binding().destroyWorkQueue(this.id);
  }
}
