/**
 * The invariant CRC: CRC-32 of Ethernet over the packet from the network header to the last byte of padding, with ones
 * in place of what routers may change (Annex A16 for RoCE v1, A17 for v2). It stands little-endian behind the padding.
 */

import { crc32 } from 'node:zlib';

/** Of what a packet's network header is: 4 and 6 are RoCE v2, `'grh'` is v1. */
export type Network = 4 | 6 | 'grh';

// What is masked by ones: of IPv4 type of service, time to live and checksum; of IPv6 and GRH traffic class, flow label and
// hop limit; of UDP the checksum; of the BTH the byte that carries FECN and BECN.
const ipv4Mask = Uint8Array.of(0, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0);
const ipv6Mask = Uint8Array.from({ length: 40 }, (_, i) => [0x0f, 0xff, 0xff, 0xff, 0, 0, 0, 0xff][i] ?? 0);
const udpMask = Uint8Array.of(0, 0, 0, 0, 0, 0, 0xff, 0xff);
const bthMask = Uint8Array.of(0, 0, 0, 0, 0xff);
// Below its length a call of zlib takes longer than the sum.
const noMask = new Uint8Array(64);

const table = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb8_8320 : crc >>> 1;
  return crc;
});

/** Continues a CRC (not complemented) over as many bytes as the mask has. */
function update(crc: number, bytes: Uint8Array, at: number, mask: Uint8Array, length = mask.length): number {
  for (let i = 0; i < length; i++) crc = table[(crc ^ (bytes[at + i]! | mask[i]!)) & 0xff]! ^ (crc >>> 8);
  return crc;
}

// The local route header of InfiniBand, which RoCE lacks, counts as eight bytes of ones.
const start = update(-1, new Uint8Array(8).fill(0xff), 0, noMask, 8);

/**
 * Computes the ICRC of a packet, as a number in the order of bytes on the wire (as Wireshark shows it).
 *
 * @param bytes - what holds the packet
 * @param networkAt - where the IP header or GRH starts
 * @param bthAt - where the BTH starts
 * @param icrcAt - where the ICRC starts
 */
export function computeIcrc(
  bytes: Uint8Array,
  network: Network,
  networkAt: number,
  bthAt: number,
  icrcAt: number,
): number {
  const mask = network === 4 ? ipv4Mask : ipv6Mask;
  let crc = update(start, bytes, networkAt, mask);
  const udpAt = network === 'grh' ? bthAt : bthAt - 8;
  // IPv4 options.
  crc = update(crc, bytes, networkAt + mask.length, noMask, udpAt - networkAt - mask.length);
  if (network !== 'grh') crc = update(crc, bytes, udpAt, udpMask);
  crc = update(crc, bytes, bthAt, bthMask);
  const restAt = bthAt + bthMask.length;
  const length = icrcAt - restAt;
  if (length <= noMask.length) return swap32(~update(crc, bytes, restAt, noMask, length));
  return swap32(crc32(bytes.subarray(restAt, icrcAt), ~crc >>> 0));
}

function swap32(value: number): number {
  return ((value << 24) | ((value & 0xff00) << 8) | ((value >>> 8) & 0xff00) | (value >>> 24)) >>> 0;
}
