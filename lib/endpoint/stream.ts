import type { AddressInfo } from 'node:net';
import { Duplex } from 'node:stream';
import { boolean, integer, readOptions, typeError } from '../args.ts';
import { isIwarp } from '../verbs/iwarp.ts';
import type { Endpoint } from './endpoint.ts';
import { Kind } from './message-link.ts';
import { type Messages, type MessagesOptions, openMessages } from './messages.ts';
import { plainBytes } from './plain-bytes.ts';

/** How a stream is opened on an endpoint. */
export interface RdmaSocketOptions extends Omit<MessagesOptions, 'place'> {
  /** Whether this direction goes on when the peer has ended. Default false, as in `node:net`. */
  allowHalfOpen?: boolean;
  /** Bytes that wait in each direction before `write()` says false, and before no more is read. Default 65,536. */
  highWaterMark?: number;
}

// What a peer that was told of the end may take to end as well, before it is told that it must.
const LINGER_MS = 2000;

/**
 * A stream of bytes over an endpoint: a `Duplex` of Node, with what programs expect of a `net.Socket`. Whoever takes a
 * stream takes it: `pipeline()`, `http.createServer().emit('connection', socket)`, `createConnection` of an HTTP agent.
 *
 * Bytes are copied into registered buffers, and out of them, and nothing is sent that the peer has no buffer for: who does
 * not read pushes back on who writes. `'error'` has the reason of `Messages`: ECONNRESET when the peer has destroyed its
 * end, `RdmaProtocolError`, or a `WorkCompletionError`.
 */
export class RdmaSocket extends Duplex {
  /** Bytes that were read so far. */
  bytesRead = 0;
  /** Bytes that were handed over so far. */
  bytesWritten = 0;
  /** Milliseconds without a byte until `'timeout'`; 0 for never. */
  timeout = 0;
  /** Whether it is still being connected: never, since `open()` gives it when it is. */
  readonly connecting = false;
  readonly #messages: Messages;
  #timer: NodeJS.Timeout | undefined;
  #reading = false;
  #addresses: { local: string; remote: string } | undefined;

  /**
   * Opens the stream, which both sides must do; the endpoint belongs to it from now on.
   *
   * @param endpoint - made with the options of `messageEndpoint()`
   * @throws as `Messages.open()`
   */
  static async open(endpoint: Endpoint, options: RdmaSocketOptions = {}): Promise<RdmaSocket> {
    const known = ['allowHalfOpen', 'highWaterMark', 'timeoutMs', 'signal', 'keepAliveMs'] as const;
    const { allowHalfOpen = false, highWaterMark = 65_536, ...rest } = readOptions(options, 'options', known);
    boolean(allowHalfOpen, 'options.allowHalfOpen');
    integer(highWaterMark, 'options.highWaterMark', 0, Number.MAX_SAFE_INTEGER);
    return new RdmaSocket(await openMessages(endpoint, rest, Kind.STREAM), allowHalfOpen, highWaterMark);
  }

  /** @internal */
  constructor(messages: Messages, allowHalfOpen: boolean, highWaterMark: number) {
    super({ allowHalfOpen, highWaterMark });
    this.#messages = messages;
    void messages.closed.then((reason) => {
      if (reason) this.destroy(reason);
    });
    // So that the end is noticed by who only writes.
    this.read(0);
  }

  /** The endpoint that the bytes go over. */
  get endpoint(): Endpoint {
    return this.#messages.endpoint;
  }

  /** This side's address: its GID, as an IPv4 address where it is one. Undefined once the endpoint is closed, and on iWARP. */
  get localAddress(): string | undefined {
    return this.#address()?.local;
  }

  /** The peer's address, likewise. */
  get remoteAddress(): string | undefined {
    return this.#address()?.remote;
  }

  /** `'IPv4'` or `'IPv6'`. */
  get remoteFamily(): string | undefined {
    return family(this.remoteAddress);
  }

  /** This side's address; there is no port. */
  address(): Partial<Omit<AddressInfo, 'port'>> {
    const { localAddress: address } = this;
    return address === undefined ? {} : { address, family: family(address) as string };
  }

