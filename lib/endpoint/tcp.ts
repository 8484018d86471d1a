import { once, setMaxListeners } from 'node:events';
import { connect as connectSocket, createServer, type Server, type Socket } from 'node:net';
import { inspect } from 'node:util';
import { abortSignal, instance, integer, readOptions, string, typeError, valueError } from '../args.ts';
import { RdmaClosedError } from '../errors.ts';
import { type Inspecting, shown } from '../inspect.ts';
import type { QpCap } from '../native/native.ts';
import { threadMark } from '../thread.ts';
import { requireNoIwarp } from '../verbs/iwarp.ts';
import type { MemorySlice } from '../verbs/memory-region.ts';
import { ProtectionDomain } from '../verbs/protection-domain.ts';
import type { QueuePair } from '../verbs/queue-pair.ts';
import {
  type ConnectionInfo,
  type ConnectOptions,
  checkConnectOptions,
  connectionInfo,
  connectOptionNames,
  connectQueuePair,
  decodeConnectionInfo,
  encodeConnectionInfo,
} from './connect.ts';
import { Endpoint } from './endpoint.ts';
import { createEndpointQp, endpointCap, endpointOptions, type FirstRecvs, firstRecvs } from './endpoint-qp.ts';

// What travels, in both directions: the length of a frame (u16, network order), the connection info, the private data.
// Then one byte each way, when the queue pair has reached RTS: nobody sends to one that cannot receive.
const READY = 1;
const MAX_PRIVATE_DATA = 4096;
const INFO_LENGTH = 36;

/** How an endpoint is made. */
export interface EndpointOptions extends ConnectOptions {
  /** The protection domain, and with it the device. */
  pd: ProtectionDomain;
  /** Capacities of the queue pair. Defaults: as `pd.createQp()`, and up to 64 bytes inline where the device can. */
  cap?: Partial<QpCap>;
  /** Sent along to the peer, who finds it in `endpoint.privateData`: up to 4096 bytes. A string is sent as UTF-8. */
  privateData?: Uint8Array | string;
  /**
   * Receives to post before the peer can send: called for each connection, with its endpoint. Their promises are in
   * `endpoint.recvs`, in the same order, and later calls of `endpoint.recv()` come behind them.
   */
  recvs?: (endpoint: Endpoint) => readonly MemorySlice[];
  /** Milliseconds that the exchange may take. Default 10,000. */
  timeoutMs?: number;
  /** Operations that may wait for their turn when the queue is full, in each direction. Default 16,384. */
  maxWaiting?: number;
}

/** Where to connect to. */
export interface ConnectTcpOptions extends EndpointOptions {
  /** The peer's host name or address. */
  host: string;
  /** Its TCP port. */
  port: number;
  /** Gives up the attempt. */
  signal?: AbortSignal;
}

/** Where to listen. */
export interface ListenTcpOptions extends EndpointOptions {
  /** TCP port; 0 for a free one. */
  port: number;
  /** Address to listen on. Default: all. The exchange is not authenticated: choose it with care. */
  host?: string;
  /** Connections that may wait to be accepted; more are refused. Default 16. */
  backlog?: number;
  /** Told of attempts that failed, such as a peer that does not speak the protocol. */
  onError?: (error: Error) => void;
}

const endpointOptionNames = [...connectOptionNames, 'pd', 'cap', 'privateData', 'recvs', 'timeoutMs', 'maxWaiting'];

/**
 * Connects to a peer that has called `listenTcp()`: the two exchange what they must know over TCP, and take their queue
 * pairs to RTS. The TCP connection ends with that.
 *
 * @throws the socket's error (ECONNREFUSED, ...), ETIMEDOUT after `timeoutMs`, the signal's reason, TypeError
 *   ERR_INVALID_ARG_VALUE when the peer sends something else
 */
export async function connectTcp(options: ConnectTcpOptions): Promise<Endpoint> {
  const o = readOptions(options, 'options', [...endpointOptionNames, 'host', 'port', 'signal']) as ConnectTcpOptions;
  const host = string(o.host, 'options.host');
  const port = integer(o.port, 'options.port', 1, 65535);
  const signal = abortSignal(o.signal, 'options.signal');
  signal?.throwIfAborted();
  const prepared = prepare(o);
  const socket = connectSocket({ host, port });
  return establish(socket, prepared, signal);
}

/**
 * Listens for peers that call `connectTcp()`.
 *
 * @throws the socket's error, such as EADDRINUSE
 */
