import { constants } from 'node:os';
import { instance, integer, oneOf, readOptions, uint32, valueError } from '../args.ts';
import { RdmaError } from '../errors.ts';
import { named, printed } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import { DeviceCapFlags, SrqAttrMask, SrqType } from '../native/constants.gen.ts';
import type { SrqHandle } from '../native/native.ts';
import type { Claim } from './completion-claims.ts';
import { CompletionQueue } from './completion-queue.ts';
import type { Context } from './context.ts';
import { withinLimits } from './limits.ts';
import type { ProtectionDomain } from './protection-domain.ts';
import type { QueuePair } from './queue-pair.ts';
import { nextQueueId, ReceiveQueue } from './receive-queue.ts';
import type { Resource } from './resource.ts';
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

const printedSrqAttr = printed<SrqAttr>('SrqAttr', {});

/**
 * A shared receive queue: `struct ibv_srq`: receives that several queue pairs take from. They complete in the queues of
 * the queue pair that took them, in any order. Made by `pd.createSrq()`.
 *
 * @see ibv_create_srq(3), ibv_post_srq_recv(3)
 */
export class SharedReceiveQueue extends ReceiveQueue {
  /** Its kind. */
  readonly srqType: SrqType;
  /** XRC: its domain; else null. */
  readonly xrcd: XrcDomain | null;
  /** XRC and TM: where its receives complete; null where that is up to the queue pair that took one. */
  readonly cq: CompletionQueue | null;
  /** @internal */
  readonly handle: SrqHandle;
  readonly #queue: SharedWorkQueue;

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
    const id = nextQueueId();
    const wanted = [
      ['attr.maxWr', maxWr, 'maxSrqWr'],
      ['attr.maxSge', maxSge, 'maxSrqSge'],
    ] as const;
    const handles = [xrcd ? xrcd.handle : null, cq ? cq.handle : null] as const;
    const native = withinLimits(pd.context, wanted, 'maxSrq', () =>
      binding().createSrq(pd.handle, ...handles, { srqType, maxWr, maxSge, maxNumTags, maxOps, id }),
    );
    const queue = new SharedWorkQueue(maxWr);
    super({
      parents: [pd, ...(xrcd ? [xrcd] : []), ...(cq ? [cq] : [])],
      pd,
      maxWr,
      maxSge: native.maxSge,
      kind: 'srq',
      id,
      queue,
      verb: 'ibv_post_srq_recv',
      createList: (...args) => binding().createSrqRecvList(native.handle, ...args),
    });
    this.srqType = srqType;
    this.xrcd = xrcd ?? null;
    this.cq = cq ?? null;
    this.handle = native.handle;
    this.#queue = queue;
    // What comes there is of this queue: it must not be collected before.
    cq?.claims.add(this, claim);
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

  /**
   * Changes it.
   *
   * @param attr - `srqLimit`: arms the event SRQ_LIMIT_REACHED. `maxWr`: receives that may be outstanding from now on,
   *   where the device can (`DeviceCapFlags.SRQ_RESIZE`; mlx5 cannot): what is in flight stays. At least one of the two
   * @throws CqOverrunError when a completion queue of its queue pairs has no room for so many
   * @throws RdmaError EINVAL for a limit beyond `maxWr`, for less than is in flight or more than the device has, and where
   *   it cannot. The queue is what it was then
   * @see ibv_modify_srq(3)
   */
  modify(attr: { srqLimit?: number; maxWr?: number }): void {
    this.requireOpen();
    const { srqLimit, maxWr } = readOptions(attr, 'attr', ['srqLimit', 'maxWr']);
    let mask = 0;
    if (srqLimit !== undefined) {
      uint32(srqLimit, 'attr.srqLimit');
      mask |= SrqAttrMask.LIMIT;
    }
    if (maxWr !== undefined) {
      integer(maxWr, 'attr.maxWr', 1, 0x7fff_ffff);
      mask |= SrqAttrMask.MAX_WR;
    }
    if (mask === 0) throw valueError('attr has no attributes');
    const more = maxWr === undefined ? 0 : maxWr - this.maxWr;
    const claims = this.#claims(more);
    if (more > 0) for (const [cq, claim] of claims) cq.requireRoom(claim, 'ibv_modify_srq');
    if (maxWr !== undefined && maxWr < this.recvsInFlight) {
      // rdma_rxe must not be asked: when it refuses, its queue is gone.
      const detail = `attr.maxWr is ${maxWr}, but ${this.recvsInFlight} receives are in flight`;
      throw new RdmaError('ibv_modify_srq', constants.errno.EINVAL, detail);
    }
    try {
      binding().modifySrq(this.handle, mask, maxWr ?? 0, srqLimit ?? 0);
    } catch (error) {
      throw this.#explain(error, maxWr, srqLimit);
    }
    if (maxWr === undefined) return;
    this.#queue.resize(maxWr);
    this.resized();
    for (const [cq] of claims) cq.claims.resized(this, more);
  }

  // What so many receives more are in each queue that they complete in.
  #claims(more: number): Map<CompletionQueue, Claim> {
    const claims = new Map<CompletionQueue, Claim>();
    // It has queue pairs for children, targets of DC among them.
    for (const child of this.openChildren()) {
      claims.set((child as QueuePair).recvCq, { sends: 0, recvs: 0, srq: { maxWr: more } });
    }
    if (this.cq) claims.set(this.cq, { sends: 0, srq: null, ...claims.get(this.cq), recvs: more });
    return claims;
  }

  // The kernel says EINVAL and no more.
  #explain(error: unknown, maxWr: number | undefined, srqLimit: number | undefined): unknown {
    if (!(error instanceof RdmaError && error.code === 'EINVAL')) return error;
    const { maxSrqWr, deviceCapFlags } = this.pd.context.queryDevice();
    if (maxWr !== undefined) {
      if ((deviceCapFlags & DeviceCapFlags.SRQ_RESIZE) === 0) {
        return error.explained('the device cannot resize shared receive queues: maxWr stays what it was made with');
      }
      if (maxWr > maxSrqWr) return error.explained(`attr.maxWr is ${maxWr}, maxSrqWr of the device ${maxSrqWr}`);
    }
    const [limit, max] = [srqLimit ?? this.query().srqLimit, maxWr ?? this.maxWr];
    return limit > max ? error.explained(`the limit is ${limit}, of ${max} receives`) : error;
  }

  /** Asks what it is like. @see ibv_query_srq(3) */
  query(): SrqAttr {
    this.requireOpen();
    return printedSrqAttr(binding().querySrq(this.handle));
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
    const { maxWr, maxSge, recvsInFlight, srqType } = this;
    return { srqType: named(SrqType)(srqType), maxWr, maxSge, recvsInFlight };
  }

  protected readonly destroyVerb = 'ibv_destroy_srq';

  protected destroy(): void {
    binding().destroySrq(this.handle);
    this.cq?.claims.remove(this);
    this.destroyed();
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
