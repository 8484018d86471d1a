// Captures of foreign tools on Soft-RoCE, some with losses, decode by us as tshark decodes them, and their flows tell what
// the tools were told to send. Also the other way: what we write, tshark reads.
import { execFileSync } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import {
  encodePacket,
  type Flow,
  type FlowEvent,
  FlowTracker,
  type OpcodeInfo,
  type PacketInit,
  readCapture,
  Transport,
  writeCapture,
} from '../../lib/roce/index.ts';
import { runInVm } from '../../lib/vm/index.ts';
import { opcodes, Random, randomPacket } from '../unit/roce-samples.ts';
import { decodedByTshark, decodedByUs } from '../unit/roce-tshark.ts';

const root = fileURLToPath(new URL('../../', import.meta.url));
const out = mkdtempSync(join(tmpdir(), 'node-rdma-roce-'));
afterAll(() => rmSync(out, { recursive: true }));
// What is lost on the wire is another packet each time: a failure can be looked at only in what was captured.
beforeEach(({ onTestFailed }) =>
  onTestFailed(() => cpSync(out, join(root, 'build/results/captures'), { recursive: true })),
);

beforeAll(async () => {
  const env = { PATH: process.env.PATH, OUT: out, ROOT: root, NODE: process.execPath };
  const script = join(root, 'test/vm/roce-capture.sh');
  const { code } = await runInVm({ command: '/bin/sh', args: [script], cwd: root, env, out, timeoutMs: 240_000 });
  expect(code).toBe(0);
  for (const name of files.filter((file) => file !== 'any.pcap')) {
    const [from, to] = ['.v0', '.v1'].map((part) => path(name) + part);
    execFileSync('mergecap', ['-F', name.split('.')[1]!, '-w', path(name), from!, to!], { stdio: 'pipe' });
  }
}, 400_000);

const files = ['small.pcap', 'large.pcap', 'lossy.pcapng', 'own.pcap', 'any.pcap'];
const path = (name: string) => join(out, name);

describe('the captures', () => {
  it('hold every packet that was on the wire, thousands of them', () => {
    const said = readFileSync(path('tcpdump'), 'utf8');
    const sum = (what: string) =>
      [...said.matchAll(new RegExp(`^(\\d+) packets ${what}`, 'gm'))].reduce(
        (total, [, count]) => total + Number(count),
        0,
      );
    expect(sum('captured')).toBeGreaterThan(5000);
    expect(sum('dropped by kernel')).toBe(0);
  });

  it.each(files)('decode field by field as tshark decodes them, with each ICRC right: %s', async (name) => {
    const theirs = await decodedByTshark(path(name));
    expect(theirs.length).toBeGreaterThan(30);
    const ours = await decodedByUs(path(name));
    // Not the whole lists, of which vitest would show the difference for minutes.
    expect(ours.length).toBe(theirs.length);
    for (const [i, line] of theirs.entries()) if (ours[i] !== line) expect(ours[i]).toBe(line);
  });
});

async function follow(name: string): Promise<{ flows: Flow[]; events: FlowEvent[] }> {
  const tracker = new FlowTracker();
  const events: FlowEvent[] = [];
  for await (const event of tracker.follow(readCapture(path(name)))) events.push(event);
  // Without those of the connection manager.
  return { flows: tracker.flows.filter(({ destQp }) => destQp > 1), events };
}

/** Messages and good bytes of the flows that carry data, in the order of time. */
const loads = (flows: Flow[]) =>
  flows.filter(({ messages }) => messages > 0).map(({ messages, goodBytes }) => [messages, goodBytes]);
const times = (count: number, bytes: number) => [count, count * bytes];
const lines = (text: string) => text.split('\n').filter(Boolean).length;
const countByTshark = (name: string, filter: string) =>
  lines(execFileSync('tshark', ['-r', path(name), '-Y', filter], { encoding: 'utf8', maxBuffer: 1 << 26 }));

