import { createReadStream, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gunzipSync } from 'node:zlib';
import { afterAll, describe, expect, it } from 'vitest';
import {
  type CapturedPacket,
  encodeCapture,
  LinkType,
  PacketError,
  readCapture,
  writeCapture,
} from '../../lib/roce/index.ts';
import { Random } from './roce-samples.ts';
import { decodedByUs } from './roce-tshark.ts';

const fixture = (name: string) => fileURLToPath(new URL(`../fixtures/${name}`, import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'node-rdma-capture-'));
afterAll(() => rmSync(folder, { recursive: true }));

type Frame = Required<CapturedPacket>;

/** All records, copied. */
async function collect(source: Parameters<typeof readCapture>[0]): Promise<Frame[]> {
  const frames: Frame[] = [];
  for await (const { timestamp, bytes, wireLength, linkType } of readCapture(source)) {
    frames.push({ timestamp, bytes: Uint8Array.from(bytes), wireLength, linkType });
  }
  return frames;
}

async function encode(frames: CapturedPacket[], format: 'pcap' | 'pcapng'): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of encodeCapture(frames, { format })) chunks.push(chunk);
  return Buffer.concat(chunks);
}

async function errorOf(bytes: Uint8Array): Promise<PacketError> {
  const error = await collect([bytes]).catch((reason) => reason);
  expect(error).toBeInstanceOf(PacketError);
  return error;
}

const random = new Random(4);
const frames: Frame[] = Array.from({ length: 50 }, (_, i) => {
  const bytes = Uint8Array.from(random.bytes(random.below(200)));
  const timestamp = 1_700_000_000_123_456_789n + BigInt(i) * 1_000_001n;
  return { timestamp, bytes, wireLength: bytes.length + random.below(2) * 1000, linkType: LinkType.ETHERNET };
});

/** The classic format in each of its four dialects. */
function pcap(isLittle: boolean, isNano: boolean, list: Frame[]): Buffer {
  const words = (...values: number[]) => {
    const bytes = Buffer.alloc(4 * values.length);
    values.forEach((value, i) => (isLittle ? bytes.writeUInt32LE(value, 4 * i) : bytes.writeUInt32BE(value, 4 * i)));
    return bytes;
  };
  const fraction = isNano ? 1n : 1000n;
  return Buffer.concat([
    words(isNano ? 0xa1b23c4d : 0xa1b2c3d4, isLittle ? 0x00040002 : 0x00020004, 0, 0, 65535, 1),
    ...list.flatMap(({ timestamp, bytes, wireLength }) => [
      words(
        Number(timestamp / 1_000_000_000n),
        Number((timestamp % 1_000_000_000n) / fraction),
        bytes.length,
        wireLength,
      ),
      bytes,
    ]),
  ]);
}

/** Blocks of pcapng in either byte order. */
class Section {
  readonly parts: Buffer[] = [];
  readonly #isLittle: boolean;
  constructor(isLittle: boolean) {
    this.#isLittle = isLittle;
    this.block(0x0a0d0d0a, this.u32(0x1a2b3c4d), this.u16(1), this.u16(0), Buffer.alloc(8, 0xff));
  }
  /** A number of `size` bytes. */
  #number(value: bigint, size: number): Buffer {
    const bytes = Buffer.alloc(8);
    bytes.writeBigInt64BE(value);
    const wanted = bytes.subarray(8 - size);
    return this.#isLittle ? wanted.reverse() : wanted;
  }
  u16(value: number): Buffer {
    return this.#number(BigInt(value), 2);
  }
  u32(value: number): Buffer {
    return this.#number(BigInt(value), 4);
  }
  u64(value: bigint): Buffer {
    return this.#number(value, 8);
  }
  option(code: number, value: Buffer): Buffer {
    return Buffer.concat([this.u16(code), this.u16(value.length), value, Buffer.alloc(-value.length & 3)]);
  }
  block(type: number, ...body: Uint8Array[]): this {
    const data = Buffer.concat(body);
    const padded = Buffer.concat([data, Buffer.alloc(-data.length & 3)]);
    const length = this.u32(padded.length + 12);
    this.parts.push(this.u32(type), length, padded, length);
    return this;
  }
  interface(linkType: number, snaplen: number, ...options: Buffer[]): this {
    return this.block(1, this.u16(linkType), this.u16(0), this.u32(snaplen), ...options);
  }
  packet(number: number, ticks: bigint, data: Uint8Array, wireLength = data.length): this {
    const padding = Buffer.alloc(-data.length & 3);
    const comment = this.option(1, Buffer.from('a comment'));
    const header = [number, Number(ticks >> 32n), Number(ticks & 0xffffffffn), data.length, wireLength];
    return this.block(6, ...header.map((word) => this.u32(word)), data, padding, comment, this.option(0, Buffer.of()));
  }
  get bytes(): Buffer {
    return Buffer.concat(this.parts);
  }
}

