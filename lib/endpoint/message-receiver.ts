import { inspect } from 'node:util';
import { stateError, typeError, valueError } from '../args.ts';
import { RdmaProtocolError, WorkCompletionError } from '../errors.ts';
import { type Inspecting, shown } from '../inspect.ts';
import { AccessFlags, WcStatus } from '../native/constants.gen.ts';
import { threadMark } from '../thread.ts';
import { type MemoryRegion, MemorySlice } from '../verbs/memory-region.ts';
import { RemoteRegion } from '../verbs/remote-region.ts';
import type { Endpoint } from './endpoint.ts';
import { type Announcement, HEADER_BYTES } from './message-frames.ts';
import { Landing, MAX_READS, type MessageRing, type Slot } from './message-memory.ts';

/** Where long messages go: memory of the caller's domain with LOCAL_WRITE, or undefined for memory of this package. */
export type Place = (byteLength: number) => MemorySlice | undefined | Promise<MemorySlice | undefined>;

/** A message that was received. It stays as it is until it is released, also when the connection has ended. */
export class Message {
  /** @internal */
  readonly thread = threadMark('Message');
  readonly #slice: MemorySlice;
  #giveBack: (() => void) | undefined;

  /** @internal */
  constructor(slice: MemorySlice, giveBack: () => void) {
    this.#slice = slice;
    this.#giveBack = giveBack;
  }

  /** Bytes. */
  get byteLength(): number {
    return this.#slice.length;
  }

  /**
   * The bytes, in place. Copy what is to outlive `release()`.
   *
   * @throws Error `ERR_INVALID_STATE` after `release()`; also for memory of the option `place` that JavaScript does not see
   */
  get data(): Buffer {
    return this.slice.buffer;
  }