describe('the flows', () => {
  it('have the messages that the tools were told to send', async () => {
    expect(loads((await follow('small.pcap')).flows).slice(0, 13)).toEqual([
      times(10, 3001),
      times(10, 3001),
      times(5, 2100),
      times(5, 2100),
      times(10, 203),
      times(10, 203),
      times(5, 1030),
      times(5, 1030),
      times(5, 2051),
      times(5, 4001),
      times(10, 77),
      [5, 0],
      [5, 0],
    ]);
    expect(loads((await follow('large.pcap')).flows)).toEqual([
      times(60, 16_384),
      times(30, 16_384),
      times(100, 8192),
      times(60, 4096),
      times(60, 1000),
    ]);
    expect(loads((await follow('own.pcap')).flows)).toEqual([times(50, 8190), times(50, 8190)]);
    expect(loads((await follow('any.pcap')).flows)).toEqual([times(5, 3001), times(5, 3001)]);
  });

  it('have them also where packets were lost, each byte once', async () => {
    const { flows, events } = await follow('lossy.pcapng');
    const [written, read, ...rest] = loads(flows);
    expect([written, ...rest]).toEqual([times(60, 16_384), times(60, 16_384)]);
    // It is sent again in parts, each of which is answered as a message.
    expect(read![1]).toBe(30 * 16_384);
    const total = (of: (flow: Flow) => number) => flows.reduce((sum, flow) => sum + of(flow), 0);
    const count = (wanted: FlowEvent['type']) => events.filter(({ type }) => type === wanted).length;
    expect(total(({ naks }) => naks)).toBe(countByTshark('lossy.pcapng', 'infiniband.aeth.syndrome.opcode == 3'));
    expect(total(({ ecnMarks }) => ecnMarks)).toBe(countByTshark('lossy.pcapng', 'ip.dsfield.ecn == 3'));
    expect(count('gap')).toBe(total(({ gaps }) => gaps));
    expect(count('retransmission')).toBe(total(({ retransmissions }) => retransmissions));
    for (const type of ['gap', 'retransmission', 'nak', 'goBackN', 'ecnMark'] as const)
      expect(count(type)).toBeGreaterThan(0);
  });

  it('see a receiver that is not ready', async () => {
    const { flows, events } = await follow('large.pcap');
    const rnrNaks = flows.reduce((sum, flow) => sum + flow.rnrNaks, 0);
    expect(rnrNaks).toBe(countByTshark('large.pcap', 'infiniband.aeth.syndrome.opcode == 1'));
    if (rnrNaks > 0) expect(events).toContainEqual(expect.objectContaining({ type: 'goBackN', trigger: 'RNR_NAK' }));
  });

  it('find the way back of each reliable connection', async () => {
    for (const name of files) {
      for (const flow of (await follow(name)).flows) {
        if (flow.transport === Transport.RC) expect(flow.peer?.peer).toBe(flow);
      }
    }
  });
});

describe('what we write', () => {
  // tshark 4.0 does not know XRCETH, FETH and atomic writes.
  const known = opcodes.filter(
    ({ transport, headers, operation }) =>
      ([Transport.RC, Transport.UC, Transport.UD] as number[]).includes(transport) &&
      !headers.includes('feth') &&
      operation !== 'ATOMIC_WRITE',
  );

  const carriesData = ({ name }: OpcodeInfo) => !/REQUEST|ACKNOWLEDGE|COMPARE|FETCH/.test(name);

  it.each(['pcap', 'pcapng'] as const)('tshark reads as %s: each field of random packets', async (format) => {
    const random = new Random(6);
    const frames = known.flatMap((info) =>
      Array.from({ length: 5 }, () => {
        const packet = randomPacket(random, info);
        const { grh: _, ...rest } = packet;
        const addresses: Partial<PacketInit> = packet.grh ? { ipv4: { src: '10.0.0.1', dst: '10.0.0.2' } } : {};
        // It guesses from the payload what that is, and fails when it is short; but not from this one.
        const payload = carriesData(info) ? Buffer.alloc(16 + random.below(84), 0x11) : Buffer.alloc(0);
        const bytes = encodePacket({ ...rest, ...addresses, bth: { ...packet.bth, tver: 0 }, payload });
        return { timestamp: 1_700_000_000_123_456_789n + BigInt(random.below(2 ** 31)), bytes };
      }),
    );
    const name = path(`random.${format}`);
    await writeCapture(name, frames, { format });
    const theirs = await decodedByTshark(name);
    const ours = await decodedByUs(name);
    expect(ours.length).toBe(frames.length + 1);
    expect(ours).toEqual(theirs);
  });
});
