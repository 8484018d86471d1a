/**
 * Loss recovery: what a lost packet costs a sender that goes back N, and one that sends again only what was lost.
 *
 * The simple model is that of a window of packets in flight, without time: a lost packet voids all that was sent after it.
 * The timed model adds the path: a round trip until the sender learns of the loss, and a timeout where it does not learn
 * of it, since the last packet of a message was lost and nothing comes behind it.
 */

import { integer, readOptions, typeError, valueError } from '../args.ts';
import { Random } from './random.ts';

/** How a sender recovers. */
export type Recovery = 'go-back-n' | 'selective';

/** What the simple model takes. */
export interface LossOptions {
  /** Probability that a packet is lost, 0 to below 1. */
  loss: number;
  /** Packets in flight. Default 1000. */
  window?: number;
  /** Packets to deliver. Default 2,000,000. */
  packets?: number;
  /** Default 1. */
  seed?: number;
}

/** What the simple model gives. */
export interface LossResult {
  /** Packets that were sent, again or not. */
  sent: number;
  /** Delivered packets by sent ones: the part of the capacity that is of use. */
  goodput: number;
}

function probability(value: unknown, name: string): number {
  if (typeof value !== 'number') throw typeError(name, 'a number', value);
  if (!(value >= 0 && value < 1)) throw valueError(`${name} must be from 0 to below 1, not ${value}`);
  return value;
}

function positive(value: unknown, name: string): number {
  if (typeof value !== 'number') throw typeError(name, 'a number', value);
  if (!(value > 0 && Number.isFinite(value))) throw valueError(`${name} must be above 0, not ${value}`);
  return value;
}

/**
 * The simple model.
 *
 * @param recovery - how the sender recovers
 * @param options - loss, window, packets, seed
 * @example
 * simulateLoss('go-back-n', { loss: 0.001 }).goodput; // about 0.63: over a third is lost
 */
export function simulateLoss(recovery: Recovery, options: LossOptions): LossResult {
  const given = readOptions(options, 'options', ['loss', 'window', 'packets', 'seed']);
  const loss = probability(given.loss, 'options.loss');
  const window = integer(given.window ?? 1000, 'options.window', 1, 1e9);
  const packets = integer(given.packets ?? 2_000_000, 'options.packets', 1, 1e9);
  const random = new Random(given.seed ?? 1);
  const model = { 'go-back-n': goBackN, selective }[checkRecovery(recovery)];
  const sent = model(random, loss, window, packets);
  return { sent, goodput: packets / sent };
}

const recoveries = { 'go-back-n': 0, selective: 1 };

function checkRecovery(recovery: Recovery): Recovery {
  if (typeof recovery !== 'string' || !Object.hasOwn(recoveries, recovery)) {
    throw valueError(`recovery must be 'go-back-n' or 'selective', not ${String(recovery)}`);
  }
  return recovery;
}

/** A window is sent whole; behind a lost packet the rest of it is void, and the next window starts at the gap. */
function goBackN(random: Random, loss: number, window: number, packets: number): number {
  let sent = 0;
  let base = 0;
  while (base < packets) {
    const size = Math.min(window, packets - base);
    const good = random.successes(loss);
    if (good >= size) {
      sent += size;
      base += size;
    } else {
      // The article's count: what follows the lost packet in a full window is in flight and discarded.
      sent += window;
      base += good;
    }
  }
  return sent;
}

function selective(random: Random, loss: number, _window: number, packets: number): number {
  let sent = 0;
  for (let left = packets; left > 0; ) {
    const good = Math.min(left, random.successes(loss));
    left -= good;
    sent += good;
    if (left > 0) sent++;
  }
  return sent;
}

/** What the timed model takes. */
export interface TimedLossOptions {
  /** Probability that a packet is lost, 0 to below 1. Acknowledgements are not lost. */
  loss: number;
  /** Speed of the link in gigabits per second. Default 100. */
  gbps?: number;
  /** Bytes of payload of a packet. Default 4096; headers are not counted. */
  mtu?: number;
  /** Time from a packet to its acknowledgement, in microseconds. Default 10. */
  rttUs?: number;
  /** Bytes of a message; messages follow each other without a pause. Default 1 MiB. */
  messageBytes?: number;
  /** Time after which a sender that hears nothing sends again, in microseconds. Default 67109: ack timeout 14. */
  timeoutUs?: number;
  /** Messages that may be in flight at once: 1 waits for each. Default 1. */
  depth?: number;
  /** Messages. Default 2000. */
  messages?: number;
  /** Default 1. */
  seed?: number;
}

