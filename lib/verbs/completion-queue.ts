import { constants } from 'node:os';
import { setImmediate } from 'node:timers/promises';
import { inspect } from 'node:util';
import { abortSignal, boolean, integer, rangeError, readOptions, stateError } from '../args.ts';
import { RdmaClosedError, RdmaDeviceLostError, RdmaError } from '../errors.ts';
import { brief, type Inspecting } from '../inspect.ts';
import { binding, doorbell } from '../native/binding.ts';
import { Layout } from '../native/layout.gen.ts';
import {
  BELL_COUNT,
  BELL_LIST,
  BELL_RESULT,
  type ContextHandle,
  type CqHandle,
  type NativeMlx5CqInitAttr,
} from '../native/native.ts';
import type { CompletionChannel } from './completion-channel.ts';
import type { Context } from './context.ts';
import { withinLimits } from './limits.ts';
import { Resource } from './resource.ts';
import { Completion, shownCompletion, type WorkCompletion } from './work-completion.ts';

const WORDS = Layout.wc.size / 4;
const STATUS = Layout.wc.status / 4;
const OPCODE = Layout.wc.opcode / 4;
const VENDOR_ERR = Layout.wc.vendorErr / 4;
const BYTE_LEN = Layout.wc.byteLen / 4;
const IMM_DATA = Layout.wc.immData / 4;
const QP_NUM = Layout.wc.qpNum / 4;
const SRC_QP = Layout.wc.srcQp / 4;
const WC_FLAGS = Layout.wc.wcFlags / 4;

// More at once gains nothing, and the ring stays in the cache.
const RING_CAPACITY = 256;

// Waits that may be over at once before the event loop gets its turn.
const TURN = 512;

// What is waited for: a queue that only a pending wait refers to must not be collected, or the wait would never end.
const waits = new Set<object>();

/** Swaps the bytes of a 32-bit word: immediate data travels in network order. @internal */
export function swap32(word: number): number {
  return ((word << 24) | ((word & 0xff00) << 8) | ((word >>> 8) & 0xff00) | (word >>> 24)) >>> 0;
}

// Reads one entry of the ring. One object for all entries: at(i) moves it.
class Cursor implements WorkCompletion {
  readonly #words: Int32Array;
  readonly #bytes: DataView;
  readonly #wrIds: Float64Array;
  #base = 0;

  constructor(memory: ArrayBuffer, wrIds: Float64Array) {
    this.#words = new Int32Array(memory);
    this.#bytes = new DataView(memory);
    this.#wrIds = wrIds;
  }

