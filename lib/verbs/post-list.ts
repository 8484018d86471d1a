import { constants } from 'node:os';
import { PostError } from '../errors.ts';
import { binding, doorbell } from '../native/binding.ts';
import { BELL_COUNT, BELL_INDEX, BELL_LIST, BELL_RESULT, type SharedList } from '../native/native.ts';
import type { MemoryRegion, MemorySlice } from './memory-region.ts';
import type { Held, WorkQueue } from './work-queue.ts';

/** What a post list must know of its queue pair. @internal */
export interface Posting {
  /** Throws what is to be said when a queue is not postable. */
  refuse(verb: string): never;
}

/**
 * Work requests in memory shared with the addon, ready to be posted: any number of times, each with one call. What a
 * request was given stays until it is changed.
 */
export abstract class PostList {
  /** How many requests the list has. */
  readonly length: number;
  /** @internal */
  protected readonly words: Int32Array;
  /** The caller's wrId of each request. @internal */
  protected readonly wrIds: Float64Array;
  readonly #qp: Posting;
  readonly #queue: WorkQueue;
  readonly #list: number;
  readonly #bell = doorbell();
  readonly #ring = binding().ring;
  readonly #verb: string;
  // In words.
  readonly #wrSize: number;
  readonly #sgeSize = 4;
  readonly #maxSge: number;
  readonly #firstSge: number;
  // What each request uses.
  readonly #held: Held[];

  /** @internal */
  constructor(
    qp: Posting,
    queue: WorkQueue,
    shared: SharedList,
    length: number,
    maxSge: number,
    wrBytes: number,
    verb: string,
  ) {
    this.#qp = qp;
    this.#queue = queue;
    this.#list = shared.list;
    this.#verb = verb;
    this.#wrSize = wrBytes / 4;
    this.#maxSge = maxSge;
    this.#firstSge = length * this.#wrSize;
    this.length = length;
    this.words = new Int32Array(shared.memory);
    this.wrIds = new Float64Array(length);
    this.#held = new Array<Held>(length).fill(null);
    // wr_id is 64 bits: the high word names the queue, post() writes the low one.
    for (let i = 0; i < length; i++) this.words[this.at(i) + 1] = queue.id;
  }

  /** Word index of a request. @internal */
  protected at(index: number): number {
    return index * this.#wrSize;
  }

  /** Writes the scatter/gather list of a request; there is room for `maxSge` elements. @internal */
  protected encodeSgList(index: number, sgList: MemorySlice | readonly MemorySlice[]): void {
    const at = this.#firstSge + index * this.#maxSge * this.#sgeSize;
    if (!Array.isArray(sgList)) {
      (sgList as MemorySlice).encode(this.words, at);
      this.#held[index] = (sgList as MemorySlice).region;
      return;
    }
    const slices = sgList as readonly MemorySlice[];
    for (let i = 0; i < slices.length; i++) (slices[i] as MemorySlice).encode(this.words, at + i * this.#sgeSize);
    this.#held[index] = slices.length > 1 ? slices.map((slice) => slice.region) : (slices[0]?.region ?? null);
  }

  /**
   * Posts the requests in their order: one call, whatever their number. The memory they use is held until their
   * completion, or a later one of the same queue, was polled.
   *
   * @throws PostError ENOMEM when the queue has no room for all: `index` is the first that was not posted
   * @throws PostError with the provider's errno when it refuses one; the ones in front of it are posted
   * @throws RdmaClosedError when the queue pair or a memory region is closed; nothing is posted then
   * @throws RdmaError EINVAL in a state in which the queue pair does not take requests; nothing is posted then
   */
  post(): void {
    this.postFirst(this.length);
  }

  /** Posts the first `count` requests; `done` went before them, in the caller's list. @internal */
  protected postFirst(count: number, done = 0): void {
    const queue = this.#queue;
    if (!queue.postable) this.#qp.refuse(this.#verb);
    const words = this.words;
    const size = this.#wrSize;
    const fits = Math.min(count, queue.capacity - queue.length);
    for (let i = 0, at = 0, sequence = queue.next; i < fits; i++, at += size, sequence = (sequence + 1) | 0) {
      const held = this.#held[i] as Held;
      if (held !== null) requireOpen(held);
      words[at] = sequence;
    }
    let taken = 0;
    let errno = 0;
    if (fits > 0) {
      const bell = this.#bell;
      bell[BELL_LIST] = this.#list;
      bell[BELL_COUNT] = fits;
      this.#ring();
      errno = bell[BELL_RESULT] as number;
      taken = bell[BELL_INDEX] as number;
      for (let i = 0; i < taken; i++) queue.push(this.wrIds[i] as number, this.#held[i] as Held);
    }
    if (errno === 0 && taken === count) return;
    const full = errno === 0 || errno === constants.errno.ENOMEM;
    throw new PostError(
      this.#verb,
      errno === 0 ? constants.errno.ENOMEM : errno,
      done + taken,
      full ? `the queue is full: ${queue.length} of ${queue.capacity} requests are in flight` : undefined,
    );
  }

  /** Lets go of the regions, which a list that is only used in passing must not keep. @internal */
  protected forget(count: number): void {
    for (let i = 0; i < count; i++) this.#held[i] = null;
  }
}

function requireOpen(held: NonNullable<Held>): void {
  if (Array.isArray(held)) for (const region of held) region.requireOpen();
  else if ((held as MemoryRegion).closed) (held as MemoryRegion).requireOpen();
}
