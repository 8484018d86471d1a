import { inspect } from 'node:util';
import { integer, string, typeError, uint32, valueError } from '../args.ts';
import { hex, type Inspecting, shown } from '../inspect.ts';
import { threadMark } from '../thread.ts';
import { checkRange } from './memory-region.ts';

/** A region of a peer as plain data, made there by `mr.remote()`. */
export interface RemoteRegionToken {
  /** Virtual address in the peer's memory, hexadecimal with `0x`. */
  addr: string;
  /** Remote key. */
  rkey: number;
  /** Length in bytes. */
  length: number;
}

const REGION = threadMark('RemoteRegion');
const SLICE = threadMark('RemoteSlice');

/** Memory of a peer. Bounds are checked here before a request is posted; the peer's NIC checks them again. */
export class RemoteRegion {
  /** @internal */
  readonly thread = REGION;
  /** Virtual address in the peer's memory. */
  readonly addr: bigint;
  /** Remote key. */
  readonly rkey: number;
  /** Length in bytes. */
  readonly length: number;

  /**
   * @param token - what the peer's `mr.remote()` gave, as an object; not trusted, so it is checked
   * @throws TypeError or RangeError when it is malformed
   */
  constructor(token: RemoteRegionToken) {
    if (typeof token !== 'object' || token === null) throw typeError('token', 'a RemoteRegionToken', token);
    const { addr, rkey, length } = token;
    if (!/^0x[0-9a-f]{1,16}$/i.test(string(addr, 'token.addr'))) {
      throw valueError(`token.addr must be a hexadecimal address of 64 bits, not ${JSON.stringify(addr)}`);
    }
    this.addr = BigInt(addr);
    this.rkey = uint32(rkey, 'token.rkey');
    this.length = integer(length, 'token.length', 0, Number.MAX_SAFE_INTEGER);
    if (this.addr + BigInt(length) > 1n << 64n) throw valueError('token.addr + token.length is past 2^64');
  }

  /**
   * The region of a token that came as JSON, such as in the private data of a connection.
   *
   * @param json - what `JSON.stringify(mr.remote())` gave there, as text or as its UTF-8 bytes; not trusted
   * @throws TypeError or RangeError when it is malformed
   */
  static parse(json: string | Uint8Array): RemoteRegion {
    if (typeof json !== 'string' && !(json instanceof Uint8Array)) throw typeError('json', 'a string or bytes', json);
    let token: RemoteRegionToken;
    try {
      token = JSON.parse(typeof json === 'string' ? json : new TextDecoder().decode(json));
    } catch {
      throw valueError('json is not the JSON of a RemoteRegionToken');
    }
    return new RemoteRegion(token);
  }

  /**
   * A part of the region, as work requests take it.
   *
   * @param offset - first byte, default 0
   * @param length - bytes, default all up to the end: how much a request may touch from there
   * @throws RangeError `ERR_OUT_OF_RANGE` when it does not lie inside the region
   */
  slice(offset = 0, length?: number): RemoteSlice {
    return new RemoteSlice(this, offset, checkRange(offset, length, this.length, 'remote region'));
  }

  /** @internal */
  [inspect.custom](...how: Inspecting): object | string {
    const { addr, length, rkey } = this;
    return shown('RemoteRegion', undefined, () => ({ addr: hex(addr), length, rkey: hex(rkey) }), ...how);
  }
}

/** A checked part of a {@link RemoteRegion}. */
export class RemoteSlice {
  /** @internal */
  readonly thread = SLICE;
  readonly #offset: number;
  readonly #length: number;
  readonly #addrLow: number;
  readonly #addrHigh: number;
  readonly #rkey: number;

  /** @internal */
  constructor(region: RemoteRegion, offset: number, length: number) {
    const addr = region.addr + BigInt(offset);
    this.#offset = offset;
    this.#length = length;
    this.#addrLow = Number(addr & 0xffff_ffffn) | 0;
    this.#addrHigh = Number(addr >> 32n) | 0;
    this.#rkey = region.rkey | 0;
  }

  /** First byte, counted from the region's start. */
  get offset(): number {
    return this.#offset;
  }

  /** Length in bytes. */
  get length(): number {
    return this.#length;
  }

  get #addr(): bigint {
    return (BigInt(this.#addrHigh >>> 0) << 32n) | BigInt(this.#addrLow >>> 0);
  }

  /** The slice in a few words, for errors. @internal */
  describe(): string {
    return `0x${this.#addr.toString(16)} + ${this.#length} (rkey 0x${(this.#rkey >>> 0).toString(16)})`;
  }

  /** @internal */
  [inspect.custom](...how: Inspecting): object | string {
    const fields = () => ({
      offset: this.#offset,
      length: this.#length,
      addr: hex(this.#addr),
      rkey: hex(this.#rkey >>> 0),
    });
    return shown('RemoteSlice', undefined, fields, ...how);
  }

  /** Whether it is one, and not something that was made to look like one. @internal */
  static is(value: unknown): value is RemoteSlice {
    return typeof value === 'object' && value !== null && #rkey in value;
  }

  /** @internal */
  static lengthOf(slice: RemoteSlice): number {
    return slice.#length;
  }

  /** Whether the address is a multiple of 8, as atomics need. @internal */
  static isAligned(slice: RemoteSlice): boolean {
    return (slice.#addrLow & 7) === 0;
  }

  /** Writes remote_addr and the key at two word indexes. @internal */
  static encode(slice: RemoteSlice, words: Int32Array, addrAt: number, rkeyAt: number): void {
    words[addrAt] = slice.#addrLow;
    words[addrAt + 1] = slice.#addrHigh;
    words[rkeyAt] = slice.#rkey;
  }
}
