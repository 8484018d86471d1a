/**
 * Why bytes could not be read: `ERR_ROCE_TRUNCATED` they end too early, `ERR_ROCE_MALFORMED` they contradict the format,
 * `ERR_ROCE_NOT_ROCE` they are another protocol.
 */
export type PacketErrorCode = 'ERR_ROCE_TRUNCATED' | 'ERR_ROCE_MALFORMED' | 'ERR_ROCE_NOT_ROCE';

/** Bytes that are no RoCE packet, or no capture file. The only error that reading bytes can give. */
export class PacketError extends Error {
  /** What is wrong. Stable; test for this one. */
  readonly code: PacketErrorCode;
  /** Where, in bytes from the start of the frame; from the start of the file for a capture file. */
  readonly offset: number;

  /**
   * @param code - what is wrong
   * @param offset - where, in bytes
   * @param detail - what was expected and what was found, in words
   */
  constructor(code: PacketErrorCode, offset: number, detail: string) {
    super(`${detail} (at byte ${offset})`);
    this.name = 'PacketError';
    this.code = code;
    this.offset = offset;
  }
}
