// Bytes of any kind give a result or a PacketError, never another exception. Each run tries as many inputs as a few
// seconds allow. To look longer, and to keep what is found in test/fixtures/roce-corpus:
//   ROCE_FUZZ_SECONDS=600 npx vitest run --project unit test/unit/roce-fuzz.test.ts
import { createHash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import {
  CaptureParser,
  decodePacket,
  encodePacket,
  FlowTracker,
  LinkType,
  PacketError,
  PacketView,
} from '../../lib/roce/index.ts';
import { fuzz } from './roce-fuzz.ts';
import { opcodes, Random, randomPacket } from './roce-samples.ts';

const folder = fileURLToPath(new URL('../fixtures/roce-corpus/', import.meta.url));
const seconds = Number(process.env.ROCE_FUZZ_SECONDS ?? 0);
const linkTypes = Object.values(LinkType);

/** Runs what may only throw a PacketError, with a place within the bytes. */
function expectPacketError(length: number, run: () => void): void {
  try {
    run();
  } catch (error) {
    if (!(error instanceof PacketError) || error.offset < 0 || error.offset > length) throw error;
  }
}

/** The first byte selects the link type, and whether the capture has cut the frame; the rest is the frame. */
function packet(input: Buffer): void {
  const [choice = 0] = input;
  const frame = input.subarray(1);
  const linkType = linkTypes[choice % 3]!;
  const view = new PacketView();
  const wireLength = choice & 0x80 ? frame.length + 100 : frame.length;
  if (view.load(frame, 0, frame.length, linkType, wireLength)) {
    void [view.va, view.rkey, view.dmaLen, view.syndrome, view.msn, view.srcQp, view.src, view.dst, view.icrcOk];
    if (view.payload.length > view.payloadLength) throw new Error('more payload than there is');
  } else {
    expectPacketError(frame.length, () => {
      throw view.error();
    });
  }
  expectPacketError(frame.length, () => {
    const decoded = decodePacket(frame, { linkType });
    if (decoded.ethernet === undefined) return;
    // What is computed anew may differ, but only the first time.
    const once = encodePacket(decoded);
    if (!encodePacket(decodePacket(once)).equals(once)) throw new Error('encoded differently');
  });
}

/** The first byte is the size of the chunks; the rest is the file. */
function capture(input: Buffer): void {
  const [size = 0] = input;
  const file = input.subarray(1);
  const parser = new CaptureParser();
  expectPacketError(2 ** 40, () => {
    for (let at = 0; at < file.length; at += size + 1) {
      parser.push(file.subarray(at, at + size + 1));
      for (let record = parser.next(); record !== undefined; record = parser.next()) {
        void record.timestamp;
        if (record.start < 0 || record.end > record.buffer.length || record.end < record.start)
          throw new Error('beyond');
      }
    }
    parser.end();
  });
}

/** Each four bytes are a packet: direction, queue pair and congestion; opcode; PSN; length and time. */
function flow(input: Buffer): void {
  const random = new Random(5);
  const tracker = new FlowTracker({ maxFlows: 4, keepPayload: 64, onEvent: (event) => void event.timestamp });
  const view = new PacketView();
  let now = 10n ** 18n;
  for (let at = 0; at + 4 <= input.length && at < 400; at += 4) {
    const [way, code, psn, length] = input.subarray(at, at + 4) as unknown as [number, number, number, number];
    const info = opcodes[code % opcodes.length]!;
    const sides = ['10.0.0.1', '10.0.0.2'] as const;
    const made = randomPacket(random, info);
    const { grh: _grh, ipv6: _ipv6, ...rest } = made;
    const bytes = encodePacket({
      ...rest,
      ipv4: { src: sides[way & 1]!, dst: sides[~way & 1]!, ecn: (way >> 6) as 0 },
      bth: { ...made.bth, destQp: way & 6, psn: (psn * (way & 32 ? 1 << 15 : 1)) & 0xffffff },
      payload: Buffer.alloc(info.position === 'ONLY' ? length : 256),
      ...(made.reth && { reth: { ...made.reth, dmaLen: length * 16 } }),
    });
    if (!view.load(bytes)) throw view.error();
    now += BigInt(length - 100) * 10n ** BigInt(way & 15);
    tracker.add(now, view);
  }
  for (const { goodBytes, payloadBytes, packets, retransmissions, outOfOrder } of tracker.flows) {
    if (goodBytes > payloadBytes) throw new Error('more good bytes than bytes');
    if (retransmissions > packets || outOfOrder > packets) throw new Error('more of a kind than packets');
  }
}

const targets = { packet, capture, flow };
const inputs = { packet: 4_000, capture: 10_000, flow: 500 };

/** The corpus as it is kept. */
function load(name: string): Buffer[] {
  return readdirSync(join(folder, name)).map((file) => readFileSync(join(folder, name, file)));
}

function keep(name: string, input: Buffer): void {
  const file = createHash('sha256').update(input).digest('hex').slice(0, 16);
  mkdirSync(join(folder, name), { recursive: true });
  writeFileSync(join(folder, name, file), input);
}

describe('any bytes', () => {
  it.each(Object.keys(targets) as (keyof typeof targets)[])(
    'give a result or a PacketError: %s',
    (name) => {
      const corpus = load(name);
      expect(corpus.length).toBeGreaterThan(5);
      const deadline = performance.now() + seconds * 1000;
      const seed = seconds === 0 ? 1 : Date.now();
      const isEnough = (count: number) => (seconds === 0 ? count >= inputs[name] : performance.now() > deadline);
      const result = fuzz(targets[name], corpus, new Random(seed), isEnough);
      if (seconds > 0) {
        for (const input of result.added) keep(name, input);
        console.log(
          `${name}: ${result.inputs} inputs, ${result.added.length} kept, ${result.reached} characters reached`,
        );
      }
    },
    60_000 + seconds * 1000,
  );
});
