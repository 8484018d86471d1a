/** The specifications of a flow steering rule, written as C has them: ibv_create_flow(3). */
import { isIPv4 } from 'node:net';
import {
  boolean,
  instance,
  integer,
  object,
  oneOf,
  rangeError,
  readOptions,
  typeError,
  uint32,
  valueError,
} from '../args.ts';
import { FlowAttrType, FlowSpecType } from '../native/constants.gen.ts';
import { Layout } from '../native/layout.gen.ts';
import { Counters } from './counters.ts';
import { parseGid } from './gid.ts';

/** `struct ibv_flow_eth_filter`. A MAC is written as `'02:00:00:00:00:01'`; numbers are in host byte order. */
export interface FlowEthFilter {
  /** Destination MAC. */
  dstMac?: string;
  /** Source MAC. */
  srcMac?: string;
  /** EtherType, behind the last VLAN tag. */
  etherType?: number;
  /** 802.1q: priority (3 bits), CFI (1), VLAN (12). */
  vlanTag?: number;
}

/** `struct ibv_flow_ipv4_filter`. */
export interface FlowIpv4Filter {
  /** Source address, as `'10.0.0.1'`. */
  srcIp?: string;
  /** Destination address. */
  dstIp?: string;
}

/** `struct ibv_flow_ipv4_ext_filter`. */
export interface FlowIpv4ExtFilter extends FlowIpv4Filter {
  /** Protocol: 17 is UDP. */
  proto?: number;
  /** Type of service. */
  tos?: number;
  /** Time to live. */
  ttl?: number;
  /** Fragmentation flags. */
  flags?: number;
}

/** `struct ibv_flow_ipv6_filter`. */
export interface FlowIpv6Filter {
  /** Source address, as `'fe80::1'`. */
  srcIp?: string;
  /** Destination address. */
  dstIp?: string;
  /** Flow label: 20 bits. */
  flowLabel?: number;
  /** Next header: 17 is UDP. */
  nextHdr?: number;
  /** Traffic class. */
  trafficClass?: number;
  /** Hop limit. */
  hopLimit?: number;
}

/** `struct ibv_flow_esp_filter`. */
export interface FlowEspFilter {
  /** Security parameters index. */
  spi?: number;
  /** Sequence number. */
  seq?: number;
}

/** `struct ibv_flow_tcp_udp_filter`. */
export interface FlowTcpUdpFilter {
  /** Destination port. */
  dstPort?: number;
  /** Source port. */
  srcPort?: number;
}

/** `struct ibv_flow_gre_filter`. */
export interface FlowGreFilter {
  /** The first 16 bits of the header: which fields there are, and the version. */
  cKsRes0Ver?: number;
  /** EtherType of what is within. */
  protocol?: number;
  /** Key. */
  key?: number;
}

/** `struct ibv_flow_mpls_filter`. */
export interface FlowMplsFilter {
  /** The whole entry: label (20 bits), traffic class (3), bottom of stack (1), time to live (8). */
  label?: number;
}

/** `struct ibv_flow_tunnel_filter`. */
export interface FlowTunnelFilter {
  /** Network identifier: 24 bits. */
  tunnelId?: number;
}

/** A header that a packet must have. */
export interface FlowHeader<Type extends FlowSpecType, Filter> {
  /** Which header: one of `FlowSpecType`. */
  type: Type;
  /** What it must be like. A field that is in neither `val` nor `mask` may be anything. */
  val: Filter;
  /**
   * Which bits of each field count, in the same notation. Default all of a field that is in `val`. Most devices take all or
   * none.
   */
  mask?: Filter;
  /** Whether the header within a tunnel is meant (`IBV_FLOW_SPEC_INNER`). Default false. */
  inner?: boolean;
}

/** Gives the packet a tag: `struct ibv_flow_spec_action_tag`. */
export interface FlowTag {
  /** `FlowSpecType.ACTION_TAG`. */
  type: (typeof FlowSpecType)['ACTION_TAG'];
  /** The tag: 32 bits. */
  tagId: number;
}

/** Drops the packet: `struct ibv_flow_spec_action_drop`. */
export interface FlowDrop {
  /** `FlowSpecType.ACTION_DROP`. */
  type: (typeof FlowSpecType)['ACTION_DROP'];
}

/** Counts the packet: `struct ibv_flow_spec_counter_action`. */
export interface FlowCount {
  /** `FlowSpecType.ACTION_COUNT`. */
  type: (typeof FlowSpecType)['ACTION_COUNT'];
  /** Where to: held open by the rule. */
  counters: Counters;
}