/** What the timed model gives. */
export interface TimedLossResult {
  /** Payload delivered, in gigabits per second. */
  goodputGbps: number;
  /** The same as a part of what the link carries without loss, with the same pauses between messages. */
  efficiency: number;
  /** Packets sent. */
  sent: number;
  /** How often the sender waited for a timeout. */
  timeouts: number;
  /** How often it learned of a loss by a NAK. */
  naks: number;
}

/**
 * The timed model: a connection that sends messages over a path with a round trip time.
 *
 * A loss is told by the next packet that arrives, half a round trip later; the sender hears of it another half later. What it
 * has sent meanwhile is void for `'go-back-n'`, and of use for `'selective'`. When no packet follows the lost one, since it was
 * the last of all that was in flight, only the timeout helps.
 *
 * @param recovery - how the sender recovers
 * @param options - the path and the load
 */
export function simulateTimedLoss(recovery: Recovery, options: TimedLossOptions): TimedLossResult {
  const names = ['loss', 'gbps', 'mtu', 'rttUs', 'messageBytes', 'timeoutUs', 'depth', 'messages', 'seed'];
  const given = readOptions(options, 'options', names);
  const loss = probability(given.loss, 'options.loss');
  const mtu = integer(given.mtu ?? 4096, 'options.mtu', 1, 1 << 20);
  const gbps = positive(given.gbps ?? 100, 'options.gbps');
  const packetUs = (mtu * 8) / (gbps * 1000);
  const rttUs = positive(given.rttUs ?? 10, 'options.rttUs');
  const timeoutUs = positive(given.timeoutUs ?? 4.096 * 2 ** 14, 'options.timeoutUs');
  const size = Math.ceil(integer(given.messageBytes ?? 1 << 20, 'options.messageBytes', 1, 2 ** 31) / mtu);
  const depth = integer(given.depth ?? 1, 'options.depth', 1, 1e6);
  const messages = integer(given.messages ?? 2000, 'options.messages', 1, 1e8);
  const isSelective = checkRecovery(recovery) === 'selective';
  const random = new Random(given.seed ?? 1);
  // Packets that leave the sender while it does not know yet.
  const blind = Math.max(1, Math.round(rttUs / packetUs));

  let us = 0;
  let sent = 0;
  let timeouts = 0;
  let naks = 0;
  // A batch of `depth` messages is sent, then its acknowledgement is waited for.
  const batches = Math.ceil(messages / depth);
  for (let batch = 0; batch < batches; batch++) {
    let left = size * Math.min(depth, messages - batch * depth);
    // Lost packets of the batch, which a selective sender sends again behind the others.
    let again = 0;
    while (left + again > 0) {
      if (left === 0) [left, again] = [again, 0];
      const good = random.successes(loss);
      if (good >= left) {
        sent += left;
        us += left * packetUs;
        left = 0;
        if (again > 0) us += rttUs;
        continue;
      }
      sent += good + 1;
      us += (good + 1) * packetUs;
      const behind = left - good - 1;
      if (behind === 0 && again === 0) {
        // Nothing comes behind it that could tell of the loss.
        timeouts++;
        us += timeoutUs;
        left = 1;
      } else if (isSelective) {
        naks++;
        left = behind;
        again++;
      } else {
        naks++;
        const voided = Math.min(behind, blind);
        sent += voided;
        // The link is busy with what is void, or idle: the round trip passes either way.
        us += Math.max(voided * packetUs, rttUs);
        left = behind + 1;
      }
    }
    us += rttUs;
  }
  const packets = size * messages;
  const ideal = packets * packetUs + batches * rttUs;
  return { goodputGbps: (packets * mtu * 8) / us / 1000, efficiency: ideal / us, sent, timeouts, naks };
}
