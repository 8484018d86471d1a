import { readFileSync } from 'node:fs';
import { inspect } from 'node:util';
import { integer, rangeError, stateError, typeError } from '../args.ts';
import type { RdmaError } from '../errors.ts';
import { flagged, hex, type Inspecting, shown } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import { AccessFlags } from '../native/constants.gen.ts';
import type { MrHandle, NativeMr } from '../native/native.ts';
import type { Context } from './context.ts';
import type { ProtectionDomain } from './protection-domain.ts';
import type { RemoteRegionToken } from './remote-region.ts';
import { Resource } from './resource.ts';

/**
 * Registered memory: `struct ibv_mr`. Made by `pd.alloc()` or `pd.regMr()`. The memory is kept alive until the region is
 * closed, and longer where the device still uses it.
 *
 * @see ibv_reg_mr(3)
 */
export class MemoryRegion extends Resource {
  /**
   * The registered bytes, in place: what the NIC writes is here, with no copy. Once the region is closed it is empty if
   * it was made by `alloc()`, and the caller's as before if it was made by `regMr()`.
   */
  readonly buffer: Buffer;
  /** The access flags it was registered with. */
  readonly access: number;
  /** The domain it belongs to. */
  readonly pd: ProtectionDomain;

  /** @internal */
  readonly handle: MrHandle;
  readonly #native: NativeMr;
  readonly #length: number;
  // Ours to take away at close; the caller's memory is left alone.
  readonly #owned: ArrayBuffer | undefined;

  /** @internal */
  constructor(pd: ProtectionDomain, native: NativeMr, buffer: Buffer, access: number, owned?: ArrayBuffer) {
    super([pd]);
    this.pd = pd;
    this.buffer = buffer;
    this.#native = native;
    this.#length = buffer.length;
    this.access = access;
    this.handle = native.handle;
    this.#owned = owned;
  }

  /** Virtual address of the first byte. */
  get addr(): bigint {
    return this.#native.addr;
  }

  /** Length in bytes. */
  get length(): number {
    return this.#length;
  }

  /** The key that requests of this process name the region by. */
  get lkey(): number {
    return this.#native.lkey;
  }

  /** The key that a peer names it by. It is a capability: who has it may use the region as `access` says. */
  get rkey(): number {
    return this.#native.rkey;
  }

  /** Whether the memory is the caller's, who can take it away. @internal */
  get isBorrowed(): boolean {
    return this.#owned === undefined;
  }

  /**
   * Throws when the region is closed, and when the caller's memory was detached: given to a byte stream, say. The device
   * could still reach where it was.
   *
   * @internal
   */
  override requireOpen(): void {
    super.requireOpen();
    if (this.#owned === undefined && this.buffer.length !== this.#length) {
      throw stateError(
        `The memory of ${this.describe()} was detached: it must stay where it is until the region is closed`,
      );
    }
  }

  /**
   * A part of the region, as work requests take it. Bounds are checked here, once.
   *
   * @param offset - first byte, default 0
   * @param length - bytes, default all up to the end, but at most 2^32 - 1 (`ibv_sge.length`)
   * @throws RangeError `ERR_OUT_OF_RANGE` when it does not lie inside the region
   */
  slice(offset = 0, length?: number): MemorySlice {
    this.requireOpen();
    return new MemorySlice(this, offset, checkRange(offset, length, this.length, 'region'));
  }

  /**
   * What a peer needs to reach this region: plain data, to be sent to it over any channel (JSON will do). Whoever has it
   * can use the region as its access flags say, until it is closed.
   *
   * @throws RdmaClosedError when the region is closed
   */
  remote(): RemoteRegionToken {
    this.requireOpen();
    return { addr: `0x${this.addr.toString(16)}`, rkey: this.rkey, length: this.length };
  }

  /** @internal */
  describe(): string {
    return `MemoryRegion (lkey 0x${this.lkey.toString(16)}, ${this.length} bytes)`;
  }

  /** @internal */
  protected override fields(): object {
    const { addr, length, lkey, rkey, access } = this;
    return { addr: hex(addr), length, lkey: hex(lkey), rkey: hex(rkey), access: flagged(AccessFlags)(access) };
  }

  protected readonly destroyVerb = 'ibv_dereg_mr';

  protected override busyReasons(): string[] {
    const inFlight = this.pd.inFlight(this);
    return inFlight === 0 ? [] : [`${inFlight} work request(s) in flight`];
  }

  protected destroy(): void {
    binding().deregMr(this.handle);
    this.pd.closings++;
    if (this.#owned) binding().detach(this.#owned);
  }
}

/** A checked part of a {@link MemoryRegion}: what a scatter/gather element is made of. */
export class MemorySlice {
  // Private, and read by static methods only: an address that was made up must not reach C.
  readonly #region: MemoryRegion;
  readonly #offset: number;
  readonly #length: number;
  readonly #addrLow: number;
  readonly #addrHigh: number;
  readonly #lkey: number;

  /** @internal */
  constructor(region: MemoryRegion, offset: number, length: number) {
    const addr = region.addr + BigInt(offset);
    this.#region = region;
    this.#offset = offset;
    this.#length = length;
    this.#addrLow = Number(addr & 0xffff_ffffn) | 0;
    this.#addrHigh = Number(addr >> 32n) | 0;
    this.#lkey = region.lkey | 0;
  }

