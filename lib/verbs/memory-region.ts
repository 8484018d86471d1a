import { inspect } from 'node:util';
import { markAsUntransferable } from 'node:worker_threads';
import { instance, integer, rangeError, readOptions, stateError, uint32, valueError } from '../args.ts';
import { BusyError, RdmaError } from '../errors.ts';
import { flagged, hex, type Inspecting, shown } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import { AccessFlags } from '../native/constants.gen.ts';
import type { ChangedMr, MrHandle, NativeMr } from '../native/native.ts';
import { threadMark } from '../thread.ts';
import type { ProtectionDomain } from './protection-domain.ts';
import { memoryOf } from './registration.ts';
import type { RemoteRegionToken } from './remote-region.ts';
import { Resource } from './resource.ts';

/** What a region covers. @internal */
export interface RegionMemory {
  /** Bytes. */
  length: number;
  /** Those bytes, where JavaScript sees them. */
  view?: Buffer;
  /** Memory of our own, to be taken away when the region is closed; else it is the caller's. */
  owned?: ArrayBuffer;
  /** What it needs besides its domain. */
  parents?: Resource[];
}

/** What `mr.rereg()` changes; what is missing stays as it is. */
export interface ReregMrChange {
  /** The domain that it is to belong to, of the same device. */
  pd?: ProtectionDomain;
  /** The memory that it is to cover, as `pd.regMr()` takes it. */
  memory?: ArrayBufferView | ArrayBuffer;
  /** `AccessFlags` joined with `|`. */
  access?: number;
}

/**
 * Registered memory: `struct ibv_mr`. Made by `pd.alloc()` or `pd.regMr()`, and the other ways to register that
 * ProtectionDomain has. The memory is kept alive until the region is closed, and longer where the device still uses it.
 *
 * @see ibv_reg_mr(3)
 */
export class MemoryRegion extends Resource {
  /** The access flags it was registered with. */
  readonly access: number;
  /** The domain it belongs to. */
  readonly pd: ProtectionDomain;
  /** Address by which requests, and peers, name the first byte: where it lies in memory, unless `iova` said another. */
  readonly addr: bigint;
  /** The key that requests of this process name the region by. */
  readonly lkey: number;
  /** The key that a peer names it by. It is a capability: who has it may use the region as `access` says. */
  readonly rkey: number;
  /** What the kernel knows the region by: for `pd.importMr()` where the device is imported. */
  readonly nativeHandle: number;
  /** Length in bytes. */
  readonly length: number;

  /** @internal */
  readonly handle: MrHandle;
  readonly #memory: RegionMemory;
  // Whether a re-registration is under way, or has failed in a way that leaves nothing that can be used.
  #change: 'none' | 'running' | 'lost' = 'none';

  /** @internal */
  constructor(pd: ProtectionDomain, native: NativeMr, access: number, memory: RegionMemory) {
    super([pd, ...(memory.parents ?? [])]);
    this.pd = pd.root;
    this.access = access;
    this.addr = native.addr;
    this.lkey = native.lkey;
    this.rkey = native.rkey;
    this.nativeHandle = native.nativeHandle;
    this.handle = native.handle;
    this.length = memory.length;
    this.#memory = memory;
    if (memory.owned) this.owns(memory.owned);
  }

