/** Rules of a firewall, of whichever program, and what becomes of a packet of RoCE v2 that is sent to this machine. */
import { BlockList, isIP } from 'node:net';
import type { GidEntry } from '../verbs/gid.ts';

/** The UDP port of RoCE v2. */
export const ROCE_PORT = 4791;

/** Packets of RoCE that arrive here; a list that is empty is not known. */
export interface Packets {
  family: 'ip' | 'ip6';
  /** Network interfaces that they arrive at. */
  netdevs: string[];
  /** Addresses that they are sent to. */
  addresses: string[];
}

/** The packets that are sent to these GIDs; those of IPv4 where there is none, as it is what an address is given for. */
export function packetsTo(gids: readonly GidEntry[]): Packets[] {
  const of = (family: 'ip' | 'ip6', own: GidEntry[]): Packets => ({
    family,
    netdevs: own.flatMap(({ netdev }) => netdev ?? []),
    addresses: own.map(({ gid }) => gid.replace('::ffff:', '')),
  });
  const [v4, v6] = [gids.filter(({ gid }) => isMapped(gid)), gids.filter(({ gid }) => !isMapped(gid))];
  return [...(v4.length > 0 || v6.length === 0 ? [of('ip', v4)] : []), ...(v6.length > 0 ? [of('ip6', v6)] : [])];
}

/** Whether a GID is an IPv4 address. */
export const isMapped = (gid: string): boolean => gid.startsWith('::ffff:');

/**
 * Whether a rule is about these packets. `'sometimes'` depends on what is not known of them, such as their source;
 * `'unknown'` on a condition that is not understood.
 */
export type Match = 'always' | 'sometimes' | 'unknown' | 'never';

/** That both conditions hold. */
export const both = (a: Match, b: Match): Match =>
  (['never', 'unknown', 'sometimes'] as const).find((match) => a === match || b === match) ?? 'always';

/** That a condition does not hold. */
export const not = (match: Match): Match => (match === 'always' ? 'never' : match === 'never' ? 'always' : match);

/** Whether a condition holds, by whether it does for each of the values that packets may have. */
export function forAll<T>(values: readonly T[], test: (value: T) => Match): Match {
  const matches = new Set(values.map(test));
  if (matches.has('unknown')) return 'unknown';
  return matches.size === 1 ? [...matches][0]! : 'sometimes';
}

export const when = (holds: boolean): Match => (holds ? 'always' : 'never');

/** Whether an address is in a network, or in a range. */
export function isWithin(address: string, from: string, to: number | string): Match {
  const type = isIP(from) === 6 ? 'ipv6' : 'ipv4';
  const list = new BlockList();
  try {
    if (typeof to === 'number') list.addSubnet(from, to, type);
    else list.addRange(from, to, type);
  } catch {
    return 'unknown';
  }
  return when(list.check(address, isIP(address) === 6 ? 'ipv6' : 'ipv4'));
}

/** What a rule does; `to` is the chain of a jump. */
export type Action = { does: 'accept' | 'drop' | 'return' } | { does: 'jump' | 'goto'; to: string };
export type Rule = Action & { match: Match };

/** The chains of a table, by their names. */
export type Chains = ReadonlyMap<string, readonly Rule[]>;

/** What may become of packets. */
interface Fate {
  accepted: boolean;
  dropped: boolean;
  /** They come to the chain's end. */
  through: boolean;
  /** A rule on the way is not understood. */
  unknown: boolean;
}

// As the kernel's limit on jumps: nft refuses loops.
const DEEPEST = 16;

/** `known`: what is known of chains already, to which many rules may jump. */
function follow(chains: Chains, name: string, known = new Map<string, Fate>(), depth = 0): Fate {
  let fate = known.get(name);
  if (fate === undefined) {
    fate = fateIn(chains, name, known, depth);
    known.set(name, fate);
  }
  return fate;
}

function fateIn(chains: Chains, name: string, known: Map<string, Fate>, depth: number): Fate {
  const fate: Fate = { accepted: false, dropped: false, through: false, unknown: depth > DEEPEST };
  const rules = depth > DEEPEST ? [] : (chains.get(name) ?? []);
  for (const rule of rules.filter(({ match }) => match !== 'never')) {
    const inner =
      'to' in rule
        ? follow(chains, rule.to, known, depth + 1)
        : {
            ...{ accepted: rule.does === 'accept', dropped: rule.does === 'drop' },
            ...{ through: rule.does === 'return', unknown: false },
          };
    fate.accepted ||= inner.accepted;
    fate.dropped ||= inner.dropped;
    fate.unknown ||= inner.unknown || rule.match === 'unknown';
    if (rule.does !== 'jump') fate.through ||= inner.through;
    const goesOn = rule.does === 'jump' && inner.through;
    if (rule.match === 'always' && !goesOn) return fate;
  }
  return { ...fate, through: true };
}

/** A chain that the kernel starts at. */
export interface BaseChain {
  /** What it is called in a sentence. */
  title: string;
  name: string;
  chains: Chains;
  policy: 'accept' | 'drop';
  /** The line that makes it accept RoCE. */
  fix: string;
}

/** Whether a chain drops packets. `'unknown'`: it has rules that are not understood, which may decide it. */
export function drops({ chains, name, policy }: BaseChain): Match {
  const fate = follow(chains, name);
  const accepted = fate.accepted || (fate.through && policy === 'accept');
  const dropped = fate.dropped || (fate.through && policy === 'drop');
  if (accepted && dropped) return fate.unknown ? 'unknown' : 'sometimes';
  return when(dropped);
}
