/** The two sides of a measurement talk over TCP: a line of JSON each, in turn. */
import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';

/** Longer than any line of ours; more is no peer. */
const MAX_LINE = 1 << 20;

/** Time that a peer has to open its device and make its objects; under emulation that takes seconds. */
export const ANSWER_MS = 60_000;

/** An error that is told in one line. */
export function perfError(message: string): Error {
  return Object.assign(new Error(message), { code: 'ERR_PERF' });
}

/** Ends a connection with the signal, unless it has ended before. */
function endWith(socket: Socket, signal: AbortSignal): Socket {
  const end = () => socket.destroy();
  signal.addEventListener('abort', end, { once: true });
  return socket.once('close', () => signal.removeEventListener('abort', end));
}

/** Listens for one peer. `onListening` is told the port. The connection ends with the signal. */
export async function acceptOne(
  port: number,
  signal: AbortSignal,
  onListening: (port: number) => void,
): Promise<Socket> {
  signal.throwIfAborted();
  const server = createServer();
  try {
    server.listen({ port });
    await once(server, 'listening', { signal });
    onListening((server.address() as { port: number }).port);
    const [socket] = (await once(server, 'connection', { signal })) as [Socket];
    return endWith(socket, signal);
  } catch (error) {
    signal.throwIfAborted();
    throw error;
  } finally {
    server.close();
  }
}

/** Connects to a peer. The connection ends with the signal. */
export async function connectTo(host: string, port: number, signal: AbortSignal): Promise<Socket> {
  signal.throwIfAborted();
  const socket = endWith(connect({ host, port }), signal);
  try {
    await once(socket, 'connect', { signal });
    return socket;
  } catch (error) {
    signal.throwIfAborted();
    throw error;
  }
}

/** A connection that carries objects. */
export class Control {
  readonly #socket: Socket;
  readonly #lines: AsyncIterator<{ error?: unknown }>;
  #hasSpoken = false;

  constructor(socket: Socket) {
    this.#socket = socket;
    socket.setNoDelay(true);
    // What ends it shows at the next receive.
    socket.on('error', () => {});
    this.#lines = lines(socket);
  }

  send(message: object): void {
    this.#socket.write(`${JSON.stringify(message)}\n`);
  }

  /** The first object of the peer, which may be another program that waits too: it is not waited for without end. */
  async first<T extends object>(): Promise<T> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      const seconds = ANSWER_MS / 1000;
      const why = `the peer says nothing for ${seconds} s: it is no node-rdma perf, or on a machine that is very busy`;
      timer = setTimeout(() => {
        this.#socket.destroy();
        reject(perfError(why));
      }, ANSWER_MS);
    });
    return Promise.race([this.receive<T>(), late]).finally(() => clearTimeout(timer));
  }

  /** The next object. @throws when the peer has gone, or has sent an `error` */
  async receive<T extends object>(): Promise<T> {
    const { value, done } = await this.#lines.next().catch(asEnd);
    if (done || value === undefined) {
      const ended = 'the peer has closed the connection';
      throw perfError(this.#hasSpoken ? ended : `${ended} without a word: it must be node-rdma perf, too`);
    }
    this.#hasSpoken = true;
    if (typeof value.error === 'string') throw perfError(`the peer says: ${value.error}`);
    return value as T;
  }

  /** What was sent arrives; a peer that does not end its side is not waited for. */
  close(): void {
    this.#socket.end().unref();
  }
}

/** The end of what a socket iterates over, for `catch()`: a peer that was interrupted may leave by a reset. */
export function asEnd(error: NodeJS.ErrnoException): IteratorReturnResult<undefined> {
  if (error.code !== 'ECONNRESET') throw error;
  return { done: true, value: undefined };
}

async function* lines(socket: Socket): AsyncGenerator<{ error?: unknown }, void> {
  let text = '';
  for await (const chunk of socket.setEncoding('utf8')) {
    const parts = (text + chunk).split('\n');
    text = parts.pop()!;
    if (text.length > MAX_LINE) throw perfError('the peer is no node-rdma perf');
    for (const part of parts) {
      let value: unknown;
      try {
        value = JSON.parse(part);
      } catch {
        throw perfError('the peer is no node-rdma perf');
      }
      if (typeof value !== 'object' || value === null) throw perfError('the peer is no node-rdma perf');
      yield value;
    }
  }
}
