/** What `ibv_devinfo -v` prints of `ibv_query_device_ex`, in its words and columns. */
import {
  DeviceCapFlagsEx,
  OdpGeneralCaps,
  OdpTransportCapBits,
  QpType,
  RawPacketCaps,
  TmCapFlags,
} from '../native/constants.gen.ts';
import type { DeviceAttrEx } from '../verbs/device-attributes.ts';

const hex = (value: number | bigint) => `0x${value.toString(16).toUpperCase()}`;

/** Names of bits, below each other; the rest is told as unknown. */
function bits(value: number | bigint, names: readonly (readonly [bit: number, name: string])[]): string[] {
  const set = BigInt(value);
  const known = names.filter(([bit]) => (set & BigInt(bit)) !== 0n);
  const rest = names.reduce((left, [bit]) => left & ~BigInt(bit), set);
  const texts = known.map(([, name]) => name);
  if (rest !== 0n) texts.push(`Unknown flags: ${hex(rest)}`);
  return texts.map((text) => `\t\t\t\t\t${text}`);
}

const { SEND, RECV, WRITE, READ, ATOMIC, SRQ_RECV } = OdpTransportCapBits;
const general = [
  [OdpGeneralCaps.SUPPORT, 'ODP_SUPPORT'],
  [OdpGeneralCaps.SUPPORT_IMPLICIT, 'ODP_SUPPORT_IMPLICIT'],
] as const;
const operations = [
  [SEND, 'SUPPORT_SEND'],
  [RECV, 'SUPPORT_RECV'],
  [WRITE, 'SUPPORT_WRITE'],
  [READ, 'SUPPORT_READ'],
  [ATOMIC, 'SUPPORT_ATOMIC'],
  [SRQ_RECV, 'SUPPORT_SRQ'],
] as const;
const types = [
  [1 << QpType.RAW_PACKET, 'SUPPORT_RAW_PACKET'],
  [1 << QpType.UD, 'SUPPORT_UD'],
] as const;
const raw = [
  [RawPacketCaps.CVLAN_STRIPPING, 'C-VLAN stripping offload'],
  [RawPacketCaps.SCATTER_FCS, 'Scatter FCS offload'],
  [RawPacketCaps.IP_CSUM, 'IP csum offload'],
  [RawPacketCaps.DELAY_DROP, 'Delay drop'],
] as const;
const extended = [
  [DeviceCapFlagsEx.RAW_SCATTER_FCS, 'RAW_SCATTER_FCS'],
  [DeviceCapFlagsEx.PCI_WRITE_END_PADDING, 'PCI_WRITE_END_PADDING'],
] as const;

/** The lines between the limits and the ports. */
export function extendedLines(attr: Omit<DeviceAttrEx, 'origAttr'>, numCompVectors: number): string[] {
  const { odpCaps, tsoCaps, rssCaps, packetPacingCaps, tmCaps, cqModCaps } = attr;
  const { rcOdpCaps, ucOdpCaps, udOdpCaps } = odpCaps.perTransportCaps;
  const paging = Object.entries({ rc: rcOdpCaps, uc: ucOdpCaps, ud: udOdpCaps, xrc: attr.xrcOdpCaps });
  const supported = (tabs: string, qpts: number) => [`${tabs}supported_qp:`, ...bits(qpts, types)];
  return [
    ...['\tgeneral_odp_caps:', ...bits(odpCaps.generalCaps, general)],
    ...paging.flatMap(([name, caps]) => [
      `\t${name}_odp_caps:`,
      ...(caps === 0 ? ['\t\t\t\t\tNO SUPPORT'] : bits(caps, operations)),
    ]),
    attr.completionTimestampMask === 0n
      ? '\tcompletion_timestamp_mask not supported'
      : `\tcompletion timestamp_mask:\t\t\t0x${attr.completionTimestampMask.toString(16).padStart(16, '0')}`,
    attr.hcaCoreClock === 0n ? '\tcore clock not supported' : `\thca_core_clock:\t\t\t${attr.hcaCoreClock}kHZ`,
    ...(attr.rawPacketCaps === 0 ? [] : ['\traw packet caps:', ...bits(attr.rawPacketCaps, raw)]),
    `\tdevice_cap_flags_ex:\t\t${hex(attr.deviceCapFlagsEx)}`,
    ...bits((attr.deviceCapFlagsEx >> 32n) << 32n, extended),
    ...['\ttso_caps:', `\t\tmax_tso:\t\t\t${tsoCaps.maxTso}`],
    ...(tsoCaps.maxTso === 0 ? [] : supported('\t\t', tsoCaps.supportedQpts)),
    '\trss_caps:',
    `\t\tmax_rwq_indirection_tables:\t\t\t${rssCaps.maxRwqIndirectionTables}`,
    `\t\tmax_rwq_indirection_table_size:\t\t\t${rssCaps.maxRwqIndirectionTableSize}`,
    `\t\trx_hash_function:\t\t\t\t0x${rssCaps.rxHashFunction.toString(16)}`,
    `\t\trx_hash_fields_mask:\t\t\t\t${hex(rssCaps.rxHashFieldsMask)}`,
    ...(rssCaps.supportedQpts === 0 ? [] : supported('\t\t', rssCaps.supportedQpts)),
    `\tmax_wq_type_rq:\t\t\t${attr.maxWqTypeRq}`,
    '\tpacket_pacing_caps:',
    `\t\tqp_rate_limit_min:\t${packetPacingCaps.qpRateLimitMin}kbps`,
    `\t\tqp_rate_limit_max:\t${packetPacingCaps.qpRateLimitMax}kbps`,
    ...(packetPacingCaps.qpRateLimitMax === 0 ? [] : supported('\t\t', packetPacingCaps.supportedQpts)),
    ...(tmCaps.maxNumTags === 0
      ? ['\ttag matching not supported']
      : [
          `\tmax_rndv_hdr_size:\t\t${tmCaps.maxRndvHdrSize}`,
          `\tmax_num_tags:\t\t\t${tmCaps.maxNumTags}`,
          `\tmax_ops:\t\t\t${tmCaps.maxOps}`,
          `\tmax_sge:\t\t\t${tmCaps.maxSge}`,
          ...['\tflags:', ...bits(tmCaps.flags, [[TmCapFlags.RC, 'IBV_TM_CAP_RC']])],
        ]),
    ...(cqModCaps.maxCqCount === 0 || cqModCaps.maxCqPeriod === 0
      ? []
      : [
          ...['', '\tcq moderation caps:', `\t\tmax_cq_count:\t${cqModCaps.maxCqCount}`],
          ...[`\t\tmax_cq_period:\t${cqModCaps.maxCqPeriod} us`, ''],
        ]),
    ...(attr.maxDmSize === 0n ? [] : [`\tmaximum available device memory:\t${attr.maxDmSize}Bytes`, '']),
    `\tnum_comp_vectors:\t\t${numCompVectors}`,
  ];
}
