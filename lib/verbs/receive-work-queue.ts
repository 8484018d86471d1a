import { constants } from 'node:os';
import { instance, integer, oneOf, readOptions, typeError, uint32, valueError } from '../args.ts';
import { RdmaError } from '../errors.ts';
import { brief, hex, named, word } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import { WqAttrMask, WqState } from '../native/constants.gen.ts';
import type { RwqIndTableHandle, WqHandle } from '../native/native.ts';
import { CompletionQueue } from './completion-queue.ts';
import type { Context } from './context.ts';
import { withinLimits } from './limits.ts';
import { ProtectionDomain } from './protection-domain.ts';
import { nextQueueId, ReceiveQueue } from './receive-queue.ts';
import { Resource } from './resource.ts';
import { WorkQueue } from './work-queue.ts';

/** What a receive work queue is made with: `struct ibv_wq_init_attr`. */
export interface WqInitAttr {
  /** The domain of the memory that it receives into. */
  pd: ProtectionDomain;
  /** Where its receives complete. */
  cq: CompletionQueue;
  /** Receives that may be outstanding. Default 128. */
  maxWr?: number;
  /** Elements of a receive. Default 1. */
  maxSge?: number;
  /** `WqFlags` joined with `|`. Default 0. */
  createFlags?: number;
}

/** What can be changed of it: `struct ibv_wq_attr`. */
export interface WqAttr {
  /** The state to go to. */
  wqState?: WqState;
  /** The state it is assumed to be in. */
  currWqState?: WqState;
  /** `WqFlags` to set; goes with `flagsMask`. */
  flags?: number;
  /** Which flags are meant. */
  flagsMask?: number;
}

/**
 * A receive work queue: `struct ibv_wq`: a receive queue without a queue pair. A table of them
 * ({@link RwqIndTable}) spreads what a queue pair with receive side scaling gets. Made by `context.createWq()`, in the
 * state RESET.
 *
 * @see ibv_create_wq(3)
 */
export class ReceiveWorkQueue extends ReceiveQueue {
  /** Its number: `qpNum` of its completions. */
  readonly wqNum: number;
  /** Where its receives complete. */
  readonly cq: CompletionQueue;
  /** @internal */
  readonly handle: WqHandle;
  readonly #queue: WorkQueue;
  #state: WqState = WqState.RESET;

  /** @internal */
  constructor(context: Context, attr: WqInitAttr) {
    const known = ['pd', 'cq', 'maxWr', 'maxSge', 'createFlags'];
    const given = readOptions(attr, 'attr', known);
    const { maxWr = 128, maxSge = 1, createFlags = 0 } = given;
    const pd = instance(given.pd, 'attr.pd', ProtectionDomain);
    const cq = instance(given.cq, 'attr.cq', CompletionQueue);
    for (const [each, name] of [[pd, 'pd'] as const, [cq, 'cq'] as const]) {
      each.requireOpen();
      if (each.context !== context) throw valueError(`attr.${name} is of another device`);
    }
    integer(maxWr, 'attr.maxWr', 1, 0x7fff_ffff);
    integer(maxSge, 'attr.maxSge', 1, 0x7fff_ffff);
    uint32(createFlags, 'attr.createFlags');
    const claim = { sends: 0, recvs: maxWr, srq: null };
    cq.requireRoom(claim, 'ibv_create_wq');
    const id = nextQueueId();
    const wanted = [
      ['attr.maxWr', maxWr, 'maxQpWr'],
      ['attr.maxSge', maxSge, 'maxSge'],
    ] as const;
    const native = withinLimits(context, wanted, 'maxQp', () =>
      binding().createWq(pd.handle, cq.handle, maxWr, maxSge, createFlags, id),
    );
    const queue = new WorkQueue(maxWr);
    super({
      parents: [pd, cq],
      pd,
      maxWr,
      maxSge: native.maxSge,
      kind: 'wq',
      id,
      queue,
      verb: 'ibv_post_wq_recv',
      createList: (...args) => binding().createWqRecvList(native.handle, ...args),
    });
    this.handle = native.handle;
    this.wqNum = native.wqNum;
    this.cq = cq;
    this.#queue = queue;
    cq.claims.add(this, claim);
  }

  /** The state that the last `modify()` left it in. The device may have moved it to ERR since: there is an event then. */
  get state(): WqState {
    return this.#state;
  }

