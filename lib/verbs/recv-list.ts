import { integer, rangeError, readOptions, typeError, valueError } from '../args.ts';
import { Layout } from '../native/layout.gen.ts';
import type { SharedList } from '../native/native.ts';
import { isSiw } from './iwarp.ts';
import { MemorySlice } from './memory-region.ts';
import { elementsOf, label, type Name, type Posting, PostList, requestHints } from './post-list.ts';
import type { InFlight } from './work-queue.ts';

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
export class RecvList extends PostList<RecvWr> {
  readonly #maxSge: number;

  readonly #minBytes: number;
  // libsiw takes no receive without an element. (An element of no bytes is 2 GiB for mlx5.)
  readonly #needsElement: boolean;

  /**
   * @param minBytes - what a receive must have room for
   * @internal
   */
  constructor(
    qp: Posting,
    queue: InFlight,
    shared: SharedList,
    length: number,
    maxSge: number,
    verb: string,
    minBytes: number,
  ) {
    super(qp, queue, shared, length, maxSge, Layout.recvWr.size, verb);
    this.#minBytes = minBytes;
    this.#maxSge = maxSge;
    this.#needsElement = maxSge > 0 && isSiw(qp.pd.context);
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
    this.storeWrId(index, integer(wrId, 'wrId', 0, Number.MAX_SAFE_INTEGER));
  }

  /** Checks a request whole, then writes it. @internal */
  override encode(index: number, wr: RecvWr, name: Name): void {
    if (typeof wr !== 'object' || wr === null) throw typeError(label(name), 'an object', wr);
    const { wrId, sgList: given } = wr;
    const sgList = Array.isArray(given) ? elementsOf(given, this.#maxSge + 1) : given;
    let keys = 0;
    for (const _ in wr) keys++;
    if (keys !== +(wrId !== undefined) + +(given !== undefined)) readOptions(wr, label(name), KNOWN_KEYS, requestHints);
    if (wrId !== undefined && !(Number.isSafeInteger(wrId) && wrId >= 0)) {
      integer(wrId, label(name, 'wrId'), 0, Number.MAX_SAFE_INTEGER);
    }
    let elements = 0;
    let bytes = 0;
    if (MemorySlice.is(sgList)) {
      elements = 1;
      bytes = this.#checkSlice(sgList, name);
    } else if (Array.isArray(sgList)) {
      elements = sgList.length;
      for (const slice of sgList) bytes += this.#checkSlice(slice, name);
    } else if (sgList !== undefined) {
      throw typeError(label(name, 'sgList'), 'a MemorySlice (mr.slice()) or an array of them', sgList);
    }
    if (elements > this.#maxSge) {
      throw rangeError(`${label(name, 'sgList')} has ${elements} element(s), more than maxRecvSge (${this.#maxSge})`);
    }
    if (bytes < this.#minBytes) {
      throw rangeError(
        `${label(name, 'sgList')} has ${bytes} bytes, but a datagram comes behind a header of ${this.#minBytes} bytes`,
      );
    }
    this.storeWrId(index, wrId ?? 0);
    this.encodeSgList(index, sgList ?? []);
    if (elements === 0 && this.#needsElement) {
      this.encodeNothing(index);
      elements = 1;
    }
    this.words[this.at(index) + NUM_SGE] = elements;
  }

  /** @internal */
  protected override requestFields(index: number): object {
    return this.commonFields(index, this.words[this.at(index) + NUM_SGE] as number);
  }

  #checkSlice(slice: unknown, name: Name): number {
    if (!MemorySlice.is(slice)) {
      throw typeError(label(name, 'sgList'), 'of MemorySlices (mr.slice())', slice);
    }
    const region = MemorySlice.regionOf(slice);
    region.requireOpen();
    if (region.pd !== this.pd) {
      throw valueError(`${label(name, 'sgList')} is of another protection domain than the queue pair`);
    }
    return MemorySlice.lengthOf(slice);
  }
}
