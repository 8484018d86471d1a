/** The MTU of RDMA, bytes of data in a packet, against that of the network interface below, bytes of an IP packet. */
import type { Finding } from '../diagnose.ts';
import { openDevice } from '../verbs/device.ts';

/** Bytes of data in a packet of a port: now, and at best. */
export interface PortMtus {
  active: number;
  max: number;
}

/** Asks a port, for which its device is opened; undefined where that cannot be done, as without libibverbs. */
export function readMtus(device: string, portNum: number): PortMtus | undefined {
  try {
    const context = openDevice(device);
    try {
      const { activeMtu, maxMtu } = context.queryPort(portNum);
      return { active: 128 << activeMtu, max: 128 << maxMtu };
    } finally {
      context.close();
    }
  } catch {
    return undefined;
  }
}

// UDP, BTH, RETH, immediate and ICRC of a write with an immediate: no packet with data has more.
const HEADERS = 8 + 12 + 16 + 4 + 4;
// Drivers leave more or less: iboe_get_mtu of the kernel this, rxe 80.
const RESERVED = 96;
const LARGEST = 4096;
// What it takes to get 4096 from every driver, as vendors round it.
const AMPLE = 4200;

/**
 * Whether a port's packets fit its network interface, and are as large as can be.
 *
 * @param title - of the port
 * @param netdev - the network interface
 * @param isIpv4 - whether packets go over IPv4, which has the smaller header
 * @param port - what the port said; undefined where it could not be asked
 */
export function mtuFinding(
  title: string,
  netdev: { name: string; mtu: number },
  isIpv4: boolean,
  port: PortMtus | undefined,
): Finding {
  const { name, mtu } = netdev;
  const finding = (level: 'ok' | 'warning', detail: string, fix?: number): Finding => ({
    ...{ name: `${title} MTU`, ok: level === 'ok', level, detail },
    ...(fix !== undefined && { fix: `ip link set ${name} mtu ${fix}` }),
  });
  const fitting = [4096, 2048, 1024, 512].find((size) => size + RESERVED <= mtu) ?? 256;
  const active = port?.active ?? fitting;
  const whole = active + HEADERS + (isIpv4 ? 20 : 40);
  if (port !== undefined && whole > mtu) {
    return finding(
      'warning',
      `${name} has ${mtu}, but packets of RDMA carry ${active} bytes, up to ${whole} with headers: large ones may be dropped, or fragmented`,
      active + AMPLE - LARGEST,
    );
  }
  const reckoned = port === undefined ? ' by reckoning: the port could not be asked' : '';
  const detail = `${name} has ${mtu}, so packets of RDMA carry ${active} bytes${reckoned}`;
  if (active === LARGEST) return finding('ok', detail);
  if (active === port?.max) return finding('ok', `${detail}, the most that the port can`);
  // Small packets cost speed and nothing else; all of a network must agree.
  if (mtu < AMPLE) return finding('warning', `${detail}; 4096 need 4200 on all hosts and switches`, AMPLE);
  return finding(
    'warning',
    `${name} has ${mtu}, which has room for ${fitting}, yet packets of RDMA carry ${active} bytes`,
  );
}
