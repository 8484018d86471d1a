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
import { RecvList, type RecvWr } from './recv-list.ts';
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

const LIST_CAPACITY = 64;

// What events name the queues of this thread by.
let lastId = 0;

const collected = new FinalizationRegistry<() => void>((leave) => leave());

/**
 * A receive work queue: `struct ibv_wq`: a receive queue without a queue pair. A table of them
 * ({@link RwqIndTable}) spreads what a queue pair with receive side scaling gets. Made by `context.createWq()`, in the
 * state RESET.
 *
 * @see ibv_create_wq(3)
 */
export class ReceiveWorkQueue extends Resource {
  /** Its number: `qpNum` of its completions. */
  readonly wqNum: number;
  /** The domain it belongs to. */
  readonly pd: ProtectionDomain;
  /** Where its receives complete. */
  readonly cq: CompletionQueue;
  /** Receives that may be outstanding: as asked for. */
  readonly maxWr: number;
  /** Elements of a receive: what was granted. */
  readonly maxSge: number;
  /** @internal */
  readonly handle: WqHandle;
  readonly #id: number;
  readonly #queue: WorkQueue;
  readonly #recvs: RecvList;
  readonly #leave: () => void;
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
    lastId = (lastId % 0xffff_ffff) + 1;
    const id = lastId;
    const wanted = [
      ['attr.maxWr', maxWr, 'maxQpWr'],
      ['attr.maxSge', maxSge, 'maxSge'],
    ] as const;
    const native = withinLimits(context, wanted, 'maxQp', () =>
      binding().createWq(pd.handle, cq.handle, maxWr, maxSge, createFlags, id),
    );
    super([pd, cq]);
    this.handle = native.handle;
    this.wqNum = native.wqNum;
    this.maxWr = maxWr;
    this.maxSge = native.maxSge;
    this.pd = pd;
    this.cq = cq;
    this.#id = id;
    context.events.enter('wq', id, this);
    cq.attach(this, claim);
    const queue = new WorkQueue(maxWr);
    this.#queue = queue;
    this.#recvs = this.#list(Math.min(maxWr, LIST_CAPACITY));
    const { queues } = pd;
    queues.add(queue);
    this.#leave = () => {
      queue.close();
      queues.delete(queue);
    };
    collected.register(this, this.#leave, this.#leave);
  }

  /** The state that the last `modify()` left it in. The device may have moved it to ERR since: there is an event then. */
  get state(): WqState {
    return this.#state;
  }

  /** Receives in flight: posted and not completed. */
  get recvsInFlight(): number {
    return this.#queue.length;
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

  /**
   * Posts receives, in their order, in the states RDY and ERR. The memory they use is held until their completion was
   * polled.
   *
   * @param wrs - one, or a list
   * @throws as `qp.postRecv()`
   * @see ibv_post_wq_recv(3)
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
    const shared = binding().createWqRecvList(this.handle, length, this.maxSge, this.#queue.id);
    return new RecvList(this, this.#queue, shared, length, this.maxSge, 'ibv_post_wq_recv', 0);
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

  protected override onLost(): void {
    this.#queue.postable = false;
  }

  protected destroy(): void {
    binding().destroyWq(this.handle);
    collected.unregister(this.#leave);
    this.#leave();
    this.pd.context.events.leave('wq', this.#id);
    this.cq.detach(this);
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
