/** Reads packets without making objects: for captures of any size, at capture speed. */

import { typeError } from '../args.ts';
import { formatIpv4, formatIpv6 } from './addresses.ts';
import { PacketError, type PacketErrorCode } from './errors.ts';
import { computeIcrc, type Network } from './icrc.ts';
import { BTH_LENGTH, type ExtendedHeader, extendedHeaderLength, type OpcodeInfo, opcodeTable } from './opcodes.ts';

/** The UDP port of RoCE v2. */
export const ROCE_V2_PORT = 4791;
/** The EtherType of RoCE v1. */
export const ROCE_V1_ETHERTYPE = 0x8915;

/** What a captured frame begins with, by the numbers that capture files use. */
export const LinkType = Object.freeze({
  /** An Ethernet header. */
  ETHERNET: 1,
  /** A Linux "cooked" header, as `tcpdump -i any` writes it. */
  LINUX_SLL: 113,
  /** The newer Linux "cooked" header. */
  LINUX_SLL2: 276,
} as const);

/** One of the values of {@link LinkType}. */
export type LinkType = (typeof LinkType)[keyof typeof LinkType];

/** Bytes of the ICRC. */
export const ICRC_LENGTH = 4;

const headerLengths = Uint8Array.from(opcodeTable, (info) => info?.headerLength ?? 0);

/** For each opcode the distance of a header from the BTH; 0 where the opcode has none. */
function distances(wanted: ExtendedHeader): Uint8Array {
  return Uint8Array.from(opcodeTable, (info) => {
    let at = BTH_LENGTH;
    for (const header of info?.headers ?? []) {
      if (header === wanted) return at;
      at += extendedHeaderLength[header];
    }
    return 0;
  });
}

const reth = distances('reth');
const aeth = distances('aeth');
const deth = distances('deth');

/**
 * A window on one packet at a time. Point it at bytes with {@link PacketView.load}; each property then reads its field
 * from these bytes, and nothing is allocated. Reuse one view for all packets. After a `load` that gave false, only
 * {@link PacketView.error} means anything.
 */
export class PacketView {
  #bytes: Uint8Array = new Uint8Array(0);
  #start = 0;
  #end = 0;
  #etherTypeAt = 0;
  #network: Network = 4;
  #networkAt = 0;
  #bth = 0;
  #icrc = 0;
  #code: PacketErrorCode | undefined = 'ERR_ROCE_TRUNCATED';
  #offset = 0;
  #detail = 'nothing loaded';

  /**
   * Finds the headers of a frame.
   *
   * @param bytes - what holds the frame; kept, not copied
   * @param start - where it starts. Default 0
   * @param end - where it ends, or where the capture cut it. Default the end of `bytes`
   * @param linkType - what it begins with, one of {@link LinkType}. Default Ethernet
   * @param wireLength - bytes that it had on the wire; if more than there are, a payload that is cut off is no error
   * @returns whether it is a RoCE packet that can be read; see {@link PacketView.error}
   */
  load(
    bytes: Uint8Array,
    start: number = 0,
    end: number = bytes?.length,
    linkType: number = LinkType.ETHERNET,
    wireLength: number = end - start,
  ): boolean {
    if (!(bytes instanceof Uint8Array)) throw typeError('bytes', 'a Uint8Array', bytes);
    this.#bytes = bytes;
    this.#start = start;
    this.#end = end;
    this.#code = undefined;
    let at: number;
    if (linkType === LinkType.ETHERNET) {
      at = start + 14;
      this.#etherTypeAt = start + 12;
    } else if (linkType === LinkType.LINUX_SLL) {
      at = start + 16;
      this.#etherTypeAt = start + 14;
    } else if (linkType === LinkType.LINUX_SLL2) {
      at = start + 20;
      this.#etherTypeAt = start;
    } else {
      return this.#fail('ERR_ROCE_NOT_ROCE', start, 'the link type is not supported');
    }
    if (at > end) return this.#truncated('link-layer header');
    let etherType = this.#u16(this.#etherTypeAt);
    while (etherType === 0x8100 || etherType === 0x88a8) {
      if (at + 4 > end) return this.#truncated('VLAN tag');
      this.#etherTypeAt = at + 2;
      etherType = this.#u16(at + 2);
      at += 4;
    }
    this.#networkAt = at;
    switch (etherType) {
      case 0x0800:
        return this.#loadIpv4(at, wireLength);
      case 0x86dd:
        return this.#loadIpv6(at, wireLength);
      case ROCE_V1_ETHERTYPE:
        return this.#loadGrh(at, wireLength);
      default:
        return this.#fail('ERR_ROCE_NOT_ROCE', this.#etherTypeAt, 'the EtherType is neither IP nor RoCE');
    }
  }

