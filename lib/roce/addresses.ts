/** Text of addresses, and addresses as keys. */

import { isIPv4, isIPv6 } from 'node:net';
import { typeError } from '../args.ts';

/** `'02:00:00:00:00:01'`. */
export function formatMac(bytes: Uint8Array, at: number): string {
  let text = '';
  for (let i = 0; i < 6; i++) text += `${i === 0 ? '' : ':'}${bytes[at + i]!.toString(16).padStart(2, '0')}`;
  return text;
}

/** The reverse of {@link formatMac}. */
export function parseMac(text: unknown, name: string): Uint8Array {
  if (typeof text !== 'string' || !/^([0-9a-f]{2}:){5}[0-9a-f]{2}$/i.test(text)) {
    throw typeError(name, "a MAC address such as '02:00:00:00:00:01'", text);
  }
  return Uint8Array.from(text.split(':'), (byte) => Number.parseInt(byte, 16));
}

/** `'10.0.0.1'`. */
export function formatIpv4(bytes: Uint8Array, at: number): string {
  return `${bytes[at]}.${bytes[at + 1]}.${bytes[at + 2]}.${bytes[at + 3]}`;
}

/** The reverse of {@link formatIpv4}. */
export function parseIpv4(text: unknown, name: string): Uint8Array {
  if (typeof text !== 'string' || !isIPv4(text)) throw typeError(name, 'an IPv4 address', text);
  return Uint8Array.from(text.split('.'), Number);
}

/** As RFC 5952 wants it: lower case, the longest run of zeros shortened, an IPv4-mapped address with dots. */
export function formatIpv6(bytes: Uint8Array, at: number): string {
  const words: number[] = [];
  for (let i = 0; i < 16; i += 2) words.push((bytes[at + i]! << 8) | bytes[at + i + 1]!);
  if (words.slice(0, 5).every((word) => word === 0) && words[5] === 0xffff) {
    return `::ffff:${formatIpv4(bytes, at + 12)}`;
  }
  let best = 0;
  let length = 1;
  for (let i = 0; i < 8; i++) {
    let end = i;
    while (words[end] === 0) end++;
    if (end - i > length) [best, length] = [i, end - i];
  }
  const text = (from: number, to: number) =>
    words
      .slice(from, to)
      .map((word) => word.toString(16))
      .join(':');
  return length === 1 ? text(0, 8) : `${text(0, best)}::${text(best + length, 8)}`;
}

/** The reverse of {@link formatIpv6}, for all ways to write an address. */
export function parseIpv6(text: unknown, name: string): Uint8Array {
  if (typeof text !== 'string' || !isIPv6(text) || text.includes('%')) throw typeError(name, 'an IPv6 address', text);
  const [head, tail] = text.split('::').map(words) as [number[], number[]?];
  const all = tail === undefined ? head : [...head, ...new Array(8 - head.length - tail.length).fill(0), ...tail];
  return Uint8Array.from(all.flatMap((word) => [word >> 8, word & 0xff]));
}

function words(text: string): number[] {
  const parts = text.split(':').filter((part) => part !== '');
  return parts.flatMap((part) => (part.includes('.') ? dotted(part) : [Number.parseInt(part, 16)]));
}

function dotted(text: string): number[] {
  const [a, b, c, d] = text.split('.').map(Number) as [number, number, number, number];
  return [(a << 8) | b, (c << 8) | d];
}

/** A hash of addresses that stand in a packet, to look up what is known of them. */
export function hashAddresses(bytes: Uint8Array, at: number, length: number): number {
  let hash = length;
  for (let i = at; i < at + length; i++) hash = Math.imul(hash ^ bytes[i]!, 0x01000193);
  return hash;
}

/** Whether so many bytes are the same. */
export function isSame(a: Uint8Array, aAt: number, b: Uint8Array, bAt: number, length: number): boolean {
  for (let i = 0; i < length; i++) if (a[aAt + i] !== b[bAt + i]) return false;
  return true;
}
