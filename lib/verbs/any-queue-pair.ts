import { constants } from 'node:os';
import { integer, oneOf, readOptions, uint32 } from '../args.ts';
import { RdmaError } from '../errors.ts';
import { hex, named, printed } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import { type EventType, QpAttrMask, QpState, QpType, WrOpcode } from '../native/constants.gen.ts';
import type { QpCap, QpHandle } from '../native/native.ts';
import type { Context } from './context.ts';
import { Flow } from './flow.ts';
import { encodeFlow, type FlowAttr } from './flow-spec.ts';
import { formatGid } from './gid.ts';
import { explainAddress, explainPort } from './limits.ts';
import { nativeAttributes, printedQpAttrs, type QpAttr, type QpAttrs } from './qp-attributes.ts';
import { explainTransition } from './qp-transitions.ts';
import { Resource } from './resource.ts';

/** What two ends agree on beyond the specification: `struct ibv_ece`. */
export interface Ece {
  /** The vendor that gives the options their meaning: an IEEE OUI. */
  vendorId: number;
  /** Bits of that vendor's; 0 is none. */
  options: number;
}

const printedEce = printed<Ece>('Ece', { vendorId: hex, options: hex });

/** Packet pacing: `struct ibv_qp_rate_limit_attr`. */
export interface QpRateLimitAttr {
  /** Kilobits per second; 0 is without a limit. */
  rateLimit: number;
  /** Bytes of the longest burst. Default 0: the device's choice. */
  maxBurstSz?: number;
  /** Bytes of a typical packet. Default 0: the device's choice. */
  typicalPktSz?: number;
}

const ALL_ATTRIBUTES = Object.values(QpAttrMask).reduce((bits, bit) => bits | bit, 0);

/** What a queue pair of any kind has: a number, attributes, a state. A `QueuePair` has queues as well. */
export abstract class AnyQueuePair extends Resource {
  /** Its number: 24 bits. */
  readonly qpNum: number;
  /** Transport service. */
  readonly qpType: QpType;
  /** The capacities: requests as asked for, all else as granted. `query()` has what the provider granted of all. */
  readonly cap: Readonly<QpCap>;
  /** The device it belongs to. */
  readonly context: Context;
  /** @internal */
  readonly handle: QpHandle;
  #state: number;
  #rateLimit = 0;
  // The last change that was asked for, and how many are not over: they follow each other.
  #lastChange: Promise<void> = Promise.resolve();
  #changes = 0;

  /** @internal */
  constructor(
    parents: readonly Resource[],
    context: Context,
    native: { handle: QpHandle; qpNum: number },
    qpType: QpType,
    cap: QpCap,
    state: number,
  ) {
    super(parents);
    this.context = context;
    this.handle = native.handle;
    this.qpNum = native.qpNum;
    this.qpType = qpType;
    this.cap = Object.freeze(cap);
    this.#state = state;
    context.events.enter('qp', this.qpNum, this);
  }

  /** The state that the last `modify()` or `query()` left it in. The device may have moved it to ERR since. */
  get state(): QpState {
    return this.#state as QpState;
  }

