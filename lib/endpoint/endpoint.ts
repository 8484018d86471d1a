import { inspect } from 'node:util';
import { boolean, instance, readOptions, valueError } from '../args.ts';
import { RdmaClosedError, WorkCompletionError } from '../errors.ts';
import { type Inspecting, shown, word } from '../inspect.ts';
import { QpState, SendFlags, WcFlags, WcStatus, WrOpcode } from '../native/constants.gen.ts';
import type { MemorySlice } from '../verbs/memory-region.ts';
import { QueuePair } from '../verbs/queue-pair.ts';
import type { RemoteSlice } from '../verbs/remote-region.ts';
import type { SendWr } from '../verbs/send-wr.ts';
import { wcStatusName, wcStatusStr } from '../verbs/text.ts';
import type { WorkCompletion } from '../verbs/work-completion.ts';

/** How an operation is executed. */
export interface OperationOptions {
  /** Begin only when all earlier reads and atomics of this endpoint have completed. Default false. */
  fence?: boolean;
  /** Mark the message, so that a peer that waits for solicited events only wakes up. Default false. */
  solicited?: boolean;
}

/** A message that was received, or the immediate data of a write. */
export interface Received {
  /** Bytes: of the message in the buffer, or of the write into the remote region. */
  byteLen: number;
  /** Immediate data in host byte order, or undefined when there was none. */
  immData: number | undefined;
}

/** What an endpoint's queue pair was connected by, where that has an end. @internal */
export interface Connection {
  /** Tells the peer that it ends, and puts the queue pair into the error state. */
  disconnect(): Promise<void>;
  /** Lets go of it. */
  close(): void;
}

interface Pending {
  resolve: (received: Received) => void;
  reject: (error: Error) => void;
  operation: string;
}

const operationOptionNames = ['fence', 'solicited'];
const settled = Promise.resolve();

// Promises alone never let the event loop have its turn: every so often completions are looked for after it.
const TURN = 512;

// The wrId of receives; sends have 0.
const RECV = 1;
// What a send's promise resolves with, if only as a formality: its type is void.
const NOTHING = undefined as unknown as Received;

/**
 * A connected queue pair with `await`: each operation is a promise that its completion settles. Operations are executed
 * in the order of the calls; many may be under way. The memory of an operation is held until its completion, whatever
 * becomes of the promise.
 *
 * A failed operation rejects with a {@link WorkCompletionError}, the queue pair is in the error state then, and
 * everything behind it rejects with WR_FLUSH_ERR, in order.
 *
 * What cannot be posted rejects at once and changes nothing: TypeError or RangeError for a wrong argument, PostError
 * ENOMEM when `qp.cap.maxSendWr` (for `recv()`: `maxRecvWr`) operations are under way, RdmaClosedError after `close()`.
 *
 * An operation under way keeps the endpoint, and the process, alive.
 */
export class Endpoint {
  /** The queue pair. Its completion queues belong to this endpoint: nobody else may poll them. */
  readonly qp: QueuePair;
  /** The receives that were posted before the peer could send, in the order of the option `recvs`; else empty. */
  readonly recvs: readonly Promise<Received>[] = [];
  // The requests under way. Each queue completes in order.
  readonly #sends: Pending[] = [];
  readonly #recvs: Pending[] = [];
  #privateData: Buffer;
  #connection: Connection | undefined;
  #scheduled = false;
  #turns = 0;
  #waiting = false;
  #closing: Promise<void> | undefined;

  /**
   * @param qp - connected, its completion queues used by it alone
   * @param privateData - what the peer sent along
   */
  constructor(qp: QueuePair, privateData: Buffer = Buffer.alloc(0)) {
    this.qp = instance(qp, 'qp', QueuePair);
    if (qp.recvCq !== qp.sendCq) throw valueError('qp must have one completion queue for both directions');
    this.#privateData = privateData;
  }

