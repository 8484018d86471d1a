import { abortSignal, oneOf, readOptions } from '../args.ts';
import { RdmaClosedError, RdmaError } from '../errors.ts';
import { binding, connectionManager } from '../native/binding.ts';
import { CmEventType, PortSpace } from '../native/constants.gen.ts';
import type { CmChannelHandle, CmEventsHandle } from '../native/native-cm.ts';
import { Resource } from '../verbs/resource.ts';
import { type AddrInfo, nativeAddrInfo } from './addrinfo.ts';
import { type CmEvent, errorOf, isFailure, readEvents } from './cm-event.ts';
import { CmId } from './cm-id.ts';

interface Waiter {
  /** Where it waits: the channel that its id is on. */
  channel: EventChannel;
  /** The id whose events are waited for; undefined for any. */
  id: CmId | undefined;
  resolve: (event: CmEvent) => void;
  reject: (error: Error) => void;
}

// Whose event it is: a request is the listener's, though its id is a new one.
const ownerOf = (event: CmEvent): CmId => event.listenId ?? event.id;

// Channels that somebody waits on: one that only a pending wait refers to must not be collected.
const waited = new Set<EventChannel>();

/**
 * Creates a channel for the events of the connection manager.
 *
 * @throws RdmaUnavailableError when librdmacm is missing
 * @throws RdmaError ENOENT when the kernel has no connection manager, with what to type; EACCES for its device node;
 *   ENODEV when there is no RDMA device
 * @see rdma_create_event_channel(3)
 */
export function createEventChannel(): EventChannel {
  try {
    return new EventChannel();
  } catch (error) {
    if (!(error instanceof RdmaError)) throw error;
    const hints: Record<string, string> = {
      ENOENT: 'there is no /dev/infiniband/rdma_cm: "modprobe rdma_ucm"',
      ENODEV: 'there is no RDMA device (see diagnose())',
      EACCES: 'no right to open /dev/infiniband/rdma_cm',
    };
    const hint = hints[error.code];
    throw hint === undefined ? error : error.explained(hint);
  }
}

/**
 * A channel of connection events: `struct rdma_event_channel`. Made by `createEventChannel()`.
 *
 * Each event is copied and acknowledged when it is taken, and given out once: to the awaited step of an id that it ends,
 * such as `id.connect()`; else to who waits in `id.getEvent()`, or in `channel.getEvent()` and the iteration; else it
 * is kept until somebody asks. The fd is watched while somebody waits for a step or an event, and only then does it keep
 * the process alive.
 *
 * A channel that is referred to keeps its open ids.
 *
 * @see rdma_create_event_channel(3), rdma_get_cm_event(3)
 */
export class EventChannel extends Resource {
  /** @internal */
  readonly handle: CmChannelHandle;
  readonly #events: CmEventsHandle;
  readonly #ids = new Map<number, CmId>();
  #queue: CmEvent[] = [];
  #waiters: Waiter[] = [];
  #waits = 0;
  #watches = 0;

