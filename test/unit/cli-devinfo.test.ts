/** What a device has that neither Soft-RoCE nor the model has, in the lines of ibv_devinfo 44. */
import { describe, expect, it } from 'vitest';
import { extendedLines } from '../../lib/cli/devinfo-ex.ts';

const device = {
  odpCaps: { generalCaps: 5n, perTransportCaps: { rcOdpCaps: 0x21, ucOdpCaps: 0, udOdpCaps: 0x40 } },
  ...{ completionTimestampMask: 0n, hcaCoreClock: 0n, deviceCapFlagsEx: (1n << 34n) | (1n << 40n) | 1n },
  tsoCaps: { maxTso: 262_144, supportedQpts: 1 << 8 },
  rssCaps: {
    ...{ supportedQpts: (1 << 8) | (1 << 4), maxRwqIndirectionTables: 32, maxRwqIndirectionTableSize: 2048 },
    ...{ rxHashFieldsMask: 0x8000_00ffn, rxHashFunction: 1 },
  },
  ...{ maxWqTypeRq: 8_388_608, rawPacketCaps: 15, maxDmSize: 0n, xrcOdpCaps: 0, physPortCntEx: 0 },
  packetPacingCaps: { qpRateLimitMin: 1, qpRateLimitMax: 100_000_000, supportedQpts: 1 << 8 },
  tmCaps: { maxRndvHdrSize: 64, maxNumTags: 127, flags: 1, maxOps: 32_768, maxSge: 1 },
  ...{ cqModCaps: { maxCqCount: 0, maxCqPeriod: 0 }, pciAtomicCaps: { fetchAdd: 0, swap: 0, compareSwap: 0 } },
};

describe('extendedLines()', () => {
  it('has names for bits, and says which are unknown', () => {
    const lines = extendedLines(device, 8).map((line) => line.trim().replace(/\t+/g, ' '));
    expect(lines).toEqual([
      ...['general_odp_caps:', 'ODP_SUPPORT', 'Unknown flags: 0x4'],
      ...['rc_odp_caps:', 'SUPPORT_SEND', 'SUPPORT_SRQ', 'uc_odp_caps:', 'NO SUPPORT'],
      ...['ud_odp_caps:', 'Unknown flags: 0x40', 'xrc_odp_caps:', 'NO SUPPORT'],
      ...['completion_timestamp_mask not supported', 'core clock not supported'],
      'raw packet caps:',
      ...['C-VLAN stripping offload', 'Scatter FCS offload', 'IP csum offload', 'Delay drop'],
      ...['device_cap_flags_ex: 0x10400000001', 'RAW_SCATTER_FCS', 'Unknown flags: 0x10000000000'],
      ...['tso_caps:', 'max_tso: 262144', 'supported_qp:', 'SUPPORT_RAW_PACKET'],
      ...['rss_caps:', 'max_rwq_indirection_tables: 32', 'max_rwq_indirection_table_size: 2048'],
      ...['rx_hash_function: 0x1', 'rx_hash_fields_mask: 0x800000FF'],
      ...['supported_qp:', 'SUPPORT_RAW_PACKET', 'SUPPORT_UD', 'max_wq_type_rq: 8388608'],
      ...['packet_pacing_caps:', 'qp_rate_limit_min: 1kbps', 'qp_rate_limit_max: 100000000kbps'],
      ...['supported_qp:', 'SUPPORT_RAW_PACKET'],
      ...['max_rndv_hdr_size: 64', 'max_num_tags: 127', 'max_ops: 32768', 'max_sge: 1', 'flags:', 'IBV_TM_CAP_RC'],
      'num_comp_vectors: 8',
    ]);
  });
});
