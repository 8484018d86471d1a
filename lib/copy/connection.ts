/** Connections for copies: by the connection manager, or by the exchange over TCP. */
import { lookup } from 'node:dns/promises';
import { isIP } from 'node:net';
import { createEventChannel } from '../cm/event-channel.ts';
import { type ConnectionRequest, connect, listen } from '../endpoint/cm.ts';
import type { Endpoint } from '../endpoint/endpoint.ts';
import { messageEndpoint } from '../endpoint/message-memory.ts';
import { Messages } from '../endpoint/messages.ts';
import { connectTcp, listenTcp } from '../endpoint/tcp.ts';
import { RdmaClosedError } from '../errors.ts';
import { openDevice } from '../verbs/device.ts';
import type { ProtectionDomain } from '../verbs/protection-domain.ts';
import { CopyChannel, copyLimits } from './channel.ts';
import { CopyClient } from './client.ts';
import { CopyFolder, type ServedFile } from './server.ts';

/** How the two sides connect. */
export interface CopyRoute {
  /** Of the connection manager, or of TCP. */
  port: number;
  /** By an exchange over TCP, not by the connection manager. */
  isTcp: boolean;
  /** The device, with TCP; by the connection manager the route decides. */
  device: string | undefined;
  /** This side's address: to listen on, or to connect from by the connection manager. */
  localAddress: string | undefined;
}

// A peer that is dead is to be noticed while its user still waits.
const KEEP_ALIVE_MS = 3000;
const open = { keepAliveMs: KEEP_ALIVE_MS };

// The device by which a peer is reached.
async function deviceTo(address: string, { port, localAddress }: CopyRoute, signal: AbortSignal): Promise<string> {
  const channel = createEventChannel();
  try {
    const id = channel.createId();
    const src = localAddress === undefined ? {} : { src: { address: localAddress } };
    await id.resolveAddr({ address, port }, { ...src, signal });
    return id.device as string;
  } finally {
    channel.close({ cascade: true });
  }
}

async function connected(host: string, route: CopyRoute, signal: AbortSignal): Promise<[Endpoint, ProtectionDomain]> {
  const { port, isTcp, device, localAddress } = route;
  const address = isTcp || isIP(host) !== 0 || host.includes('%') ? host : (await lookup(host)).address;
  const context = openDevice(isTcp ? device : await deviceTo(address, route, signal));
  try {
    const pd = context.allocPd();
    const to = { ...messageEndpoint({ pd, ...copyLimits }), host: address, port, signal };
    if (isTcp) return [await connectTcp(to), pd];
    return [await connect({ ...to, ...(localAddress !== undefined && { localAddress }) }), pd];
  } catch (error) {
    context.close({ cascade: true });
    throw error;
  }
}

/**
 * Connects to a peer that serves, does something with it, and ends the connection. Aborting the signal ends it in the middle.
 *
 * @throws CmError, or the socket's error: ECONNREFUSED when nobody serves there; as `Messages.open()`
 */
export async function withCopyClient(
  host: string,
  route: CopyRoute,
  signal: AbortSignal,
  work: (client: CopyClient) => Promise<void>,
): Promise<void> {
  const [endpoint, pd] = await connected(host, route, signal);
  try {
    const messages = await Messages.open(endpoint, { ...open, signal });
    const abort = () => messages.destroy(signal.reason as Error);
    signal.addEventListener('abort', abort, { once: true });
    const client = await CopyClient.open(new CopyChannel(messages, pd));
    try {
      await work(client);
    } finally {
      signal.removeEventListener('abort', abort);
      await client.close();
    }
  } finally {
    pd.context.close({ cascade: true });
  }
}

/** What to serve. */
export interface ServeOptions extends CopyRoute {
  folder: string;
  isReadOnly: boolean;
  /** Connections at a time; more are refused. */
  maxConnections: number;
  /** Ends it: connections in the middle too. */
  signal: AbortSignal;
  /** Told the port. */
  onListening: (port: number) => void;
  /** Told of each file, with the number of its connection. */
  onFile: (file: ServedFile, connection: number) => void;
  /** Told why a connection has failed. */
  onError: (error: Error, connection: number) => void;
}

