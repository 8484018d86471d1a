/** Reachability by the connection manager: requests to connect, and the time until they are answered. */
import { lookup } from 'node:dns/promises';
import { isIP } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { getSystemErrorName } from 'node:util';
import type { CmId } from '../cm/cm-id.ts';
import { createEventChannel } from '../cm/event-channel.ts';
import { resolveAddrUntil } from '../cm/resolve.ts';
import { CmError, RdmaError } from '../errors.ts';
import { CmEventType } from '../native/constants.gen.ts';
import { openDevice } from '../verbs/device.ts';
import type { ProtectionDomain } from '../verbs/protection-domain.ts';
import type { QueuePair } from '../verbs/queue-pair.ts';

/** How to ping. */
export interface PingOptions {
  host: string;
  /** Of the connection manager. */
  port: number;
  /** This side's address; undefined for that of the route. */
  localAddress: string | undefined;
  /** Requests to make; undefined without end. */
  count: number | undefined;
  intervalMs: number;
  /** Milliseconds that an answer may take. */
  timeoutMs: number;
  /** Ends it, in order. */
  signal: AbortSignal;
  /** Told the peer's address when it is known. */
  onBegin: (address: string) => void;
}

/**
 * What came of a request: a listener has accepted it; nobody listens, and the peer's kernel says so; a listener has
 * rejected it; or nothing came.
 */
export type PingAnswer = 'connected' | 'no listener' | 'rejected' | 'none';

/** One request, and what came of it. */
export interface PingResult {
  /** From 1. */
  seq: number;
  answer: PingAnswer;
  /** Milliseconds from the request to the answer, as this program has seen it; undefined when none came. */
  ms: number | undefined;
  /** The device by which the peer is reached; undefined when no way was found. */
  device: string | undefined;
  /** Why none came, or the code of a rejection: a number of the connection manager, or on iWARP the name of an errno. */
  reason: string | undefined;
}

/** All of them, as ping(8) sums them up. */
export interface PingSummary {
  sent: number;
  received: number;
  lossPercent: number;
  min: number | undefined;
  avg: number | undefined;
  max: number | undefined;
  mdev: number | undefined;
}

// IB_CM_REJ_INVALID_SERVICE_ID: there is no listener on the port.
const INVALID_SERVICE_ID = 8;

// A connection that has been answered is ended again; nobody waits longer for that.
const FAREWELL_MS = 1000;

// What a request needs of a device: the number of a queue pair that is this program's own, and new. The peer takes a request
// with a number that it knows for a connection that has been lost, and ends that one.
class Origin {
  #pd: ProtectionDomain | undefined;
  #qp: QueuePair | undefined;

  newQpNum(device: string): number {
    if (this.#pd?.context.name !== device) {
      this.close();
      this.#pd = openDevice(device).allocPd();
    }
    const pd = this.#pd as ProtectionDomain;
    const before = this.#qp;
    this.#qp = pd.createQp({ sendCq: pd.context.createCq(2), cap: { maxSendWr: 1, maxRecvWr: 1 } });
    if (before) this.#drop(before);
    return this.#qp.qpNum;
  }

  close(): void {
    if (this.#qp) this.#drop(this.#qp);
    this.#pd?.context.close({ cascade: true });
    this.#pd = this.#qp = undefined;
  }

  #drop(qp: QueuePair): void {
    qp.close();
    qp.sendCq.close();
  }
}

/**
 * Asks a peer for connections, one after another. Nothing need listen there: the connection manager of the peer's kernel
 * answers that nobody does, and the way there and back is the same. A listener gets a connection each time, which is
 * ended at once.
 *
 * The time goes from the call of `rdma_connect` to the event, the event loop of this process included; finding the
 * address and the route is not in it.
 *
 * @throws the resolver's error for a name; CmError or RdmaError when the first request finds no RDMA device on the way
 */
