import { instance, string, typeError } from '../args.ts';
import { flagged, hex, printed } from '../inspect.ts';
import { mlx5, verbs } from '../native/binding.ts';
import { Mlx5dvContextFlags, Mlx5dvCqeCompResFormat } from '../native/constants.gen.ts';
import { Context } from '../verbs/context.ts';
import { odpCaps, qpTypes } from '../verbs/device-attributes.ts';

/**
 * What an mlx5 device can do beyond verbs: `struct mlx5dv_context`. A field that the library or the device does not tell
 * is absent.
 */
export interface Mlx5dvContext {
  /** Version of the interface: 0. */
  version: number;
  /** `Mlx5dvContextFlags` joined with `|`. */
  flags: number;
  /** Which fields the library filled in, as `enum mlx5dv_context_comp_mask`: they are those that are there. */
  compMask: number;
  /** Compression of completion entries. */
  cqeCompCaps?: {
    /** Entries that are compressed into one at the most; 0: none. */
    maxNum: number;
    /** `Mlx5dvCqeCompResFormat` joined with `|`. */
    supportedFormat: number;
  };
  /** Parsing of packets by software. */
  swParsingCaps?: {
    /** `enum mlx5dv_sw_parsing_offloads`. */
    swParsingOffloads: number;
    /** Types of queue pairs: `1 << QpType`, joined with `|`. */
    supportedQpts: number;
  };
  /** Receive queues with strides. */
  stridingRqCaps?: {
    /** Logarithm of the bytes of the shortest stride. */
    minSingleStrideLogNumOfBytes: number;
    /** Logarithm of the bytes of the longest. */
    maxSingleStrideLogNumOfBytes: number;
    /** Logarithm of the fewest strides of a receive. */
    minSingleWqeLogNumOfStrides: number;
    /** Logarithm of the most. */
    maxSingleWqeLogNumOfStrides: number;
    /** Types of queue pairs: `1 << QpType`, joined with `|`. */
    supportedQpts: number;
  };
  /** `enum mlx5dv_tunnel_offloads`. */
  tunnelOffloadsCaps?: number;
  /** Doorbell registers that can be allocated at run time. */
  maxDynamicBfregs?: number;
  /** Nanoseconds after which a clock info is too old: see `getClockInfo()`. */
  maxClockInfoUpdateNsec?: bigint;
  /** `enum mlx5dv_flow_action_cap_flags`. */
  flowActionFlags?: number;
  /** On-demand paging of dynamically connected transport: `OdpTransportCapBits` joined with `|`. */
  dcOdpCaps?: number;
  /** Whether the device's clock is mapped, so that it can be read without a call of the kernel. */
  hcaCoreClock: boolean;
  /** Ports of the bond that the device is, from which a queue pair can choose. */
  numLagPorts?: number;
  /** Signatures over data. */
  sigCaps?: {
    /** `enum mlx5dv_block_size_caps`. */
    blockSize: number;
    /** `enum mlx5dv_sig_prot_caps`. */
    blockProt: number;
    /** `enum mlx5dv_sig_t10dif_bg_caps`. */
    t10difBg: number;
    /** `enum mlx5dv_sig_crc_type_caps`. */
    crcType: number;
  };
  /** Stream channels of an initiator. */
  dciStreamsCaps?: {
    /** Logarithm of the channels that are served at once; 0: there are none. (The C library spells it so.) */
    maxLogNumConcurent: number;
    /** Logarithm of the channels that may have failed. */
    maxLogNumErrored: number;
  };
  /** Bytes that one memory copy by the device can have; 0: it has none. */
  maxWrMemcpyLength?: bigint;
  /** Encryption. */
  cryptoCaps?: {
    /** Self tests that failed; 0: none. */
    failedSelftests: number;
    /** `enum mlx5dv_crypto_engines_caps`. */
    cryptoEngines: number;
    /** `enum mlx5dv_crypto_wrapped_import_method_caps`. */
    wrappedImportMethod: number;
    /** Logarithm of the keys that there can be. */
    logMaxNumDeks: number;
    /** `enum mlx5dv_crypto_caps_flags`. */
    flags: number;
  };
  /** Reads and atomics outstanding as a target. Since rdma-core 47. */
  maxDcRdAtom?: bigint;
  /** Reads and atomics outstanding as an initiator. Since rdma-core 47. */
  maxDcInitRdAtom?: bigint;
  /** What the register C0 of packets holds for others. Since rdma-core 50. */
  regC0?: {
    /** The value. */
    value: number;
    /** The bits of it that count. */
    mask: number;
  };
  /** Receives outstanding on a queue pair that takes them out of order; 0: not for that type. Since rdma-core 55. */
  oooRecvWrsCaps?: {
    /** RC. */
    maxRc: number;
    /** XRC. */
    maxXrc: number;
    /** DC targets. */
    maxDct: number;
    /** UD. */
    maxUd: number;
    /** UC. */
    maxUc: number;
  };
}

