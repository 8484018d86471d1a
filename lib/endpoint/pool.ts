import { inspect } from 'node:util';
import { abortSignal, boolean, instance, integer, rangeError, readOptions, stateError } from '../args.ts';
import { BusyError, RdmaClosedError } from '../errors.ts';
import { type Inspecting, shown } from '../inspect.ts';
import { threadMark } from '../thread.ts';
import type { MemoryRegion, MemorySlice } from '../verbs/memory-region.ts';
import { ProtectionDomain } from '../verbs/protection-domain.ts';
import type { AllocOptions } from '../verbs/registration.ts';

/** What a pool is made of. */
export interface BufferPoolOptions {
  /** Bytes of each buffer. */
  bufferBytes: number;
  /** Buffers at most. Who asks for one more waits until one is released. */
  maxBuffers: number;
  /** Buffers of one registration, made when none is free. Default: 1 MiB of them, or all of them when that is less. */
  slabBuffers?: number;
  /** `AccessFlags` joined with `|`. Default `LOCAL_WRITE`. */
  access?: number;
  /** Use huge pages of the system's default size. Default false. */
  hugePages?: boolean;
  /** Waiting `acquire()` calls at most; one more is refused. Default 65,536. */
  maxWaiting?: number;
  /** Remember where each buffer was acquired: the stack, for `outstanding()`. It costs microseconds. Default false. */
  traced?: boolean;
}

/** A buffer that is out. */
export interface OutstandingBuffer {
  /** Milliseconds since it was acquired. */
  ageMs: number;
  /** Where it was acquired, with the option `traced`; else undefined. */
  stack: string | undefined;
  /** Whether nobody has it any more, so that it will never be released. */
  lost: boolean;
}

// What is known of a buffer that is out, without keeping it.
interface Loan {
  since: number;
  trace: { stack?: string } | undefined;
  lost: boolean;
}

interface Waiting {
  resolve: (buffer: PoolBuffer) => void;
  reject: (error: Error) => void;
}

const optionNames = [
  'bufferBytes',
  'maxBuffers',
  'slabBuffers',
  'access',
  'hugePages',
  'maxWaiting',
  'traced',
] as const;

const SLAB_BYTES = 1 << 20;

// A buffer that was collected before it was released.
const collected = new FinalizationRegistry<Loan>((loan) => {
  loan.lost = true;
});

/**
 * Many buffers of one size over few registrations: what small requests want, since a registration costs more than
 * thousands of them. Memory is registered as it is needed, and kept until the pool is closed.
 *
 * When all buffers are out `acquire()` waits, which is the back-pressure: first come, first served.
 */
export class BufferPool {
  /** @internal */
  readonly thread = threadMark('BufferPool');
  /** The protection domain. */
  readonly pd: ProtectionDomain;
  /** Bytes of each buffer. */
  readonly bufferBytes: number;
  /** Buffers at most. */
  readonly maxBuffers: number;
  readonly #slabBuffers: number;
  readonly #how: AllocOptions;
  readonly #maxWaiting: number;
  readonly #traced: boolean;
  readonly #slabs: MemoryRegion[] = [];
  // The one released last is the one in the caches.
  readonly #free: MemorySlice[] = [];
  readonly #loans = new Set<Loan>();
  readonly #waiting: Waiting[] = [];
  #registered = 0;
  #growing = false;
  #closed = false;

