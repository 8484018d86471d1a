import { flagged } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import { CreateCqAttrFlags, CreateCqWcFlags, WcStatus } from '../native/constants.gen.ts';
import { Layout } from '../native/layout.gen.ts';
import type { CqHandle, NativeCq } from '../native/native.ts';
import type { CompletionChannel } from './completion-channel.ts';
import { CompletionQueue, type CqOptions, type Ring } from './completion-queue.ts';
import type { Context } from './context.ts';
import type { ProtectionDomain } from './protection-domain.ts';
import { Cursor } from './wc-cursor.ts';
import type { WorkCompletion } from './work-completion.ts';

/**
 * A completion of an extended queue. The fields of `WorkCompletion` that the queue was not made to tell are 0, and those
 * here undefined. When `status` is not SUCCESS all of these are undefined: the device tells why instead of when.
 */
export interface WorkCompletionEx extends WorkCompletion {
  /**
   * When it happened, by the device's own clock: 64 bits, which `queryRtValues()` compares with now, and `hcaCoreClock` of
   * `queryDeviceEx()` makes seconds of.
   */
  readonly completionTs: bigint | undefined;
  /** When it happened, in nanoseconds since 1970. */
  readonly completionWallclockNs: bigint | undefined;
  /** The customer's VLAN tag of the packet (raw packets). */
  readonly cvlan: number | undefined;
  /** The tag of the flow rule that the packet matched (raw packets). */
  readonly flowTag: number | undefined;
  /** The tag of the message, and the sender's private word (tag matching). */
  readonly tmInfo: TmInfo | undefined;
}

/** What a tagged message carried: `struct ibv_wc_tm_info`. */
export interface TmInfo {
  /** Its tag. */
  readonly tag: bigint;
  /** A word of the sender's. */
  readonly priv: number;
}

/** How an extended completion queue is made. */
export interface CqExOptions extends CqOptions {
  /** What it tells of a completion: `CreateCqWcFlags` joined with `|`. Default: all that an ordinary queue tells. */
  wcFlags?: number;
  /** `CreateCqAttrFlags` joined with `|`. Default 0. */
  flags?: number;
  /** Whose thread domain it is used by: a domain of `pd.allocParentDomain()`. Default none. Not every provider has it. */
  parentDomain?: ProtectionDomain;
}

/** `IBV_WC_STANDARD_FLAGS`: what an ordinary queue tells. @internal */
export const STANDARD_WC_FLAGS =
  CreateCqWcFlags.WITH_BYTE_LEN |
  CreateCqWcFlags.WITH_IMM |
  CreateCqWcFlags.WITH_QP_NUM |
  CreateCqWcFlags.WITH_SRC_QP |
  CreateCqWcFlags.WITH_SLID |
  CreateCqWcFlags.WITH_SL |
  CreateCqWcFlags.WITH_DLID_PATH_BITS;

const { size, completionTs, completionWallclockNs, cvlan, flowTag, tmTag, tmPriv } = Layout.wcExtra;

// Reads one entry of the ring of an extended queue: an ordinary entry, and what stands behind all of those.
class CursorEx extends Cursor implements WorkCompletionEx {
  readonly #wcFlags: number;
  readonly #extra: DataView;
  #offset = 0;

  constructor(memory: ArrayBuffer, capacity: number, wcFlags: number) {
    const wrIds = new Float64Array(memory, capacity * Layout.wc.size, capacity);
    super(memory, wrIds);
    this.#wcFlags = wcFlags;
    this.#extra = new DataView(memory, wrIds.byteOffset + wrIds.byteLength);
  }