/** Serves a directory, until the signal is aborted. @throws CopyError for the directory; as `listen()`, `listenTcp()` */
export async function serveCopies(options: ServeOptions): Promise<void> {
  const { signal, onListening } = options;
  signal.throwIfAborted();
  const folder = await CopyFolder.open(options.folder, options.isReadOnly);
  const served = new Connections(folder, options);
  let listener: Listening | undefined;
  try {
    listener = options.isTcp ? await listenByTcp(options, served) : await listenByCm(options, served);
    onListening(listener.port);
    const { close } = listener;
    const abort = () => void close();
    signal.addEventListener('abort', abort, { once: true });
    if (signal.aborted) abort();
    await listener.ended;
  } finally {
    await listener?.close();
    await served.close();
    await folder.close();
  }
}

interface Listening {
  port: number;
  close: () => Promise<void>;
  ended: Promise<void>;
}

async function listenByTcp({ port, device, localAddress }: ServeOptions, served: Connections): Promise<Listening> {
  const how = { port, ...messageEndpoint({ pd: served.pdOf(device), ...copyLimits }) };
  const onError = (error: Error) => served.failed(error);
  const listener = await listenTcp({ ...how, onError, ...(localAddress !== undefined && { host: localAddress }) });
  const accept = async () => {
    for await (const endpoint of listener) {
      if (served.isFull) await endpoint.close().catch(onError);
      else served.add(async () => endpoint, how.pd);
    }
  };
  return { port: listener.port, close: () => listener.close(), ended: accept() };
}

async function listenByCm({ port, localAddress }: ServeOptions, served: Connections): Promise<Listening> {
  // What an older server has left of its connections does not matter.
  const where = { port, reuseAddr: true, ...(localAddress !== undefined && { host: localAddress }) };
  const listener = await listen(where);
  const take = (request: ConnectionRequest) => {
    if (served.isFull) return request.reject(Buffer.from('busy'));
    let pd: ProtectionDomain;
    try {
      pd = served.pdOf(request.device);
    } catch (error) {
      request.reject();
      throw error;
    }
    served.add(() => request.accept(messageEndpoint({ pd, ...copyLimits })), pd);
  };
  const accept = async () => {
    for await (const request of listener) {
      // Whatever is the matter with one of them, the others are served.
      try {
        take(request);
      } catch (error) {
        served.failed(error as Error);
      }
    }
  };
  return { port: listener.port, close: () => listener.close(), ended: accept() };
}

/** The connections of a server, and the devices that they came by. */
class Connections {
  readonly #folder: CopyFolder;
  readonly #options: ServeOptions;
  readonly #pds = new Map<string | undefined, ProtectionDomain>();
  readonly #live = new Set<Promise<void>>();
  #count = 0;

  constructor(folder: CopyFolder, options: ServeOptions) {
    this.#folder = folder;
    this.#options = options;
  }

  get isFull(): boolean {
    return this.#live.size >= this.#options.maxConnections;
  }

  pdOf(device: string | undefined): ProtectionDomain {
    let pd = this.#pds.get(device);
    if (pd === undefined) {
      pd = openDevice(device).allocPd();
      this.#pds.set(device, pd);
    }
    return pd;
  }

  failed(error: Error): void {
    if (!this.#options.signal.aborted) this.#options.onError(error, ++this.#count);
  }

  add(accept: () => Promise<Endpoint>, pd: ProtectionDomain): void {
    const number = ++this.#count;
    const { signal, onFile, onError } = this.#options;
    const serve = async () => {
      const messages = await Messages.open(await accept(), { ...open, signal });
      const abort = () => messages.destroy(new RdmaClosedError('The server'));
      signal.addEventListener('abort', abort, { once: true });
      if (signal.aborted) abort();
      try {
        await this.#folder.serve(new CopyChannel(messages, pd), (file) => onFile(file, number));
      } finally {
        signal.removeEventListener('abort', abort);
      }
    };
    const live = serve()
      .catch((error: Error) => {
        if (!signal.aborted) onError(error, number);
      })
      .finally(() => this.#live.delete(live));
    this.#live.add(live);
  }

  async close(): Promise<void> {
    await Promise.all(this.#live);
    for (const pd of this.#pds.values()) pd.context.close({ cascade: true });
  }
}