  /** What the peer sent along when the connection was made; empty when nothing. */
  get privateData(): Buffer {
    return this.#privateData;
  }

  /**
   * Sends a message. The peer must have a receive for it, or get one within its RNR retries.
   *
   * @param local - the bytes of the message. Default none: a message of 0 bytes
   * @param options - as all operations; and `immData`: 32 bits in host byte order, which the receive gets. Default none
   * @returns when the peer's NIC has acknowledged it: it is in its memory, if perhaps not looked at
   * @see ibv_post_send(3), IBV_WR_SEND and IBV_WR_SEND_WITH_IMM
   */
  send(local?: MemorySlice, options?: OperationOptions & { immData?: number }): Promise<void> {
    const wr: SendWr = { wrId: 0, opcode: WrOpcode.SEND };
    if (local !== undefined) wr.sgList = local;
    if (options?.immData === undefined) return this.#post(wr, 'send', options);
    const { immData, ...rest } = options;
    wr.opcode = WrOpcode.SEND_WITH_IMM;
    wr.immData = immData;
    return this.#post(wr, 'send', rest);
  }

  /**
   * Receives a message, or the immediate data of a write. The buffers are filled in the order of the calls.
   *
   * @param local - where the message goes, as long as the longest that may come: one that is longer ends the connection.
   *   Default none: for messages of 0 bytes, and for immediate data
   * @see ibv_post_recv(3)
   */
  recv(local?: MemorySlice): Promise<Received> {
    try {
      this.#requireOpen();
      this.qp.postRecv(local === undefined ? { wrId: RECV } : { wrId: RECV, sgList: local });
    } catch (error) {
      return Promise.reject(error);
    }
    return this.#completion(this.#recvs, 'recv');
  }

  /**
   * Writes local memory into the peer's, which does not notice.
   *
   * @param local - what to write
   * @param remote - where to, at least as long; its region needs REMOTE_WRITE
   * @see ibv_post_send(3), IBV_WR_RDMA_WRITE
   */
  write(local: MemorySlice, remote: RemoteSlice, options?: OperationOptions): Promise<void> {
    return this.#post({ wrId: 0, opcode: WrOpcode.RDMA_WRITE, sgList: local, remote }, 'write', options);
  }

  /**
   * Writes local memory into the peer's, and ends one of its receives.
   *
   * @param local - what to write
   * @param remote - where to, at least as long; its region needs REMOTE_WRITE
   * @param immData - 32 bits in host byte order, which the receive gets
   * @see ibv_post_send(3), IBV_WR_RDMA_WRITE_WITH_IMM
   */
  writeWithImm(local: MemorySlice, remote: RemoteSlice, immData: number, options?: OperationOptions): Promise<void> {
    const wr = { wrId: 0, opcode: WrOpcode.RDMA_WRITE_WITH_IMM, sgList: local, remote, immData };
    return this.#post(wr, 'writeWithImm', options);
  }

  /**
   * Reads the peer's memory into local memory.
   *
   * @param local - where to; its region needs LOCAL_WRITE. As many bytes are read as it has
   * @param remote - what to read, at least as long; its region needs REMOTE_READ
   * @see ibv_post_send(3), IBV_WR_RDMA_READ
   */
  read(local: MemorySlice, remote: RemoteSlice, options?: OperationOptions): Promise<void> {
    return this.#post({ wrId: 0, opcode: WrOpcode.RDMA_READ, sgList: local, remote }, 'read', options);
  }

  /**
   * Compares 8 bytes of the peer's memory with a value and, when they are equal, replaces them, as one step.
   *
   * @param local - 8 bytes for what was there before, in host byte order
   * @param remote - at an address that is a multiple of 8
   * @param compare - 64 bits
   * @param swap - 64 bits
   * @returns what was there before: equal to `compare` when it was replaced
   * @see ibv_post_send(3), IBV_WR_ATOMIC_CMP_AND_SWP
   */
  async compareAndSwap(
    local: MemorySlice,
    remote: RemoteSlice,
    compare: bigint,
    swap: bigint,
    options?: OperationOptions,
  ): Promise<bigint> {
    const wr = { wrId: 0, opcode: WrOpcode.ATOMIC_CMP_AND_SWP, sgList: local, remote, compareAdd: compare, swap };
    await this.#post(wr, 'compareAndSwap', options);
    return nativeUint64(local);
  }