  /**
   * The same bytes as requests take them.
   *
   * @throws Error `ERR_INVALID_STATE` after `release()`
   */
  get slice(): MemorySlice {
    if (this.#giveBack === undefined) throw stateError('The message was released');
    return this.#slice;
  }

  /** Whether it was released. */
  get released(): boolean {
    return this.#giveBack === undefined;
  }

  /**
   * Gives the memory back, for the next messages: a peer whose messages are not released waits.
   *
   * @throws Error `ERR_INVALID_STATE` the second time
   */
  release(): void {
    const giveBack = this.#giveBack;
    if (giveBack === undefined) throw stateError('The message was released already');
    this.#giveBack = undefined;
    giveBack();
  }

  /** Releases it, unless that has been done. */
  [Symbol.dispose](): void {
    if (this.#giveBack !== undefined) this.release();
  }

  /** @internal */
  [inspect.custom](...how: Inspecting): object | string {
    const fields = () => ({ byteLength: this.byteLength });
    return shown('Message', #giveBack in this && this.released ? 'released' : undefined, fields, ...how);
  }
}

// In the order in which they were sent.
interface Incoming {
  slot: Slot;
  /** Where it is, once it is all there. */
  slice: MemorySlice | undefined;
  announced: Announcement | undefined;
  region: MemoryRegion | undefined;
}

interface Waiting {
  resolve: (message: Message | undefined) => void;
  reject: (error: Error) => void;
}

// Longer messages are read in parts, so that one that is lost on the way costs little.
const READ_BYTES = 1 << 20;

/** The messages that come in, in order, until they are released. @internal */
export class MessageReceiver {
  readonly #endpoint: Endpoint;
  readonly #ring: MessageRing;
  readonly #landing: Landing;
  readonly #place: Place | undefined;
  readonly #free: (slot: Slot) => void;
  readonly #wasRead: () => void;
  readonly #fail: (error: Error) => void;
  readonly #incoming: Incoming[] = [];
  readonly #toRead: Incoming[] = [];
  readonly #waiting: Waiting[] = [];
  #isReading = false;
  #reads = 0;
  #readDone: (() => void) | undefined;
  // Messages that have a buffer: here, or with the caller.
  #held = 0;
  #ended = false;
  #discarding = false;
  #failed: Error | undefined;
  /** Whether messages were lost: not even the end comes after those that are left. */
  #isCut = false;
  #closed = false;

  /**
   * @param free - a buffer can be posted again
   * @param wasRead - an announced message was read
   */
  constructor(
    endpoint: Endpoint,
    ring: MessageRing,
    place: Place | undefined,
    calls: { free: (slot: Slot) => void; wasRead: () => void; fail: (error: Error) => void },
  ) {
    this.#endpoint = endpoint;
    this.#ring = ring;
    this.#place = place;
    this.#landing = new Landing(ring);
    this.#free = calls.free;
    this.#wasRead = calls.wasRead;
    this.#fail = calls.fail;
  }

  /** Whether the peer has said that no more will come. */
  get ended(): boolean {
    return this.#ended;
  }

  /** A message has come, in a buffer. */
  data(slot: Slot, length: number): void {
    this.#hold();
    const { region, offset } = slot.slice;
    const slice = region.slice(offset + HEADER_BYTES, length);
    this.#incoming.push({ slot, slice, announced: undefined, region: undefined });
    this.#deliver();
  }

  /** A message is there to be read. */
  announce(slot: Slot, announced: Announcement): void {
    this.#hold();
    const incoming: Incoming = { slot, slice: undefined, announced, region: undefined };
    this.#incoming.push(incoming);
    this.#toRead.push(incoming);
    void this.#readAll();
  }

  /** No more will come. */
  end(): void {
    if (this.#ended) throw new RdmaProtocolError('ORDER', 'it ends twice');
    this.#ended = true;
    this.#deliver();
  }

  receive(signal: AbortSignal | undefined): Promise<Message | undefined> {
    signal?.throwIfAborted();
    return new Promise((resolve, reject) => {
      const abort = () => {
        this.#waiting.splice(this.#waiting.indexOf(waiting), 1);
        reject(signal?.reason as Error);
      };
      const waiting: Waiting = { resolve, reject };
      if (signal) {
        const settled = () => signal.removeEventListener('abort', abort);
        waiting.resolve = (message) => {
          settled();
          resolve(message);
        };
        waiting.reject = (error) => {
          settled();
          reject(error);
        };
        signal.addEventListener('abort', abort, { once: true });
      }
      this.#waiting.push(waiting);
      this.#deliver();
    });
  }

  /** Whatever comes is released at once. */
  discard(error: Error): void {
    this.#discarding = true;
    for (const { reject } of this.#waiting.splice(0)) reject(error);
    this.#deliver();
  }

  /** Nothing more comes. What is there can still be received. */
  fail(error: Error): void {
    this.#failed = error;
    this.#toRead.length = 0;
    this.#deliver();
  }

  /** The queue pair is gone: nothing is being read. */
  close(): void {
    this.#closed = true;
    this.#landing.close();
    this.#readDone?.();
    // What was sent behind a message that will never be whole must not be taken for the next one.
    const hole = this.#incoming.findIndex(({ slice }) => slice === undefined);
    this.#isCut = hole >= 0;
    const kept = this.#discarding ? 0 : this.#isCut ? hole : this.#incoming.length;
    for (const incoming of this.#incoming.splice(kept)) this.#release(incoming);
    if (this.#held === 0) this.#ring.close();
  }

  #hold(): void {
    if (this.#ended) throw new RdmaProtocolError('ORDER', 'a message behind the end');
    if (this.#held === this.#ring.limits.buffers) {
      throw new RdmaProtocolError('CREDITS', `more than ${this.#held} messages that were not released`);
    }
    this.#held++;
  }

  #deliver(): void {
    while (this.#incoming[0]?.slice !== undefined && (this.#waiting.length > 0 || this.#discarding)) {
      const incoming = this.#incoming.shift() as Incoming;
      if (this.#discarding) this.#release(incoming);
      else {
        const message = new Message(incoming.slice as MemorySlice, () => this.#release(incoming));
        this.#waiting.shift()?.resolve(message);
      }
    }
    if (this.#incoming.length > 0 && !(this.#failed && this.#incoming[0]?.slice === undefined)) return;
    if (!this.#ended && !this.#failed) return;
    for (const { resolve, reject } of this.#waiting.splice(0)) {
      if (this.#ended && !this.#isCut && this.#incoming.length === 0) resolve(undefined);
      else reject(this.#failed as Error);
    }
  }

  #release({ slot, region }: Incoming): void {
    this.#held--;
    if (region) this.#landing.give(region);
    if (!this.#closed) this.#free(slot);
    else if (this.#held === 0) this.#ring.close();
  }

  // One after another, as memory is free; several are under way.
  async #readAll(): Promise<void> {
    if (this.#isReading) return;
    this.#isReading = true;
    try {
      while (!this.#failed && !this.#closed) {
        const next = this.#toRead.shift();
        if (next === undefined) break;
        await this.#read(next, next.announced as Announcement);
      }
    } catch (error) {
      this.#fail(error as Error);
    } finally {
      this.#isReading = false;
    }
  }

  async #read(incoming: Incoming, { addr, rkey, length }: Announcement): Promise<void> {
    let slice = await this.#placeFor(length);
    if (slice === undefined) {
      const region = await this.#landing.take(length);
      if (region === undefined) return;
      if (this.#closed) {
        this.#landing.give(region);
        return;
      }
      incoming.region = region;
      slice = region.slice(0, length);
    }
    const { region, offset } = slice;
    const from = new RemoteRegion({ addr: `0x${addr.toString(16)}`, rkey, length });
    for (let at = 0; at < length; at += READ_BYTES) {
      while (this.#reads >= MAX_READS && !this.#closed) {
        await new Promise<void>((resolve) => {
          this.#readDone = resolve;
        });
      }
      // What was taken goes with the message when the connection ends.
      if (this.#failed || this.#closed) return;
      const bytes = Math.min(READ_BYTES, length - at);
      this.#reads++;
      this.#endpoint.read(region.slice(offset + at, bytes), from.slice(at, bytes)).then(
        () => {
          this.#reads--;
          this.#readDone?.();
          if (at + bytes < length || this.#failed) return;
          incoming.slice = slice;
          this.#wasRead();
          this.#deliver();
        },
        (error: Error) => this.#fail(refused(error)),
      );
    }
  }

  async #placeFor(length: number): Promise<MemorySlice | undefined> {
    const slice = await this.#place?.(length);
    if (slice === undefined) return undefined;
    if (!MemorySlice.is(slice) || slice.length < length) {
      throw typeError('The result of options.place', `a MemorySlice of at least ${length} bytes`, slice);
    }
    const { region, offset } = slice;
    if (region.pd !== this.#ring.pd.root) {
      throw valueError('The result of options.place is of another protection domain than the endpoint');
    }
    if ((region.access & AccessFlags.LOCAL_WRITE) === 0) {
      throw valueError('The region of the result of options.place lacks LOCAL_WRITE');
    }
    return region.slice(offset, length);
  }
}

// A peer that announces what it does not give.
function refused(error: Error): Error {
  if (!(error instanceof WorkCompletionError)) return error;
  const { REM_ACCESS_ERR, REM_INV_REQ_ERR, REM_OP_ERR } = WcStatus;
  const statuses: readonly number[] = [REM_ACCESS_ERR, REM_INV_REQ_ERR, REM_OP_ERR];
  if (!statuses.includes(error.status)) return error;
  return new RdmaProtocolError('ACCESS', 'what it announced cannot be read', { cause: error });
}
