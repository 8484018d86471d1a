/** The base transport header and the extended headers as plain objects: where each field lies, to the bit. */

import { boolean, integer, object, typeError, uint64, valueError } from '../args.ts';
import { PacketError } from './errors.ts';
import { BTH_LENGTH, type ExtendedHeader, extendedHeaderLength } from './opcodes.ts';

/** Base transport header. */
export interface Bth {
  /** Transport and operation, one of `Opcode`. */
  opcode: number;
  /** Solicited event: the receiver wakes who waits for it. Default false. */
  se: boolean;
  /** State of path migration. Default false. */
  migReq: boolean;
  /** Bytes of padding behind the payload, 0 to 3. Default 0; `encodePacket` computes it. */
  padCnt: number;
  /** Version of the header. Default 0, the only one. */
  tver: number;
  /** Partition key. Default 0xffff. */
  pkey: number;
  /** Forward congestion notification. Default false; RoCE v2 uses the ECN bits of IP. */
  fecn: boolean;
  /** Backward congestion notification, set in a CNP. Default false. */
  becn: boolean;
  /** Number of the queue pair that receives, 24 bits. */
  destQp: number;
  /** Whether the sender asks for an acknowledgement. Default false. */
  ackReq: boolean;
  /** Packet sequence number, 24 bits. */
  psn: number;
}

/** RDMA extended transport header: what a write or read is about. */
export interface Reth {
  /** Remote virtual address. */
  va: bigint;
  /** Remote key. */
  rkey: number;
  /** Bytes of the whole message. */
  dmaLen: number;
}

/** ACK extended transport header. */
export interface Aeth {
  /** Acknowledgement or refusal; see `decodeSyndrome`. */
  syndrome: number;
  /** Message sequence number: how many messages the responder has completed, modulo 2^24. */
  msn: number;
}

/** Atomic extended transport header. */
export interface AtomicEth {
  /** Remote virtual address, a multiple of 8. */
  va: bigint;
  /** Remote key. */
  rkey: number;
  /** What to store, or to add. */
  swapDt: bigint;
  /** What to compare with; unused by fetch and add. */
  cmpDt: bigint;
}

/** Atomic ACK extended transport header. */
export interface AtomicAckEth {
  /** What the memory held before the operation. */
  origRemDt: bigint;
}

/** Immediate data. */
export interface ImmDt {
  /** The value, in host order as the sender meant it. */
  immDt: number;
}

/** Invalidate extended transport header. */
export interface Ieth {
  /** Remote key that the receiver is to invalidate. */
  rkey: number;
}

/** Datagram extended transport header. */
export interface Deth {
  /** Key of the queue pair that receives. */
  qkey: number;
  /** Number of the queue pair that sends, 24 bits. */
  srcQp: number;
}

/** XRC extended transport header. */
export interface Xrceth {
  /** Number of the shared receive queue, 24 bits. */
  xrcSrq: number;
}

/** Flush extended transport header. */
export interface Feth {
  /** Selectivity level: 0 the range of the RETH, 1 the whole memory region. */
  sel: number;
  /** Placement type: bit 0 global visibility, bit 1 persistence. */
  plt: number;
}

/** The headers by name. */
export interface Headers {
  /** Base transport header. */
  bth: Bth;
  /** RDMA extended transport header. */
  reth: Reth;
  /** ACK extended transport header. */
  aeth: Aeth;
  /** Atomic extended transport header. */
  atomicEth: AtomicEth;
  /** Atomic ACK extended transport header. */
  atomicAckEth: AtomicAckEth;
  /** Immediate data. */
  immDt: ImmDt;
  /** Invalidate extended transport header. */
  ieth: Ieth;
  /** Datagram extended transport header. */
  deth: Deth;
  /** XRC extended transport header. */
  xrceth: Xrceth;
  /** Flush extended transport header. */
  feth: Feth;
}

/** The base transport header as it is given: what has a default may be left out. */
export type BthInit = Pick<Bth, 'opcode' | 'destQp' | 'psn'> & Partial<Bth>;

/** A header as it is given to be encoded. */
export type HeaderInit<K extends keyof Headers> = K extends 'bth' ? BthInit : Headers[K];

/** First bit, bits, and a default. A field of one bit is a boolean, one of 64 a bigint. */
type Field = [bit: number, bits: number, initial?: number | boolean];

