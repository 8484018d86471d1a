import { instance, integer, oneOf, readOptions, uint32, valueError } from '../args.ts';
import { binding } from '../native/binding.ts';
import { SrqAttrMask, SrqType } from '../native/constants.gen.ts';
import type { SrqHandle } from '../native/native.ts';
import { CompletionQueue } from './completion-queue.ts';
import type { Context } from './context.ts';
import { withinLimits } from './limits.ts';
import type { ProtectionDomain } from './protection-domain.ts';
import { RecvList, type RecvWr } from './recv-list.ts';
import { Resource } from './resource.ts';
import { SharedWorkQueue } from './work-queue.ts';
import { XrcDomain } from './xrc-domain.ts';

/** What a shared receive queue is made with: `struct ibv_srq_init_attr`, and `..._ex` where there is more than capacities. */
export interface SrqInitAttr {
  /** Receives that may be outstanding. Default 128. */
  maxWr?: number;
  /** Elements of a receive. Default 1. */
  maxSge?: number;
  /** `SrqType.BASIC` (the default), `XRC` or `TM`. */
  srqType?: SrqType;
  /** XRC: its domain. */
  xrcd?: XrcDomain;
  /** XRC and TM: where its receives complete, whoever they come from. */
  cq?: CompletionQueue;
  /** TM: entries of the matching list, from 1. */
  maxNumTags?: number;
  /** TM: changes of that list that may be outstanding. Default 1. */
  maxOps?: number;
}

const KNOWN = ['maxWr', 'maxSge', 'srqType', 'xrcd', 'cq', 'maxNumTags', 'maxOps'] as const;

/** What a shared receive queue is like: `struct ibv_srq_attr`. */
export interface SrqAttr {
  /** Receives that may be outstanding. */
  maxWr: number;
  /** Elements of a receive. */
  maxSge: number;
  /** When fewer receives than this are left, there is an event SRQ_LIMIT_REACHED, once; then it is 0. */
  srqLimit: number;
}

const LIST_CAPACITY = 64;

// What events name the queues of this thread by.
let lastId = 0;

const collected = new FinalizationRegistry<() => void>((leave) => leave());

/**
 * A shared receive queue: `struct ibv_srq`: receives that several queue pairs take from. They complete in the queues of
 * the queue pair that took them, in any order. Made by `pd.createSrq()`.
 *
 * @see ibv_create_srq(3), ibv_post_srq_recv(3)
 */
export class SharedReceiveQueue extends Resource {
  /** The domain it belongs to. */
  readonly pd: ProtectionDomain;
  /** Receives that may be outstanding: as asked for. `query()` has what the provider granted, which may be more. */
  readonly maxWr: number;
  /** Elements of a receive: what was granted. */
  readonly maxSge: number;
  /** Its kind. */
  readonly srqType: SrqType;
  /** XRC: its domain; else null. */
  readonly xrcd: XrcDomain | null;
  /** XRC and TM: where its receives complete; null where that is up to the queue pair that took one. */
  readonly cq: CompletionQueue | null;
  /** @internal */
  readonly handle: SrqHandle;
  readonly #id: number;
  readonly #queue: SharedWorkQueue;
  readonly #recvs: RecvList;
  readonly #leave: () => void;

  /** @internal */
  constructor(pd: ProtectionDomain, attr: SrqInitAttr) {
    const given = readOptions(attr, 'attr', KNOWN);
    const { maxWr = 128, maxSge = 1, srqType = SrqType.BASIC, xrcd, cq, maxNumTags = 0, maxOps = 1 } = given;
    integer(maxWr, 'attr.maxWr', 1, 0x7fff_ffff);
    integer(maxSge, 'attr.maxSge', 0, 0x7fff_ffff);
    oneOf(srqType, 'attr.srqType', SrqType, 'SrqType');
    checkUse('xrcd', xrcd, srqType === SrqType.XRC, XrcDomain, pd);
    checkUse('cq', cq, srqType !== SrqType.BASIC, CompletionQueue, pd);
    if (srqType === SrqType.TM) integer(maxNumTags, 'attr.maxNumTags', 1, 0xffff_ffff);
    else if (given.maxNumTags !== undefined) throw valueError('attr.maxNumTags is for SrqType.TM only');
    uint32(maxOps, 'attr.maxOps');
    // Of a queue with completions of its own.
    const claim = { sends: 0, recvs: maxWr, srq: null };
    cq?.requireRoom(claim, 'ibv_create_srq_ex');
    lastId = (lastId % 0xffff_ffff) + 1;
    const id = lastId;
    const wanted = [
      ['attr.maxWr', maxWr, 'maxSrqWr'],
      ['attr.maxSge', maxSge, 'maxSrqSge'],
    ] as const;
    const handles = [xrcd ? xrcd.handle : null, cq ? cq.handle : null] as const;
    const native = withinLimits(pd.context, wanted, 'maxSrq', () =>
      binding().createSrq(pd.handle, ...handles, { srqType, maxWr, maxSge, maxNumTags, maxOps, id }),
    );
    super([pd, ...(xrcd ? [xrcd] : []), ...(cq ? [cq] : [])]);
    this.srqType = srqType;
    this.xrcd = xrcd ?? null;
    this.cq = cq ?? null;
    // What comes there is of this queue: it must not be collected before.
    cq?.attach(this, claim);
    this.pd = pd.root;
    this.#id = id;
    pd.context.events.enter('srq', id, this);
    this.handle = native.handle;
    this.maxWr = maxWr;
    this.maxSge = native.maxSge;
    const queue = new SharedWorkQueue(maxWr);
    this.#queue = queue;
    this.#recvs = this.#list(Math.min(maxWr, LIST_CAPACITY));
    const { queues } = pd.root;
    queues.add(queue);
    this.#leave = () => {
      queue.close();
      queues.delete(queue);
    };
    collected.register(this, this.#leave, this.#leave);
  }

