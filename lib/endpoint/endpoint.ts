import { inspect } from 'node:util';
import { abortSignal, boolean, instance, integer, readOptions, typeError, valueError } from '../args.ts';
import {
  RdmaClosedError,
  RdmaDeviceLostError,
  RdmaPeerLeftError,
  RdmaQpFailedError,
  type WorkCompletionError,
} from '../errors.ts';
import { type Inspecting, shown, word } from '../inspect.ts';
import { AccessFlags, QpState, SendFlags, WcFlags, WcStatus, WrOpcode } from '../native/constants.gen.ts';
import { isIwarp } from '../verbs/iwarp.ts';
import { MemoryRegion, MemorySlice } from '../verbs/memory-region.ts';
import type { MemoryWindow } from '../verbs/memory-window.ts';
import { QueuePair } from '../verbs/queue-pair.ts';
import type { RecvWr } from '../verbs/recv-list.ts';
import type { SendWr } from '../verbs/send-wr.ts';
import type { WorkCompletion } from '../verbs/work-completion.ts';
import { batchOf, inlineFlag } from './batch.ts';
import { failureOf } from './causes.ts';
import { CompletionLoop } from './completion-loop.ts';
import { type Connection, endpointOptions, type FirstRecvs, turnToBlock } from './endpoint-qp.ts';
import { type OperationOptions, Operations, type Received } from './operations.ts';
import { abortable, outcomeOf } from './outcomes.ts';
import { NOTHING, RECV, type Request, RequestQueue, told } from './request-queue.ts';
import { Scope } from './scope.ts';
import { checkSharedAccess, SharedMemory, windowOf } from './shared-memory.ts';

const operationOptionNames = ['fence', 'solicited', 'signaled', 'signal'];

// What a device takes to flush: it does so at once, or not at all.
const FLUSH_MS = 2000;

// A reason comes within a turn of the event loop, or within some of a busy machine.
const REASON_MS = 100;

// A request that has failed, with what its completion says.
interface Failed {
  request: Request;
  wc: Pick<WorkCompletion, 'status' | 'vendorErr' | 'qpNum'>;
}

/**
 * A connected queue pair with `await`: each operation is a promise that its completion settles. Operations are executed
 * in the order of the calls; many may be under way, `qp.cap.maxSendWr` of them (for `recv()`: `maxRecvWr`), and more wait
 * for their turn. The memory of an operation is held until its completion, whatever becomes of the promise.
 *
 * A failed operation rejects with a {@link WorkCompletionError}, the queue pair is in the error state then, and
 * everything behind it rejects with WR_FLUSH_ERR, in order; `closed` resolves with the error.
 *
 * What cannot be posted rejects at once and changes nothing: TypeError or RangeError for a wrong argument, QueueFullError
 * when more than `maxWaiting` would wait, RdmaClosedError after `close()`.
 *
 * An operation under way keeps the endpoint, and the process, alive.
 */
export class Endpoint extends Operations {
  /** The queue pair. Its queues belong to this endpoint: nobody else may post to them or poll them. */
  readonly qp: QueuePair;
  /** The receives that were posted before the peer could send, in the order of the option `recvs`; else empty. */
  readonly recvs: readonly Promise<Received>[] = [];
  /**
   * Resolves when the connection has ended, with the reason: undefined after `close()`; the {@link WorkCompletionError} of
   * the first operation that failed; RdmaPeerLeftError when the peer has left (by the connection manager: others cannot
   * know); RdmaQpFailedError when a request of the peer was refused, where the device tells; RdmaDeviceLostError.
   * Never rejects.
   */
  readonly closed: Promise<Error | undefined>;
  readonly #sends: RequestQueue<SendWr>;
  readonly #recvs: RequestQueue<RecvWr>;
  readonly #loop: CompletionLoop;
  readonly #windows = new Map<MemoryWindow, SharedMemory | undefined>();
  #privateData: Buffer;
  #connection: Connection | undefined;
  #closing: Promise<void> | undefined;
  // Flushed before it is known why.
  readonly #held: Failed[] = [];
  // Why the connection has ended, once it has.
  #end: { reason: Error | undefined } | undefined;
  #tellClosed!: (reason: Error | undefined) => void;

