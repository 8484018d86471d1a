/** Packets as plain objects: decode one to look at it, encode one to send it. */

import { integer, object, readOptions, typeError, valueError } from '../args.ts';
import {
  asBuffer,
  type Bth,
  type BthInit,
  type HeaderInit,
  type Headers,
  hasFields,
  readHeader,
  writeHeader,
} from './headers.ts';
import { computeIcrc, type Network } from './icrc.ts';
import {
  type Ethernet,
  type EthernetInit,
  type Grh,
  type GrhInit,
  type Ipv4,
  type Ipv4Init,
  type Ipv6,
  type Ipv6Init,
  readEthernet,
  readGrh,
  readIpv4,
  readIpv6,
  writeEthernet,
  writeGrh,
  writeIpv4,
  writeIpv6,
} from './lower.ts';
import { BTH_LENGTH, extendedHeaderLength, type OpcodeInfo, opcodeTable } from './opcodes.ts';
import { ICRC_LENGTH, LinkType, PacketView, ROCE_V1_ETHERTYPE, ROCE_V2_PORT } from './view.ts';

/** UDP header of RoCE v2. */
export interface Udp {
  /** Source port: a hash of the connection, so that paths are shared out. */
  srcPort: number;
  /** Checksum; 0, the custom of RoCE v2, is none. Default 0. */
  checksum: number;
}

/** A packet of RoCE v2 (`ipv4` or `ipv6`, and `udp`) or v1 (`grh`). */
export interface Packet extends Partial<Omit<Headers, 'bth'>> {
  /** Ethernet header; absent when the capture has a Linux cooked one. */
  ethernet?: Ethernet;
  /** IPv4 header, of RoCE v2. */
  ipv4?: Ipv4;
  /** IPv6 header, of RoCE v2. */
  ipv6?: Ipv6;
  /** UDP header, of RoCE v2. */
  udp?: Udp;
  /** Global route header, of RoCE v1. */
  grh?: Grh;
  /** Base transport header. */
  bth: Bth;
  /** The data, without padding. */
  payload: Buffer;
  /** The invariant CRC as it was sent, in the order of bytes on the wire. */
  icrc: number;
  /** Whether it is right. */
  icrcOk: boolean;
}

/** A packet as it is given to be encoded: what has a default may be left out, and what can be computed is. */
export interface PacketInit extends Partial<Omit<Headers, 'bth'>> {
  /** Ethernet header. Must be there, though a decoded packet may lack one. */
  ethernet?: EthernetInit;
  /** IPv4 header, for RoCE v2. */
  ipv4?: Ipv4Init;
  /** IPv6 header, for RoCE v2. */
  ipv6?: Ipv6Init;
  /** UDP header, for RoCE v2. */
  udp?: Partial<Udp>;
  /** Global route header, for RoCE v1. */
  grh?: GrhInit;
  /** Base transport header. `padCnt` is computed. */
  bth: BthInit;
  /** The data. Default none. */
  payload?: Uint8Array;
}

/**
 * Reads a whole packet. For many packets a {@link PacketView} is faster.
 *
 * @param bytes - the frame; the payload of the result is a view on it
 * @param options - `linkType`: what the frame begins with, one of {@link LinkType}. Default Ethernet
 * @throws {@link PacketError} when it is cut short, contradicts itself or is no RoCE; a wrong ICRC is no error
 */
export function decodePacket(bytes: Uint8Array, options: { linkType?: LinkType } = {}): Packet {
  const { linkType = LinkType.ETHERNET } = readOptions(options, 'options', ['linkType']);
  const view = new PacketView();
  const buffer = asBuffer(bytes);
  if (!view.load(buffer, 0, buffer.length, linkType)) throw view.error()!;
  const { networkAt, bthAt, info } = view;
  const headers: Record<string, unknown> = {};
  let at = bthAt + BTH_LENGTH;
  for (const header of info.headers) {
    if (hasFields(header)) headers[header] = readHeader(buffer, at, header);
    at += extendedHeaderLength[header];
  }
  return {
    ...(linkType === LinkType.ETHERNET && { ethernet: readEthernet(buffer, view.etherTypeAt) }),
    ...(view.network === 4 && { ipv4: readIpv4(buffer, networkAt) }),
    ...(view.network === 6 && { ipv6: readIpv6(buffer, networkAt) }),
    ...(view.network === 'grh'
      ? { grh: readGrh(buffer, networkAt) }
      : { udp: { srcPort: view.srcPort, checksum: buffer.readUInt16BE(bthAt - 2) } }),
    bth: readHeader(buffer, bthAt, 'bth'),
    ...headers,
    payload: asBuffer(view.payload),
    icrc: view.icrc!,
    icrcOk: view.icrcOk!,
  };
}

