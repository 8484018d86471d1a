/** Counters of RDMA ports and of their network interfaces: sysfs, and what ethtool adds. Reads files; loads no addon. */
import { join } from 'node:path';
import { readOptions, string } from '../args.ts';
import { type CounterMeaning, counterMeaning } from './meanings.ts';
import { output } from './program.ts';
import { listFolder, readText, sysfsFolder } from './sysfs.ts';

/**
 * Where a counter is from. `'hw'`: hw_counters of the port or of the device, which `rdma statistic` shows. `'port'`:
 * counters of the port. `'ethtool'`: `ethtool -S` of the network interface, where pause frames and priorities are.
 */
export type CounterSource = 'hw' | 'port' | 'ethtool';

/** A counter and its value. */
export interface Counter {
  /** As the kernel or the driver calls it. */
  name: string;
  /** Where it is from. */
  source: CounterSource;
  /** 64 bits. */
  value: bigint;
  /** What it means; undefined where that is not known here. */
  meaning: CounterMeaning | undefined;
}

/** The counters of a port at one moment. */
export interface PortCounters {
  /** The device's name. */
  device: string;
  /** From 1. */
  portNum: number;
  /** Its network interface; undefined for InfiniBand. */
  netdev: string | undefined;
  /** The kernel's driver, such as `'mlx5_core'`; undefined for one that has no device behind it, such as rxe. */
  driver: string | undefined;
  /** When they were read, in milliseconds of a clock that does not jump. */
  time: number;
  /** In the order of the sources. */
  counters: Counter[];
}

/** What to read. */
export interface ReadCountersOptions {
  /** Only this device. Default all. */
  device?: string;
  /** The folder of sysfs. Default: the environment variable SYSFS_PATH, as libibverbs has it, else `/sys`. */
  sysfs?: string;
  /** Whether to run `ethtool -S`. Default true; where it is not installed its counters are missing. */
  ethtool?: boolean;
}

const known = ['device', 'sysfs', 'ethtool'];

/**
 * Reads all counters that there are.
 *
 * @param options - which, and from where
 * @returns a snapshot for each port; none where there is no device
 */
export async function readCounters(options: ReadCountersOptions = {}): Promise<PortCounters[]> {
  const { device, sysfs = sysfsFolder(), ethtool = true } = readOptions(options, 'options', known);
  const folder = join(sysfs, 'class/infiniband');
  const devices = listFolder(folder).filter((name) => device === undefined || name === device);
  const ports = devices.flatMap((name) => listFolder(join(folder, name, 'ports')).map((port) => ({ name, port })));
  return Promise.all(
    ports.map(async ({ name, port }) => {
      const own = join(folder, name);
      const path = join(own, 'ports', port);
      const netdev = readNetdev(own, path);
      const counters = [
        ...readFolder(join(own, 'hw_counters'), 'hw'),
        ...readFolder(join(path, 'hw_counters'), 'hw'),
        ...readFolder(join(path, 'counters'), 'port'),
      ];
      if (netdev !== undefined && ethtool) counters.push(...(await readEthtool(netdev)));
      const driver = /^DRIVER=(.+)$/m.exec(readText(join(own, 'device/uevent')) ?? '')?.[1];
      return { device: name, portNum: Number(port), netdev, driver, time: performance.now(), counters };
    }),
  );
}

/** The interface of a port: that of its GIDs, else that of its device. */
function readNetdev(device: string, port: string): string | undefined {
  for (const index of listFolder(join(port, 'gid_attrs/ndevs'))) {
    const name = readText(join(port, 'gid_attrs/ndevs', index));
    if (name) return name;
  }
  return readText(join(device, 'parent')) || listFolder(join(device, 'device/net'))[0];
}

function readFolder(path: string, source: CounterSource): Counter[] {
  const counters: Counter[] = [];
  for (const name of listFolder(path)) {
    // How long the kernel keeps the others: a setting.
    if (name === 'lifespan') continue;
    const text = readText(join(path, name));
    if (text !== undefined && /^\d+$/.test(text)) counters.push(counter(name, source, text));
  }
  return counters;
}

const counter = (name: string, source: CounterSource, text: string): Counter => ({
  ...{ name, source, value: BigInt(text) },
  meaning: counterMeaning(name),
});

// None where it is not installed, of an interface without statistics, or of a driver that does not answer.
const readEthtool = async (netdev: string) => parseEthtool((await output('ethtool', '-S', netdev)) ?? '');

/**
 * Reads what `ethtool -S` prints, without the counters of single rings and queues.
 *
 * @param text - its output
 */
export function parseEthtool(text: string): Counter[] {
  const counters: Counter[] = [];
  for (const [, name, value] of string(text, 'text').matchAll(/^\s+([^:\n]+): (\d+)$/gm)) {
    if (!/^((rx|tx|ch)\d|[rt]x_?queue_?\d|\[)/.test(name!)) counters.push(counter(name!, 'ethtool', value!));
  }
  return counters;
}
