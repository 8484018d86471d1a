/** Messages over a wire that loses packets or goes down, and by the connection manager. */

import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { buffer } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import {
  type CallHandlers,
  Calls,
  connect,
  connectTcp,
  type Endpoint,
  listen,
  listenTcp,
  Messages,
  messageEndpoint,
  RdmaSocket,
} from '../../lib/index.ts';
import { addressA, addressB, describeCm } from './cm.ts';
import { DEADLINE_MS, expectNoLeaks, fill, isRxe, within } from './fixture.ts';
import { lose, lost } from './lossy-wire.ts';
import { Ends } from './messages.ts';

let ends: Ends;

beforeAll(() => {
  ends = new Ends();
});

afterAll(() => ends.close());

expectNoLeaks();

const open = { timeoutMs: DEADLINE_MS };
const limits = { bufferBytes: 1024, buffers: 8 };

/** Endpoints that have the patience of a program on a bad wire, 0.54 s eight times and more, but none with who is not ready. */
async function patient(): Promise<[Endpoint, Endpoint]> {
  const how = { host: '127.0.0.1', timeout: 17, retryCnt: 7, rnrRetry: 0 };
  const listener = await listenTcp({ ...messageEndpoint({ pd: ends.pdB, ...limits }), ...how, port: 0 });
  const to = { ...messageEndpoint({ pd: ends.pdA, ...limits }), ...how, port: listener.port };
  const pair = await Promise.all([connectTcp(to), listener.accept()]);
  await listener.close();
  return pair;
}

/** Sends messages of these lengths, and ends; returns the hash of all. */
async function sendAll(messages: Messages, lengths: readonly number[], seed: number): Promise<string> {
  const hash = createHash('sha256');
  const sends = lengths.map((length, i) => {
    const bytes = fill(Buffer.alloc(length), seed + i);
    hash.update(`${length}:`).update(bytes);
    return messages.send(bytes);
  });
  await Promise.all(sends);
  await messages.end();
  return hash.digest('hex');
}

async function takeAll(messages: Messages): Promise<string> {
  const hash = createHash('sha256');
  for await (const message of messages) {
    hash.update(`${message.byteLength}:`).update(message.data);
    message.release();
  }
  return hash.digest('hex');
}

const lengths = [1, 1008, 1009, 20_000, 0, 300, 65_536, 1000, 17, 40_000, 900, 900, 5];

async function bothWays(meanwhile: () => Promise<void> = async () => {}): Promise<void> {
  const [endpointA, endpointB] = await patient();
  const [a, b] = await Promise.all([Messages.open(endpointA, open), Messages.open(endpointB, open)]);
  const all = Promise.all([sendAll(a, lengths, 1), takeAll(b), sendAll(b, lengths, 50), takeAll(a)]);
  await meanwhile();
  const [sentByA, takenByB, sentByB, takenByA] = await within(all, 'all messages');
  expect([takenByB, takenByA]).toEqual([sentByA, sentByB]);
  await within(Promise.all([a.close(), b.close()]), 'close');
  expect(await Promise.all([a.closed, b.closed])).toEqual([undefined, undefined]);
}

// The software device has no wire: its two ends are in one process, and nothing can be lost between them.
describe.runIf(isRxe)('messages over a bad wire', () => {
  afterEach(() => lose(0));

  it('arrive whole, in order and once, where 5% of the packets are lost', async () => {
    lose(5);
    await bothWays();
    expect(lost()).toBeGreaterThan(0);
  });

  it('arrive as a stream, in order and once, where 5% of the packets are lost', async () => {
    lose(5);
    const [endpointA, endpointB] = await patient();
    const sockets = await Promise.all([RdmaSocket.open(endpointA, open), RdmaSocket.open(endpointB, open)]);
    const bytes = [fill(Buffer.alloc(150_001), 3), fill(Buffer.alloc(70_000), 4)];
    const arrived = sockets.map((socket) => buffer(socket));
    for (const [i, socket] of sockets.entries()) socket.end(bytes[i]);
    const [atA, atB] = await within(Promise.all(arrived), 'both streams');
    expect([atA?.equals(bytes[1] as Buffer), atB?.equals(bytes[0] as Buffer)]).toEqual([true, true]);
    await within(Promise.all(sockets.map((socket) => socket.closed || once(socket, 'close'))), 'the end');
    expect(lost()).toBeGreaterThan(0);
  });

  it('arrive after the wire was down for three seconds', async () => {
    await bothWays(async () => {
      lose(100);
      await sleep(3000);
      expect(lost()).toBeGreaterThan(0);
      lose(0);
    });
  });
});