describe('readCapture', () => {
  it.each([
    ['little-endian', true],
    ['big-endian', false],
  ])('reads pcap, %s, with microseconds and with nanoseconds', async (_name, isLittle) => {
    expect(await collect([pcap(isLittle, true, frames)])).toEqual(frames);
    const rounded = frames.map((frame) => ({ ...frame, timestamp: (frame.timestamp / 1000n) * 1000n }));
    expect(await collect([pcap(isLittle, false, frames)])).toEqual(rounded);
  });

  it.each([
    ['little-endian', true],
    ['big-endian', false],
  ])('reads pcapng, %s: interfaces, resolutions, offsets, options, other blocks', async (_name, isLittle) => {
    const data = Buffer.from('a frame');
    const section = new Section(isLittle);
    section
      .interface(1, 0)
      .interface(113, 4, section.option(2, Buffer.from('any')), section.option(9, Buffer.of(9)))
      .interface(1, 0, section.option(9, Buffer.of(0x80 | 10)), section.option(14, section.u64(-5n)))
      .block(0xbad, Buffer.alloc(400))
      .packet(0, 1_700_000_000_000_001n, data)
      .packet(1, 1_700_000_000_000_000_001n, data, 99)
      .packet(2, 10n * 1024n + 512n, data)
      .block(3, section.u32(data.length), data)
      .block(2, section.u16(1), section.u16(0), section.u32(0), section.u32(7), section.u32(7), section.u32(8), data);
    const seen = await collect([section.bytes]);
    expect(seen.map(({ timestamp, wireLength, linkType }) => [timestamp, wireLength, linkType])).toEqual([
      [1_700_000_000_000_001_000n, 7, 1],
      [1_700_000_000_000_000_001n, 99, 113],
      [5_500_000_000n, 7, 1],
      [0n, 7, 1],
      [7n, 8, 113],
    ]);
    for (const { bytes } of seen) expect(Buffer.from(bytes)).toEqual(data);
  });

  it('reads several sections of a pcapng file, in different byte orders, each with its own interfaces', async () => {
    const data = Buffer.from('abc');
    const one = new Section(true).interface(1, 0).packet(0, 1n, data).bytes;
    const two = new Section(false).interface(276, 0).packet(0, 2n, data).bytes;
    const seen = await collect([one, two]);
    expect(seen.map(({ timestamp, linkType }) => [timestamp, linkType])).toEqual([
      [1000n, 1],
      [2000n, 276],
    ]);
  });

  it('limits a simple packet to the snapshot length', async () => {
    const section = new Section(true).interface(1, 5);
    section.block(3, section.u32(300), Buffer.from('hello'));
    expect(await collect([section.bytes])).toMatchObject([
      { wireLength: 300, bytes: Uint8Array.from(Buffer.from('hello')) },
    ]);
  });

  it.each(['pcap', 'pcapng'] as const)('reads %s in chunks of any size', async (format) => {
    const bytes = await encode(frames, format);
    for (const size of [1, 3, 17, 100, 1000]) {
      const chunks = Array.from({ length: Math.ceil(bytes.length / size) }, (_, i) =>
        bytes.subarray(i * size, (i + 1) * size),
      );
      expect(await collect(chunks)).toEqual(frames);
    }
  });

  it('reads a Readable and a path alike', async () => {
    const path = fixture('roce-small.pcap');
    const seen = await collect(path);
    expect(seen.length).toBeGreaterThan(300);
    expect(await collect(createReadStream(path, { highWaterMark: 999 }))).toEqual(seen);
  });

  it('skips a large block that it does not know without keeping it', async () => {
    const section = new Section(true).interface(1, 0);
    const end = new Section(true).interface(1, 0).packet(0, 1n, Buffer.from('end')).bytes;
    const length = 2 ** 30;
    const chunk = Buffer.alloc(1 << 20);
    const block = [section.u32(0xbad), section.u32(length), Buffer.alloc(length % chunk.length)];
    async function* file() {
      yield section.bytes;
      yield Buffer.concat(block.slice(0, 2));
      yield chunk.subarray(8);
      for (let sent = chunk.length; sent < length; sent += chunk.length) yield chunk;
      yield end;
    }
    const before = process.memoryUsage().rss;
    expect(await collect(file())).toHaveLength(1);
    expect(process.memoryUsage().rss - before).toBeLessThan(100 * 2 ** 20);
  });

  it('reads a file of any size in the memory of a small one', async () => {
    const path = join(folder, 'long.pcap');
    const frame = Buffer.alloc(9000, 5);
    const count = 12_000;
    await writeCapture(path, Array(count).fill({ timestamp: 1n, bytes: frame }));
    const peakOf = async (records: number) => {
      let [seen, peak] = [0, 0];
      for await (const { end, start } of readCapture(path)) {
        expect(end - start).toBe(frame.length);
        if (++seen % 500 === 0) peak = Math.max(peak, process.memoryUsage().rss);
        if (seen === records) break;
      }
      expect(seen).toBe(records);
      return peak;
    };
    const before = await peakOf(1000);
    expect((await peakOf(count)) - before).toBeLessThan(30 * 2 ** 20);
  });

  it('gives the records before the damage, then ERR_ROCE_TRUNCATED with the place in the file', async () => {
    for (const format of ['pcap', 'pcapng'] as const) {
      const bytes = await encode(frames.slice(0, 3), format);
      const whole = await encode(frames.slice(0, 2), format);
      for (let length = whole.length + 1; length < bytes.length; length++) {
        let records = 0;
        const read = async () => {
          for await (const _ of readCapture([bytes.subarray(0, length)])) records++;
        };
        await expect(read()).rejects.toMatchObject({ code: 'ERR_ROCE_TRUNCATED', offset: whole.length });
        expect(records).toBe(2);
      }
    }
    expect(await errorOf(Buffer.alloc(0))).toMatchObject({ code: 'ERR_ROCE_TRUNCATED', offset: 0 });
  });

  const damaged: [what: string, bytes: () => Buffer, code: string, offset: number][] = [
    ['another file', () => Buffer.from('#!/bin/sh\n'), 'ERR_ROCE_NOT_ROCE', 0],
    [
      'a pcap record that is too long',
      () => Buffer.concat([pcap(true, true, []), Buffer.alloc(16, 0x7f)]),
      'ERR_ROCE_MALFORMED',
      32,
    ],
    [
      'no byte order',
      () => Buffer.concat([new Section(true).bytes.subarray(0, 8), Buffer.alloc(20)]),
      'ERR_ROCE_MALFORMED',
      8,
    ],
    [
      'an undescribed interface',
      () => new Section(true).packet(0, 0n, Buffer.alloc(4)).bytes,
      'ERR_ROCE_MALFORMED',
      36,
    ],
    [
      'a block length off by one',
      () => flip(new Section(false).interface(1, 0).bytes, 28 + 7),
      'ERR_ROCE_MALFORMED',
      32,
    ],
    ['lengths that differ', () => flip(new Section(true).interface(1, 0).bytes, 28 + 16), 'ERR_ROCE_MALFORMED', 44],
    [
      'an option beyond its block',
      () => {
        const section = new Section(true);
        return section.interface(1, 0, section.u16(9), section.u16(5)).bytes;
      },
      'ERR_ROCE_MALFORMED',
      46,
    ],
    [
      'a packet beyond its block',
      () => {
        const section = new Section(true).interface(1, 0);
        return section.block(6, ...[0, 0, 0, 5, 5, 0].map((word) => section.u32(word))).bytes;
      },
      'ERR_ROCE_MALFORMED',
      48 + 20,
    ],
  ];
  it.each(damaged)('names the place of %s', async (_what, bytes, code, offset) => {
    expect(await errorOf(bytes())).toMatchObject({ code, offset });
  });
});

