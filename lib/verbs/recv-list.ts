import { integer, rangeError, readOptions, typeError, valueError } from '../args.ts';
import { Layout } from '../native/layout.gen.ts';
import type { QpCap, SharedList } from '../native/native.ts';
import { MemorySlice } from './memory-region.ts';
import { type Posting, PostList } from './post-list.ts';
import type { Resource } from './resource.ts';
import type { WorkQueue } from './work-queue.ts';

/** A receive request: `struct ibv_recv_wr`. */
export interface RecvWr {
  /** Given back by the completion. Any safe integer from 0; default 0. */
  wrId?: number;
  /** Where the message goes, filled in order. Default none: for messages of 0 bytes and for immediate data. */
  sgList?: MemorySlice | readonly MemorySlice[];
}

const KNOWN_KEYS = ['wrId', 'sgList'];
const NUM_SGE = Layout.recvWr.numSge / 4;

/**
 * Receive requests that were prepared: made by `qp.prepareRecv()`.
 *
 * @see ibv_post_recv(3)
 */
export class RecvList extends PostList {
  readonly #pd: Resource;
  readonly #maxSge: number;

  /** @internal */
  constructor(qp: Posting, queue: WorkQueue, shared: SharedList, length: number, pd: Resource, cap: QpCap) {
    super(qp, queue, shared, length, cap.maxRecvSge, Layout.recvWr.size, 'ibv_post_recv');
    this.#pd = pd;
    this.#maxSge = cap.maxRecvSge;
  }

  /**
   * Replaces a request.
   *
   * @param index - from 0
   * @throws TypeError or RangeError naming the field, and nothing is changed
   */
  set(index: number, wr: RecvWr): void {
    integer(index, 'index', 0, this.length - 1);
    this.encode(index, wr, 'wr');
  }

  /** Changes the `wrId` of a request. */
  setWrId(index: number, wrId: number): void {
    integer(index, 'index', 0, this.length - 1);
    this.wrIds[index] = integer(wrId, 'wrId', 0, Number.MAX_SAFE_INTEGER);
  }

  /** Checks a request whole, then writes it. @internal */
  encode(index: number, wr: RecvWr, name: string): void {
    if (typeof wr !== 'object' || wr === null) throw typeError(name, 'an object', wr);
    readOptions(wr, name, KNOWN_KEYS);
    const { wrId = 0, sgList = [] } = wr;
    integer(wrId, `${name}.wrId`, 0, Number.MAX_SAFE_INTEGER);
    const slices = sgList instanceof MemorySlice ? [sgList] : sgList;
    if (!Array.isArray(slices)) {
      throw typeError(`${name}.sgList`, 'a MemorySlice (mr.slice()) or an array of them', sgList);
    }
    if (slices.length > this.#maxSge) {
      throw rangeError(`${name}.sgList has ${slices.length} elements, more than maxRecvSge (${this.#maxSge})`);
    }
    for (const slice of slices) {
      if (!(slice instanceof MemorySlice)) throw typeError(`${name}.sgList`, 'of MemorySlices (mr.slice())', slice);
      slice.region.requireOpen();
      if (slice.region.pd !== this.#pd) {
        throw valueError(`${name}.sgList is of another protection domain than the queue pair`);
      }
    }
    this.wrIds[index] = wrId;
    this.encodeSgList(index, slices);
    this.words[this.at(index) + NUM_SGE] = slices.length;
  }

  /** Posts `wrs` through this list, as many at a time as it has room for. @internal */
  postAll(wrs: readonly RecvWr[]): void {
    // A mistake anywhere in the list must be found before anything is posted.
    if (wrs.length > this.length) wrs.forEach((wr, i) => this.encode(0, wr, `wrs[${i}]`));
    for (let done = 0; done < wrs.length; done += this.length) {
      const count = Math.min(wrs.length - done, this.length);
      for (let i = 0; i < count; i++) this.encode(i, wrs[done + i] as RecvWr, `wrs[${done + i}]`);
      this.postFirst(count, done);
      this.forget(count);
    }
  }
}
