/** The loops that measure, and their statistics. One size at a time. */
import { SendFlags, WrOpcode } from '../native/constants.gen.ts';
import type { CompletionQueue } from '../verbs/completion-queue.ts';
import type { SendWr } from '../verbs/send-wr.ts';
import type { Side } from './side.ts';
import { checkCompletion, giveTurn, isTurnDue, spin } from './spin.ts';

/** What is measured. */
export type PerfVerb = 'write' | 'read' | 'send' | 'atomic';

/** One measurement. */
export interface Turn {
  verb: PerfVerb;
  /** Bytes of a message. */
  size: number;
  /** Messages of each queue pair; undefined with `seconds`. */
  iters: number | undefined;
  /** How long; undefined with `iters`. */
  seconds: number | undefined;
  txDepth: number;
  events: boolean;
  signal: AbortSignal;
  /** Aborted when the client is done, which is the server's end of a turn, or when the peer has left. */
  over: AbortSignal;
}

/** Bandwidth, in units of 2^20 bytes as perftest has it. */
export interface Bandwidth {
  size: number;
  iterations: number;
  peak: number;
  average: number;
  /** Messages in a second, in millions. */
  mpps: number;
}

/** Latency in microseconds: half a round trip for writes and sends, a whole one for reads and atomics. */
export interface Latency {
  size: number;
  iterations: number;
  min: number;
  max: number;
  typical: number;
  average: number;
  stdev: number;
  p99: number;
  p999: number;
  /** Messages for each bucket, from `from` to below `to`. */
  histogram: { from: number; to: number; count: number }[];
}

// Requests that are posted by one call, and signalled by their last.
const LIST = 16;
// More moments than this are not kept.
const MOMENTS = 1 << 20;

function request(side: Side, { verb, size }: Turn): SendWr {
  switch (verb) {
    case 'write':
      return { opcode: WrOpcode.RDMA_WRITE, sgList: side.outgoing(size), remote: side.remoteIncoming(size) };
    case 'read':
      return { opcode: WrOpcode.RDMA_READ, sgList: side.incoming(size), remote: side.remoteOutgoing(size) };
    case 'atomic':
      return {
        ...{ opcode: WrOpcode.ATOMIC_FETCH_AND_ADD, compareAdd: 1n },
        ...{ sgList: side.incoming(8), remote: side.remoteOutgoing(8) },
      };
    default:
      return { opcode: WrOpcode.SEND, sgList: side.outgoing(size) };
  }
}

/** Streams messages over all queue pairs. */
export async function streamOut(side: Side, turn: Turn): Promise<Bandwidth> {
  const { size, iters, seconds, txDepth, signal, over } = turn;
  const wait = waiter(turn);
  const wr = request(side, turn);
  const length = Math.min(LIST, txDepth, iters ?? LIST);
  const depth = Math.floor(txDepth / length);
  const lists = iters === undefined ? Number.POSITIVE_INFINITY : Math.floor(iters / length);
  const rest = iters === undefined ? 0 : iters % length;
  const unsignaled = { ...wr, sendFlags: 0 };
  const states = side.qps.map((qp, i) => ({
    list: qp.prepareSend(
      Array.from({ length }, (_, at) => (at === length - 1 ? { ...wr, wrId: i } : { ...unsignaled, wrId: i })),
    ),
    posted: 0,
    inFlight: 0,
  }));
  const moments: number[] = [];
  const start = performance.now();
  const end = seconds === undefined ? Number.POSITIVE_INFINITY : start + seconds * 1000;
  let completed = 0;
  let open = 0;
  const next = async () => {
    const found = await wait(side.sendCq);
    if (found === 0) throw over.reason;
    return found;
  };
  const drain = (found: number) => {
    const now = performance.now();
    for (let i = 0; i < found; i++) {
      const wc = side.sendCq.at(i);
      checkCompletion(wc, turn.verb);
      states[wc.wrId]!.inFlight--;
      open--;
      completed++;
      if (moments.length < MOMENTS) moments.push(now);
    }
  };
  for (let isOver = false; !isOver; ) {
    isOver = true;
    if (isTurnDue()) await giveTurn(signal);
    const now = end === Number.POSITIVE_INFINITY ? 0 : performance.now();
    for (const state of states) {
      while (state.inFlight < depth && state.posted < lists && now < end) {
        state.list.post();
        state.posted++;
        state.inFlight++;
        open++;
      }
      if (state.posted < lists && now < end) isOver = false;
    }
    if (open > 0 && !isOver) drain(side.sendCq.poll() || (await next()));
  }
  while (open > 0) drain(side.sendCq.poll() || (await next()));
  if (rest > 0) {
    for (const [i, qp] of side.qps.entries()) {
      qp.postSend(Array.from({ length: rest }, (_, at) => ({ ...(at === rest - 1 ? wr : unsignaled), wrId: i })));
      states[i]!.inFlight++;
      open++;
    }
    while (open > 0) drain(side.sendCq.poll() || (await next()));
    completed -= side.qps.length;
  }
  const took = (performance.now() - start) / 1000;
  const iterations = completed * length + rest * side.qps.length;
  const mib = (count: number, time: number) => (count * size) / 2 ** 20 / time;
  return {
    ...{ size, iterations, average: mib(iterations, took), mpps: iterations / took / 1e6 },
    peak: Math.max(mib(iterations, took), peak(moments, depth * side.qps.length, length * size)),
  };
}

