/** Which NIC is near which GPU, from the PCI tree, in the terms of `nvidia-smi topo`, and what NCCL should be told. */

import { join } from 'node:path';
import { readOptions } from '../args.ts';
import { chooseGid } from '../verbs/gid.ts';
import { listFolder, readSysfsDevices, readText, realPath, type SysfsDevice, sysfsFolder } from './sysfs.ts';

/**
 * How far two PCI devices are apart, nearest first. `'PIX'`: behind one PCIe switch. `'PXB'`: behind several, below one
 * host bridge. `'PHB'`: through a host bridge, that is through the processor. `'NODE'`: through several host bridges of a
 * NUMA node. `'SYS'`: through the link between NUMA nodes.
 */
export type PciDistance = 'PIX' | 'PXB' | 'PHB' | 'NODE' | 'SYS';

const nearest: readonly PciDistance[] = ['PIX', 'PXB', 'PHB', 'NODE', 'SYS'];

/** A GPU or a NIC. */
export interface PciDevice {
  /** `'GPU0'`, in the order of PCI addresses, or the name of the RDMA device. */
  name: string;
  /** Such as `'0000:17:00.0'`. */
  address: string;
  /** -1 where it is not known. */
  numaNode: number;
}

/** A GPU, and how near the NICs are. */
export interface GpuPlacement extends PciDevice {
  /** By the NIC's name. */
  distances: Record<string, PciDistance>;
  /** The NICs that are nearest. */
  best: string[];
}

/** An environment variable for NCCL. */
export interface NcclVariable {
  /** Such as `'NCCL_IB_HCA'`. */
  name: string;
  /** What to set it to. */
  value: string;
  /** Why. */
  reason: string;
}

/** The placement of a machine. */
export interface Topology {
  /** In the order of PCI addresses. */
  gpus: GpuPlacement[];
  /** The RDMA devices that are PCI devices. */
  nics: PciDevice[];
  /** For NCCL, where they can be told. */
  nccl: NcclVariable[];
  /** What else should be known. */
  notes: string[];
}

interface Placed extends PciDevice {
  /** PCI addresses from the host bridge down. */
  chain: string[];
  root: string;
}

/** A path such as `/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0` in parts. */
function place(name: string, path: string, numaNode: number): Placed | undefined {
  const [, root, rest] = /\/(pci[0-9a-f]{4}:[0-9a-f]{2})\/(.*)$/.exec(path) ?? [];
  if (root === undefined) return undefined;
  const chain = rest!.split('/').filter((part) => /^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d$/.test(part));
  const address = chain.at(-1);
  return address === undefined ? undefined : { name, address, numaNode, chain, root };
}

function distance(a: Placed, b: Placed): PciDistance {
  if (a.root !== b.root) return a.numaNode === b.numaNode ? 'NODE' : 'SYS';
  let common = 0;
  while (common < a.chain.length && a.chain[common] === b.chain[common]) common++;
  if (common === 0) return 'PHB';
  // They part at the ports of one switch, or are parts of one card.
  return common >= Math.max(a.chain.length, b.chain.length) - 2 ? 'PIX' : 'PXB';
}

const bare = ({ name, address, numaNode }: Placed): PciDevice => ({ name, address, numaNode });

/**
 * Reads the PCI tree.
 *
 * @param options - `sysfs`: the folder of sysfs; default SYSFS_PATH, else `/sys`
 */
export function readTopology(options: { sysfs?: string } = {}): Topology {
  const { sysfs = sysfsFolder() } = readOptions(options, 'options', ['sysfs']);
  const devices = readSysfsDevices(sysfs);
  const nics = devices.flatMap(({ name, pciPath, numaNode }) => {
    const placed = pciPath === undefined ? undefined : place(name, pciPath, numaNode);
    return placed === undefined ? [] : [placed];
  });
  const gpus = readGpus(sysfs).map((gpu) => {
    const distances = Object.fromEntries(nics.map((nic) => [nic.name, distance(gpu, nic)]));
    const least = nearest.find((term) => Object.values(distances).includes(term));
    const best = nics.map(({ name }) => name).filter((name) => distances[name] === least);
    return { ...bare(gpu), distances, best };
  });
  const notes: string[] = [];
  for (const { name, best, distances } of gpus) {
    const least = best.length === 0 ? undefined : distances[best[0]!];
    if (least === undefined) notes.push(`${name} has no NIC`);
    else if (least === 'SYS' || least === 'NODE' || least === 'PHB') {
      notes.push(`${name}: no NIC behind its PCIe switch; GPUDirect RDMA goes through the processor (${least})`);
    }
  }
  const near = new Set(gpus.flatMap(({ best }) => best));
  const used = devices
    .filter(({ name }) => (near.size > 0 ? near.has(name) : nics.some((nic) => nic.name === name)))
    .filter((device) => !isVirtualFunction(device, devices));
  return { gpus, nics: nics.map(bare), nccl: ncclVariables(sysfs, used, notes), notes };
}