export async function* ping(options: PingOptions): AsyncGenerator<PingResult, void, void> {
  const { host, count = Number.POSITIVE_INFINITY, intervalMs, signal } = options;
  const address = isIP(host) === 0 && !host.includes('%') ? (await lookup(host)).address : host;
  const channel = createEventChannel();
  const origin = new Origin();
  try {
    options.onBegin(address);
    for (let seq = 1; seq <= count && !signal.aborted; seq++) {
      const next = performance.now() + intervalMs;
      const id = channel.createId();
      try {
        const result = await request(id, origin, address, seq, options);
        if (result === undefined) return;
        yield result;
      } finally {
        id.close();
      }
      if (seq < count) await sleep(Math.max(0, next - performance.now()), undefined, { signal }).catch(() => {});
    }
  } finally {
    channel.close({ cascade: true });
    origin.close();
  }
}

/** One request. @returns undefined when the signal has ended it */
async function request(
  id: CmId,
  origin: Origin,
  address: string,
  seq: number,
  { port, localAddress, timeoutMs, signal }: PingOptions,
): Promise<PingResult | undefined> {
  const late = AbortSignal.timeout(timeoutMs);
  const limit = { signal: AbortSignal.any([signal, late]) };
  const result = { seq, answer: 'none' as PingAnswer, ms: undefined, device: undefined, reason: undefined };
  let device: string | undefined;
  let sent: number | undefined;
  try {
    const src = localAddress === undefined ? {} : { src: { address: localAddress } };
    await resolveAddrUntil(id, { address, port }, { ...src, ...limit });
    device = id.device ?? undefined;
    await id.resolveRoute({ timeoutMs, ...limit });
    const qpNum = origin.newQpNum(id.device as string);
    sent = performance.now();
    await id.connect({ qpNum }, limit);
    const ms = performance.now() - sent;
    await farewell(id);
    return { ...result, answer: 'connected', ms, device };
  } catch (error) {
    if (signal.aborted) return undefined;
    if (error instanceof CmError && error.event === CmEventType.REJECTED && sent !== undefined) {
      const ms = performance.now() - sent;
      if (error.status === INVALID_SERVICE_ID) return { ...result, answer: 'no listener', ms, device };
      return { ...result, answer: 'rejected', ms, device, reason: reasonOf(error.status) };
    }
    // iWARP connects by TCP, whose refusal is there before the call returns.
    if (sent !== undefined && error instanceof RdmaError && error.code === 'ECONNREFUSED') {
      return { ...result, answer: 'no listener', ms: performance.now() - sent, device };
    }
    if (late.aborted) return { ...result, device, reason: `no answer within ${timeoutMs} ms` };
    if (seq === 1 && !(error instanceof CmError && error.code !== 'ENODEV')) throw error;
    return { ...result, device, reason: (error as Error).message };
  }
}

/** On iWARP it is an errno, negative. */
const reasonOf = (status: number) => (status < 0 ? getSystemErrorName(status) : String(status));

async function farewell(id: CmId): Promise<void> {
  try {
    id.establish();
    await id.disconnect({ signal: AbortSignal.timeout(FAREWELL_MS) });
  } catch {
    // The peer has ended it first, or has gone: it was there.
  }
}

/** Sums up, as ping(8) does: `mdev` is the standard deviation of the times. */
export function summarizePings(results: readonly Pick<PingResult, 'ms'>[]): PingSummary {
  const times = results.flatMap(({ ms }) => (ms === undefined ? [] : [ms]));
  const [sent, received] = [results.length, times.length];
  const lossPercent = sent === 0 ? 0 : (100 * (sent - received)) / sent;
  if (received === 0) {
    return { sent, received, lossPercent, min: undefined, avg: undefined, max: undefined, mdev: undefined };
  }
  let [min, max, sum, squares] = [Number.POSITIVE_INFINITY, 0, 0, 0];
  for (const ms of times) {
    min = Math.min(min, ms);
    max = Math.max(max, ms);
    sum += ms;
    squares += ms * ms;
  }
  const avg = sum / received;
  return { sent, received, lossPercent, min, avg, max, mdev: Math.sqrt(Math.max(0, squares / received - avg * avg)) };
}
