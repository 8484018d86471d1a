/** What ibv_devices, ibv_devinfo and show_gids tell, and which GID would be used. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { RdmaError } from '../errors.ts';
import type { Context } from '../verbs/context.ts';
import { type Device, getDeviceList, openDevice } from '../verbs/device.ts';
import type { DeviceAttr, DeviceAttrEx, PortAttr } from '../verbs/device-attributes.ts';
import { type GidEntry, gidReason } from '../verbs/gid.ts';
import { isIwarp } from '../verbs/iwarp.ts';

/** A port of a device. */
export interface PortDescription {
  /** From 1. */
  portNum: number;
  /** Its attributes. */
  attr: PortAttr;
  /** Its GID table, without empty places. */
  gids: GidEntry[];
  /** The GID that is used when none is named; undefined when there is none. */
  chosen: GidEntry | undefined;
  /** Why this one, or why none. */
  reason: string;
}

/** A device, as far as it could be opened. */
export interface DeviceDescription extends Device {
  /** Name of the board, from sysfs; undefined where the driver has none. */
  boardId: string | undefined;
  /** Attributes and limits; undefined when it could not be opened. */
  attr: DeviceAttr | undefined;
  /** What `queryDeviceEx()` adds; undefined when it could not be opened. */
  attrEx: Omit<DeviceAttrEx, 'origAttr'> | undefined;
  /** Completion vectors. */
  numCompVectors: number | undefined;
  /** Its ports; none when it could not be opened. */
  ports: PortDescription[];
  /** Why it could not be opened; undefined when it could. */
  error: string | undefined;
}

/**
 * Looks at devices, one after the other. Each is opened and closed again.
 *
 * @param names - these. Default all that there are
 * @returns a description of each; a device that cannot be opened has an `error`
 * @throws RdmaUnavailableError when there is no libibverbs
 * @throws RdmaError ENODEV when there is no device of that name
 */
export function describeDevices(names?: readonly string[]): DeviceDescription[] {
  const list = getDeviceList();
  for (const name of names ?? []) {
    // Says which there are.
    if (!list.some((device) => device.name === name)) openDevice(name);
  }
  return list.filter(({ name }) => names === undefined || names.includes(name)).map(describe);
}

function describe(device: Device): DeviceDescription {
  const boardId = readBoardId(device);
  let context: Context;
  try {
    context = openDevice(device.name);
  } catch (error) {
    if (!(error instanceof RdmaError)) throw error;
    const unknown = { attr: undefined, attrEx: undefined, numCompVectors: undefined };
    return { ...device, boardId, ...unknown, ports: [], error: error.message };
  }
  try {
    const { origAttr: attr, ...attrEx } = context.queryDeviceEx();
    const { numCompVectors } = context;
    const table = context.queryGidTable();
    const ports = Array.from({ length: attr.physPortCnt }, (_, i) => describePort(context, i + 1, table));
    return { ...device, boardId, attr, attrEx, numCompVectors, ports, error: undefined };
  } finally {
    context.close();
  }
}

function describePort(context: Context, portNum: number, table: GidEntry[]): PortDescription {
  const gids = table.filter((entry) => entry.portNum === portNum);
  const port = { portNum, attr: context.queryPort(portNum), gids };
  if (isIwarp(context))
    return { ...port, chosen: undefined, reason: 'iWARP has no use for any: it connects by IP addresses' };
  try {
    const chosen = context.selectGid(portNum);
    const isNamed = process.env.NODE_RDMA_GID_INDEX !== undefined && process.env.NODE_RDMA_GID_INDEX !== '';
    return { ...port, chosen, reason: isNamed ? 'NODE_RDMA_GID_INDEX names it' : gidReason(gids, chosen) };
  } catch (error) {
    if (!(error instanceof RdmaError)) throw error;
    return { ...port, chosen: undefined, reason: error.detail ?? error.message };
  }
}

function readBoardId({ ibdevPath }: Device): string | undefined {
  try {
    return readFileSync(join(ibdevPath, 'board_id'), 'utf8').trim() || undefined;
  } catch {
    return undefined;
  }
}
