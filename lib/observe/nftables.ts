/** Rules of nftables, as `nft -j list ruleset` prints them: see libnftables-json(5). */
import {
  type Action,
  type BaseChain,
  both,
  forAll,
  isWithin,
  type Match,
  not,
  type Packets,
  ROCE_PORT,
  type Rule,
  when,
} from './packet-rules.ts';

type Json = Record<string, unknown>;

interface Named {
  family: string;
  table: string;
  name: string;
}
interface Listed {
  chain?: Named & { type?: string; hook?: string; policy?: 'accept' | 'drop' };
  rule?: { family: string; table: string; chain: string; expr: Json[] };
  set?: Named & { elem?: unknown[] };
  map?: Named & { elem?: unknown[] };
}

/** Where a packet is dropped that is sent to this machine. */
const hooks = ['prerouting', 'input'];

/** What nft listed; undefined where that was nothing, or no JSON, which it can be built without. */
export function parseRuleset(text: string | undefined): Listed[] | undefined {
  try {
    return text === undefined ? undefined : (JSON.parse(text) as { nftables?: Listed[] }).nftables;
  } catch {
    return undefined;
  }
}

/**
 * The chains of nftables that packets pass on their way in.
 *
 * @param listed - the ruleset
 * @param packets - whose way it is
 * @param ignores - whether a table is looked at elsewhere
 */
export function nftChains(
  listed: readonly Listed[],
  packets: Packets,
  ignores: (family: string, table: string) => boolean,
): BaseChain[] {
  const found: BaseChain[] = [];
  for (const { chain } of listed) {
    if (chain?.type !== 'filter' || !hooks.includes(chain.hook ?? '')) continue;
    const { family, table, name, policy = 'accept' } = chain;
    if (!['inet', packets.family].includes(family) || ignores(family, table)) continue;
    const isOwn = (other: { family: string; table: string } | undefined) =>
      other?.family === family && other.table === table;
    const own = listed.filter(({ chain, rule, set, map }) => isOwn(chain ?? rule ?? set ?? map));
    const sets = new Map(
      own.flatMap(({ set, map }) => ((set ?? map) ? [[(set ?? map)!.name, (set ?? map)!.elem]] : [])),
    );
    const reader = new RuleReader(packets, sets);
    const chains = new Map<string, Rule[]>();
    for (const { chain, rule } of own) {
      if (chain !== undefined) chains.set(chain.name, []);
      if (rule !== undefined) chains.get(rule.chain)?.push(...reader.read(rule.expr));
    }
    found.push({
      ...{ title: `chain ${name} of nftables' table ${family} ${table}`, name, chains, policy },
      fix:
        table === 'firewalld'
          ? `firewall-cmd --add-port=${ROCE_PORT}/udp`
          : `nft insert rule ${family} ${table} ${name} udp dport ${ROCE_PORT} accept`,
    });
  }
  return found;
}

// Statements that neither ask nor decide anything.
const harmless = ['counter', 'log', 'mangle', 'notrack', 'last', 'ct helper', 'ct timeout'];
// Protocols beside UDP.
const others = ['tcp', 'sctp', 'dccp', 'udplite', 'icmp', 'icmpv6', 'igmp', 'ah', 'esp', 'comp', 'arp'];
// Two spellings of one thing.
const aliases = new Map<unknown, unknown>([
  [17, 'udp'],
  ['unicast', 'host'],
]);

type Value = string | number | boolean;

class RuleReader {
  readonly #packets: Packets;
  readonly #sets: ReadonlyMap<string, unknown[] | undefined>;

  constructor(packets: Packets, sets: ReadonlyMap<string, unknown[] | undefined>) {
    this.#packets = packets;
    this.#sets = sets;
  }