/** The best over as many lists as are in flight at once, in units of 2^20 bytes a second. */
function peak(moments: readonly number[], window: number, bytes: number): number {
  let best = 0;
  for (let i = window; i < moments.length; i++) {
    const milliseconds = moments[i]! - moments[i - window]!;
    if (milliseconds > 0) best = Math.max(best, (window * bytes) / 2 ** 20 / (milliseconds / 1000));
  }
  return best;
}

/** Receives a stream of sends, until told to stop. @returns how many came */
export async function streamIn(side: Side, turn: Turn, rxDepth: number): Promise<number> {
  const { signal } = turn;
  const wait = waiter(turn);
  // Half of the receives are posted again at a time.
  const half = Math.max(1, rxDepth >> 1);
  const states = side.qps.map((qp, i) => {
    // Room for every size: what is left of one turn is there in the next.
    const recv = { wrId: i, sgList: side.incoming(side.maxSize) };
    const refill = qp.prepareRecv(new Array(half).fill(recv));
    for (let posted = qp.recvsInFlight; posted + half <= rxDepth; posted += half) refill.post();
    return { refill, taken: 0 };
  });
  let count = 0;
  for (;;) {
    const found = side.recvCq.poll() || (await wait(side.recvCq));
    if (found === 0) return count;
    if (isTurnDue()) await giveTurn(signal);
    for (let i = 0; i < found; i++) {
      const wc = side.recvCq.at(i);
      checkCompletion(wc, 'receive');
      const state = states[wc.wrId]!;
      count++;
      if (++state.taken === half) {
        state.refill.post();
        state.taken = 0;
      }
    }
  }
}

/** What waits for completions, or for the end of a turn: then there are none. */
function waiter({ events, signal, over }: Turn): (cq: CompletionQueue) => Promise<number> {
  // Once: to join signals costs more than a round trip.
  const either = AbortSignal.any([signal, over]);
  return async (cq) => {
    if (!events) {
      let found = 0;
      await spin(() => {
        found = cq.poll();
        return found > 0 || over.aborted;
      }, signal);
      return found;
    }
    try {
      return await cq.wait({ signal: either });
    } catch (error) {
      if (over.aborted) return 0;
      throw error;
    }
  };
}

/** What one side of a ping-pong does: it sends, and it waits for the other's. */
interface Player {
  ping(): void | Promise<void>;
  pong(): Promise<void>;
}