function flip(bytes: Buffer, at: number): Buffer {
  bytes[at]! ^= 1;
  return bytes;
}

describe('writeCapture', () => {
  it.each(['pcap', 'pcapng'] as const)(
    'writes %s that reads back, also from the records of another file',
    async (format) => {
      const path = join(folder, `frames.${format}`);
      await writeCapture(path, frames, { format });
      expect(await collect(path)).toEqual(frames);
      const copy = join(folder, `copy.${format}`);
      await writeCapture(copy, readCapture(path), { format });
      expect(readFileSync(copy)).toEqual(readFileSync(path));
    },
  );

  it.each(['pcap', 'pcapng'] as const)('writes an empty %s', async (format) => {
    const path = join(folder, `empty.${format}`);
    await writeCapture(path, [], { format });
    expect(await collect(path)).toEqual([]);
  });

  it('writes several link types to pcapng, and refuses them in pcap', async () => {
    const mixed = frames.slice(0, 6).map((frame, i) => ({ ...frame, linkType: i % 2 ? LinkType.LINUX_SLL2 : 1 }));
    expect(await collect([await encode(mixed, 'pcapng')])).toEqual(mixed);
    await expect(encode(mixed, 'pcap')).rejects.toThrow(/pcapng/);
  });

  it('leaves the file that is there when the first packet cannot be encoded', async () => {
    const path = join(folder, 'there.pcap');
    writeFileSync(path, 'there');
    await expect(writeCapture(path, [{ timestamp: 1 as never, bytes: Buffer.alloc(1) }])).rejects.toThrow(/timestamp/);
    expect(readFileSync(path, 'utf8')).toBe('there');
  });

  it('refuses another format', async () => {
    await expect(encode([], 'csv' as 'pcap')).rejects.toThrow(/'pcap' or 'pcapng'/);
  });
});

describe('a capture of foreign tools', () => {
  it('decodes field by field as tshark decoded it, with each ICRC right', async () => {
    const lines = gunzipSync(readFileSync(fixture('roce-small.tsv.gz')))
      .toString()
      .split('\n')
      .slice(0, -1);
    const ours = await decodedByUs(fixture('roce-small.pcap'));
    expect(ours.length).toBeGreaterThan(300);
    expect(ours).toEqual(lines);
  });

  it('does so when converted to pcapng', async () => {
    const path = join(folder, 'converted.pcapng');
    await writeCapture(path, readCapture(fixture('roce-small.pcap')), { format: 'pcapng' });
    writeFileSync(join(folder, 'again.pcap'), await encode(await collect(path), 'pcap'));
    expect(await decodedByUs(path)).toEqual(await decodedByUs(fixture('roce-small.pcap')));
    expect(await decodedByUs(join(folder, 'again.pcap'))).toEqual(await decodedByUs(path));
  });
});
