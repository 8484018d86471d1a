/**
 * Priority flow control in a network of switches: how pauses spread, whom they hold up, and how they lock each other.
 *
 * Time goes in slots; a link carries a packet in each. A switch has a queue for each way out, first in, first out, and counts for
 * each way in how many of its packets wait here. At `xoff` it pauses that link, at `xon` it lets it go on; without PFC it drops
 * what would exceed `xoff`. Pauses take effect at once.
 */

import { boolean, integer, objects, readOptions, valueError } from '../args.ts';

/** A link from one node to another, with its speed. */
export interface PfcLink {
  /** Where it starts. */
  from: string;
  /** Where it ends. */
  to: string;
  /** Slots that a packet takes. Default 1. */
  slots?: number;
}

/** Packets from one host to another, as fast as the way out allows. */
export interface PfcFlow {
  /** For the results. */
  name: string;
  /** The nodes on its way; the first and the last are hosts. */
  path: readonly string[];
}

/** What the model takes. */
export interface PfcOptions {
  /** The network. A node whose name starts with `host` is a host; others are switches. */
  links: readonly PfcLink[];
  /** What it carries. */
  flows: readonly PfcFlow[];
  /** Slots to simulate. Default 20,000. */
  slots?: number;
  /** Whether PFC is on. Default true. */
  pfc?: boolean;
  /** Packets of a link that wait in a switch when it is paused. Default 50. */
  xoff?: number;
  /** Packets at which it goes on. Default 40. */
  xon?: number;
  /** A queue that was paused for so many slots on end is dropped, as the watchdogs of switches do. Default 0: never. */
  watchdog?: number;
}

/** A link in the results. */
export interface PfcLinkResult {
  /** Where it starts and ends, such as `'s1 > s2'`. */
  link: string;
  /** Part of the time for which it was paused. */
  paused: number;
  /** Slot of the first pause; undefined when there was none. */
  firstPause: number | undefined;
  /** How often the watchdog has dropped its queue. */
  watchdogs: number;
}

/** What the model gives. Rates are of the second half of the time, in packets a slot. */
export interface PfcResult {
  /** Of each flow: packets that arrive in a slot. */
  rates: Record<string, number>;
  /** Of each flow: packets dropped, in all. */
  drops: Record<string, number>;
  /** Of each link. */
  links: PfcLinkResult[];
  /** Slot from which on nothing moved any more, though packets waited; undefined when all went well. */
  deadlockAt: number | undefined;
}

interface Packet {
  flow: number;
  /** Index in the path of the node where it is. */
  at: number;
  /** The link it came by; undefined at its source. */
  by: Link | undefined;
}

interface Link {
  name: string;
  to: string;
  slots: number;
  queue: Packet[];
  /** Slot from which on it is free. */
  freeAt: number;
  /** Its packets that wait in the node behind it. */
  waiting: number;
  pausedSince: number | undefined;
  pausedSlots: number;
  firstPause: number | undefined;
  watchdogs: number;
}

const isHost = (node: string) => node.startsWith('host');

/**
 * Simulates a network with PFC.
 *
 * @param options - the network and its load
 */
