import { constants } from 'node:os';
import { abortSignal, instance, integer, oneOf, readOptions, stateError, valueError } from '../args.ts';
import { RdmaClosedError, RdmaError } from '../errors.ts';
import { binding } from '../native/binding.ts';
import { CmEventType, EventType, McJoinFlag, type PortSpace, QpState } from '../native/constants.gen.ts';
import type { CmAddressInfo, CmIdHandle, NativeCmId } from '../native/native-cm.ts';
import type { Context } from '../verbs/context.ts';
import { isIwarp } from '../verbs/iwarp.ts';
import { ProtectionDomain } from '../verbs/protection-domain.ts';
import { namedAttributes, type QpAttr } from '../verbs/qp-attributes.ts';
import type { QpInitAttr } from '../verbs/qp-init-attr.ts';
import type { QueuePair } from '../verbs/queue-pair.ts';
import { Resource } from '../verbs/resource.ts';
import { type CmAddress, socketAddress } from './address.ts';
import type { CmEvent, ConnEvent, RawEvent, UdEvent } from './cm-event.ts';
import { connectCmQp, createCmQp, failCmQp } from './cm-qp.ts';
import { type ConnParam, connParam, granted, isDatagram, privateData } from './conn-param.ts';
import { devicesOpened, sharedContext } from './devices.ts';
import { EventChannel } from './event-channel.ts';
import { Groups } from './groups.ts';
import { type CmIdOptions, idOptions } from './options.ts';
import { type Step, Steps } from './steps.ts';

const E = CmEventType;
const CONNECT_FAILS = [E.CONNECT_ERROR, E.UNREACHABLE, E.REJECTED];

/**
 * An identifier of the connection manager: `struct rdma_cm_id`, its counterpart of a socket. Made by
 * `channel.createId()`, and by connection requests.
 *
 * The steps (`resolveAddr()`, `resolveRoute()`, `connect()`, ...) are promises that the event settles, and reject with a
 * {@link CmError} when it says that the step failed. A step under way keeps the process alive; `close()` rejects it
 * with RdmaClosedError. Aborting a step ends the wait, not the step: its event is given out by the channel then.
 *
 * An id never has a queue pair of librdmacm's own making. `createQp()` makes an ordinary one and keeps it in step with
 * the connection, as `rdma_create_qp` does; or take your own through its states with `initQpAttr()`.
 *
 * @see rdma_cm(7)
 */
export class CmId extends Resource {
  readonly #handle: CmIdHandle;
  readonly #number: number;
  // What a peer asked for, where this id is the answer.
  readonly #request: ConnEvent | undefined;
  #channel: EventChannel;
  readonly #steps: Steps;
  #qp: QueuePair | undefined;
  #isMaking = false;
  #isDisconnected = false;
  readonly #groups = new Groups();
  #watcher: ((event: CmEvent) => void) | undefined;

  /** @internal */
  constructor(channel: EventChannel, handle: CmIdHandle, number: number, request?: Omit<RawEvent, 'about' | 'other'>) {
    super([channel]);
    this.#channel = channel;
    this.#handle = handle;
    this.#number = number;
    this.#request = request?.conn;
    this.#steps = new Steps(channel);
    channel.enter(number, this);
  }

  /** Where its events go. */
  get channel(): EventChannel {
    return this.#channel;
  }

  /** The queue pair that `createQp()` has made, until that is closed. */
  get qp(): QueuePair | undefined {
    return this.#qp?.closed === false ? this.#qp : undefined;
  }

  /** Port space: what kind of connections. */
  get portSpace(): PortSpace {
    return this.#query().portSpace as PortSpace;
  }

  /** Name of the device that it is bound to, or null: not yet, or to all. */
  get device(): string | null {
    return this.#query().device;
  }

  /** Port of that device, from 1; 0 when there is none. */
  get portNum(): number {
    return this.#query().portNum;
  }

  /**
   * The device that it is bound to, or null. Opened at the first use and shared by all ids of this thread: an ordinary
   * Context, which is yours to close. (`id->verbs` in C is one of librdmacm's own, which nobody may close.)
   */
  get verbs(): Context | null {
    const name = this.device;
    return name === null ? null : sharedContext(name);
  }

  /** Its own address, or null when it has none yet. @see rdma_get_local_addr(3), rdma_get_src_port(3) */
  getLocalAddr(): CmAddressInfo | null {
    return this.#query().localAddr;
  }

