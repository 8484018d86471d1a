/** Whole messages over an endpoint: order, lengths, credits, rendezvous, ends, and peers that misbehave. */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  AccessFlags,
  connectionInfo,
  connectTcp,
  encodeConnectionInfo,
  type Message,
  type MessageEndpointOptions,
  Messages,
  type MessagesOptions,
  messageEndpoint,
  RdmaClosedError,
} from '../../lib/index.ts';
import { rejection } from './cm.ts';
import { DEADLINE_MS, expectNoLeaks, fill, isRxe, within } from './fixture.ts';
import { Ends } from './messages.ts';

let ends: Ends;

beforeAll(() => {
  ends = new Ends();
});

afterAll(() => ends.close());

expectNoLeaks();

type Limits = Partial<Omit<MessageEndpointOptions, 'pd'>>;

const open = { timeoutMs: DEADLINE_MS };

/** Messages on both sides. */
async function opened(
  a: Limits = {},
  b: Limits = a,
  options: { a?: MessagesOptions; b?: MessagesOptions } = {},
): Promise<[Messages, Messages]> {
  const [endpointA, endpointB] = await ends.connect(a, b);
  return within(
    Promise.all([
      Messages.open(endpointA, { ...open, ...options.a }),
      Messages.open(endpointB, { ...open, ...options.b }),
    ]),
    'the limits of the peers',
  );
}

const closeBoth = (a: Messages, b: Messages) => within(Promise.all([a.close(), b.close()]), 'close');

const next = async (messages: Messages): Promise<Message> => (await within(messages.receive(), 'a message')) as Message;

/** The next message as bytes of its own, released. */
async function bytesOf(messages: Messages): Promise<Buffer> {
  using message = await next(messages);
  return Buffer.from(message.data);
}

const bytes = (length: number, seed = 1) => fill(Buffer.alloc(length), seed);

