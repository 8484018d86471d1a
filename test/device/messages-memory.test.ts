/** The memory of messages that wait for a buffer of the peer, and what becomes of a message whose memory goes meanwhile. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Message, Messages, type MessagesOptions, RdmaClosedError } from '../../lib/index.ts';
import { rejection } from './cm.ts';
import { ALL_ACCESS, DEADLINE_MS, expectNoLeaks, fill, thrown, within } from './fixture.ts';
import { Ends } from './messages.ts';

let ends: Ends;

beforeAll(() => {
  ends = new Ends();
});

afterAll(() => ends.close());

expectNoLeaks();

const BUFFERS = 4;

async function opened(b: MessagesOptions = {}): Promise<[Messages, Messages]> {
  const pair = await ends.connect({ bufferBytes: 1024, buffers: BUFFERS, maxMessageBytes: 1 << 20 });
  const open = { timeoutMs: DEADLINE_MS };
  return within(
    Promise.all([Messages.open(pair[0], open), Messages.open(pair[1], { ...open, ...b })]),
    'the limits of the peers',
  );
}

/** Sends what the peer has buffers for: the next message waits. */
const full = (a: Messages) => Promise.all(Array.from({ length: BUFFERS }, () => a.send(Buffer.from('x'))));

const closeBoth = (a: Messages, b: Messages) => within(Promise.all([a.close(), b.close()]), 'close');

async function bytesOf(messages: Messages): Promise<Buffer> {
  using message = (await within(messages.receive(), 'a message')) as Message;
  return Buffer.from(message.data);
}

async function drain(b: Messages, count = BUFFERS): Promise<void> {
  for (let i = 0; i < count; i++) expect(String(await bytesOf(b))).toBe('x');
}

// Given to somebody else, as `postMessage()` with a transfer list does.
function take(bytes: Uint8Array): void {
  structuredClone(bytes.buffer, { transfer: [bytes.buffer as ArrayBuffer] });
}