  /**
   * Emits `'timeout'` when no byte has come or gone for so long. The stream goes on.
   *
   * @param timeout - milliseconds; 0 for never
   * @param callback - called once, at the first of them
   */
  setTimeout(timeout: number, callback?: () => void): this {
    this.timeout = integer(timeout, 'timeout', 0, 2 ** 31 - 1);
    if (callback !== undefined) {
      if (typeof callback !== 'function') throw typeError('callback', 'a function', callback);
      if (timeout === 0) this.removeListener('timeout', callback);
      else this.once('timeout', callback);
    }
    clearTimeout(this.#timer);
    this.#timer = undefined;
    if (timeout > 0 && !this.destroyed) this.#timer = setTimeout(() => this.emit('timeout'), timeout).unref();
    return this;
  }

  /** Does nothing: there is no delay. */
  setNoDelay(_noDelay?: boolean): this {
    return this;
  }

  /** Does nothing: see the option `keepAliveMs`. */
  setKeepAlive(_enable?: boolean, _initialDelay?: number): this {
    return this;
  }

  /** Does nothing: an open stream keeps the process alive. */
  ref(): this {
    return this;
  }

  /** Does nothing: an open stream keeps the process alive. */
  unref(): this {
    return this;
  }

  /** Destroys the stream when all that was written is with the peer. */
  destroySoon(): void {
    if (this.writable) this.end();
    if (this.writableFinished) this.destroy();
    else this.once('finish', () => this.destroy());
  }

  /** @internal */
  override _read(): void {
    if (this.#reading) return;
    this.#reading = true;
    this.#messages.receive().then(
      (message) => {
        this.#reading = false;
        if (message === undefined) {
          guarded(() => this.push(null));
          // Who does not read is told of the end all the same, if it is all that there is.
          this.read(0);
          return;
        }
        const bytes = Buffer.from(message.data);
        message.release();
        this.bytesRead += bytes.length;
        this.#timer?.refresh();
        if (bytes.length === 0) this._read();
        // Node reads on behind the handlers, unless they throw.
        else if (!guarded(() => this.push(bytes))) this.read(0);
      },
      (error) => this.destroy(error),
    );
  }

  /** @internal */
  override _write(chunk: Buffer, _encoding: BufferEncoding, callback: (error?: Error | null) => void): void {
    this.#send([chunk], callback);
  }

  /** @internal */
  override _writev(chunks: { chunk: Buffer }[], callback: (error?: Error | null) => void): void {
    this.#send(
      chunks.map(({ chunk }) => chunk),
      callback,
    );
  }

  /** @internal */
  override _final(callback: (error?: Error | null) => void): void {
    this.#messages.end().then(() => guarded(callback), callback);
  }

  /** @internal */
  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    clearTimeout(this.#timer);
    // As a socket of Node: the peer sees an error when there is one here, and else the end of what has been sent.
    if (error) this.#messages.destroy(error);
    void this.#messages.close({ timeoutMs: LINGER_MS }).then(() => guarded(() => callback(error)), callback);
  }

  // As few messages as they fit in. The callback comes when the bytes may be changed, which is before they have arrived.
  #send(chunks: readonly Uint8Array[], callback: (error?: Error | null) => void): void {
    let frames: ReturnType<typeof cut>;
    try {
      frames = cut(chunks, this.#messages.maxCopiedBytes);
    } catch (error) {
      callback(error as Error);
      return;
    }
    if (frames.length === 0) callback();
    frames.forEach(({ parts, length }, i) => {
      const isLast = i === frames.length - 1;
      let isCopied = false;
      const copied = () => {
        isCopied = true;
        this.bytesWritten += length;
        this.#timer?.refresh();
        if (isLast) guarded(callback);
      };
      this.#messages.sendParts(parts, length, copied).catch((error) => {
        if (isLast && !isCopied) guarded(() => callback(error));
      });
    });
  }

  // The kernel is asked, so only when somebody wants to know.
  #address(): { local: string; remote: string } | undefined {
    const { qp } = this.endpoint;
    // A queue pair of iWARP knows none.
    if (this.#addresses === undefined && !qp.closed && !isIwarp(qp.context)) {
      const { ahAttr } = qp.query();
      const { dgid, sgidIndex = 0 } = ahAttr?.grh ?? {};
      const local = qp.pd.context.queryGid(ahAttr?.portNum ?? 1, sgidIndex);
      this.#addresses = { local: plain(local), remote: plain(dgid ?? '::') };
    }
    return this.#addresses;
  }
}

/**
 * Calls what calls handlers of the user. What they throw is an uncaught exception, as with a socket of Node, and does not
 * get in the way of the messages. Returns whether they have not.
 */
function guarded(work: () => void): boolean {
  try {
    work();
    return true;
  } catch (error) {
    process.nextTick(() => {
      throw error;
    });
    return false;
  }
}

/** Cuts chunks into messages, in order. */
function cut(chunks: readonly Uint8Array[], most: number): { parts: Uint8Array[]; length: number }[] {
  const frames: { parts: Uint8Array[]; length: number }[] = [];
  let frame = { parts: [] as Uint8Array[], length: most };
  for (const given of chunks) {
    const chunk = plainBytes(given);
    for (let at = 0; at < chunk.length; ) {
      if (frame.length === most) {
        frame = { parts: [], length: 0 };
        frames.push(frame);
      }
      const part = chunk.subarray(at, at + most - frame.length);
      frame.parts.push(part);
      frame.length += part.length;
      at += part.length;
    }
  }
  return frames;
}

function plain(gid: string): string {
  return gid.replace(/^::ffff:(?=\d+\.\d+\.\d+\.\d+$)/, '');
}

function family(address: string | undefined): string | undefined {
  if (address === undefined) return undefined;
  return address.includes(':') ? 'IPv6' : 'IPv4';
}
