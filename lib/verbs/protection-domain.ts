import { markAsUntransferable } from 'node:worker_threads';
import {
  boolean,
  instance,
  integer,
  oneOf,
  rangeError,
  readOptions,
  typeError,
  uint32,
  uint64,
  valueError,
} from '../args.ts';
import { brief } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import { AccessFlags, AdviseMrAdvice, MwType } from '../native/constants.gen.ts';
import { Layout } from '../native/layout.gen.ts';
import type { NativeMr, NativePd, PdHandle } from '../native/native.ts';
import { AddressHandle, type AhAttr } from './address-handle.ts';
import type { Context } from './context.ts';
import { DeviceMemory } from './device-memory.ts';
import { ImplicitRegion } from './implicit-region.ts';
import { ImportedRegion, MemoryRegion, MemorySlice, NullRegion } from './memory-region.ts';
import { MemoryWindow } from './memory-window.ts';
import type { QpInitAttr } from './qp-init-attr.ts';
import { QueuePair } from './queue-pair.ts';
import {
  type AllocOptions,
  addressArgs,
  allocArgs,
  dmabufOptions,
  explainRegistration,
  type RegDmabufMrOptions,
  type RegMrOptions,
  regArgs,
} from './registration.ts';
import { Resource } from './resource.ts';
import { type RssQpInitAttr, RssQueuePair } from './rss-queue-pair.ts';
import { SharedReceiveQueue, type SrqInitAttr } from './shared-receive-queue.ts';
import { ThreadDomain } from './thread-domain.ts';
import type { WorkCompletion } from './work-completion.ts';
import type { Using } from './work-queue.ts';

const SGE_WORDS = Layout.sge.size / 4;

/** How a domain came to be, where it was not simply allocated. @internal */
interface PdOrigin {
  pd?: ProtectionDomain;
  td?: ThreadDomain | undefined;
  destroyVerb?: string;
}

/**
 * A protection domain: `struct ibv_pd`. Memory regions and queue pairs work together only within one.
 *
 * @see ibv_alloc_pd(3)
 */
export class ProtectionDomain extends Resource {
  /** The device it belongs to. */
  readonly context: Context;
  /** Of a parent domain: the domain that it was made of, and that what is made with it belongs to. Else undefined. */
  readonly pd: ProtectionDomain | undefined;
  /** Of a parent domain: its thread domain, where it has one. */
  readonly td: ThreadDomain | undefined;
  /** What the kernel knows it by: for `context.importPd()` where the device is imported. */
  readonly nativeHandle: number;
  /** The domain that is no parent domain: this one, or the one behind it. @internal */
  readonly root: ProtectionDomain;
  /** @internal */
  readonly handle: PdHandle;
  /** The queues whose requests use its regions. @internal */
  readonly queues = new Set<Using>();
  /** How many of its regions were closed: post lists look for closed ones only when it has changed. @internal */
  closings = 0;
  protected readonly destroyVerb: string;

  /** @internal */
  constructor(context: Context, native: NativePd, { pd, td, destroyVerb = 'ibv_dealloc_pd' }: PdOrigin = {}) {
    super([context, ...(pd ? [pd] : []), ...(td ? [td] : [])]);
    this.context = context;
    this.pd = pd;
    this.td = td;
    this.root = pd?.root ?? this;
    this.handle = native.handle;
    this.nativeHandle = native.nativeHandle;
    this.destroyVerb = destroyVerb;
  }