  at(index: number): this {
    this.#base = index * WORDS;
    return this;
  }
  get wrId(): number {
    return this.#wrIds[this.#base / WORDS] as number;
  }
  get status(): number {
    return this.#words[this.#base + STATUS] as number;
  }
  get opcode(): number {
    return this.#words[this.#base + OPCODE] as number;
  }
  get vendorErr(): number {
    return (this.#words[this.#base + VENDOR_ERR] as number) >>> 0;
  }
  get byteLen(): number {
    return (this.#words[this.#base + BYTE_LEN] as number) >>> 0;
  }
  get immData(): number {
    return swap32(this.#words[this.#base + IMM_DATA] as number);
  }
  get invalidatedRkey(): number {
    return (this.#words[this.#base + IMM_DATA] as number) >>> 0;
  }
  get qpNum(): number {
    return (this.#words[this.#base + QP_NUM] as number) >>> 0;
  }
  get srcQp(): number {
    return (this.#words[this.#base + SRC_QP] as number) >>> 0;
  }
  get wcFlags(): number {
    return (this.#words[this.#base + WC_FLAGS] as number) >>> 0;
  }
  get pkeyIndex(): number {
    return this.#bytes.getUint16(this.#base * 4 + Layout.wc.pkeyIndex, true);
  }
  get slid(): number {
    return this.#bytes.getUint16(this.#base * 4 + Layout.wc.slid, true);
  }
  get sl(): number {
    return this.#bytes.getUint8(this.#base * 4 + Layout.wc.sl);
  }
  get dlidPathBits(): number {
    return this.#bytes.getUint8(this.#base * 4 + Layout.wc.dlidPathBits);
  }
  toJSON(): WorkCompletion {
    return new Completion(this);
  }
  [inspect.custom](...how: Inspecting): object | string {
    return shownCompletion(this, ...how);
  }
}

/**
 * A completion queue: `struct ibv_cq`. Three ways to wait: spin on `poll()`, `await cq.wait()`, or
 * `for await (const wc of cq)`. One consumer at a time: each completion is given out once.
 *
 * @see ibv_create_cq(3), ibv_poll_cq(3), ibv_req_notify_cq(3)
 */
export class CompletionQueue extends Resource {
  /** Entries that the queue was granted: at least what was asked for. */
  readonly cqe: number;
  /** Where its events go, or null: then it can only be polled. */
  readonly channel: CompletionChannel | null;
  /** The device it belongs to. */
  readonly context: Context;
  /** @internal */
  readonly handle: CqHandle;
  // Keeps the queue pairs whose completions come here: one that is dropped in flight must not take them along.
  readonly #attached = new Set<Resource>();
  readonly #id: number;
  readonly #list: number;
  readonly #bell = doorbell();
  readonly #ring = binding().ring;
  readonly #capacity: number;
  readonly #cursor: Cursor;
  // Waits that were over at once, since the event loop last had its turn.
  #immediate = 0;
  // How many the last poll found.
  #found = 0;
  readonly #waiters = new Set<{ resolve: () => void; reject: (error: Error) => void }>();

  /** @internal */
  constructor(
    context: Context,
    contextHandle: ContextHandle,
    cqe: number,
    channel: CompletionChannel | null,
    compVector: number,
    mlx5?: NativeMlx5CqInitAttr,
  ) {
    const id = nextId();
    const args = [contextHandle, cqe, channel ? channel.handle : null, compVector, id] as const;
    const native = withinLimits(context, [['cqe', cqe, 'maxCqe']], 'maxCq', () =>
      mlx5 === undefined ? binding().createCq(...args) : binding().mlx5CreateCq(...args, mlx5),
    );
    super(channel ? [context, channel] : [context]);
    this.context = context;
    this.channel = channel;
    this.#id = id;
    this.handle = native.handle;
    this.cqe = native.cqe;
    this.#capacity = Math.min(native.cqe, RING_CAPACITY);
    const ring = binding().createWcRing(this.handle, this.#capacity);
    this.#list = ring.list;
    const wrIds = new Float64Array(ring.memory, this.#capacity * Layout.wc.size, this.#capacity);
    this.#cursor = new Cursor(ring.memory, wrIds);
    channel?.attach(id, this);
    context.events.enter('cq', id, this);
  }

  /**
   * Takes the completions that are there, without waiting. Read them with `at(i)` before the next poll.
   *
   * @param max - how many at the most; default as many as one call gives, which is up to 256
   * @returns their number, 0 when there are none
   * @throws RdmaError EIO when `ibv_poll_cq` fails; RdmaDeviceLostError when there are none and the device is lost
   */
  poll(max = this.#capacity): number {
    if (this.closed) this.requireOpen();
    const bell = this.#bell;
    bell[BELL_LIST] = this.#list;
    const capacity = this.#capacity;
    const isUsual = typeof max === 'number' && max >>> 0 === max && (max - 1) >>> 0 < capacity;
    bell[BELL_COUNT] = isUsual ? max : Math.min(integer(max, 'max', 1, 2 ** 31), capacity);
    this.#ring();
    const count = bell[BELL_RESULT] as number;
    if (count < 0) throw new RdmaError('ibv_poll_cq', constants.errno.EIO, `it returned ${count}`);
    // What has completed before the device was lost can still be taken.
    if (count === 0 && this.lost) this.requireOpen();
    this.#found = count;
    return count;
  }

  /**
   * The completion at that position of the last poll. The same object each time, moved: read it, do not keep it.
   *
   * @param index - from 0 to what `poll()` returned, less one
   * @throws RangeError `ERR_OUT_OF_RANGE` for one that it did not find
   */
  at(index: number): WorkCompletion {
    if (typeof index !== 'number' || index >>> 0 !== index || index >= this.#found) {
      integer(index, 'index', 0, Math.max(this.#found - 1, 0));
      throw rangeError('index: the last poll found nothing');
    }
    return this.#cursor.at(index);
  }

  /** As `poll()`, but as objects of their own, for who keeps them. */
  pollWc(max?: number): WorkCompletion[] {
    const count = this.poll(max);
    return Array.from({ length: count }, (_, i) => this.#cursor.at(i).toJSON());
  }

  /**
   * Asks for one event when the next completion arrives: what makes `wait()` wake up, which does this itself.
   *
   * @param solicitedOnly - only for receives that the sender marked solicited, and for failures; default false
   * @throws Error `ERR_INVALID_STATE` when the queue has no channel
   */
  reqNotify(solicitedOnly = false): void {
    this.requireOpen();
    this.#requireChannel();
    binding().reqNotifyCq(this.handle, boolean(solicitedOnly, 'solicitedOnly'));
  }

  /**
   * Waits until there are completions and takes them, as `poll()` does. The event loop goes on meanwhile, and the wait
   * keeps the process alive. The loop gets its turn too when there always are some.
   *
   * @param options - `signal`: ends the wait. `solicitedOnly`: wake up only for receives that the sender marked solicited
   *   and for failures; what has come by then is taken along. Default false
   * @returns how many were taken: at least 1; read them with `at(i)`
   * @throws RdmaClosedError when the queue is closed meanwhile, RdmaDeviceLostError when the device is lost; the
   *   signal's reason when it is aborted; Error `ERR_INVALID_STATE` when the queue has no channel
   */
  async wait(options: { signal?: AbortSignal; solicitedOnly?: boolean } = {}): Promise<number> {
    const { signal: given, solicitedOnly = false } = readOptions(options, 'options', ['signal', 'solicitedOnly']);
    const signal = abortSignal(given, 'options.signal');
    boolean(solicitedOnly, 'options.solicitedOnly');
    for (;;) {
      signal?.throwIfAborted();
      let found = this.poll();
      if (found === 0) {
        // What arrives between the poll and the arming makes no event.
        this.reqNotify(solicitedOnly);
        found = this.poll();
      }
      if (found > 0) {
        if (this.#isTurnOver()) await setImmediate();
        return found;
      }
      await this.nextEvent(signal);
    }
  }

  /**
   * The completions one by one, waiting for each, until the queue is closed. Nothing is taken in advance, so leaving the
   * loop loses nothing.
   */
  async *[Symbol.asyncIterator](): AsyncGenerator<WorkCompletion, void, void> {
    this.requireOpen();
    while (!this.closed) {
      if (this.poll(1) === 0) {
        this.reqNotify();
        if (this.poll(1) === 0) {
          try {
            await this.nextEvent(undefined);
          } catch (error) {
            if (!this.closed) throw error;
          }
          continue;
        }
      }
      const wc = this.#cursor.at(0).toJSON();
      if (this.#isTurnOver()) await setImmediate();
      yield wc;
    }
  }

  // Promises alone never let the event loop have its turn, so who always finds completions must do so now and then.
  #isTurnOver(): boolean {
    this.#immediate = (this.#immediate + 1) % TURN;
    return this.#immediate === 0;
  }

  /** An event arrived for this queue. @internal */
  onEvent(): void {
    for (const waiter of this.#waiters) waiter.resolve();
  }

  /** Resolves at the next event, for who has armed the queue and polled it empty since. @internal */
  async nextEvent(signal: AbortSignal | undefined): Promise<void> {
    const channel = this.#requireChannel();
    this.#immediate = 0;
    const { promise, resolve, reject } = withResolvers();
    const waiter = { queue: this, resolve, reject };
    const abort = () => reject(signal?.reason as Error);
    this.#waiters.add(waiter);
    waits.add(waiter);
    signal?.addEventListener('abort', abort, { once: true });
    channel.wait(1);
    try {
      await promise;
    } finally {
      channel.wait(-1);
      signal?.removeEventListener('abort', abort);
      this.#waiters.delete(waiter);
      waits.delete(waiter);
    }
  }

  #requireChannel(): CompletionChannel {
    if (this.channel === null) throw stateError('This completion queue has no channel: it can only be polled');
    return this.channel;
  }

  /** @internal */
  attach(queuePair: Resource): void {
    this.#attached.add(queuePair);
  }

  /** @internal */
  detach(queuePair: Resource): void {
    this.#attached.delete(queuePair);
  }

  /** @internal */
  describe(): string {
    return `CompletionQueue (${this.cqe} entries)`;
  }

  /** @internal */
  protected override fields(): object {
    const { cqe, channel, context } = this;
    return { cqe, context: brief(context), channel: channel && brief(channel), queuePairs: this.#attached.size };
  }

  protected readonly destroyVerb = 'ibv_destroy_cq';

  protected override onLost(): void {
    for (const waiter of this.#waiters) waiter.reject(new RdmaDeviceLostError(this.describe()));
  }

  protected destroy(): void {
    binding().destroyCq(this.handle);
    this.channel?.detach(this.#id);
    this.context.events.leave('cq', this.#id);
    for (const waiter of this.#waiters) waiter.reject(new RdmaClosedError(this.describe()));
  }
}

let lastId = 0;

// What events name the queues of this thread by.
function nextId(): number {
  lastId = (lastId % 0xffff_ffff) + 1;
  return lastId;
}

// Promise.withResolvers, which Node 20 lacks.
function withResolvers(): { promise: Promise<void>; resolve: () => void; reject: (error: Error) => void } {
  let resolve: () => void = () => {};
  let reject: (error: Error) => void = () => {};
  const promise = new Promise<void>((yes, no) => {
    resolve = yes;
    reject = no;
  });
  return { promise, resolve, reject };
}
