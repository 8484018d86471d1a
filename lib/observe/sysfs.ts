/** What sysfs tells of RDMA devices, without opening any. */
import { readdirSync, readFileSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import { GidType } from '../native/constants.gen.ts';
import { formatGid, type GidEntry } from '../verbs/gid.ts';

/** The folder of sysfs: the environment variable SYSFS_PATH, as libibverbs has it, else `/sys`. */
export const sysfsFolder = (): string => process.env.SYSFS_PATH || '/sys';

/** Names in a folder, in the order of their numbers; none where there is no such folder. */
export function listFolder(path: string): string[] {
  try {
    return readdirSync(path).sort(new Intl.Collator('en', { numeric: true }).compare);
  } catch {
    return [];
  }
}

/** Text of a file, trimmed; undefined where there is none, or where the kernel has no answer. */
export function readText(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8').trim();
  } catch {
    return undefined;
  }
}

/** A port, as sysfs tells it. */
export interface SysfsPort {
  portNum: number;
  /** Such as `'ACTIVE'`. */
  state: string;
  linkLayer: string;
  /** Its GID table, without empty places. */
  gids: GidEntry[];
}

/** A device, as sysfs tells it. */
export interface SysfsDevice {
  name: string;
  /** Its folder behind all links, of the PCI device that it is; undefined where it is none, as Soft-RoCE. */
  pciPath: string | undefined;
  /** -1 where it is not known. */
  numaNode: number;
  /** Of iWARP, which has no use for GIDs. */
  isIwarp: boolean;
  ports: SysfsPort[];
}

/** The devices of a sysfs. */
export function readSysfsDevices(sysfs: string = sysfsFolder()): SysfsDevice[] {
  const folder = join(sysfs, 'class/infiniband');
  return listFolder(folder).map((name) => {
    const own = join(folder, name);
    const pciPath = realPath(join(own, 'device'));
    return {
      ...{ name, pciPath, numaNode: Number(readText(join(own, 'device/numa_node')) ?? -1) },
      isIwarp: readText(join(own, 'node_type'))?.startsWith('4:') ?? false,
      ports: listFolder(join(own, 'ports')).map((port) => readPort(join(own, 'ports', port), Number(port))),
    };
  });
}

/** Where a link leads in the end; undefined where there is none. */
export function realPath(path: string): string | undefined {
  try {
    return realpathSync(path);
  } catch {
    return undefined;
  }
}

function readPort(path: string, portNum: number): SysfsPort {
  const gids: GidEntry[] = [];
  for (const index of listFolder(join(path, 'gids'))) {
    const hex = (readText(join(path, 'gids', index)) ?? '').replaceAll(':', '');
    // Most of a thousand places are empty, and have no type: each file less counts.
    if (!/^[0-9a-f]{32}$/.test(hex) || /^0+$/.test(hex)) continue;
    const type = readText(join(path, 'gid_attrs/types', index));
    if (type === undefined) continue;
    gids.push({
      ...{ gid: formatGid(Buffer.from(hex, 'hex')), gidIndex: Number(index), portNum },
      gidType: type === 'RoCE v2' ? GidType.ROCE_V2 : isEthernet(path) ? GidType.ROCE_V1 : GidType.IB,
      netdev: readText(join(path, 'gid_attrs/ndevs', index)) || null,
    });
  }
  return {
    ...{ portNum, gids, linkLayer: readText(join(path, 'link_layer')) ?? '' },
    state: readState(path),
  };
}

/** State of a port, such as `'ACTIVE'`: the file says '4: ACTIVE'. */
export const readState = (port: string): string => readText(join(port, 'state'))?.replace(/^\d+: /, '') ?? '';

const isEthernet = (port: string) => readText(join(port, 'link_layer')) === 'Ethernet';
