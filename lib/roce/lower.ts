/** What carries RoCE: Ethernet with VLAN tags, IPv4, IPv6, and the GRH of RoCE v1, as plain objects. */

import { boolean, integer } from '../args.ts';
import { internetChecksum } from '../checksum.ts';
import { formatIpv4, formatIpv6, formatMac, parseIpv4, parseIpv6, parseMac } from './addresses.ts';

/** The values of `ecn` in IP. */
export const Ecn = Object.freeze({
  /** The sender does not take part. */
  NOT_ECT: 0,
  /** Capable, one of two ways to say so. */
  ECT_1: 1,
  /** Capable, the usual way to say so. */
  ECT_0: 2,
  /** A switch has met congestion. */
  CE: 3,
} as const);

/** One of the values of {@link Ecn}. */
export type Ecn = (typeof Ecn)[keyof typeof Ecn];

/** A VLAN tag. */
export interface Vlan {
  /** Identifies the tag: 0x8100 for a VLAN, 0x88a8 for a provider's outer tag. Default 0x8100. */
  tpid: number;
  /** Priority, 0 to 7. Default 0. */
  pcp: number;
  /** Drop eligible. Default false. */
  dei: boolean;
  /** VLAN number, 0 to 4095. */
  vid: number;
}

/** Ethernet header. */
export interface Ethernet {
  /** MAC address of the receiver. */
  dst: string;
  /** MAC address of the sender. */
  src: string;
  /** VLAN tags, outermost first. Default none. */
  vlans: Vlan[];
}

/** IPv4 header. */
export interface Ipv4 {
  /** Address of the sender. */
  src: string;
  /** Address of the receiver. */
  dst: string;
  /** Differentiated services, six bits. Default 0. */
  dscp: number;
  /** Congestion notification. Default `Ecn.NOT_ECT`. */
  ecn: Ecn;
  /** Time to live. Default 64. */
  ttl: number;
  /** Identification. Default 0. */
  id: number;
  /** Whether it may not be fragmented. Default true. */
  dontFragment: boolean;
}

/** IPv6 header. */
export interface Ipv6 {
  /** Address of the sender. */
  src: string;
  /** Address of the receiver. */
  dst: string;
  /** Differentiated services, six bits. Default 0. */
  dscp: number;
  /** Congestion notification. Default `Ecn.NOT_ECT`. */
  ecn: Ecn;
  /** Flow label, 20 bits. Default 0. */
  flowLabel: number;
  /** Hop limit. Default 64. */
  hopLimit: number;
}

/** Global route header of RoCE v1. */
export interface Grh {
  /** GID of the sender, as an IPv6 address. */
  sgid: string;
  /** GID of the receiver. */
  dgid: string;
  /** Traffic class, eight bits. Default 0. */
  tClass: number;
  /** Flow label, 20 bits. Default 0. */
  flowLabel: number;
  /** Hop limit. Default 64. */
  hopLmt: number;
}

/** A VLAN tag as it is given. */
export type VlanInit = Pick<Vlan, 'vid'> & Partial<Vlan>;
/** An Ethernet header as it is given. */
export interface EthernetInit extends Pick<Ethernet, 'dst' | 'src'> {
  /** VLAN tags, outermost first. Default none. */
  vlans?: VlanInit[];
}
/** An IPv4 header as it is given. */
export type Ipv4Init = Pick<Ipv4, 'src' | 'dst'> & Partial<Ipv4>;
/** An IPv6 header as it is given. */
export type Ipv6Init = Pick<Ipv6, 'src' | 'dst'> & Partial<Ipv6>;
/** A global route header as it is given. */
export type GrhInit = Pick<Grh, 'sgid' | 'dgid'> & Partial<Grh>;

const UDP = 17;
/** The next header of a GRH before a BTH. */
const IBA = 0x1b;

export function readEthernet(source: Buffer, etherTypeAt: number): Ethernet {
  const vlans: Vlan[] = [];
  for (let at = 12; at < etherTypeAt; at += 4) {
    const tag = source.readUInt16BE(at + 2);
    vlans.push({ tpid: source.readUInt16BE(at), pcp: tag >> 13, dei: (tag & 0x1000) !== 0, vid: tag & 0xfff });
  }
  return { dst: formatMac(source, 0), src: formatMac(source, 6), vlans };
}