/** A specification of a rule: `struct ibv_flow_spec`: a header that packets must have, or an action. */
export type FlowSpec =
  | FlowHeader<(typeof FlowSpecType)['ETH'], FlowEthFilter>
  | FlowHeader<(typeof FlowSpecType)['IPV4'], FlowIpv4Filter>
  | FlowHeader<(typeof FlowSpecType)['IPV4_EXT'], FlowIpv4ExtFilter>
  | FlowHeader<(typeof FlowSpecType)['IPV6'], FlowIpv6Filter>
  | FlowHeader<(typeof FlowSpecType)['ESP'], FlowEspFilter>
  | FlowHeader<(typeof FlowSpecType)['TCP'] | (typeof FlowSpecType)['UDP'], FlowTcpUdpFilter>
  | FlowHeader<(typeof FlowSpecType)['GRE'], FlowGreFilter>
  | FlowHeader<(typeof FlowSpecType)['MPLS'], FlowMplsFilter>
  | FlowHeader<(typeof FlowSpecType)['VXLAN_TUNNEL'], FlowTunnelFilter>
  | FlowTag
  | FlowDrop
  | FlowCount;

/** What a rule is made of: `struct ibv_flow_attr`. */
export interface FlowAttr {
  /** What it is about. Default `FlowAttrType.NORMAL`. */
  type?: FlowAttrType;
  /** The lower, the sooner it is tried: 16 bits. Default 0. */
  priority?: number;
  /** The port, from 1. Default 1. */
  port?: number;
  /** `FlowFlags` joined with `|`. Default 0. */
  flags?: number;
  /** The headers that packets must have, and what is done with them besides. Default none, which `SNIFFER` needs. */
  specs?: readonly FlowSpec[];
}

/** How a field is written: its bytes in network order, and those of the mask that means all of it. */
interface Field {
  bytes(value: unknown, name: string): Uint8Array;
  all: Uint8Array;
}

function number(bits: number): Field {
  const max = 2 ** bits - 1;
  const size = 2 ** Math.ceil(Math.log2(Math.max(bits, 8))) / 8;
  const bytes = (value: number) => {
    const buffer = Buffer.alloc(size);
    buffer.writeUIntBE(value, 0, size);
    return buffer;
  };
  return { bytes: (value, name) => bytes(integer(value, name, 0, max)), all: bytes(max) };
}

const mac: Field = {
  bytes(value, name) {
    if (typeof value !== 'string') throw typeError(name, "a string such as '02:00:00:00:00:01'", value);
    if (!/^([0-9a-f]{2}:){5}[0-9a-f]{2}$/i.test(value)) {
      throw valueError(`${name} must be a MAC address such as '02:00:00:00:00:01', not '${value}'`);
    }
    return Buffer.from(value.replaceAll(':', ''), 'hex');
  },
  all: Buffer.alloc(6, 0xff),
};

const ipv4: Field = {
  bytes(value, name) {
    if (typeof value !== 'string') throw typeError(name, "a string such as '10.0.0.1'", value);
    if (!isIPv4(value)) throw valueError(`${name} must be an IPv4 address, not '${value}'`);
    return Uint8Array.from(value.split('.'), Number);
  },
  all: Buffer.alloc(4, 0xff),
};

const ipv6: Field = {
  bytes(value, name) {
    if (typeof value !== 'string') throw typeError(name, "a string such as 'fe80::1'", value);
    return parseGid(value, name);
  },
  all: Buffer.alloc(16, 0xff),
};

const ipv4Fields = { srcIp: ipv4, dstIp: ipv4 };
const portFields = { dstPort: number(16), srcPort: number(16) };

/** Each header: its struct, and its fields, by their names there. */
const headers = new Map<number, { layout: HeaderLayout; fields: Record<string, Field> }>([
  [
    FlowSpecType.ETH,
    {
      layout: Layout.flowSpecEth,
      fields: { dstMac: mac, srcMac: mac, etherType: number(16), vlanTag: number(16) },
    },
  ],
  [FlowSpecType.IPV4, { layout: Layout.flowSpecIpv4, fields: ipv4Fields }],
  [
    FlowSpecType.IPV4_EXT,
    {
      layout: Layout.flowSpecIpv4Ext,
      fields: { ...ipv4Fields, proto: number(8), tos: number(8), ttl: number(8), flags: number(8) },
    },
  ],
  [
    FlowSpecType.IPV6,
    {
      layout: Layout.flowSpecIpv6,
      fields: {
        srcIp: ipv6,
        dstIp: ipv6,
        flowLabel: number(20),
        nextHdr: number(8),
        trafficClass: number(8),
        hopLimit: number(8),
      },
    },
  ],
  [FlowSpecType.ESP, { layout: Layout.flowSpecEsp, fields: { spi: number(32), seq: number(32) } }],
  [FlowSpecType.TCP, { layout: Layout.flowSpecTcpUdp, fields: portFields }],
  [FlowSpecType.UDP, { layout: Layout.flowSpecTcpUdp, fields: portFields }],
  [
    FlowSpecType.GRE,
    { layout: Layout.flowSpecGre, fields: { cKsRes0Ver: number(16), protocol: number(16), key: number(32) } },
  ],
  [FlowSpecType.MPLS, { layout: Layout.flowSpecMpls, fields: { label: number(32) } }],
  [FlowSpecType.VXLAN_TUNNEL, { layout: Layout.flowSpecTunnel, fields: { tunnelId: number(24) } }],
]);

