import { constants } from 'node:os';
import { inspect } from 'node:util';
import { stateError } from '../args.ts';
import { PostError } from '../errors.ts';
import { type Inspecting, shown } from '../inspect.ts';
import { binding, doorbell } from '../native/binding.ts';
import { Layout } from '../native/layout.gen.ts';
import { BELL_COUNT, BELL_INDEX, BELL_LIST, BELL_RESULT, NEW_ERA, type SharedList } from '../native/native.ts';
import { threadMark } from '../thread.ts';
import { type MemoryRegion, MemorySlice } from './memory-region.ts';
import type { ProtectionDomain } from './protection-domain.ts';
import type { Resource } from './resource.ts';
import { type Held, type InFlight, NOTHING } from './work-queue.ts';

/** What a post list must know of its queue pair. @internal */
export interface Posting {
  readonly pd: ProtectionDomain;
  /** Throws what is to be said when a queue is not postable. */
  refuse(verb: string): never;
}

/** What errors call a request: its position in the caller's list, or a name. @internal */
export type Name = number | string;

/** The text for it, and for a field of it. @internal */
export function label(name: Name, field?: string): string {
  const request = typeof name === 'number' ? `wrs[${name}]` : name;
  return field === undefined ? request : `${request}.${field}`;
}

const REMOTE = "use 'remote': new RemoteRegion(token).slice(offset, length)";
const LOCAL = "use 'sgList': mr.slice(offset, length)";
/** What to say to the fields of C that a request has in another form here. @internal */
export const requestHints = {
  remoteAddr: REMOTE,
  remote_addr: REMOTE,
  rkey: REMOTE,
  addr: LOCAL,
  length: LOCAL,
  lkey: LOCAL,
};

/** The elements of a list, each read once, and no more than `most` of them. @internal */
export function elementsOf<T>(list: readonly T[], most: number): T[] {
  const elements: T[] = [];
  const length = Math.min(list.length, most);
  for (let i = 0; i < length; i++) elements.push(list[i] as T);
  return elements;
}

const SGE_WORDS = Layout.sge.size / 4;
const SGE_LENGTH = Layout.sge.length / 4;

// Requests of a list that are printed.
const SHOWN = 16;

/**
 * Work requests in memory shared with the addon, ready to be posted: any number of times, each with one call. What a
 * request was given stays until it is changed.
 */
export abstract class PostList<Wr extends object> {
  /** @internal */
  readonly thread = threadMark(this.constructor.name);
  /** How many requests the list has. */
  readonly length: number;
  /** @internal */
  protected readonly pd: ProtectionDomain;
  /** @internal */
  protected readonly words: Int32Array;
  readonly #qp: Posting;
  readonly #queue: InFlight;
  readonly #list: number;
  readonly #bell = doorbell();
  readonly #ring = binding().ring;
  readonly #verb: string;
  // In words.
  readonly #wrSize: number;
  readonly #maxSge: number;
  readonly #firstSge: number;
  // The caller's wrId of each request.
  readonly #wrIds: Float64Array;
  // What each request uses. Once posted as a list it belongs to the queue as well, and a change makes a new one.
  #held: Held[];
  #isShared = false;
  // Whether there is memory of the caller's among it, who can take it away at any time.
  #hasBorrowed = false;
  // Whether requests are being encoded: what the caller passes may have getters, which may post.
  #isBusy = false;
  // The closings of the domain when all the regions were last seen open.
  #checkedAt = -1;

  /** @internal */
  constructor(
    qp: Posting,
    queue: InFlight,
    shared: SharedList,
    length: number,
    maxSge: number,
    wrBytes: number,
    verb: string,
  ) {
    this.pd = qp.pd;
    this.#qp = qp;
    this.#queue = queue;
    this.#list = shared.list;
    this.#verb = verb;
    this.#wrSize = wrBytes / 4;
    this.#maxSge = maxSge;
    this.#firstSge = length * this.#wrSize;
    this.length = length;
    this.words = new Int32Array(shared.memory);
    this.#wrIds = new Float64Array(shared.memory, length * (wrBytes + maxSge * Layout.sge.size), length);
    this.#held = new Array<Held>(length).fill(null);
  }

  /** Word index of a request. @internal */
  protected at(index: number): number {
    return index * this.#wrSize;
  }

  /** @internal */
  protected storeWrId(index: number, wrId: number): void {
    this.#wrIds[index] = wrId;
  }

  /** Writes the scatter/gather list of a request; there is room for `maxSge` elements. @internal */
  protected encodeSgList(index: number, sgList: MemorySlice | readonly MemorySlice[]): void {
    if (this.#isShared) {
      this.#held = this.#held.slice();
      this.#isShared = false;
    }
    const at = this.#firstSge + index * this.#maxSge * SGE_WORDS;
    if (!Array.isArray(sgList)) {
      const region = MemorySlice.regionOf(sgList as MemorySlice);
      MemorySlice.encode(sgList as MemorySlice, this.words, at);
      this.#held[index] = region;
      if (region.isBorrowed) this.#hasBorrowed = true;
      return;
    }
    const slices = sgList as readonly MemorySlice[];
    const regions: MemoryRegion[] = [];
    for (let i = 0; i < slices.length; i++) {
      const slice = slices[i] as MemorySlice;
      const region = MemorySlice.regionOf(slice);
      MemorySlice.encode(slice, this.words, at + i * SGE_WORDS);
      regions.push(region);
      if (region.isBorrowed) this.#hasBorrowed = true;
    }
    this.#held[index] = regions.length > 1 ? regions : (regions[0] ?? null);
  }