export function simulatePfc(options: PfcOptions): PfcResult {
  const names = ['links', 'flows', 'slots', 'pfc', 'xoff', 'xon', 'watchdog'];
  const o = readOptions(options, 'options', names) as PfcOptions;
  const slots = integer(o.slots ?? 20_000, 'options.slots', 2, 1e8);
  const isOn = boolean(o.pfc ?? true, 'options.pfc');
  const xoff = integer(o.xoff ?? 50, 'options.xoff', 1, 1e6);
  const xon = integer(o.xon ?? Math.min(40, xoff - 1), 'options.xon', 0, xoff - 1);
  const watchdog = integer(o.watchdog ?? 0, 'options.watchdog', 0, 1e9);
  const links = new Map<string, Link>();
  for (const { from, to, slots = 1 } of objects(o.links, 'options.links')) {
    const name = `${from} > ${to}`;
    const state = { queue: [], freeAt: 0, waiting: 0, pausedSlots: 0, watchdogs: 0 };
    links.set(name, { name, to, slots, ...state, pausedSince: undefined, firstPause: undefined });
  }
  const ways = objects(o.flows, 'options.flows').map(({ name, path }) =>
    path.slice(1).map((node, i) => {
      const link = links.get(`${path[i]} > ${node}`);
      if (link === undefined) throw valueError(`flow ${name} has no link from ${path[i]} to ${node}`);
      return link;
    }),
  );
  const arrived = new Float64Array(o.flows.length);
  const dropped = new Float64Array(o.flows.length);
  const all = [...links.values()];
  let lastMove = 0;

  const leave = ({ by }: Packet, slot: number) => {
    if (by === undefined) return;
    by.waiting--;
    if (by.pausedSince !== undefined && by.waiting <= xon) {
      by.pausedSlots += slot - by.pausedSince;
      by.pausedSince = undefined;
    }
  };
  /** A packet has crossed a link. */
  const arrive = (packet: Packet, link: Link, slot: number) => {
    const at = packet.at + 1;
    const way = ways[packet.flow]!;
    if (at === way.length) {
      if (slot >= slots / 2) arrived[packet.flow]!++;
      return;
    }
    if (!isOn && link.waiting >= xoff) {
      dropped[packet.flow]!++;
      return;
    }
    link.waiting++;
    way[at]!.queue.push({ flow: packet.flow, at, by: link });
    if (isOn && link.waiting >= xoff && link.pausedSince === undefined) {
      link.pausedSince = slot;
      link.firstPause ??= slot;
    }
  };

  for (let slot = 0; slot < slots; slot++) {
    // Each host offers a packet of each of its flows while little waits in it.
    for (const [flow, way] of ways.entries()) {
      const first = way[0]!;
      if (first.queue.length < 2 * ways.length) first.queue.push({ flow, at: 0, by: undefined });
    }
    const crossing: [Packet, Link][] = [];
    for (const link of all) {
      if (watchdog > 0 && link.pausedSince !== undefined && slot - link.pausedSince >= watchdog) {
        // The queue that waits for this link is thrown away, and the pause ignored till the next one.
        link.watchdogs++;
        for (const packet of link.queue.splice(0)) {
          if (packet.by !== undefined) dropped[packet.flow]!++;
          leave(packet, slot);
        }
        link.pausedSlots += slot - link.pausedSince;
        link.pausedSince = undefined;
        lastMove = slot;
      }
      if (link.pausedSince !== undefined || link.freeAt > slot || link.queue.length === 0) continue;
      const packet = link.queue.shift()!;
      link.freeAt = slot + link.slots;
      lastMove = slot;
      crossing.push([packet, link]);
    }
    // All at once, so that the order of the links does not matter.
    for (const [packet, link] of crossing) {
      leave(packet, slot);
      arrive(packet, link, slot);
    }
  }

  const slowest = Math.max(...all.map((link) => link.slots));
  const isStuck = slots - lastMove > 10 * slowest + 10 && all.some(({ queue }) => queue.length > 0);
  return {
    rates: Object.fromEntries(o.flows.map(({ name }, i) => [name, arrived[i]! / (slots - Math.ceil(slots / 2))])),
    drops: Object.fromEntries(o.flows.map(({ name }, i) => [name, dropped[i]!])),
    links: all
      .filter(({ to }) => !isHost(to))
      .map(({ name, pausedSlots, pausedSince, firstPause, watchdogs }) => ({
        link: name,
        paused: (pausedSlots + (pausedSince === undefined ? 0 : slots - pausedSince)) / slots,
        firstPause,
        watchdogs,
      })),
    deadlockAt: isStuck ? lastMove + 1 : undefined,
  };
}

/** A network and what it carries, to see something by. */
export type PfcScenario = Pick<PfcOptions, 'links' | 'flows'>;

const both = (pairs: readonly (readonly [string, string])[]): PfcLink[] =>
  pairs.flatMap(([a, b]) => [
    { from: a, to: b },
    { from: b, to: a },
  ]);

/**
 * A row of switches. A slow receiver hangs on the last; a quick one on the first, whose flow shares no link with trouble
 * but the one from the sender's switch.
 *
 * @param switches - in the row; 3 or more. Default 4
 * @param slowness - slots that the slow receiver takes for a packet. Default 10
 */
export function spreadingScenario(switches = 4, slowness = 10): PfcScenario {
  integer(switches, 'switches', 3, 100);
  integer(slowness, 'slowness', 1, 1e6);
  const row = Array.from({ length: switches }, (_, i) => `s${i + 1}`);
  const pairs = row.slice(1).map((name, i): [string, string] => [row[i]!, name]);
  const last = row.at(-1)!;
  const links = [
    ...both([...pairs, ['hostA', 's1'], ['hostB', 's1'], ['hostFast', 's2']]),
    { from: last, to: 'hostSlow', slots: slowness },
  ];
  return {
    links,
    flows: [
      { name: 'culprit', path: ['hostA', ...row, 'hostSlow'] },
      { name: 'victim', path: ['hostB', 's1', 's2', 'hostFast'] },
    ],
  };
}

/**
 * A ring of switches, each with a host that sends two hops on: each buffer waits for the next one.
 *
 * @param switches - in the ring; 3 or more. Default 4
 */
export function deadlockScenario(switches = 4): PfcScenario {
  integer(switches, 'switches', 3, 100);
  const name = (i: number) => `s${(i % switches) + 1}`;
  const indices = Array.from({ length: switches }, (_, i) => i);
  return {
    links: indices.flatMap((i) => [
      { from: name(i), to: name(i + 1) },
      { from: `host${i + 1}`, to: name(i) },
      { from: name(i), to: `host${i + 1}` },
    ]),
    flows: indices.map((i) => ({
      name: `${i + 1}`,
      path: [`host${i + 1}`, name(i), name(i + 1), name(i + 2), `host${((i + 2) % switches) + 1}`],
    })),
  };
}
