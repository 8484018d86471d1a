/** Everything that commonly goes wrong: what `diagnose()` finds, and what the ports and the network around them tell. */
import { join } from 'node:path';
import { type Diagnosis, diagnose, type Finding } from '../diagnose.ts';
import { GidType } from '../native/constants.gen.ts';
import { chooseGid, gidReason } from '../verbs/gid.ts';
import { firewallFinding } from './firewall.ts';
import { mtuFinding, readMtus } from './mtu.ts';
import { isMapped } from './packet-rules.ts';
import { output } from './program.ts';
import { readSysfsDevices, readText, type SysfsPort, sysfsFolder } from './sysfs.ts';

const ok = (name: string, detail: string): Finding => ({ name, ok: true, level: 'ok', detail });
const warning = (name: string, detail: string, fix?: string): Finding => ({
  ...{ name, ok: false, level: 'warning', detail },
  ...(fix !== undefined && { fix }),
});

/**
 * Looks at everything: what `diagnose()` looks at, and of each port its state, its GIDs and which would be chosen, its MTU against that
 * of its network interface, PFC and ECN where they can be seen; the network namespaces of RDMA, and the firewall. Devices are opened for
 * a moment, where that can be done.
 *
 * @returns the findings, in the order in which things build on each other
 */
export async function examine(): Promise<Diagnosis> {
  const { findings } = diagnose();
  const ports = readSysfsDevices().flatMap(({ name, isIwarp, ports }) =>
    ports.map((port) => ({ device: name, isIwarp, port })),
  );
  for (const { device, isIwarp, port } of ports)
    findings.push(...portFindings(device, isIwarp, port), ...(await qosFindings(device, port)));
  if (ports.length > 0) findings.push(...namespaceFindings());
  const roce = ports.filter(({ isIwarp, port }) => isRoce(isIwarp, port));
  const chosen = roce.flatMap(({ port }) => chooseGid(port.gids) ?? []);
  if (roce.length > 0)
    findings.push(await firewallFinding(chosen.filter(({ gidType }) => gidType === GidType.ROCE_V2)));
  return { ok: !findings.some(({ level }) => level === 'error'), findings };
}

const isRoce = (isIwarp: boolean, port: SysfsPort) => !isIwarp && port.linkLayer === 'Ethernet';

function portFindings(device: string, isIwarp: boolean, port: SysfsPort): Finding[] {
  const title = `${device}/${port.portNum}`;
  const netdev = port.gids.find((entry) => entry.netdev !== null)?.netdev;
  const findings: Finding[] = [];
  if (port.state === 'ACTIVE') findings.push(ok(`${title} link`, `ACTIVE, ${port.linkLayer}`));
  else {
    const fix = netdev == null ? undefined : `ip link set ${netdev} up`;
    findings.push(
      warning(`${title} link`, `${port.state}: nothing can be sent; look at the cable, and the interface`, fix),
    );
  }
  if (isIwarp) findings.push(ok(`${title} addresses`, 'iWARP: those of its network interface; GIDs play no part'));
  if (!isRoce(isIwarp, port)) return findings;
  const chosen = chooseGid(port.gids);
  if (chosen === undefined) {
    findings.push(
      warning(
        `${title} GIDs`,
        'none: the network interface has no address',
        'ip address add ADDRESS/PREFIX dev INTERFACE',
      ),
    );
  } else {
    const detail = `${port.gids.length}; index ${chosen.gidIndex} (${chosen.gid}) would be chosen: ${gidReason(port.gids, chosen)}`;
    const isRoutable = !chosen.gid.startsWith('fe80:');
    findings.push(
      isRoutable
        ? ok(`${title} GIDs`, detail)
        : warning(
            `${title} GIDs`,
            `${detail}. It reaches no other subnet`,
            `ip address add ADDRESS/PREFIX dev ${netdev ?? 'INTERFACE'}`,
          ),
    );
  }
  const used = chosen?.netdev ?? netdev;
  const mtu = used == null ? 0 : Number(readText(join(sysfsFolder(), 'class/net', used, 'mtu')));
  if (used != null && mtu > 0) {
    const isIpv4 = chosen !== undefined && isMapped(chosen.gid);
    findings.push(mtuFinding(title, { name: used, mtu }, isIpv4, readMtus(device, port.portNum)));
  }
  return findings;
}

async function qosFindings(device: string, port: SysfsPort): Promise<Finding[]> {
  const netdev = port.gids.find((entry) => entry.netdev !== null)?.netdev;
  if (netdev == null) return [];
  const title = `${device}/${port.portNum}`;
  const findings: Finding[] = [];
  const pfc = await output('dcb', 'pfc', 'show', 'dev', netdev);
  const priorities = /prio-pfc (.*)/.exec(pfc ?? '')?.[1];
  if (priorities !== undefined) {
    const on = [...priorities.matchAll(/(\d):on/g)].map(([, priority]) => priority);
    findings.push(
      on.length === 0
        ? warning(
            `${title} PFC`,
            'off for all priorities: bursts are dropped',
            `dcb pfc set dev ${netdev} prio-pfc 3:on`,
          )
        : ok(`${title} PFC`, `on for priority ${on.join(', ')}; the switch must have the same`),
    );
  }
  const folder = join(sysfsFolder(), 'class/net', netdev, 'ecn');
  for (const [part, role] of [
    ['roce_rp', 'sender (reaction point)'],
    ['roce_np', 'receiver (notification point)'],
  ] as const) {
    const states = Array.from({ length: 8 }, (_, priority) => readText(join(folder, part, 'enable', String(priority))));
    if (states.every((state) => state === undefined)) continue;
    const on = states.flatMap((state, priority) => (state === '1' ? [priority] : []));
    const fix = `echo 1 > ${join(folder, part, 'enable/3')}`;
    findings.push(
      on.length === 0
        ? warning(`${title} ECN`, `congestion control is off for the ${role}`, fix)
        : ok(`${title} ECN`, `on for the ${role}, priority ${on.join(', ')}`),
    );
  }
  return findings;
}

function namespaceFindings(): Finding[] {
  const mode = readText(join(sysfsFolder(), 'module/ib_core/parameters/netns_mode'));
  if (mode === undefined) return [];
  if (mode === 'Y') return [ok('network namespaces', 'shared: devices are seen from all')];
  return [
    ok(
      'network namespaces',
      'exclusive: a device is seen from its own only ("rdma dev set NAME netns NETNS" moves it)',
    ),
  ];
}
