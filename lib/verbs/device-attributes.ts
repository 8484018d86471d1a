import { flagged, hex, hex64, named, printed } from '../inspect.ts';
import {
  AtomicCap,
  DeviceCapFlags,
  DeviceCapFlagsEx,
  LinkLayer,
  Mtu,
  OdpGeneralCaps,
  OdpTransportCapBits,
  PciAtomicOpSize,
  PortCapFlags,
  PortCapFlags2,
  PortFlags,
  PortState,
  QpType,
  RawPacketCaps,
  RxHashFields,
  RxHashFunctionFlags,
  TmCapFlags,
} from '../native/constants.gen.ts';
import { portStateStr } from './text.ts';

/** Attributes of a device: `struct ibv_device_attr`. Numbers are limits unless they say otherwise. */
export interface DeviceAttr {
  /** Firmware version. */
  fwVer: string;
  /** Node GUID. */
  nodeGuid: bigint;
  /** System image GUID. */
  sysImageGuid: bigint;
  /** Longest memory region, in bytes. */
  maxMrSize: bigint;
  /** Page sizes, as a bit mask. */
  pageSizeCap: bigint;
  /** Vendor's number. */
  vendorId: number;
  /** Vendor's number of the part. */
  vendorPartId: number;
  /** Hardware version. */
  hwVer: number;
  /** Queue pairs. */
  maxQp: number;
  /** Requests of a work queue. */
  maxQpWr: number;
  /** `DeviceCapFlags` joined with `|`. */
  deviceCapFlags: number;
  /** Elements of a request. */
  maxSge: number;
  /** Elements of an RDMA read. */
  maxSgeRd: number;
  /** Completion queues. */
  maxCq: number;
  /** Entries of a completion queue. */
  maxCqe: number;
  /** Memory regions. */
  maxMr: number;
  /** Protection domains. */
  maxPd: number;
  /** Reads and atomics outstanding of a queue pair as the responder. */
  maxQpRdAtom: number;
  /** The same for an end-to-end context. */
  maxEeRdAtom: number;
  /** Resources for reads and atomics as the responder, in all. */
  maxResRdAtom: number;
  /** Reads and atomics outstanding of a queue pair as the initiator. */
  maxQpInitRdAtom: number;
  /** The same for an end-to-end context. */
  maxEeInitRdAtom: number;
  /** One of `AtomicCap`. */
  atomicCap: number;
  /** End-to-end contexts. */
  maxEe: number;
  /** Reliable datagram domains. */
  maxRdd: number;
  /** Memory windows. */
  maxMw: number;
  /** Raw IPv6 queue pairs. */
  maxRawIpv6Qp: number;
  /** Raw Ethernet queue pairs. */
  maxRawEthyQp: number;
  /** Multicast groups. */
  maxMcastGrp: number;
  /** Queue pairs of a multicast group. */
  maxMcastQpAttach: number;
  /** Queue pairs attached to multicast groups, in all. */
  maxTotalMcastQpAttach: number;
  /** Address handles. */
  maxAh: number;
  /** Fast memory regions. */
  maxFmr: number;
  /** Mappings of a fast memory region before it must be unmapped. */
  maxMapPerFmr: number;
  /** Shared receive queues. */
  maxSrq: number;
  /** Requests of a shared receive queue. */
  maxSrqWr: number;
  /** Elements of a request there. */
  maxSrqSge: number;
  /** Partitions. */
  maxPkeys: number;
  /** Delay of the device's acknowledgements, as 4.096 us * 2^n. */
  localCaAckDelay: number;
  /** Ports. */
  physPortCnt: number;
}

