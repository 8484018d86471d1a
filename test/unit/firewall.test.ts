/**
 * What the firewall does with RoCE: on rulesets as nft 1.0.6 and iptables 1.8.9 (nf_tables) print them, made in a network namespace; those
 * of firewalld have its shape, those of ufw are from its files. A datagram to port 4791 from 10.99.0.2 arrived with each that "lets", and
 * with none that "drops".
 */
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { GidType } from '../../lib/native/constants.gen.ts';
import { firewallFinding } from '../../lib/observe/firewall.ts';
import type { GidEntry } from '../../lib/verbs/gid.ts';

const samples: { name: string; nft: object; iptables?: string[] }[] = JSON.parse(
  readFileSync(new URL('../fixtures/firewalls.json', import.meta.url), 'utf8'),
);

const v4: GidEntry = {
  ...{ gid: '::ffff:10.99.0.1', gidIndex: 3, portNum: 1 },
  ...{ gidType: GidType.ROCE_V2, netdev: 'ens1' },
};
const v6 = { ...v4, gid: 'fd00::1' };

const folder = mkdtempSync(join(tmpdir(), 'node-rdma-firewall-'));
const { PATH } = process.env;
beforeAll(() => {
  process.env.PATH = `${folder}:${PATH}`;
});
afterAll(() => {
  process.env.PATH = PATH;
  rmSync(folder, { recursive: true });
});

/** A program that prints a text, or fails where it has none; asked for its version it prints that of iptables. */
function program(name: string, text: string | undefined, version = 'v1.8.9 (nf_tables)'): void {
  writeFileSync(join(folder, `${name}.txt`), text ?? '');
  const show = text === undefined ? 'exit 1' : `cat '${folder}/${name}.txt'`;
  const script = `case "$1" in --version) echo "${name} ${version}" ;; *) ${show} ;; esac`;
  writeFileSync(join(folder, name), `#!/bin/sh\n${script}\n`);
  chmodSync(join(folder, name), 0o755);
}

beforeEach(() => {
  for (const name of ['nft', 'iptables', 'ip6tables']) program(name, undefined);
});

function load(name: string): void {
  const { nft, iptables } = samples.find((sample) => sample.name === name)!;
  program('nft', JSON.stringify(nft));
  program('iptables', iptables?.join('\n'));
}

const inputFix = 'nft insert rule inet filter input udp dport 4791 accept';
const iptablesFix = 'iptables -I INPUT -p udp --dport 4791 -j ACCEPT';
const [drops, may, unclear, lets] = ['drops UDP port 4791', 'may drop', 'cannot be told', 'nothing that drops'];

