import { lookup } from 'node:dns/promises';
import { isIP } from 'node:net';
import {
  abortSignal,
  boolean,
  environmentNumber,
  instance,
  integer,
  readOptions,
  string,
  valueError,
} from '../args.ts';
import type { CmEvent } from '../cm/cm-event.ts';
import type { CmId } from '../cm/cm-id.ts';
import { createEventChannel, type EventChannel } from '../cm/event-channel.ts';
import { resolveAddrUntil } from '../cm/resolve.ts';
import { RdmaClosedError, RdmaDeviceLostError, RdmaError, RdmaPeerLeftError } from '../errors.ts';
import { CmEventType, QpState } from '../native/constants.gen.ts';
import type { QpCap } from '../native/native.ts';
import type { CmAddressInfo } from '../native/native-cm.ts';
import { threadMark } from '../thread.ts';
import { isIwarp } from '../verbs/iwarp.ts';
import type { MemorySlice } from '../verbs/memory-region.ts';
import { ProtectionDomain } from '../verbs/protection-domain.ts';
import { RETRIES } from './connect.ts';
import { Endpoint } from './endpoint.ts';
import { createEndpointQp, endpointCap, endpointOptions, type FirstRecvs, firstRecvs } from './endpoint-qp.ts';

/** How an endpoint is made by the connection manager. */
export interface CmEndpointOptions {
  /** The protection domain: of the device by which the peer is reached. */
  pd: ProtectionDomain;
  /** Capacities of the queue pair. Defaults: as `pd.createQp()`, and up to 64 bytes inline where the device can. */
  cap?: Partial<QpCap>;
  /**
   * Sent along to the peer: up to 56 bytes with `connect()`, 196 with `accept()`, 251 on iWARP. It arrives with zeros behind
   * it, in `request.privateData` and `endpoint.privateData`: use `encodePrivateData()` where the length matters. A string is
   * sent as UTF-8.
   */
  privateData?: Uint8Array | string;
  /**
   * Receives to post before the peer can send. Their promises are in `endpoint.recvs`, in the same order, and later calls
   * of `endpoint.recv()` come behind them.
   */
  recvs?: (endpoint: Endpoint) => readonly MemorySlice[];
  /** RDMA reads and atomics of the peer to be answered at once. Default: as many as the device can. */
  responderResources?: number;
  /** RDMA reads and atomics to have under way at once. Default: as many as both devices can. */
  initiatorDepth?: number;
  /**
   * Retries after a timeout, 0 to 7. Default 6: Soft-RoCE takes 7 for "without end", and never tells of a dead peer. This and the
   * two below mean nothing on iWARP.
   */
  retryCount?: number;
  /** Retries after receiver not ready; 7 is without end. Default 7. */
  rnrRetryCount?: number;
  /** Encoded wait of the peer after a receiver-not-ready NAK. Default 12: 0.64 ms. */
  minRnrTimer?: number;
  /** Milliseconds that it may take. Default 10,000. */
  timeoutMs?: number;
  /** Operations that may wait for their turn when the queue is full, in each direction. Default 16,384. */
  maxWaiting?: number;
  /** Gives up the attempt. */
  signal?: AbortSignal;
}

/** Where to connect to. */
export interface CmConnectOptions extends CmEndpointOptions {
  /** The peer's host name or address; a link-local one with its interface, as in `'fe80::1%eth0'`. */
  host: string;
  /** The peer's port of the connection manager (not a TCP port). */
  port: number;
  /** This side's address. Default: by the routes of the system. */
  localAddress?: string;
  /** Type of service: DSCP and ECN bits. Default: the environment variable NODE_RDMA_TC, else 0. */
  tos?: number;
  /** Acknowledgement timeout, 4.096 us * 2^ackTimeout. Default: what the connection manager reckons. */
  ackTimeout?: number;
}

/** Where to listen. */
export interface CmListenOptions {
  /** Port of the connection manager; 0 for a free one. */
  port: number;
  /** Address to listen on. Default `'::'`: all addresses of all devices, of IPv4 too. */
  host?: string;
  /** Requests that may wait to be taken; the peers of more ask again, every four seconds or so. Default 16. */
  backlog?: number;
  /**
   * Whether to bind the address although an id that does not listen has it, with the same option. The kernel lets one listen
   * there only when it is the only one: EADDRINUSE. Default false.
   */
  reuseAddr?: boolean;
}

