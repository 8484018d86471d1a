/** Soft-RoCE links: listed from sysfs, added and removed by the program `rdma` of iproute2, after checks. */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { string, valueError } from '../args.ts';
import { RdmaUnavailableError } from '../errors.ts';
import { toolEnv } from './program.ts';
import { listFolder, readState, readText, sysfsFolder } from './sysfs.ts';

/** A Soft-RoCE device. */
export interface SoftRoceLink {
  /** Of the device. */
  name: string;
  /** Its network interface. */
  netdev: string;
  /** Such as `'ACTIVE'`. */
  state: string;
}

const run = promisify(execFile);

/** Why a link cannot be added or removed, with the line to type where there is one. */
function failure(message: string): Error {
  return Object.assign(new Error(message), { code: 'ERR_SOFT_ROCE' });
}

const devicesFolder = () => join(sysfsFolder(), 'class/infiniband');

/** The Soft-RoCE devices. */
export function listSoftRoce(): SoftRoceLink[] {
  return listFolder(devicesFolder()).flatMap((name) => {
    const folder = join(devicesFolder(), name);
    // Only rxe has this file.
    const netdev = readText(join(folder, 'parent'));
    return netdev ? [{ name, netdev, state: readState(join(folder, 'ports/1')) }] : [];
  });
}

async function execute(program: string, args: string[]): Promise<void> {
  try {
    await run(program, args, { env: toolEnv() });
  } catch (error) {
    const { code, stderr = '' } = error as { code?: string | number; stderr?: string };
    if (code === 'ENOENT') throw new RdmaUnavailableError(`no program ${program}: apt-get install -y iproute2 kmod`);
    const why = stderr.trim().split('\n').at(-1) || `exit code ${code}`;
    const hint = /not permitted|EPERM/.test(why) ? '; it takes root' : '';
    throw failure(`${program} ${args.join(' ')}: ${why}${hint}`);
  }
}

/**
 * Adds a Soft-RoCE device to a network interface.
 *
 * @param netdev - the interface
 * @param name - of the device. Default: the first of rxe0, rxe1, ... that is free
 * @returns the link
 * @throws Error `ERR_SOFT_ROCE` saying what is in the way: no such interface, a VLAN interface, a link that exists, no right to
 *   do it; {@link RdmaUnavailableError} for a kernel without the module, or a machine without the programs
 */
export async function addSoftRoce(netdev: string, name?: string): Promise<SoftRoceLink> {
  string(netdev, 'netdev');
  if (name !== undefined && !/^[\w.:@][\w.:@-]*$/.test(string(name, 'name'))) {
    throw valueError(`'${name}' is no name of a device`);
  }
  const sysfs = sysfsFolder();
  const folder = join(sysfs, 'class/net', netdev);
  if (!/^[\w.:@-]+$/.test(netdev) || !existsSync(folder))
    throw failure(`no network interface ${netdev}: see "ip link"`);
  if (/^DEVTYPE=vlan$/m.test(readText(join(folder, 'uevent')) ?? '')) {
    throw failure(`${netdev} is a VLAN interface, which Soft-RoCE refuses: add it to the interface below`);
  }
  const existing = listSoftRoce().find((link) => link.netdev === netdev);
  if (existing !== undefined) throw failure(`${netdev} has ${existing.name} already`);
  const taken = new Set(listFolder(devicesFolder()));
  if (name !== undefined && taken.has(name)) throw failure(`there is a device ${name} already`);
  let free = name;
  for (let i = 0; free === undefined; i++) if (!taken.has(`rxe${i}`)) free = `rxe${i}`;
  if (!existsSync(join(sysfs, 'module/rdma_rxe'))) {
    try {
      await execute('modprobe', ['rdma_rxe']);
    } catch (error) {
      const { message } = error as Error;
      if (/not permitted/.test(message)) throw error;
      throw new RdmaUnavailableError(`${message}; a kernel without it cannot do this: try "node-rdma vm"`);
    }
  }
  await execute('rdma', ['link', 'add', free, 'type', 'rxe', 'netdev', netdev]);
  return listSoftRoce().find((link) => link.name === free) ?? { name: free, netdev, state: '' };
}

/**
 * Removes a Soft-RoCE device. The kernel waits for programs that have it open.
 *
 * @param which - name of the device, or of its network interface
 * @returns the link that was
 * @throws Error `ERR_SOFT_ROCE` when there is none, or it is no Soft-RoCE
 */
export async function removeSoftRoce(which: string): Promise<SoftRoceLink> {
  string(which, 'which');
  const link = listSoftRoce().find(({ name, netdev }) => name === which || netdev === which);
  if (link === undefined) {
    const isOther = listFolder(devicesFolder()).includes(which);
    throw failure(isOther ? `${which} is no Soft-RoCE` : `no Soft-RoCE ${which}: see "node-rdma softroce list"`);
  }
  await execute('rdma', ['link', 'delete', link.name]);
  return link;
}
