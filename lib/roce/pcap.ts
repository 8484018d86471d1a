/** The classic capture file: a header of 24 bytes, and one of 16 before each frame. */

import type { ByteQueue } from './byte-queue.ts';
import type { CapturedPacket, CaptureRecord, Clock } from './capture-record.ts';
import { PacketError } from './errors.ts';
import { LinkType } from './view.ts';

const FILE_HEADER = 24;
const RECORD_HEADER = 16;
const MICROSECONDS = 0xa1b2_c3d4;
const NANOSECONDS = 0xa1b2_3c4d;

/** No link carries frames of this size; a file that says so is damaged. */
export const MAX_RECORD = 1 << 20;
/** What tcpdump writes for "whole frames". */
export const SNAPLEN = 262_144;

function clock(scale: number): Clock {
  // Thousands of packets share a second.
  let [last, base] = [0, 0n];
  return {
    toNanoseconds(seconds, fraction) {
      if (seconds !== last) [last, base] = [seconds, BigInt(seconds) * 1_000_000_000n];
      return base + BigInt(fraction * scale);
    },
  };
}

/** How to read a classic capture file; undefined when these four bytes do not start one. */
function dialect(queue: ByteQueue): { isLittle: boolean; clock: Clock } | undefined {
  for (const isLittle of [true, false]) {
    const magic = queue.u32(0, isLittle);
    if (magic === MICROSECONDS) return { isLittle, clock: clock(1000) };
    if (magic === NANOSECONDS) return { isLittle, clock: clock(1) };
  }
  return undefined;
}

/** Takes records of a classic capture file from the bytes of its stream. */
export class PcapReader {
  readonly #queue: ByteQueue;
  readonly #isLittle: boolean;
  readonly #clock: Clock;
  /** Of the file; undefined until its header has come. */
  #linkType: number | undefined;

  private constructor(queue: ByteQueue, isLittle: boolean, clock: Clock) {
    this.#queue = queue;
    this.#isLittle = isLittle;
    this.#clock = clock;
  }

  /** A reader for the stream, of which four bytes must wait; undefined if it is of another format. */
  static detect(queue: ByteQueue): PcapReader | undefined {
    const found = dialect(queue);
    return found && new PcapReader(queue, found.isLittle, found.clock);
  }

  /** Fills in the next record; false when it has not come in whole. */
  next(record: CaptureRecord): boolean {
    const queue = this.#queue;
    const isLittle = this.#isLittle;
    if (this.#linkType === undefined) {
      if (queue.length < FILE_HEADER) return false;
      // The upper bits tell of the frame check sequence.
      this.#linkType = queue.u32(20, isLittle) & 0xffff;
      queue.skip(FILE_HEADER);
    }
    if (queue.length < RECORD_HEADER) return false;
    const length = queue.u32(8, isLittle);
    if (length > MAX_RECORD) {
      throw new PacketError('ERR_ROCE_MALFORMED', queue.offset + 8, `a record of ${length} bytes`);
    }
    if (queue.length < RECORD_HEADER + length) return false;
    record.setTime(this.#clock, queue.u32(0, isLittle), queue.u32(4, isLittle));
    record.setFrame(queue.bytes, queue.start + RECORD_HEADER, length, queue.u32(12, isLittle), this.#linkType);
    queue.skip(RECORD_HEADER + length);
    return true;
  }
}

/** Writes a classic capture file with nanoseconds. */
export class PcapEncoder {
  #linkType: number | undefined;

  /** The bytes of one packet, with the file's header before the first. */
  encode(packet: CapturedPacket): Buffer[] {
    const { timestamp, bytes, wireLength = bytes.length, linkType = LinkType.ETHERNET } = packet;
    const header = Buffer.alloc(RECORD_HEADER);
    header.writeUInt32LE(Number(timestamp / 1_000_000_000n), 0);
    header.writeUInt32LE(Number(timestamp % 1_000_000_000n), 4);
    header.writeUInt32LE(bytes.length, 8);
    header.writeUInt32LE(wireLength, 12);
    const before = this.#linkType === undefined ? [this.start(linkType)] : [];
    if (this.#linkType !== linkType) {
      throw new RangeError(`A pcap file has one link type, here ${this.#linkType}; ${linkType} needs a pcapng file`);
    }
    return [
      ...before,
      header, // The frame of a CaptureRecord changes with the next step.
      Buffer.from(bytes),
    ];
  }

  /** The header of the file. */
  start(linkType: number = LinkType.ETHERNET): Buffer {
    this.#linkType = linkType;
    const header = Buffer.alloc(FILE_HEADER);
    header.writeUInt32LE(NANOSECONDS, 0);
    header.writeUInt16LE(2, 4);
    header.writeUInt16LE(4, 6);
    header.writeUInt32LE(SNAPLEN, 16);
    header.writeUInt32LE(linkType, 20);
    return header;
  }
}