const endpointOptionNames = [
  'pd',
  'cap',
  'privateData',
  'recvs',
  'responderResources',
  'initiatorDepth',
  'retryCount',
  'rnrRetryCount',
  'minRnrTimer',
  'timeoutMs',
  'maxWaiting',
  'signal',
];

// The ids of connections, of both sides, share a channel. It goes with the last of them.
let shared: EventChannel | undefined;

function connections(): EventChannel {
  if (shared === undefined || shared.closed) shared = createEventChannel();
  return shared;
}

function leave(id: CmId): void {
  id.close();
  if (shared && !shared.closed && shared.idle) shared.close();
}

/**
 * Connects to a peer by the connection manager: one that has called `listen()`, or any program that uses librdmacm.
 *
 * @throws CmError ECONNREFUSED when nobody listens or the peer rejects, with the peer's `privateData`; ETIMEDOUT,
 *   EHOSTUNREACH, ENODEV as `id.resolveAddr()` and `id.connect()`
 * @throws Error ETIMEDOUT after `timeoutMs`; the signal's reason; the resolver's error for a name
 * @throws TypeError ERR_INVALID_ARG_VALUE when the way to the peer is by another device than the one of `pd`
 */
export async function connect(options: CmConnectOptions): Promise<Endpoint> {
  const known = [...endpointOptionNames, 'host', 'port', 'localAddress', 'tos', 'ackTimeout'];
  const o = readOptions(options, 'options', known) as CmConnectOptions;
  const host = string(o.host, 'options.host');
  if (host === '') throw valueError('options.host is empty');
  const port = integer(o.port, 'options.port', 1, 65535);
  const src = o.localAddress === undefined ? {} : { src: { address: string(o.localAddress, 'options.localAddress') } };
  const { tos = environmentNumber('NODE_RDMA_TC', 255), ackTimeout } = o;
  const prepared = prepare(o);
  return within(prepared, async (signal) => {
    const address = isIP(host) === 0 ? await found(host, signal) : host;
    const id = connections().createId();
    try {
      id.setOption({ ...(tos !== undefined && { tos }), ...(ackTimeout !== undefined && { ackTimeout }) });
      await resolveAddrUntil(id, { address, port }, { ...src, signal });
      await id.resolveRoute({ timeoutMs: prepared.timeoutMs, signal });
      return await join(id, prepared, false, async () => {
        const { conn } = await id.connect(prepared.param, { signal });
        return conn?.privateData ?? Buffer.alloc(0);
      });
    } catch (error) {
      leave(id);
      throw error;
    }
  });
}

/**
 * Listens for peers that connect by the connection manager.
 *
 * @throws RdmaError EADDRNOTAVAIL when the port is in use, or no device has the address; EADDRINUSE; ENODEV; as
 *   `createEventChannel()`
 */
export async function listen(options: CmListenOptions): Promise<CmListener> {
  const o = readOptions(options, 'options', ['port', 'host', 'backlog', 'reuseAddr']) as CmListenOptions;
  const port = integer(o.port, 'options.port', 0, 65535);
  const address = string(o.host ?? '::', 'options.host');
  const backlog = integer(o.backlog ?? 16, 'options.backlog', 1, 65535);
  const reuseAddr = boolean(o.reuseAddr ?? false, 'options.reuseAddr');
  // A channel of its own: the kernel keeps the requests, and counts them, until somebody asks for the next.
  const channel = createEventChannel();
  try {
    const id = channel.createId();
    if (reuseAddr) id.setOption({ reuseAddr });
    await id.bindAddr({ address, port });
    id.listen(backlog);
    return new CmListener(id);
  } catch (error) {
    channel.close({ cascade: true });
    if (!(error instanceof RdmaError && error.code === 'EADDRNOTAVAIL')) throw error;
    throw error.explained(`port ${port} is in use, or no RDMA device here has the address ${address}`);
  }
}

/** A listening address: `getRequest()` for each connection request, or iterate over them. */
export class CmListener {
  /** @internal */
  readonly thread = threadMark('CmListener');
  readonly #id: CmId;