/**
 * Builds a packet. Lengths, the IPv4 checksum, the pad count, the padding and the ICRC are computed, whatever the object
 * says of them; so a decoded packet can be changed and encoded again. The frame check sequence of Ethernet is left to
 * the NIC, as in captures.
 *
 * @param packet - exactly one of `ipv4`, `ipv6` and `grh`, and the extended headers that the opcode has
 * @returns new bytes
 * @throws TypeError or RangeError, naming the field
 */
export function encodePacket(packet: PacketInit): Buffer {
  object(packet, 'packet');
  object(packet.bth, 'bth');
  const network = networkOf(packet);
  const info = opcodeTable[integer(packet.bth.opcode, 'bth.opcode', 0, 255)];
  if (info === undefined) throw valueError(`bth.opcode 0x${packet.bth.opcode.toString(16)} is reserved`);
  checkHeaders(packet, info);
  const { ethernet, payload = new Uint8Array(0) } = packet;
  if (ethernet === undefined) throw valueError('A packet needs ethernet');
  object(ethernet, 'ethernet');
  if (!(payload instanceof Uint8Array)) throw typeError('payload', 'a Uint8Array', payload);
  const padCnt = -payload.length & 3;

  const networkAt = 14 + 4 * (ethernet.vlans?.length ?? 0);
  const udpAt = networkAt + (network === 4 ? 20 : 40);
  const bthAt = udpAt + (network === 'grh' ? 0 : 8);
  const icrcAt = bthAt + info.headerLength + payload.length + padCnt;
  const length = icrcAt + ICRC_LENGTH - udpAt;
  integer(payload.length, 'payload.length', 0, 0xffff - (length - payload.length) - 20);

  const bytes = Buffer.alloc(icrcAt + ICRC_LENGTH);
  const etherTypes = { 4: 0x0800, 6: 0x86dd, grh: ROCE_V1_ETHERTYPE };
  writeEthernet(bytes, ethernet, etherTypes[network]);
  if (network === 4) writeIpv4(bytes, networkAt, packet.ipv4!, length);
  if (network === 6) writeIpv6(bytes, networkAt, packet.ipv6!, length);
  if (network === 'grh') writeGrh(bytes, networkAt, packet.grh!, length);
  else {
    bytes.writeUInt16BE(integer(packet.udp?.srcPort ?? DEFAULT_SOURCE_PORT, 'udp.srcPort', 0, 0xffff), udpAt);
    bytes.writeUInt16BE(ROCE_V2_PORT, udpAt + 2);
    bytes.writeUInt16BE(length, udpAt + 4);
    bytes.writeUInt16BE(integer(packet.udp?.checksum ?? 0, 'udp.checksum', 0, 0xffff), udpAt + 6);
  }
  writeHeader(bytes, bthAt, 'bth', { ...packet.bth, padCnt });
  let at = bthAt + BTH_LENGTH;
  for (const header of info.headers) {
    if (hasFields(header)) writeHeader(bytes, at, header, packet[header] as HeaderInit<typeof header>);
    at += extendedHeaderLength[header];
  }
  bytes.set(payload, at);
  bytes.writeUInt32BE(computeIcrc(bytes, network, networkAt, bthAt, icrcAt), icrcAt);
  return bytes;
}

// The first of the range that RoCE v2 recommends for source ports.
const DEFAULT_SOURCE_PORT = 0xc000;

function networkOf(packet: PacketInit): Network {
  const given: Network[] = [];
  if (packet.ipv4 !== undefined) given.push(4);
  if (packet.ipv6 !== undefined) given.push(6);
  if (packet.grh !== undefined) given.push('grh');
  if (given.length !== 1) throw valueError('A packet needs exactly one of ipv4, ipv6 and grh');
  if (packet.grh !== undefined && packet.udp !== undefined) throw valueError('RoCE v1 (grh) has no udp');
  const name = given[0] === 'grh' ? 'grh' : (`ipv${given[0]!}` as const);
  object(packet[name], name);
  return given[0]!;
}

const names = ['xrceth', 'deth', 'feth', 'reth', 'atomicEth', 'aeth', 'atomicAckEth', 'immDt', 'ieth'] as const;

/** A header too many would be dropped in silence, one missing would be zeros. */
function checkHeaders(packet: PacketInit, info: OpcodeInfo): void {
  for (const name of names) {
    const isThere = packet[name] !== undefined;
    if (isThere !== info.headers.includes(name)) {
      throw valueError(`${info.name} ${isThere ? 'has no' : 'needs'} ${name}`);
    }
  }
}
