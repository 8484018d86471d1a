/** The newer capture file: blocks with a type and a length, in sections that may differ in byte order. */

import type { ByteQueue } from './byte-queue.ts';
import type { CapturedPacket, CaptureRecord, Clock } from './capture-record.ts';
import { PacketError } from './errors.ts';
import { MAX_RECORD, SNAPLEN } from './pcap.ts';
import { LinkType } from './view.ts';

const SECTION_HEADER = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION = 1;
const PACKET = 2;
const SIMPLE_PACKET = 3;
const ENHANCED_PACKET = 6;
const BYTE_ORDER_MAGIC = 0x1a2b_3c4d;

const IF_TSRESOL = 9;
const IF_TSOFFSET = 14;

/** Type, length, and the length again at the end. */
const FRAME = 12;
/** A packet, its options and more; and bounds what a damaged file makes us wait for. */
const MAX_BLOCK = 2 * MAX_RECORD;
/** Numbers of interfaces have 16 bits in the older packet block. */
const MAX_INTERFACES = 0x1_0000;

/** Where the fields of each packet block are, from the start of the block, and how large its fixed part is. */
const packetBlocks = {
  [PACKET]: { isShort: true, fixed: 28 },
  [ENHANCED_PACKET]: { isShort: false, fixed: 28 },
} as const;

interface Interface {
  linkType: number;
  snaplen: number;
  clock: Clock;
}

/** Takes records of a pcapng file from the bytes of its stream. */
export class PcapngReader {
  readonly #queue: ByteQueue;
  #isLittle = true;
  #interfaces: Interface[] = [];

  private constructor(queue: ByteQueue) {
    this.#queue = queue;
  }

  /** A reader for the stream, of which four bytes must wait; undefined if it is of another format. */
  static detect(queue: ByteQueue): PcapngReader | undefined {
    return queue.u32(0, true) === SECTION_HEADER ? new PcapngReader(queue) : undefined;
  }

