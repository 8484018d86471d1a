import { inspect } from 'node:util';
import { isNativeError, isUint8Array } from 'node:util/types';
import { abortSignal, instance, integer, rangeError, readOptions, typeError, valueError } from '../args.ts';
import { RdmaClosedError, RdmaProtocolError, WorkCompletionError } from '../errors.ts';
import { type Inspecting, shown } from '../inspect.ts';
import { AccessFlags, WcStatus } from '../native/constants.gen.ts';
import { threadMark } from '../thread.ts';
import { MemorySlice } from '../verbs/memory-region.ts';
import { Endpoint } from './endpoint.ts';
import { Kind, MessageLink } from './message-link.ts';
import { type MessageRing, takeRing } from './message-memory.ts';
import { type Message, MessageReceiver, type Place } from './message-receiver.ts';
import { MessageSender, type Outgoing } from './message-sender.ts';
import { byteLengthOf, plainBytes } from './plain-bytes.ts';

/** How messages are opened on an endpoint. */
export interface MessagesOptions {
  /** Milliseconds that the peer may take to say what it takes. Default 10,000. */
  timeoutMs?: number;
  /** Gives up the attempt; the endpoint is closed. */
  signal?: AbortSignal;
  /**
   * Milliseconds of silence after which the peer's NIC is asked whether the connection still stands, so that a peer that
   * has died is noticed by who only waits. 0: never. Default 10,000.
   */
  keepAliveMs?: number;
  /**
   * Where messages go that do not fit a buffer: called for each, in order. A slice of at least that length, of a region of
   * the endpoint's domain with LOCAL_WRITE, which is yours until the message is released; or undefined for memory of this
   * package. Default: always that. What it throws ends the connection, and so does something else for a result.
   */
  place?: Place;
}

// What a farewell says.
const Farewell = { CLOSED: 0, PROTOCOL: 1 } as const;

// What a peer that takes nothing any more is waited for, for the last frame.
const BYE_MS = 250;

/**
 * Whole messages over an endpoint, in order and exactly once, of any length up to what the peer takes. Those that fit a
 * buffer are copied and sent; longer ones are announced, and the peer reads them out of the sender's memory, with no copy.
 * Nothing is sent that the peer has no buffer for: messages that are not released push back on who sends.
 *
 * Both sides open messages on their end of a connection that was made with `messageEndpoint()`, in any order. A peer that
 * does not keep to the protocol gets the connection closed: `RdmaProtocolError`.
 *
 * An open connection keeps the process alive.
 */
export class Messages {
  /** @internal */
  readonly thread = threadMark('Messages');
  /**
   * Resolves when the connection has ended and the endpoint is closed: with the reason, or with undefined when both sides
   * had said that they were done, or `close()` was called here.
   */
  readonly closed: Promise<Error | undefined>;
  readonly #endpoint: Endpoint;
  readonly #ring: MessageRing;
  readonly #sender: MessageSender;
  readonly #receiver: MessageReceiver;
  readonly #link: MessageLink;
  #resolveClosed: (reason: Error | undefined) => void = () => {};
  #resolveOpened: () => void = () => {};
  #opened: Promise<void>;
  #over = false;
  #reason: Error | undefined;
  #ending: Promise<void> | undefined;
  #hasEnded = false;
  #peerEnded: (() => void) | undefined;
  #closing: Promise<void> | undefined;
  readonly #keepAlive: NodeJS.Timeout | undefined;

  /**
   * Tells the peer what this side takes, and waits for what it takes. What goes wrong closes the endpoint, which belongs to
   * the messages from now on.
   *
   * @param endpoint - made with the options of `messageEndpoint()`
   * @throws RdmaProtocolError when the peer is of another version, or speaks something else; Error ETIMEDOUT after
   *   `timeoutMs`; Error ECONNRESET when the peer has gone; WorkCompletionError when it does not answer; the signal's reason
   * @throws Error `ERR_INVALID_STATE` for an endpoint that was not made for it, or carries messages already
   */
  static open(endpoint: Endpoint, options: MessagesOptions = {}): Promise<Messages> {
    return openMessages(endpoint, options, Kind.MESSAGES);
  }

