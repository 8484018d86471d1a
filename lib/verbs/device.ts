import { constants } from 'node:os';
import { integer, typeError } from '../args.ts';
import { RdmaError } from '../errors.ts';
import { named, printed } from '../inspect.ts';
import { verbs } from '../native/binding.ts';
import { type ForkStatus, NodeType, PortState, TransportType } from '../native/constants.gen.ts';
import { Context } from './context.ts';
import { nodeTypeStr } from './text.ts';

/** An RDMA device of this machine, as `ibv_get_device_list` lists it. */
export interface Device {
  /** Kernel name, such as `'mlx5_0'` or `'rxe0'`. */
  name: string;
  /** Node GUID, as ibv_devinfo prints it. */
  guid: string;
  /** Kernel index, stable until reboot; -1 where it is not known. */
  index: number;
  /** One of `NodeType`. */
  nodeType: number;
  /** One of `TransportType`. */
  transportType: number;
  /** Name of its character device, such as `'uverbs0'`. */
  devName: string;
  /** Its directory in sysfs. */
  ibdevPath: string;
}

const printedDevice = printed<Device>('Device', {
  nodeType: named(NodeType, nodeTypeStr),
  transportType: named(TransportType),
});

/**
 * The RDMA devices of this machine.
 *
 * @returns an empty list when there are none
 * @throws RdmaUnavailableError when libibverbs is missing, or this is not Linux
 * @throws RdmaError ENOSYS when the kernel has no RDMA support
 * @see ibv_get_device_list(3)
 */
export function getDeviceList(): Device[] {
  return verbs().getDeviceList().map(printedDevice);
}

/**
 * Opens a device.
 *
 * @param device - its name, or an entry of `getDeviceList()`. Default: the one that the environment variable
 *   NODE_RDMA_DEVICE names, else the first whose port 1 is active, else the first
 * @throws RdmaUnavailableError as `getDeviceList()`
 * @throws RdmaError ENODEV when there is no such device, with those that there are; EACCES or ENOENT for its device node
 * @see ibv_open_device(3)
 */
export function openDevice(device: string | Device | undefined = process.env.NODE_RDMA_DEVICE || undefined): Context {
  if (device !== undefined) {
    const name = typeof device === 'object' && device !== null ? device.name : device;
    if (typeof name !== 'string') throw typeError('device', "a device's name or an entry of getDeviceList()", device);
    return open(name);
  }
  const devices = getDeviceList();
  let first: Context | undefined;
  let failure: unknown;
  for (const device of devices) {
    try {
      const context = open(device.name);
      if (context.queryPort(1).state === PortState.ACTIVE) {
        first?.close();
        return context;
      }
      if (first) context.close();
      else first = context;
    } catch (error) {
      failure ??= error;
    }
  }
  if (first) return first;
  throw failure ?? new RdmaError('ibv_open_device', constants.errno.ENODEV, 'there is no RDMA device (see diagnose())');
}

function open(name: string): Context {
  try {
    return new Context(verbs().openDevice(name));
  } catch (error) {
    if (!(error instanceof RdmaError)) throw error;
    if (error.code === 'ENODEV') {
      const names = getDeviceList().map((device) => device.name);
      throw error.explained(`no device '${name}'; there ${names.length === 0 ? 'are none' : `is ${names.join(', ')}`}`);
    }
    throw error.explained(`device '${name}'; see diagnose()`);
  }
}

/**
 * A context of a device that is open elsewhere: in another thread of this process, or in a process that has handed its
 * descriptor over. `context.importPd()`, `pd.importMr()` and `context.importDm()` find what was made there, by its
 * `nativeHandle`.
 *
 * @param cmdFd - the `cmdFd` of the other context, or a duplicate; it is duplicated, and stays the caller's
 * @throws RdmaError EBADF, EINVAL or ENODEV when it is no device file; EOPNOTSUPP where the provider, or rdma-core before
 *   31, has no import
 * @see ibv_import_device(3)
 */
export function importDevice(cmdFd: number): Context {
  return new Context(verbs().importDevice(integer(cmdFd, 'cmdFd', 0, 0x7fff_ffff)));
}

/**
 * Whether the memory of regions is safe from a `fork()`. Asked before the first device is opened it may still be
 * `ForkStatus.DISABLED`: `openDevice()` calls `ibv_fork_init()` where the kernel needs it.
 *
 * @see ibv_is_fork_initialized(3)
 */
export function isForkInitialized(): ForkStatus {
  return verbs().isForkInitialized() as ForkStatus;
}
