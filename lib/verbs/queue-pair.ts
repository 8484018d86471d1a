import { constants } from 'node:os';
import { instance, integer, rangeError, readOptions, uint32, valueError } from '../args.ts';
import { PostError, RdmaClosedError, RdmaDeviceLostError, RdmaError, RdmaQpFailedError } from '../errors.ts';
import { brief, nameOf, word } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import { AccessFlags, EventType, MwType, QpState, QpType, SendFlags, SendOpsFlags } from '../native/constants.gen.ts';
import type { NativeMlx5QpInitAttr } from '../native/native.ts';
import { GRH_BYTES } from './address-handle.ts';
import { AnyQueuePair } from './any-queue-pair.ts';
import { claimsOf } from './completion-claims.ts';
import type { CompletionQueue } from './completion-queue.ts';
import { formatGid, parseGid } from './gid.ts';
import { MemorySlice } from './memory-region.ts';
import { MemoryWindow } from './memory-window.ts';
import { elementsOf } from './post-list.ts';
import type { ProtectionDomain } from './protection-domain.ts';
import { checkInitAttr, explained, type QpInitAttr } from './qp-init-attr.ts';
import { DCI } from './qp-transitions.ts';
import { RecvList, type RecvWr } from './recv-list.ts';
import type { Resource } from './resource.ts';
import { SendList } from './send-list.ts';
import type { SendWr } from './send-wr.ts';
import type { SharedReceiveQueue } from './shared-receive-queue.ts';
import { eventTypeStr } from './text.ts';
import { type InFlight, type Using, WorkQueue } from './work-queue.ts';

const { RESET, INIT, RTR, RTS, SQD, SQE, ERR } = QpState;
const states = (...list: number[]) => list.reduce((bits, state) => bits | (1 << state), 0);
// InfiniBand specification, volume 1, section 10.3.1. Before RTS libibverbs' providers do not refuse a send: they leave
// it in the queue, even where they report an error, so it has to be refused here.
const SENDABLE = states(RTS, SQD, SQE, ERR);
const RECEIVABLE = states(INIT, RTR, RTS, SQD, SQE, ERR);

const { BIND_MW } = SendOpsFlags;
const { REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC, ZERO_BASED } = AccessFlags;
const WINDOW_ACCESS = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | ZERO_BASED;

// What libmlx5 makes by its own function: DRIVER is a DC initiator.
const MLX5_TYPES = [QpType.RC, QpType.UC, QpType.UD, QpType.RAW_PACKET, QpType.XRC_SEND, QpType.DRIVER];

// Requests that one call of postSend() or postRecv() encodes before it posts them.
const LIST_CAPACITY = 64;

// Queue pairs that were collected open leave their queues' places.
const collected = new FinalizationRegistry<() => void>((leave) => leave());

/**
 * A queue pair: `struct ibv_qp`. Made by `pd.createQp()`, in the state RESET.
 *
 * @see ibv_create_qp(3), ibv_modify_qp(3), ibv_post_send(3), ibv_post_recv(3)
 */
export class QueuePair extends AnyQueuePair {
  /** The domain it belongs to. */
  readonly pd: ProtectionDomain;
  /** Where send requests complete. */
  readonly sendCq: CompletionQueue;
  /** Where receives complete. */
  readonly recvCq: CompletionQueue;
  /** Where receives are taken from, or null: from its own receive queue. */
  readonly srq: SharedReceiveQueue | null;
  /** What it can send by extended posting, as `SendOpsFlags` joined with `|`; undefined where it posts by `ibv_post_send()`. */
  readonly sendOpsFlags: number | undefined;

  readonly #sendQueue: WorkQueue;
  readonly #recvQueue: WorkQueue;
  readonly #sends: SendList;
  readonly #recvs: RecvList;
  readonly #leave: () => void;
  // Multicast groups that it is in.
  readonly #groups = new Map<string, readonly [gid: Buffer, mlid: number]>();
  /** Told when it is closed, when its device is lost, and when an event says that it has failed. @internal */
  onGone: ((error: Error) => void) | undefined;