  /** Fills in the next record; false when it has not come in whole. */
  next(record: CaptureRecord): boolean {
    const queue = this.#queue;
    for (;;) {
      if (queue.length < FRAME) return false;
      const type = queue.u32(0, this.#isLittle);
      if (type === SECTION_HEADER) this.#readByteOrder();
      const length = queue.u32(4, this.#isLittle);
      if (length < FRAME || length % 4 !== 0) this.#fail(4, `a block of ${length} bytes`);
      const isRead = type === SECTION_HEADER || type <= SIMPLE_PACKET || type === ENHANCED_PACKET;
      if (isRead) {
        if (length > MAX_BLOCK) this.#fail(4, `a block of ${length} bytes`);
        if (queue.length < length) return false;
        if (queue.u32(length - 4, this.#isLittle) !== length) this.#fail(length - 4, 'the lengths of a block differ');
      }
      const isRecord = isRead && this.#readBlock(type, length, record);
      queue.skip(length);
      if (isRecord) return true;
    }
  }

  #readByteOrder(): void {
    for (const isLittle of [true, false]) {
      if (this.#queue.u32(8, isLittle) === BYTE_ORDER_MAGIC) {
        this.#isLittle = isLittle;
        return;
      }
    }
    this.#fail(8, 'no byte-order magic');
  }

  #fail(at: number, detail: string): never {
    throw new PacketError('ERR_ROCE_MALFORMED', this.#queue.offset + at, detail);
  }

  /** @returns whether it was a packet */
  #readBlock(type: number, length: number, record: CaptureRecord): boolean {
    switch (type) {
      case SECTION_HEADER:
        if (length < 28) this.#fail(4, 'a section header that is too short');
        this.#interfaces = [];
        return false;
      case INTERFACE_DESCRIPTION:
        this.#readInterface(length);
        return false;
      case SIMPLE_PACKET:
        this.#readSimplePacket(length, record);
        return true;
      case PACKET:
      case ENHANCED_PACKET:
        this.#readPacket(type, length, record);
        return true;
      default:
        return false;
    }
  }

  #readInterface(length: number): void {
    const queue = this.#queue;
    if (length < 20) this.#fail(4, 'an interface description that is too short');
    if (this.#interfaces.length === MAX_INTERFACES) this.#fail(0, 'too many interfaces');
    // Six decimals unless an option says otherwise.
    let ticks = 1_000_000n;
    let offset = 0n;
    let at = 16;
    while (at + 4 <= length - 4) {
      const code = queue.u16(at, this.#isLittle);
      const size = queue.u16(at + 2, this.#isLittle);
      if (code === 0) break;
      if (at + 4 + size > length - 4) this.#fail(at + 2, 'an option that exceeds its block');
      if (code === IF_TSRESOL && size === 1) ticks = this.#ticksPerSecond(at + 4);
      if (code === IF_TSOFFSET && size === 8) offset = this.#seconds(at + 4);
      at += 4 + size + (-size & 3);
    }
    this.#interfaces.push({
      linkType: queue.u16(8, this.#isLittle),
      snaplen: queue.u32(12, this.#isLittle),
      clock: {
        toNanoseconds: (high, low) =>
          (((BigInt(high) << 32n) | BigInt(low)) * 1_000_000_000n) / ticks + offset * 1_000_000_000n,
      },
    });
  }

  /** A power of ten, or of two when the top bit is set. */
  #ticksPerSecond(at: number): bigint {
    const resolution = this.#queue.bytes[this.#queue.start + at]!;
    return (resolution & 0x80 ? 2n : 10n) ** BigInt(resolution & 0x7f);
  }

  #seconds(at: number): bigint {
    const words = [this.#queue.u32(at, this.#isLittle), this.#queue.u32(at + 4, this.#isLittle)] as const;
    const [high, low] = this.#isLittle ? [words[1], words[0]] : words;
    return BigInt.asIntN(64, (BigInt(high) << 32n) | BigInt(low));
  }

  #readPacket(type: keyof typeof packetBlocks, length: number, record: CaptureRecord): void {
    const queue = this.#queue;
    const { isShort, fixed } = packetBlocks[type];
    if (length < fixed + 4) this.#fail(4, 'a packet block that is too short');
    const number = isShort ? queue.u16(8, this.#isLittle) : queue.u32(8, this.#isLittle);
    const source = this.#interfaces[number] ?? this.#fail(8, `a packet of interface ${number}, which is not described`);
    const captured = queue.u32(20, this.#isLittle);
    if (captured > length - fixed - 4) this.#fail(20, 'a packet that exceeds its block');
    record.setTime(source.clock, queue.u32(12, this.#isLittle), queue.u32(16, this.#isLittle));
    const wireLength = queue.u32(24, this.#isLittle);
    record.setFrame(queue.bytes, queue.start + fixed, captured, wireLength, source.linkType);
  }

  /** Has no length of its own: the snapshot length of the first interface limits it. */
  #readSimplePacket(length: number, record: CaptureRecord): void {
    const queue = this.#queue;
    if (length < 16) this.#fail(4, 'a packet block that is too short');
    const source = this.#interfaces[0] ?? this.#fail(0, 'a packet of interface 0, which is not described');
    const wireLength = queue.u32(8, this.#isLittle);
    const captured = Math.min(wireLength, source.snaplen || wireLength);
    if (captured > length - 16) this.#fail(8, 'a packet that exceeds its block');
    record.setTime(undefined, 0, 0);
    record.setFrame(queue.bytes, queue.start + 12, captured, wireLength, source.linkType);
  }
}

/** Writes a pcapng file with nanoseconds: one section, one interface for each link type. */
export class PcapngEncoder {
  readonly #interfaces = new Map<number, number>();
  #isStarted = false;

  /** The bytes of one packet, with what must come before. */
  encode(packet: CapturedPacket): Buffer[] {
    const { timestamp, bytes, wireLength = bytes.length, linkType = LinkType.ETHERNET } = packet;
    const parts = this.#isStarted ? [] : [this.start()];
    let number = this.#interfaces.get(linkType);
    if (number === undefined) {
      number = this.#interfaces.size;
      this.#interfaces.set(linkType, number);
      parts.push(interfaceBlock(linkType));
    }
    const body = Buffer.alloc(20 + bytes.length + (-bytes.length & 3));
    body.writeUInt32LE(number, 0);
    body.writeUInt32LE(Number(timestamp >> 32n), 4);
    body.writeUInt32LE(Number(timestamp & 0xffff_ffffn), 8);
    body.writeUInt32LE(bytes.length, 12);
    body.writeUInt32LE(wireLength, 16);
    body.set(bytes, 20);
    parts.push(block(ENHANCED_PACKET, body));
    return parts;
  }

  /** The header of the file. */
  start(): Buffer {
    this.#isStarted = true;
    const body = Buffer.alloc(16);
    body.writeUInt32LE(BYTE_ORDER_MAGIC, 0);
    body.writeUInt16LE(1, 4);
    // The section's length is not known.
    body.writeBigInt64LE(-1n, 8);
    return block(SECTION_HEADER, body);
  }
}

function interfaceBlock(linkType: number): Buffer {
  const body = Buffer.alloc(20);
  body.writeUInt16LE(linkType, 0);
  body.writeUInt32LE(SNAPLEN, 4);
  body.writeUInt16LE(IF_TSRESOL, 8);
  body.writeUInt16LE(1, 10);
  body[12] = 9;
  return block(INTERFACE_DESCRIPTION, body);
}

function block(type: number, body: Buffer): Buffer {
  const bytes = Buffer.alloc(FRAME + body.length);
  bytes.writeUInt32LE(type, 0);
  bytes.writeUInt32LE(bytes.length, 4);
  body.copy(bytes, 8);
  bytes.writeUInt32LE(bytes.length, bytes.length - 4);
  return bytes;
}
