import { RdmaProtocolError } from '../errors.ts';

// A frame is one SEND, all numbers in network byte order:
//   0  u8   type
//   1  u8   zero
//   2  u16  buffers for messages that the sender of this frame has posted again
//   4  u16  buffers for control frames that it has posted again
//   6  u16  announced messages that it has read
//   8  u32  number of this frame, from 0, wrapping around
//  12  u32  bytes that follow
//  16       what follows, by type

/** Bytes in front of each frame. @internal */
export const HEADER_BYTES = 16;

/** What a frame is. @internal */
export const FrameType = {
  /** The first one: magic, version and limits. */
  HELLO: 1,
  /** A whole message. */
  DATA: 2,
  /** Where a message lies, for the other side to read. */
  ANNOUNCE: 3,
  /** Nothing but the counts of the header. */
  CREDITS: 4,
  /** No more messages will follow. */
  END: 5,
  /** The connection ends now: a code and a text. */
  BYE: 6,
} as const;

/** The version of all this. @internal */
export const PROTOCOL_VERSION = 1;

const MAGIC = 'nMSG';

/** Bytes of a HELLO, an ANNOUNCE, and a BYE at most, without their header. @internal */
export const HELLO_BYTES = 24;
/** @internal */
export const ANNOUNCE_BYTES = 16;
/** @internal */
export const BYE_BYTES = 208;

/** The counts that every frame brings. @internal */
export interface FrameHeader {
  type: number;
  buffers: number;
  controls: number;
  reads: number;
  sequence: number;
  length: number;
}

/** What one side tells the other first. @internal */
export interface Hello {
  /** What is spoken over the messages: both must mean the same. */
  kind: number;
  /** Messages that may be on their way to it. */
  buffers: number;
  /** Control frames that may be. */
  controls: number;
  /** Bytes of a frame at most. */
  bufferBytes: number;
  /** Bytes of a message at most. */
  maxMessageBytes: number;
}

/** Where a message lies. @internal */
export interface Announcement {
  addr: bigint;
  rkey: number;
  length: number;
}

/** @internal */
export function writeHeader(to: Buffer, header: FrameHeader): void {
  to[0] = header.type;
  to[1] = 0;
  to.writeUInt16BE(header.buffers, 2);
  to.writeUInt16BE(header.controls, 4);
  to.writeUInt16BE(header.reads, 6);
  to.writeUInt32BE(header.sequence, 8);
  to.writeUInt32BE(header.length, 12);
}

/** The header of what was received. It comes from a peer, so everything is checked. @internal */
export function readHeader(frame: Buffer): FrameHeader {
  if (frame.length < HEADER_BYTES) throw new RdmaProtocolError('FRAME', `a frame of ${frame.length} bytes`);
  const length = frame.readUInt32BE(12);
  if (length !== frame.length - HEADER_BYTES) {
    throw new RdmaProtocolError('FRAME', `a frame of ${frame.length} bytes says that ${length} follow its header`);
  }
  if (frame[1] !== 0) throw new RdmaProtocolError('FRAME', 'the second byte of a frame is not zero');
  return {
    type: frame[0] as number,
    buffers: frame.readUInt16BE(2),
    controls: frame.readUInt16BE(4),
    reads: frame.readUInt16BE(6),
    sequence: frame.readUInt32BE(8),
    length,
  };
}

/** @internal */
export function writeHello(to: Buffer, hello: Hello): void {
  to.write(MAGIC, 0, 'latin1');
  to[4] = PROTOCOL_VERSION;
  to[5] = hello.kind;
  to.writeUInt16BE(hello.buffers, 6);
  to.writeUInt16BE(hello.controls, 8);
  to.writeUInt16BE(0, 10);
  to.writeUInt32BE(hello.bufferBytes, 12);
  to.writeUInt32BE(hello.maxMessageBytes, 16);
  to.writeUInt32BE(0, 20);
}

/** @internal */
export function readHello(body: Buffer): Hello {
  if (body.length < 5 || body.toString('latin1', 0, 4) !== MAGIC) {
    throw new RdmaProtocolError('HELLO', 'its first frame does not begin with "nMSG"');
  }
  if (body[4] !== PROTOCOL_VERSION) {
    throw new RdmaProtocolError('VERSION', `it speaks version ${body[4]}, and this is version ${PROTOCOL_VERSION}`);
  }
  if (body.length !== HELLO_BYTES) throw new RdmaProtocolError('HELLO', `its limits have ${body.length} bytes`);
  const hello: Hello = {
    kind: body[5] as number,
    buffers: body.readUInt16BE(6),
    controls: body.readUInt16BE(8),
    bufferBytes: body.readUInt32BE(12),
    maxMessageBytes: body.readUInt32BE(16),
  };
  if (hello.buffers < 1 || hello.controls < 4 || hello.bufferBytes < HEADER_BYTES + BYE_BYTES) {
    throw new RdmaProtocolError('HELLO', 'its buffers are too few or too small');
  }
  return hello;
}

/** @internal */
export function writeAnnouncement(to: Buffer, { addr, rkey, length }: Announcement): void {
  to.writeBigUInt64BE(addr, 0);
  to.writeUInt32BE(rkey, 8);
  to.writeUInt32BE(length, 12);
}

/** @internal */
export function readAnnouncement(body: Buffer, maxMessageBytes: number): Announcement {
  if (body.length !== ANNOUNCE_BYTES) throw new RdmaProtocolError('FRAME', `an announcement of ${body.length} bytes`);
  const announcement = { addr: body.readBigUInt64BE(0), rkey: body.readUInt32BE(8), length: body.readUInt32BE(12) };
  const { addr, length } = announcement;
  if (length === 0 || length > maxMessageBytes) {
    throw new RdmaProtocolError(
      'LENGTH',
      `it announces a message of ${length} bytes, where ${maxMessageBytes} are taken`,
    );
  }
  if (addr + BigInt(length) > 1n << 64n)
    throw new RdmaProtocolError('FRAME', 'a message that is announced passes 2^64');
  return announcement;
}

/** @returns bytes written @internal */
export function writeBye(to: Buffer, code: number, text: string): number {
  to.writeUInt16BE(code, 0);
  return 2 + to.write(text.slice(0, 200), 2, BYE_BYTES - 2, 'utf8');
}

/** What a peer says that ends the connection: not trusted, and quoted. @internal */
export function readBye(body: Buffer): { code: number; text: string } {
  if (body.length < 2 || body.length > BYE_BYTES)
    throw new RdmaProtocolError('FRAME', `a farewell of ${body.length} bytes`);
  return { code: body.readUInt16BE(0), text: JSON.stringify(body.toString('utf8', 2)) };
}