  #loadIpv4(at: number, wireLength: number): boolean {
    const bytes = this.#bytes;
    this.#network = 4;
    if (at + 20 > this.#end) return this.#truncated('IPv4 header');
    if (bytes[at]! >> 4 !== 4) return this.#fail('ERR_ROCE_MALFORMED', at, 'the IP version is not 4');
    const headerLength = (bytes[at]! & 15) * 4;
    if (headerLength < 20) return this.#fail('ERR_ROCE_MALFORMED', at, 'the IPv4 header length is below 20');
    if (at + headerLength > this.#end) return this.#truncated('IPv4 options');
    if (bytes[at + 9] !== 17) return this.#fail('ERR_ROCE_NOT_ROCE', at + 9, 'the IP protocol is not UDP');
    const fragment = this.#u16(at + 6);
    if ((fragment & 0x1fff) !== 0) return this.#fail('ERR_ROCE_NOT_ROCE', at + 6, 'a later fragment of a datagram');
    const length = this.#u16(at + 2) - headerLength;
    if (length < 8) return this.#fail('ERR_ROCE_MALFORMED', at + 2, 'the IPv4 total length leaves no room for UDP');
    return this.#loadUdp(at + headerLength, length, wireLength, (fragment & 0x2000) !== 0);
  }

  #loadIpv6(at: number, wireLength: number): boolean {
    this.#network = 6;
    if (at + 40 > this.#end) return this.#truncated('IPv6 header');
    if (this.#bytes[at]! >> 4 !== 6) return this.#fail('ERR_ROCE_MALFORMED', at, 'the IP version is not 6');
    if (this.#bytes[at + 6] !== 17) return this.#fail('ERR_ROCE_NOT_ROCE', at + 6, 'the next header is not UDP');
    const length = this.#u16(at + 4);
    if (length < 8) return this.#fail('ERR_ROCE_MALFORMED', at + 4, 'the IPv6 payload length leaves no room for UDP');
    return this.#loadUdp(at + 40, length, wireLength, false);
  }

  #loadUdp(at: number, room: number, wireLength: number, isFragment: boolean): boolean {
    if (at + 8 > this.#end) return this.#truncated('UDP header');
    if (this.#u16(at + 2) !== ROCE_V2_PORT) {
      return this.#fail('ERR_ROCE_NOT_ROCE', at + 2, `the destination port is not ${ROCE_V2_PORT}`);
    }
    if (isFragment) return this.#fail('ERR_ROCE_MALFORMED', this.#networkAt + 6, 'RoCE must not be fragmented');
    const length = this.#u16(at + 4);
    if (length > room) return this.#fail('ERR_ROCE_MALFORMED', at + 4, 'the UDP length exceeds that of IP');
    if (length < 8) return this.#fail('ERR_ROCE_MALFORMED', at + 4, 'the UDP length is below 8');
    return this.#loadBth(at + 8, length - 8, at + 4, wireLength);
  }

  #loadGrh(at: number, wireLength: number): boolean {
    this.#network = 'grh';
    if (at + 40 > this.#end) return this.#truncated('GRH');
    if (this.#bytes[at]! >> 4 !== 6) return this.#fail('ERR_ROCE_MALFORMED', at, 'the version of the GRH is not 6');
    if (this.#bytes[at + 6] !== 0x1b) return this.#fail('ERR_ROCE_NOT_ROCE', at + 6, 'no BTH follows the GRH');
    return this.#loadBth(at + 40, this.#u16(at + 4), at + 4, wireLength);
  }

  /** `length` counts from the BTH to the ICRC, both included, and stands at `lengthAt`. */
  #loadBth(at: number, length: number, lengthAt: number, wireLength: number): boolean {
    this.#bth = at;
    this.#icrc = at + length - ICRC_LENGTH;
    if (length < BTH_LENGTH + ICRC_LENGTH) {
      return this.#fail('ERR_ROCE_MALFORMED', lengthAt, 'the length leaves no room for BTH and ICRC');
    }
    if (at + BTH_LENGTH > this.#end) return this.#truncated('BTH');
    const headerLength = headerLengths[this.#bytes[at]!]!;
    if (headerLength === 0) return this.#fail('ERR_ROCE_MALFORMED', at, 'no such opcode');
    const padCnt = (this.#bytes[at + 1]! >> 4) & 3;
    if (headerLength + ICRC_LENGTH > length) {
      return this.#fail('ERR_ROCE_MALFORMED', lengthAt, "the length leaves no room for the opcode's headers");
    }
    if (headerLength + padCnt + ICRC_LENGTH > length) {
      return this.#fail('ERR_ROCE_MALFORMED', at + 1, 'more padding than payload');
    }
    if (at + headerLength > this.#end) return this.#truncated('extended headers');
    const isCut = wireLength > this.#end - this.#start;
    if (at + length > this.#end && !isCut) return this.#truncated('payload and ICRC');
    return true;
  }

  #fail(code: PacketErrorCode, at: number, detail: string): false {
    this.#code = code;
    this.#offset = at - this.#start;
    this.#detail = detail;
    return false;
  }

  #truncated(what: string): false {
    return this.#fail('ERR_ROCE_TRUNCATED', this.#end, `the frame ends within the ${what}`);
  }

  /** Why the last {@link PacketView.load} gave false; undefined when it gave true. */
  error(): PacketError | undefined {
    return this.#code === undefined ? undefined : new PacketError(this.#code, this.#offset, this.#detail);
  }

  #u16(at: number): number {
    return (this.#bytes[at]! << 8) | this.#bytes[at + 1]!;
  }

  #u24(at: number): number {
    return (this.#bytes[at]! << 16) | (this.#bytes[at + 1]! << 8) | this.#bytes[at + 2]!;
  }

  #u32(at: number): number {
    return ((this.#bytes[at]! << 24) | this.#u24(at + 1)) >>> 0;
  }

  /** The bytes last loaded. */
  get bytes(): Uint8Array {
    return this.#bytes;
  }
  /** Where in {@link PacketView.bytes} the EtherType stands that names the network header. */
  get etherTypeAt(): number {
    return this.#etherTypeAt;
  }
  /** Where in {@link PacketView.bytes} the IP header or GRH starts. */
  get networkAt(): number {
    return this.#networkAt;
  }
  /** Where in {@link PacketView.bytes} the BTH starts; the UDP header of RoCE v2 is the 8 bytes before. */
  get bthAt(): number {
    return this.#bth;
  }
  /** Where in {@link PacketView.bytes} the ICRC starts; behind their end when the capture cut it off. */
  get icrcAt(): number {
    return this.#icrc;
  }
  /** The network header: 4 and 6 are IPv4 and IPv6 of RoCE v2, `'grh'` is RoCE v1. */
  get network(): Network {
    return this.#network;
  }

  /** Six bits of differentiated services, from IP or from the traffic class of the GRH. */
  get dscp(): number {
    return this.#trafficClass() >> 2;
  }
  /** Explicit congestion notification: 0 not capable, 1 and 2 capable, 3 congestion was met. */
  get ecn(): number {
    return this.#trafficClass() & 3;
  }
  #trafficClass(): number {
    const at = this.#networkAt;
    return this.#network === 4 ? this.#bytes[at + 1]! : (this.#u16(at) >> 4) & 0xff;
  }
  /** Where the source address starts in {@link PacketView.bytes}; the destination follows it. */
  get addressesAt(): number {
    return this.#networkAt + (this.#network === 4 ? 12 : 8);
  }
  /** The source address or GID in words. Makes a string. */
  get src(): string {
    return this.#network === 4 ? formatIpv4(this.#bytes, this.addressesAt) : formatIpv6(this.#bytes, this.addressesAt);
  }
  /** The destination address or GID in words. Makes a string. */
  get dst(): string {
    return this.#network === 4
      ? formatIpv4(this.#bytes, this.addressesAt + 4)
      : formatIpv6(this.#bytes, this.addressesAt + 16);
  }
  /** The UDP source port; 0 for RoCE v1. */
  get srcPort(): number {
    return this.#network === 'grh' ? 0 : this.#u16(this.#bth - 8);
  }

  /** What the specification says of the opcode. */
  get info(): OpcodeInfo {
    return opcodeTable[this.opcode]!;
  }
  /** BTH: opcode. */
  get opcode(): number {
    return this.#bytes[this.#bth]!;
  }
  /** BTH: solicited event. */
  get se(): boolean {
    return (this.#bytes[this.#bth + 1]! & 0x80) !== 0;
  }
  /** BTH: bytes of padding. */
  get padCnt(): number {
    return (this.#bytes[this.#bth + 1]! >> 4) & 3;
  }
  /** BTH: partition key. */
  get pkey(): number {
    return this.#u16(this.#bth + 2);
  }
  /** BTH: backward congestion notification. */
  get becn(): boolean {
    return (this.#bytes[this.#bth + 4]! & 0x40) !== 0;
  }
  /** BTH: queue pair that receives. */
  get destQp(): number {
    return this.#u24(this.#bth + 5);
  }
  /** BTH: acknowledgement asked for. */
  get ackReq(): boolean {
    return (this.#bytes[this.#bth + 8]! & 0x80) !== 0;
  }
  /** BTH: packet sequence number. */
  get psn(): number {
    return this.#u24(this.#bth + 9);
  }

  /** RETH: remote virtual address; undefined without a RETH. */
  get va(): bigint | undefined {
    const at = reth[this.opcode]!;
    if (at === 0) return undefined;
    return (BigInt(this.#u32(this.#bth + at)) << 32n) | BigInt(this.#u32(this.#bth + at + 4));
  }
  /** RETH: remote key; undefined without a RETH. */
  get rkey(): number | undefined {
    const at = reth[this.opcode]!;
    return at === 0 ? undefined : this.#u32(this.#bth + at + 8);
  }
  /** RETH: bytes of the message; undefined without a RETH. */
  get dmaLen(): number | undefined {
    const at = reth[this.opcode]!;
    return at === 0 ? undefined : this.#u32(this.#bth + at + 12);
  }
  /** AETH: syndrome; undefined without an AETH. */
  get syndrome(): number | undefined {
    const at = aeth[this.opcode]!;
    return at === 0 ? undefined : this.#bytes[this.#bth + at]!;
  }
  /** AETH: message sequence number; undefined without an AETH. */
  get msn(): number | undefined {
    const at = aeth[this.opcode]!;
    return at === 0 ? undefined : this.#u24(this.#bth + at + 1);
  }
  /** DETH: queue pair that sends; undefined without a DETH. */
  get srcQp(): number | undefined {
    const at = deth[this.opcode]!;
    return at === 0 ? undefined : this.#u24(this.#bth + at + 5);
  }

  /** Where the payload starts in {@link PacketView.bytes}. */
  get payloadAt(): number {
    return this.#bth + headerLengths[this.opcode]!;
  }
  /** Bytes of the payload on the wire, without padding. */
  get payloadLength(): number {
    return this.#icrc - this.padCnt - this.payloadAt;
  }
  /** The payload without padding, as far as it was captured. A view on {@link PacketView.bytes}. */
  get payload(): Uint8Array {
    return this.#bytes.subarray(this.payloadAt, Math.min(this.#icrc - this.padCnt, this.#end));
  }
  /** Whether the capture cut the end off. */
  get isCut(): boolean {
    return this.#icrc + ICRC_LENGTH > this.#end;
  }
  /** The ICRC as it was sent; undefined when cut off. */
  get icrc(): number | undefined {
    return this.isCut ? undefined : this.#u32(this.#icrc);
  }
  /** Whether the ICRC is right; undefined when cut off. Computes it: half a microsecond and the time of a CRC. */
  get icrcOk(): boolean | undefined {
    return this.isCut ? undefined : this.#u32(this.#icrc) === this.computeIcrc();
  }
  /** What the ICRC must be, computed from the packet, which must not be cut off. */
  computeIcrc(): number {
    return computeIcrc(this.#bytes, this.#network, this.#networkAt, this.#bth, this.#icrc);
  }
}