/** Attributes of a port: `struct ibv_port_attr`. */
export interface PortAttr {
  /** One of `PortState`. */
  state: number;
  /** Largest MTU of the port, encoded. */
  maxMtu: Mtu;
  /** MTU in use, encoded. */
  activeMtu: Mtu;
  /** Places of the GID table. */
  gidTblLen: number;
  /** `PortCapFlags` joined with `|`. */
  portCapFlags: number;
  /** Longest message, in bytes. */
  maxMsgSz: number;
  /** Packets with a bad partition key. */
  badPkeyCntr: number;
  /** Packets with a bad Q_Key. */
  qkeyViolCntr: number;
  /** Places of the partition key table. */
  pkeyTblLen: number;
  /** Base local identifier (InfiniBand). */
  lid: number;
  /** Local identifier of the subnet manager. */
  smLid: number;
  /** Local identifier mask control. */
  lmc: number;
  /** Virtual lanes, encoded. */
  maxVlNum: number;
  /** Service level of the subnet manager. */
  smSl: number;
  /** Propagation delay of the subnet, as 4.096 us * 2^n. */
  subnetTimeout: number;
  /** Type of initialisation done by the subnet manager. */
  initTypeReply: number;
  /** Link width, encoded: 1, 2, 4, 8, 16 for 1X, 4X, 8X, 12X, 2X. */
  activeWidth: number;
  /** Link speed of a lane, encoded. */
  activeSpeed: number;
  /** Physical state, encoded: 5 is link up. */
  physState: number;
  /** One of `LinkLayer`. */
  linkLayer: number;
  /** `PortFlags` joined with `|`. */
  flags: number;
  /** `PortCapFlags2` joined with `|`. */
  portCapFlags2: number;
}

/** @internal */
export const printedDeviceAttr = printed<DeviceAttr>('DeviceAttr', {
  nodeGuid: hex64,
  sysImageGuid: hex64,
  maxMrSize: hex,
  pageSizeCap: hex,
  vendorId: hex,
  hwVer: hex,
  deviceCapFlags: flagged(DeviceCapFlags),
  atomicCap: named(AtomicCap),
});

// Of the InfiniBand specification (PortInfo, PortPhysicalState); the header has no names for them.
const PhysicalState = {
  ...{ SLEEP: 1, POLLING: 2, DISABLED: 3, PORT_CONFIGURATION_TRAINING: 4 },
  ...{ LINK_UP: 5, LINK_ERROR_RECOVERY: 6, PHY_TEST: 7 },
};

/** @internal */
export const printedPortAttr = printed<PortAttr>('PortAttr', {
  state: named(PortState, portStateStr),
  maxMtu: named(Mtu),
  activeMtu: named(Mtu),
  portCapFlags: flagged(PortCapFlags),
  portCapFlags2: flagged(PortCapFlags2),
  physState: named(PhysicalState),
  linkLayer: named(LinkLayer),
  flags: flagged(PortFlags),
});
/** Attributes of a device that came later: `struct ibv_device_attr_ex`. 0 where it does not tell. */
export interface DeviceAttrEx {
  /** What `queryDevice()` has. */
  origAttr: DeviceAttr;
  /** On-demand paging. */
  odpCaps: {
    /** `OdpGeneralCaps` joined with `|`. */
    generalCaps: bigint;
    /** Operations that work with it, by transport: `OdpTransportCapBits` joined with `|`. */
    perTransportCaps: {
      /** RC. */
      rcOdpCaps: number;
      /** UC. */
      ucOdpCaps: number;
      /** UD. */
      udOdpCaps: number;
    };
  };
  /** Bits of `completionTs` that count; 0 when it has no timestamps. */
  completionTimestampMask: bigint;
  /** Frequency of its clock, in kHz. */
  hcaCoreClock: bigint;
  /** `DeviceCapFlags`, and those above 32 bits: `DeviceCapFlagsEx`. */
  deviceCapFlagsEx: bigint;
  /** TCP segmentation. */
  tsoCaps: {
    /** Longest packet that is cut, in bytes. */
    maxTso: number;
    /** `1 << QpType` of those that can. */
    supportedQpts: number;
  };
  /** Receive side scaling. */
  rssCaps: {
    /** `1 << QpType` of those that can. */
    supportedQpts: number;
    /** Indirection tables. */
    maxRwqIndirectionTables: number;
    /** Work queues of one. */
    maxRwqIndirectionTableSize: number;
    /** Fields of packets that can be hashed: `RxHashFields` joined with `|`. */
    rxHashFieldsMask: bigint;
    /** How: `RxHashFunctionFlags` joined with `|`. */
    rxHashFunction: number;
  };
  /** Receive work queues. */
  maxWqTypeRq: number;
  /** Rate limits of queue pairs, in kbit/s. */
  packetPacingCaps: {
    /** Lowest. */
    qpRateLimitMin: number;
    /** Highest. */
    qpRateLimitMax: number;
    /** `1 << QpType` of those that can. */
    supportedQpts: number;
  };
  /** `RawPacketCaps` joined with `|`. */
  rawPacketCaps: number;
  /** Tag matching. */
  tmCaps: {
    /** Longest header of a rendezvous request, in bytes. */
    maxRndvHdrSize: number;
    /** Tagged buffers of a list. */
    maxNumTags: number;
    /** `TmCapFlags` joined with `|`. */
    flags: number;
    /** List operations outstanding. */
    maxOps: number;
    /** Elements of a tagged buffer. */
    maxSge: number;
  };
  /** What `cq.modify()` takes. */
  cqModCaps: {
    /** Completions. */
    maxCqCount: number;
    /** Microseconds. */
    maxCqPeriod: number;
  };
  /** Device memory, in bytes. */
  maxDmSize: bigint;
  /** Atomics over PCIe: `PciAtomicOpSize` joined with `|`. */
  pciAtomicCaps: {
    /** Fetch and add. */
    fetchAdd: number;
    /** Swap. */
    swap: number;
    /** Compare and swap. */
    compareSwap: number;
  };
  /** On-demand paging of XRC, as of the other transports. */
  xrcOdpCaps: number;
  /** Ports, where there are more than `physPortCnt` can say. */
  physPortCntEx: number;
}