  /**
   * @param qp - connected, its completion queues used by it alone
   * @param privateData - what the peer sent along
   * @param options - `maxWaiting`: operations that may wait for their turn in each direction. Default 16,384
   */
  constructor(qp: QueuePair, privateData: Buffer = Buffer.alloc(0), options: { maxWaiting?: number } = {}) {
    super();
    this.qp = instance(qp, 'qp', QueuePair);
    if (qp.recvCq !== qp.sendCq) throw valueError('qp must have one completion queue for both directions');
    const { maxWaiting } = endpointOptions(readOptions(options, 'options', ['maxWaiting']));
    if (!Buffer.isBuffer(privateData)) throw typeError('privateData', 'a Buffer', privateData);
    this.#privateData = privateData;
    const broken = (error: Error) => this.#fail(error);
    this.#sends = new RequestQueue<SendWr>(qp, false, maxWaiting, broken);
    this.#recvs = new RequestQueue<RecvWr>(qp, true, maxWaiting, broken);
    this.#loop = new CompletionLoop(
      qp,
      { sends: this.#sends, recvs: this.#recvs },
      (wc) => this.#settle(wc),
      (error) => this.#lost(error),
    );
    this.closed = new Promise((resolve) => {
      this.#tellClosed = resolve;
    });
    qp.onGone = (error) => {
      if (this.#closing) return;
      if (error instanceof RdmaQpFailedError) {
        this.#fail(error);
        return;
      }
      this.#ended(error);
      // Of a device that is lost the completions may still be taken that there are.
      if (!qp.lost) this.#abandon(error);
    };
  }

  /** Why the connection has ended, before anybody is told; undefined while it stands. @internal */
  get endReason(): Error | undefined {
    return this.#end?.reason;
  }

  /** What the peer sent along when the connection was made; empty when nothing. */
  get privateData(): Buffer {
    return this.#privateData;
  }

  /**
   * Does something, and waits for all that was begun by it: `body` gets the operations as a {@link Scope}, and its memory
   * may be reused or closed when this promise is settled, also when `body` has thrown. Receives are waited for like all
   * else.
   *
   * @returns what `body` returns
   * @throws what `body` throws; else what the first operation that failed rejected with, even when `body` did not look
   */
  async scope<T>(body: (scope: Scope) => T | Promise<T>): Promise<T> {
    if (typeof body !== 'function') throw typeError('body', 'a function', body);
    const scope = new Scope(this);
    let result: T;
    try {
      result = await body(scope);
    } finally {
      await scope.leave();
    }
    scope.throwIfFailed();
    return result;
  }

  /**
   * Lets the peer use memory until `revoke()` is called or the connection ends: by a memory window of type 2, whose key is for
   * this connection only. (The key of `mr.remote()` is for all queue pairs of the domain, and is revoked by closing the
   * region.)
   *
   * @param memory - a region or a part of one, registered with `AccessFlags.MW_BIND`, and with LOCAL_WRITE to be written to
   * @param access - what the peer may do: REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC, joined with `|`
   * @returns when the peer may use it; send it to the peer as JSON
   * @throws RdmaError EOPNOTSUPP where the device has no windows of type 2
   * @see ibv_alloc_mw(3), ibv_bind_mw(3)
   */
  async share(memory: MemoryRegion | MemorySlice, access: number): Promise<SharedMemory> {
    const slice = memory instanceof MemoryRegion ? memory.slice() : instance(memory, 'memory', MemorySlice);
    checkSharedAccess(access);
    if (slice.region.pd !== this.qp.pd) {
      throw valueError('memory is of another protection domain than the queue pair');
    }
    if ((slice.region.access & AccessFlags.MW_BIND) === 0) {
      throw valueError('memory: its region must be registered with AccessFlags.MW_BIND');
    }
    this.#requireOpen();
    const window = windowOf(this.qp.pd);
    this.#windows.set(window, undefined);
    try {
      const post = (wrId: number) => void this.qp.bindMw(window, { local: slice, access, wrId });
      const wr: SendWr = { wrId: 0, opcode: WrOpcode.BIND_MW, sgList: slice };
      await this.#beginAll(this.#sends, 'share', [wr], { post });
    } catch (error) {
      this.#windows.delete(window);
      window.close();
      throw error;
    }
    const shared = new SharedMemory(this, window, () => this.#windows.delete(window));
    this.#windows.set(window, shared);
    return shared;
  }

  /**
   * Ends the connection. What was sent may complete first; then what is left, and all receives, is flushed and rejects
   * with WR_FLUSH_ERR, the peer is told where the connection manager can, and the queue pair and its completion queue
   * are closed. Idempotent; bounded in time, also when the peer is dead.
   *
   * @param options - `drainMs`: milliseconds for what was sent to complete. Default 1000; 0 flushes it at once
   */
  close(options: { drainMs?: number } = {}): Promise<void> {
    if (this.#closing === undefined) {
      const { drainMs = 1000 } = readOptions(options, 'options', ['drainMs']);
      integer(drainMs, 'options.drainMs', 0, 2 ** 31 - 1);
      this.#closing = this.#close(drainMs);
    }
    return this.#closing;
  }

  /** The same as `close()`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** @internal */
  [inspect.custom](...how: Inspecting): object | string {
    const tag = #closing in this && this.#closing ? (this.qp.closed ? 'closed' : 'closing') : undefined;
    const fields = () => ({
      qp: this.qp,
      privateData: this.privateData.length === 0 ? undefined : word(`${this.privateData.length} bytes`),
      waitingSends: this.#sends.waiting || undefined,
      waitingRecvs: this.#recvs.waiting || undefined,
    });
    return shown('Endpoint', tag, fields, ...how);
  }

  async #close(drainMs: number): Promise<void> {
    const { qp } = this;
    try {
      // What has failed is flushed already.
      if (!this.#end) await this.#until(() => this.#sends.isIdle || this.#end !== undefined, drainMs);
      if (!qp.closed) {
        await this.#connection?.disconnect();
        // Of a device that is gone it fails, and that may not be known yet.
        if (this.#loop.isPending && !qp.closed && !qp.lost) await qp.modify({ qpState: QpState.ERR }).catch(() => {});
        // A device that does not flush must not hold the caller.
        await this.#until(() => !this.#loop.isPending, FLUSH_MS);
        await turnToBlock();
      }
      if (!qp.closed) {
        // Soft-RoCE waits for the windows of a queue pair that it destroys. One in flight can only go behind it.
        const windows = [...this.#windows.keys()];
        for (const window of windows) if (qp.pd.inFlight(window) === 0) window.close();
        qp.close();
        for (const window of windows) window.close();
        qp.sendCq.close();
      }
      this.#connection?.close();
    } finally {
      this.#abandon(new RdmaClosedError('Endpoint'));
      this.#ended(undefined);
    }
  }

  async #until(isDone: () => boolean, ms: number): Promise<void> {
    const deadline = performance.now() + ms;
    while (!isDone() && !this.qp.closed && !this.qp.lost && performance.now() < deadline) {
      this.#loop.drain();
      if (!isDone()) await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }

  /** The connection stands, and is one that wants to be ended. @internal */
  connected(privateData: Buffer, connection: Connection): void {
    this.#privateData = privateData;
    this.#connection = connection;
  }

  /** Whether the peer must send first: on iWARP, to the side that has accepted (RFC 5044). @internal */
  get listensFirst(): boolean {
    return this.#connection?.hasAccepted === true && isIwarp(this.qp.context);
  }

  /** The peer has ended the connection, or the device is gone: what is under way is flushed. @internal */
  peerLeft(reason: Error = new RdmaPeerLeftError()): void {
    if (!this.qp.closed) this.#fail(reason);
  }

  /** Posts the receives of `recvs`, in the state INIT. Throws where one of them cannot be posted. @internal */
  postInitial(recvs: FirstRecvs): void {
    const slices: unknown = recvs?.(this) ?? [];
    if (!Array.isArray(slices)) throw typeError('What options.recvs() returns', 'an array of MemorySlices', slices);
    Array.from(slices, (sgList: MemorySlice, i) => {
      const wr: RecvWr = sgList === undefined ? { wrId: 0 } : { wrId: 0, sgList };
      let how!: Pick<Request, 'resolve' | 'reject'>;
      const promise = new Promise<Received>((resolve, reject) => {
        how = { resolve, reject };
      });
      // Who does not look at them is not to be ended by them.
      promise.catch(() => {});
      try {
        this.#recvs.add({ name: 'recv', wr, ...how, isUnsignaled: false, post: undefined });
      } catch (error) {
        throw told(error, `options.recvs()[${i}]`);
      }
      (this.recvs as Promise<Received>[]).push(promise);
    });
    this.#loop.look();
  }

  #ended(reason: Error | undefined): void {
    if (this.#end) return;
    this.#end = { reason };
    this.#letGo();
    this.#sends.end((request) => this.#refusal(request));
    this.#recvs.end((request) => this.#refusal(request));
    this.#tellClosed(reason);
  }

  // What a request rejects with that was not posted before the end. The device would flush it, but Soft-RoCE not a receive.
  #refusal(request: Request): Error {
    const { reason } = this.#end as { reason: Error | undefined };
    if (reason instanceof RdmaDeviceLostError || reason instanceof RdmaClosedError) return reason;
    const wc = { status: WcStatus.WR_FLUSH_ERR, vendorErr: 0, qpNum: this.qp.qpNum };
    return failureOf(this.qp, request, wc, reason);
  }

  // A device flushes both queues of a queue pair that has failed, but Soft-RoCE leaves the receives where they are until
  // it is told the state that the queue pair is in already.
  #fail(reason: Error): void {
    this.#ended(reason);
    try {
      this.qp.modifySync({ qpState: QpState.ERR });
    } catch {
      // The device is gone, and close() gives up waiting.
    }
    this.#loop.pump();
    // siw flushes what is there at that time, and says nothing of what is posted later, by who does not know yet.
    if (isIwarp(this.qp.context)) setTimeout(() => this.#abandon(), FLUSH_MS).unref();
  }

  // Without an error: with why the connection has ended.
  #abandon(error?: Error): void {
    this.#sends.abandon(error);
    this.#recvs.abandon(error);
  }

  #requireOpen(): void {
    if (this.#closing) throw new RdmaClosedError('Endpoint');
  }

  // Not an async function, which would cost as much again as the whole operation does.
  /** @internal */
  override perform(wr: SendWr, name: string, options?: OperationOptions, scope?: Scope): Promise<void> {
    if (options !== undefined) return this.#performWith(wr, name, options, scope);
    wr.sendFlags = SendFlags.SIGNALED | inlineFlag(wr, this.qp.cap.maxInlineData);
    return this.#begin(this.#sends, name, wr, scope) as Promise<unknown> as Promise<void>;
  }

  /** @internal */
  override performRecv(wr: RecvWr, options?: { signal?: AbortSignal }, scope?: Scope): Promise<Received> {
    if (options === undefined) return this.#begin(this.#recvs, 'recv', wr, scope);
    try {
      const { signal } = readOptions(options, 'options', ['signal']);
      return this.#beginAll(this.#recvs, 'recv', [wr], { signal, scope });
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** @internal */
  override performAll(wrs: readonly SendWr[], options?: { signal?: AbortSignal }, scope?: Scope): Promise<void> {
    try {
      const { signal } = readOptions(options, 'options', ['signal']);
      const copies = batchOf(wrs, this.qp.cap.maxInlineData);
      return this.#beginAll(this.#sends, 'batch', copies, { signal, scope }) as Promise<unknown> as Promise<void>;
    } catch (error) {
      return Promise.reject(error);
    }
  }

  #performWith(wr: SendWr, name: string, options: OperationOptions, scope: Scope | undefined): Promise<void> {
    try {
      const o = readOptions(options, 'options', operationOptionNames);
      const { fence = false, solicited = false, signaled = true, signal } = o;
      wr.sendFlags = SendFlags.SIGNALED | inlineFlag(wr, this.qp.cap.maxInlineData);
      if (boolean(fence, 'options.fence')) wr.sendFlags |= SendFlags.FENCE;
      if (boolean(solicited, 'options.solicited')) wr.sendFlags |= SendFlags.SOLICITED;
      const isUnsignaled = !boolean(signaled, 'options.signaled');
      const operation = this.#beginAll(this.#sends, name, [wr], { signal, scope, isUnsignaled });
      return operation as Promise<unknown> as Promise<void>;
    } catch (error) {
      return Promise.reject(error);
    }
  }

  #begin<Wr extends SendWr | RecvWr>(
    queue: RequestQueue<Wr>,
    name: string,
    wr: Wr,
    scope: Scope | undefined,
  ): Promise<Received> {
    const operation = new Promise<Received>((resolve, reject) => {
      this.#requireOpen();
      try {
        queue.add({ name, wr, resolve, reject, isUnsignaled: false, post: undefined });
      } catch (error) {
        throw told(error, name);
      }
      this.#loop.look();
    });
    scope?.track(operation);
    return operation;
  }

  // As the above with more to it, and for several requests with one promise.
  #beginAll<Wr extends SendWr | RecvWr>(
    queue: RequestQueue<Wr>,
    name: string,
    wrs: readonly Wr[],
    how: { signal?: unknown; scope?: Scope | undefined; isUnsignaled?: boolean; post?: (wrId: number) => void },
  ): Promise<Received> {
    const signal = abortSignal(how.signal, 'options.signal');
    signal?.throwIfAborted();
    const { scope, isUnsignaled = false, post } = how;
    const requests: Request<Wr>[] = [];
    const operation = new Promise<Received>((resolve, reject) => {
      this.#requireOpen();
      const outcome = wrs.length === 1 ? { resolve, reject } : outcomeOf(wrs.length, resolve, reject);
      for (const wr of wrs) requests.push({ name, wr, ...outcome, isUnsignaled, post });
      try {
        if (requests.length === 1) queue.add(requests[0] as Request<Wr>);
        else if (requests.length > 1) queue.addAll(requests);
      } catch (error) {
        throw told(error, name);
      }
      this.#loop.look();
    });
    scope?.track(operation);
    if (signal === undefined) return operation;
    return abortable(operation, signal, () => {
      for (const request of requests) if (queue.withdraw(request)) request.reject(signal.reason);
    });
  }

  // Nothing will complete any more.
  #lost(error: Error): void {
    if (!this.#closing) this.#ended(error);
    this.#abandon(error);
  }

  #settle(wc: WorkCompletion): void {
    const { wrId, status } = wc;
    const isRecv = (wrId & RECV) !== 0;
    const request = isRecv ? this.#recvs.take(wrId) : this.#sends.take(wrId);
    if (request === undefined) return;
    if (status === WcStatus.SUCCESS) {
      if (!isRecv) {
        request.resolve(NOTHING);
        return;
      }
      if (this.#windows.size > 0) this.#invalidated(wc);
      const immData = (wc.wcFlags & WcFlags.WITH_IMM) !== 0 ? wc.immData : undefined;
      request.resolve({ byteLen: wc.byteLen, immData });
      return;
    }
    const { vendorErr, qpNum } = wc;
    const failed = { request, wc: { status, vendorErr, qpNum } };
    if (status === WcStatus.WR_FLUSH_ERR && !this.#end && !this.#closing) {
      // On iWARP this comes before the event that says so.
      if (isIwarp(this.qp.context)) this.#fail(new RdmaPeerLeftError());
      else {
        this.#hold(failed);
        return;
      }
    }
    // In order, when it is closed meanwhile.
    if (this.#closing) this.#letGo();
    this.#reject(failed);
  }

  // A queue pair flushes nothing of itself: the device says why it does, or the peer that it has left, but by other ways,
  // which may take longer.
  #hold(failed: Failed): void {
    this.#held.push(failed);
    if (this.#held.length === 1) setTimeout(() => this.#letGo(), REASON_MS);
  }

  #letGo(): void {
    for (const failed of this.#held.splice(0)) this.#reject(failed);
  }

  #reject({ request, wc }: Failed): void {
    const error = failureOf(this.qp, request, wc, this.#end?.reason);
    if (!this.#end && !(this.#closing && wc.status === WcStatus.WR_FLUSH_ERR)) this.#fail(error);
    request.reject(error);
  }

  // The peer may have given back what was shared with it.
  #invalidated({ wcFlags, invalidatedRkey }: WorkCompletion): void {
    // Soft-RoCE says it by the kernel's number of WITH_INV, which is another flag here, and one that RC has no other use for.
    if ((wcFlags & (WcFlags.WITH_INV | WcFlags.IP_CSUM_OK)) === 0 || (wcFlags & WcFlags.WITH_IMM) !== 0) return;
    for (const [window, shared] of this.#windows) if (window.rkey === invalidatedRkey) shared?.invalidated();
  }
}
