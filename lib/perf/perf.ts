/** Measurements between two sides, as perftest has them: bandwidth and latency of writes, reads, sends and atomics. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { ConnectOptions } from '../endpoint/connect.ts';
import { WorkCompletionError } from '../errors.ts';
import type { Mtu } from '../native/constants.gen.ts';
import type { Context } from '../verbs/context.ts';
import { openDevice } from '../verbs/device.ts';
import { requireNoIwarp } from '../verbs/iwarp.ts';
import { acceptOne, Control, connectTo, perfError } from './control.ts';
import {
  type Bandwidth,
  type Latency,
  type PerfVerb,
  player,
  roundTrips,
  streamIn,
  streamOut,
  type Turn,
} from './measure.ts';
import { type PerfAddress, type PerfSetup, Side } from './side.ts';
import { giveTurn, isTurnDue } from './spin.ts';

/** The names of the measurements. */
export const perfTests = [
  ...(['write-bw', 'write-lat', 'read-bw', 'read-lat'] as const),
  ...(['send-bw', 'send-lat', 'atomic-bw', 'atomic-lat'] as const),
] as const;
/** One of them. */
export type PerfTest = (typeof perfTests)[number];

/** How to measure. */
export interface PerfOptions {
  test: PerfTest;
  device: string | undefined;
  portNum: number;
  gidIndex: number | undefined;
  trafficClass: number | undefined;
  /** Bytes of the path MTU; undefined for that of the ports. */
  mtu: number | undefined;
  /** TCP port. */
  port: number;
  events: boolean;
  signal: AbortSignal;
}

/** What the client decides. */
export interface PerfClientOptions extends PerfOptions {
  host: string;
  sizes: readonly number[];
  /** Of each queue pair. */
  iters: number | undefined;
  seconds: number | undefined;
  qps: number;
  txDepth: number;
  rxDepth: number;
  /** Told what is measured with, before the first result. */
  onConnected?: (context: PerfContext) => void;
  /** Told each result as it comes. */
  onResult: (result: Bandwidth | Latency) => void;
}

/** What is measured with. */
export interface PerfContext {
  /** The server. */
  host: string;
  /** This side's device, with its port and GID. */
  device: string;
  portNum: number;
  gidIndex: number;
  gid: string;
  /** Bytes, of the path. */
  mtu: number;
  qps: number;
  txDepth: number;
  transport: 'RC';
}

interface Hello extends PerfSetup, PerfAddress {
  protocol: string;
  test: string;
}

const PROTOCOL = 'node-rdma perf 1';
// What perftest takes for its tests of latency.
const INLINE = 220;
// The words are sent before the queue pair goes, so they are there before a request fails; the socket's turn is to come.
const LAST_WORDS_MS = 1000;

const verbOf = (test: PerfTest) => test.split('-')[0] as PerfVerb;
const isLatency = (test: PerfTest) => test.endsWith('-lat');
const isPingPong = (test: PerfTest) => test === 'write-lat' || test === 'send-lat';

const connectOptions = ({ portNum, gidIndex, trafficClass, mtu }: PerfOptions): ConnectOptions => ({
  portNum,
  ...(gidIndex !== undefined && { gidIndex }),
  ...(trafficClass !== undefined && { trafficClass }),
  ...(mtu !== undefined && { mtu: Math.log2(mtu / 128) as Mtu }),
});

/**
 * Measures, as the client.
 *
 * @returns a result for each size
 */
export async function runPerfClient(options: PerfClientOptions): Promise<(Bandwidth | Latency)[]> {
  const { test, host, port, signal, sizes, iters, seconds, qps, txDepth, rxDepth, events, onResult } = options;
  if (test === 'write-lat' && events) throw perfError('write-lat looks at memory: there are no events to wait for');
  const setup = {
    // Of latency one message is in flight.
    ...(isLatency(test) ? { qps: 1, txDepth: 1 } : { qps, txDepth }),
    ...{ rxDepth, maxSize: Math.max(8, ...sizes), inline: isPingPong(test) ? INLINE : 0 },
  };
  const context = open(options);
  let control: Control | undefined;
  try {
    control = new Control(await connectTo(host, port, signal));
    const side = new Side(context, setup, connectOptions(options));
    control.send({ protocol: PROTOCOL, test, ...setup, ...side.address });
    await side.connect(await control.first<PerfAddress>());
    control.send({ connected: true });
    const { gidIndex, gid } = side.gid;
    const here = { device: context.name, portNum: options.portNum, gidIndex, gid, mtu: side.mtu };
    options.onConnected?.({ host, ...here, qps: setup.qps, txDepth: setup.txDepth, transport: 'RC' });
    const results: (Bandwidth | Latency)[] = [];
    for (const size of sizes) {
      control.send({ size });
      await control.receive();
      const { result, answer } = await play<Bandwidth | Latency>(control, (over) => {
        const depth = setup.txDepth;
        const turn: Turn = { verb: verbOf(test), size, iters, seconds, txDepth: depth, events, signal, over };
        return isLatency(test) ? roundTrips(side, turn) : streamOut(side, turn);
      });
      results.push(result);
      onResult(result);
      control.send({ stop: true });
      await answer;
    }
    control.send({ bye: true });
    return results;
  } catch (error) {
    // The signal ends the connection, too, which may be seen first.
    signal.throwIfAborted();
    control?.send({ error: (error as Error).message });
    throw error;
  } finally {
    context.close({ cascade: true });
    control?.close();
  }
}