  /** @internal */
  constructor(pd: ProtectionDomain, attr: QpInitAttr, mlx5?: NativeMlx5QpInitAttr) {
    const { sendCq, recvCq, srq, sendOpsFlags, native } = checkInitAttr(pd, attr, mlx5 && MLX5_TYPES);
    const { cap, qpType } = native;
    const { maxSendWr, maxRecvWr } = cap;
    const claims = claimsOf(sendCq, recvCq, { sends: maxSendWr, recvs: maxRecvWr, srq });
    for (const [cq, claim] of claims) cq.requireRoom(claim, 'ibv_create_qp');
    const srqHandle = srq ? srq.handle : null;
    const recvHandle = qpType === QpType.XRC_SEND ? null : recvCq.handle;
    const args = [pd.handle, sendCq.handle, recvHandle, srqHandle, native] as const;
    const created = explained(pd, native, () =>
      mlx5 === undefined ? binding().createQp(...args) : binding().mlx5CreateQp(...args, mlx5),
    );
    // As many as were asked for may be in flight, since so many were counted: see completion-claims.ts.
    Object.assign(cap, { maxSendWr, maxRecvWr });
    // What a provider writes there for a queue pair that takes from a shared queue is not a capacity.
    if (srq) cap.maxRecvSge = 0;
    const parents = [...new Set<Resource>([pd, sendCq, recvCq]), ...(srq ? [srq] : [])];
    super(parents, pd.context, created, qpType, cap, RESET);
    this.pd = pd.root;
    this.sendCq = sendCq;
    this.recvCq = recvCq;
    this.srq = srq;
    this.sendOpsFlags = sendOpsFlags;
    this.#sendQueue = new WorkQueue(maxSendWr);
    this.#recvQueue = new WorkQueue(maxRecvWr);
    this.#sends = this.#sendList(Math.min(maxSendWr, LIST_CAPACITY));
    this.#recvs = this.#recvList(Math.min(maxRecvWr, LIST_CAPACITY));
    for (const [cq, claim] of claims) cq.claims.add(this, claim);
    const queues = [this.#sendQueue, this.#recvQueue];
    for (const queue of queues) this.pd.queues.add(queue);
    this.#leave = leaver(queues, this.pd.queues);
    collected.register(this, this.#leave, this.#leave);
  }

  /** Send requests in flight: posted, and neither completed nor known to be by a later completion. */
  get sendsInFlight(): number {
    return this.#sendQueue.length;
  }

  /** Receives in flight. */
  get recvsInFlight(): number {
    return this.#recvQueue.length;
  }

  /**
   * Posts send requests, in their order. The memory they use is held until their completion, or a later one of this queue,
   * was polled.
   *
   * @param wrs - one, or a list
   * @throws TypeError or RangeError naming the field, and nothing is posted
   * @throws PostError ENOMEM when the queue is full: `index` is the first that was not posted, those before it are
   * @throws PostError with the provider's errno when it refuses one, likewise
   * @throws RdmaError EINVAL before RTS: a queue pair that cannot send would keep the request, and send it later
   */
  postSend(wrs: SendWr | readonly SendWr[]): void {
    if (this.#sends.length === 0) this.#hasNone('maxSendWr');
    if (!Array.isArray(wrs)) this.#sends.postOne(wrs as SendWr);
    else if (wrs.length > 0) this.#sends.postAll(wrs);
    else this.requireOpen();
  }

  /**
   * Posts receives, in their order. The memory they use is held until their completion was polled.
   *
   * @param wrs - one, or a list
   * @throws as `postSend()`; EINVAL in the state RESET
   */
  postRecv(wrs: RecvWr | readonly RecvWr[]): void {
    if (this.#recvs.length === 0) this.#hasNone('maxRecvWr');
    if (!Array.isArray(wrs)) this.#recvs.postOne(wrs as RecvWr);
    else if (wrs.length > 0) this.#recvs.postAll(wrs);
    else this.requireOpen();
  }

  /**
   * Prepares a list of send requests that can be posted again and again, each time with one call, and changed in place.
   *
   * @param wrs - one, or a list of at most `cap.maxSendWr`
   */
  prepareSend(wrs: SendWr | readonly SendWr[]): SendList {
    const requests = this.#preparable(wrs, this.cap.maxSendWr, 'maxSendWr');
    const list = this.#sendList(requests.length);
    requests.forEach((wr, i) => list.encode(i, wr, `wrs[${i}]`));
    return list;
  }

  /** As `prepareSend()`, for receives; at most `cap.maxRecvWr`. */
  prepareRecv(wrs: RecvWr | readonly RecvWr[]): RecvList {
    const requests = this.#preparable(wrs, this.cap.maxRecvWr, 'maxRecvWr');
    const list = this.#recvList(requests.length);
    requests.forEach((wr, i) => list.encode(i, wr, `wrs[${i}]`));
    return list;
  }

  /**
   * Binds a memory window to a part of a region: one request on the send queue, which completes as `WcOpcode.BIND_MW`.
   *
   * @param mw - the window. Type 1 by a verb of its own, type 2 by a work request
   * @param request - `local`: what the window gives access to; its region needs `AccessFlags.MW_BIND`, and LOCAL_WRITE for
   *   remote writes. A slice of 0 bytes unbinds a window of type 1. `access`: what the peer may do: REMOTE_WRITE,
   *   REMOTE_READ, REMOTE_ATOMIC. `wrId`, `sendFlags`: as in `postSend()`
   * @returns the window's new key, which is valid once the binding has completed; `mw.remote()` has it too
   * @throws RdmaError as `postSend()`; EINVAL and EOPNOTSUPP where the device refuses
   * @see ibv_bind_mw(3), IBV_WR_BIND_MW of ibv_post_send(3)
   */
  bindMw(mw: MemoryWindow, request: { local: MemorySlice; access: number; wrId?: number; sendFlags?: number }): number {
    this.requireOpen();
    instance(mw, 'mw', MemoryWindow).requireOpen();
    const known = ['local', 'access', 'wrId', 'sendFlags'];
    const { local, access, wrId = 0, sendFlags = SendFlags.SIGNALED } = readOptions(request, 'request', known);
    const slice = instance(local, 'request.local', MemorySlice);
    slice.region.requireOpen();
    if (mw.pd !== this.pd || slice.region.pd !== this.pd) {
      throw valueError('mw, request.local and the queue pair must be of one protection domain');
    }
    uint32(access, 'request.access');
    if (((access as number) & ~WINDOW_ACCESS) !== 0)
      throw rangeError('request.access must be REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC, ZERO_BASED, joined with |');
    integer(wrId, 'request.wrId', 0, Number.MAX_SAFE_INTEGER);
    uint32(sendFlags, 'request.sendFlags');
    if (mw.type === MwType.MW_TYPE_2 && this.sendOpsFlags !== undefined && (this.sendOpsFlags & BIND_MW) === 0) {
      throw valueError('mw: the queue pair was created with sendOpsFlags without BIND_MW');
    }
    // Its window would be for this queue pair alone, and libmlx5 does not refuse type 1 but posts nonsense.
    if (this.qpType === QpType.DRIVER) throw valueError('mw: nobody reaches memory through a DC initiator');
    const queue = this.#sendQueue;
    if (!queue.postable) this.refuse('ibv_bind_mw');
    if (queue.length === queue.capacity) {
      throw new PostError('ibv_bind_mw', constants.errno.ENOMEM, 0, `the queue is full: ${queue.length} are in flight`);
    }
    const { length, region } = slice;
    const addr = region.addr + BigInt(slice.offset);
    const flags = sendFlags & ~SendFlags.INLINE;
    const rkey = binding().bindMw(
      this.handle,
      mw.handle,
      region.handle,
      addr,
      length,
      access as number,
      flags,
      queue.id,
      wrId,
    );
    queue.hold(1, [[region, mw]], false);
    mw.bound(rkey, addr, length);
    return rkey;
  }

  /**
   * Joins a multicast group, for a UD queue pair: its datagrams are received from then on. The kernel destroys no queue
   * pair that is in one: `close()` says EBUSY until it has left them all, and leaves them itself with `cascade`.
   *
   * @param mgid - the group's GID
   * @param mlid - the group's local identifier; 0 on Ethernet
   * @throws RdmaError EOPNOTSUPP where the device has no groups
   * @see ibv_attach_mcast(3)
   */
  attachMcast(mgid: string, mlid = 0): void {
    this.requireOpen();
    const gid = parseGid(mgid, 'mgid');
    binding().attachMcast(this.handle, gid, integer(mlid, 'mlid', 0, 0xffff));
    this.#groups.set(groupName(gid, mlid), [gid, mlid]);
  }

  /**
   * Leaves a multicast group.
   *
   * @throws RdmaError EINVAL when it is not in it; EOPNOTSUPP where the device has no groups
   * @see ibv_detach_mcast(3)
   */
  detachMcast(mgid: string, mlid = 0): void {
    this.requireOpen();
    this.#detach(parseGid(mgid, 'mgid'), integer(mlid, 'mlid', 0, 0xffff));
  }

  #detach(gid: Buffer, mlid: number): void {
    binding().detachMcast(this.handle, gid, mlid);
    this.#groups.delete(groupName(gid, mlid));
  }

  #preparable<T>(wrs: T | readonly T[], max: number, name: string): readonly T[] {
    this.requireOpen();
    const list = Array.isArray(wrs) ? elementsOf(wrs as readonly T[], max + 1) : [wrs as T];
    if (list.length < 1 || list.length > max) {
      throw rangeError(`wrs must have from 1 to ${max} requests (${name}), not ${(wrs as readonly T[]).length}`);
    }
    return list;
  }

  #hasNone(name: string): never {
    if (this.srq && name === 'maxRecvWr')
      throw valueError('This queue pair takes its receives from srq: post them there');
    throw rangeError(`This queue pair was made with ${name} 0`);
  }

  /** @internal */
  refuse(verb: string): never {
    this.requireOpen();
    const state = nameOf(QpState, this.state);
    throw new RdmaError(verb, constants.errno.EINVAL, `the queue pair is in state ${state}`);
  }

  #sendList(length: number): SendList {
    const shared = binding().createSendList(
      this.handle,
      length,
      this.cap.maxSendSge,
      this.#sendQueue.id,
      this.qpType === QpType.UD || this.qpType === QpType.DRIVER,
    );
    return new SendList(this, this.#sendQueue, shared, length, this.cap, this.qpType, this.sendOpsFlags);
  }

  #recvList(length: number): RecvList {
    const shared = binding().createRecvList(this.handle, length, this.cap.maxRecvSge, this.#recvQueue.id);
    return new RecvList(
      this,
      this.#recvQueue,
      shared,
      length,
      this.cap.maxRecvSge,
      'ibv_post_recv',
      this.qpType === QpType.UD ? GRH_BYTES : 0,
    );
  }

  protected override get transitions(): number {
    return this.qpType === QpType.DRIVER ? DCI : this.qpType;
  }

  /** A reset takes completions out of the completion queues, and tells a shared receive queue of them. @internal */
  protected override changesHere({ qpState }: { qpState?: QpState }): boolean {
    return qpState === RESET && (this.srq !== null || this.sendCq.isSingleThreaded || this.recvCq.isSingleThreaded);
  }

  /** @internal */
  protected override entered(state: number): void {
    this.#sendQueue.postable = (SENDABLE & (1 << state)) !== 0;
    this.#recvQueue.postable = (RECEIVABLE & (1 << state)) !== 0;
    // The device forgets what was posted, and makes no completions of it.
    if (state === RESET) for (const queue of [this.#sendQueue, this.#recvQueue]) queue.clear();
  }

  /** @internal */
  protected override fields(): object {
    const { maxSendWr, maxRecvWr } = this.cap;
    return {
      ...super.fields(),
      sendsInFlight: word(`${this.sendsInFlight} of ${maxSendWr}`),
      recvsInFlight: this.srq ? undefined : word(`${this.recvsInFlight} of ${maxRecvWr}`),
      srq: this.srq ? brief(this.srq) : undefined,
    };
  }

  /** @internal */
  override failed(event: EventType): void {
    const text = eventTypeStr(event);
    this.onGone?.(new RdmaQpFailedError(this.describe(), event, nameOf(EventType, event), text));
  }

  /** @internal */
  protected override busyReasons(): string[] {
    // Of a device that is gone it is in none.
    return this.lost ? [] : [...this.#groups.keys()];
  }

  /** @internal */
  protected override onCascade(): void {
    if (!this.lost) for (const [gid, mlid] of [...this.#groups.values()]) this.#detach(gid, mlid);
  }

  /** @internal */
  protected override onLost(): void {
    for (const queue of [this.#sendQueue, this.#recvQueue]) queue.postable = false;
    this.onGone?.(new RdmaDeviceLostError(this.describe()));
  }

  /** @internal */
  protected override destroy(): void {
    super.destroy();
    collected.unregister(this.#leave);
    this.#leave();
    this.sendCq.claims.remove(this);
    this.recvCq.claims.remove(this);
    this.onGone?.(new RdmaClosedError(this.describe()));
  }
}

// Ends a queue pair's queues. Made out here, where it cannot keep the queue pair.
function leaver(queues: readonly InFlight[], all: Set<Using>): () => void {
  return () => {
    for (const queue of queues) {
      queue.close();
      all.delete(queue);
    }
  };
}

const groupName = (gid: Buffer, mlid: number): string =>
  `multicast group ${formatGid(gid)}${mlid === 0 ? '' : `, mlid ${mlid}`}`;