const formats = flagged(Mlx5dvCqeCompResFormat);
const readable = printed<Mlx5dvContext>('Mlx5dvContext', {
  flags: flagged(Mlx5dvContextFlags),
  compMask: hex,
  cqeCompCaps: (caps) => ({ ...caps, supportedFormat: formats(caps.supportedFormat) }),
  swParsingCaps: (caps) => ({ ...caps, supportedQpts: qpTypes(caps.supportedQpts) }),
  stridingRqCaps: (caps) => ({ ...caps, supportedQpts: qpTypes(caps.supportedQpts) }),
  dcOdpCaps: odpCaps,
});

/** What translates time stamps of the device: `struct mlx5dv_clock_info`. */
export interface Mlx5dvClockInfo {
  /** The time that goes with `lastCycles`, in nanoseconds. */
  nsec: bigint;
  /** The device's clock when the kernel last looked. */
  lastCycles: bigint;
  /** Fraction of a nanosecond, in units of `2 ** -shift`. */
  frac: bigint;
  /** Nanoseconds a cycle, times `2 ** shift`. */
  mult: number;
  /** See `mult`. */
  shift: number;
  /** The bits that the device's clock has. */
  mask: bigint;
}

const readableClock = printed<Mlx5dvClockInfo>('Mlx5dvClockInfo', { mask: hex });

/**
 * Whether a device is of libmlx5, so that the functions of this namespace are for it. False too where there is no
 * libmlx5.
 *
 * @param device - its name, or its open context
 * @throws RdmaError ENODEV when there is no such device
 * @see mlx5dv_is_supported(3)
 */
export function isSupported(device: string | Context): boolean {
  if (typeof device !== 'string' && !(device instanceof Context)) {
    throw typeError('device', 'the name of a device or a Context', device);
  }
  const addon = verbs();
  if (typeof device !== 'string') device.requireOpen();
  return addon.mlx5IsSupported(typeof device === 'string' ? string(device, 'device') : device.name);
}

/**
 * What an mlx5 device can do beyond verbs.
 *
 * @throws RdmaError EOPNOTSUPP where the device is another one
 * @throws RdmaUnavailableError where there is no libmlx5
 * @see mlx5dv_query_device(3)
 */
export function queryDevice(context: Context): Mlx5dvContext {
  instance(context, 'context', Context).requireOpen();
  return readable(mlx5().mlx5QueryDevice(context.handle) as unknown as Mlx5dvContext);
}

/**
 * What the device's clock says in nanoseconds. Time stamps that are older or younger than `maxClockInfoUpdateNsec` of
 * `queryDevice()` are translated wrongly: ask again before that.
 *
 * @throws RdmaError EOPNOTSUPP where the device is another one; EINVAL where its clock is not mapped; EBUSY when the kernel
 *   was writing it: try again
 * @see mlx5dv_get_clock_info(3)
 */
export function getClockInfo(context: Context): Mlx5dvClockInfo {
  instance(context, 'context', Context).requireOpen();
  return readableClock(mlx5().mlx5GetClockInfo(context.handle) as unknown as Mlx5dvClockInfo);
}

/**
 * A time stamp of the device in nanoseconds.
 *
 * @param clockInfo - from `getClockInfo()` of the same device, shortly before or after
 * @param deviceTimestamp - cycles of the device's clock, such as of a completion
 * @see mlx5dv_ts_to_ns(3)
 */
export function tsToNs(clockInfo: Mlx5dvClockInfo, deviceTimestamp: bigint): bigint {
  const { nsec, lastCycles, frac, mult, shift, mask } = clockInfo;
  const u64 = (value: bigint) => BigInt.asUintN(64, value);
  const scaled = (cycles: bigint, carry: bigint) => u64(u64(cycles * BigInt(mult)) + carry) >> BigInt(shift);
  const ahead = (deviceTimestamp - lastCycles) & mask;
  // More than half of what the clock can count is behind, not ahead.
  if (ahead <= mask / 2n) return u64(nsec + scaled(ahead, frac));
  return u64(nsec - scaled((lastCycles - deviceTimestamp) & mask, -frac));
}