const layouts: { [K in keyof Headers]: Record<keyof Headers[K], Field> } = {
  bth: {
    opcode: [0, 8],
    se: [8, 1, false],
    migReq: [9, 1, false],
    padCnt: [10, 2, 0],
    tver: [12, 4, 0],
    pkey: [16, 16, 0xffff],
    fecn: [32, 1, false],
    becn: [33, 1, false],
    destQp: [40, 24],
    ackReq: [64, 1, false],
    psn: [72, 24],
  },
  reth: { va: [0, 64], rkey: [64, 32], dmaLen: [96, 32] },
  aeth: { syndrome: [0, 8], msn: [8, 24] },
  atomicEth: { va: [0, 64], rkey: [64, 32], swapDt: [96, 64], cmpDt: [160, 64] },
  atomicAckEth: { origRemDt: [0, 64] },
  immDt: { immDt: [0, 32] },
  ieth: { rkey: [0, 32] },
  deth: { qkey: [0, 32], srcQp: [40, 24] },
  xrceth: { xrcSrq: [8, 24] },
  feth: { sel: [26, 2], plt: [28, 4] },
};

const fieldsOf = new Map(
  Object.entries(layouts).map(([name, layout]) => [name, Object.entries(layout as Record<string, Field>)]),
);

/** Whether a header has fields, and so a property in a `Packet`. That of a CNP has none. */
export function hasFields(header: ExtendedHeader): header is ExtendedHeader & keyof Headers {
  return header !== 'cnp';
}

function lengthOf(name: keyof Headers): number {
  if (!fieldsOf.has(name)) throw valueError(`name must be one of ${[...fieldsOf.keys()].join(', ')}`);
  return name === 'bth' ? BTH_LENGTH : extendedHeaderLength[name];
}

/** Writes a header's fields into zeroed bytes. */
export function writeHeader<K extends keyof Headers>(target: Buffer, at: number, name: K, value: HeaderInit<K>): void {
  object(value, name);
  for (const [field, [bit, bits, initial]] of fieldsOf.get(name)!) {
    const given = (value as Record<string, unknown>)[field] ?? initial;
    const label = `${name}.${field}`;
    if (bits === 64) {
      target.writeBigUInt64BE(uint64(given, label), at + bit / 8);
      continue;
    }
    const number = bits === 1 ? Number(boolean(given, label)) : integer(given, label, 0, 2 ** bits - 1);
    // Only flags and short fields start or end within a byte, and none of these crosses a border.
    if (bits % 8 === 0) target.writeUIntBE(number, at + bit / 8, bits / 8);
    else target[at + (bit >> 3)]! |= number << (8 - (bit & 7) - bits);
  }
}

/** Reads a header's fields. */
export function readHeader<K extends keyof Headers>(source: Buffer, at: number, name: K): Headers[K] {
  const value: Record<string, unknown> = {};
  for (const [field, [bit, bits]] of fieldsOf.get(name)!) {
    const byte = at + (bit >> 3);
    if (bits === 64) value[field] = source.readBigUInt64BE(byte);
    else if (bits % 8 === 0) value[field] = source.readUIntBE(byte, bits / 8);
    else {
      const number = (source[byte]! >> (8 - (bit & 7) - bits)) & (2 ** bits - 1);
      value[field] = bits === 1 ? number === 1 : number;
    }
  }
  return value as unknown as Headers[K];
}

/**
 * Builds one header by itself.
 *
 * @param name - `'bth'`, `'reth'`, ...
 * @param value - its fields; numbers must fit their bits
 * @returns new bytes, reserved bits 0
 * @throws TypeError `ERR_INVALID_ARG_TYPE` or RangeError `ERR_OUT_OF_RANGE`, naming the field
 * @example
 * encodeHeader('reth', { va: 0x7f0012345000n, rkey: 0xabcd, dmaLen: 18 });
 */
export function encodeHeader<K extends keyof Headers>(name: K, value: HeaderInit<K>): Buffer {
  const target = Buffer.alloc(lengthOf(name));
  writeHeader(target, 0, name, value);
  return target;
}

/**
 * Reads one header by itself.
 *
 * @param name - `'bth'`, `'reth'`, ...
 * @param bytes - what holds it
 * @param offset - where it starts. Default 0
 * @returns its fields; reserved bits are passed over
 * @throws {@link PacketError} `ERR_ROCE_TRUNCATED`
 */
export function decodeHeader<K extends keyof Headers>(name: K, bytes: Uint8Array, offset = 0): Headers[K] {
  integer(offset, 'offset', 0, Number.MAX_SAFE_INTEGER);
  const buffer = asBuffer(bytes);
  if (bytes.length < offset + lengthOf(name)) {
    throw new PacketError('ERR_ROCE_TRUNCATED', bytes.length, `${name} ends too early`);
  }
  return readHeader(buffer, offset, name);
}

/** The same memory with Buffer's methods. */
export function asBuffer(bytes: Uint8Array): Buffer {
  if (Buffer.isBuffer(bytes)) return bytes;
  if (!(bytes instanceof Uint8Array)) throw typeError('bytes', 'a Uint8Array', bytes);
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
}