  /** The peer's address, or null when it has none yet. @see rdma_get_peer_addr(3), rdma_get_dst_port(3) */
  getPeerAddr(): CmAddressInfo | null {
    return this.#query().peerAddr;
  }

  /**
   * Sets options. Each is for a time before it is needed; later it has no effect, or the kernel refuses it.
   *
   * @throws RdmaError ENOSYS or EINVAL where the kernel does not know it, or it is too late
   * @see rdma_set_option(3)
   */
  setOption(options: CmIdOptions): void {
    this.requireOpen();
    for (const [option, value] of idOptions(options)) binding().setCmOption(this.#handle, option, value);
  }

  /**
   * Gives it an address of this machine. With one of a device it is bound to that device too; a wildcard (`'0.0.0.0'`,
   * `'::'`) is any address of any device.
   *
   * @throws RdmaError EADDRINUSE; EADDRNOTAVAIL or ENODEV when no device has the address; EINVAL when it has one already
   * @see rdma_bind_addr(3)
   */
  async bindAddr(address: CmAddress): Promise<void> {
    const [ip, port] = socketAddress(address, 'address');
    this.requireOpen();
    await devicesOpened();
    this.requireOpen();
    binding().bindAddr(this.#handle, ip, port);
  }

  /**
   * Finds the device by which a peer is reached, and binds the id to it.
   *
   * @param dst - the peer's address
   * @param options - `src`: this side's address; default by the routes of the system. `timeoutMs`: default 2000. `signal`:
   *   ends the wait
   * @throws CmError with the event ADDR_ERROR: ETIMEDOUT, EHOSTUNREACH, ENODEV when the way there is by no RDMA device;
   *   RdmaError likewise when it is known at once
   * @see rdma_resolve_addr(3)
   */
  async resolveAddr(
    dst: CmAddress,
    options: { src?: CmAddress; timeoutMs?: number; signal?: AbortSignal } = {},
  ): Promise<CmEvent> {
    const { src, timeoutMs = 2000, signal } = readOptions(options, 'options', ['src', 'timeoutMs', 'signal']);
    const [dstIp, dstPort] = socketAddress(dst, 'dst');
    const [srcIp, srcPort] = src === undefined ? [null, 0] : socketAddress(src, 'options.src');
    integer(timeoutMs, 'options.timeoutMs', 1, 0x7fff_ffff);
    const start = async () => {
      await devicesOpened();
      this.requireOpen();
      binding().resolveAddr(this.#handle, dstIp, dstPort, srcIp, srcPort, timeoutMs);
    };
    return this.#step(
      { operation: 'rdma_resolve_addr', ends: [E.ADDR_RESOLVED], fails: [E.ADDR_ERROR], start },
      signal,
    );
  }

  /**
   * Finds the route to the peer, once its address is resolved.
   *
   * @param options - `timeoutMs`: default 2000. `signal`: ends the wait
   * @throws CmError with the event ROUTE_ERROR; RdmaError EINVAL when the address is not resolved
   * @see rdma_resolve_route(3)
   */
  async resolveRoute(options: { timeoutMs?: number; signal?: AbortSignal } = {}): Promise<CmEvent> {
    const { timeoutMs = 2000, signal } = readOptions(options, 'options', ['timeoutMs', 'signal']);
    integer(timeoutMs, 'options.timeoutMs', 1, 0x7fff_ffff);
    const start = () => binding().resolveRoute(this.#handle, timeoutMs);
    return this.#step(
      { operation: 'rdma_resolve_route', ends: [E.ROUTE_RESOLVED], fails: [E.ROUTE_ERROR], start },
      signal,
    );
  }

  /**
   * Creates a queue pair for the connection: an ordinary one, which this id takes through its states. It is in INIT, so
   * that receives can be posted, or for datagrams in RTS. Close it before or after the id.
   *
   * @param pd - of the device that the id is bound to, whoever has opened it
   * @param attr - as for `pd.createQp()`; the default of `qpType` is by the port space
   * @throws RdmaError EINVAL when the id is not bound to a device; TypeError when `pd` is of another one
   * @see rdma_create_qp(3)
   */
  async createQp(pd: ProtectionDomain, attr: QpInitAttr): Promise<QueuePair> {
    instance(pd, 'pd', ProtectionDomain).requireOpen();
    const { device, portSpace } = this.#query();
    if (device === null) {
      throw new RdmaError('rdma_create_qp', constants.errno.EINVAL, 'the id is not bound to a device yet');
    }
    if (pd.context.name !== device) {
      throw valueError(`pd is of ${pd.context.name}, but the id is bound to ${device}`);
    }
    if (this.qp || this.#isMaking) throw stateError('This id has a queue pair');
    this.#isMaking = true;
    try {
      this.#qp = await createCmQp(this, pd, attr, isDatagram(portSpace));
      return this.#qp;
    } finally {
      this.#isMaking = false;
    }
  }

  /**
   * The attributes that take a queue pair of this connection to a state, for `qp.modify()`: for who makes the queue pair
   * himself. INIT once there is a device, RTR and RTS once the peer has asked or answered.
   *
   * @param qpState - INIT, RTR or RTS
   * @throws RdmaError EINVAL when it is too early
   * @see rdma_init_qp_attr(3)
   */
  initQpAttr(qpState: QpState): QpAttr {
    this.requireOpen();
    const state = oneOf(qpState, 'qpState', QpState, 'QpState');
    const { mask, attr } = binding().initQpAttr(this.#handle, state);
    return namedAttributes(attr, mask);
  }

  /**
   * Listens for connection requests, or with datagrams for look-ups. Each is an event CONNECT_REQUEST with an id of its
   * own.
   *
   * @param backlog - requests that may wait to be taken; the peers of more ask again. Default 0: as many as the kernel allows
   *   (/proc/sys/net/rdma_ucm/max_backlog)
   * @throws RdmaError EADDRINUSE when another id listens there; EINVAL when it is too late
   * @see rdma_listen(3)
   */
  listen(backlog = 0): void {
    this.requireOpen();
    binding().listenCmId(this.#handle, integer(backlog, 'backlog', 0, 0x7fff_ffff));
  }

  /**
   * Connects to the peer, or with datagrams asks for the peer's queue pair.
   *
   * With a queue pair of `createQp()` the connection stands when the promise resolves, with ESTABLISHED. Without one the
   * event is CONNECT_RESPONSE: take your queue pair to RTS by `initQpAttr()`, and call `establish()`.
   *
   * @param param - the parameters of the connection
   * @param options - `signal`: ends the wait. The kernel gives up by itself after a minute or so
   * @returns the event, with what the peer sent along
   * @throws CmError ECONNREFUSED with the event REJECTED and its reason, or `privateData` of who refused; ETIMEDOUT with
   *   UNREACHABLE; RdmaError EINVAL before the route is resolved
   * @see rdma_connect(3)
   */
  async connect(param: ConnParam = {}, options: { signal?: AbortSignal } = {}): Promise<CmEvent> {
    const { signal } = readOptions(options, 'options', ['signal']);
    const native = connParam(param, 'connect', this.#query(), this.qp);
    const start = () => binding().connectCmId(this.#handle, native);
    const ends = [E.ESTABLISHED, E.CONNECT_RESPONSE];
    const event = await this.#step({ operation: 'rdma_connect', ends, fails: CONNECT_FAILS, start }, signal);
    const { qp } = this;
    // On iWARP it is the transport that takes it to RTS.
    if (event.type === E.ESTABLISHED) qp?.query();
    if (event.type !== E.CONNECT_RESPONSE || qp === undefined) return event;
    try {
      await connectCmQp(this, qp);
      this.establish();
    } catch (error) {
      await failCmQp(qp);
      throw error;
    }
    return { ...event, type: E.ESTABLISHED, name: 'ESTABLISHED' };
  }

  /**
   * Accepts the connection request that brought this id.
   *
   * A queue pair of `createQp()` is taken to RTS before; one of your own must be in RTR, and its number in `param`.
   *
   * @param param - the parameters of the connection
   * @param options - `signal`: ends the wait
   * @returns when the connection stands; with datagrams at once
   * @throws CmError when the peer does not confirm it: ETIMEDOUT, ECONNREFUSED, ECONNRESET; RdmaError EINVAL for an id
   *   that no request has brought
   * @see rdma_accept(3)
   */
  async accept(param: ConnParam = {}, options: { signal?: AbortSignal } = {}): Promise<void> {
    const { signal } = readOptions(options, 'options', ['signal']);
    const { qp } = this;
    const id = this.#query();
    const native = connParam(param, 'accept', id, qp);
    if (isDatagram(id.portSpace)) {
      binding().acceptCmId(this.#handle, native);
      return;
    }
    if (qp) {
      const request = this.#request;
      const device = qp.pd.context.queryDevice();
      native.responderResources = granted(native.responderResources, device.maxQpRdAtom, request?.responderResources);
      native.initiatorDepth = granted(native.initiatorDepth, device.maxQpInitRdAtom, request?.initiatorDepth);
      const rtr = { maxDestRdAtomic: native.responderResources };
      await connectCmQp(this, qp, rtr, { maxRdAtomic: native.initiatorDepth });
    }
    const start = () => binding().acceptCmId(this.#handle, native);
    try {
      const fails = [...CONNECT_FAILS, E.DISCONNECTED];
      await this.#step({ operation: 'rdma_accept', ends: [E.ESTABLISHED], fails, start }, signal);
      if (isIwarp(id)) qp?.query();
    } catch (error) {
      await failCmQp(qp);
      throw error;
    }
  }

  /**
   * Rejects the connection request that brought this id. Close it then.
   *
   * @param data - the reason, for the peer's program: `CmError.privateData` there, with zeros behind it
   * @throws RdmaError EINVAL for an id that no request has brought, or that was answered already
   * @see rdma_reject(3)
   */
  reject(data?: Uint8Array | string): void {
    const bytes = privateData(data, 'data', 'reject', this.#query());
    binding().rejectCmId(this.#handle, bytes);
  }

  /**
   * Confirms the peer's acceptance, for an id without a queue pair, once your own is in RTS.
   *
   * @see rdma_establish(3)
   */
  establish(): void {
    this.requireOpen();
    binding().establishCmId(this.#handle);
  }

  /**
   * Tells the connection manager of an asynchronous event of a queue pair: `EventType.COMM_EST`, that a message has
   * come before the peer's confirmation, which then counts as given.
   *
   * @see rdma_notify(3)
   */
  notify(eventType: EventType): void {
    this.requireOpen();
    binding().notifyCmId(this.#handle, oneOf(eventType, 'eventType', EventType, 'EventType'));
  }

  /**
   * Ends the connection: a queue pair of `createQp()` goes to the error state, which flushes its requests, and the peer is
   * told. Also the answer to a DISCONNECTED of the peer.
   *
   * @param options - `signal`: ends the wait; a peer that is dead is waited for for a minute or so
   * @returns when the peer has answered
   * @throws RdmaError EINVAL when there is no connection
   * @see rdma_disconnect(3)
   */
  async disconnect(options: { signal?: AbortSignal } = {}): Promise<void> {
    const { signal } = readOptions(options, 'options', ['signal']);
    const { qp } = this;
    // An iWARP queue pair drains first, and is closed by its transport: the event may be there before the call of
    // rdma_disconnect(), and is waited for from here on.
    const drains = qp !== undefined && isIwarp(qp.context);
    if (qp && !drains) await qp.modify({ qpState: QpState.ERR });
    this.requireOpen();
    const start = async () => {
      if (drains) await qp.modify({ qpState: QpState.SQD });
      this.requireOpen();
      binding().disconnectCmId(this.#handle);
    };
    if (this.#isDisconnected) return start();
    await this.#step({ operation: 'rdma_disconnect', ends: [E.DISCONNECTED], fails: [], start }, signal);
  }

  /**
   * Moves the id, with its events that nobody has taken yet, to another channel.
   *
   * @see rdma_migrate_id(3)
   */
  migrate(channel: EventChannel): void {
    this.requireOpen();
    instance(channel, 'channel', EventChannel).requireOpen();
    const from = this.#channel;
    if (channel === from) return;
    binding().migrateCmId(this.#handle, channel.handle);
    this.#channel = channel;
    this.moveTo(from, channel);
    from.give(channel, this.#number, this);
    this.#steps.moveTo(channel);
    if (this.#watcher === undefined) return;
    from.watch(-1);
    channel.watch(1);
  }

  /**
   * Joins a multicast group, with datagrams. A queue pair of `createQp()` is attached to it.
   *
   * @param address - the group's, of IPv4 or IPv6
   * @param options - `joinFlag`: default `McJoinFlag.FULLMEMBER`. `signal`: ends the wait
   * @returns where to send to, with the group's Q_Key
   * @throws CmError with the event MULTICAST_ERROR; RdmaError EINVAL when the id is bound to no device
   * @see rdma_join_multicast(3)
   */
  async joinMulticast(
    address: CmAddress,
    options: { joinFlag?: McJoinFlag; signal?: AbortSignal } = {},
  ): Promise<UdEvent> {
    const { joinFlag, signal } = readOptions(options, 'options', ['joinFlag', 'signal']);
    const [ip, port] = socketAddress(address, 'address');
    if (joinFlag !== undefined) oneOf(joinFlag, 'options.joinFlag', McJoinFlag, 'McJoinFlag');
    const join = this.#groups.enter(ip, port, joinFlag === McJoinFlag.SENDONLY_FULLMEMBER);
    const start = () => binding().joinMulticast(this.#handle, ip, port, joinFlag ?? null, join);
    const [ends, fails] = [[E.MULTICAST_JOIN], [E.MULTICAST_ERROR]];
    const operation = joinFlag === undefined ? 'rdma_join_multicast' : 'rdma_join_multicast_ex';
    try {
      const event = await this.#step({ operation, ends, fails, join, start }, signal);
      const ud = event.ud as UdEvent;
      if (this.qp) this.#groups.attach(join, this.qp, ud);
      return ud;
    } catch (error) {
      this.#groups.delete(join);
      throw error;
    }
  }

  /**
   * Leaves a multicast group; `close()` leaves all.
   *
   * @param address - as it was joined
   * @throws RdmaError EADDRNOTAVAIL when it was not
   * @see rdma_leave_multicast(3)
   */
  leaveMulticast(address: CmAddress): void {
    this.requireOpen();
    const [ip, port] = socketAddress(address, 'address');
    this.#groups.leave(ip, port);
    binding().leaveMulticast(this.#handle, ip, port);
  }

  /**
   * The next event of this id that no step has taken: CONNECT_REQUEST of one that listens, DISCONNECTED of one that is
   * connected. A wait keeps the process alive.
   *
   * @param options - `signal`: ends the wait
   * @throws RdmaClosedError when the id is closed meanwhile; the signal's reason when it is aborted
   */
  async getEvent(options: { signal?: AbortSignal } = {}): Promise<CmEvent> {
    this.requireOpen();
    const signal = abortSignal(readOptions(options, 'options', ['signal']).signal, 'options.signal');
    return this.#channel.next(this, signal);
  }

  /** Gives the events that no step takes to a function, without keeping the process alive for them. @internal */
  watch(watcher: (event: CmEvent) => void): void {
    this.#watcher = watcher;
    this.#channel.watch(1);
  }

  /** An event has come; true when a step has taken it. @internal */
  settle(event: CmEvent, join: number): boolean {
    const { type } = event;
    if (type === E.DISCONNECTED) this.#isDisconnected = true;
    const group = this.#groups.addressOf(join);
    if (group !== undefined && (type === E.MULTICAST_JOIN || type === E.MULTICAST_ERROR)) event.group = group;
    if (this.#steps.settle(event, join)) return true;
    this.#watcher?.(event);
    return this.#watcher !== undefined;
  }

  #step(step: Step, signal: unknown): Promise<CmEvent> {
    this.requireOpen();
    return this.#steps.run(step, signal);
  }

  #query(): NativeCmId {
    this.requireOpen();
    return binding().queryCmId(this.#handle);
  }

  /** @internal */
  describe(): string {
    return `CmId ${this.#number}`;
  }

  protected override fields(): object {
    if (this.closed) return { number: this.#number };
    const { device, localAddr, peerAddr } = this.#query();
    const text = (address: CmAddressInfo | null) => (address ? `${address.address} port ${address.port}` : undefined);
    return { number: this.#number, device, localAddr: text(localAddr), peerAddr: text(peerAddr), qp: this.qp?.qpNum };
  }

  protected readonly destroyVerb = 'rdma_destroy_id';

  protected destroy(): void {
    this.#groups.leaveAll();
    binding().destroyCmId(this.#handle);
    this.#channel.forget(this.#number, this);
    if (this.#watcher) this.#channel.watch(-1);
    this.#steps.rejectAll(new RdmaClosedError(this.describe()));
  }
}