  /** What a rule does to packets: one for each verdict that it has. */
  read(statements: readonly Json[]): Rule[] {
    const rules: Rule[] = [];
    let match: Match = 'always';
    for (const statement of statements) {
      const [[key, value]] = Object.entries(statement) as [[string, Json]];
      const action = actionOf(statement);
      if (action !== undefined) return [...rules, { ...action, match }];
      if (key === 'match') match = both(match, this.#match(value as unknown as Comparison));
      else if (key === 'vmap') rules.push(...this.#verdictMap(value, match));
      else if (key === 'limit' || key === 'quota' || key === 'ct count') match = both(match, 'sometimes');
      else if (key === 'queue' || (key === 'xt' && value?.type === 'target')) {
        // A program decides, or a target of iptables that nft does not know.
        return [...rules, { does: 'drop', match: both(match, 'unknown') }];
      } else if (!harmless.includes(key)) match = both(match, 'unknown');
    }
    return rules;
  }

  #match({ op, left, right }: Comparison): Match {
    const values = this.#valuesOf(left, right);
    if (typeof values === 'string') return values;
    const [edge, number] = [right as number, values[0] as number];
    switch (op) {
      case '==':
      case 'in':
        return this.#areIn(values, right);
      case '!=':
        return not(this.#areIn(values, right));
      case '<':
        return when(number < edge);
      case '<=':
        return when(number <= edge);
      case '>':
        return when(number > edge);
      case '>=':
        return when(number >= edge);
      default:
        return 'unknown';
    }
  }

  #verdictMap({ key, data }: { key?: Expression; data?: unknown }, match: Match): Rule[] {
    const values = this.#valuesOf(key ?? {}, undefined);
    const elements = this.#elements(data) as [unknown, Json][] | undefined;
    if (elements === undefined) return [{ does: 'drop', match: both(match, 'unknown') }];
    const rules: Rule[] = [];
    for (const [element, verdict] of elements) {
      const applies = both(match, typeof values === 'string' ? values : this.#areIn(values, element));
      const action = actionOf(verdict);
      if (action !== undefined) rules.push({ ...action, match: applies });
      if (applies === 'always') break;
    }
    return rules;
  }

  #areIn(values: readonly Value[], element: unknown): Match {
    return forAll(values, (value) => this.#isIn(value, element));
  }

  #isIn(value: Value, element: unknown): Match {
    const elements = this.#elements(element);
    if (elements !== undefined) {
      const matches = elements.map((one) => this.#isIn(value, one));
      return matches.includes('always') ? 'always' : matches.includes('unknown') ? 'unknown' : 'never';
    }
    if (typeof element === 'object' && element !== null) {
      const { elem, range, prefix } = element as {
        elem?: { val: unknown };
        range?: [string | number, string | number];
        prefix?: { addr: string; len: number };
      };
      if (elem !== undefined) return this.#isIn(value, elem.val);
      if (prefix !== undefined && typeof value === 'string') return isWithin(value, prefix.addr, prefix.len);
      if (range === undefined) return 'unknown';
      const [from, to] = range;
      if (typeof value === 'number') return when(Number(from) <= value && value <= Number(to));
      return isWithin(String(value), String(from), String(to));
    }
    if (element === '*') return 'always';
    if (typeof element === 'string' && element.startsWith('@')) return 'unknown';
    if (typeof element === 'string' && element.endsWith('*')) {
      return when(String(value).startsWith(element.slice(0, -1)));
    }
    return when((aliases.get(element) ?? element) === value);
  }

  /** The elements of a set, also one with a name, or of flags; undefined where it is none. */
  #elements(right: unknown): unknown[] | undefined {
    if (Array.isArray(right)) return right;
    if (typeof right === 'string' && right.startsWith('@')) {
      const name = right.slice(1);
      return this.#sets.has(name) ? (this.#sets.get(name) ?? []) : undefined;
    }
    const { set, '|': flags } = (right ?? {}) as { set?: unknown[]; '|'?: unknown[] };
    return set ?? flags;
  }

  /** What packets have there; or what every comparison with it comes to. */
  #valuesOf(
    { payload, meta, ct, fib, '&': masked, 'tcp option': option }: Expression,
    right: unknown,
  ): readonly Value[] | Match {
    const { family, netdevs, addresses } = this.#packets;
    if (masked !== undefined) return this.#valuesOf(masked[0], right) === 'never' ? 'never' : 'unknown';
    if (option !== undefined) return 'never';
    if (payload?.protocol === 'udp' || payload?.protocol === 'th') {
      return payload.field === 'dport' ? [ROCE_PORT] : 'sometimes';
    }
    if (payload?.protocol === 'ip' || payload?.protocol === 'ip6') {
      if (payload.protocol !== family) return 'never';
      if (payload.field === 'protocol' || payload.field === 'nexthdr') return ['udp'];
      return payload.field === 'daddr' ? known(addresses) : 'sometimes';
    }
    if (payload?.protocol !== undefined) return others.includes(payload.protocol) ? 'never' : 'sometimes';
    switch (meta?.key) {
      case undefined:
        break;
      case 'l4proto':
        return ['udp'];
      case 'nfproto':
        return [family === 'ip' ? 'ipv4' : 'ipv6'];
      case 'protocol':
        return [family];
      case 'iif':
      case 'iifname':
        return known(netdevs);
      case 'pkttype':
        return ['host'];
      default:
        return 'sometimes';
    }
    // Each side sends from a port of its own, so nothing is ever an answer: all packets are new.
    if (ct?.key === 'state') return ['new'];
    if (ct?.key === 'status') return ['none'];
    if (ct !== undefined) return 'sometimes';
    if (fib?.result === 'type') return [fib.flags?.includes('daddr') ? 'local' : 'host'];
    // Whether there is a route back, which there is.
    if (fib !== undefined) return typeof right === 'boolean' ? [true] : 'sometimes';
    return 'unknown';
  }
}

interface Expression {
  payload?: { protocol?: string; field?: string };
  meta?: { key: string };
  ct?: { key: string };
  fib?: { result: string; flags?: string | string[] };
  '&'?: [Expression, unknown];
  'tcp option'?: unknown;
}

interface Comparison {
  op: string;
  left: Expression;
  right: unknown;
}

const known = (values: string[]): string[] | Match => (values.length === 0 ? 'sometimes' : values);

/** What a verdict does; undefined of what is none. "continue" does nothing. */
function actionOf(statement: Json): Action | undefined {
  const [name, value] = Object.entries(statement)[0]!;
  if (name === 'accept' || name === 'drop' || name === 'return') return { does: name };
  if (name === 'reject') return { does: 'drop' };
  if (name === 'jump' || name === 'goto') return { does: name, to: (value as { target: string }).target };
  return undefined;
}