  /**
   * Changes attributes, most often the state. Runs on a thread of the pool, since the resolution of a neighbour's address
   * can take seconds; but the transition to RESET may run on this one. Changes of one queue pair follow each other in the
   * order of the calls, also after one that failed.
   *
   * @param attr - the attributes to set
   * @throws RdmaError EINVAL with the attributes that the transition lacks or does not take; ETIMEDOUT or ENETUNREACH when
   *   the peer's address cannot be resolved; the state is what it was
   * @see ibv_modify_qp(3)
   */
  async modify(attr: QpAttr): Promise<void> {
    this.requireOpen();
    const { native, mask } = nativeAttributes(attr, this.cap);
    this.#changes++;
    const change = this.track(
      this.#lastChange.then(async () => {
        try {
          if (this.changesHere(native)) binding().modifyQpSync(this.handle, native, mask);
          else await binding().modifyQp(this.handle, native, mask);
          this.#changed(native);
        } catch (error) {
          throw this.#explain(error, attr, mask);
        } finally {
          this.#changes--;
        }
      }),
    );
    this.#lastChange = change.catch(() => {});
    await change;
  }

  /**
   * As `modify()`, but on this thread: it may block for as long as a neighbour's address takes to resolve.
   *
   * @throws RdmaError as `modify()`; EBUSY while a `modify()` is under way
   */
  modifySync(attr: QpAttr): void {
    this.requireOpen();
    const { native, mask } = nativeAttributes(attr, this.cap);
    if (this.#changes > 0) {
      throw new RdmaError(
        'ibv_modify_qp',
        constants.errno.EBUSY,
        `${this.#changes} modify() are under way: await them`,
      );
    }
    try {
      binding().modifyQpSync(this.handle, native, mask);
    } catch (error) {
      throw this.#explain(error, attr, mask);
    }
    this.#changed(native);
  }

  /**
   * Asks the kernel for all attributes, and learns the state.
   *
   * @see ibv_query_qp(3)
   */
  query(): QpAttrs {
    this.requireOpen();
    // The kernel does not tell the rate limit.
    const attrs = binding().queryQp(this.handle, this.queryable & ~QpAttrMask.RATE_LIMIT) as unknown as QpAttrs;
    for (const path of [attrs.ahAttr, attrs.altAhAttr]) {
      path.grh.dgid = formatGid(path.grh.dgid as unknown as Uint8Array);
    }
    attrs.rateLimit = this.#rateLimit;
    this.#enter(attrs.qpState);
    return printedQpAttrs(attrs);
  }

  /**
   * What the device offers to agree on with the other end, or, after the transitions, what it took.
   *
   * @throws RdmaError EOPNOTSUPP where the device has no such options
   * @see ibv_query_ece(3)
   */
  queryEce(): Ece {
    this.requireOpen();
    return printedEce(binding().queryEce(this.handle));
  }

  /**
   * Sets what was agreed on with the other end: before the transition to INIT, or to RTR on the side that answers.
   *
   * @throws RdmaError EOPNOTSUPP where the device has no such options; EINVAL for another vendor's
   * @see ibv_set_ece(3)
   */
  setEce(ece: Ece): void {
    this.requireOpen();
    const { vendorId, options } = readOptions(ece, 'ece', ['vendorId', 'options']);
    binding().setEce(this.handle, uint32(vendorId, 'ece.vendorId'), uint32(options, 'ece.options'));
  }

  /**
   * Sets the pace at which it sends, in RTS.
   *
   * @throws RdmaError EINVAL and EOPNOTSUPP where the device cannot
   * @see ibv_modify_qp_rate_limit(3)
   */
  modifyRateLimit(attr: QpRateLimitAttr): void {
    this.requireOpen();
    const {
      rateLimit,
      maxBurstSz = 0,
      typicalPktSz = 0,
    } = readOptions(attr, 'attr', ['rateLimit', 'maxBurstSz', 'typicalPktSz']);
    const limit = uint32(rateLimit, 'attr.rateLimit');
    const burst = uint32(maxBurstSz, 'attr.maxBurstSz');
    binding().modifyQpRateLimit(this.handle, limit, burst, integer(typicalPktSz, 'attr.typicalPktSz', 0, 0xffff));
    this.#rateLimit = limit;
  }

  /**
   * Whether the data of an operation lands in memory in order, so that a reader may watch the last byte.
   *
   * @param opcode - the operation, such as `WrOpcode.RDMA_WRITE`
   * @param flags - `QueryQpDataInOrderFlags` joined with `|`, since rdma-core 46. Default 0
   * @returns with 0 as `flags`: 1 if it does, else 0; with `RETURN_CAPS`: `QueryQpDataInOrderCaps` joined with `|`
   * @throws RdmaError EOPNOTSUPP where the library is older than rdma-core 36
   * @see ibv_query_qp_data_in_order(3)
   */
  queryDataInOrder(opcode: WrOpcode, flags = 0): number {
    this.requireOpen();
    oneOf(opcode, 'opcode', WrOpcode, 'WrOpcode');
    return binding().queryQpDataInOrder(this.handle, opcode, uint32(flags, 'flags'));
  }

  /**
   * Makes a flow steering rule: packets that match it come to this queue pair, which is a UD or raw packet one.
   *
   * @throws TypeError or RangeError naming the field
   * @throws RdmaError EOPNOTSUPP or ENOSYS where the device has no flow steering; EPERM without CAP_NET_RAW; EINVAL for a
   *   rule that it does not take
   * @see ibv_create_flow(3)
   */
  createFlow(attr: FlowAttr): Flow {
    this.requireOpen();
    return new Flow(this, encodeFlow(attr));
  }

  /** What the kernel can tell of it, as `QpAttrMask` joined with `|`. @internal */
  protected get queryable(): number {
    return ALL_ATTRIBUTES;
  }

  /** Whose transitions it has: see `explainTransition()`. @internal */
  protected get transitions(): number {
    return this.qpType;
  }

  /** Whether a change needs what no other thread may touch. @internal */
  protected changesHere(_native: { qpState?: QpState }): boolean {
    return false;
  }

  /** The device has given it another number. @internal */
  protected renumber(qpNum: number): void {
    this.context.events.leave('qp', this.qpNum);
    (this as { qpNum: number }).qpNum = qpNum;
    this.context.events.enter('qp', qpNum, this);
  }

  /** An event says that it has failed. @internal */
  failed(_event: EventType): void {}

  /** It is in that state now. @internal */
  protected abstract entered(state: number): void;

  #enter(state: number): void {
    this.#state = state;
    this.entered(state);
  }

  #changed(native: { qpState?: QpState; rateLimit?: number }): void {
    if (native.rateLimit !== undefined) this.#rateLimit = native.rateLimit;
    if (native.qpState !== undefined) this.#enter(native.qpState);
  }

  // The kernel says EINVAL and no more.
  #explain(error: unknown, attr: QpAttr, mask: number): unknown {
    if (!(error instanceof RdmaError)) return error;
    if (error.code === 'ETIMEDOUT' || error.code === 'ENETUNREACH' || error.code === 'EHOSTUNREACH') {
      const grh = attr.ahAttr?.grh;
      const path = grh ? ` from GID index ${grh.sgidIndex} to ${grh.dgid}` : '';
      return error.explained(`the route or the neighbour${path} cannot be resolved`);
    }
    // ENODATA is what the kernel says to an empty place of the GID table.
    if (error.code !== 'EINVAL' && error.code !== 'ENODATA') return error;
    const from = attr.curQpState ?? this.#state;
    const reasons = [explainTransition(this.transitions, from, attr.qpState ?? from, mask)];
    if (from === QpState.SQD && reasons[0] === undefined) {
      reasons.push(
        'the send queue may still be draining: wait for the event SQ_DRAINED, or for sqDraining false of query()',
      );
    }
    const { context } = this;
    const { ahAttr, pathMtu, portNum = ahAttr?.portNum ?? 1 } = attr;
    const missing = explainPort(context, portNum);
    if (missing !== undefined) reasons.push(missing);
    else if (ahAttr) {
      reasons.push(...explainAddress(context, ahAttr));
      const { activeMtu } = context.queryPort(portNum);
      if (pathMtu !== undefined && pathMtu > activeMtu) {
        reasons.push(`pathMtu ${128 << pathMtu} is more than the port's active MTU ${128 << activeMtu}`);
      }
    }
    const found = reasons.filter(Boolean).join('; ');
    return found === '' ? error : error.explained(found);
  }

  /** @internal */
  describe(): string {
    return `${this.constructor.name} 0x${this.qpNum.toString(16)}`;
  }

  /** @internal */
  protected override fields(): object {
    return { qpNum: hex(this.qpNum), qpType: named(QpType)(this.qpType), state: named(QpState)(this.state) };
  }

  protected readonly destroyVerb = 'ibv_destroy_qp';

  /** @internal */
  protected destroy(): void {
    binding().destroyQp(this.handle);
    this.context.events.leave('qp', this.qpNum);
  }
}