  /** The region it lies in. */
  get region(): MemoryRegion {
    return this.#region;
  }

  /** First byte, counted from the region's start. */
  get offset(): number {
    return this.#offset;
  }

  /** Length in bytes. */
  get length(): number {
    return this.#length;
  }

  /** The bytes of the slice, in place. */
  get buffer(): Buffer {
    return this.#region.buffer.subarray(this.#offset, this.#offset + this.#length);
  }

  /** @internal */
  [inspect.custom](...how: Inspecting): object | string {
    const fields = () => {
      const { offset, length, region } = this;
      return { offset, length, addr: hex(region.addr + BigInt(offset)), lkey: hex(region.lkey) };
    };
    return shown('MemorySlice', MemorySlice.is(this) && this.region.closed ? 'closed' : undefined, fields, ...how);
  }

  /** Whether it is one, and not something that was made to look like one. @internal */
  static is(value: unknown): value is MemorySlice {
    return typeof value === 'object' && value !== null && #region in value;
  }

  /** @internal */
  static regionOf(slice: MemorySlice): MemoryRegion {
    return slice.#region;
  }

  /** @internal */
  static lengthOf(slice: MemorySlice): number {
    return slice.#length;
  }

  /** Writes a `struct ibv_sge` at a word index. @internal */
  static encode(slice: MemorySlice, words: Int32Array, at: number): void {
    words[at] = slice.#addrLow;
    words[at + 1] = slice.#addrHigh;
    words[at + 2] = slice.#length | 0;
    words[at + 3] = slice.#lkey;
  }
}

/** A range's length: the one given, or all up to the end. @internal */
export function checkRange(offset: number, given: number | undefined, available: number, what: string): number {
  integer(offset, 'offset', 0, Number.MAX_SAFE_INTEGER);
  const length = given === undefined ? Math.min(Math.max(available - offset, 0), 0xffff_ffff) : given;
  integer(length, 'length', 0, 0xffff_ffff);
  if (offset + length > available) {
    throw rangeError(`offset ${offset} + length ${length} is past the end of the ${what} of ${available} bytes`);
  }
  return length;
}

// The addon interface cannot reach the memory of one.
const NOT_SHARED =
  '(a SharedArrayBuffer cannot be registered: each thread registers memory of its own, and copies or sends between them)';

/** The memory behind a view: what `ibv_reg_mr` is told. @internal */
export function memoryOf(memory: unknown): { buffer: ArrayBuffer; view: Buffer } {
  const isView = ArrayBuffer.isView(memory);
  if (!isView && !(memory instanceof ArrayBuffer)) {
    const expected = 'a Buffer, TypedArray, DataView or ArrayBuffer';
    throw typeError('memory', memory instanceof SharedArrayBuffer ? `${expected} ${NOT_SHARED}` : expected, memory);
  }
  // `resizable` is younger than the library definitions that we compile with.
  const backing: ArrayBufferLike & { resizable?: boolean } = isView ? memory.buffer : memory;
  if (!(backing instanceof ArrayBuffer)) throw typeError('memory', `backed by an ArrayBuffer ${NOT_SHARED}`, memory);
  if (backing.resizable) throw typeError('memory', 'of a fixed size, since a resizable one may move', memory);
  // Looked at first: a DataView of a detached one throws when it is asked for its length.
  if (backing.byteLength === 0 || memory.byteLength === 0) {
    throw rangeError('memory must have at least one byte (is it detached?)');
  }
  const offset = isView ? memory.byteOffset : 0;
  const length = memory.byteLength;
  return { buffer: backing, view: Buffer.from(backing, offset, length) };
}

/**
 * EINVAL from a registration is nearly always about the access flags, and ENOMEM about the limit on locked memory; neither
 * says so.
 *
 * @internal
 */
export function explainRegistration(error: RdmaError, length: number, access: number, context: Context): RdmaError {
  const { LOCAL_WRITE, REMOTE_WRITE, REMOTE_ATOMIC } = AccessFlags;
  if (error.code === 'EINVAL') {
    const { maxMrSize } = context.queryDevice();
    if (BigInt(length) > maxMrSize) return error.explained(`${length} bytes, maxMrSize of the device is ${maxMrSize}`);
    if ((access & (REMOTE_WRITE | REMOTE_ATOMIC)) === 0 || (access & LOCAL_WRITE) !== 0) return error;
    return error.explained('REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE too: add AccessFlags.LOCAL_WRITE');
  }
  if (error.syscall === 'mmap' && error.code === 'ENOMEM') {
    return error.explained(`no memory for ${length} bytes; with hugePages, see /proc/sys/vm/nr_hugepages`);
  }
  if (error.code !== 'ENOMEM') return error;
  const limit = /^Max locked memory +(\S+) +(\S+)/m.exec(readFileSync('/proc/self/limits', 'utf8'));
  return error.explained(
    `registering ${length} bytes; RLIMIT_MEMLOCK is ${limit?.[1] ?? 'unknown'} bytes (hard limit ${limit?.[2] ?? 'unknown'}). ` +
      'Raise it with "ulimit -l unlimited", LimitMEMLOCK=infinity in the systemd unit, or "--ulimit memlock=-1" for a container',
  );
}