export async function listenTcp(options: ListenTcpOptions): Promise<TcpListener> {
  const o = readOptions(options, 'options', [
    ...endpointOptionNames,
    'host',
    'port',
    'backlog',
    'onError',
  ]) as ListenTcpOptions;
  const port = integer(o.port, 'options.port', 0, 65535);
  const host = o.host === undefined ? undefined : string(o.host, 'options.host');
  const backlog = integer(o.backlog ?? 16, 'options.backlog', 1, 4096);
  const { onError = () => {} } = o;
  if (typeof onError !== 'function') throw typeError('options.onError', 'a function', onError);
  const prepared = prepare(o);
  const server = createServer();
  const listener = new TcpListener(server, prepared, backlog, onError);
  server.listen({ port, ...(host !== undefined && { host }) });
  await once(server, 'listening');
  return listener;
}

/** A listening socket: `accept()` each connection, or iterate over them. */
export class TcpListener {
  /** @internal */
  readonly thread = threadMark('TcpListener');
  readonly #server: Server;
  readonly #ready: Endpoint[] = [];
  readonly #accepts: { resolve: (endpoint: Endpoint) => void; reject: (error: Error) => void }[] = [];
  readonly #establishing = new Set<Promise<void>>();
  readonly #abort = new AbortController();
  #closing: Promise<void> | undefined;

