/** What the change of counters over a time says. */
import { object, objects } from '../args.ts';
import type { Counter, PortCounters } from './counters.ts';

/** A counter that has changed. */
export interface CounterRate extends Counter {
  /** How much it rose. */
  change: bigint;
  /** The same, a second. */
  perSecond: number;
}

/** Something to say about a port. */
export interface CounterFinding {
  /** `'note'`: works as designed. `'warning'`: something should be mended. */
  level: 'note' | 'warning';
  /** What was seen, and what it means. */
  text: string;
  /** The counters that say so. */
  counters: string[];
}

/**
 * How fast counters rise.
 *
 * @param before - of a port
 * @param after - of the same port, later
 * @returns those that have changed. One that is lower than before was reset, and counts from 0
 */
export function counterRates(before: PortCounters, after: PortCounters): CounterRate[] {
  const seconds = (object(after, 'after').time - object(before, 'before').time) / 1000;
  const old = new Map(
    objects(before.counters, 'before.counters').map(({ name, source, value }) => [`${source} ${name}`, value]),
  );
  const rates: CounterRate[] = [];
  for (const counter of objects(after.counters, 'after.counters')) {
    const was = old.get(`${counter.source} ${counter.name}`) ?? 0n;
    const change = counter.value >= was ? counter.value - was : counter.value;
    if (change > 0n) rates.push({ ...counter, change, perSecond: seconds > 0 ? Number(change) / seconds : 0 });
  }
  return rates;
}

// Rules of thumb: pauses of a hundredth of the time, or ten a second, are more than a burst now and then.
const PAUSED_SHARE = 0.01;
const PAUSES_PER_SECOND = 10;

// RNR NAKs that came from the peer, and what becomes of them.
const PEER = /^(rnr_nak_retry_err|rcvd_rnr_err|req_rnr_retries_exceeded|retry_rnr_exceeded_err)$/;

/**
 * Says what rates mean: marks of switches are normal, sustained pause frames mean that congestion control is losing, or
 * that this host is too slow if it is the one that sends them; sequence errors on a network that is meant to be lossless
 * mean drops.
 *
 * @param rates - of a port
 * @returns nothing for a port without trouble
 */
export function judgeCounters(rates: readonly CounterRate[]): CounterFinding[] {
  const all = objects(rates, 'rates');
  const findings: CounterFinding[] = [];
  const of = (kind: string) => all.filter(({ meaning }) => meaning?.kind === kind);
  const say = (level: CounterFinding['level'], from: readonly CounterRate[], text: string) => {
    if (from.length > 0) findings.push({ level, text, counters: from.map(({ name }) => name) });
  };
  const designed = of('designed');
  const losses = of('loss');
  const ignored = losses.filter(({ name }) => name === 'rp_cnp_ignored');
  say('note', designed, 'congestion control works as designed: marks and CNPs slow senders down');
  // A tick is as long as the device likes, so that a rate of them is no share of the time.
  const waits = of('pause').filter(({ meaning }) => meaning?.unit === 'ticks');
  const pauses = of('pause').filter((rate) => !waits.includes(rate));
  const sustained = pauses.filter(isSustained);
  const sent = sustained.filter(({ name }) => name.startsWith('tx_'));
  say(
    'warning',
    sustained.filter((rate) => !sent.includes(rate)),
    'sustained pauses: congestion control is losing the race. Mark earlier (ECN thresholds below those of PFC), and see who sends the pauses',
  );
  say(
    'warning',
    sent,
    'this host pauses its switch: it is too slow. Look at its PCIe slot, its memory, and at receives that are posted too late',
  );
  if (sustained.length === 0) say('note', pauses, 'pauses now and then: PFC absorbs bursts, as designed');
  say(
    'note',
    waits,
    'data waited to be sent: no credits, or paused. How long, ticks do not tell: compare ports and times',
  );
  say('warning', ignored, 'CNPs are ignored: congestion control is off for the sender, or not for this priority');
  say(
    'warning',
    losses.filter((rate) => !ignored.includes(rate)),
    'packets are lost. On a network meant to be lossless, something drops: a buffer without PFC, a priority or a partition that is not the same everywhere, or a cable',
  );
  say('warning', of('link'), 'the link damages packets or goes down: cable, optics, port');
  const faults = of('software').filter((rate) => !isFlushed(rate, all));
  const peers = faults.filter(({ name }) => PEER.test(name));
  say('warning', peers, "the peer's program posts its receives too late, or too few");
  say(
    'warning',
    faults.filter((rate) => !peers.includes(rate)),
    'a program is at fault: receives posted too late, or wrong keys and lengths',
  );
  return findings;
}

/**
 * Whether these errors are no more than the requests that were flushed, as they are when a queue pair ends: cqe_error
 * counts those too, by what has been published of mlx5's values.
 */
function isFlushed({ name, change }: CounterRate, all: readonly CounterRate[]): boolean {
  const [, side] = /^(req|resp)_cqe_error$/.exec(name) ?? [];
  const flushed = all.find((other) => other.name === `${side}_cqe_flush_error`);
  return flushed !== undefined && change <= flushed.change;
}

function isSustained({ name, perSecond, meaning }: CounterRate): boolean {
  // The device has found them so.
  if (name.startsWith('tx_pause_storm_')) return true;
  if (meaning?.unit === 'microseconds') return perSecond / 1e6 >= PAUSED_SHARE;
  return perSecond >= PAUSES_PER_SECOND;
}
