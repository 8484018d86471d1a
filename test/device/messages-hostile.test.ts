/** A peer of messages that sends what it likes: each time a protocol error, a closed connection, and memory as before. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { connectTcp, type Endpoint, listenTcp, type MemoryRegion, Messages, messageEndpoint } from '../../lib/index.ts';
import { ALL_ACCESS, DEADLINE_MS, expectNoLeaks, isRxe, within } from './fixture.ts';
import { Ends } from './messages.ts';

let ends: Ends;
let memory: MemoryRegion;

beforeAll(async () => {
  ends = new Ends();
  memory = await ends.pdB.alloc(64 * 1024, { access: ALL_ACCESS });
});

afterAll(() => ends.close());

expectNoLeaks();

const LIMITS = { bufferBytes: 512, buffers: 4, maxMessageBytes: 10_000, receiveBytes: 10_000 };

/** A frame as docs/messages.md has it, made here byte by byte. */
function frame(
  type: number,
  sequence: number,
  body: Uint8Array = Buffer.alloc(0),
  { buffers = 0, controls = 0, reads = 0, length = body.length, zero = 0 } = {},
): Buffer {
  const header = Buffer.alloc(16);
  header[0] = type;
  header[1] = zero;
  header.writeUInt16BE(buffers, 2);
  header.writeUInt16BE(controls, 4);
  header.writeUInt16BE(reads, 6);
  header.writeUInt32BE(sequence, 8);
  header.writeUInt32BE(length, 12);
  return Buffer.concat([header, body]);
}

function hello({ magic = 'nMSG', version = 1, kind = 0, buffers = 4, controls = 4, bytes = 512, most = 10_000 } = {}) {
  const body = Buffer.alloc(24);
  body.write(magic, 'latin1');
  body[4] = version;
  body[5] = kind;
  body.writeUInt16BE(buffers, 6);
  body.writeUInt16BE(controls, 8);
  body.writeUInt32BE(bytes, 12);
  body.writeUInt32BE(most, 16);
  return body;
}

function announcement(addr: bigint, rkey: number, length: number): Buffer {
  const body = Buffer.alloc(16);
  body.writeBigUInt64BE(addr, 0);
  body.writeUInt32BE(rkey, 8);
  body.writeUInt32BE(length, 12);
  return body;
}

const HELLO = frame(1, 0, hello());

/** Messages on device A, and a peer on device B that is nothing but an endpoint. */
async function against(frames: Buffer[], imm?: number): Promise<{ error: Error & { reason?: string; code?: string } }> {
  const how = { host: '127.0.0.1', timeout: 15, retryCnt: 6 };
  const recvs = () => Array.from({ length: 20 }, (_, i) => memory.slice(32_768 + i * 1024, 1024));
  const listener = await listenTcp({ pd: ends.pdB, recvs, ...how, port: 0 });
  const connecting = connectTcp({ ...messageEndpoint({ pd: ends.pdA, ...LIMITS }), ...how, port: listener.port });
  const [endpoint, peer] = (await Promise.all([connecting, listener.accept()])) as [Endpoint, Endpoint];
  await listener.close();
  const sends = frames.map((bytes, i) => {
    const slice = memory.slice(i * 1024, bytes.length);
    slice.buffer.set(bytes);
    return peer.send(slice, imm === undefined ? {} : { immData: imm }).catch(() => {});
  });
  let error: Error | undefined;
  try {
    const messages = await within(Messages.open(endpoint, { timeoutMs: DEADLINE_MS }), 'the hello');
    error = await within(messages.closed, 'the end');
    await messages.close();
  } catch (reason) {
    error = reason as Error;
  }
  expect(endpoint.qp.closed && endpoint.qp.sendCq.closed).toBe(true);
  await within(peer.close(), 'the close of the peer');
  await within(Promise.all(sends), 'what the peer sent');
  return { error: error as Error };
}

