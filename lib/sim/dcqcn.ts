/**
 * DCQCN at an incast: several senders, one link. The three roles are those of the paper by Zhu and others (SIGCOMM 2015):
 * the switch marks by the length of its queue (congestion point), the receiver answers marks by CNPs (notification point), the
 * sender cuts its rate and raises it again (reaction point). Rates and the queue are fluid, in steps of a microsecond; whether
 * a mark falls into a step is chance.
 */

import { boolean, integer, readOptions, typeError, valueError } from '../args.ts';
import { Random } from './random.ts';

/** What the model takes. Defaults of the algorithm are the paper's. */
export interface DcqcnOptions {
  /** Senders. Default 8. */
  senders?: number;
  /** Speed of each link in gigabits per second. Default 100. */
  gbps?: number;
  /** Time to simulate, in milliseconds. Default 20. */
  milliseconds?: number;
  /** Whether congestion control is on. Default true. */
  control?: boolean;
  /** Time from the switch to the receiver and back to the sender, in microseconds. Default 8. */
  feedbackUs?: number;
  /** Queue in KB from which the switch marks. Default 5. */
  kminKb?: number;
  /** Queue in KB from which it marks every packet. Default 200. */
  kmaxKb?: number;
  /** Probability of a mark just below `kmaxKb`. Default 0.01. */
  pmax?: number;
  /** Queue in KB from which PFC pauses the senders. Default 400. */
  pauseKb?: number;
  /** Queue in KB at which they go on. Default 300. */
  resumeKb?: number;
  /** Default 1. */
  seed?: number;
}

/** The state at a moment. */
export interface DcqcnSample {
  /** Microseconds from the start. */
  us: number;
  /** Queue of the switch, in KB of 1000 bytes. */
  queueKb: number;
  /** Rate of each sender in gigabits per second; 0 while it is paused. */
  rates: number[];
}

/** What the model gives. Shares and means leave the first tenth of the time out. */
export interface DcqcnResult {
  /** At most 1000, at equal distances. */
  samples: DcqcnSample[];
  /** Part of the link that is used. */
  utilisation: number;
  /** Mean of the queue, in KB. */
  meanQueueKb: number;
  /** Longest queue, in KB; of the whole time. */
  maxQueueKb: number;
  /** Part of the time for which PFC paused the senders. */
  paused: number;
  /** How often it did; of the whole time. */
  pauses: number;
  /** CNPs that were sent. */
  cnps: number;
  /** Jain's index of the senders' shares: 1 when all are equal. */
  fairness: number;
}

// The paper's parameters of the reaction and the notification point.
const G = 1 / 256;
const CNP_INTERVAL_US = 50;
const ALPHA_TIMER_US = 55;
const INCREASE_TIMER_US = 55;
const INCREASE_BYTES = 10e6;
const FAST_RECOVERY_STEPS = 5;
const ADDITIVE_GBPS = 0.04;
const HYPER_GBPS = 0.4;
const MTU = 1024;

/** The reaction point: a sender. */
class Sender {
  rate: number;
  delivered = 0;
  #target: number;
  readonly #line: number;
  #alpha = 1;
  #sinceAlpha = 0;
  #sinceTimer = 0;
  #bytes = 0;
  #timerSteps = 0;
  #byteSteps = 0;
  /** Time since the receiver has sent it a CNP. */
  sinceCnp = CNP_INTERVAL_US;
  /** Times at which CNPs that are on their way arrive. */
  readonly coming: number[] = [];

  constructor(line: number) {
    this.rate = line;
    this.#target = line;
    this.#line = line;
  }

