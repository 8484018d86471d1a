/** What `ibv_devinfo -v` prints of `ibv_query_device_ex`, in its words and columns. */
import { QpType } from '../native/constants.gen.ts';
import type { DeviceAttrEx } from '../verbs/device-attributes.ts';

const hex = (value: number | bigint) => `0x${value.toString(16).toUpperCase()}`;

/** Names of bits, below each other; the rest is told as unknown. */
function bits(value: number | bigint, names: readonly (readonly [bit: number | bigint, name: string])[]): string[] {
  const set = BigInt(value);
  const known = names.filter(([bit]) => (set & BigInt(bit)) !== 0n);
  const rest = names.reduce((left, [bit]) => left & ~BigInt(bit), set);
  const texts = known.map(([, name]) => name);
  if (rest !== 0n) texts.push(`Unknown flags: ${hex(rest)}`);
  return texts.map((text) => `\t\t\t\t\t${text}`);
}

const general = [
  [1, 'ODP_SUPPORT'],
  [2, 'ODP_SUPPORT_IMPLICIT'],
] as const;
const operations = ['SEND', 'RECV', 'WRITE', 'READ', 'ATOMIC', 'SRQ'].map(
  (name, i) => [1 << i, `SUPPORT_${name}`] as const,
);
const types = [
  [1 << QpType.RAW_PACKET, 'SUPPORT_RAW_PACKET'],
  [1 << QpType.UD, 'SUPPORT_UD'],
] as const;
const raw = [
  [1, 'C-VLAN stripping offload'],
  [2, 'Scatter FCS offload'],
  [4, 'IP csum offload'],
  [8, 'Delay drop'],
] as const;
// Of device_cap_flags_ex, above the 32 bits of device_cap_flags.
const extended = [
  [1n << 34n, 'RAW_SCATTER_FCS'],
  [1n << 36n, 'PCI_WRITE_END_PADDING'],
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
          ...['\tflags:', ...bits(tmCaps.flags, [[1, 'IBV_TM_CAP_RC']])],
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