describeCm('messages by the connection manager', () => {
  const timeoutMs = DEADLINE_MS;

  async function connected(): Promise<[Endpoint, Endpoint]> {
    const listener = await listen({ port: 0, host: addressB });
    const to = { host: addressB, localAddress: addressA, port: listener.port, timeoutMs };
    const accepted = listener.getRequest().then((request) => {
      return request.accept({ ...messageEndpoint({ pd: ends.pdB, ...limits }), timeoutMs });
    });
    const pair = await Promise.all([connect({ ...messageEndpoint({ pd: ends.pdA, ...limits }), ...to }), accepted]);
    await listener.close();
    return pair;
  }

  type Handlers = { up(n: number): number; back(nothing: null): number };
  const handlers: CallHandlers<Handlers> = {
    up: (n) => n + 1,
    back: (_, call) => {
      const { data } = call.body!;
      call.answer = Buffer.from(data).reverse();
      return data.length;
    },
  };

  it('arrive, end in order, and tell of a peer that leaves', async () => {
    const [endpointA, endpointB] = await connected();
    // One side opens late: what the other says first waits in its buffer.
    const early = Messages.open(endpointA, open);
    await sleep(20);
    const [a, b] = await within(Promise.all([early, Messages.open(endpointB, open)]), 'both');
    const all = Promise.all([sendAll(a, lengths, 1), takeAll(b), sendAll(b, lengths, 50), takeAll(a)]);
    const [sentByA, takenByB, sentByB, takenByA] = await within(all, 'all messages');
    expect([takenByB, takenByA]).toEqual([sentByA, sentByB]);
    await within(Promise.all([a.close(), b.close()]), 'close');
    expect(await Promise.all([a.closed, b.closed])).toEqual([undefined, undefined]);

    const [c, d] = await connected();
    const [socket, other] = await Promise.all([RdmaSocket.open(c, open), RdmaSocket.open(d, open)]);
    const failure = new Promise<Error>((resolve) => void other.on('error', resolve));
    // Without a word, as a process that ends.
    await c.close();
    expect(await within(failure, 'the notice')).toMatchObject({ code: 'ECONNRESET' });
    socket.on('error', () => {}).destroy();
    await within(
      Promise.all([socket, other].map((end) => end.closed || new Promise((r) => end.once('close', r)))),
      'close',
    );

    const [e, f] = await connected();
    const [calls, peer] = await Promise.all([
      Calls.open<Handlers>(e, open),
      Calls.open<Record<never, never>, Handlers>(f, { ...open, handlers }),
    ]);
    expect((await calls.call('up', 41)).result).toBe(42);
    const body = fill(Buffer.alloc(200_000), 7);
    const answer = await within(calls.call('back', null, { body }), 'the answer');
    expect(answer.result).toBe(200_000);
    expect(answer.body?.data.equals(Buffer.from(body).reverse())).toBe(true);
    answer.body?.release();
    await within(Promise.all([calls.close(), peer.close()]), 'close');
  });

  it('take their memory back from a connection that does not come about', async () => {
    const listener = await listen({ port: 0, host: addressB });
    const to = { host: addressB, localAddress: addressA, port: listener.port, timeoutMs };
    const refused = connect({ ...messageEndpoint({ pd: ends.pdA, ...limits }), ...to }).catch((error) => error.code);
    (await listener.getRequest()).reject();
    expect(await within(refused, 'the refusal')).toBe('ECONNREFUSED');
    await listener.close();
  });
});