  /** @internal */
  constructor(endpoint: Endpoint, ring: MessageRing, kind: number, options: { place?: Place; keepAliveMs: number }) {
    this.#endpoint = endpoint;
    this.#ring = ring;
    this.closed = new Promise((resolve) => {
      this.#resolveClosed = resolve;
    });
    this.#opened = new Promise((resolve) => {
      this.#resolveOpened = resolve;
    });
    const fail = (error: unknown) => this.#fail(errorOf(error));
    this.#sender = new MessageSender(endpoint, ring, (slot, type, length) => this.#link.post(slot, type, length), fail);
    this.#receiver = new MessageReceiver(endpoint, ring, options.place, {
      free: (slot) => this.#link.freed(slot),
      wasRead: () => this.#link.wasRead(),
      fail,
    });
    this.#link = new MessageLink(endpoint, ring, kind, {
      hello: (peer) => {
        this.#sender.open(peer);
        this.#resolveOpened();
      },
      returned: (buffers, reads) => this.#sender.returned(buffers, reads),
      data: (slot, length) => this.#receiver.data(slot, length),
      announce: (slot, announced) => this.#receiver.announce(slot, announced),
      end: () => {
        this.#receiver.end();
        this.#peerEnded?.();
      },
      bye: (code, text) => {
        const why = code === Farewell.CLOSED ? '' : `: ${text}`;
        this.#finish(reset(`The peer has ended the connection${why}`));
      },
      fail,
    });
    if (options.keepAliveMs > 0) {
      this.#keepAlive = setInterval(() => this.#link.ask(), options.keepAliveMs).unref();
    }
  }

  /** The endpoint, for operations of its own: reads, writes and atomics. Its sends and receives belong to the messages. */
  get endpoint(): Endpoint {
    return this.#endpoint;
  }

  /** The longest message that the peer takes, in bytes. */
  get maxMessageBytes(): number {
    return this.#sender.maxBytes;
  }

  /** Messages up to that many bytes are copied; longer ones are read by the peer. */
  get maxCopiedBytes(): number {
    return this.#sender.maxCopied;
  }

  /** Messages that may wait here to be released. @internal */
  get buffers(): number {
    return this.#ring.limits.buffers;
  }

  /** Whether the connection has ended. */
  get ended(): boolean {
    return this.#over;
  }

  /**
   * Sends a message. It waits its turn, and until the peer has a buffer for it.
   *
   * @param data - must not be changed until the promise settles, and the region of a slice cannot be closed before it is
   *   copied, or read (EBUSY). A message that does not fit a buffer is read by the peer
   *   from where it is: a slice as it is, if its region has REMOTE_READ (the peer could read all of the region then, as long
   *   as it is open); other memory is registered for this one message, and must not be shared or resizable
   * @param options - `signal`: rejects the promise, and withdraws the message if it is not yet on its way
   * @returns when it is in the peer's memory
   * @throws RangeError `ERR_OUT_OF_RANGE` when it is longer than the peer takes; TypeError for something else, or for a
   *   slice that the peer could not read; Error `ERR_INVALID_STATE` when the memory was taken away while the message waited
   * @throws RdmaClosedError after `end()` and `close()`; else the reason for which the connection has ended
   */
  send(data: Uint8Array | MemorySlice, options: { signal?: AbortSignal } = {}): Promise<void> {
    try {
      const signal = abortSignal(readOptions(options, 'options', ['signal']).signal, 'options.signal');
      signal?.throwIfAborted();
      const outgoing = this.#outgoing(data);
      return this.#push(outgoing, signal);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** As `send()`, for one without which those behind it make no sense: when it cannot be sent the connection ends. @internal */
  sendVital(data: Uint8Array | MemorySlice): Promise<void> {
    return this.#push({ ...this.#outgoing(data), isVital: true }, undefined);
  }

  /** Throws what `send()` would reject with, for something that cannot be sent. @internal */
  requireSendable(data: Uint8Array | MemorySlice): void {
    this.#outgoing(data);
  }

  /**
   * Sends one message of several parts, which are copied.
   *
   * @param parts - `maxCopiedBytes` at the most, all together
   * @param onCopied - the parts may be changed
   * @internal
   */
  sendParts(parts: readonly Uint8Array[], length: number, onCopied: () => void): Promise<void> {
    const none = { memory: undefined, slice: undefined, isVital: true, settle: () => {} };
    return this.#push({ ...none, length, parts, copied: onCopied }, undefined);
  }

  /**
   * The next message, which must be released.
   *
   * @param options - `signal`: ends the wait
   * @returns undefined when the peer has ended, and no more will come
   * @throws RdmaClosedError after `close()`; the reason for which the connection has ended, when all was taken that had come
   *   before; the signal's reason
   */
  async receive(options: { signal?: AbortSignal } = {}): Promise<Message | undefined> {
    const signal = abortSignal(readOptions(options, 'options', ['signal']).signal, 'options.signal');
    if (this.#closing) throw new RdmaClosedError('Messages');
    return this.#receiver.receive(signal);
  }

  /** The messages, until the peer ends. Each must be released. Leaving the loop loses nothing. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Message, void, void> {
    for (;;) {
      const message = await this.receive();
      if (message === undefined) return;
      yield message;
    }
  }

  /**
   * No more messages will be sent; receiving goes on.
   *
   * @returns when the peer has all of them, and knows that it has
   * @throws the reason for which the connection has ended before
   */
  end(): Promise<void> {
    this.#ending ??= this.#end();
    return this.#ending;
  }

  /**
   * Ends, waits until the peer has ended too, and closes the endpoint. Messages that were not received are dropped; those
   * that were received stay until they are released, and their memory with them. Idempotent.
   *
   * @param options - `timeoutMs`: how long to wait; then the peer is told, and has lost what it did not take. Default 5000
   */
  close(options: { timeoutMs?: number } = {}): Promise<void> {
    const { timeoutMs = 5000 } = readOptions(options, 'options', ['timeoutMs']);
    integer(timeoutMs, 'options.timeoutMs', 0, 2 ** 31 - 1);
    this.#closing ??= this.#close(timeoutMs);
    return this.#closing;
  }

  /** The same as `close()`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /**
   * Ends the connection at once: whatever is under way rejects, and so it does for the peer.
   *
   * @param reason - what it rejects with here. Default: RdmaClosedError
   */
  destroy(reason: Error = new RdmaClosedError('Messages')): void {
    instance(reason, 'reason', Error);
    if (reason instanceof RdmaProtocolError) this.#finish(reason, Farewell.PROTOCOL, reason.message);
    else this.#finish(reason, Farewell.CLOSED, '');
  }

  /** @internal */
  [inspect.custom](...how: Inspecting): object | string {
    const tag = #over in this && this.#over ? 'ended' : undefined;
    const fields = () => ({ endpoint: this.endpoint, maxMessageBytes: this.maxMessageBytes });
    return shown('Messages', tag, fields, ...how);
  }

  /** Waits for the peer's limits. @internal */
  async opened(timeoutMs: number, signal: AbortSignal | undefined): Promise<void> {
    // Its reason may be anything.
    const abort = () => this.destroy(signal?.reason instanceof Error ? signal.reason : undefined);
    signal?.addEventListener('abort', abort, { once: true });
    const timer = setTimeout(() => {
      const text = `The peer has not opened messages within ${timeoutMs} ms`;
      this.destroy(Object.assign(new Error(text), { code: 'ETIMEDOUT' }));
    }, timeoutMs);
    try {
      await Promise.race([this.#opened, this.closed]);
      if (!this.#over) return;
      await this.close();
      signal?.throwIfAborted();
      throw this.#reason ?? reset('The peer has ended the connection');
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener('abort', abort);
    }
  }

  #outgoing(data: Uint8Array | MemorySlice): Outgoing {
    const isSlice = MemorySlice.is(data);
    if (!isSlice && !isUint8Array(data)) throw typeError('data', 'a Uint8Array or a MemorySlice', data);
    const length = isSlice ? MemorySlice.lengthOf(data) : byteLengthOf(data);
    if (length > this.maxMessageBytes) {
      throw rangeError(`data has ${length} bytes, and the peer takes ${this.maxMessageBytes}`);
    }
    const calls = { settle: () => {}, copied: () => {} };
    const none = { ...calls, length, parts: [], memory: undefined, slice: undefined, isVital: false };
    if (isSlice) {
      const region = MemorySlice.regionOf(data);
      region.requireOpen();
      if (length <= this.maxCopiedBytes && region.hasBuffer) return { ...none, parts: [data.buffer], slice: data };
      if (region.pd !== this.#ring.pd.root) throw valueError('data is of another protection domain than the endpoint');
      if ((region.access & AccessFlags.REMOTE_READ) === 0) {
        throw valueError(`data has ${length} bytes, which the peer is to read, but its region lacks REMOTE_READ`);
      }
      return { ...none, slice: data };
    }
    if (length > 0 && length <= this.maxCopiedBytes) return { ...none, parts: [data] };
    if (length === 0) return { ...none, parts: [plainBytes(data)] };
    return { ...none, memory: plainBytes(data) };
  }

  #push(outgoing: Outgoing, signal: AbortSignal | undefined): Promise<void> {
    if (this.#reason) return Promise.reject(this.#reason);
    if (this.#ending || this.#over) return Promise.reject(new RdmaClosedError('This direction'));
    return new Promise((resolve, reject) => {
      const abort = () => {
        // What is on its way arrives, and its memory is held until then.
        this.#sender.withdraw(outgoing);
        reject(signal?.reason as Error);
      };
      outgoing.settle = (error) => {
        signal?.removeEventListener('abort', abort);
        if (error) reject(error);
        else resolve();
      };
      signal?.addEventListener('abort', abort, { once: true });
      this.#sender.push(outgoing);
    });
  }

  async #end(): Promise<void> {
    await this.#sender.idle();
    if (this.#over) {
      if (this.#reason) throw this.#reason;
      return;
    }
    try {
      await this.#link.end();
    } catch (error) {
      // A peer that had ended before may be gone already: then it has seen ours.
      if (!this.#receiver.ended) throw this.#reason ?? error;
    }
    this.#hasEnded = true;
  }

  async #close(timeoutMs: number): Promise<void> {
    this.#receiver.discard(new RdmaClosedError('Messages'));
    if (!this.#over) {
      let timer: NodeJS.Timeout | undefined;
      const late = new Promise<void>((resolve) => {
        timer = setTimeout(resolve, timeoutMs);
      });
      const peerEnded = new Promise<void>((resolve) => {
        this.#peerEnded = resolve;
      });
      const both = this.end().then(() => (this.#receiver.ended ? undefined : peerEnded));
      await Promise.race([both.catch(() => {}), late, this.closed]);
      clearTimeout(timer);
      if (this.#hasEnded && this.#receiver.ended) this.#finish(undefined);
      else this.#finish(new RdmaClosedError('Messages'), Farewell.CLOSED, '');
    }
    await this.closed;
    this.#receiver.discard(new RdmaClosedError('Messages'));
  }

  #fail(error: Error): void {
    if (this.#over) return;
    if (this.#hasEnded && this.#receiver.ended) this.#finish(undefined);
    else if (error instanceof RdmaProtocolError) this.#finish(error, Farewell.PROTOCOL, error.message);
    else if (error instanceof WorkCompletionError && error.status === WcStatus.WR_FLUSH_ERR) {
      // Which of several frames is heard of first is no matter of which has failed first.
      const first = this.#endpoint.endReason ?? error;
      const isCause = first instanceof WorkCompletionError && first.status !== WcStatus.WR_FLUSH_ERR;
      this.#finish(isCause ? first : reset('The connection has ended', first));
    } else if (error instanceof WorkCompletionError) this.#finish(error);
    // It is this side that cannot go on, with a queue pair that can: the peer would wait for its timeouts.
    else this.#finish(error, Farewell.CLOSED);
  }

  /** Everything ends, for that reason; the peer is told, if there is a code for it. */
  #finish(reason: Error | undefined, code?: number, text = ''): void {
    if (this.#over) return;
    this.#over = true;
    this.#reason = reason;
    clearInterval(this.#keepAlive);
    this.#link.stop();
    const error = reason ?? new RdmaClosedError('Messages');
    this.#sender.fail(error);
    this.#receiver.fail(error);
    void this.#tearDown(error, code, text);
  }

  async #tearDown(error: Error, code: number | undefined, text: string): Promise<void> {
    if (code !== undefined) {
      const said = this.#link.bye(code, text).catch(() => {});
      let timer: NodeJS.Timeout | undefined;
      const late = new Promise<void>((resolve) => {
        timer = setTimeout(resolve, BYE_MS);
      });
      await Promise.race([said, late]);
      clearTimeout(timer);
    }
    await this.#endpoint.close({ drainMs: 0 }).catch(() => {});
    this.#sender.closed(error);
    this.#receiver.close();
    this.#resolveClosed(this.#reason instanceof RdmaClosedError ? undefined : this.#reason);
  }
}

/** @internal */
export async function openMessages(endpoint: Endpoint, options: MessagesOptions, kind: number): Promise<Messages> {
  const known = ['timeoutMs', 'signal', 'keepAliveMs', 'place'] as const;
  const { timeoutMs = 10_000, keepAliveMs = 10_000, place, ...o } = readOptions(options, 'options', known);
  instance(endpoint, 'endpoint', Endpoint);
  const signal = abortSignal(o.signal, 'options.signal');
  integer(timeoutMs, 'options.timeoutMs', 1, 2 ** 31 - 1);
  integer(keepAliveMs, 'options.keepAliveMs', 0, 2 ** 31 - 1);
  if (place !== undefined && typeof place !== 'function') throw typeError('options.place', 'a function', place);
  if (signal?.aborted) {
    await endpoint.close({ drainMs: 0 });
    throw signal.reason;
  }
  const ring = takeRing(endpoint);
  const messages = new Messages(endpoint, ring, kind, { keepAliveMs, ...(place && { place }) });
  await messages.opened(timeoutMs, signal);
  return messages;
}

// What the caller's functions throw may be anything.
function errorOf(thrown: unknown): Error {
  return isNativeError(thrown) ? thrown : new Error('What was thrown is no error', { cause: thrown });
}

function reset(text: string, cause?: Error): Error {
  return Object.assign(new Error(text, cause && { cause }), { code: 'ECONNRESET' });
}
