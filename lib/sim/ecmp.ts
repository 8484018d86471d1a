/**
 * Load balancing for few large flows: ECMP puts each flow on one path by a hash; spraying puts each packet on another path. An
 * all-reduce ends when its slowest flow ends. Sprayed packets overtake each other, which a receiver that goes back N takes for
 * loss.
 */

import { integer, readOptions, typeError, valueError } from '../args.ts';
import { Random } from './random.ts';

/** What the comparison takes. */
export interface EcmpOptions {
  /** Flows of equal size that start at once. Default 8. */
  flows?: number;
  /** Paths of equal speed; a flow alone fills one. Default 8. */
  paths?: number;
  /** How often hashes are drawn. Default 10,000. */
  trials?: number;
  /** Default 1. */
  seed?: number;
}

/** What the comparison gives. Times are multiples of the time that an even spread takes. */
export interface EcmpResult {
  /** Time of the slowest flow by ECMP, the mean over all trials. */
  mean: number;
  /** The same: the median. */
  median: number;
  /** The same: exceeded by one trial of a hundred. */
  p99: number;
  /** The same: the worst trial. */
  worst: number;
  /** Part of the trials in which no path had more than its share. */
  even: number;
  /** Mean part of the paths that carried nothing. */
  idle: number;
}

/**
 * Draws hashes, and tells how long the slowest flow takes.
 *
 * @param options - flows, paths, trials
 */
export function simulateEcmp(options: EcmpOptions = {}): EcmpResult {
  const o = readOptions(options, 'options', ['flows', 'paths', 'trials', 'seed']);
  const flows = integer(o.flows ?? 8, 'options.flows', 1, 1e6);
  const paths = integer(o.paths ?? 8, 'options.paths', 1, 1e6);
  const trials = integer(o.trials ?? 10_000, 'options.trials', 1, 1e7);
  const random = new Random(o.seed ?? 1);
  // A flow cannot be faster than a path, however many there are.
  const ideal = Math.max(1, flows / paths);
  const share = Math.ceil(flows / paths);
  const loads = new Uint32Array(paths);
  const times = new Float64Array(trials);
  let [even, idle] = [0, 0];
  for (let trial = 0; trial < trials; trial++) {
    loads.fill(0);
    for (let flow = 0; flow < flows; flow++) loads[random.below(paths)]!++;
    const most = loads.reduce((a, b) => Math.max(a, b), 0);
    times[trial] = most / ideal;
    if (most <= share) even++;
    idle += loads.reduce((sum, load) => sum + (load === 0 ? 1 : 0), 0) / paths;
  }
  const mean = times.reduce((a, b) => a + b, 0) / trials;
  times.sort();
  const at = (part: number) => times[Math.min(trials - 1, Math.floor(part * trials))]!;
  return { mean, median: at(0.5), p99: at(0.99), worst: times[trials - 1]!, even: even / trials, idle: idle / trials };
}

/** What spraying takes. */
export interface SprayOptions {
  /** Paths. Default 8. */
  paths?: number;
  /** How much later than the quickest a packet may arrive, in microseconds: queues of different length. Default 2. */
  jitterUs?: number;
  /** Speed of the sender in gigabits per second. Default 100. */
  gbps?: number;
  /** Bytes of payload of a packet. Default 4096. */
  mtu?: number;
  /** Time from a packet to its acknowledgement without queues, in microseconds. Default 10. */
  rttUs?: number;
  /** Packets to deliver. Default 100,000. */
  packets?: number;
  /** Default 1. */
  seed?: number;
}

/** What spraying gives. */
export interface SprayResult {
  /** Part of the packets that overtake one sent before, were nothing sent again. */
  reordered: number;
  /** Part of the capacity that is of use to a receiver that goes back N. */
  goBackN: number;
  /** The same for one that places packets in any order: nothing is lost. */
  anyOrder: number;
  /** How often the sender went back. */
  episodes: number;
}

/**
 * Sprays the packets of one flow over paths in turn; the delay of each path wanders.
 *
 * @param options - paths and their jitter, the flow
 */
export function simulateSpray(options: SprayOptions = {}): SprayResult {
  const known = ['paths', 'jitterUs', 'gbps', 'mtu', 'rttUs', 'packets', 'seed'];
  const o = readOptions(options, 'options', known);
  const paths = integer(o.paths ?? 8, 'options.paths', 1, 4096);
  const positive = (value: unknown, name: string, min: number): number => {
    if (typeof value !== 'number') throw typeError(name, 'a number', value);
    if (!(value >= min && Number.isFinite(value))) throw valueError(`${name} must be ${min} or more, not ${value}`);
    return value;
  };
  const jitter = positive(o.jitterUs ?? 2, 'options.jitterUs', 0);
  const gbps = positive(o.gbps ?? 100, 'options.gbps', 0.001);
  const mtu = integer(o.mtu ?? 4096, 'options.mtu', 1, 1 << 20);
  const rtt = positive(o.rttUs ?? 10, 'options.rttUs', 0);
  const packets = integer(o.packets ?? 100_000, 'options.packets', 1, 1e8);
  const random = new Random(o.seed ?? 1);
  const gap = (mtu * 8) / (gbps * 1000);
  const delays = Float64Array.from({ length: paths }, () => random.next() * jitter);
  const lastOfPath = new Float64Array(paths);
  /** When the i-th packet after `start` arrives. Its path's queue has grown or shrunk a little; on one path order is kept. */
  const arrivalOf = (i: number, start: number): number => {
    const path = i % paths;
    delays[path] = Math.min(jitter, Math.max(0, delays[path]! + (random.next() - 0.5) * jitter * 0.2));
    lastOfPath[path] = Math.max(start + i * gap + rtt / 2 + delays[path]!, lastOfPath[path]!);
    return lastOfPath[path]!;
  };

  let overtaking = 0;
  for (let i = 0, latest = 0; i < packets; i++) {
    const arrival = arrivalOf(i, 0);
    if (arrival < latest) overtaking++;
    latest = Math.max(latest, arrival);
  }

  let [sent, delivered, episodes, time] = [0, 0, 0, 0];
  while (delivered < packets) {
    lastOfPath.fill(0);
    const start = time;
    let latest = 0;
    let i = 0;
    for (; delivered + i < packets; i++) {
      const arrival = arrivalOf(i, start);
      sent++;
      if (arrival < latest) {
        // It has overtaken one that was sent before: the receiver discards it and complains. Those before it come in order.
        episodes++;
        // Till the complaint is back, the sender goes on in vain.
        sent += Math.round(rtt / gap);
        latest = arrival + rtt / 2;
        break;
      }
      latest = arrival;
    }
    time = latest;
    delivered += i;
  }
  return { reordered: overtaking / packets, goBackN: packets / sent, anyOrder: 1, episodes };
}