  /** @internal */
  constructor(id: CmId) {
    this.#id = id;
  }

  /** The address and the port. */
  get address(): CmAddressInfo {
    return this.#id.getLocalAddr() as CmAddressInfo;
  }

  /** The port. */
  get port(): number {
    return this.address.port;
  }

  /**
   * The next connection request. A wait keeps the process alive.
   *
   * @param options - `signal`: ends the wait
   * @throws RdmaClosedError when the listener is closed
   * @see rdma_get_request(3)
   */
  async getRequest(options: { signal?: AbortSignal } = {}): Promise<ConnectionRequest> {
    for (;;) {
      const event = await this.#id.getEvent(options);
      if (event.type === CmEventType.CONNECT_REQUEST) return new ConnectionRequest(event);
      if (event.error) throw event.error;
    }
  }

  /** The connection requests, until the listener is closed. */
  async *[Symbol.asyncIterator](): AsyncGenerator<ConnectionRequest, void, void> {
    while (!this.#id.closed) {
      try {
        yield await this.getRequest();
      } catch (error) {
        if (error instanceof RdmaClosedError) return;
        throw error;
      }
    }
  }

  /** Stops listening, and rejects the requests that nobody has answered. Idempotent. */
  async close(): Promise<void> {
    if (!this.#id.channel.closed) this.#id.channel.close({ cascade: true });
  }

  /** The same as `close()`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** A peer that wants to connect: accept it, or reject it. */
export class ConnectionRequest {
  /** @internal */
  readonly thread = threadMark('ConnectionRequest');
  /** The id of the connection, for what is not here. */
  readonly id: CmId;
  /** What the peer sent along, with zeros behind it: 56 bytes on InfiniBand and RoCE. */
  readonly privateData: Buffer;
  /** The device by which the peer came: what the protection domain must be of. */
  readonly device: string;
  /** The peer's address. */
  readonly peerAddress: CmAddressInfo;

  /** @internal */
  constructor(event: CmEvent) {
    this.id = event.id;
    this.privateData = event.conn?.privateData ?? Buffer.alloc(0);
    this.device = event.id.device ?? '';
    this.peerAddress = event.id.getPeerAddr() as CmAddressInfo;
  }

  /**
   * Accepts it. What goes wrong rejects the peer.
   *
   * @returns the endpoint, when the connection stands
   * @throws CmError ETIMEDOUT, ECONNREFUSED, ECONNRESET when the peer does not confirm it; RdmaError EINVAL when it had
   *   given up before; Error ETIMEDOUT after `timeoutMs`; the signal's reason
   */
  async accept(options: CmEndpointOptions): Promise<Endpoint> {
    const prepared = prepare(readOptions(options, 'options', endpointOptionNames) as CmEndpointOptions);
    const { id } = this;
    return within(prepared, async (signal) => {
      id.migrate(connections());
      try {
        return await join(id, prepared, true, async () => {
          await id.accept(prepared.param, { signal });
          return this.privateData;
        });
      } catch (error) {
        leave(id);
        throw error;
      }
    });
  }

  /**
   * Rejects it.
   *
   * @throws RdmaError EINVAL when the peer has gone meanwhile; then too the request is done with
   * @param data - up to 148 bytes: `CmError.privateData` there, with zeros behind it
   */
  reject(data?: Uint8Array | string): void {
    try {
      this.id.reject(data);
    } catch (error) {
      // There is nobody to be told any more.
      if (error instanceof RdmaError) this.id.close();
      throw error;
    }
    this.id.close();
  }
}

// The options, checked before anything is begun.
interface Prepared {
  pd: ProtectionDomain;
  cap: Partial<QpCap>;
  recvs: FirstRecvs;
  minRnrTimer: number;
  timeoutMs: number;
  how: { maxWaiting?: number };
  signal: AbortSignal | undefined;
  param: object;
}

function prepare(o: CmEndpointOptions): Prepared {
  instance(o.pd, 'options.pd', ProtectionDomain).requireOpen();
  const { pd, minRnrTimer = 12, timeoutMs = 10_000 } = o;
  const { privateData, responderResources, initiatorDepth, retryCount = RETRIES, rnrRetryCount } = o;
  const param = { privateData, responderResources, initiatorDepth, retryCount, rnrRetryCount };
  return {
    pd,
    cap: endpointCap(o.cap),
    recvs: firstRecvs(o),
    minRnrTimer: integer(minRnrTimer, 'options.minRnrTimer', 0, 31),
    timeoutMs: integer(timeoutMs, 'options.timeoutMs', 1, 2 ** 31 - 1),
    how: endpointOptions(o),
    signal: abortSignal(o.signal, 'options.signal'),
    param: Object.fromEntries(Object.entries(param).filter(([, value]) => value !== undefined)),
  };
}

/** Does something with a signal that is aborted at the deadline, and with the caller's. */
async function within<T>({ signal, timeoutMs }: Prepared, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
  signal?.throwIfAborted();
  const controller = new AbortController();
  const abort = () => controller.abort(signal?.reason);
  signal?.addEventListener('abort', abort, { once: true });
  const timer = setTimeout(() => {
    controller.abort(Object.assign(new Error(`No connection within ${timeoutMs} ms`), { code: 'ETIMEDOUT' }));
  }, timeoutMs);
  try {
    return await work(controller.signal);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', abort);
  }
}

// A look-up cannot be ended, only left alone.
async function found(host: string, signal: AbortSignal): Promise<string> {
  const aborted = new Promise<never>((_, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason), { once: true });
  });
  const { address } = await Promise.race([lookup(host), aborted]);
  return address;
}

