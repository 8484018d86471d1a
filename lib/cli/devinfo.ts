import type { Command } from 'commander';
import { type DeviceDescription, describeDevices, type PortDescription } from '../observe/devices.ts';
import { type GidEntry, parseGid } from '../verbs/gid.ts';
import { extendedLines } from './devinfo-ex.ts';
import { Exit, noDevices, run, subcommand } from './frame.ts';
import * as names from './names.ts';
import { print, printJson } from './output.ts';

interface Flags {
  ibDev?: string;
  verbose?: true;
  json?: true;
}

/** The subcommand `devinfo`. */
export function devinfoCommand(): Command {
  return subcommand('devinfo', 'Print the attributes of the RDMA devices, as ibv_devinfo does.')
    .option('-d, --ib-dev <name>', 'only this device')
    .option('-v, --verbose', 'with all limits, flags and the GID table; says which GID would be chosen, and why')
    .option('--json', 'as an array of objects, always with everything')
    .action((flags: Flags) => run(() => show(flags)));
}

function show({ ibDev, verbose, json }: Flags): void {
  const devices = describeDevices(ibDev === undefined ? undefined : [ibDev]);
  if (json) {
    printJson(devices);
    return;
  }
  if (devices.length === 0) throw noDevices();
  for (const device of devices) print(deviceText(device, verbose === true));
  if (devices.some(({ error }) => error !== undefined)) process.exitCode = Exit.FAILED;
}

type Row = [name: string, value: string | number | bigint];

const hex = (value: number | bigint, digits = 1) => `0x${value.toString(16).padStart(digits, '0')}`;
const guid = (value: bigint) =>
  value
    .toString(16)
    .padStart(16, '0')
    .replace(/....(?!$)/g, '$&:');

function deviceText(device: DeviceDescription, isVerbose: boolean): string {
  const { name, transportType, boardId, attr, attrEx, numCompVectors, ports, error } = device;
  if (attr === undefined) return `hca_id:\t${name}\n\terror:\t${error}\n`;
  const rows: Row[] = [
    ['transport', `${names.transportName(transportType)} (${transportType})`],
    ...(attr.fwVer === '' ? [] : [['fw_ver', attr.fwVer] satisfies Row]),
    ['node_guid', guid(attr.nodeGuid)],
    ['sys_image_guid', guid(attr.sysImageGuid)],
    ['vendor_id', hex(attr.vendorId, 4)],
    ['vendor_part_id', attr.vendorPartId],
    ['hw_ver', `0x${attr.hwVer.toString(16).toUpperCase()}`],
    ...(boardId === undefined ? [] : [['board_id', boardId] satisfies Row]),
    ['phys_port_cnt', attr.physPortCnt],
  ];
  const lines = [`hca_id:\t${name}`, ...rows.map(deviceLine)];
  if (isVerbose) lines.push(...limitLines(attr), ...extendedLines(attrEx!, numCompVectors!));
  return [...lines, ...ports.map((port) => portText(port, transportType, isVerbose))].join('\n');
}

/** A name and its value, which stand in the columns that ibv_devinfo has: tabs of eight. */
function line(indent: number, column: number, [name, value]: Row): string {
  const tabs = Math.max(1, Math.ceil((column - indent - name.length - 1) / 8));
  return `${'\t'.repeat(indent / 8)}${name}:${'\t'.repeat(tabs)}${value}`;
}
const deviceLine = (row: Row) => line(8, 40, row);
const portLine = (row: Row) => line(24, 48, row);