interface HeaderLayout {
  readonly size: number;
  readonly val: number;
  readonly mask: number;
}

/** A rule as C has it; the addresses of the counters are the addon's to fill in. @internal */
export interface EncodedFlow {
  bytes: Uint8Array;
  /** Those of each ACTION_COUNT, in order. */
  counters: Counters[];
}

/** Checks a rule, and writes it. @internal */
export function encodeFlow(attr: FlowAttr): EncodedFlow {
  if (attr === undefined) throw typeError('attr', 'an object', attr);
  const known = ['type', 'priority', 'port', 'flags', 'specs'];
  const {
    type = FlowAttrType.NORMAL,
    priority = 0,
    port = 1,
    flags = 0,
    specs = [],
  } = readOptions(attr, 'attr', known);
  if (!Array.isArray(specs)) throw typeError('attr.specs', 'an array', specs);
  // Their number has 8 bits in struct ibv_flow_attr.
  if (specs.length > 255) throw rangeError(`attr.specs has ${specs.length} elements, more than 255`);
  const counters: Counters[] = [];
  const encoded = specs.map((spec: FlowSpec, i) => encodeSpec(spec, `attr.specs[${i}]`, counters));
  const at = Layout.flowAttr;
  const head = Buffer.alloc(at.size);
  const size = encoded.reduce((sum, { length }) => sum + length, at.size as number);
  head.writeUInt32LE(oneOf(type, 'attr.type', FlowAttrType, 'FlowAttrType'), at.type);
  head.writeUInt16LE(size, at.sizeOfAll);
  head.writeUInt16LE(integer(priority, 'attr.priority', 0, 0xffff), at.priority);
  head.writeUInt8(specs.length, at.numOfSpecs);
  head.writeUInt8(integer(port, 'attr.port', 1, 255), at.port);
  head.writeUInt32LE(uint32(flags, 'attr.flags'), at.flags);
  return { bytes: Buffer.concat([head, ...encoded]), counters };
}

function encodeSpec(spec: FlowSpec, name: string, counters: Counters[]): Buffer {
  object(spec, name);
  const { type } = spec;
  oneOf(type, `${name}.type`, FlowSpecType, 'FlowSpecType');
  const header = headers.get(type);
  if (header !== undefined) return encodeHeader(spec as FlowHeader<FlowSpecType, object>, name, header);
  switch (type) {
    case FlowSpecType.ACTION_TAG: {
      const { tagId } = readOptions(spec, name, ['type', 'tagId']);
      const bytes = begin(type, Layout.flowSpecActionTag.size);
      bytes.writeUInt32LE(uint32(tagId, `${name}.tagId`), Layout.flowSpecActionTag.tagId);
      return bytes;
    }
    case FlowSpecType.ACTION_DROP:
      readOptions(spec, name, ['type']);
      return begin(type, Layout.flowSpecActionDrop.size);
    case FlowSpecType.ACTION_COUNT: {
      const given = readOptions(spec, name, ['type', 'counters']).counters;
      const found = instance(given, `${name}.counters`, Counters);
      found.requireOpen();
      counters.push(found);
      return begin(type, Layout.flowSpecCounterAction.size);
    }
    default:
      throw valueError(`${name}.type: ${type} is not a header or an action that this package can make`);
  }
}

// A struct with its type and its size, which all begin with.
function begin(type: number, size: number): Buffer {
  const bytes = Buffer.alloc(size);
  bytes.writeUInt32LE(type, Layout.flowSpec.type);
  bytes.writeUInt16LE(size, Layout.flowSpec.sizeOfSpec);
  return bytes;
}

function encodeHeader(
  spec: FlowHeader<FlowSpecType, object>,
  name: string,
  { layout, fields }: { layout: HeaderLayout; fields: Record<string, Field> },
): Buffer {
  const { type, val, mask, inner = false } = readOptions(spec, name, ['type', 'val', 'mask', 'inner']);
  if (val === undefined) throw typeError(`${name}.val`, 'an object', val);
  const names = Object.keys(fields);
  const values = readOptions(val, `${name}.val`, names) as Record<string, unknown>;
  const masks = readOptions(mask, `${name}.mask`, names) as Record<string, unknown>;
  const isInner = boolean(inner, `${name}.inner`);
  const bytes = begin((type as number) | (isInner ? FlowSpecType.INNER : 0), layout.size);
  const offsets = layout as unknown as Record<string, number>;
  for (const [field, { bytes: encode, all }] of Object.entries(fields)) {
    const at = offsets[field] as number;
    const { [field]: value } = values;
    const { [field]: given } = masks;
    if (value !== undefined) bytes.set(encode(value, `${name}.val.${field}`), at);
    const counted =
      given !== undefined ? encode(given, `${name}.mask.${field}`) : value !== undefined ? all : undefined;
    if (counted !== undefined) bytes.set(counted, at - layout.val + layout.mask);
  }
  return bytes;
}