  /**
   * The registered bytes, in place: what the NIC writes is here, with no copy. Once the region is closed it is empty if
   * it was made by `alloc()`, and the caller's as before if it was made by `regMr()`.
   *
   * @throws Error `ERR_INVALID_STATE` for a region whose memory JavaScript does not see: see `hasBuffer`
   */
  get buffer(): Buffer {
    if (this.#memory.view) return this.#memory.view;
    throw stateError(`${this.describe()} has no buffer: JavaScript does not see its memory`);
  }

  /** Whether there is a `buffer`. */
  get hasBuffer(): boolean {
    return this.#memory.view !== undefined;
  }

  /** Whether each request that uses it must ask `requireOpen()`, because it may have become unusable. @internal */
  get isBorrowed(): boolean {
    return (this.#memory.owned === undefined && this.hasBuffer) || this.#change !== 'none';
  }

  /**
   * Throws when the region is closed, and when the caller's memory was detached: given to a byte stream, say. The device
   * could still reach where it was.
   *
   * @internal
   */
  override requireOpen(): void {
    super.requireOpen();
    const { view, owned } = this.#memory;
    if (view && !owned && view.length !== this.length) {
      throw stateError(
        `The memory of ${this.describe()} was detached: it must stay where it is until the region is closed`,
      );
    }
    this.requireMemory();
    if (this.#change === 'lost') throw stateError(`${this.describe()} was lost by rereg(): it can only be closed`);
  }

  /** @internal */
  override requireMemory(): void {
    if (this.#change === 'running') throw stateError(`${this.describe()} is being registered anew`);
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
    return new MemorySlice(this, offset, checkRange(offset, length, this.length, 'region'), CHECKED);
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

  /**
   * Registers the region anew: with other memory, other access, in another domain. As if it was closed and another one
   * made, but in one step, and with less work where the memory stays. So this region is closed when it succeeds, and what
   * was made of it before ends with it: slices are refused with `ERR_RDMA_CLOSED`; a peer's token works on as far as the
   * device has kept its key, so send a new one. While it runs the region cannot be used. Pins pages on a thread of the
   * pool.
   *
   * @returns the region that this one has become; `buffer` stays in place where `memory` is not given
   * @throws BusyError while requests in flight or copies of a GPU use the region, with their number; nothing is changed
   * @throws RdmaError EOPNOTSUPP where the device or its provider cannot; the region is as it was
   * @throws RdmaError with the kernel's errno: the message says whether the region is as it was, or lost. One that is
   *   lost can only be closed, and until then holds the memory that it had and the memory that it was to have
   * @see ibv_rereg_mr(3)
   */
  async rereg(change: ReregMrChange): Promise<MemoryRegion> {
    const { pd, access, memory, args } = this.#reregArgs(change);
    this.#setChange('running');
    try {
      const pending = binding().reregMr(...args);
      return this.#reregistered(await this.track(pd.track(pending)), pd, access, memory);
    } finally {
      if (this.#change === 'running') this.#setChange('none');
    }
  }

  /** As `rereg()`, but on this thread: it blocks for as long as pages take to be pinned. */
  reregSync(change: ReregMrChange): MemoryRegion {
    const { pd, access, memory, args } = this.#reregArgs(change);
    return this.#reregistered(binding().reregMrSync(...args), pd, access, memory);
  }

  #reregArgs(change: ReregMrChange) {
    this.requireOpen();
    const known = ['pd', 'memory', 'access'] as const;
    const { pd, memory, access } = readOptions(change, 'change', known);
    if (pd === undefined && memory === undefined && access === undefined) {
      throw valueError(`change must have at least one of ${known.join(', ')}`);
    }
    if (!this.hasBuffer || this.#memory.parents) {
      throw valueError('Only a region of memory of this process (alloc(), regMr()) can be registered anew');
    }
    if (pd !== undefined) {
      // The class by way of an instance: its file needs this one.
      instance(pd, 'change.pd', this.pd.constructor as typeof ProtectionDomain).requireOpen();
      if (pd.context !== this.pd.context) throw valueError('change.pd is of another device');
    }
    if (access !== undefined) uint32(access, 'change.access');
    const given = memory === undefined ? undefined : memoryOf(memory, 'change.memory');
    const inFlight = this.pd.inFlight(this);
    if (inFlight > 0) {
      const detail = `${this.describe()} is used by ${inFlight} work request(s) in flight`;
      throw new BusyError('ibv_rereg_mr', detail);
    }
    // Such as a copy of a GPU: the memory would go with this region, or with the one that comes after it.
    if (this.underWay > 0) {
      throw new BusyError('ibv_rereg_mr', `${this.describe()} is used by ${this.underWay} operation(s) under way`);
    }
    if (given) markAsUntransferable(given.buffer);
    const args = [
      this.handle,
      pd?.handle ?? null,
      access ?? null,
      given?.buffer ?? null,
      given?.view.byteOffset ?? 0,
      given?.view.length ?? 0,
    ] as const;
    const covered: RegionMemory = given ? { length: given.view.length, view: given.view } : this.#memory;
    return { pd: pd ?? this.pd, access: access ?? this.access, memory: covered, args };
  }

  #reregistered(native: ChangedMr, pd: ProtectionDomain, access: number, memory: RegionMemory): MemoryRegion {
    if (native.errno !== 0) {
      if (!native.isKept) this.#setChange('lost');
      const state = native.isKept ? 'the region is as it was' : 'the region is lost: it can only be closed';
      throw new RdmaError('ibv_rereg_mr', native.errno, state);
    }
    const { owned } = this.#memory;
    this.leave();
    this.pd.closings++;
    if (owned && memory.owned !== owned) binding().detach(owned);
    return new MemoryRegion(pd, { ...native, handle: this.handle }, access, memory);
  }

  // Lists that were prepared look again whether what they use can be used.
  #setChange(change: 'none' | 'running' | 'lost'): void {
    this.#change = change;
    this.pd.closings++;
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

  protected readonly destroyVerb: string = 'ibv_dereg_mr';

  protected override busyReasons(): string[] {
    const inFlight = this.pd.inFlight(this);
    return inFlight === 0 ? [] : [`${inFlight} work request(s) in flight`];
  }

  protected destroy(): void {
    binding().deregMr(this.handle);
    this.pd.closings++;
    if (this.#memory.owned) binding().detach(this.#memory.owned);
  }
}

/** A region of another context of the same device file. @internal */
export class ImportedRegion extends MemoryRegion {
  protected override readonly destroyVerb = 'ibv_unimport_mr';
}

/** Memory that takes what is written, and reads as zeros. @internal */
export class NullRegion extends MemoryRegion {
  constructor(pd: ProtectionDomain, native: NativeMr) {
    super(pd, native, AccessFlags.LOCAL_WRITE, { length: Number.MAX_SAFE_INTEGER });
  }

  override remote(): never {
    throw stateError('A null region has no remote key: only requests of this process can use it');
  }
}

// What only this module has: an address that was made up must not reach C.
const CHECKED = Symbol('checked');

const SLICE = threadMark('MemorySlice');

/** A checked part of a {@link MemoryRegion}: what a scatter/gather element is made of. */
export class MemorySlice {
  /** @internal */
  readonly thread = SLICE;
  // Private, and read by static methods only, for the same reason.
  readonly #region: MemoryRegion;
  readonly #offset: number;
  readonly #length: number;
  readonly #addrLow: number;
  readonly #addrHigh: number;
  readonly #lkey: number;

  /** @internal */
  constructor(region: MemoryRegion, offset: number, length: number, isChecked: typeof CHECKED) {
    if (isChecked !== CHECKED) throw stateError('A MemorySlice is made by the slice() of its region');
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

  /** The slice in a few words, for errors. @internal */
  describe(): string {
    const { offset, length, region } = this;
    return `0x${(region.addr + BigInt(offset)).toString(16)} + ${length} (lkey 0x${region.lkey.toString(16)})`;
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