// What ends a connection. A peer that gives up accept() when its answer is on its way rejects what this side has confirmed.
const ENDS: readonly number[] = [
  ...[CmEventType.DISCONNECTED, CmEventType.DEVICE_REMOVAL],
  ...[CmEventType.REJECTED, CmEventType.UNREACHABLE, CmEventType.CONNECT_ERROR],
];

const reasonOf = (type: number) =>
  type === CmEventType.DEVICE_REMOVAL ? new RdmaDeviceLostError('The connection') : new RdmaPeerLeftError();

// Makes the queue pair and its endpoint, and does the step that connects them.
async function join(
  id: CmId,
  prepared: Prepared,
  hasAccepted: boolean,
  step: () => Promise<Buffer>,
): Promise<Endpoint> {
  const { pd, cap, recvs, minRnrTimer, how } = prepared;
  const qp = await createEndpointQp(pd, cap, (attr) => id.createQp(pd, attr));
  const endpoint = new Endpoint(qp, undefined, how);
  let said: Promise<void> | undefined;
  const farewell = () => {
    said ??= disconnect(id);
    return said;
  };
  const ended = (type: number) => {
    endpoint.peerLeft(reasonOf(type));
    // A peer that has left waits for the answer.
    if (type === CmEventType.DISCONNECTED) void farewell();
  };
  // A peer may leave before this side is done with connecting.
  const state: { isConnected: boolean; early?: number } = { isConnected: false };
  id.watch(({ type }) => {
    if (!ENDS.includes(type)) return;
    if (state.isConnected) ended(type);
    else state.early ??= type;
  });
  try {
    endpoint.postInitial(recvs);
    const privateData = await step();
    // The connection manager's own is 0: 655 ms. iWARP has none.
    if (!isIwarp(pd.context)) await qp.modify({ qpState: QpState.RTS, minRnrTimer });
    endpoint.connected(privateData, { disconnect: farewell, close: () => leave(id), hasAccepted });
  } catch (error) {
    qp.close();
    qp.sendCq.close();
    // What the kernel refuses then, it refuses for that.
    throw state.early !== undefined && error instanceof RdmaError ? reasonOf(state.early) : error;
  }
  state.isConnected = true;
  if (state.early !== undefined) ended(state.early);
  return endpoint;
}

// Tells the peer, and gives it a second to answer: one that is dead does not hold the caller.
const FAREWELL_MS = 1000;

async function disconnect(id: CmId): Promise<void> {
  try {
    await id.disconnect({ signal: AbortSignal.timeout(FAREWELL_MS) });
  } catch {
    // It has left already, or is dead, or the device is gone: either way the connection has ended.
  }
}