  /**
   * Allocates page-aligned, zeroed memory and registers it: the usual way to get a region. The memory is in `mr.buffer`;
   * it cannot be transferred to another thread, and goes when the region is closed. Pins the pages on a thread of the
   * pool.
   *
   * @param length - bytes
   * @throws RdmaError ENOMEM, with what the limit on locked memory is and how to raise it
   * @see ibv_reg_mr(3)
   */
  async alloc(length: number, options: AllocOptions = {}): Promise<MemoryRegion> {
    this.requireOpen();
    const { hugePages, how } = allocArgs(length, options);
    try {
      // Counted until the region is there, so that the domain cannot be closed in between.
      const pending = binding().allocMr(this.handle, length, how.access, hugePages, how.iova);
      return await this.track(pending.then((native) => this.#allocated(native, length, how.access)));
    } catch (error) {
      throw explainRegistration(error, length, how, this.context);
    }
  }

  /** As `alloc()`, but on this thread: it blocks for as long as the pages take to be pinned. */
  allocSync(length: number, options: AllocOptions = {}): MemoryRegion {
    this.requireOpen();
    const { hugePages, how } = allocArgs(length, options);
    try {
      const native = binding().allocMrSync(this.handle, length, how.access, hugePages, how.iova);
      return this.#allocated(native, length, how.access);
    } catch (error) {
      throw explainRegistration(error, length, how, this.context);
    }
  }

  /**
   * Registers memory of the caller's, in place. It is kept from being collected until the region is closed, and marked
   * as not transferable. Pins the pages on a thread of the pool.
   *
   * @param memory - a Buffer, TypedArray, DataView or ArrayBuffer of a fixed size. A small Buffer shares its
   *   ArrayBuffer with others; only its own bytes are registered
   * @throws TypeError or RangeError for resizable, detached, shared or empty memory
   * @throws RdmaError EINVAL for remote write or atomic access without LOCAL_WRITE; ENOMEM as `alloc()`
   * @see ibv_reg_mr(3)
   */
  async regMr(memory: ArrayBufferView | ArrayBuffer, options: RegMrOptions = {}): Promise<MemoryRegion> {
    this.requireOpen();
    const { view, how, args } = regArgs(this.handle, memory, options);
    try {
      const { length } = view;
      const pending = binding().regMr(...args);
      return await this.track(pending.then((native) => new MemoryRegion(this, native, how.access, { length, view })));
    } catch (error) {
      throw explainRegistration(error, view.length, how, this.context);
    }
  }

  /** As `regMr()`, but on this thread: it blocks for as long as the pages take to be pinned. */
  regMrSync(memory: ArrayBufferView | ArrayBuffer, options: RegMrOptions = {}): MemoryRegion {
    this.requireOpen();
    const { view, how, args } = regArgs(this.handle, memory, options);
    try {
      return new MemoryRegion(this, binding().regMrSync(...args), how.access, { length: view.length, view });
    } catch (error) {
      throw explainRegistration(error, view.length, how, this.context);
    }
  }

  /**
   * **Unsafe**: registers memory by its address. For memory that JavaScript does not see, such as that of a GPU whose
   * driver lets `ibv_reg_mr` take its pointers (nvidia-peermem), or that another addon has allocated. Nothing here can
   * check that the address is right, that as many bytes lie there, or that they stay: it is for the caller to keep the
   * memory until the region is closed and no request uses it. A mistake lets the device write over whatever is there. Use
   * `regMr()` where there is a Buffer, and `regDmabufMr()` where there is a DMA-BUF. The region has no `buffer`.
   *
   * @param address - virtual address of the first byte
   * @param length - bytes
   * @throws RdmaError EFAULT, or ENOMEM, where no memory is mapped, or not with the access asked for; else as `regMr()`
   * @see ibv_reg_mr(3)
   */
  async regMrAddress(address: bigint, length: number, options: RegMrOptions = {}): Promise<MemoryRegion> {
    this.requireOpen();
    const { how, args } = addressArgs(this.handle, address, length, options);
    try {
      const pending = binding().regMrAddress(...args);
      return await this.track(pending.then((native) => new MemoryRegion(this, native, how.access, { length })));
    } catch (error) {
      throw explainRegistration(error, length, how, this.context);
    }
  }

  /** As `regMrAddress()`, but on this thread: it blocks for as long as the pages take to be pinned. */
  regMrAddressSync(address: bigint, length: number, options: RegMrOptions = {}): MemoryRegion {
    this.requireOpen();
    const { how, args } = addressArgs(this.handle, address, length, options);
    try {
      return new MemoryRegion(this, binding().regMrAddressSync(...args), how.access, { length });
    } catch (error) {
      throw explainRegistration(error, length, how, this.context);
    }
  }

  /**
   * Registers all memory of this process at once, for on-demand paging: nothing is pinned, and memory that is allocated
   * later is covered too. `region.cover(memory)` makes of it what slices are made of. For local access only, since a
   * peer that has the key of all memory has the process.
   *
   * @param options - `readOnly`: the device may not write. Default false
   * @throws RdmaError EOPNOTSUPP where the device has no implicit on-demand paging
   * @see ibv_reg_mr(3)
   */
  regImplicitMr(options: { readOnly?: boolean } = {}): ImplicitRegion {
    this.requireOpen();
    const { readOnly = false } = readOptions(options, 'options', ['readOnly']);
    const write = boolean(readOnly, 'options.readOnly') ? 0 : AccessFlags.LOCAL_WRITE;
    const access = AccessFlags.ON_DEMAND | write;
    return new ImplicitRegion(this, binding().regMrAddressSync(this.handle, 0n, null, access, undefined), access);
  }

  /**
   * Allocates a null region: what the device writes there is discarded, and what it reads is zero. It has no end, so
   * `mr.slice()` has whatever length is asked for. To skip a part of a message, or to send zeros. For requests of this
   * process only: it has no remote key.
   *
   * @throws RdmaError EOPNOTSUPP where the device has none
   * @see ibv_alloc_null_mr(3)
   */
  allocNullMr(): MemoryRegion {
    this.requireOpen();
    return new NullRegion(this, binding().allocNullMr(this.handle));
  }

  /**
   * Registers memory of a DMA-BUF: of a GPU, or of another device that exports its memory so. The region keeps the
   * memory: `fd` may be closed as soon as the promise settles. It has no `buffer`.
   *
   * @param fd - the DMA-BUF's file descriptor
   * @throws RdmaError EOPNOTSUPP where the kernel, the library or the provider has no such registration; EBADF for no
   *   descriptor; EINVAL for one of something else, for a range that is not in the DMA-BUF, and for an `iova` that is not
   *   at the same place in its page as `offset`
   * @see ibv_reg_mr(3)
   */
  async regDmabufMr(fd: number, options: RegDmabufMrOptions): Promise<MemoryRegion> {
    this.requireOpen();
    const { offset, length, how, asked } = dmabufOptions(fd, options);
    try {
      const pending = binding().regDmabufMr(this.handle, fd, offset, length, how.iova, how.access);
      return await this.track(pending.then((native) => new MemoryRegion(this, native, how.access, { length })));
    } catch (error) {
      throw explainRegistration(error, length, asked, this.context);
    }
  }

  /** As `regDmabufMr()`, but on this thread: it blocks for as long as the exporter takes. */
  regDmabufMrSync(fd: number, options: RegDmabufMrOptions): MemoryRegion {
    this.requireOpen();
    const { offset, length, how, asked } = dmabufOptions(fd, options);
    try {
      const native = binding().regDmabufMrSync(this.handle, fd, offset, length, how.iova, how.access);
      return new MemoryRegion(this, native, how.access, { length });
    } catch (error) {
      throw explainRegistration(error, length, asked, this.context);
    }
  }

  /**
   * Registers memory on the device. The region is always zero-based: its `addr`, and a peer's token, begin at 0. It has
   * no `buffer`: `dm.memcpyTo()` and `dm.memcpyFrom()` copy.
   *
   * @param options - `offset`: first byte within it, default 0; `length`: default all up to the end; `access`:
   *   `AccessFlags` joined with `|`, default `LOCAL_WRITE` (ZERO_BASED is added)
   * @throws RangeError when the range is not in it
   * @see ibv_alloc_dm(3)
   */
  regDmMr(dm: DeviceMemory, options: { offset?: number; length?: number; access?: number } = {}): MemoryRegion {
    this.requireOpen();
    instance(dm, 'dm', DeviceMemory).requireOpen();
    if (dm.context !== this.context) throw valueError('dm is of another device');
    const known = ['offset', 'length', 'access'];
    const {
      offset = 0,
      length: wanted,
      access: given = AccessFlags.LOCAL_WRITE,
    } = readOptions(options, 'options', known);
    integer(offset, 'options.offset', 0, dm.length - 1);
    const length = integer(wanted ?? dm.length - offset, 'options.length', 1, dm.length - offset);
    const access = (uint32(given, 'options.access') | AccessFlags.ZERO_BASED) >>> 0;
    const native = binding().regDmMr(this.handle, dm.handle, offset, length, access);
    return new MemoryRegion(this, native, access, { length, parents: [dm] });
  }

  /**
   * The region of another context of the same device file: see `importDevice()`. The context that registered it
   * deregisters it; closing the imported one only lets go of it.
   *
   * @param handle - its `nativeHandle` there
   * @param options - `addr`: its `addr` there, which the kernel does not tell; default 0. `access`: its access flags
   *   there, for the record. Default 0
   * @throws RdmaError ENOENT when there is no such region; EOPNOTSUPP where the provider has no import
   * @see ibv_import_mr(3)
   */
  importMr(handle: number, options: { addr?: bigint; access?: number } = {}): MemoryRegion {
    this.requireOpen();
    const { addr = 0n, access = 0 } = readOptions(options, 'options', ['addr', 'access']);
    uint32(access, 'options.access');
    const native = binding().importMr(this.handle, uint32(handle, 'handle'), uint64(addr, 'options.addr'));
    const length = Math.min(native.length, Number.MAX_SAFE_INTEGER);
    return new ImportedRegion(this, native, access, { length });
  }

  /**
   * Makes a parent domain: it is used wherever this domain is, and what is made with it is of this domain, but gets the
   * resources of the thread domain: a doorbell page of its own, and no locks.
   *
   * @param options - `td`: from `context.allocTd()`. Default none
   * @throws RdmaError EOPNOTSUPP where the provider has none
   * @see ibv_alloc_parent_domain(3)
   */
  allocParentDomain(options: { td?: ThreadDomain } = {}): ProtectionDomain {
    this.requireOpen();
    const { td } = readOptions(options, 'options', ['td']);
    if (td !== undefined) {
      instance(td, 'options.td', ThreadDomain).requireOpen();
      if (td.context !== this.context) throw valueError('options.td is of another device');
    }
    if (this.pd) throw valueError('A parent domain cannot be made of a parent domain');
    const native = binding().allocParentDomain(this.context.handle, this.handle, td?.handle ?? null);
    return new ProtectionDomain(this.context, native, { pd: this, td });
  }

  /**
   * Tells the device of what is going to be used of on-demand memory, so that it need not wait for the pages then.
   *
   * @param advice - one of `AdviseMrAdvice`
   * @param flags - `AdviseMrFlags.FLUSH`: done when the promise settles. Else 0
   * @param slices - of regions with `AccessFlags.ON_DEMAND`
   * @throws RdmaError EOPNOTSUPP where the device has no on-demand paging, or not this advice; ENOENT for memory that is
   *   not on demand; EPERM to write where the region may not be written; EFAULT where there is no memory
   * @see ibv_advise_mr(3)
   */
  async adviseMr(advice: AdviseMrAdvice, flags: number, slices: MemorySlice | readonly MemorySlice[]): Promise<void> {
    this.requireOpen();
    oneOf(advice, 'advice', AdviseMrAdvice, 'AdviseMrAdvice');
    uint32(flags, 'flags');
    const list = [slices].flat() as MemorySlice[];
    if (list.length === 0) throw rangeError('slices must have at least one');
    const words = new Int32Array(list.length * SGE_WORDS);
    for (const [i, slice] of list.entries()) {
      if (!MemorySlice.is(slice)) throw typeError('slices', 'a MemorySlice (mr.slice()) or an array of them', slice);
      MemorySlice.encode(slice, words, i * SGE_WORDS);
    }
    const regions = new Set(list.map(MemorySlice.regionOf));
    for (const region of regions) region.requireOpen();
    let pending = this.track(binding().adviseMr(this.handle, advice, flags, words.buffer));
    for (const region of regions) pending = region.track(pending);
    await pending;
  }

  /**
   * Creates a queue pair, in the state RESET. It keeps this domain and both completion queues; with `rwqIndTbl`, the table.
   *
   * @throws TypeError ERR_INVALID_ARG_VALUE for a type that is made elsewhere, and for an object of another context
   * @throws RdmaError EINVAL when the device cannot grant the capacities (see `context.queryDevice()`); ENOMEM when it
   *   has no more queue pairs
   * @throws CqOverrunError when a completion queue has no room for all that could be in flight
   * @see ibv_create_qp(3)
   */
  createQp(attr: RssQpInitAttr): RssQueuePair;
  createQp(attr: QpInitAttr): QueuePair;
  createQp(attr: QpInitAttr | RssQpInitAttr): QueuePair | RssQueuePair {
    this.requireOpen();
    return 'rwqIndTbl' in Object(attr)
      ? new RssQueuePair(this, attr as RssQpInitAttr)
      : new QueuePair(this, attr as QpInitAttr);
  }

  /**
   * Creates a shared receive queue.
   *
   * @throws RdmaError EOPNOTSUPP or EINVAL where the device has none, or none that large
   */
  createSrq(attr: SrqInitAttr = {}): SharedReceiveQueue {
    this.requireOpen();
    return new SharedReceiveQueue(this, attr);
  }

  /**
   * Creates an address handle: where a datagram goes.
   *
   * @throws RdmaError EINVAL for an address that the device refuses, such as one without `grh` on Ethernet
   */
  createAh(attr: AhAttr): AddressHandle {
    this.requireOpen();
    return AddressHandle.create(this, attr);
  }

  /**
   * Creates an address handle for the answer to a datagram.
   *
   * @param wc - its completion
   * @param grh - the first 40 bytes of the memory that it was received in; needed where `wc.wcFlags` has `GRH`
   * @param portNum - the port it came in by. Default 1
   * @see ibv_create_ah_from_wc(3)
   */
  createAhFromWc(wc: WorkCompletion, grh?: Uint8Array, portNum = 1): AddressHandle {
    this.requireOpen();
    return AddressHandle.fromWc(this, wc, grh, portNum);
  }

  /**
   * Allocates a memory window.
   *
   * @param type - `MwType.MW_TYPE_1` or `MW_TYPE_2`
   * @throws RdmaError EOPNOTSUPP where the device has none
   * @see ibv_alloc_mw(3)
   */
  allocMw(type: MwType): MemoryWindow {
    this.requireOpen();
    return new MemoryWindow(this, oneOf(type, 'type', MwType, 'MwType'));
  }

  #allocated(native: NativeMr & { buffer: ArrayBuffer }, length: number, access: number): MemoryRegion {
    const { buffer } = native;
    markAsUntransferable(buffer);
    return new MemoryRegion(this, native, access, { length, view: Buffer.from(buffer), owned: buffer });
  }

  /** Work requests in flight that use an object of this domain. @internal */
  inFlight(region: Resource): number {
    // Nothing completes any more, and nothing is touched: the kernel has taken the device away from the process.
    if (this.lost) return 0;
    let count = 0;
    for (const queue of this.queues) count += queue.uses(region);
    return count;
  }

  /** @internal */
  describe(): string {
    return 'ProtectionDomain';
  }

  /** @internal */
  protected override fields(): object {
    const { context, pd, td } = this;
    return { context: brief(context), pd: pd && brief(pd), td: td && brief(td) };
  }

  protected destroy(): void {
    binding().deallocPd(this.handle);
  }
}