  /** @internal */
  constructor(server: Server, prepared: Prepared, backlog: number, onError: (error: Error) => void) {
    this.#server = server;
    // One for each attempt.
    setMaxListeners(0, this.#abort.signal);
    server.on('connection', (socket) => {
      if (this.#ready.length + this.#establishing.size >= backlog) {
        socket.destroy();
        onError(new Error(`A connection was refused: ${backlog} wait to be accepted`));
        return;
      }
      const attempt = establish(socket, prepared, this.#abort.signal)
        .then(
          (endpoint) => this.#deliver(endpoint),
          (error) => onError(error),
        )
        .finally(() => this.#establishing.delete(attempt));
      this.#establishing.add(attempt);
    });
  }

  /** The TCP port. */
  get port(): number {
    const address = this.#server.address();
    return typeof address === 'object' && address !== null ? address.port : 0;
  }

  /**
   * The next connection.
   *
   * @throws RdmaClosedError when the listener is closed
   */
  accept(): Promise<Endpoint> {
    const endpoint = this.#ready.shift();
    if (endpoint) return Promise.resolve(endpoint);
    if (this.#abort.signal.aborted) return Promise.reject(new RdmaClosedError('Listener'));
    return new Promise((resolve, reject) => this.#accepts.push({ resolve, reject }));
  }

  /** The connections, until the listener is closed. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Endpoint, void, void> {
    while (!this.#abort.signal.aborted) {
      try {
        yield await this.accept();
      } catch (error) {
        if (error instanceof RdmaClosedError) return;
        throw error;
      }
    }
  }

  /** Stops listening, and closes the connections that nobody accepted. Idempotent. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    const closed = new RdmaClosedError('Listener');
    this.#abort.abort(closed);
    for (const { reject } of this.#accepts.splice(0)) reject(closed);
    const ended = once(this.#server, 'close');
    this.#server.close();
    await Promise.all([...this.#establishing, ...this.#ready.splice(0).map((endpoint) => endpoint.close())]);
    await ended;
  }

  /** The same as `close()`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** @internal */
  [inspect.custom](...how: Inspecting): object | string {
    const tag = #abort in this && this.#abort.signal.aborted ? 'closed' : undefined;
    return shown('TcpListener', tag, () => ({ port: this.port, unaccepted: this.#ready.length }), ...how);
  }

  async #deliver(endpoint: Endpoint): Promise<void> {
    if (this.#abort.signal.aborted) {
      await endpoint.close();
      return;
    }
    const waiting = this.#accepts.shift();
    if (waiting) waiting.resolve(endpoint);
    else this.#ready.push(endpoint);
  }
}

// The options, checked before there is a socket.
interface Prepared {
  pd: ProtectionDomain;
  cap: Partial<QpCap>;
  privateData: Buffer;
  timeoutMs: number;
  recvs: FirstRecvs;
  how: { maxWaiting?: number };
  connect: ConnectOptions;
}

function prepare(o: EndpointOptions): Prepared {
  const pd = instance(o.pd, 'options.pd', ProtectionDomain);
  pd.requireOpen();
  requireNoIwarp(pd.context);
  const privateData =
    typeof o.privateData === 'string' ? Buffer.from(o.privateData) : (o.privateData ?? Buffer.alloc(0));
  if (!(privateData instanceof Uint8Array))
    throw typeError('options.privateData', 'a Uint8Array or a string', privateData);
  if (privateData.length > MAX_PRIVATE_DATA) {
    throw valueError(`options.privateData has ${privateData.length} bytes, more than ${MAX_PRIVATE_DATA}`);
  }
  const given = o as unknown as Record<string, unknown>;
  const connect: Record<string, unknown> = {};
  for (const name of connectOptionNames) if (given[name] !== undefined) connect[name] = given[name];
  checkConnectOptions(connect);
  return {
    pd,
    cap: endpointCap(o.cap),
    privateData: Buffer.from(privateData),
    timeoutMs: integer(o.timeoutMs ?? 10_000, 'options.timeoutMs', 1, 2 ** 31 - 1),
    recvs: firstRecvs(o),
    how: endpointOptions(o),
    connect,
  };
}

async function establish(socket: Socket, prepared: Prepared, cancel: AbortSignal | undefined): Promise<Endpoint> {
  const { pd, cap, privateData, timeoutMs, recvs, how, connect } = prepared;
  // Destroying the socket is what ends a wait for its bytes; what has come may be all that was waited for.
  const given: { up: boolean; reason: unknown } = { up: false, reason: undefined };
  const giveUp = (reason: unknown) => {
    if (!given.up) Object.assign(given, { up: true, reason });
    socket.destroy();
  };
  const abort = () => giveUp(cancel?.reason);
  cancel?.addEventListener('abort', abort, { once: true });
  const timer = setTimeout(
    () => giveUp(Object.assign(new Error(`No connection within ${timeoutMs} ms`), { code: 'ETIMEDOUT' })),
    timeoutMs,
  );
  const bytes = new SocketReader(socket);
  socket.setNoDelay(true);
  let qp: QueuePair | undefined;
  try {
    qp = await createEndpointQp(pd, cap);
    const local = connectionInfo(qp, connect);
    const frame = Buffer.concat([encodeConnectionInfo(local), privateData]);
    socket.write(Buffer.concat([lengthOf(frame), frame]));
    const length = (await bytes.read(2)).readUInt16BE(0);
    if (length < INFO_LENGTH || length > INFO_LENGTH + MAX_PRIVATE_DATA) {
      throw valueError(`The peer's connection info is refused: a frame of ${length} bytes`);
    }
    const received = await bytes.read(length);
    const remote: ConnectionInfo = decodeConnectionInfo(received.subarray(0, INFO_LENGTH));
    const endpoint = new Endpoint(qp, Buffer.from(received.subarray(INFO_LENGTH)), how);
    await connectQueuePair(qp, local, remote, {
      ...connect,
      beforeRtr: () => endpoint.postInitial(recvs),
    });
    if (given.up) throw given.reason;
    socket.write(Buffer.of(READY));
    if ((await bytes.read(1))[0] !== READY) throw valueError('The peer does not say that it is ready');
    if (given.up) throw given.reason;
    return endpoint;
  } catch (error) {
    socket.destroy();
    if (qp) {
      qp.close();
      qp.sendCq.close();
    }
    throw given.up ? given.reason : error;
  } finally {
    clearTimeout(timer);
    cancel?.removeEventListener('abort', abort);
    // Also where the peer never ends its side: the listener could not be closed then.
    socket.destroySoon();
  }
}

function lengthOf(frame: Buffer): Buffer {
  const length = Buffer.alloc(2);
  length.writeUInt16BE(frame.length);
  return length;
}

// Exact numbers of bytes from a socket.
class SocketReader {
  #buffered = Buffer.alloc(0);
  #error: Error | undefined;
  #wake: (() => void) | undefined;

  constructor(socket: Socket) {
    socket.on('data', (chunk: Buffer) => {
      this.#buffered = Buffer.concat([this.#buffered, chunk]);
      // A peer that sends without end gets no memory for it.
      if (this.#buffered.length > 2 * (INFO_LENGTH + MAX_PRIVATE_DATA)) socket.pause();
      this.#wake?.();
    });
    socket.on('error', (error) => {
      this.#error ??= error;
      this.#wake?.();
    });
    socket.on('close', () => {
      this.#error ??= Object.assign(new Error('The peer has closed the connection'), { code: 'ECONNRESET' });
      this.#wake?.();
    });
  }

  async read(count: number): Promise<Buffer> {
    while (this.#buffered.length < count) {
      if (this.#error) throw this.#error;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    const bytes = this.#buffered.subarray(0, count);
    this.#buffered = this.#buffered.subarray(count);
    return bytes;
  }
}
