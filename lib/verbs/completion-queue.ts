import { constants } from 'node:os';
import { setImmediate } from 'node:timers/promises';
import { abortSignal, boolean, integer, rangeError, readOptions, stateError } from '../args.ts';
import { RdmaClosedError, RdmaDeviceLostError, RdmaError } from '../errors.ts';
import { brief } from '../inspect.ts';
import { binding, doorbell } from '../native/binding.ts';
import { Layout } from '../native/layout.gen.ts';
import { BELL_COUNT, BELL_LIST, BELL_RESULT, type CqHandle, type NativeCq } from '../native/native.ts';
import type { CompletionChannel } from './completion-channel.ts';
import { type Claim, CompletionClaims } from './completion-claims.ts';
import type { Context } from './context.ts';
import { withinLimits } from './limits.ts';
import { Resource } from './resource.ts';
import { Cursor } from './wc-cursor.ts';
import type { WorkCompletion } from './work-completion.ts';

// Completions that one poll takes: more at once gains nothing, and the ring stays in the cache.
const RING_CAPACITY = 256;

// Waits that may be over at once before the event loop gets its turn; and microseconds of spinning.
const TURN = 512;

// Who wants to spin for longer calls poll().
const MAX_SPIN_US = 1_000_000;

/** How a completion queue is made. */
export interface CqOptions {
  /**
   * Where its events go. Default: one channel that all queues of the context share. null: none, for a queue that is only
   * polled.
   */
  channel?: CompletionChannel | null;
  /** The completion vector that serves its events, from 0 to `context.numCompVectors` less one. Default 0. */
  compVector?: number;
  /**
   * Takes queue pairs whose requests do not all have room, for who sees to it otherwise that they do not complete all at
   * once. Default false.
   */
  allowOverrun?: boolean;
}

/**
 * A completion queue: `struct ibv_cq`. Three ways to wait: spin on `poll()`, `await cq.wait()`, or
 * `for await (const wc of cq)`. One consumer at a time: each completion is given out once.
 *
 * @see ibv_create_cq(3), ibv_poll_cq(3), ibv_req_notify_cq(3)
 */
export class CompletionQueue<Wc extends WorkCompletion = WorkCompletion> extends Resource {
  /** Where its events go, or null: then it can only be polled. */
  readonly channel: CompletionChannel | null;
  /** The device it belongs to. */
  readonly context: Context;
  /** @internal */
  readonly handle: CqHandle;
  /** Whether more completions may be outstanding than there are entries. */
  readonly allowOverrun: boolean;
  /** Whose requests complete here. @internal */
  readonly claims = new CompletionClaims();
  readonly #id: number;
  readonly #list: number;
  readonly #bell = doorbell();
  readonly #ring = binding().ring;
  readonly #cursor: Cursor;
  #cqe: number;
  // What it is being resized to, on a thread of the pool.
  #resizing: number | undefined;
  // Waits that were over at once, and microseconds of spinning, since the event loop last had its turn.
  #immediate = 0;
  #spinUs = 0;
  // How many the last poll found.
  #found = 0;
  // Who waits for an event. While there are any, the channel knows the queue.
  #waiters: Waiter[] = [];

  /**
   * @param create - calls the create verb, for a queue that events call by that number
   * @param createRing - makes what `poll()` fills
   * @param more - what it needs besides
   * @internal
   */
  constructor(
    context: Context,
    cqe: number,
    channel: CompletionChannel | null,
    allowOverrun: boolean,
    create: (id: number) => NativeCq,
    createRing: (handle: CqHandle, capacity: number) => Ring = ordinaryRing,
    more: readonly Resource[] = [],
  ) {
    const id = nextId();
    const native = withinLimits(context, [['cqe', cqe, 'maxCqe']], 'maxCq', () => create(id));
    super([context, ...(channel ? [channel] : []), ...more]);
    this.context = context;
    this.channel = channel;
    this.allowOverrun = allowOverrun;
    this.#id = id;
    this.handle = native.handle;
    this.#cqe = native.cqe;
    const ring = createRing(this.handle, RING_CAPACITY);
    this.#list = ring.list;
    this.#cursor = ring.cursor;
    context.events.enter('cq', id, this);
  }

  /** Entries that the queue was granted: at least what was asked for. */
  get cqe(): number {
    return this.#cqe;
  }