/** Real-time values of a device: `struct ibv_values_ex`. */
export interface RtValues {
  /** Its clock, in the unit of `completionTs` of completions; undefined when the device does not tell. */
  rawClock?: bigint;
}

/** @internal */
export const printedRtValues = printed<RtValues>('RtValues', {});

// `1 << QpType`, by the names of the types that fit: one of a driver's own does not.
const typeBits = Object.fromEntries(
  Object.entries(QpType).flatMap(([name, type]) => (type < 32 ? [[name, 2 ** type]] : [])),
);

/** Types of queue pairs: `1 << QpType`, joined with `|`. @internal */
export const qpTypes = flagged(typeBits);

/** Of one transport. @internal */
export const odpCaps = flagged(OdpTransportCapBits);

const atomicSizes = flagged(PciAtomicOpSize);

/** @internal */
export const printedDeviceAttrEx = printed<DeviceAttrEx>('DeviceAttrEx', {
  odpCaps: ({ generalCaps, perTransportCaps: { rcOdpCaps, ucOdpCaps, udOdpCaps } }) => ({
    generalCaps: flagged(OdpGeneralCaps)(generalCaps),
    perTransportCaps: { rcOdpCaps: odpCaps(rcOdpCaps), ucOdpCaps: odpCaps(ucOdpCaps), udOdpCaps: odpCaps(udOdpCaps) },
  }),
  completionTimestampMask: hex,
  deviceCapFlagsEx: flagged({ ...DeviceCapFlags, ...DeviceCapFlagsEx }),
  tsoCaps: (caps) => ({ ...caps, supportedQpts: qpTypes(caps.supportedQpts) }),
  rssCaps: (caps) => ({
    ...caps,
    supportedQpts: qpTypes(caps.supportedQpts),
    rxHashFieldsMask: flagged(RxHashFields)(caps.rxHashFieldsMask),
    rxHashFunction: flagged(RxHashFunctionFlags)(caps.rxHashFunction),
  }),
  packetPacingCaps: (caps) => ({ ...caps, supportedQpts: qpTypes(caps.supportedQpts) }),
  rawPacketCaps: flagged(RawPacketCaps),
  tmCaps: (caps) => ({ ...caps, flags: flagged(TmCapFlags)(caps.flags) }),
  pciAtomicCaps: ({ fetchAdd, swap, compareSwap }) => ({
    fetchAdd: atomicSizes(fetchAdd),
    swap: atomicSizes(swap),
    compareSwap: atomicSizes(compareSwap),
  }),
  xrcOdpCaps: odpCaps,
});