  /**
   * Changes attributes, most often the state: from RESET to RDY, to ERR, and back to RESET.
   *
   * @throws RdmaError EINVAL when the device refuses; the state is what it was
   * @see ibv_modify_wq(3)
   */
  modify(attr: WqAttr): void {
    this.requireOpen();
    if (attr === undefined) throw typeError('attr', 'an object', attr);
    const { wqState, currWqState, flags, flagsMask } = readOptions(attr, 'attr', [
      'wqState',
      'currWqState',
      'flags',
      'flagsMask',
    ]);
    let mask = 0;
    if (wqState !== undefined) {
      oneOf(wqState, 'attr.wqState', WqState, 'WqState');
      mask |= WqAttrMask.STATE;
    }
    if (currWqState !== undefined) {
      oneOf(currWqState, 'attr.currWqState', WqState, 'WqState');
      mask |= WqAttrMask.CURR_STATE;
    }
    if (flags !== undefined || flagsMask !== undefined) {
      uint32(flags, 'attr.flags');
      uint32(flagsMask, 'attr.flagsMask');
      mask |= WqAttrMask.FLAGS;
    }
    if (mask === 0) throw valueError('attr has no attributes');
    binding().modifyWq(this.handle, mask, wqState ?? 0, currWqState ?? this.#state, flags ?? 0, flagsMask ?? 0);
    if (wqState === undefined) return;
    this.#state = wqState;
    // The step to RDY empties the queue, so what is posted before it would be lost.
    this.#queue.postable = wqState === WqState.RDY || wqState === WqState.ERR;
    if (wqState === WqState.RESET) this.#queue.clear();
  }

  /** @internal */
  refuse(verb: string): never {
    this.requireOpen();
    throw new RdmaError(verb, constants.errno.EINVAL, 'the work queue is in state RESET');
  }

  /** @internal */
  describe(): string {
    return `ReceiveWorkQueue 0x${this.wqNum.toString(16)}`;
  }

  /** @internal */
  protected override fields(): object {
    const state = named(WqState)(this.state);
    return {
      wqNum: hex(this.wqNum),
      state,
      maxSge: this.maxSge,
      recvsInFlight: word(`${this.recvsInFlight} of ${this.maxWr}`),
    };
  }

  protected readonly destroyVerb = 'ibv_destroy_wq';

  protected destroy(): void {
    binding().destroyWq(this.handle);
    this.destroyed();
    this.cq.claims.remove(this);
  }
}

/**
 * A table of receive work queues, which a hash of the packet's header chooses from: `struct ibv_rwq_ind_table`. Made by
 * `context.createRwqIndTable()`.
 *
 * @see ibv_create_rwq_ind_table(3)
 */
export class RwqIndTable extends Resource {
  /** The device it belongs to. */
  readonly context: Context;
  /** The queues, in their order; one may be there several times. */
  readonly wqs: readonly ReceiveWorkQueue[];
  /** Its number. */
  readonly indTblNum: number;
  /** @internal */
  readonly handle: RwqIndTableHandle;

  /** @internal */
  constructor(context: Context, indTbl: readonly ReceiveWorkQueue[]) {
    if (!Array.isArray(indTbl)) throw typeError('indTbl', 'an array', indTbl);
    const wqs: ReceiveWorkQueue[] = Array.from(indTbl, (wq, i) => instance(wq, `indTbl[${i}]`, ReceiveWorkQueue));
    if (wqs.length === 0 || !Number.isInteger(Math.log2(wqs.length))) {
      throw valueError(`indTbl must have as many elements as a power of two, not ${wqs.length}`);
    }
    wqs.forEach((wq, i) => {
      wq.requireOpen();
      if (wq.pd.context !== context) throw valueError(`indTbl[${i}] is of another device`);
    });
    const native = binding().createRwqIndTable(
      context.handle,
      wqs.map(({ handle }) => handle),
    );
    super([...new Set<Resource>([context, ...wqs])]);
    this.context = context;
    this.wqs = Object.freeze(wqs);
    this.handle = native.handle;
    this.indTblNum = native.indTblNum;
  }

  /** @internal */
  describe(): string {
    return `RwqIndTable of ${this.wqs.length}`;
  }

  /** @internal */
  protected override fields(): object {
    return { indTblNum: hex(this.indTblNum), wqs: this.wqs.map((wq) => brief(wq)) };
  }

  protected readonly destroyVerb = 'ibv_destroy_rwq_ind_table';

  protected destroy(): void {
    binding().destroyRwqIndTable(this.handle);
  }
}