describe('the firewall', () => {
  const chain = { family: 'inet', table: 't', name: 'c', type: 'filter', hook: 'input' };
  it.each([[5], [[null]], [[{ chain }, { rule: { family: 'inet', table: 't', chain: 'c' } }]]])(
    'cannot be told by what is no ruleset: %j',
    async (nftables) => {
      program('nft', JSON.stringify({ nftables }));
      expect(await firewallFinding([v4])).toMatchObject({ level: 'ok', detail: expect.stringContaining(unclear) });
    },
  );

  it('is followed through chains that many rules jump to', async () => {
    const jumps = (from: string, to: string) => Array(20).fill(`-A ${from} -s 10.0.0.0/8 -j ${to}`);
    const names = ['INPUT', ...Array.from({ length: 14 }, (_, i) => `C${i}`)];
    const rules = names.slice(1).flatMap((name, i) => jumps(names[i]!, name));
    const last = '-A C13 -p udp --dport 4791 -j DROP';
    program('iptables', ['-P INPUT ACCEPT', ...names.slice(1).map((name) => `-N ${name}`), ...rules, last].join('\n'));
    expect(await firewallFinding([v4])).toMatchObject({ level: 'warning', detail: expect.stringContaining(may) });
  });

  it.each([
    ['policy drop', drops, inputFix],
    ['a rule that drops the port', drops, inputFix],
    ['a rule that rejects a set with the port', drops, inputFix],
    ['policy drop, and the port accepted', lets],
    ['policy drop, and a range accepted', lets],
    ['policy drop, and a set accepted', lets],
    ['policy drop, and a named set accepted', lets],
    ['policy drop, and a named set without the port', drops, inputFix],
    ['policy drop, and a verdict map', lets],
    ['a named verdict map that drops', drops, inputFix],
    ['states by a verdict map, then reject', drops, inputFix],
    ['other ports accepted, the rest dropped', drops, inputFix],
    ['high ports accepted', lets],
    ['any transport header', lets],
    ['accepted before dropped', lets],
    ['accepted from a network', may, inputFix],
    ['accepted at its interface', lets],
    ['accepted at interfaces by a pattern', lets],
    ['accepted at another interface', drops, inputFix],
    ['dropped at others than lo', drops, inputFix],
    ['dropped above a rate', may, inputFix],
    ['accepted by address and port together', unclear],
    ['accepted at its address', lets],
    ['multicast and other addresses dropped', lets],
    ['a rule of IPv6', lets],
    ['a rule of a mark', may, inputFix],
    ['a jump to a chain that accepts', lets],
    ['a jump to a chain that returns', drops, inputFix],
    ['a goto to a chain that ends', drops, inputFix],
    ['output and forward drop', lets],
    ['dropped before routing', drops, 'nft insert rule ip raw pre udp dport 4791 accept'],
    ['another family', lets],
    ['no rules', lets],
    ['as firewalld', drops, 'firewall-cmd --add-port=4791/udp'],
    ['as firewalld, with the port', lets],
    ['iptables: policy drop', drops, iptablesFix],
    ['iptables: the port accepted', lets],
    ['iptables: the port dropped', drops, iptablesFix],
    ['iptables: a range rejected', drops, iptablesFix],
    ['iptables: several ports accepted', lets],
    ['iptables: other ports accepted', drops, iptablesFix],
    ['iptables: accepted from a network', may, iptablesFix],
    ['iptables: accepted at its interface', lets],
    ['iptables: accepted at its address', lets],
    ['iptables: a condition that is not known', unclear],
    ['iptables: a goto to a chain that returns', lets],
    ['iptables: a program decides', unclear],
    ['iptables: Docker', lets],
    ['iptables: ufw', drops, 'ufw allow 4791/udp'],
    ['iptables: ufw, with the port', lets],
  ])('%s: %s', async (name, detail, fix?: string) => {
    load(name);
    const finding = await firewallFinding([v4]);
    expect(finding.detail).toContain(detail);
    expect(finding.fix).toBe(fix);
    expect(finding.level).toBe(fix === undefined ? 'ok' : 'warning');
  });

  it('is looked at for IPv6 where the GID is of that', async () => {
    load('another family');
    expect(await firewallFinding([v6])).toMatchObject({
      level: 'warning',
      fix: 'nft insert rule ip6 filter input udp dport 4791 accept',
    });
    load('as firewalld, with the port');
    expect(await firewallFinding([v4, v6])).toMatchObject({ level: 'ok' });
    program('ip6tables', '-P INPUT DROP\n-A INPUT -d fd00::/64 -p udp -j ACCEPT');
    expect(await firewallFinding([v4, v6])).toMatchObject({ level: 'ok' });
    program('ip6tables', '-P INPUT DROP\n-A INPUT -p icmpv6 -j ACCEPT');
    expect(await firewallFinding([v4, v6])).toMatchObject({
      detail: expect.stringContaining('chain INPUT of ip6tables drops'),
      fix: 'ip6tables -I INPUT -p udp --dport 4791 -j ACCEPT',
    });
  });

  it('has rules of iptables that nftables does not know of', async () => {
    load('no rules');
    program('iptables', '-P INPUT DROP', 'v1.8.9 (legacy)');
    expect(await firewallFinding([v4])).toMatchObject({ level: 'warning', fix: iptablesFix });
    load('policy drop');
    program('iptables', '-P INPUT ACCEPT', 'v1.8.9 (legacy)');
    expect(await firewallFinding([v4])).toMatchObject({ level: 'warning', fix: inputFix });
  });

  it('has rules of iptables that only iptables can read', async () => {
    load('iptables: several ports accepted');
    program('iptables', undefined);
    expect(await firewallFinding([v4])).toMatchObject({
      level: 'ok',
      detail:
        "whether chain INPUT of nftables' table ip filter drops UDP port 4791 cannot be told; if Soft-RoCE gets no packets: nft insert rule ip filter INPUT udp dport 4791 accept",
    });
  });

  it('may be seen in part', async () => {
    program('nft', 'Error: JSON support not compiled-in');
    program('iptables', '-P INPUT ACCEPT');
    expect(await firewallFinding([v4])).toMatchObject({
      level: 'ok',
      detail: 'nothing that drops UDP port 4791 was found in iptables; nftables could not be seen',
    });
  });

  it('is not guessed at where there is no address yet', async () => {
    load('accepted at its interface');
    expect(await firewallFinding([])).toMatchObject({ level: 'warning', detail: expect.stringContaining('may drop') });
    load('policy drop');
    expect(await firewallFinding([])).toMatchObject({ level: 'warning', detail: expect.stringContaining('drops UDP') });
  });

  it('says so, without alarm, where it cannot be seen', async () => {
    expect(await firewallFinding([v4])).toEqual({
      ...{ name: 'firewall', ok: true, level: 'ok' },
      detail: 'could not be seen: neither nft nor iptables answers; run as root',
    });
  });
});
