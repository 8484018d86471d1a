import { abortSignal, boolean, instance, integer, oneOf, readOptions, uint32, valueError } from '../args.ts';
import { binding } from '../native/binding.ts';
import { QpType } from '../native/constants.gen.ts';
import type { NativeContext, NativeMlx5CqInitAttr } from '../native/native.ts';
import { type AsyncEvent, AsyncEvents } from './async-event.ts';
import { CompletionChannel } from './completion-channel.ts';
import { CompletionQueue, type CqOptions } from './completion-queue.ts';
import { CompletionQueueEx, type CqExOptions, STANDARD_WC_FLAGS } from './completion-queue-ex.ts';
import { Counters } from './counters.ts';
import { DeviceMemory } from './device-memory.ts';
import { DeviceQueries } from './device-queries.ts';
import { ProtectionDomain } from './protection-domain.ts';
import { ReceiveWorkQueue, RwqIndTable, type WqInitAttr } from './receive-work-queue.ts';
import { ThreadDomain } from './thread-domain.ts';
import { XrcDomain, type XrcdInitAttr } from './xrc-domain.ts';
import { XrcRecvQueuePair } from './xrc-recv-queue-pair.ts';

/**
 * An open device: `struct ibv_context`. Made by `openDevice()`. Belongs to the thread that opened it; a worker opens its
 * own.
 */
export class Context extends DeviceQueries {
  /** Completion vectors that events can be spread over. */
  readonly numCompVectors: number;
  /**
   * Descriptor of the device file: who has it, in this process or another one, can import the device and what was made
   * here. A child process gets it by the `stdio` option of `child_process.spawn()`.
   */
  readonly cmdFd: number;
  /** @internal */
  readonly events: AsyncEvents;
  #channel: CompletionChannel | undefined;

  /** @internal */
  constructor(native: NativeContext) {
    super(native);
    this.cmdFd = native.cmdFd;
    const self = new WeakRef(this);
    this.events = new AsyncEvents(native.handle, () => self.deref()?.lose());
    this.numCompVectors = native.numCompVectors;
  }

  /**
   * Waits for the next asynchronous event of the device: a failed queue pair, a port that went down. Events that come
   * while nobody waits are kept for who asks. A wait keeps the process alive.
   *
   * @param options - `signal`: ends the wait
   * @throws RdmaClosedError when the context is closed meanwhile; the signal's reason when it is aborted;
   *   RdmaDeviceLostError behind `DEVICE_FATAL`, which is the last event
   * @see ibv_get_async_event(3)
   */
  async getAsyncEvent(options: { signal?: AbortSignal } = {}): Promise<AsyncEvent> {
    const signal = abortSignal(readOptions(options, 'options', ['signal']).signal, 'options.signal');
    for (;;) {
      signal?.throwIfAborted();
      const event = this.closed ? undefined : this.events.take();
      if (event) return event;
      this.requireOpen();
      await new Promise<void>((resolve) => {
        const wake = () => {
          this.events.removeWaiter(wake);
          signal?.removeEventListener('abort', wake);
          resolve();
        };
        this.events.addWaiter(wake);
        signal?.addEventListener('abort', wake, { once: true });
      });
    }
  }

  /** The asynchronous events, one by one, until the context is closed or the device is lost: `DEVICE_FATAL` is the last. */
  async *asyncEvents(): AsyncGenerator<AsyncEvent, void, void> {
    if (this.closed) this.requireOpen();
    for (;;) {
      let event: AsyncEvent;
      try {
        event = await this.getAsyncEvent();
      } catch (error) {
        if (this.closed || this.lost) return;
        throw error;
      }
      yield event;
    }
  }

  /**
   * Allocates a protection domain.
   *
   * @throws RdmaError ENOMEM when the device has no more
   * @see ibv_alloc_pd(3)
   */
  allocPd(): ProtectionDomain {
    this.requireOpen();
    return new ProtectionDomain(this, binding().allocPd(this.handle));
  }

  /**
   * The domain of another context of the same device file: see `importDevice()`. The context that allocated it
   * deallocates it; closing the imported one only lets go of it.
   *
   * @param handle - its `nativeHandle` there
   * @throws RdmaError ENOENT when there is no such domain; EOPNOTSUPP where the provider has no import
   * @see ibv_import_pd(3)
   */
  importPd(handle: number): ProtectionDomain {
    this.requireOpen();
    const native = binding().importPd(this.handle, uint32(handle, 'handle'));
    return new ProtectionDomain(this, native, { destroyVerb: 'ibv_unimport_pd' });
  }

  /**
   * Allocates a thread domain, for `pd.allocParentDomain()`.
   *
   * @throws RdmaError EOPNOTSUPP where the provider has none
   * @see ibv_alloc_td(3)
   */
  allocTd(): ThreadDomain {
    this.requireOpen();
    return new ThreadDomain(this);
  }