/** Whether it is a virtual function of another one of these: NCCL would use the one link twice. */
function isVirtualFunction({ pciPath }: SysfsDevice, devices: SysfsDevice[]): boolean {
  const physical = pciPath === undefined ? undefined : realPath(join(pciPath, 'physfn'));
  return physical !== undefined && devices.some((other) => other.pciPath === physical);
}

function readGpus(sysfs: string): Placed[] {
  const folder = join(sysfs, 'bus/pci/devices');
  // Addresses are hexadecimal: 34 comes before 3b, which the order of numbers in names would have the other way around.
  const addresses = listFolder(folder).sort();
  const found = addresses.flatMap((address) => {
    // Display controllers: VGA, 3D and others; and what AMD calls processing accelerators. Those on the board itself, of other
    // vendors, are no accelerators.
    const kind = readText(join(folder, address, 'class')) ?? '';
    const isAmd = readText(join(folder, address, 'vendor')) === '0x1002';
    const isGpu = /^0x(0300|0302|0380)/.test(kind) || (isAmd && kind.startsWith('0x1200'));
    const isKnown = ['0x10de', '0x1002', '0x8086'].includes(readText(join(folder, address, 'vendor')) ?? '');
    const path = realPath(join(folder, address));
    if (!isGpu || !isKnown || path === undefined) return [];
    return place('', path, Number(readText(join(folder, address, 'numa_node')) ?? -1)) ?? [];
  });
  return found.map((gpu, i) => ({ ...gpu, name: `GPU${i}` }));
}

function ncclVariables(sysfs: string, devices: SysfsDevice[], notes: string[]): NcclVariable[] {
  const active = devices.flatMap(({ name, ports }) =>
    ports.filter(({ state }) => state === 'ACTIVE').map((port) => ({ name, ...port })),
  );
  if (active.length === 0) return [];
  const variables: NcclVariable[] = [
    {
      name: 'NCCL_IB_HCA',
      // With = a name matches as a whole, and mlx5_1 not mlx5_10.
      value: `=${active.map(({ name, portNum }) => `${name}:${portNum}`).join(',')}`,
      reason: 'the active ports that are nearest to the GPUs, without virtual functions of the same cards',
    },
  ];
  const roce = active.filter(({ linkLayer }) => linkLayer === 'Ethernet');
  const chosen = roce.map(({ gids }) => chooseGid(gids));
  const indices = new Set(chosen.map((entry) => entry?.gidIndex));
  const [index] = indices;
  if (roce.length > 0 && indices.size === 1 && index !== undefined) {
    const reason = `RoCE v2 of ${chosen[0]!.gid}; NCCL 2.21 and later finds it by itself`;
    variables.push({ name: 'NCCL_IB_GID_INDEX', value: String(index), reason });
  } else if (roce.length > 0) {
    notes.push('The GID to use has another index on each port: leave NCCL_IB_GID_INDEX unset (NCCL 2.21 and later)');
  }
  const classes = new Set(roce.map(({ name, portNum }) => trafficClass(sysfs, name, portNum)));
  const [value] = classes;
  if (roce.length > 0 && classes.size === 1 && value !== undefined) {
    variables.push({ name: 'NCCL_IB_TC', value, reason: 'the traffic class that the driver is set to' });
  } else if (roce.length > 0) {
    notes.push(
      'NCCL_IB_TC: set it to the DSCP of the lossless priority, times 4; DSCP 26 is NCCL_IB_TC=106 with ECN bits',
    );
  }
  return variables;
}

/** What mlx5 was told to use, if anything: `Global tclass=106`. */
function trafficClass(sysfs: string, name: string, portNum: number): string | undefined {
  const text = readText(join(sysfs, 'class/infiniband', name, 'tc', String(portNum), 'traffic_class'));
  return /tclass=(\d+)/.exec(text ?? '')?.[1];
}