  /**
   * Takes the completions that are there, without waiting. Read them with `at(i)` before the next poll.
   *
   * @param max - how many at the most; default as many as one call gives, which is up to 256
   * @returns their number, 0 when there are none
   * @throws RdmaError EIO when `ibv_poll_cq` fails; RdmaDeviceLostError when there are none and the device is lost
   */
  poll(max = RING_CAPACITY): number {
    if (this.closed) this.requireOpen();
    const bell = this.#bell;
    bell[BELL_LIST] = this.#list;
    const isUsual = typeof max === 'number' && max >>> 0 === max && (max - 1) >>> 0 < RING_CAPACITY;
    bell[BELL_COUNT] = isUsual ? max : Math.min(integer(max, 'max', 1, 2 ** 31), RING_CAPACITY);
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
  at(index: number): Wc {
    if (typeof index !== 'number' || index >>> 0 !== index || index >= this.#found) {
      integer(index, 'index', 0, Math.max(this.#found - 1, 0));
      throw rangeError('index: the last poll found nothing');
    }
    return this.#cursor.at(index) as WorkCompletion as Wc;
  }

  /** As `poll()`, but as objects of their own, for who keeps them. */
  pollWc(max?: number): Wc[] {
    const count = this.poll(max);
    return Array.from({ length: count }, (_, i) => this.#cursor.at(i).toObject() as Wc);
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
   * Microseconds that a wait polls before it arms the queue and sleeps: `wait()`, the iteration, and the operations of an
   * endpoint. An event costs some microseconds more than a poll finds, so that who expects an answer soon is quicker by
   * spinning. The event loop has its turn at least every 512 microseconds meanwhile. Default 0; at most 1,000,000.
   */
  get spinUs(): number {
    return this.#spinUs;
  }
  /** How many; from the next wait on. */
  set spinUs(value: number) {
    this.#spinUs = integer(value, 'spinUs', 0, MAX_SPIN_US);
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
      if (found === 0 && this.#spinUs > 0) {
        await this.spin(() => {
          found = this.poll();
          return found > 0;
        }, signal);
        // Who asked goes on between the end of the spinning and here, and may have aborted.
        if (found === 0) signal?.throwIfAborted();
      }
      if (found === 0) {
        // What arrives between the poll and the arming makes no event. Who waits for any is not to miss one: on some devices
        // the last arming counts.
        this.reqNotify(solicitedOnly && this.#waiters.every((waiter) => waiter.solicitedOnly));
        found = this.poll();
      }
      if (found > 0) {
        if (this.#isTurnOver()) await setImmediate();
        return found;
      }
      await this.nextEvent(signal, solicitedOnly);
    }
  }

  /**
   * The completions one by one, waiting for each, until the queue is closed. Nothing is taken in advance, so leaving the
   * loop loses nothing.
   */
  async *[Symbol.asyncIterator](): AsyncGenerator<Wc, void, void> {
    this.requireOpen();
    while (!this.closed) {
      let isFound = this.poll(1) > 0;
      if (!isFound && this.#spinUs > 0) {
        isFound = await this.spin(() => this.closed || this.poll(1) > 0, undefined);
        if (this.closed) return;
      }
      if (!isFound) {
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
      const wc = this.#cursor.at(0).toObject() as Wc;
      if (this.#isTurnOver()) await setImmediate();
      yield wc;
    }
  }

  // Promises alone never let the event loop have its turn, so who always finds completions must do so now and then.
  #isTurnOver(): boolean {
    if (++this.#immediate < TURN) return false;
    this.#immediate = 0;
    return true;
  }

  /** Looks again and again for `spinUs`; returns whether that found something. @internal */
  async spin(look: () => boolean, signal: AbortSignal | undefined): Promise<boolean> {
    let start = performance.now();
    const end = start + this.#spinUs / 1000;
    for (;;) {
      const turn = Math.min(start + (TURN - this.#immediate) / 1000, end);
      for (let now = start; now < turn; now = performance.now()) {
        if (look()) {
          this.#immediate += 1 + Math.floor((now - start) * 1000);
          return true;
        }
      }
      if (turn === end) return false;
      this.#immediate = 0;
      await setImmediate();
      signal?.throwIfAborted();
      start = performance.now();
    }
  }

  /** An event arrived for this queue. @internal */
  onEvent(): void {
    this.#endWaits((waiter) => waiter.resolve());
  }

  #endWaits(end: (waiter: Waiter) => void): void {
    if (this.#waiters.length === 0) return;
    for (const waiter of this.#waiters) end(waiter);
    this.#waiters = [];
    this.channel?.endWait(this.#id);
  }

  /** Resolves at the next event, for who has armed the queue and polled it empty since. @internal */
  nextEvent(signal: AbortSignal | undefined, solicitedOnly = false): Promise<void> {
    const channel = this.#requireChannel();
    this.#immediate = 0;
    if (this.#waiters.length === 0) channel.beginWait(this.#id, this);
    let waiter: Waiter | undefined;
    const event = new Promise<void>((resolve, reject) => {
      waiter = { solicitedOnly, resolve, reject };
      this.#waiters.push(waiter);
    });
    return signal ? this.#orAborted(event, waiter as Waiter, signal) : event;
  }

  async #orAborted(event: Promise<void>, waiter: Waiter, signal: AbortSignal): Promise<void> {
    const abort = () => {
      waiter.reject(signal.reason as Error);
      const index = this.#waiters.indexOf(waiter);
      if (index === -1) return;
      this.#waiters.splice(index, 1);
      if (this.#waiters.length === 0) this.channel?.endWait(this.#id);
    };
    signal.addEventListener('abort', abort, { once: true });
    try {
      await event;
    } finally {
      signal.removeEventListener('abort', abort);
    }
  }

  #requireChannel(): CompletionChannel {
    if (this.channel === null) throw stateError('This completion queue has no channel: it can only be polled');
    return this.channel;
  }

  /**
   * Completions that the queue pairs which complete here can make before somebody polls: the sum of their `maxSendWr` and
   * `maxRecvWr`, and of the `maxWr` of each shared receive queue that they take from. Never more than `cqe`, but where
   * `allowOverrun` is set.
   */
  get claimed(): number {
    return this.claims.total;
  }

  /** Whether no other thread may touch it, not even one of the pool. @internal */
  get isSingleThreaded(): boolean {
    return false;
  }

  /** Refuses what could overrun the queue. @internal */
  requireRoom(claim: Claim, syscall: string): void {
    if (!this.allowOverrun) this.claims.require(Math.min(this.#cqe, this.#resizing ?? this.#cqe), claim, syscall);
  }

  /**
   * Gives the queue another length. The completions that wait in it stay. Pins its memory on a thread of the pool; a poll
   * meanwhile may wait for that.
   *
   * @param cqe - entries wanted, at least 1; `cq.cqe` says what was granted
   * @throws CqOverrunError when its queue pairs claim more
   * @throws RdmaError EINVAL when more completions wait, or the device has no queues that long; EOPNOTSUPP where it cannot.
   *   The queue is what it was then
   * @see ibv_resize_cq(3)
   */
  async resize(cqe: number): Promise<void> {
    this.#requireResizable(cqe);
    this.#resizing = cqe;
    try {
      this.#cqe = await this.track(binding().resizeCq(this.handle, cqe));
    } catch (error) {
      throw this.#explainResize(error, cqe);
    } finally {
      this.#resizing = undefined;
    }
  }

  /** As `resize()`, but on this thread: it blocks for as long as the memory takes to be pinned. */
  resizeSync(cqe: number): void {
    this.#requireResizable(cqe);
    try {
      this.#cqe = binding().resizeCqSync(this.handle, cqe);
    } catch (error) {
      throw this.#explainResize(error, cqe);
    }
  }

  #requireResizable(cqe: number): void {
    this.requireOpen();
    integer(cqe, 'cqe', 1, 0x7fff_fffe);
    if (this.#resizing !== undefined) throw stateError(`The queue is being resized to ${this.#resizing} entries`);
    if (!this.allowOverrun) this.claims.require(cqe, { sends: 0, recvs: 0, srq: null }, 'ibv_resize_cq');
  }

  #explainResize(error: unknown, cqe: number): unknown {
    if (!(error instanceof RdmaError && error.code === 'EINVAL')) return error;
    const { maxCqe } = this.context.queryDevice();
    return error.explained(
      cqe > maxCqe
        ? `cqe is ${cqe}, maxCqe of the device ${maxCqe}`
        : 'more completions wait in the queue than it would have entries: poll them first',
    );
  }

  /**
   * Moderates the events of the queue: one comes when so many completions have, or so long after the first of them.
   *
   * @param attr - `cqCount`: completions, 0 to 65,535. `cqPeriod`: microseconds, 0 to 65,535; the device may take less
   *   (`cqModCaps` of `context.queryDeviceEx()`). Both 0: an event for each, which is how a queue begins
   * @throws RdmaError EOPNOTSUPP where the device cannot; EINVAL for more than it can
   * @see ibv_modify_cq(3)
   */
  modify(attr: { cqCount: number; cqPeriod: number }): void {
    this.requireOpen();
    const { cqCount, cqPeriod } = readOptions(attr, 'attr', ['cqCount', 'cqPeriod']);
    const count = integer(cqCount, 'attr.cqCount', 0, 0xffff);
    binding().modifyCq(this.handle, count, integer(cqPeriod, 'attr.cqPeriod', 0, 0xffff));
  }

  /** @internal */
  describe(): string {
    return `CompletionQueue (${this.cqe} entries)`;
  }

  /** @internal */
  protected override fields(): object {
    const { cqe, channel, context } = this;
    return { cqe, context: brief(context), channel: channel && brief(channel), queuePairs: this.claims.owners };
  }

  protected readonly destroyVerb = 'ibv_destroy_cq';

  protected override onLost(): void {
    this.#endWaits((waiter) => waiter.reject(new RdmaDeviceLostError(this.describe())));
  }

  protected destroy(): void {
    binding().destroyCq(this.handle);
    this.context.events.leave('cq', this.#id);
    this.#endWaits((waiter) => waiter.reject(new RdmaClosedError(this.describe())));
  }
}

interface Waiter {
  /** Whether the queue need not be armed for all that comes. */
  solicitedOnly: boolean;
  resolve(): void;
  reject(error: Error): void;
}

/** What `poll()` fills: what the doorbell calls it, and who reads it. @internal */
export interface Ring {
  readonly list: number;
  readonly cursor: Cursor;
}

function ordinaryRing(handle: CqHandle, capacity: number): Ring {
  const { memory, list } = binding().createWcRing(handle, capacity);
  return { list, cursor: new Cursor(memory, new Float64Array(memory, capacity * Layout.wc.size, capacity)) };
}

let lastId = 0;

// What events name the queues of this thread by.
function nextId(): number {
  lastId = (lastId % 0xffff_ffff) + 1;
  return lastId;
}
