/** Whether the firewall drops RoCE. */
import type { Finding } from '../diagnose.ts';
import type { GidEntry } from '../verbs/gid.ts';
import { iptablesChain } from './iptables.ts';
import { nftChains, parseRuleset } from './nftables.ts';
import { type BaseChain, drops, packetsTo, ROCE_PORT } from './packet-rules.ts';
import { output } from './program.ts';

/**
 * Looks at what packets of RoCE v2 pass on their way in: chains of nftables at `input` and `prerouting`, and INPUT of iptables.
 *
 * @param gids - where the packets are sent to
 */
export async function firewallFinding(gids: readonly GidEntry[]): Promise<Finding> {
  const nft = parseRuleset(await output('nft', '-j', 'list', 'ruleset'));
  const chains: BaseChain[] = [];
  let isSeen = nft !== undefined;
  let isOdd = false;
  for (const packets of packetsTo(gids)) {
    const program = packets.family === 'ip' ? 'iptables' : 'ip6tables';
    const rules = await output(program, '-S');
    // Its table is in nftables too; some of its rules only it can read.
    const isNft = rules !== undefined && (await output(program, '--version'))?.includes('nf_tables');
    if (rules !== undefined) {
      isSeen = true;
      chains.push(iptablesChain(program, rules, packets));
    }
    if (nft === undefined) continue;
    try {
      const isElsewhere = (family: string, table: string) => isNft === true && family !== 'inet' && table === 'filter';
      chains.push(...nftChains(nft, packets, isElsewhere));
    } catch {
      // What another version of nft may print.
      isOdd = true;
    }
  }
  const port = `UDP port ${ROCE_PORT}`;
  const needs = 'which Soft-RoCE needs (a RoCE NIC bypasses the firewall)';
  const find = (match: string) => chains.find((chain) => drops(chain) === match);
  const dropping = find('always');
  if (dropping !== undefined) return warning(`${dropping.title} drops ${port}, ${needs}`, dropping.fix);
  const some = find('sometimes');
  if (some !== undefined) {
    const detail = `${some.title} may drop ${port}, ${needs}: it depends on where packets come from, or how many`;
    return warning(detail, some.fix);
  }
  const unclear = find('unknown');
  if (unclear !== undefined) {
    const { title, fix } = unclear;
    return ok(`whether ${title} drops ${port} cannot be told; if Soft-RoCE gets no packets: ${fix}`);
  }
  if (isOdd)
    return ok(`whether nftables drops ${port} cannot be told: what "nft -j list ruleset" prints is not understood`);
  if (!isSeen) return ok('could not be seen: neither nft nor iptables answers; run as root');
  return ok(
    `nothing that drops ${port} was found${nft === undefined ? ' in iptables; nftables could not be seen' : ''}`,
  );
}

const name = 'firewall';
const ok = (detail: string): Finding => ({ name, ok: true, level: 'ok', detail });
const warning = (detail: string, fix: string): Finding => ({ name, ok: false, level: 'warning', detail, fix });
