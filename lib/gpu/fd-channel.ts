/** DMA-BUFs from process to process: descriptors over Unix sockets (SCM_RIGHTS). */
import { lstatSync, unlinkSync } from 'node:fs';
import {
  abortSignal,
  instance,
  integer,
  rangeError,
  readOptions,
  stateError,
  string,
  typeError,
  valueError,
} from '../args.ts';
import { RdmaClosedError } from '../errors.ts';
import { binding } from '../native/binding.ts';
import type { FdSocketEventsHandle, FdSocketHandle } from '../native/native-gpu.ts';
import { Resource } from '../verbs/resource.ts';
import { DmaBuf } from './dmabuf.ts';

/** How a wait for a peer may end early. */
export interface FdWaitOptions {
  /** Ends the wait: the promise rejects with its reason. */
  signal?: AbortSignal;
}

/** What came over a channel. */
export interface FdMessage {
  /** What was sent, in its order. They are the receiver's to close. */
  dmabufs: DmaBuf[];
  /** The bytes that were sent with them. */
  data: Buffer;
}

// What one waits for on a socket: one wait at a time.
abstract class FdSocket extends Resource {
  /** @internal */
  protected readonly handle: FdSocketHandle;
  protected readonly destroyVerb = 'close';
  readonly #events: FdSocketEventsHandle;
  // What the poller holds: who waits, and by way of that this object, but only for as long.
  readonly #waiting: { wake?: (() => void) | undefined } = {};

  /** @internal */
  constructor(handle: FdSocketHandle) {
    super([]);
    this.handle = handle;
    const waiting = this.#waiting;
    this.#events = binding().createFdSocketEvents(handle, () => waiting.wake?.());
  }