  /**
   * Allocates memory on the device.
   *
   * @param attr - `length`: bytes; `logAlignReq`: the alignment needed, as a power of two, such as 3 for atomics.
   *   Default 0
   * @throws RdmaError EOPNOTSUPP where the device or its provider has none; ENOMEM when it has no more; EINVAL for more
   *   than it has at all
   * @see ibv_alloc_dm(3)
   */
  allocDm(attr: { length: number; logAlignReq?: number }): DeviceMemory {
    this.requireOpen();
    const { length, logAlignReq = 0 } = readOptions(attr, 'attr', ['length', 'logAlignReq']);
    const bytes = integer(length, 'attr.length', 1, Number.MAX_SAFE_INTEGER);
    const native = binding().allocDm(this.handle, bytes, integer(logAlignReq, 'attr.logAlignReq', 0, 63));
    return new DeviceMemory(this, native, bytes, 'ibv_free_dm');
  }

  /**
   * The device memory of another context of the same device file: see `importDevice()`. The context that allocated it
   * frees it; closing the imported one only lets go of it.
   *
   * @param handle - its `nativeHandle` there
   * @param length - its `length` there, which the library does not tell
   * @throws RdmaError ENOENT when there is none; EOPNOTSUPP where the provider, or rdma-core before 35, has no import
   * @see ibv_import_dm(3)
   */
  importDm(handle: number, length: number): DeviceMemory {
    this.requireOpen();
    integer(length, 'length', 1, Number.MAX_SAFE_INTEGER);
    const native = binding().importDm(this.handle, uint32(handle, 'handle'));
    return new DeviceMemory(this, native, length, 'ibv_unimport_dm');
  }

  /**
   * Opens a domain of extended reliable connections.
   *
   * @param attr - the file that names it. Default none: a domain of this object alone
   * @throws RdmaError EOPNOTSUPP where the device has no XRC; EAGAIN for a file that has no domain yet, without `O_CREAT`;
   *   EINVAL for one that has, with `O_EXCL`
   * @see ibv_open_xrcd(3)
   */
  openXrcd(attr: XrcdInitAttr = {}): XrcDomain {
    this.requireOpen();
    return new XrcDomain(this, attr);
  }