function limitLines(attr: NonNullable<DeviceDescription['attr']>): string[] {
  const { names: flags, unknown } = names.capFlagNames(attr.deviceCapFlags);
  const before: Row[] = [
    ['max_mr_size', hex(attr.maxMrSize)],
    ['page_size_cap', hex(attr.pageSizeCap)],
    ['max_qp', attr.maxQp],
    ['max_qp_wr', attr.maxQpWr],
    ['device_cap_flags', hex(attr.deviceCapFlags >>> 0, 8)],
  ];
  if (unknown !== 0) flags.push(`Unknown flags: 0x${unknown.toString(16).toUpperCase()}`);
  const rows: Row[] = [
    ['max_sge', attr.maxSge],
    ['max_sge_rd', attr.maxSgeRd],
    ['max_cq', attr.maxCq],
    ['max_cqe', attr.maxCqe],
    ['max_mr', attr.maxMr],
    ['max_pd', attr.maxPd],
    ['max_qp_rd_atom', attr.maxQpRdAtom],
    ['max_ee_rd_atom', attr.maxEeRdAtom],
    ['max_res_rd_atom', attr.maxResRdAtom],
    ['max_qp_init_rd_atom', attr.maxQpInitRdAtom],
    ['max_ee_init_rd_atom', attr.maxEeInitRdAtom],
    ['atomic_cap', `${names.atomicCapName(attr.atomicCap)} (${attr.atomicCap})`],
    ['max_ee', attr.maxEe],
    ['max_rdd', attr.maxRdd],
    ['max_mw', attr.maxMw],
    ['max_raw_ipv6_qp', attr.maxRawIpv6Qp],
    ['max_raw_ethy_qp', attr.maxRawEthyQp],
    ['max_mcast_grp', attr.maxMcastGrp],
    ['max_mcast_qp_attach', attr.maxMcastQpAttach],
    ['max_total_mcast_qp_attach', attr.maxTotalMcastQpAttach],
    ['max_ah', attr.maxAh],
    ['max_fmr', attr.maxFmr],
    ...(attr.maxFmr === 0 ? [] : [['max_map_per_fmr', attr.maxMapPerFmr] satisfies Row]),
    ['max_srq', attr.maxSrq],
    ...(attr.maxSrq === 0
      ? []
      : ([
          ['max_srq_wr', attr.maxSrqWr],
          ['max_srq_sge', attr.maxSrqSge],
        ] satisfies Row[])),
    ['max_pkeys', attr.maxPkeys],
    ['local_ca_ack_delay', attr.localCaAckDelay],
  ];
  return [...before.map(deviceLine), ...flags.map((flag) => `\t\t\t\t\t${flag}`), ...rows.map(deviceLine)];
}

function portText({ portNum, attr, gids, chosen, reason }: PortDescription, transport: number, isVerbose: boolean) {
  const mtu = (value: typeof attr.maxMtu) => `${names.mtuBytes(value)} (${value})`;
  const rows: Row[] = [
    ['state', `PORT_${names.stateName(attr.state)} (${attr.state})`],
    ['max_mtu', mtu(attr.maxMtu)],
    ['active_mtu', mtu(attr.activeMtu)],
    ['sm_lid', attr.smLid],
    ['port_lid', attr.lid],
    ['port_lmc', hex(attr.lmc, 2)],
    ['link_layer', names.linkLayerName(attr.linkLayer)],
  ];
  if (isVerbose) {
    rows.push(
      ['max_msg_sz', hex(attr.maxMsgSz)],
      ['port_cap_flags', hex(attr.portCapFlags >>> 0, 8)],
      ['port_cap_flags2', hex(attr.portCapFlags2, 4)],
      ['max_vl_num', `${names.virtualLanes(attr.maxVlNum)} (${attr.maxVlNum})`],
      ['bad_pkey_cntr', hex(attr.badPkeyCntr)],
      ['qkey_viol_cntr', hex(attr.qkeyViolCntr)],
      ['sm_sl', attr.smSl],
      ['pkey_tbl_len', attr.pkeyTblLen],
      ['gid_tbl_len', attr.gidTblLen],
      ['subnet_timeout', attr.subnetTimeout],
      ['init_type_reply', attr.initTypeReply],
      ['active_width', `${names.widthName(attr.activeWidth)} (${attr.activeWidth})`],
      ['active_speed', `${names.speedName(attr.activeSpeed)} (${attr.activeSpeed})`],
    );
    // ibv_devinfo tells the physical state of InfiniBand's transport only, RoCE included.
    if (transport === 0) rows.push(['phys_state', `${names.physicalStateName(attr.physState)} (${attr.physState})`]);
    rows.push(...gids.map(gidRow));
    rows.push(['chosen', chosen === undefined ? `no GID: ${reason}` : `GID ${chosen.gidIndex}: ${reason}`]);
  }
  return [`\t\tport:\t${portNum}`, ...rows.map(portLine), ''].join('\n');
}

function gidRow({ gid, gidIndex, gidType }: GidEntry): Row {
  const type = names.gidTypeName(gidType);
  // RoCE v2 stands for IP addresses, and is written as one.
  const text = names.gidVersion(gidType) === 'v2' ? gid : guidText(parseGid(gid));
  return [`GID[${String(gidIndex).padStart(3)}]`, type === '' ? text : `${text}, ${type}`];
}

const guidText = (bytes: Buffer) => bytes.toString('hex').replace(/....(?!$)/g, '$&:');