describe('messages with a peer that does not keep to the protocol', () => {
  const data = (sequence: number, more = {}) => frame(2, sequence, Buffer.from('hello'), more);
  const cases: [what: string, reason: string, frames: () => Buffer[], imm?: number][] = [
    ['nothing in the first frame', 'FRAME', () => [Buffer.alloc(0)]],
    ['a part of a header', 'FRAME', () => [HELLO.subarray(0, 15)]],
    ['a length that is not the frame’s', 'FRAME', () => [frame(1, 0, hello(), { length: 25 })]],
    ['a length beyond all bounds', 'FRAME', () => [frame(1, 0, hello(), { length: 0xffff_ffff })]],
    ['a byte that must be zero', 'FRAME', () => [frame(1, 0, hello(), { zero: 1 })]],
    ['another magic', 'HELLO', () => [frame(1, 0, hello({ magic: 'HTTP' }))]],
    ['another version', 'VERSION', () => [frame(1, 0, hello({ version: 2 }))]],
    ['another version of another length', 'VERSION', () => [frame(1, 0, hello({ version: 9 }).subarray(0, 8))]],
    ['a stream', 'KIND', () => [frame(1, 0, hello({ kind: 1 }))]],
    ['an unknown kind', 'KIND', () => [frame(1, 0, hello({ kind: 200 }))]],
    ['no buffers', 'HELLO', () => [frame(1, 0, hello({ buffers: 0 }))]],
    ['tiny buffers', 'HELLO', () => [frame(1, 0, hello({ bytes: 16 }))]],
    ['too few control frames', 'HELLO', () => [frame(1, 0, hello({ controls: 1 }))]],
    ['a message before hello', 'ORDER', () => [data(0)]],
    ['a frame number that is not the first', 'ORDER', () => [frame(1, 1, hello())]],
    ['a second hello', 'ORDER', () => [HELLO, frame(1, 1, hello())]],
    ['a frame twice', 'ORDER', () => [HELLO, data(1), data(1)]],
    ['a frame left out', 'ORDER', () => [HELLO, data(2)]],
    ['a message behind the end', 'ORDER', () => [HELLO, frame(5, 1), data(2)]],
    ['two ends', 'ORDER', () => [HELLO, frame(5, 1), frame(5, 2)]],
    ['an unknown type', 'FRAME', () => [HELLO, frame(77, 1)]],
    ['type zero', 'FRAME', () => [HELLO, frame(0, 1)]],
    ['credits with a body', 'FRAME', () => [HELLO, frame(4, 1, Buffer.alloc(3))]],
    ['an end with a body', 'FRAME', () => [HELLO, frame(5, 1, Buffer.alloc(3))]],
    ['a farewell that is too short', 'FRAME', () => [HELLO, frame(6, 1, Buffer.alloc(1))]],
    ['a farewell that is too long', 'FRAME', () => [HELLO, frame(6, 1, Buffer.alloc(300))]],
    ['immediate data', 'FRAME', () => [HELLO], 7],
    ['buffers given back that it never had', 'CREDITS', () => [HELLO, data(1, { buffers: 1 })]],
    ['control frames given back that it never had', 'CREDITS', () => [HELLO, frame(4, 1, undefined, { controls: 2 })]],
    ['messages read that were not announced', 'CREDITS', () => [HELLO, frame(4, 1, undefined, { reads: 65_535 })]],
    ['credits in its hello', 'CREDITS', () => [frame(1, 0, hello(), { buffers: 9 })]],
    ['more messages than there are buffers', 'CREDITS', () => [HELLO, ...[1, 2, 3, 4, 5].map((i) => data(i))]],
    ['an announcement of another length', 'FRAME', () => [HELLO, frame(3, 1, Buffer.alloc(15))]],
    ['an announcement of nothing', 'LENGTH', () => [HELLO, frame(3, 1, announcement(memory.addr, memory.rkey, 0))]],
    [
      'an announcement of more than is taken',
      'LENGTH',
      () => [HELLO, frame(3, 1, announcement(memory.addr, memory.rkey, 10_001))],
    ],
    ['memory past 2^64', 'FRAME', () => [HELLO, frame(3, 1, announcement(2n ** 64n - 1n, memory.rkey, 2))]],
    [
      'a key that it has not',
      'ACCESS',
      () => [HELLO, frame(3, 1, announcement(memory.addr, memory.rkey ^ 0x5500, 600))],
    ],
    [
      'memory that it has not',
      'ACCESS',
      () => [HELLO, frame(3, 1, announcement(memory.addr + 65_000n, memory.rkey, 9_000))],
    ],
  ];

  it('closes the connection with the reason, each time', { timeout: 400_000 }, async () => {
    // What the NIC has a part in is the same on both backends; the rest is ours, and a connection takes a second there.
    const some = isRxe ? cases.filter(([, reason], i) => reason === 'ACCESS' || i % 8 === 0) : cases;
    for (const [what, reason, frames, imm] of some) {
      const { error } = await against(frames(), imm);
      expect(error, what).toMatchObject({ name: 'RdmaProtocolError', code: 'ERR_RDMA_PROTOCOL', reason });
    }
  });

  it('takes a farewell at its word', async () => {
    for (const text of ['', 'no\u0007\ud800 more']) {
      const body = Buffer.concat([Buffer.of(0, 1), Buffer.from(text)]);
      expect((await against([HELLO, frame(6, 1, body)])).error).toMatchObject({ code: 'ECONNRESET' });
    }
  });

  it('survives whatever else there is', { timeout: 400_000 }, async () => {
    let seed = 20_261_129;
    const random = (below: number) => {
      seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
      return Math.floor((seed / 2 ** 32) * below);
    };
    const start = process.memoryUsage().rss;
    for (let round = 0; round < (isRxe ? 4 : 120); round++) {
      // Good frames with one bit, or some bytes, or all of one frame changed, and in another order now and then.
      const good = [
        HELLO,
        data(1),
        frame(3, 2, announcement(memory.addr, memory.rkey, 5_000)),
        frame(4, 3),
        frame(5, 4),
      ];
      const frames = good.map((bytes) => Buffer.from(bytes));
      const victim = random(frames.length);
      const bytes = frames[victim] as Buffer;
      const how = random(4);
      if (how === 0) bytes[random(bytes.length)]! ^= 1 << random(8);
      if (how === 1) for (let i = 0; i < 1 + random(8); i++) bytes[random(bytes.length)] = random(256);
      if (how === 2) frames[victim] = Buffer.from(Array.from({ length: random(512) }, () => random(256)));
      if (how === 3) frames.splice(victim, 1, ...frames.splice(random(frames.length), 1));
      // What happens to be good in the end is ended by a farewell.
      const { error } = await against([...frames, frame(6, 5, Buffer.of(0, 0))]);
      expect(['ERR_RDMA_PROTOCOL', 'ECONNRESET'], `round ${round}: ${error}`).toContain(error.code);
    }
    if (!isRxe) expect(process.memoryUsage().rss - start).toBeLessThan(200 << 20);
  });
});
