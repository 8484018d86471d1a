import { constants } from 'node:os';
import { environmentNumber, integer, readOptions, string } from '../args.ts';
import { RdmaError } from '../errors.ts';
import { binding, verbs } from '../native/binding.ts';
import type { ContextHandle, NativeContext, NativeGidEntry } from '../native/native.ts';
import {
  type DeviceAttr,
  type DeviceAttrEx,
  type PortAttr,
  printedDeviceAttr,
  printedDeviceAttrEx,
  printedPortAttr,
  printedRtValues,
  type RtValues,
} from './device-attributes.ts';
import { chooseGid, formatGid, type GidEntry, printedGidEntry } from './gid.ts';
import { explainPort } from './limits.ts';
import { Resource } from './resource.ts';
import { sysfsGidTable } from './sysfs-gid-table.ts';

/** What an open device can be asked: its attributes, those of its ports, their tables. A `Context` is one. */
export abstract class DeviceQueries extends Resource {
  /** The device's name. */
  readonly name: string;
  /** One of `TransportType`: what it speaks, InfiniBand (and RoCE) or iWARP. */
  readonly transportType: number;
  /** @internal */
  readonly handle: ContextHandle;

  /** @internal */
  constructor({ name, transportType, handle }: NativeContext) {
    super([]);
    this.name = name;
    this.transportType = transportType;
    this.handle = handle;
  }

  /** Attributes and limits of the device. @see ibv_query_device(3) */
  queryDevice(): DeviceAttr {
    this.requireOpen();
    return printedDeviceAttr(binding().queryDevice(this.handle) as unknown as DeviceAttr);
  }

  /**
   * Attributes of the device that came later; those that it, its driver or its library does not tell are 0.
   *
   * @see ibv_query_device_ex(3)
   */
  queryDeviceEx(): DeviceAttrEx {
    this.requireOpen();
    const attr = binding().queryDeviceEx(this.handle) as unknown as DeviceAttrEx;
    printedDeviceAttr(attr.origAttr);
    return printedDeviceAttrEx(attr);
  }

  /**
   * Real-time values of the device: its clock, now.
   *
   * @throws RdmaError EOPNOTSUPP when it has no clock to read
   * @see ibv_query_rt_values_ex(3)
   */
  queryRtValues(): RtValues {
    this.requireOpen();
    return printedRtValues(binding().queryRtValues(this.handle));
  }

  /**
   * Attributes of a port.
   *
   * @param portNum - from 1
   * @throws RdmaError EINVAL when there is no such port
   * @see ibv_query_port(3)
   */
  queryPort(portNum: number): PortAttr {
    const native = this.#atPort(portNum, () => binding().queryPort(this.handle, portNum));
    return printedPortAttr(native as unknown as PortAttr);
  }

  /**
   * A GID by its index.
   *
   * @param portNum - from 1
   * @param gidIndex - from 0
   * @returns in the notation of IPv6; `'::'` for an empty place
   * @throws RdmaError when there is no such port or place
   * @see ibv_query_gid(3)
   */
  queryGid(portNum: number, gidIndex: number): string {
    const index = integer(gidIndex, 'gidIndex', 0, 0x7fff_ffff);
    return formatGid(this.#atPort(portNum, () => binding().queryGid(this.handle, portNum, index)));
  }

  /**
   * The GID tables of all ports, without their empty places.
   *
   * @see ibv_query_gid_table(3)
   */
  queryGidTable(): GidEntry[] {
    this.requireOpen();
    const ports = Array.from({ length: this.queryDevice().physPortCnt }, (_, i) => i + 1);
    const places = ports.reduce((sum, port) => sum + this.queryPort(port).gidTblLen, 0);
    let entries: NativeGidEntry[];
    try {
      entries = binding().queryGidTable(this.handle, places);
    } catch (error) {
      if (!(error instanceof RdmaError && error.code === 'EOPNOTSUPP')) throw error;
      const device = verbs()
        .getDeviceList()
        .find(({ name }) => name === this.name);
      entries = ports.flatMap((port) => sysfsGidTable(`${device?.ibdevPath}`, this.handle, port));
    }
    return entries.map(gidEntry);
  }

  /**
   * The GID that this package uses when none is named: see `chooseGid()` for the order.
   *
   * @param portNum - from 1
   * @param options - `gidIndex`: this one; default the environment variable NODE_RDMA_GID_INDEX, else by the order.
   *   `netdev`: only those of this network interface
   * @throws RdmaError ENOENT when there is none, saying what to check; EINVAL when there is no such port
   */
  selectGid(portNum = 1, options: { gidIndex?: number; netdev?: string } = {}): GidEntry {
    const { gidIndex = environmentNumber('NODE_RDMA_GID_INDEX', 255), netdev } = readOptions(options, 'options', [
      'gidIndex',
      'netdev',
    ]);
    if (gidIndex !== undefined) integer(gidIndex, 'options.gidIndex', 0, 255);
    if (netdev !== undefined) string(netdev, 'options.netdev');
    checkPort(portNum);
    const table = this.queryGidTable().filter(
      (entry) =>
        entry.portNum === portNum &&
        (gidIndex === undefined || entry.gidIndex === gidIndex) &&
        (netdev === undefined || entry.netdev === netdev),
    );
    const chosen = chooseGid(table);
    if (chosen) return chosen;
    // Throws where there is no such port.
    this.queryPort(portNum);
    const which = [gidIndex === undefined ? '' : ` at index ${gidIndex}`, netdev === undefined ? '' : ` of ${netdev}`];
    throw new RdmaError(
      'ibv_query_gid_table',
      constants.errno.ENOENT,
      `port ${portNum} of ${this.name} has no usable GID${which.join('')}; its network interface needs an address ` +
        '("ip address show"), and must be up',
    );
  }

  /**
   * A GID by its index, with what it stands for.
   *
   * @param portNum - from 1
   * @param gidIndex - from 0
   * @throws RdmaError ENODATA for an empty place; EOPNOTSUPP where rdma-core is older than 32
   * @see ibv_query_gid_ex(3)
   */
  queryGidEx(portNum: number, gidIndex: number): GidEntry {
    const index = integer(gidIndex, 'gidIndex', 0, 0x7fff_ffff);
    return gidEntry(this.#atPort(portNum, () => binding().queryGidEx(this.handle, portNum, index)));
  }

  /**
   * A partition key by its index.
   *
   * @param portNum - from 1
   * @param index - from 0
   * @returns 16 bits in host byte order; the highest one says full membership
   * @throws RdmaError when there is no such port or place
   * @see ibv_query_pkey(3)
   */
  queryPkey(portNum: number, index: number): number {
    integer(index, 'index', 0, 0xffff);
    return this.#atPort(portNum, () => binding().queryPkey(this.handle, portNum, index));
  }

  // Asks something about a port, and says so when there is no such port: the kernel says EINVAL, or something else.
  #atPort<T>(portNum: number, query: () => T): T {
    this.requireOpen();
    checkPort(portNum);
    try {
      return query();
    } catch (error) {
      const missing = error instanceof RdmaError ? explainPort(this, portNum) : undefined;
      throw error instanceof RdmaError && missing !== undefined ? error.explained(missing) : error;
    }
  }
}

function gidEntry(entry: NativeGidEntry): GidEntry {
  return printedGidEntry({ ...entry, gid: formatGid(entry.gid) });
}

function checkPort(portNum: number): number {
  return integer(portNum, 'portNum', 1, 255);
}