  /**
   * @param pd - where the memory is registered
   * @throws TypeError or RangeError naming the option
   */
  constructor(pd: ProtectionDomain, options: BufferPoolOptions) {
    this.pd = instance(pd, 'pd', ProtectionDomain);
    pd.requireOpen();
    const o = readOptions(options, 'options', optionNames);
    this.bufferBytes = integer(o.bufferBytes, 'options.bufferBytes', 1, 2 ** 30);
    this.maxBuffers = integer(o.maxBuffers, 'options.maxBuffers', 1, 2 ** 24);
    const slab = Math.min(Math.max(Math.floor(SLAB_BYTES / this.bufferBytes), 1), this.maxBuffers);
    this.#slabBuffers = integer(o.slabBuffers ?? slab, 'options.slabBuffers', 1, this.maxBuffers);
    this.#maxWaiting = integer(o.maxWaiting ?? 65_536, 'options.maxWaiting', 0, Number.MAX_SAFE_INTEGER);
    this.#traced = boolean(o.traced ?? false, 'options.traced');
    this.#how = {
      ...(o.access !== undefined && { access: o.access }),
      ...(o.hugePages !== undefined && { hugePages: o.hugePages }),
    };
  }

  /** Buffers that are out. */
  get inUse(): number {
    return this.#loans.size;
  }

  /** Buffers that memory is registered for. */
  get registered(): number {
    return this.#registered;
  }

  /** Calls of `acquire()` that wait. */
  get waiting(): number {
    return this.#waiting.length;
  }

  /** Whether `close()` has succeeded. */
  get closed(): boolean {
    return this.#closed;
  }

  /**
   * A buffer: at once when one is free, else when memory was registered for it, else when one is released. What is in it
   * is left from before.
   *
   * @param options - `signal`: ends the wait
   * @throws RdmaError ENOMEM as `pd.alloc()`; RdmaClosedError when the pool is closed; the signal's reason
   * @throws RangeError `ERR_OUT_OF_RANGE` when `maxWaiting` calls wait already
   */
  async acquire(options: { signal?: AbortSignal } = {}): Promise<PoolBuffer> {
    const signal = abortSignal(readOptions(options, 'options', ['signal']).signal, 'options.signal');
    signal?.throwIfAborted();
    const buffer = this.tryAcquire();
    if (buffer !== undefined) return buffer;
    if (this.#waiting.length >= this.#maxWaiting) {
      throw rangeError(`acquire: ${this.#waiting.length} calls wait already for the ${this.maxBuffers} buffers`);
    }
    return new Promise((resolve, reject) => {
      const abort = () => {
        this.#waiting.splice(this.#waiting.indexOf(waiting), 1);
        reject(signal?.reason as Error);
      };
      const waiting: Waiting = {
        resolve: (buffer) => {
          signal?.removeEventListener('abort', abort);
          resolve(buffer);
        },
        reject: (error) => {
          signal?.removeEventListener('abort', abort);
          reject(error);
        },
      };
      signal?.addEventListener('abort', abort, { once: true });
      this.#waiting.push(waiting);
      void this.#grow();
    });
  }

  /**
   * A buffer if one is free now: nothing is registered for it.
   *
   * @throws RdmaClosedError when the pool is closed
   */
  tryAcquire(): PoolBuffer | undefined {
    if (this.#closed) throw new RdmaClosedError('BufferPool');
    const slice = this.#free.pop();
    return slice === undefined ? undefined : this.#lend(slice);
  }

  /** The buffers that are out, the oldest first: who looks for a leak looks here. */
  outstanding(): OutstandingBuffer[] {
    const now = performance.now();
    return [...this.#loans].map(({ since, trace, lost }) => ({ ageMs: now - since, stack: trace?.stack, lost }));
  }

  /**
   * Deregisters the memory, and rejects who waits. Idempotent; the same as `[Symbol.dispose]()`.
   *
   * @param options - `cascade`: also when buffers are out, which cannot be used any more then. Default false
   * @throws BusyError while buffers are out, or requests in flight use them; the pool stays open
   */
  close(options: { cascade?: boolean } = {}): void {
    const { cascade = false } = readOptions(options, 'options', ['cascade']);
    boolean(cascade, 'options.cascade');
    if (this.#closed) return;
    if (this.#loans.size > 0 && !cascade) {
      const oldest = this.outstanding()[0] as OutstandingBuffer;
      const where = oldest.stack === undefined ? '' : `, acquired ${oldest.stack.split('\n')[1]?.trim() ?? ''}`;
      throw new BusyError(
        'ibv_dereg_mr',
        `BufferPool has ${this.#loans.size} buffer(s) out, the oldest for ${Math.round(oldest.ageMs)} ms${where}`,
      );
    }
    // None is closed when one cannot be: it throws.
    this.#slabs.find((slab) => slab.pd.inFlight(slab) > 0)?.close();
    this.#closed = true;
    for (const slab of this.#slabs.splice(0)) slab.close();
    this.#free.length = 0;
    this.#loans.clear();
    this.#rejectAll(new RdmaClosedError('BufferPool'));
  }

  /** The same as `close()`. */
  [Symbol.dispose](): void {
    this.close();
  }

  /** @internal */
  [inspect.custom](...how: Inspecting): object | string {
    const fields = () => {
      const { bufferBytes, maxBuffers, registered, inUse, waiting } = this;
      return { bufferBytes, maxBuffers, registered, inUse, waiting };
    };
    return shown('BufferPool', #closed in this && this.#closed ? 'closed' : undefined, fields, ...how);
  }

  // Registers the next slab, if there may be one, for who waits.
  async #grow(): Promise<void> {
    if (this.#growing) return;
    this.#growing = true;
    try {
      while (this.#waiting.length > 0 && this.#registered < this.maxBuffers && !this.#closed) {
        const count = Math.min(this.#slabBuffers, this.maxBuffers - this.#registered);
        const slab = await this.pd.alloc(count * this.bufferBytes, this.#how);
        if (this.#closed) {
          slab.close();
          return;
        }
        this.#slabs.push(slab);
        this.#registered += count;
        for (let i = count - 1; i >= 0; i--) this.#return(slab.slice(i * this.bufferBytes, this.bufferBytes));
      }
    } catch (error) {
      this.#rejectAll(error as Error);
    } finally {
      this.#growing = false;
    }
  }

  #lend(slice: MemorySlice): PoolBuffer {
    const trace: Loan['trace'] = this.#traced ? {} : undefined;
    if (trace) Error.captureStackTrace(trace, this.acquire);
    const loan: Loan = { since: performance.now(), trace, lost: false };
    this.#loans.add(loan);
    const buffer = new PoolBuffer(slice, () => {
      collected.unregister(loan);
      if (!this.#loans.delete(loan)) return;
      this.#return(slice);
    });
    collected.register(buffer, loan, loan);
    return buffer;
  }

  #return(slice: MemorySlice): void {
    const next = this.#waiting.shift();
    if (next) next.resolve(this.#lend(slice));
    else this.#free.push(slice);
  }

  #rejectAll(error: Error): void {
    for (const { reject } of this.#waiting.splice(0)) reject(error);
  }
}

/** A buffer of a {@link BufferPool}. Release it when no request uses it any more. */
export class PoolBuffer {
  /** @internal */
  readonly thread = threadMark('PoolBuffer');
  readonly #slice: MemorySlice;
  #giveBack: (() => void) | undefined;

  /** @internal */
  constructor(slice: MemorySlice, giveBack: () => void) {
    this.#slice = slice;
    this.#giveBack = giveBack;
  }

  /** Bytes. */
  get length(): number {
    return this.#slice.length;
  }

  /** Whether it was given back. */
  get released(): boolean {
    return this.#giveBack === undefined;
  }

  /**
   * What is in it, in place. Not to be touched after `release()`: it is somebody else's then.
   *
   * @throws Error `ERR_INVALID_STATE` after `release()`
   */
  get buffer(): Buffer {
    return this.slice().buffer;
  }

  /**
   * A part of it, as requests take it.
   *
   * @param offset - first byte, default 0
   * @param length - bytes, default all up to the end
   * @throws RangeError `ERR_OUT_OF_RANGE` when it does not lie inside the buffer; Error `ERR_INVALID_STATE` after
   *   `release()`
   */
  slice(offset = 0, length?: number): MemorySlice {
    if (this.#giveBack === undefined) throw stateError('The buffer was released');
    const whole = this.#slice;
    if (offset === 0 && (length === undefined || length === whole.length)) return whole;
    integer(offset, 'offset', 0, whole.length);
    const bytes = integer(length ?? whole.length - offset, 'length', 0, whole.length - offset);
    return whole.region.slice(whole.offset + offset, bytes);
  }

  /**
   * Gives it back to the pool.
   *
   * @throws Error `ERR_INVALID_STATE` the second time: somebody else may have it by then
   */
  release(): void {
    const giveBack = this.#giveBack;
    if (giveBack === undefined) throw stateError('The buffer was released already');
    this.#giveBack = undefined;
    giveBack();
  }

  /** Gives it back, unless that has been done. */
  [Symbol.dispose](): void {
    if (this.#giveBack !== undefined) this.release();
  }

  /** @internal */
  [inspect.custom](...how: Inspecting): object | string {
    const fields = () => ({ length: this.length });
    return shown('PoolBuffer', #giveBack in this && this.released ? 'released' : undefined, fields, ...how);
  }
}