  /** Writes a scatter/gather list of one element, of no bytes. @internal */
  protected encodeNothing(index: number): void {
    const at = this.#firstSge + index * this.#maxSge * SGE_WORDS;
    this.words.fill(0, at, at + SGE_WORDS);
  }

  /** Holds one thing more for a request than its memory. @internal */
  protected alsoHold(index: number, resource: Resource): void {
    const held = this.#held[index] as Held;
    if (held === null) this.#held[index] = resource;
    else this.#held[index] = Array.isArray(held) ? [...held, resource] : [held as Resource, resource];
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
    const closings = this.pd.closings;
    if (this.#checkedAt !== closings || this.#hasBorrowed) {
      for (const held of this.#held) requireOpen(held);
      this.#checkedAt = closings;
    }
    this.#submit(this.length, true, 0);
  }

  /**
   * Posts the first `count` requests, which were encoded just now, and forgets what they use; `done` went before them in
   * the caller's list, and `closings` is what the domain's was before they were encoded.
   *
   * @internal
   */
  #postEncoded(count: number, done: number, closings: number): void {
    // A getter of a later request may have closed what an earlier one uses.
    if (this.pd.closings !== closings) for (let i = 0; i < count; i++) requireOpen(this.#held[i] as Held);
    this.#submit(count, false, done);
    for (let i = 0; i < count; i++) this.#held[i] = null;
  }

  /**
   * Before requests are encoded to be posted; `end()` comes after, whatever happens. Nothing may come between: getters of
   * what the caller passes could post to this same list.
   *
   * @internal
   */
  #begin(): void {
    if (this.#isBusy)
      throw stateError('Requests are being posted to this queue: a getter of one of them must not post');
    this.#isBusy = true;
  }

  /** @internal */
  #end(): void {
    this.#isBusy = false;
  }

  /** Checks a request whole, then writes it. @internal */
  abstract encode(index: number, wr: Wr, name: Name): void;

  /** Posts `wrs` through this list, as many at a time as it has room for. @internal */
  postAll(given: readonly Wr[]): void {
    this.#begin();
    try {
      let wrs = given;
      if (given.length > this.length) {
        // A mistake anywhere in the list must be found before anything is posted, and what was checked must not change.
        wrs = Array.from(given, (wr) => (typeof wr === 'object' && wr !== null ? { ...wr } : wr));
        wrs.forEach((wr, i) => this.encode(0, wr, i));
      }
      const total = wrs.length;
      for (let done = 0; done < total; done += this.length) {
        const count = Math.min(total - done, this.length);
        const { closings } = this.pd;
        for (let i = 0; i < count; i++) this.encode(i, wrs[done + i] as Wr, done + i);
        this.#postEncoded(count, done, closings);
      }
    } finally {
      this.#end();
    }
  }

  /** @internal */
  postOne(wr: Wr): void {
    this.#begin();
    try {
      const { closings } = this.pd;
      this.encode(0, wr, 'wr');
      this.#postEncoded(1, 0, closings);
    } finally {
      this.#end();
    }
  }

  /** What is printed of a request. @internal */
  protected abstract requestFields(index: number): object;

  /** What is printed of a request that is common to both directions. @internal */
  protected commonFields(index: number, elements: number): { wrId: number; bytes: number } {
    const at = this.#firstSge + index * this.#maxSge * SGE_WORDS + SGE_LENGTH;
    let bytes = 0;
    for (let i = 0; i < elements; i++) bytes += (this.words[at + i * SGE_WORDS] as number) >>> 0;
    return { wrId: this.#wrIds[index] as number, bytes };
  }

  /** @internal */
  [inspect.custom](...how: Inspecting): object | string {
    const fields = () => ({
      length: this.length,
      requests: Array.from({ length: Math.min(this.length, SHOWN) }, (_, i) => this.requestFields(i)),
    });
    return shown(this.constructor.name, undefined, fields, ...how);
  }

  #submit(count: number, isWhole: boolean, done: number): void {
    const queue = this.#queue;
    if (!queue.postable) this.#qp.refuse(this.#verb);
    const bell = this.#bell;
    bell[BELL_LIST] = this.#list;
    bell[BELL_COUNT] = count;
    this.#ring();
    const result = bell[BELL_RESULT] as number;
    // What they use is held already when it is what was posted last.
    const held = count > 1 ? this.#held : this.#held[0];
    if (result === 0 && held === queue.youngest && (count === 1 || isWhole)) return;
    this.#settle(result, bell[BELL_INDEX] as number, count, isWhole, done);
  }

  // Holds what the requests use that were taken; throws when those were not all.
  #settle(result: number, taken: number, count: number, isWhole: boolean, done: number): void {
    const queue = this.#queue;
    if (result === NEW_ERA) queue.youngest = NOTHING;
    if (isWhole && count > 1) this.#isShared = true;
    if (taken > 0) queue.hold(taken, this.#held, isWhole && count > 1, this.words, this.#wrSize);
    if (taken === count) return;
    // The next posting of this list does not go on where this one ended.
    queue.youngest = NOTHING;
    throw new PostError(
      this.#verb,
      result,
      done + taken,
      result === constants.errno.ENOMEM
        ? `the queue is full: ${queue.length} of ${queue.capacity} requests are in flight`
        : undefined,
    );
  }
}

function requireOpen(held: Held): void {
  if (held === null) return;
  if (Array.isArray(held)) for (const region of held) region.requireOpen();
  else (held as Resource).requireOpen();
}
