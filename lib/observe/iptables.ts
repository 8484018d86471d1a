/** Rules of iptables, as `iptables -S` prints them: of its table `filter`. */
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

/**
 * The chain INPUT, which packets pass on their way in.
 *
 * @param program - which printed it
 * @param text - what it printed
 * @param packets - whose way it is
 */
export function iptablesChain(program: string, text: string, packets: Packets): BaseChain {
  const chains = new Map<string, Rule[]>();
  let policy: 'accept' | 'drop' = 'accept';
  for (const line of text.split('\n')) {
    const [command, chain = '', ...words] = wordsOf(line);
    if (command === '-P' && chain === 'INPUT' && words[0] === 'DROP') policy = 'drop';
    if (command === '-P' || command === '-N') chains.set(chain, []);
    if (command === '-A') chains.get(chain)?.push(...ruleOf(words, packets));
  }
  // Targets that are no chains say nothing of where packets go: LOG, MARK.
  for (const [name, rules] of chains) {
    chains.set(
      name,
      rules.filter((rule) => !('to' in rule) || chains.has(rule.to)),
    );
  }
  const isUfw = [...chains.keys()].some((name) => name.startsWith('ufw-'));
  return {
    ...{ title: `chain INPUT of ${program}`, name: 'INPUT', chains, policy },
    fix: isUfw ? `ufw allow ${ROCE_PORT}/udp` : `${program} -I INPUT -p udp --dport ${ROCE_PORT} -j ACCEPT`,
  };
}

/** The words of a line, with quotes as iptables writes them. */
const wordsOf = (line: string): string[] =>
  [...line.matchAll(/"((?:[^"\\]|\\.)*)"|\S+/g)].map(([word, quoted]) => quoted ?? word);

const actions: Record<string, Action> = {
  ACCEPT: { does: 'accept' },
  DROP: { does: 'drop' },
  REJECT: { does: 'drop' },
  RETURN: { does: 'return' },
};

// Extensions whose conditions are options that are known below.
const extensions = ['udp', 'tcp', 'multiport', 'conntrack', 'state', 'comment', 'addrtype', 'limit'];

function ruleOf(words: readonly string[], packets: Packets): Rule[] {
  let match: Match = 'always';
  let isNegated = false;
  for (let i = 0; i < words.length; i++) {
    const word = words[i]!;
    if (word === '!') {
      isNegated = true;
      continue;
    }
    // The second value of an option that has two.
    if (!word.startsWith('-')) continue;
    const value = words[i + 1] ?? '';
    if (word === '-j' || word === '-g') {
      const to: Action = { does: word === '-j' ? 'jump' : 'goto', to: value };
      // A program decides.
      if (value === 'QUEUE' || value === 'NFQUEUE') return [{ does: 'drop', match: both(match, 'unknown') }];
      return [{ ...(actions[value] ?? to), match }];
    }
    const found = condition(word, value, packets);
    match = both(match, isNegated ? not(found) : found);
    isNegated = false;
    // Its value, unless it has none.
    if (value !== '!' && !/^--?[a-z]/.test(value)) i++;
  }
  // Without a target it counts packets.
  return [];
}

function condition(option: string, value: string, { family, netdevs, addresses }: Packets): Match {
  switch (option) {
    case '-m':
      return extensions.includes(value) ? 'always' : 'unknown';
    case '--comment':
    case '--limit-burst':
      return 'always';
    case '-p':
      return when(['udp', '17', 'all'].includes(value));
    case '-i': {
      const start = value.endsWith('+') ? value.slice(0, -1) : undefined;
      return forAll(netdevs, (name) => when(start === undefined ? name === value : name.startsWith(start)));
    }
    case '-d': {
      const [address = '', bits] = value.split('/');
      return forAll(addresses, (own) => isWithin(own, address, Number(bits ?? (family === 'ip' ? 32 : 128))));
    }
    case '--dport':
    case '--dports': {
      const isIn = value.split(',').some((part) => {
        const [from, to = from] = part.split(':').map(Number);
        return from! <= ROCE_PORT && ROCE_PORT <= to!;
      });
      return when(isIn);
    }
    // Each side sends from a port of its own, so nothing is ever an answer: all packets are new.
    case '--ctstate':
    case '--state':
      return when(value.split(',').includes('NEW'));
    case '--dst-type':
      return when(value.split(',').includes('LOCAL'));
    case '-s':
    case '--sport':
    case '--sports':
    case '--limit':
      return 'sometimes';
    default:
      return 'unknown';
  }
}
