import { setImmediate } from 'node:timers/promises';
import { integer, typeError } from '../args.ts';
import type { QpCap } from '../native/native.ts';
import type { MemorySlice } from '../verbs/memory-region.ts';
import type { ProtectionDomain } from '../verbs/protection-domain.ts';
import { qpCap } from '../verbs/qp-attributes.ts';
import type { QpInitAttr } from '../verbs/qp-init-attr.ts';
import type { QueuePair } from '../verbs/queue-pair.ts';
import type { Endpoint } from './endpoint.ts';

// How long a turn of the event loop may be held up for them. Each takes a fraction of a millisecond.
const TURN_MS = 4;
const inLine: (() => void)[] = [];

/**
 * The place to make a queue pair, or to destroy one, without a pause from then on. Each is some system calls: many at once would
 * hold the event loop up, so that not more are done in one turn than take some milliseconds.
 *
 * @internal
 */
export function turnToBlock(): Promise<void> {
  return new Promise((resolve) => {
    inLine.push(resolve);
    if (inLine.length === 1) void admit();
  });
}

async function admit(): Promise<void> {
  while (inLine.length > 0) {
    await setImmediate();
    const end = performance.now() + TURN_MS;
    do {
      inLine[0]?.();
      // What waited for it has run when this goes on.
      await undefined;
      inLine.shift();
    } while (inLine.length > 0 && performance.now() < end);
  }
}

/** What gives an endpoint its first receives. @internal */
export type FirstRecvs = ((endpoint: Endpoint) => readonly MemorySlice[]) | undefined;

/** The same, checked. @internal */
export function firstRecvs({ recvs }: { recvs?: FirstRecvs }): FirstRecvs {
  if (recvs !== undefined && typeof recvs !== 'function') throw typeError('options.recvs', 'a function', recvs);
  return recvs;
}

/** The capacities of an endpoint's queue pair among the options that one is made with, checked. @internal */
export function endpointCap(cap: Partial<QpCap> | undefined): Partial<QpCap> {
  qpCap(cap, 'options.cap', { maxSendWr: 128, maxRecvWr: 128, maxSendSge: 1, maxRecvSge: 1, maxInlineData: 64 });
  return cap ?? {};
}

/** Operations that may wait for their turn by default, in each direction: some megabytes of promises. */
const MAX_WAITING = 16_384;

/** The options of an endpoint among those that one is made with, checked. @internal */
export function endpointOptions({ maxWaiting = MAX_WAITING }: { maxWaiting?: number }): { maxWaiting: number } {
  return { maxWaiting: integer(maxWaiting, 'options.maxWaiting', 0, 2 ** 24) };
}

/** What an endpoint's queue pair was connected by, where that has an end. @internal */
export interface Connection {
  /** Tells the peer that it ends, and puts the queue pair into the error state. */
  disconnect(): Promise<void>;
  /** Lets go of it. */
  close(): void;
  /** Whether this side has accepted it, and the peer has asked for it. */
  hasAccepted: boolean;
}

/**
 * The queue pair of an endpoint, with a completion queue for both directions that is as long as both of its queues.
 *
 * @param create - makes it; default `pd.createQp()`
 * @internal
 */
export async function createEndpointQp(
  pd: ProtectionDomain,
  cap: Partial<QpCap>,
  create: (attr: QpInitAttr) => QueuePair | Promise<QueuePair> = (attr) => pd.createQp(attr),
): Promise<QueuePair> {
  const { maxSendWr = 128, maxRecvWr = 128, maxInlineData = 64 } = cap;
  await turnToBlock();
  const cq = pd.context.createCq(Math.max(maxSendWr + maxRecvWr, 1));
  try {
    // Inline data saves a fetch over the bus, but what a device can carry inline differs; some take none at all.
    try {
      return await create({ sendCq: cq, cap: { ...cap, maxInlineData } });
    } catch (error) {
      if (cap.maxInlineData !== undefined) throw error;
      return await create({ sendCq: cq, cap });
    }
  } catch (error) {
    cq.close();
    throw error;
  }
}
