import { typeError, valueError } from '../args.ts';
import { WrOpcode } from '../native/constants.gen.ts';
import { threadMark } from '../thread.ts';
import { MemorySlice } from '../verbs/memory-region.ts';
import type { RecvWr } from '../verbs/recv-list.ts';
import type { RemoteSlice } from '../verbs/remote-region.ts';
import type { SendWr } from '../verbs/send-wr.ts';

/** How an operation is executed. */
export interface OperationOptions {
  /** Begin only when all earlier reads and atomics of this endpoint have completed. Default false. */
  fence?: boolean;
  /** Mark the message, so that a peer that waits for solicited events only wakes up. Default false. */
  solicited?: boolean;
  /**
   * Whether the promise is settled by the completion. Default true. With false nobody waits for it: the operation is
   * posted together with the others of this turn, by one call and with one completion for many, and the promise resolves
   * with that. If it fails, `endpoint.closed` says so. Not for atomics, whose promise has the result.
   */
  signaled?: boolean;
  /**
   * Rejects the promise with its reason. An operation that still waits for its turn is not executed then. One that is
   * posted cannot be taken back: it is executed, and its memory is held until its completion.
   */
  signal?: AbortSignal;
}

/** A message that was received, or the immediate data of a write. */
export interface Received {
  /** Bytes: of the message in the buffer, or of the write into the remote region. */
  byteLen: number;
  /** Immediate data in host byte order, or undefined when there was none. */
  immData: number | undefined;
}

/** The operations of an {@link Endpoint}, which those of a {@link Scope} of it are as well. */
export abstract class Operations {
  /** @internal */
  readonly thread = threadMark(this.constructor.name);

  /**
   * Sends a message. The peer must have a receive for it, or get one within its RNR retries.
   *
   * @param local - the bytes of the message. Default none: a message of 0 bytes
   * @param options - as all operations; and `immData`: 32 bits in host byte order, which the receive gets. Default none
   * @returns when the peer's NIC has acknowledged it: it is in its memory, if perhaps not looked at (on iWARP: when it has left)
   * @see ibv_post_send(3), IBV_WR_SEND and IBV_WR_SEND_WITH_IMM
   */
  send(local?: MemorySlice, options?: OperationOptions & { immData?: number }): Promise<void> {
    const wr: SendWr = { wrId: 0, opcode: WrOpcode.SEND };
    if (local !== undefined) wr.sgList = local;
    if (options?.immData === undefined) return this.perform(wr, 'send', options);
    const { immData, ...rest } = options;
    wr.opcode = WrOpcode.SEND_WITH_IMM;
    wr.immData = immData;
    return this.perform(wr, 'send', rest);
  }

  /**
   * Receives a message, or the immediate data of a write. The buffers are filled in the order of the calls.
   *
   * @param local - where the message goes, as long as the longest that may come: one that is longer ends the connection.
   *   Default none: for messages of 0 bytes, and for immediate data
   * @param options - `signal`: rejects the promise with its reason. A receive that was posted stays where it is, and takes a
   *   message that nobody sees then
   * @see ibv_post_recv(3)
   */
  recv(local?: MemorySlice, options?: { signal?: AbortSignal }): Promise<Received> {
    return this.performRecv(local === undefined ? { wrId: 0 } : { wrId: 0, sgList: local }, options);
  }

  /**
   * Writes local memory into the peer's, which does not notice.
   *
   * @param local - what to write
   * @param remote - where to, at least as long; its region needs REMOTE_WRITE
   * @see ibv_post_send(3), IBV_WR_RDMA_WRITE
   */
  write(local: MemorySlice, remote: RemoteSlice, options?: OperationOptions): Promise<void> {
    return this.perform({ wrId: 0, opcode: WrOpcode.RDMA_WRITE, sgList: local, remote }, 'write', options);
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
    return this.perform(wr, 'writeWithImm', options);
  }

  /**
   * Reads the peer's memory into local memory.
   *
   * @param local - where to; its region needs LOCAL_WRITE, for adapters of iWARP REMOTE_WRITE too. As many
   *   bytes are read as it has
   * @param remote - what to read, at least as long; its region needs REMOTE_READ
   * @see ibv_post_send(3), IBV_WR_RDMA_READ
   */
  read(local: MemorySlice, remote: RemoteSlice, options?: OperationOptions): Promise<void> {
    return this.perform({ wrId: 0, opcode: WrOpcode.RDMA_READ, sgList: local, remote }, 'read', options);
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
    return this.#atomic(wr, 'compareAndSwap', local, options);
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
    return this.#atomic(wr, 'fetchAdd', local, options);
  }

  /**
   * Executes many requests in their order, with nothing of others between them: posted by one call for each 64, and with a
   * completion for a few of them only.
   *
   * @param wrs - as `qp.postSend()` takes them, but without `wrId`; whether `sendFlags` has SIGNALED makes no difference.
   *   They are copied
   * @param options - `signal`: rejects the promise with its reason, as for every operation
   * @returns when all have completed
   * @throws TypeError or RangeError naming the field, and none is executed; else, when all are settled, the error of the
   *   first that failed
   * @see ibv_post_send(3)
   */
  batch(wrs: readonly Omit<SendWr, 'wrId'>[], options?: { signal?: AbortSignal }): Promise<void> {
    return this.performAll(wrs, options);
  }

  async #atomic(wr: SendWr, name: string, local: MemorySlice, options?: OperationOptions): Promise<bigint> {
    if (options?.signaled === false) throw valueError(`options.signaled: the promise of ${name}() has its result`);
    // Before anything is done: what was there is taken from it.
    if (!MemorySlice.is(local)) throw typeError('local', 'a MemorySlice (mr.slice())', local);
    if (!local.region.hasBuffer) {
      throw valueError('local: JavaScript does not see the memory of its region: use batch(), which has no result');
    }
    await this.perform(wr, name, options);
    // The device leaves it in host byte order.
    return local.buffer.readBigUInt64LE(0);
  }

  /** @internal */
  abstract perform(wr: SendWr, name: string, options: OperationOptions | undefined): Promise<void>;
  /** @internal */
  abstract performRecv(wr: RecvWr, options: { signal?: AbortSignal } | undefined): Promise<Received>;
  /** @internal */
  abstract performAll(
    wrs: readonly Omit<SendWr, 'wrId'>[],
    options: { signal?: AbortSignal } | undefined,
  ): Promise<void>;
}