  /** Tries until it is there. */
  protected async until<T>(attempt: () => T | null, options: FdWaitOptions): Promise<T> {
    this.requireOpen();
    const { signal } = readOptions(options, 'options', ['signal']);
    abortSignal(signal, 'options.signal');
    signal?.throwIfAborted();
    const waiting = this.#waiting;
    if (waiting.wake) throw stateError(`Somebody waits for ${this.describe()} already`);
    for (;;) {
      const found = attempt();
      if (found !== null) return found;
      await new Promise<void>((resolve) => {
        const wake = () => {
          signal?.removeEventListener('abort', wake);
          waiting.wake = undefined;
          resolve();
        };
        waiting.wake = wake;
        signal?.addEventListener('abort', wake, { once: true });
        binding().startFdSocketEvents(this.#events);
      });
      if (this.closed) throw new RdmaClosedError(this.describe());
      if (signal?.aborted) {
        binding().stopFdSocketEvents(this.#events);
        throw signal.reason;
      }
    }
  }

  protected destroy(): void {
    binding().closeFdSocketEvents(this.#events);
    binding().closeFdSocket(this.handle);
    this.#waiting.wake?.();
  }
}

/**
 * A Unix socket that carries DMA-BUFs, to hand one from the process that has exported it to another on the same machine. Made
 * by {@link connectFd}, `listener.accept()` and {@link adoptFdChannel}. The peer may be any program that knows SCM_RIGHTS:
 * Python's `socket.send_fds()` and `recv_fds()`, say.
 *
 * The socket is of the type SOCK_SEQPACKET: a message comes whole and by itself, with its own descriptors. A stream socket, of
 * another program that listens with one or adopted, knows no messages: one of more than 32 KiB is refused there, and bytes
 * that were sent without DMA-BUFs may come joined to what follows.
 */
export class FdChannel extends FdSocket {
  /**
   * Sends DMA-BUFs. The peer gets descriptors of its own: what was sent may be closed at once.
   *
   * @param dmabufs - `DmaBuf` objects, or bare descriptors; at most 253
   * @param data - sent along, at least one byte and at most 64 KiB (32 KiB by a stream socket). Default: one byte, 0
   * @throws RdmaError of `sendmsg`: EAGAIN where the peer does not read and the socket is full; EPIPE where it is gone;
   *   EBADF for no descriptor; EMSGSIZE for more data than the socket takes at once, or where a stream socket took only a part
   *   of them: then the channel is of no more use
   */
  send(dmabufs: readonly (DmaBuf | number)[], data: Uint8Array = Buffer.alloc(1)): void {
    this.requireOpen();
    if (!Array.isArray(dmabufs)) throw typeError('dmabufs', 'an array', dmabufs);
    if (dmabufs.length > 253) throw rangeError(`dmabufs has ${dmabufs.length} elements, and a message takes 253`);
    if (!(data instanceof Uint8Array)) throw typeError('data', 'a Uint8Array', data);
    if (data.length < 1 || data.length > 65536) throw rangeError(`data must have 1 to 65536 bytes, not ${data.length}`);
    const fds = Array.from(dmabufs, (given, i) => {
      if (typeof given === 'number') return integer(given, `dmabufs[${i}]`, 0, 0x7fff_ffff);
      instance(given, `dmabufs[${i}]`, DmaBuf).requireOpen();
      return given.fd;
    });
    binding().sendFds(this.handle, fds, data);
  }

  /**
   * Waits for a message. It keeps the process alive while it waits.
   *
   * @returns undefined when the peer has closed its end
   * @throws RdmaError of `recvmsg`: EMFILE where this process may have no more descriptors; EMSGSIZE for a message of more than
   *   64 KiB, which is gone then; ECONNRESET
   * @throws RdmaClosedError when the channel is closed meanwhile
   */
  async receive(options: FdWaitOptions = {}): Promise<FdMessage | undefined> {
    const { dmabufs, bytes } = await this.until(() => binding().receiveFds(this.handle), options);
    if (bytes.length === 0) return undefined;
    return { dmabufs: dmabufs.map((native) => new DmaBuf(native)), data: bytes };
  }

  /** @internal */
  describe(): string {
    return 'FdChannel';
  }
}

/** A Unix socket that others connect to, to be given DMA-BUFs. Made by {@link listenFd}. */
export class FdListener extends FdSocket {
  /** Where it listens. */
  readonly path: string;
  // Which file it is there: another listener may have put its own in the place.
  readonly #file: string | undefined;

  /** @internal */
  constructor(handle: FdSocketHandle, path: string) {
    super(handle);
    this.path = path;
    this.#file = fileAt(path);
  }

  /**
   * Waits for the next process that connects. It keeps the process alive while it waits.
   *
   * @throws RdmaClosedError when the listener is closed meanwhile
   */
  async accept(options: FdWaitOptions = {}): Promise<FdChannel> {
    return new FdChannel(await this.until(() => binding().acceptFdSocket(this.handle), options));
  }

  /** @internal */
  describe(): string {
    return `FdListener (${this.path.replace('\0', '@')})`;
  }

  /** @internal */
  protected override destroy(): void {
    // Before the socket is closed: until then no other file gets the number of this one.
    try {
      if (this.#file !== undefined && fileAt(this.path) === this.#file) unlinkSync(this.path);
    } catch {
      // Somebody has taken it away.
    }
    super.destroy();
  }
}

// What tells a file from all others of the machine; undefined where there is none.
function fileAt(path: string): string | undefined {
  if (path.startsWith('\0')) return undefined;
  const stat = lstatSync(path, { bigint: true, throwIfNoEntry: false });
  return stat && `${stat.dev}:${stat.ino}`;
}

function checkPath(path: string): string {
  string(path, 'path');
  if (path === '' || path.indexOf('\0', 1) !== -1) throw valueError('path must be a path, or NUL and a name');
  return path;
}

/**
 * Listens at a path, with a socket of the type SOCK_SEQPACKET. Whoever may write to the path may connect, so it belongs into a
 * folder of its own rights.
 *
 * @param path - at most 107 bytes; where it begins with NUL it is a name of the abstract space, which everybody on the machine
 *   can reach. The file goes when the listener is closed, unless another one has taken its place
 * @throws RdmaError of `bind`: EADDRINUSE for a path that exists; EACCES; ENAMETOOLONG
 * @see unix(7)
 */
export function listenFd(path: string): FdListener {
  return new FdListener(binding().listenFdSocket(checkPath(path)), path);
}

/**
 * Connects to a path where a process listens: one with {@link listenFd}, or any other with a socket of
 * the type SOCK_SEQPACKET or SOCK_STREAM.
 *
 * @throws RdmaError of `connect`: ENOENT, ECONNREFUSED, EACCES; EAGAIN where more wait already than it takes
 * @see unix(7)
 */
export function connectFd(path: string): FdChannel {
  return new FdChannel(binding().connectFdSocket(checkPath(path)));
}

/**
 * Makes a channel of a connected Unix socket of this process: one that was inherited from a parent, say.
 *
 * @param fd - its descriptor; it stays the caller's, who must not read from it
 * @throws RdmaError EBADF; ENOTSOCK; EAFNOSUPPORT for a socket of another family
 */
export function adoptFdChannel(fd: number): FdChannel {
  return new FdChannel(binding().duplicateFdSocket(integer(fd, 'fd', 0, 0x7fff_ffff)));
}