  cut(): void {
    this.#target = this.rate;
    this.rate = Math.max(this.rate * (1 - this.#alpha / 2), this.#line / 1000);
    this.#alpha = (1 - G) * this.#alpha + G;
    this.#sinceAlpha = this.#sinceTimer = this.#bytes = this.#timerSteps = this.#byteSteps = 0;
  }

  /** A microsecond passes, in which so many bytes were sent. */
  pass(bytes: number): void {
    if (++this.#sinceAlpha >= ALPHA_TIMER_US) {
      this.#sinceAlpha = 0;
      this.#alpha *= 1 - G;
    }
    this.#bytes += bytes;
    if (++this.#sinceTimer >= INCREASE_TIMER_US) {
      this.#sinceTimer = 0;
      this.#timerSteps++;
      this.#raise();
    }
    if (this.#bytes >= INCREASE_BYTES) {
      this.#bytes = 0;
      this.#byteSteps++;
      this.#raise();
    }
  }

  #raise(): void {
    const [low, high] = [Math.min(this.#timerSteps, this.#byteSteps), Math.max(this.#timerSteps, this.#byteSteps)];
    if (low > FAST_RECOVERY_STEPS) this.#target += HYPER_GBPS * (low - FAST_RECOVERY_STEPS);
    else if (high > FAST_RECOVERY_STEPS) this.#target += ADDITIVE_GBPS;
    this.#target = Math.min(this.#target, this.#line);
    this.rate = Math.min((this.#target + this.rate) / 2, this.#line);
  }
}

function number(value: unknown, name: string, min: number, max = Number.MAX_VALUE): number {
  if (typeof value !== 'number') throw typeError(name, 'a number', value);
  const range = max === Number.MAX_VALUE ? `at least ${min}` : `from ${min} to ${max}`;
  if (!(value >= min && value <= max)) throw valueError(`${name} must be ${range}, not ${value}`);
  return value;
}

const names = [
  ...['senders', 'gbps', 'milliseconds', 'control', 'feedbackUs', 'kminKb', 'kmaxKb', 'pmax', 'pauseKb', 'resumeKb'],
  'seed',
];

/**
 * Simulates an incast: all senders start at once, at full speed, towards one link.
 *
 * @param options - load, switch, algorithm
 */
export function simulateDcqcn(options: DcqcnOptions = {}): DcqcnResult {
  const o = readOptions(options, 'options', names);
  const count = integer(o.senders ?? 8, 'options.senders', 1, 10_000);
  const gbps = number(o.gbps ?? 100, 'options.gbps', 0.1, 1e5);
  const steps = Math.ceil(number(o.milliseconds ?? 20, 'options.milliseconds', 0.1, 10_000) * 1000);
  const isControlled = boolean(o.control ?? true, 'options.control');
  const feedback = number(o.feedbackUs ?? 8, 'options.feedbackUs', 0);
  const kmin = number(o.kminKb ?? 5, 'options.kminKb', 0) * 1000;
  const kmax = number(o.kmaxKb ?? 200, 'options.kmaxKb', kmin / 1000) * 1000;
  const pmax = number(o.pmax ?? 0.01, 'options.pmax', 0, 1);
  const pause = number(o.pauseKb ?? 400, 'options.pauseKb', 0) * 1000;
  const resume = number(o.resumeKb ?? 300, 'options.resumeKb', 0, pause / 1000) * 1000;
  const random = new Random(o.seed ?? 1);
  const senders = Array.from({ length: count }, () => new Sender(gbps));
  const perGbps = 125; // bytes in a microsecond
  const room = gbps * perGbps;
  const every = Math.ceil(steps / 1000);
  const warm = Math.floor(steps / 10);

  let queue = 0;
  let isPaused = false;
  const result: DcqcnResult = {
    ...{ samples: [], utilisation: 0, meanQueueKb: 0, maxQueueKb: 0, paused: 0, pauses: 0, cnps: 0, fairness: 1 },
  };
  let [drainedAll, queueAll, pausedSteps] = [0, 0, 0];
  for (let us = 0; us < steps; us++) {
    let arriving = 0;
    const marking = queue <= kmin ? 0 : queue >= kmax ? 1 : (pmax * (queue - kmin)) / (kmax - kmin);
    for (const sender of senders) {
      const bytes = isPaused ? 0 : sender.rate * perGbps;
      arriving += bytes;
      if (us >= warm) sender.delivered += bytes;
      if (!isControlled) continue;
      sender.sinceCnp++;
      // The chance that one of the packets of this microsecond is marked.
      if (bytes > 0 && marking > 0 && sender.sinceCnp >= CNP_INTERVAL_US) {
        if (random.next() < 1 - (1 - marking) ** (bytes / MTU)) {
          sender.sinceCnp = 0;
          sender.coming.push(us + feedback);
          result.cnps++;
        }
      }
      if (sender.coming.length > 0 && sender.coming[0]! <= us) {
        sender.coming.shift();
        sender.cut();
      } else sender.pass(bytes);
    }
    const drained = Math.min(queue + arriving, room);
    queue += arriving - drained;
    if (queue >= pause && !isPaused) {
      isPaused = true;
      result.pauses++;
    } else if (queue <= resume) isPaused = false;
    result.maxQueueKb = Math.max(result.maxQueueKb, queue / 1000);
    if (us >= warm) {
      drainedAll += drained;
      queueAll += queue;
      if (isPaused) pausedSteps++;
    }
    if (us % every === 0) {
      const rates = senders.map(({ rate }) => (isPaused ? 0 : rate));
      result.samples.push({ us, queueKb: queue / 1000, rates });
    }
  }
  const counted = steps - warm;
  result.utilisation = drainedAll / (counted * room);
  result.meanQueueKb = queueAll / counted / 1000;
  result.paused = pausedSteps / counted;
  const shares = senders.map(({ delivered }) => delivered);
  const sum = shares.reduce((a, b) => a + b, 0);
  const squares = shares.reduce((a, b) => a + b * b, 0);
  if (squares > 0) result.fairness = (sum * sum) / (count * squares);
  return result;
}
