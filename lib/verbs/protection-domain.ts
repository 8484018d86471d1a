import { constants } from 'node:buffer';
import { markAsUntransferable } from 'node:worker_threads';
import { boolean, integer, oneOf, readOptions, uint32 } from '../args.ts';
import { RdmaError } from '../errors.ts';
import { brief } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import { AccessFlags, MwType } from '../native/constants.gen.ts';
import type { NativeMr, PdHandle } from '../native/native.ts';
import { AddressHandle, type AhAttr } from './address-handle.ts';
import type { Context } from './context.ts';
import { explainRegistration, MemoryRegion, memoryOf } from './memory-region.ts';
import { MemoryWindow } from './memory-window.ts';
import type { QpInitAttr } from './qp-init-attr.ts';
import { QueuePair } from './queue-pair.ts';
import { Resource } from './resource.ts';
import { SharedReceiveQueue, type SrqInitAttr } from './shared-receive-queue.ts';
import type { WorkCompletion } from './work-completion.ts';
import type { InFlight } from './work-queue.ts';

/** How memory is registered. */
export interface RegMrOptions {
  /**
   * `AccessFlags` joined with `|`: what may be done with the region. Default `LOCAL_WRITE`. Remote write and atomic need
   * LOCAL_WRITE too.
   */
  access?: number;
}

/** How memory is allocated. */
export interface AllocOptions extends RegMrOptions {
  /** Use huge pages of the system's default size (see /proc/sys/vm/nr_hugepages). Default false. */
  hugePages?: boolean;
}

/**
 * A protection domain: `struct ibv_pd`. Memory regions and queue pairs work together only within one.
 *
 * @see ibv_alloc_pd(3)
 */
export class ProtectionDomain extends Resource {
  /** The device it belongs to. */
  readonly context: Context;
  /** @internal */
  readonly handle: PdHandle;
  /** The queues whose requests use its regions. @internal */
  readonly queues = new Set<InFlight>();
  /** How many of its regions were closed: post lists look for closed ones only when it has changed. @internal */
  closings = 0;

  /** @internal */
  constructor(context: Context) {
    const handle = binding().allocPd(context.handle);
    super([context]);
    this.context = context;
    this.handle = handle;
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
    const { access, hugePages } = this.#allocArgs(length, options);
    try {
      // Counted until the region is there, so that the domain cannot be closed in between.
      const pending = binding().allocMr(this.handle, length, access, hugePages);
      return await this.track(pending.then((native) => this.#allocated(native, access)));
    } catch (error) {
      throw this.#explained(error, length, access);
    }
  }

  /** As `alloc()`, but on this thread: it blocks for as long as the pages take to be pinned. */
  allocSync(length: number, options: AllocOptions = {}): MemoryRegion {
    const { access, hugePages } = this.#allocArgs(length, options);
    try {
      return this.#allocated(binding().allocMrSync(this.handle, length, access, hugePages), access);
    } catch (error) {
      throw this.#explained(error, length, access);
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
    const { buffer, view, access } = this.#regArgs(memory, options);
    try {
      const pending = binding().regMr(this.handle, buffer, view.byteOffset, view.byteLength, access);
      return await this.track(pending.then((native) => new MemoryRegion(this, native, view, access)));
    } catch (error) {
      throw this.#explained(error, view.byteLength, access);
    }
  }

  /** As `regMr()`, but on this thread: it blocks for as long as the pages take to be pinned. */
  regMrSync(memory: ArrayBufferView | ArrayBuffer, options: RegMrOptions = {}): MemoryRegion {
    const { buffer, view, access } = this.#regArgs(memory, options);
    try {
      const native = binding().regMrSync(this.handle, buffer, view.byteOffset, view.byteLength, access);
      return new MemoryRegion(this, native, view, access);
    } catch (error) {
      throw this.#explained(error, view.byteLength, access);
    }
  }

  /**
   * Creates a queue pair, in the state RESET. It keeps this domain and both completion queues.
   *
   * @throws TypeError ERR_INVALID_ARG_VALUE for another type than RC, and for a completion queue of another context
   * @throws RdmaError EINVAL when the device cannot grant the capacities (see `context.queryDevice()`); ENOMEM when it
   *   has no more queue pairs
   * @throws CqOverrunError when a completion queue has no room for all that could be in flight
   * @see ibv_create_qp(3)
   */
  createQp(attr: QpInitAttr): QueuePair {
    this.requireOpen();
    return new QueuePair(this, attr);
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

  #allocArgs(length: number, options: AllocOptions): { access: number; hugePages: boolean } {
    this.requireOpen();
    const { access = AccessFlags.LOCAL_WRITE, hugePages = false } = readOptions(options, 'options', [
      'access',
      'hugePages',
    ]);
    // The longest Buffer that Node has: 4 GiB in Node 20.
    integer(length, 'length', 1, constants.MAX_LENGTH);
    return { access: uint32(access, 'options.access'), hugePages: boolean(hugePages, 'options.hugePages') };
  }

  #allocated(native: NativeMr & { buffer: ArrayBuffer }, access: number): MemoryRegion {
    markAsUntransferable(native.buffer);
    return new MemoryRegion(this, native, Buffer.from(native.buffer), access, native.buffer);
  }

  #regArgs(
    memory: ArrayBufferView | ArrayBuffer,
    options: RegMrOptions,
  ): { buffer: ArrayBuffer; view: Buffer; access: number } {
    this.requireOpen();
    const { access = AccessFlags.LOCAL_WRITE } = readOptions(options, 'options', ['access']);
    uint32(access, 'options.access');
    const { buffer, view } = memoryOf(memory);
    markAsUntransferable(buffer);
    return { buffer, view, access };
  }

  #explained(error: unknown, length: number, access: number): unknown {
    return error instanceof RdmaError ? explainRegistration(error, length, access, this.context) : error;
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
    return { context: brief(this.context) };
  }

  protected readonly destroyVerb = 'ibv_dealloc_pd';

  protected destroy(): void {
    binding().deallocPd(this.handle);
  }
}
