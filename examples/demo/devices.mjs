// @ts-check
// The RDMA devices of this machine, their GIDs, and which of them this package chooses.
import { GidType, getDeviceList, LinkLayer, openDevice, PortState, RdmaError, RdmaUnavailableError } from 'node-rdma';

/**
 * @typedef {object} DeviceReport
 * @property {string} name
 * @property {boolean} active whether its port 1 is active
 * @property {string} linkLayer
 * @property {number} mtu in bytes
 * @property {{ index: number, type: string, gid: string, netdev: string | null }[]} gids of its port 1
 * @property {number} [chosen] index of the GID that is used when none is named
 * @property {string} [reason] why this one; or why there is none
 */

/** @returns {DeviceReport[]} none where there are no devices, and where there is no RDMA at all */
export function reportDevices() {
  try {
    return getDeviceList().map(({ name }) => reportDevice(name));
  } catch (error) {
    if (error instanceof RdmaUnavailableError || error instanceof RdmaError) return [];
    throw error;
  }
}

/**
 * @param {string} name
 * @returns {DeviceReport}
 */
export function reportDevice(name) {
  let context;
  try {
    context = openDevice(name);
  } catch (error) {
    return { name, active: false, linkLayer: '', mtu: 0, gids: [], reason: /** @type {Error} */ (error).message };
  }
  try {
    const port = context.queryPort(1);
    const gids = context.queryGidTable().filter(({ portNum }) => portNum === 1);
    const report = {
      name,
      active: port.state === PortState.ACTIVE,
      linkLayer: port.linkLayer === LinkLayer.ETHERNET ? 'Ethernet' : 'InfiniBand',
      mtu: 128 << port.activeMtu,
      gids: gids.map(({ gidIndex, gidType, gid, netdev }) => ({ index: gidIndex, type: typeOf(gidType), gid, netdev })),
    };
    try {
      const chosen = context.selectGid();
      return { ...report, chosen: chosen.gidIndex, reason: reasonOf(chosen) };
    } catch (error) {
      return { ...report, reason: /** @type {Error} */ (error).message };
    }
  } finally {
    context.close();
  }
}

/** Whether two ends can be connected on it. */
export function isUsable(/** @type {DeviceReport} */ { active, chosen }) {
  return active && chosen !== undefined;
}

function typeOf(/** @type {number} */ gidType) {
  if (gidType === GidType.ROCE_V2) return 'RoCE v2';
  return gidType === GidType.ROCE_V1 ? 'RoCE v1' : 'InfiniBand';
}

function reasonOf(/** @type {import('node-rdma').GidEntry} */ { gidType, gid }) {
  if (process.env.NODE_RDMA_GID_INDEX) return 'NODE_RDMA_GID_INDEX names it';
  if (gidType !== GidType.ROCE_V2) return `there is no RoCE v2, only ${typeOf(gidType)}`;
  if (gid.startsWith('::ffff:')) return 'RoCE v2 of an IPv4 address comes first';
  return 'RoCE v2, and none of an IPv4 address';
}