  override at(index: number): this {
    this.#offset = index * size;
    return super.at(index);
  }
  get completionTs(): bigint | undefined {
    return this.#has(CreateCqWcFlags.WITH_COMPLETION_TIMESTAMP) ? this.#uint64(completionTs) : undefined;
  }
  get completionWallclockNs(): bigint | undefined {
    const isAsked = this.#has(CreateCqWcFlags.WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
    return isAsked ? this.#uint64(completionWallclockNs) : undefined;
  }
  get cvlan(): number | undefined {
    if (!this.#has(CreateCqWcFlags.WITH_CVLAN)) return undefined;
    return this.#extra.getUint16(this.#offset + cvlan, true);
  }
  get flowTag(): number | undefined {
    if (!this.#has(CreateCqWcFlags.WITH_FLOW_TAG)) return undefined;
    return this.#extra.getUint32(this.#offset + flowTag, true);
  }
  get tmInfo(): TmInfo | undefined {
    if (!this.#has(CreateCqWcFlags.WITH_TM_INFO)) return undefined;
    return { tag: this.#uint64(tmTag), priv: this.#extra.getUint32(this.#offset + tmPriv, true) };
  }
  override toObject(): WorkCompletionEx {
    const { completionTs, completionWallclockNs, cvlan, flowTag, tmInfo } = this;
    return Object.assign(super.toObject(), { completionTs, completionWallclockNs, cvlan, flowTag, tmInfo });
  }
  // JSON has no integers of 64 bits.
  override toJSON(): object {
    const { completionTs, completionWallclockNs, tmInfo, ...rest } = this.toObject();
    return {
      ...rest,
      completionTs: completionTs?.toString(),
      completionWallclockNs: completionWallclockNs?.toString(),
      tmInfo: tmInfo && { tag: tmInfo.tag.toString(), priv: tmInfo.priv },
    };
  }

  #has(flag: number): boolean {
    return (this.#wcFlags & flag) !== 0 && this.status === WcStatus.SUCCESS;
  }
  #uint64(field: number): bigint {
    return this.#extra.getBigUint64(this.#offset + field, true);
  }
}

/**
 * An extended completion queue: `struct ibv_cq_ex`. Used as any other; its completions tell more, or less, as `wcFlags`
 * says. Made by `context.createCqEx()`.
 *
 * @see ibv_create_cq_ex(3)
 */
export class CompletionQueueEx extends CompletionQueue<WorkCompletionEx> {
  /** What it tells of a completion: `CreateCqWcFlags` joined with `|`. */
  readonly wcFlags: number;
  /** How it is used: `CreateCqAttrFlags` joined with `|`. */
  readonly flags: number;
  /** The parent domain that it was made with, or undefined. */
  readonly parentDomain: ProtectionDomain | undefined;

  /** @internal */
  constructor(
    context: Context,
    cqe: number,
    channel: CompletionChannel | null,
    allowOverrun: boolean,
    wcFlags: number,
    flags: number,
    parentDomain: ProtectionDomain | undefined,
    create: (id: number) => NativeCq,
  ) {
    const more = parentDomain ? [parentDomain] : [];
    const ring = (handle: CqHandle, capacity: number) => extendedRing(handle, capacity, wcFlags);
    super(context, cqe, channel, allowOverrun, create, ring, more);
    this.wcFlags = wcFlags;
    this.flags = flags;
    this.parentDomain = parentDomain;
  }

  /** As of an ordinary queue; one that is SINGLE_THREADED is resized on this thread. */
  override async resize(cqe: number): Promise<void> {
    if (this.isSingleThreaded) this.resizeSync(cqe);
    else await super.resize(cqe);
  }

  /** Whether no other thread may touch it, not even one of the pool. @internal */
  override get isSingleThreaded(): boolean {
    return (this.flags & CreateCqAttrFlags.SINGLE_THREADED) !== 0;
  }

  /** @internal */
  protected override fields(): object {
    const { wcFlags, flags } = this;
    const shown = { wcFlags: flagged(CreateCqWcFlags)(wcFlags), flags: flagged(CreateCqAttrFlags)(flags) };
    return { ...super.fields(), ...shown };
  }

  /** @internal */
  override describe(): string {
    return `CompletionQueueEx (${this.cqe} entries)`;
  }
}

function extendedRing(handle: CqHandle, capacity: number, wcFlags: number): Ring {
  const { memory, list } = binding().createWcRingEx(handle, capacity);
  return { list, cursor: new CursorEx(memory, capacity, wcFlags) };
}
