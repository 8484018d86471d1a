/** The Internet checksum (RFC 1071) over an even number of bytes; over a header with the right one in it, 0. */
export function internetChecksum(bytes: Buffer, at: number, length: number): number {
  let sum = 0;
  for (let i = at; i < at + length; i += 2) sum += bytes.readUInt16BE(i);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16);
  return ~sum & 0xffff;
}