  /**
   * Adds to 8 bytes of the peer's memory, as one step; a sum past 64 bits wraps around.
   *
   * @param local - 8 bytes for what was there before, in host byte order
   * @param remote - at an address that is a multiple of 8; its region needs REMOTE_ATOMIC
   * @param add - 64 bits
   * @returns what was there before
   * @see ibv_post_send(3), IBV_WR_ATOMIC_FETCH_AND_ADD
   */
  async fetchAdd(local: MemorySlice, remote: RemoteSlice, add: bigint, options?: OperationOptions): Promise<bigint> {
    const wr = { wrId: 0, opcode: WrOpcode.ATOMIC_FETCH_AND_ADD, sgList: local, remote, compareAdd: add };
    await this.#post(wr, 'fetchAdd', options);
    return nativeUint64(local);
  }

  /**
   * Ends the connection: what is under way is flushed and rejects with WR_FLUSH_ERR, then the queue pair and its
   * completion queue are closed. Idempotent; bounded by what the device takes to flush, also when the peer is dead.
   */
  close(): Promise<void> {
    this.#closing ??= this.#close();
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
    });
    return shown('Endpoint', tag, fields, ...how);
  }

  async #close(): Promise<void> {
    const { qp } = this;
    if (!qp.closed) {
      await this.#connection?.disconnect();
      if (this.#isPending && !qp.lost) await qp.modify({ qpState: QpState.ERR });
      const deadline = Date.now() + 2000;
      // Flushed requests complete at once; a device that does not flush must not hold the caller.
      while (this.#isPending && !qp.lost && Date.now() < deadline) {
        this.#drain();
        if (this.#isPending) await new Promise((resolve) => setTimeout(resolve, 1));
      }
      qp.close();
      qp.sendCq.close();
    }
    this.#connection?.close();
    this.#abandon(new RdmaClosedError('Endpoint'));
  }

  /** The connection stands, and is one that wants to be ended. @internal */
  connected(privateData: Buffer, connection: Connection): void {
    this.#privateData = privateData;
    this.#connection = connection;
  }

  /** The peer has ended the connection: what is under way is flushed. @internal */
  peerLeft(): void {
    if (!this.qp.closed) this.#flush();
  }

  /** Posts the receives of `recvs`, in the state INIT. @internal */
  postInitial(slices: readonly MemorySlice[]): void {
    (this.recvs as Promise<Received>[]).push(...slices.map((slice) => this.recv(slice)));
    // Who does not look at them is not to be ended by them.
    for (const recv of this.recvs) recv.catch(() => {});
  }

  // A device flushes both queues of a queue pair that has failed, but Soft-RoCE leaves the receives where they are until
  // it is told the state that the queue pair is in already.
  #flush(): void {
    try {
      this.qp.modifySync({ qpState: QpState.ERR });
    } catch {
      // The device is gone, and close() gives up waiting.
    }
  }

  get #isPending(): boolean {
    return this.#sends.length > 0 || this.#recvs.length > 0;
  }

  #abandon(error: Error): void {
    for (const { reject } of [...this.#sends.splice(0), ...this.#recvs.splice(0)]) reject(error);
  }

  #requireOpen(): void {
    if (this.#closing) throw new RdmaClosedError('Endpoint');
  }

  // Not an async function, which would cost as much again as the whole operation does.
  #post(wr: SendWr, operation: string, options: OperationOptions | undefined): Promise<void> {
    try {
      this.#requireOpen();
      let flags: number = SendFlags.SIGNALED;
      if (options !== undefined) {
        const { fence = false, solicited = false } = readOptions(options, 'options', operationOptionNames);
        if (boolean(fence, 'options.fence')) flags |= SendFlags.FENCE;
        if (boolean(solicited, 'options.solicited')) flags |= SendFlags.SOLICITED;
      }
      const length = (wr.sgList as MemorySlice | undefined)?.length ?? 0;
      if (length <= this.qp.cap.maxInlineData && inlinable(wr.opcode)) flags |= SendFlags.INLINE;
      wr.sendFlags = flags;
      this.qp.postSend(wr);
    } catch (error) {
      return Promise.reject(error);
    }
    return this.#completion(this.#sends, operation) as Promise<unknown> as Promise<void>;
  }

  // For a request that was just posted.
  #completion(queue: Pending[], operation: string): Promise<Received> {
    const promise = new Promise<Received>((resolve, reject) => {
      queue.push({ resolve, reject, operation });
    });
    if (!this.#scheduled) {
      // Once for all requests of this turn. Fast devices have completed by then, without any event.
      this.#scheduled = true;
      this.#turns = (this.#turns + 1) % TURN;
      if (this.#turns === 0) setImmediate(this.#turn);
      else settled.then(this.#turn);
    }
    return promise;
  }

  readonly #turn = (): void => {
    this.#scheduled = false;
    if (this.qp.closed) return;
    try {
      this.#drain();
    } catch (error) {
      // The device is lost, or the queue cannot be polled any more.
      this.#abandon(error as Error);
    }
    if (this.#isPending && !this.#waiting) void this.#wait();
  };

  async #wait(): Promise<void> {
    const cq = this.qp.sendCq;
    this.#waiting = true;
    try {
      while (this.#isPending) {
        // One at a time, so that what it makes happen is not kept waiting.
        if (cq.spinUs > 0 && (await cq.spin(() => this.#drain(), undefined))) continue;
        // Poll, arm, poll again, wait: what arrives between the first two makes no event.
        cq.reqNotify();
        this.#drain();
        if (this.#isPending) await cq.nextEvent(undefined);
      }
    } catch (error) {
      // The queue was closed meanwhile (RdmaClosedError), or cannot be polled any more.
      this.#abandon(error as Error);
    } finally {
      this.#waiting = false;
    }
  }

  // Whether there was anything.
  #drain(): boolean {
    const cq = this.qp.sendCq;
    let count = cq.poll();
    if (count === 0) return false;
    for (; count > 0; count = cq.poll()) {
      for (let i = 0; i < count; i++) this.#settle(cq.at(i));
    }
    return true;
  }

  #settle(wc: WorkCompletion): void {
    const isRecv = wc.wrId === RECV;
    const pending = (isRecv ? this.#recvs : this.#sends).shift();
    if (pending === undefined) return;
    if (wc.status === WcStatus.SUCCESS) {
      if (!isRecv) {
        pending.resolve(NOTHING);
        return;
      }
      const immData = (wc.wcFlags & WcFlags.WITH_IMM) !== 0 ? wc.immData : undefined;
      pending.resolve({ byteLen: wc.byteLen, immData });
    } else {
      if (wc.status !== WcStatus.WR_FLUSH_ERR) this.#flush();
      const operation = `${pending.operation} on queue pair 0x${wc.qpNum.toString(16)}`;
      pending.reject(new WorkCompletionError(operation, wc, wcStatusName(wc.status), wcStatusStr(wc.status)));
    }
  }
}

// The 8 bytes of an atomic's result, which the device leaves in host byte order.
function nativeUint64(slice: MemorySlice): bigint {
  return slice.buffer.readBigUInt64LE(0);
}

function inlinable(opcode: number): boolean {
  return (
    opcode !== WrOpcode.RDMA_READ && opcode !== WrOpcode.ATOMIC_CMP_AND_SWP && opcode !== WrOpcode.ATOMIC_FETCH_AND_ADD
  );
}