  /**
   * Creates a queue pair that belongs to no protection domain: the receiving side of XRC. All others: `pd.createQp()`.
   *
   * @param attr - `qpType`: `QpType.XRC_RECV`. `xrcd`: its domain
   * @throws RdmaError EOPNOTSUPP where the device has no XRC
   * @see ibv_create_qp_ex(3)
   */
  createQp(attr: { qpType: QpType; xrcd: XrcDomain }): XrcRecvQueuePair {
    this.requireOpen();
    const { qpType, xrcd } = readOptions(attr, 'attr', ['qpType', 'xrcd']);
    if (oneOf(qpType, 'attr.qpType', QpType, 'QpType') !== QpType.XRC_RECV) {
      throw valueError(
        'attr.qpType: only XRC_RECV belongs to no protection domain; the others are made by pd.createQp()',
      );
    }
    return new XrcRecvQueuePair(this.#ownXrcd(xrcd), undefined);
  }

  /**
   * Opens another handle to a receiving queue pair of XRC that was made elsewhere: in another process, or by another
   * context. Its `state` is UNKNOWN until `query()`.
   *
   * @param attr - `xrcd`: its domain, opened here by the same file. `qpNum`: its number
   * @throws RdmaError EINVAL when the domain has none of that number; EOPNOTSUPP on mlx5, whose library cannot close such a
   *   handle
   * @see ibv_open_qp(3)
   */
  openQp(attr: { xrcd: XrcDomain; qpNum: number }): XrcRecvQueuePair {
    this.requireOpen();
    const { xrcd, qpNum } = readOptions(attr, 'attr', ['xrcd', 'qpNum']);
    return new XrcRecvQueuePair(this.#ownXrcd(xrcd), integer(qpNum, 'attr.qpNum', 0, 0xff_ffff));
  }

  #ownXrcd(xrcd: XrcDomain | undefined): XrcDomain {
    const domain = instance(xrcd, 'attr.xrcd', XrcDomain);
    domain.requireOpen();
    if (domain.context !== this) throw valueError('attr.xrcd is of another device');
    return domain;
  }

  /**
   * Creates a completion channel. Needed only to keep the events of some queues apart: `createCq()` has one by default.
   *
   * @see ibv_create_comp_channel(3)
   */
  createCompChannel(): CompletionChannel {
    this.requireOpen();
    const channel = new CompletionChannel(this, this.handle);
    this.events.watch();
    return channel;
  }

  /**
   * Creates a completion queue.
   *
   * @param cqe - entries wanted, at least 1; `cq.cqe` says what was granted. It must have room for all completions that
   *   can be outstanding, since one that overflows is lost for good: `pd.createQp()` refuses a queue pair that is too many
   * @throws RdmaError EINVAL when the device has no queues that long
   * @see ibv_create_cq(3)
   */
  createCq(cqe: number, options: CqOptions = {}): CompletionQueue {
    return this.makeCq(cqe, options, undefined);
  }

  /** As `createCq()`, by libmlx5 where it is told so. @internal */
  makeCq(cqe: number, options: CqOptions, mlx5: NativeMlx5CqInitAttr | undefined): CompletionQueue {
    const { channel, compVector, allowOverrun } = this.#cqOptions(cqe, options, []);
    return new CompletionQueue(this, cqe, channel, allowOverrun, (id) => {
      const args = [this.handle, cqe, channel ? channel.handle : null, compVector, id] as const;
      return mlx5 === undefined ? binding().createCq(...args) : binding().mlx5CreateCq(...args, mlx5);
    });
  }

  /**
   * Creates an extended completion queue: one whose completions tell more, such as when they happened.
   *
   * @param cqe - as of `createCq()`
   * @throws RdmaError EOPNOTSUPP for fields, flags or a parent domain that the device does not have; EINVAL as `createCq()`
   * @see ibv_create_cq_ex(3)
   */
  createCqEx(cqe: number, options: CqExOptions = {}): CompletionQueueEx {
    const { channel, compVector, allowOverrun } = this.#cqOptions(cqe, options, ['wcFlags', 'flags', 'parentDomain']);
    const { wcFlags = STANDARD_WC_FLAGS, flags = 0, parentDomain } = options;
    uint32(wcFlags, 'options.wcFlags');
    uint32(flags, 'options.flags');
    if (parentDomain !== undefined) {
      instance(parentDomain, 'options.parentDomain', ProtectionDomain).requireOpen();
      if (parentDomain.context !== this) throw valueError('options.parentDomain is of another device');
      if (!parentDomain.pd) throw valueError('options.parentDomain is none: pd.allocParentDomain() makes one');
    }
    const handles = [channel ? channel.handle : null, parentDomain ? parentDomain.handle : null] as const;
    return new CompletionQueueEx(this, cqe, channel, allowOverrun, wcFlags, flags, parentDomain, (id) =>
      binding().createCqEx(this.handle, cqe, handles[0], compVector, id, wcFlags, flags, handles[1]),
    );
  }

  #cqOptions(
    cqe: number,
    options: CqOptions,
    more: readonly string[],
  ): { channel: CompletionChannel | null; compVector: number; allowOverrun: boolean } {
    this.requireOpen();
    const known = ['channel', 'compVector', 'allowOverrun', ...more];
    const { channel, compVector = 0, allowOverrun = false } = readOptions(options, 'options', known);
    integer(cqe, 'cqe', 1, 0x7fff_ffff);
    integer(compVector, 'options.compVector', 0, Math.max(this.numCompVectors - 1, 0));
    boolean(allowOverrun, 'options.allowOverrun');
    if (channel !== undefined && channel !== null) {
      instance(channel, 'options.channel', CompletionChannel).requireOpen();
      if (channel.context !== this) throw valueError('options.channel is of another device');
    }
    return { channel: channel === undefined ? this.#sharedChannel() : channel, compVector, allowOverrun };
  }

  /**
   * Creates counters for flow steering rules.
   *
   * @throws RdmaError EOPNOTSUPP where the device has none
   * @see ibv_create_counters(3)
   */
  createCounters(): Counters {
    this.requireOpen();
    return new Counters(this);
  }

  /**
   * Creates a receive work queue, in the state RESET.
   *
   * @throws RdmaError EOPNOTSUPP where the device has none, EINVAL or ENOMEM where it has none that large
   * @see ibv_create_wq(3)
   */
  createWq(attr: WqInitAttr): ReceiveWorkQueue {
    this.requireOpen();
    return new ReceiveWorkQueue(this, attr);
  }

  /**
   * Creates a table of receive work queues, for a queue pair with receive side scaling.
   *
   * @param indTbl - the queues: as many as a power of two, of which one may be there several times
   * @throws RdmaError EOPNOTSUPP where the device has none
   * @see ibv_create_rwq_ind_table(3)
   */
  createRwqIndTable(indTbl: readonly ReceiveWorkQueue[]): RwqIndTable {
    this.requireOpen();
    return new RwqIndTable(this, indTbl);
  }

  #sharedChannel(): CompletionChannel {
    if (this.#channel === undefined || this.#channel.closed) this.#channel = this.createCompChannel();
    return this.#channel;
  }

  /** @internal */
  describe(): string {
    return `Context of ${this.name}`;
  }

  /** @internal */
  protected override fields(): object {
    return { name: this.name, numCompVectors: this.numCompVectors };
  }

  protected readonly destroyVerb = 'ibv_close_device';

  protected destroy(): void {
    this.events.close();
    binding().closeDevice(this.handle);
  }

  // The shared channel was made here, so it goes from here, once no queue needs it.
  override close(options: { cascade?: boolean } = {}): void {
    const channel = this.#channel;
    if (channel && !channel.closed && channel.idle) channel.close();
    super.close(options);
  }
}