/**
 * Is the other side for one client.
 *
 * @param onListening - told the TCP port
 */
export async function runPerfServer(options: PerfOptions, onListening: (port: number) => void): Promise<void> {
  const { port, signal } = options;
  const context = open(options);
  let control: Control | undefined;
  try {
    control = new Control(await acceptOne(port, signal, onListening));
    await serve(context, control, options);
  } catch (error) {
    // The signal ends the connection, too, which may be seen first.
    signal.throwIfAborted();
    control?.send({ error: (error as Error).message });
    throw error;
  } finally {
    context.close({ cascade: true });
    control?.close();
  }
}

/** The device. What is wrong with it, its port or its GID is better known before anybody connects. */
function open({ device, portNum, gidIndex }: PerfOptions): Context {
  const context = openDevice(device);
  try {
    requireNoIwarp(context);
    context.selectGid(portNum, gidIndex === undefined ? {} : { gidIndex });
    return context;
  } catch (error) {
    context.close();
    throw error;
  }
}

/** Whether what a client asks for is what the command may ask for. */
function isSetup({ infos, qps, txDepth, rxDepth, maxSize, inline }: Hello): boolean {
  const isCount = (value: number, from: number, to: number) => Number.isInteger(value) && value >= from && value <= to;
  const areDepths = isCount(txDepth, 1, 32_768) && isCount(rxDepth, 2, 32_768);
  const areBytes = isCount(maxSize, 8, 2 ** 31) && isCount(inline, 0, INLINE);
  return Array.isArray(infos) && isCount(qps, 1, 1024) && areDepths && areBytes;
}

/** Serves one client over its connection. */
async function serve(context: Context, control: Control, options: PerfOptions): Promise<void> {
  const { test, signal, events } = options;
  const hello = await control.first<Hello>();
  if (hello.protocol !== PROTOCOL) throw perfError('the peer is no node-rdma perf of this version');
  if (!isSetup(hello)) throw perfError('the peer is no node-rdma perf: its setup is none');
  if (hello.test !== test) throw perfError(`the client measures ${hello.test}, the server ${test}`);
  const { qps, txDepth, rxDepth, maxSize, inline } = hello;
  const side = new Side(context, { qps, txDepth, rxDepth, maxSize, inline }, connectOptions(options));
  await side.connect(hello);
  control.send(side.address);
  await control.receive();
  for (;;) {
    const next = await control.receive<{ size?: number }>();
    if (next.size === undefined) return;
    const { size } = next;
    const { answer: stop } = await play(control, (over) => {
      const turn: Turn = {
        ...{ verb: verbOf(test), size, iters: undefined, seconds: undefined },
        ...{ txDepth, events, signal, over },
      };
      return answer(side, turn, test, rxDepth, () => control.send({ ready: true }));
    });
    await stop;
    control.send({ stopped: true });
  }
}

/**
 * Plays one side's part of a turn. Meanwhile the peer speaks once: when it is done, or when it leaves; `over` is aborted
 * then, with the error if that is one.
 */
async function play<T>(control: Control, part: (over: AbortSignal) => Promise<T>) {
  const over = new AbortController();
  const answer = control.receive();
  answer.then(
    () => over.abort(perfError('the peer says that it is done before it is told to be')),
    (error) => over.abort(error),
  );
  try {
    return { result: await part(over.signal), answer };
  } catch (error) {
    // When a request fails since the peer has left, then what that said before, or that it has left, is the better reason.
    if (error instanceof WorkCompletionError)
      await Promise.race([answer, sleep(LAST_WORDS_MS, undefined, { ref: false })]);
    throw error;
  }
}

/** Does the server's part of a turn, until the client is done. */
async function answer(side: Side, turn: Turn, test: PerfTest, rxDepth: number, ready: () => void): Promise<void> {
  if (test === 'send-bw') {
    const coming = streamIn(side, turn, rxDepth);
    ready();
    await coming;
  } else if (isPingPong(test)) {
    const { ping, pong } = player(side, turn);
    ready();
    for (;;) {
      await pong();
      if (turn.over.aborted) return;
      if (isTurnDue()) await giveTurn(turn.signal);
      await ping();
    }
  } else ready();
}
