/** Capture files, pcap and pcapng, read and written as streams: memory does not grow with the file. */

import { createWriteStream, readSync } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { pipeline } from 'node:stream/promises';
import { integer, object, readOptions, typeError, uint32, valueError } from '../args.ts';
import { ByteQueue } from './byte-queue.ts';
import { type CapturedPacket, CaptureRecord } from './capture-record.ts';
import { PacketError } from './errors.ts';
import { PcapEncoder, PcapReader } from './pcap.ts';
import { PcapngEncoder, PcapngReader } from './pcapng.ts';

/** Bytes read or written at a time. */
const CHUNK = 1 << 18;

/** Takes records from the bytes of a capture file, which are pushed as they come. {@link readCapture} drives one. */
export class CaptureParser {
  readonly #queue = new ByteQueue();
  readonly #record = new CaptureRecord();
  #reader: PcapReader | PcapngReader | undefined;

  /**
   * Adds bytes. They must not change until {@link CaptureParser.next} has given undefined.
   *
   * @param chunk - the next bytes of the file, however many
   */
  push(chunk: Uint8Array): void {
    if (!(chunk instanceof Uint8Array)) throw typeError('chunk', 'a Uint8Array', chunk);
    this.#queue.push(chunk);
  }

  /**
   * Adds the next bytes of a file, which are read into the same memory again and again.
   *
   * @param file - an open file
   * @returns whether there were any
   */
  async pull(file: FileHandle): Promise<boolean> {
    const room = this.#queue.reserve(CHUNK);
    const { bytesRead } = await file.read(room, 0, room.length, null);
    this.#queue.commit(bytesRead);
    return bytesRead > 0;
  }

  /**
   * The same at once, without the way through the pool of threads: a tenth of the time that decoding takes. Only for a regular
   * file, of which nothing has to be waited for.
   *
   * @param fd - of an open file
   * @returns whether there were any
   */
  pullSync(fd: number): boolean {
    const bytesRead = readSync(fd, this.#queue.reserve(CHUNK));
    this.#queue.commit(bytesRead);
    return bytesRead > 0;
  }

  /**
   * Takes the next record.
   *
   * @returns always the same object, filled anew; undefined when more bytes must be pushed first
   * @throws {@link PacketError} `ERR_ROCE_MALFORMED`, or `ERR_ROCE_NOT_ROCE` when this is no capture file
   */
  next(): CaptureRecord | undefined {
    if (this.#reader === undefined) {
      if (this.#queue.length < 4) return undefined;
      this.#reader = PcapReader.detect(this.#queue) ?? PcapngReader.detect(this.#queue);
      if (this.#reader === undefined) throw new PacketError('ERR_ROCE_NOT_ROCE', 0, 'neither pcap nor pcapng');
    }
    return this.#reader.next(this.#record) ? this.#record : undefined;
  }

  /**
   * Says that the file has ended.
   *
   * @throws {@link PacketError} `ERR_ROCE_TRUNCATED` when it has ended within a record, or is empty
   */
  end(): void {
    if (this.#queue.isDrained && this.#reader !== undefined) return;
    const { offset, length } = this.#queue;
    const within = offset === 0 ? 'its header' : 'the middle of the record';
    const detail = offset + length === 0 ? 'the file is empty' : `cut off? The capture ends in ${within}`;
    throw new PacketError('ERR_ROCE_TRUNCATED', offset, detail);
  }
}

/**
 * Reads a capture file, pcap or pcapng, of any size in constant memory.
 *
 * @param source - a path, or the bytes of a file: a Readable, or any iterable of chunks
 * @returns its records, one after the other in the same object: copy what is to be kept
 * @throws {@link PacketError} for a damaged file, after the records before the damage
 * @example
 * const view = new PacketView();
 * for await (const record of readCapture('capture.pcap')) {
 *   if (record.load(view)) console.log(view.info.name, view.psn);
 * }
 */
export async function* readCapture(
  source: string | URL | AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
): AsyncGenerator<CaptureRecord, void, undefined> {
  if (typeof source !== 'string') requireIterable(source, 'source', 'a path, a URL, or chunks of bytes');
  const parser = new CaptureParser();
  if (typeof source === 'string' || source instanceof URL) {
    const file = await open(source);
    try {
      // No `yield*`, which would take three turns for each record.
      while (await parser.pull(file)) {
        for (let record = parser.next(); record !== undefined; record = parser.next()) yield record;
      }
    } finally {
      await file.close();
    }
  } else {
    for await (const chunk of source) {
      parser.push(chunk);
      for (let record = parser.next(); record !== undefined; record = parser.next()) yield record;
    }
  }
  parser.end();
}

/** How to write a capture file. */
export interface CaptureOptions {
  /** `'pcap'`, the classic format, with nanoseconds and one link type, or `'pcapng'`. Default `'pcap'`. */
  format?: 'pcap' | 'pcapng';
}

/**
 * Encodes a capture file as a stream, for `pipeline` from `node:stream/promises`.
 *
 * @param packets - what to write, in order
 * @param options - the format
 * @returns the bytes of the file in chunks
 */
export async function* encodeCapture(
  packets: AsyncIterable<CapturedPacket> | Iterable<CapturedPacket>,
  options: CaptureOptions = {},
): AsyncGenerator<Buffer, void, undefined> {
  requireIterable(packets, 'packets', 'an iterable of packets');
  const { format = 'pcap' } = readOptions(options, 'options', ['format']);
  if (format !== 'pcap' && format !== 'pcapng') throw valueError(`format must be 'pcap' or 'pcapng', not ${format}`);
  const encoder = format === 'pcap' ? new PcapEncoder() : new PcapngEncoder();
  let parts: Buffer[] = [];
  let size = 0;
  let isEmpty = true;
  for await (const packet of packets) {
    isEmpty = false;
    const { timestamp, bytes, wireLength = 0, linkType = 0 } = object(packet, 'packet');
    if (typeof timestamp !== 'bigint') throw typeError('packet.timestamp', 'a bigint', timestamp);
    if (!(bytes instanceof Uint8Array)) throw typeError('packet.bytes', 'a Uint8Array', bytes);
    uint32(wireLength, 'packet.wireLength');
    integer(linkType, 'packet.linkType', 0, 0xffff);
    for (const part of encoder.encode(packet)) {
      parts.push(part);
      size += part.length;
    }
    if (size >= CHUNK) {
      yield Buffer.concat(parts);
      parts = [];
      size = 0;
    }
  }
  if (isEmpty) parts.push(encoder.start());
  if (parts.length > 0) yield Buffer.concat(parts);
}

/**
 * Writes a capture file that Wireshark opens.
 *
 * @param path - the file, which is replaced, or made, when the first packets could be encoded
 * @param packets - what to write, in order; records of {@link readCapture} will do
 * @param options - the format
 */
export async function writeCapture(
  path: string | URL,
  packets: AsyncIterable<CapturedPacket> | Iterable<CapturedPacket>,
  options: CaptureOptions = {},
): Promise<void> {
  const chunks = encodeCapture(packets, options);
  try {
    // What cannot be encoded leaves the file that was there.
    const first = await chunks.next();
    const all = async function* () {
      if (!first.done) yield first.value;
      yield* chunks;
    };
    await pipeline(all, createWriteStream(path));
  } finally {
    await chunks.return();
  }
}

function requireIterable(value: unknown, name: string, expected: string): void {
  const given = Object(value) as Partial<AsyncIterable<unknown> & Iterable<unknown>>;
  if (value instanceof URL || given[Symbol.asyncIterator] || given[Symbol.iterator]) return;
  throw typeError(name, expected, value);
}