/** A player, ready for the first message. */
export function player(side: Side, turn: Turn): Player {
  const { verb, size, signal, over } = turn;
  const wait = waiter(turn);
  const qp = side.qps[0]!;
  const sendFlags = SendFlags.SIGNALED | (size <= qp.cap.maxInlineData ? SendFlags.INLINE : 0);
  const list = qp.prepareSend({ ...request(side, turn), sendFlags });
  const sent = async () => {
    const found = side.sendCq.poll(1) || (await wait(side.sendCq));
    if (found > 0) checkCompletion(side.sendCq.at(0), verb);
  };
  if (verb === 'write') {
    const [out, arrived] = [side.outgoing(size).buffer, side.incoming(size).buffer];
    // The last byte arrives last; it counts.
    const last = size - 1;
    Atomics.store(arrived, last, 0);
    let [mine, theirs] = [0, 0];
    return {
      ping: () => {
        out[last] = ++mine & 0xff;
        list.post();
        return sent();
      },
      pong: () => {
        theirs = (theirs + 1) & 0xff;
        return spin(() => Atomics.load(arrived, last) === theirs || over.aborted, signal);
      },
    };
  }
  const refill = qp.prepareRecv({ sgList: side.incoming(side.maxSize) });
  while (qp.recvsInFlight < 2) refill.post();
  return {
    ping: () => {
      list.post();
      return sent();
    },
    pong: async () => {
      const found = side.recvCq.poll(1) || (await wait(side.recvCq));
      if (found === 0) return;
      checkCompletion(side.recvCq.at(0), 'receive');
      refill.post();
    },
  };
}

/** Measures round trips, as the client. */
export async function roundTrips(side: Side, turn: Turn): Promise<Latency> {
  const { verb, size, iters, seconds, signal, over } = turn;
  const isPingPong = verb === 'write' || verb === 'send';
  const times: number[] = [];
  const end = performance.now() + (seconds ?? Number.POSITIVE_INFINITY) * 1000;
  const isDone = () => (iters === undefined ? performance.now() >= end : times.length >= iters);
  if (isPingPong) {
    const { ping, pong } = player(side, turn);
    while (!isDone()) {
      if (isTurnDue()) await giveTurn(signal);
      const start = performance.now();
      await ping();
      await pong();
      times.push(((performance.now() - start) * 1000) / 2);
      if (over.aborted) throw over.reason;
    }
  } else {
    const wait = waiter(turn);
    const list = side.qps[0]!.prepareSend(request(side, turn));
    while (!isDone()) {
      if (isTurnDue()) await giveTurn(signal);
      const start = performance.now();
      list.post();
      const found = side.sendCq.poll(1) || (await wait(side.sendCq));
      if (found === 0) throw over.reason;
      checkCompletion(side.sendCq.at(0), verb);
      times.push((performance.now() - start) * 1000);
    }
  }
  return latencyOf(size, times);
}

/** Statistics of times in microseconds. */
export function latencyOf(size: number, times: readonly number[]): Latency {
  const sorted = Float64Array.from(times).sort();
  const count = sorted.length;
  const at = (part: number) => sorted[Math.min(count - 1, Math.ceil(part * count) - 1)]!;
  const average = sorted.reduce((sum, time) => sum + time, 0) / count;
  const variance = sorted.reduce((sum, time) => sum + (time - average) ** 2, 0) / count;
  // Four buckets for each power of two.
  const bucketOf = (time: number) => Math.floor(4 * Math.log2(Math.max(time, 0.001)));
  const counts = new Map<number, number>();
  for (const time of sorted) counts.set(bucketOf(time), (counts.get(bucketOf(time)) ?? 0) + 1);
  const histogram = [...counts]
    .sort(([a], [b]) => a - b)
    .map(([bucket, count]) => ({ from: 2 ** (bucket / 4), to: 2 ** ((bucket + 1) / 4), count }));
  return {
    ...{ size, iterations: count, min: sorted[0]!, max: sorted[count - 1]!, typical: at(0.5), average },
    ...{ stdev: Math.sqrt(variance), p99: at(0.99), p999: at(0.999), histogram },
  };
}