export function writeEthernet(target: Buffer, ethernet: EthernetInit, etherType: number): void {
  target.set(parseMac(ethernet.dst, 'ethernet.dst'), 0);
  target.set(parseMac(ethernet.src, 'ethernet.src'), 6);
  let at = 12;
  for (const { tpid = 0x8100, pcp = 0, dei = false, vid } of ethernet.vlans ?? []) {
    integer(pcp, 'vlan.pcp', 0, 7);
    const tag = (pcp << 13) | (Number(boolean(dei, 'vlan.dei')) << 12) | integer(vid, 'vlan.vid', 0, 0xfff);
    target.writeUInt16BE(integer(tpid, 'vlan.tpid', 0, 0xffff), at);
    target.writeUInt16BE(tag, at + 2);
    at += 4;
  }
  target.writeUInt16BE(etherType, at);
}

export function readIpv4(source: Buffer, at: number): Ipv4 {
  return {
    src: formatIpv4(source, at + 12),
    dst: formatIpv4(source, at + 16),
    dscp: source[at + 1]! >> 2,
    ecn: (source[at + 1]! & 3) as Ecn,
    ttl: source[at + 8]!,
    id: source.readUInt16BE(at + 4),
    dontFragment: (source[at + 6]! & 0x40) !== 0,
  };
}

/** `length` is that of what follows the header. */
export function writeIpv4(target: Buffer, at: number, ip: Ipv4Init, length: number): void {
  const { dscp = 0, ecn = Ecn.NOT_ECT, ttl = 64, id = 0, dontFragment = true } = ip;
  target[at] = 0x45;
  target[at + 1] = trafficClass(dscp, ecn, 'ipv4');
  target.writeUInt16BE(20 + length, at + 2);
  target.writeUInt16BE(integer(id, 'ipv4.id', 0, 0xffff), at + 4);
  target[at + 6] = boolean(dontFragment, 'ipv4.dontFragment') ? 0x40 : 0;
  target[at + 8] = integer(ttl, 'ipv4.ttl', 0, 255);
  target[at + 9] = UDP;
  target.set(parseIpv4(ip.src, 'ipv4.src'), at + 12);
  target.set(parseIpv4(ip.dst, 'ipv4.dst'), at + 16);
  target.writeUInt16BE(internetChecksum(target, at, 20), at + 10);
}

export function readIpv6(source: Buffer, at: number): Ipv6 {
  const word = source.readUInt32BE(at);
  return {
    src: formatIpv6(source, at + 8),
    dst: formatIpv6(source, at + 24),
    dscp: (word >>> 22) & 63,
    ecn: ((word >>> 20) & 3) as Ecn,
    flowLabel: word & 0xfffff,
    hopLimit: source[at + 7]!,
  };
}

/** `length` is that of what follows the header. */
export function writeIpv6(target: Buffer, at: number, ip: Ipv6Init, length: number): void {
  const { dscp = 0, ecn = Ecn.NOT_ECT, flowLabel = 0, hopLimit = 64 } = ip;
  const word = (trafficClass(dscp, ecn, 'ipv6') << 20) | integer(flowLabel, 'ipv6.flowLabel', 0, 0xfffff);
  writeVersion6(target, at, word, length, UDP, integer(hopLimit, 'ipv6.hopLimit', 0, 255));
  target.set(parseIpv6(ip.src, 'ipv6.src'), at + 8);
  target.set(parseIpv6(ip.dst, 'ipv6.dst'), at + 24);
}

export function readGrh(source: Buffer, at: number): Grh {
  const word = source.readUInt32BE(at);
  return {
    sgid: formatIpv6(source, at + 8),
    dgid: formatIpv6(source, at + 24),
    tClass: (word >>> 20) & 255,
    flowLabel: word & 0xfffff,
    hopLmt: source[at + 7]!,
  };
}

/** `length` is that of what follows the header. */
export function writeGrh(target: Buffer, at: number, grh: GrhInit, length: number): void {
  const { tClass = 0, flowLabel = 0, hopLmt = 64 } = grh;
  const word = (integer(tClass, 'grh.tClass', 0, 255) << 20) | integer(flowLabel, 'grh.flowLabel', 0, 0xfffff);
  writeVersion6(target, at, word, length, IBA, integer(hopLmt, 'grh.hopLmt', 0, 255));
  target.set(parseIpv6(grh.sgid, 'grh.sgid'), at + 8);
  target.set(parseIpv6(grh.dgid, 'grh.dgid'), at + 24);
}

function writeVersion6(target: Buffer, at: number, word: number, length: number, next: number, hops: number): void {
  target.writeUInt32BE((0x6000_0000 | word) >>> 0, at);
  target.writeUInt16BE(length, at + 4);
  target[at + 6] = next;
  target[at + 7] = hops;
}

function trafficClass(dscp: unknown, ecn: unknown, name: string): number {
  return (integer(dscp, `${name}.dscp`, 0, 63) << 2) | integer(ecn, `${name}.ecn`, 0, 3);
}