describe('messages', () => {
  it('arrive whole and in order, short and long, both ways', async () => {
    const [a, b] = await opened({ bufferBytes: 256, maxMessageBytes: 1 << 20 });
    expect([a.maxCopiedBytes, a.maxMessageBytes]).toEqual([240, 1 << 20]);
    const sizes = [0, 1, 240, 241, 4096, 5, 1 << 20, 70_000, 239];
    const sent = Promise.all(sizes.map((size, i) => a.send(bytes(size, i))));
    const answered = Promise.all(sizes.map((size, i) => b.send(bytes(size, 100 + i))));
    for (const [i, size] of sizes.entries()) {
      const received = await bytesOf(b);
      expect(received.length).toBe(size);
      expect(received.equals(bytes(size, i))).toBe(true);
      expect((await bytesOf(a)).equals(bytes(size, 100 + i))).toBe(true);
    }
    await within(Promise.all([sent, answered]), 'sends');
    await closeBoth(a, b);
  });

  it('are read out of registered memory, and into memory that the receiver names', async () => {
    const target = await ends.pdB.alloc(1 << 16);
    const seen: number[] = [];
    const place = (length: number) => {
      seen.push(length);
      return length === 50_000 ? target.slice(100) : undefined;
    };
    const [a, b] = await opened({ bufferBytes: 256 }, { bufferBytes: 256 }, { b: { place } });
    const source = await ends.pdA.alloc(1 << 16, { access: AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ });
    const pattern = fill(source.buffer, 4);
    const sent = [a.send(source.slice(7, 50_000)), a.send(source.slice(1, 100)), a.send(source.slice(3, 300))];
    {
      using message = await next(b);
      expect(message.slice).toMatchObject({ region: target, offset: 100, length: 50_000 });
      expect(message.data.equals(pattern.subarray(7, 50_007))).toBe(true);
    }
    expect((await bytesOf(b)).equals(pattern.subarray(1, 101))).toBe(true);
    expect((await bytesOf(b)).equals(pattern.subarray(3, 303))).toBe(true);
    await within(Promise.all(sent), 'sends');
    expect(seen).toEqual([50_000, 300]);
    await closeBoth(a, b);
    source.close();
    target.close();
  });

  it('wait for a receiver that does not release, who has bounded memory for them', async () => {
    const [a, b] = await opened({ bufferBytes: 256, buffers: 4, maxMessageBytes: 65_536, receiveBytes: 131_072 });
    let sent = 0;
    const sends = Array.from({ length: 40 }, (_, i) => a.send(bytes(i % 2 ? 100 : 60_000, i)).then(() => void sent++));
    const held: Message[] = [];
    // Two long ones are all that there is memory for, and four all that there are buffers for.
    for (let i = 0; i < 4; i++) held.push(await next(b));
    let more: Message | undefined;
    const waiting = next(b).then((message) => {
      more = message;
    });
    for (let turn = 0; turn < 50; turn++) await new Promise((resolve) => setImmediate(resolve));
    expect(sent).toBeLessThanOrEqual(8);
    expect(more).toBeUndefined();
    for (const [i, message] of held.entries()) {
      expect(message.data.equals(bytes(i % 2 ? 100 : 60_000, i))).toBe(true);
      message.release();
    }
    await within(waiting, 'the fifth');
    more!.release();
    for (let i = 5; i < 40; i++) expect((await bytesOf(b)).equals(bytes(i % 2 ? 100 : 60_000, i))).toBe(true);
    await within(Promise.all(sends), 'sends');
    await closeBoth(a, b);
  });

  it('of random lengths, both ways at once, arrive exactly once and in order', { timeout: 400_000 }, async () => {
    const total = isRxe ? 30 : 300;
    const longest = isRxe ? 1 << 18 : 1 << 21;
    const [a, b] = await opened({ bufferBytes: 1024, buffers: 5, maxMessageBytes: longest, receiveBytes: 2 * longest });
    const random = (seed: number) => () => {
      seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
      return seed / 2 ** 32;
    };
    const lengthOf = (x: number, y: number) =>
      x < 0.5 ? Math.floor(y * 1100) : Math.floor(2 ** (y * Math.log2(longest)));
    const run = async (from: Messages, to: Messages, seed: number) => {
      const [here, there] = [createHash('sha256'), createHash('sha256')];
      const random1 = random(seed);
      const window: Promise<void>[] = [];
      const sending = (async () => {
        for (let i = 0; i < total; i++) {
          const message = fill(Buffer.alloc(lengthOf(random1(), random1())), i + seed);
          here.update(`${i} ${message.length} `).update(message);
          window.push(from.send(message));
          if (window.length > 20) await window.shift();
        }
        await Promise.all(window);
        await from.end();
      })();
      let count = 0;
      for await (const message of to) {
        there.update(`${count++} ${message.byteLength} `).update(message.data);
        // Some are kept for a while.
        if (count % 7 === 0) setImmediate(() => message.release());
        else message.release();
      }
      await sending;
      expect(count).toBe(total);
      expect(there.digest('hex')).toBe(here.digest('hex'));
    };
    await Promise.all([run(a, b, 1), run(b, a, 2)]);
    await closeBoth(a, b);
  });

  it('do not come to a stand when each side only sends until it has no credit, and then only receives', async () => {
    const [a, b] = await opened({ bufferBytes: 256, buffers: 2 });
    for (let round = 0; round < (isRxe ? 3 : 20); round++) {
      const sends = [a, b].flatMap((side) => [1, 300, 2, 1000, 3].map((length) => side.send(bytes(length, round))));
      for (const side of [b, a]) {
        for (const length of [1, 300, 2, 1000, 3])
          expect((await bytesOf(side)).equals(bytes(length, round))).toBe(true);
      }
      await within(Promise.all(sends), 'sends');
    }
    await closeBoth(a, b);
  });

  it('end one direction, while the other goes on; then both', async () => {
    const [a, b] = await opened();
    const sent = a.send(bytes(100_000));
    const end = a.end();
    expect(a.end()).toBe(end);
    await expect(a.send(bytes(1))).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    expect((await bytesOf(b)).length).toBe(100_000);
    await within(Promise.all([sent, end]), 'the end');
    expect(await within(b.receive(), 'the end there')).toBeUndefined();
    expect(await within(b.receive(), 'the end again')).toBeUndefined();
    await b.send(bytes(5));
    expect((await bytesOf(a)).length).toBe(5);
    await closeBoth(a, b);
    expect(await Promise.all([a.closed, b.closed])).toEqual([undefined, undefined]);
    expect([a.ended, a.endpoint.qp.closed, b.endpoint.qp.closed]).toEqual([true, true, true]);
    await expect(b.receive()).rejects.toBeInstanceOf(RdmaClosedError);
  });

  it('that were received stay until they are released, also after the end', async () => {
    const [a, b] = await opened({ bufferBytes: 256 });
    const sends = [a.send(bytes(10, 1)), a.send(bytes(1000, 2)), a.send(bytes(20, 3))];
    const [short, long] = [await next(b), await next(b)];
    await closeBoth(a, b);
    await Promise.all(sends);
    expect(short.data.equals(bytes(10, 1))).toBe(true);
    expect(long.data.equals(bytes(1000, 2))).toBe(true);
    short.release();
    expect(() => short.release()).toThrow(/released already/);
    expect(() => short.data).toThrow(/released/);
    long[Symbol.dispose]();
    long[Symbol.dispose]();
  });

  it('can be given up: before they are on their way, after, and while waiting for one', async () => {
    const [a, b] = await opened({ bufferBytes: 256, buffers: 2 });
    const reason = new Error('enough');
    await expect(a.send(bytes(1), { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
    const controller = new AbortController();
    const sends = [1, 2, 3, 4].map((length) => a.send(bytes(length), length > 2 ? { signal: controller.signal } : {}));
    const waiting = a.receive({ signal: controller.signal });
    controller.abort(reason);
    await expect(waiting).rejects.toBe(reason);
    await expect(sends[2]).rejects.toBe(reason);
    await expect(sends[3]).rejects.toBe(reason);
    sends.push(a.send(bytes(5)));
    for (const length of [1, 2, 5]) expect((await bytesOf(b)).length).toBe(length);
    await within(Promise.all([sends[0], sends[1], sends[4]]), 'the others');

    // One that is announced already arrives all the same, and its memory is held until then.
    const late = new AbortController();
    const announced = a.send(bytes(5000, 9), { signal: late.signal });
    const received = next(b);
    await new Promise((resolve) => setImmediate(resolve));
    late.abort(reason);
    await announced.catch((error) => expect(error).toBe(reason));
    using message = await received;
    expect(message.data.equals(bytes(5000, 9))).toBe(true);
    message.release();
    await closeBoth(a, b);
  });

  it('refuse what the peer does not take, and what it could not read', async () => {
    const [a, b] = await opened({ maxMessageBytes: 50_000 }, { maxMessageBytes: 40_000 });
    expect([a.maxMessageBytes, b.maxMessageBytes]).toEqual([40_000, 50_000]);
    await expect(a.send(bytes(40_001))).rejects.toMatchObject({ code: 'ERR_OUT_OF_RANGE' });
    await expect(a.send('text' as never)).rejects.toMatchObject({ code: 'ERR_INVALID_ARG_TYPE' });
    await expect(a.send(bytes(1), { signa: 1 } as never)).rejects.toThrow(/signa/);
    const plain = await ends.pdA.alloc(40_000);
    await expect(a.send(plain.slice())).rejects.toThrow(/lacks REMOTE_READ/);
    const foreign = await ends.pdB.alloc(40_000, { access: AccessFlags.REMOTE_READ });
    await expect(a.send(foreign.slice())).rejects.toThrow(/another protection domain/);
    const buffer = Reflect.construct(ArrayBuffer, [30_000, { maxByteLength: 40_000 }]);
    await expect(within(a.send(new Uint8Array(buffer)), 'a refusal')).rejects.toThrow(/resizable/i);
    const sent = a.send(bytes(40_000));
    expect((await bytesOf(b)).length).toBe(40_000);
    await sent;
    plain.close();
    foreign.close();
    await closeBoth(a, b);
  });

  it('reject all that is under way, on both sides, when one ends the connection at once', async () => {
    const [a, b] = await opened({ bufferBytes: 256, buffers: 2 });
    const outcome = (promise: Promise<unknown>) =>
      promise.then(
        () => 'done',
        (error) => error.code as string,
      );
    const sends = Array.from({ length: 8 }, (_, i) => outcome(a.send(bytes(i % 2 ? 5000 : 10))));
    const waiting = outcome(a.receive());
    const reason = Object.assign(new Error('no more'), { code: 'MINE' });
    a.destroy(reason);
    expect(await within(a.closed, 'the end')).toBe(reason);
    expect(await waiting).toBe('MINE');
    expect(['done', 'MINE']).toEqual(expect.arrayContaining([...new Set(await Promise.all(sends))]));
    expect(await within(b.closed, 'the end there')).toMatchObject({ code: 'ECONNRESET' });
    // What had come before can be taken; then the reason comes.
    const seen: unknown[] = [];
    await (async () => {
      for await (const message of b) {
        seen.push(message.byteLength);
        message.release();
      }
    })().catch((error) => seen.push(error.code));
    expect(seen.at(-1)).toBe('ECONNRESET');
    await closeBoth(a, b);
  });

  it.each([
    ['is given up', false],
    ['has ended its direction, and is given up', true],
  ])('end in front of one that never came whole, when the peer %s', async (_, isEnded) => {
    const length = 100_001;
    const place = (bytes: number) => (bytes === length ? new Promise<never>(() => {}) : undefined);
    const [a, b] = await opened({}, {}, { b: { place } });
    await a.send(Buffer.from('first'));
    const second = rejection(a.send(Buffer.alloc(length, 2)));
    await a.send(Buffer.from('third'));
    const end = isEnded ? rejection(a.end()) : undefined;
    await a.send(Buffer.from('fourth')).catch(() => {});
    a.destroy();
    expect(await within(second, 'the second')).toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    await within(b.closed, 'the notice');
    using first = await within(b.receive(), 'the first');
    expect(first!.data.toString()).toBe('first');
    for (let i = 0; i < 2; i++) expect(await rejection(b.receive())).toMatchObject({ code: 'ECONNRESET' });
    await within(Promise.all([end, a.close(), b.close()]), 'close');
  });

  it('settle everything when the peer dies in the middle of it', async () => {
    const [a, b] = await opened(
      { bufferBytes: 256, buffers: 4 },
      {},
      { a: { keepAliveMs: 100 }, b: { keepAliveMs: 100 } },
    );
    const sends = Array.from({ length: 20 }, (_, i) => a.send(bytes(i % 2 ? 100_000 : 10)).catch((error) => error));
    const answers = Array.from({ length: 20 }, (_, i) => b.send(bytes(i % 2 ? 100_000 : 10)).catch((error) => error));
    const waiting = a.receive().then((message) => message?.release());
    await waiting;
    // As a kill does: the kernel destroys the queue pair, and nothing is said.
    b.endpoint.qp.close();
    expect(await within(a.closed, 'the end')).toMatchObject({
      name: 'WorkCompletionError',
      statusName: 'RETRY_EXC_ERR',
    });
    await within(Promise.all(sends), 'sends');
    b.destroy();
    await within(Promise.all(answers), 'answers');
    await closeBoth(a, b);
    b.endpoint.qp.sendCq.close();
  });

  it('say that the peer has died, whichever frame was the first that it did not take', async () => {
    for (const isControl of [false, true]) {
      const how = { keepAliveMs: 0 };
      const [a, b] = await opened({ bufferBytes: 256, buffers: 4 }, {}, { a: how, b: how });
      await within(Promise.all(['x', 'y'].map((text) => b.send(Buffer.from(text)))), 'two messages');
      const got = [await a.receive(), await a.receive()];
      b.endpoint.qp.close();
      // Two of four buffers are given back by a frame of their own.
      if (isControl) for (const message of got) message!.release();
      const sent = rejection(a.send(Buffer.from('late')));
      const end = await within(a.closed, 'the end');
      expect(end).toMatchObject({ name: 'WorkCompletionError', statusName: 'RETRY_EXC_ERR' });
      expect(await within(sent, 'the message')).toBe(end);
      if (!isControl) for (const message of got) message!.release();
      b.destroy();
      await closeBoth(a, b);
      b.endpoint.qp.sendCq.close();
    }
  });

  it('notice a peer that is dead when nobody sends', async () => {
    const [a, b] = await opened({}, {}, { a: { keepAliveMs: 50 }, b: { keepAliveMs: 0 } });
    const waiting = a.receive().catch((error) => error);
    // A peer that lives, and says nothing, stays.
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(a.ended).toBe(false);
    b.endpoint.qp.close();
    expect(await within(waiting, 'the notice')).toMatchObject({ statusName: 'RETRY_EXC_ERR' });
    b.destroy();
    await closeBoth(a, b);
    b.endpoint.qp.sendCq.close();
  });

  it('are given up while they are opened, for any reason', async () => {
    for (const reason of ['the user has gone', null, new TypeError('mine')]) {
      const [a, b] = await ends.connect();
      const abort = new AbortController();
      const opening = Messages.open(a, { ...open, signal: abort.signal }).catch((error: unknown) => [error]);
      abort.abort(reason);
      expect(await within(opening, 'the end')).toEqual([reason]);
      await b.close();
      // Before they are begun with, too.
      const [c, d] = await ends.connect();
      expect(await Messages.open(c, { signal: abort.signal }).catch((error: unknown) => [error])).toEqual([reason]);
      expect(c.qp.closed).toBe(true);
      await d.close();
    }
  });

  it('are not opened on an endpoint that was not made for them, twice, or by a peer that does not', async () => {
    const [a, b] = await ends.connect();
    await expect(Messages.open({} as never)).rejects.toThrow(/endpoint must be/);
    await expect(Messages.open(a, { timeout: 1 } as never)).rejects.toThrow(/timeout/);
    const late = Messages.open(a, { timeoutMs: 50 });
    await expect(Messages.open(a)).rejects.toThrow(/carries messages already/);
    await expect(within(late, 'the deadline')).rejects.toMatchObject({ code: 'ETIMEDOUT' });
    await expect(within(Messages.open(b, open), 'the other side')).rejects.toMatchObject({ code: 'ECONNRESET' });

    const [c, d] = await ends.connect();
    const reason = new Error('enough');
    const controller = new AbortController();
    const given = Messages.open(c, { ...open, signal: controller.signal });
    controller.abort(reason);
    await expect(within(given, 'the abort')).rejects.toBe(reason);
    await d.close();
    // The memory goes with the endpoint that nobody opened messages on.
    await expect(Messages.open(d)).rejects.toThrow(/has failed/);
  });

  it('take their memory back from a connection that does not come about', async () => {
    // A peer that says who it is, and then goes instead of being ready.
    const qp = ends.pdB.createQp({ sendCq: ends.pdB.context.createCq(256) });
    const info = encodeConnectionInfo(connectionInfo(qp));
    const server = createServer((socket) => {
      socket.on('error', () => {}).write(Buffer.concat([Buffer.of(0, info.length), info]));
      socket.once('data', () => socket.once('data', () => socket.destroy()));
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const { port } = server.address() as AddressInfo;
    const connecting = connectTcp({ ...messageEndpoint({ pd: ends.pdA }), host: '127.0.0.1', port });
    await expect(within(connecting, 'the refusal')).rejects.toMatchObject({ code: 'ECONNRESET' });
    server.close();
    qp.close();
    qp.sendCq.close();
  });
});
