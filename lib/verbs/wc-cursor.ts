import { inspect } from 'node:util';
import type { Inspecting } from '../inspect.ts';
import { Layout } from '../native/layout.gen.ts';
import { threadMark } from '../thread.ts';
import { Completion, shownCompletion, type WorkCompletion } from './work-completion.ts';

const MARK = threadMark('completion of at()');
const WORDS = Layout.wc.size / 4;
const STATUS = Layout.wc.status / 4;
const OPCODE = Layout.wc.opcode / 4;
const VENDOR_ERR = Layout.wc.vendorErr / 4;
const BYTE_LEN = Layout.wc.byteLen / 4;
const IMM_DATA = Layout.wc.immData / 4;
const QP_NUM = Layout.wc.qpNum / 4;
const SRC_QP = Layout.wc.srcQp / 4;
const WC_FLAGS = Layout.wc.wcFlags / 4;

/** Swaps the bytes of a 32-bit word: immediate data travels in network order. @internal */
export function swap32(word: number): number {
  return ((word << 24) | ((word & 0xff00) << 8) | ((word >>> 8) & 0xff00) | (word >>> 24)) >>> 0;
}

/** Reads one entry of the ring. One object for all entries: at(i) moves it. @internal */
export class Cursor implements WorkCompletion {
  readonly thread = MARK;
  readonly #words: Int32Array;
  readonly #bytes: DataView;
  readonly #wrIds: Float64Array;
  #base = 0;

  constructor(memory: ArrayBuffer, wrIds: Float64Array) {
    this.#words = new Int32Array(memory);
    this.#bytes = new DataView(memory);
    this.#wrIds = wrIds;
  }

  at(index: number): this {
    this.#base = index * WORDS;
    return this;
  }
  get wrId(): number {
    return this.#wrIds[this.#base / WORDS] as number;
  }
  get status(): number {
    return this.#words[this.#base + STATUS] as number;
  }
  get opcode(): number {
    return this.#words[this.#base + OPCODE] as number;
  }
  get vendorErr(): number {
    return (this.#words[this.#base + VENDOR_ERR] as number) >>> 0;
  }
  get byteLen(): number {
    return (this.#words[this.#base + BYTE_LEN] as number) >>> 0;
  }
  get immData(): number {
    return swap32(this.#words[this.#base + IMM_DATA] as number);
  }
  get invalidatedRkey(): number {
    return (this.#words[this.#base + IMM_DATA] as number) >>> 0;
  }
  get qpNum(): number {
    return (this.#words[this.#base + QP_NUM] as number) >>> 0;
  }
  get srcQp(): number {
    return (this.#words[this.#base + SRC_QP] as number) >>> 0;
  }
  get wcFlags(): number {
    return (this.#words[this.#base + WC_FLAGS] as number) >>> 0;
  }
  get pkeyIndex(): number {
    return this.#bytes.getUint16(this.#base * 4 + Layout.wc.pkeyIndex, true);
  }
  get slid(): number {
    return this.#bytes.getUint16(this.#base * 4 + Layout.wc.slid, true);
  }
  get sl(): number {
    return this.#bytes.getUint8(this.#base * 4 + Layout.wc.sl);
  }
  get dlidPathBits(): number {
    return this.#bytes.getUint8(this.#base * 4 + Layout.wc.dlidPathBits);
  }
  /** As an object of its own. */
  toObject(): WorkCompletion {
    return new Completion(this);
  }
  toJSON(): object {
    return this.toObject();
  }
  [inspect.custom](...how: Inspecting): object | string {
    return shownCompletion(this, ...how);
  }
}