  /** @internal */
  constructor() {
    const handle = connectionManager().createEventChannel();
    super([]);
    this.handle = handle;
    // Not `this`: the addon holds the callback, which must not hold the channel.
    const self = new WeakRef<EventChannel>(this);
    this.#events = binding().createCmEvents(handle, (...numbers) => {
      const channel = self.deref();
      if (channel) channel.#arrived(numbers);
    });
  }

  /**
   * Creates an id: the connection manager's counterpart of a socket.
   *
   * @param portSpace - `PortSpace.TCP` (the default): reliable connections; `UDP`: datagrams; `IB`: any service of
   *   InfiniBand, reliable connections too
   * @see rdma_create_id(3)
   */
  createId(portSpace: PortSpace = PortSpace.TCP): CmId {
    this.requireOpen();
    const native = binding().createCmId(this.handle, oneOf(portSpace, 'portSpace', PortSpace, 'PortSpace'));
    return new CmId(this, native.handle, native.number);
  }

  /**
   * Creates an id for what `getaddrinfo()` has found: one that is bound to the address, to listen, or one whose address
   * and route are resolved, to connect. Runs on a thread of the pool, for up to 4 seconds.
   *
   * @param addrInfo - one of the list
   * @throws RdmaError as the steps would: EADDRINUSE, ETIMEDOUT, EHOSTUNREACH
   * @see rdma_create_ep(3)
   */
  async createEp(addrInfo: AddrInfo): Promise<CmId> {
    this.requireOpen();
    const wanted = nativeAddrInfo(addrInfo, 'addrInfo');
    return this.track(
      binding()
        .createEp(this.handle, wanted)
        .then(({ handle, number }) => new CmId(this, handle, number)),
    );
  }

  /**
   * The next event, of any id. A wait keeps the process alive.
   *
   * @param options - `signal`: ends the wait
   * @throws RdmaClosedError when the channel is closed meanwhile; the signal's reason when it is aborted
   * @see rdma_get_cm_event(3)
   */
  async getEvent(options: { signal?: AbortSignal } = {}): Promise<CmEvent> {
    this.requireOpen();
    return this.next(undefined, abortSignal(readOptions(options, 'options', ['signal']).signal, 'options.signal'));
  }

  /** The events, one by one, until the channel is closed. */
  async *[Symbol.asyncIterator](): AsyncGenerator<CmEvent, void, void> {
    this.requireOpen();
    while (!this.closed) {
      try {
        yield await this.next(undefined, undefined);
      } catch (error) {
        if (!this.closed) throw error;
      }
    }
  }

  /** The next event of that id, or of any. @internal */
  async next(id: CmId | undefined, signal: AbortSignal | undefined): Promise<CmEvent> {
    signal?.throwIfAborted();
    const index = this.#queue.findIndex((event) => id === undefined || ownerOf(event) === id);
    if (index !== -1) return this.#queue.splice(index, 1)[0] as CmEvent;
    const waiter: Waiter = { channel: this, id, resolve: () => {}, reject: () => {} };
    const abort = () => waiter.reject(signal?.reason as Error);
    signal?.addEventListener('abort', abort, { once: true });
    this.wait(1);
    this.#waiters.push(waiter);
    try {
      return await new Promise<CmEvent>((resolve, reject) => Object.assign(waiter, { resolve, reject }));
    } finally {
      const { channel } = waiter;
      channel.wait(-1);
      channel.#waiters = channel.#waiters.filter((other) => other !== waiter);
      signal?.removeEventListener('abort', abort);
    }
  }

  /** Somebody waits (+1), or no longer does (-1). @internal */
  wait(change: number): void {
    this.#waits += change;
    if (this.#waits === 0) waited.delete(this);
    else waited.add(this);
    this.#poll();
  }

  /** Somebody wants events as they come (+1), but does not keep the process alive for them. @internal */
  watch(change: number): void {
    this.#watches += change;
    this.#poll();
  }

  #poll(): void {
    if (this.closed) return;
    if (this.#waits + this.#watches === 0) binding().stopCmEvents(this.#events);
    else binding().startCmEvents(this.#events, this.#waits > 0);
  }

  /** @internal */
  enter(number: number, id: CmId): void {
    this.#ids.set(number, id);
  }

  /**
   * An id is closed: nobody waits for its events any more, and those that are here go with it, as the kernel drops those that
   * it has. A request is about an id of its own, and stays when the one that listened is closed.
   *
   * @internal
   */
  forget(number: number, id: CmId): void {
    this.#ids.delete(number);
    this.#queue = this.#queue.filter((event) => event.id !== id);
    for (const waiter of this.#waiters) if (waiter.id === id) waiter.reject(new RdmaClosedError(id.describe()));
  }

  /** An id goes to another channel, with its events that are here. @internal */
  give(channel: EventChannel, number: number, id: CmId): void {
    this.#ids.delete(number);
    channel.#ids.set(number, id);
    const waiters = this.#waiters.filter((waiter) => waiter.id === id);
    this.#waiters = this.#waiters.filter((waiter) => waiter.id !== id);
    for (const waiter of waiters) {
      waiter.channel = channel;
      channel.#waiters.push(waiter);
    }
    this.wait(-waiters.length);
    channel.wait(waiters.length);
    channel.#queue.push(...this.#queue.filter((event) => ownerOf(event) === id));
    this.#queue = this.#queue.filter((event) => ownerOf(event) !== id);
  }

  #arrived(numbers: number[]): void {
    const events: [event: CmEvent, other: number][] = [];
    for (const { about, other, ...rest } of readEvents(numbers)) {
      const known = this.#ids.get(about);
      let id = known;
      if (rest.type === CmEventType.CONNECT_REQUEST) {
        id = new CmId(this, binding().takeCmId(this.#events, other), other, rest);
      }
      // The id was closed while its event was under way: nobody is left to be told.
      if (id === undefined) continue;
      const event: CmEvent = { ...rest, id };
      if (id !== known && known) event.listenId = known;
      if (rest.status !== 0 || isFailure(rest.type)) event.error = errorOf('rdma_get_cm_event', rest);
      events.push([event, other]);
    }
    for (const [event, other] of events) if (!event.id.settle(event, other)) this.#deliver(event);
  }

  #deliver(event: CmEvent): void {
    const waiter =
      this.#waiters.find(({ id }) => id === ownerOf(event)) ?? this.#waiters.find(({ id }) => id === undefined);
    if (waiter === undefined) {
      this.#queue.push(event);
      return;
    }
    this.#waiters = this.#waiters.filter((other) => other !== waiter);
    waiter.resolve(event);
  }

  /** @internal */
  describe(): string {
    return 'EventChannel';
  }

  protected override fields(): object {
    return { ids: this.#ids.size, events: this.#queue.length };
  }

  protected readonly destroyVerb = 'rdma_destroy_event_channel';

  protected destroy(): void {
    binding().destroyCmEvents(this.#events);
    binding().destroyEventChannel(this.handle);
    for (const waiter of this.#waiters) waiter.reject(new RdmaClosedError(this.describe()));
  }
}