describe('the memory of messages', () => {
  it('cannot be closed while a slice waits, short or long, until it is on its way or read', async () => {
    for (const length of [100, 8000]) {
      const [a, b] = await opened();
      await full(a);
      const region = await ends.pdA.alloc(8192, { access: ALL_ACCESS });
      fill(region.buffer, length);
      const expected = Buffer.from(region.buffer.subarray(0, length));
      const sent = a.send(region.slice(0, length));
      expect(thrown(() => region.close())).toMatchObject({ code: 'EBUSY', message: /1 work request/ });
      await expect(region.rereg({ access: 1 })).rejects.toMatchObject({ code: 'EBUSY' });
      await drain(b);
      expect((await bytesOf(b)).equals(expected)).toBe(true);
      await within(sent, 'the send');
      region.close();
      await closeBoth(a, b);
    }
    const [a, b] = await opened();
    // What was withdrawn holds nothing.
    await full(a);
    const region = await ends.pdA.alloc(4096, { access: ALL_ACCESS });
    const controller = new AbortController();
    const given = a.send(region.slice(), { signal: controller.signal });
    controller.abort(new Error('enough'));
    await expect(given).rejects.toThrow('enough');
    region.close();
    await drain(b);
    await closeBoth(a, b);
  });

  it('is let go of when the connection ends, and does not hold the end of a context', async () => {
    const [a, b] = await opened();
    await full(a);
    const region = await ends.pdA.alloc(4096, { access: ALL_ACCESS });
    const waiting = [a.send(region.slice(0, 100)), a.send(region.slice())].map(rejection);
    a.destroy();
    for (const error of await Promise.all(waiting)) expect(error).toBeInstanceOf(RdmaClosedError);
    region.close();
    await closeBoth(a, b);

    const others = new Ends();
    const [endpointA, endpointB] = await others.connect({ bufferBytes: 1024, buffers: BUFFERS });
    const [c, d] = await Promise.all([Messages.open(endpointA), Messages.open(endpointB)]);
    await full(c);
    const more = await others.pdA.alloc(4096, { access: ALL_ACCESS });
    const lost = [c.send(more.slice(0, 100)), c.send(more.slice())].map(rejection);
    others.close();
    expect(more.closed).toBe(true);
    for (const { code } of await Promise.all(lost)) expect(code).toMatch(/^(ERR_RDMA_CLOSED|ECONNRESET)$/);
    await closeBoth(c, d);
  });

  it('that is taken away while a message waits rejects that message, and nothing else', async () => {
    const [a, b] = await opened();
    await full(a);
    const short = new Uint8Array(100);
    const long = new Uint8Array(5000);
    const own = new Uint8Array(4096);
    const registered = await ends.pdA.regMr(own, { access: ALL_ACCESS });
    const waiting = [short, long, registered.slice(0, 50), registered.slice()].map((memory) => a.send(memory));
    const failures = waiting.map(rejection);
    const innocent = [a.send(Buffer.from('short one')), a.send(fill(Buffer.alloc(3000), 5))];
    take(short);
    take(long);
    // What was registered cannot be transferred, but a method of the buffer takes it away all the same.
    const transfer = (own.buffer as unknown as { transfer?(): ArrayBuffer }).transfer;
    const kept = transfer?.call(own.buffer);
    await drain(b);
    const rest = transfer === undefined ? [50, 4096] : [];
    for (const length of rest) expect((await bytesOf(b)).length).toBe(length);
    expect(String(await bytesOf(b))).toBe('short one');
    expect((await bytesOf(b)).equals(fill(Buffer.alloc(3000), 5))).toBe(true);
    await within(Promise.all(innocent), 'the others');
    const gone = { code: 'ERR_INVALID_STATE', message: /taken away|detached/ };
    for (const error of (await Promise.all(failures)).slice(0, transfer ? 4 : 2)) expect(error).toMatchObject(gone);
    // Neither a buffer nor a credit was lost.
    for (let i = 0; i < 3 * BUFFERS; i++) {
      await a.send(Buffer.from('x'));
      await drain(b, 1);
    }
    await within(Promise.all([a.end(), b.end()]), 'both ends');
    await closeBoth(a, b);
    expect(await Promise.all([a.closed, b.closed])).toEqual([undefined, undefined]);
    registered.close();
    expect(kept?.byteLength ?? 4096).toBe(4096);
  });

  it('is as long as it is, whatever a subclass says', async () => {
    class Lying extends Uint8Array {
      override get length(): number {
        return 10;
      }
      override get byteLength(): number {
        return 2000;
      }
    }
    const [a, b] = await opened();
    for (const length of [5, 900, 5000]) {
      const bytes = new Lying(length);
      Buffer.from(bytes.buffer).fill(length);
      const sent = a.send(bytes);
      expect((await bytesOf(b)).equals(Buffer.alloc(length, length))).toBe(true);
      await within(sent, 'the send');
    }
    expect(await rejection(a.send(new Lying((1 << 20) + 1)))).toMatchObject({ code: 'ERR_OUT_OF_RANGE' });
    const gone = new Uint8Array(10);
    take(gone);
    expect(await rejection(a.send(gone))).toMatchObject({ code: 'ERR_INVALID_STATE', message: /detached/ });
    const fake = Object.create(Uint8Array.prototype);
    expect(await rejection(a.send(fake))).toMatchObject({ code: 'ERR_INVALID_ARG_TYPE' });
    await closeBoth(a, b);
  });
});

describe('the option place', () => {
  it('ends the connection, there too and at once, when it throws or gives something wrong', async () => {
    const [small, plain, foreign] = [
      await ends.pdB.alloc(4096),
      await ends.pdB.alloc(8192, { access: 0 }),
      await ends.pdA.alloc(8192),
    ];
    const mine = new Error('no room');
    const wrong: [place: () => unknown, error: object][] = [
      [() => Promise.reject(mine), { message: 'no room' }],
      [
        () => {
          throw mine;
        },
        { message: 'no room' },
      ],
      [() => Promise.reject(), { message: /no error/ }],
      [() => 'here', { code: 'ERR_INVALID_ARG_TYPE' }],
      [() => null, { code: 'ERR_INVALID_ARG_TYPE' }],
      [() => small.slice(), { code: 'ERR_INVALID_ARG_TYPE' }],
      [() => plain.slice(), { code: 'ERR_INVALID_ARG_VALUE', message: /LOCAL_WRITE/ }],
      [() => foreign.slice(), { code: 'ERR_INVALID_ARG_VALUE', message: /another protection domain/ }],
    ];
    for (const [place, error] of wrong) {
      const [a, b] = await opened({ place: place as never });
      const begin = performance.now();
      const [sent, received] = [rejection(a.send(Buffer.alloc(5000))), rejection(b.receive())];
      expect(await received).toMatchObject(error);
      expect(await sent).toMatchObject({ code: 'ECONNRESET' });
      // Far from what the NIC's retries take.
      expect(performance.now() - begin).toBeLessThan(2000);
      expect(await within(b.closed, 'the end')).toMatchObject(error);
      await closeBoth(a, b);
    }
    for (const region of [small, plain, foreign]) region.close();
  });
});