  /**
   * Its number, by which an XRC sender names it: 24 bits.
   *
   * @throws RdmaError EOPNOTSUPP where the device numbers none
   * @see ibv_get_srq_num(3)
   */
  get srqNum(): number {
    this.requireOpen();
    return binding().getSrqNum(this.handle);
  }

  /** Receives in flight: posted and not completed. */
  get recvsInFlight(): number {
    return this.#queue.length;
  }

  /**
   * Changes it.
   *
   * @param attr - `srqLimit`: arms the event SRQ_LIMIT_REACHED. `maxWr`: another size, where the device can
   * @throws RdmaError EINVAL for a limit beyond the size, and where the device cannot
   * @see ibv_modify_srq(3)
   */
  modify(attr: { srqLimit?: number; maxWr?: number }): void {
    this.requireOpen();
    const { srqLimit, maxWr } = readOptions(attr, 'attr', ['srqLimit', 'maxWr']);
    let mask = 0;
    if (srqLimit !== undefined) mask |= SrqAttrMask.LIMIT;
    if (maxWr !== undefined) mask |= SrqAttrMask.MAX_WR;
    binding().modifySrq(this.handle, mask, uint32(maxWr ?? 0, 'attr.maxWr'), uint32(srqLimit ?? 0, 'attr.srqLimit'));
  }

  /** Asks what it is like. @see ibv_query_srq(3) */
  query(): SrqAttr {
    this.requireOpen();
    return binding().querySrq(this.handle);
  }

  /**
   * Posts receives, in their order. The memory they use is held until their completion was polled.
   *
   * @param wrs - one, or a list
   * @throws as `qp.postRecv()`
   */
  postRecv(wrs: RecvWr | readonly RecvWr[]): void {
    if (!Array.isArray(wrs)) this.#recvs.postOne(wrs as RecvWr);
    else if (wrs.length > 0) this.#recvs.postAll(wrs);
    else this.requireOpen();
  }

  /** Prepares a list of receives, of at most `maxWr`. */
  prepareRecv(wrs: RecvWr | readonly RecvWr[]): RecvList {
    this.requireOpen();
    const requests = Array.isArray(wrs) ? (wrs as readonly RecvWr[]) : [wrs as RecvWr];
    integer(requests.length, 'wrs.length', 1, this.maxWr);
    const list = this.#list(requests.length);
    requests.forEach((wr, i) => list.encode(i, wr, i));
    return list;
  }

  #list(length: number): RecvList {
    const shared = binding().createSrqRecvList(this.handle, length, this.maxSge, this.#queue.id);
    return new RecvList(this, this.#queue, shared, length, this.maxSge, 'ibv_post_srq_recv', 0);
  }

  /** @internal */
  refuse(): never {
    this.requireOpen();
    throw new Error('A shared receive queue that is open is postable');
  }

  /** @internal */
  describe(): string {
    return `SharedReceiveQueue (${this.maxWr} receives)`;
  }

  /** @internal */
  protected override fields(): object {
    const { maxWr, maxSge, recvsInFlight } = this;
    return { maxWr, maxSge, recvsInFlight };
  }

  protected readonly destroyVerb = 'ibv_destroy_srq';

  protected override onLost(): void {
    this.#queue.postable = false;
  }

  protected destroy(): void {
    binding().destroySrq(this.handle);
    this.pd.context.events.leave('srq', this.#id);
    this.cq?.detach(this);
    collected.unregister(this.#leave);
    this.#leave();
  }
}

// An object that some kinds need, and the others do not take.
function checkUse(
  name: string,
  value: (Resource & { context: Context }) | undefined,
  isNeeded: boolean,
  type: abstract new (...args: never[]) => Resource,
  pd: ProtectionDomain,
): void {
  if (!isNeeded) {
    if (value !== undefined) throw valueError(`attr.${name} is not for this srqType`);
    return;
  }
  instance(value, `attr.${name}`, type).requireOpen();
  if (value?.context !== pd.context) throw valueError(`attr.${name} is of another device than the protection domain`);
}
