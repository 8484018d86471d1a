/** What must hold of connections, whatever happens: every promise settles, nothing hangs, and nothing is left. */
import { createConnection } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it, vi } from 'vitest';
import {
  connect,
  connectionInfo,
  connectQueuePair,
  connectTcp,
  decodeConnectionInfo,
  type Endpoint,
  encodeConnectionInfo,
  listen,
  listenTcp,
  type MemorySlice,
  openDevice,
  type QpAttr,
  QpState,
  QueuePair,
  RdmaClosedError,
} from '../../lib/index.ts';
import { addressA, addressB, during, rejection } from './cm.ts';
import { Ends, outcomes } from './endpoints.ts';
import {
  collect,
  DEADLINE_MS,
  descriptors,
  deviceA,
  deviceB,
  expectNoLeaks,
  fill,
  isRxe,
  isSanitized,
  until,
  within,
} from './fixture.ts';
import { lose, lost } from './lossy-wire.ts';

expectNoLeaks();

describe('connections', () => {
  it('come and go two hundred times; descriptors and memory are as before', { timeout: 3 * DEADLINE_MS }, async () => {
    using a = openDevice(deviceA);
    using b = openDevice(deviceB);
    using pdA = a.allocPd();
    using pdB = b.allocPd();
    using mrA = pdA.allocSync(4096);
    using mrB = pdB.allocSync(4096);
    const listener = await listenTcp({ pd: pdB, port: 0, host: '127.0.0.1' });
    // Until the allocators have what they keep. Under emulation each is a second; with the sanitizers they keep everything.
    const warmUp = isRxe ? 4 : isSanitized ? 20 : 500;
    const cycles = isRxe ? 12 : 200;
    const before = { descriptors: 0, rss: 0, heapUsed: 0 };
    for (let i = 1; i <= warmUp + cycles; i++) {
      const to = { pd: pdA, host: '127.0.0.1', port: listener.port };
      const [there, here] = await within(Promise.all([listener.accept(), connectTcp(to)]), `connection ${i}`);
      mrA.buffer.writeUInt32LE(i);
      await Promise.all([there.recv(mrB.slice(0, 64)), here.send(mrA.slice(0, 4))]);
      expect(mrB.buffer.readUInt32LE()).toBe(i);
      // Either end may be the first to leave, with receives under way.
      const left = there.recv(mrB.slice(0, 64)).catch(() => {});
      for (const endpoint of i % 2 === 0 ? [here, there] : [there, here]) await within(endpoint.close(), 'a close');
      await left;
      if (i !== warmUp) continue;
      await collect();
      Object.assign(before, { ...process.memoryUsage(), descriptors: descriptors() });
    }
    await collect();
    expect(descriptors()).toBeLessThanOrEqual(before.descriptors);
    const { rss, heapUsed } = process.memoryUsage();
    expect(heapUsed - before.heapUsed).toBeLessThan(2 ** 20);
    // Two queue pairs and their queues are some hundred kilobytes.
    if (!isSanitized) expect(rss - before.rss).toBeLessThan(12 * 2 ** 20);
    await listener.close();
  });

  it.each(['abort', 'abort without a reason', 'deadline'])(
    'are not made when the %s comes after all of the peer has come, and it learns so',
    async (which) => {
      using a = openDevice(deviceA);
      using b = openDevice(deviceB);
      using pdA = a.allocPd();
      using pdB = b.allocPd();
      const errors: NodeJS.ErrnoException[] = [];
      const listener = await listenTcp({ pd: pdB, port: 0, host: '127.0.0.1', onError: (error) => errors.push(error) });
      const abort = new AbortController();
      const reason = which === 'abort' ? new Error('enough') : null;
      const { modify } = QueuePair.prototype;
      // The last of the client's transitions waits until it is given up.
      const spy = vi.spyOn(QueuePair.prototype, 'modify').mockImplementation(async function (
        this: QueuePair,
        attr: QpAttr,
      ) {
        await modify.call(this, attr);
        if (this.pd !== pdA || attr.qpState !== QpState.RTS) return;
        if (which !== 'deadline') abort.abort(reason);
        else await sleep(1100);
      });
      const to = { pd: pdA, host: '127.0.0.1', port: listener.port, signal: abort.signal };
      const error = await within(
        rejection(connectTcp({ ...to, timeoutMs: which === 'deadline' ? 1000 : 60_000 })),
        'it',
      );
      if (which !== 'deadline') expect(error).toBe(reason);
      else expect(error).toMatchObject({ code: 'ETIMEDOUT' });
      await until(() => errors.length > 0, 'the error of the listener');
      expect(errors).toMatchObject([{ code: 'ECONNRESET' }]);
      spy.mockRestore();
      await within(listener.close(), 'close');
    },
  );

  it('that are aborted at any moment are made or are not, and leave nothing', async () => {
    using a = openDevice(deviceA);
    using b = openDevice(deviceB);
    using pdA = a.allocPd();
    using pdB = b.allocPd();
    const accepted: Endpoint[] = [];
    const listener = await listenTcp({ pd: pdB, port: 0, host: '127.0.0.1' });
    const serving = (async () => {
      for await (const endpoint of listener) accepted.push(endpoint);
    })();
    const reason = new Error('enough');
    let made = 0;
    let aborted = 0;
    for (let turns = 0; turns < 40; turns += isRxe ? 4 : 1) {
      const controller = new AbortController();
      const to = { pd: pdA, host: '127.0.0.1', port: listener.port, signal: controller.signal };
      const attempt = within(connectTcp(to), 'the attempt');
      for (let i = 0; i < turns; i++) await new Promise((resolve) => setImmediate(resolve));
      controller.abort(reason);
      try {
        await (await attempt).close();
        made++;
      } catch (error) {
        expect(error).toBe(reason);
        aborted++;
      }
    }
    expect(made + aborted).toBe(isRxe ? 10 : 40);
    expect(aborted).toBeGreaterThan(0);
    await within(listener.close(), 'the close of the listener');
    await within(serving, 'the end of the iteration');
    for (const endpoint of accepted) await within(endpoint.close(), 'a close');
  });

  it.runIf(isRxe)('of the connection manager likewise, in each of its steps', async () => {
    using pdA = openDevice(deviceA).allocPd();
    using pdB = openDevice(deviceB).allocPd();
    const listener = await listen({ port: 0, host: addressB });
    const answers: Promise<void>[] = [];
    const serving = (async () => {
      for await (const request of listener) {
        // Whoever asked may have left.
        const answer = request.accept({ pd: pdB, timeoutMs: DEADLINE_MS / 3 }).then((endpoint) => endpoint.close());
        answers.push(answer.catch(() => {}));
      }
    })();
    const reason = new Error('enough');
    for (const stage of ['resolveAddr', 'resolveRoute', 'createQp', 'connect'] as const) {
      const controller = new AbortController();
      let isReached = false;
      during(stage, () => {
        isReached = true;
        controller.abort(reason);
      });
      const to = { pd: pdA, host: addressB, localAddress: addressA, port: listener.port, timeoutMs: DEADLINE_MS / 2 };
      const attempt = rejection(connect({ ...to, signal: controller.signal }));
      expect([await within(attempt, stage), isReached], stage).toEqual([reason, true]);
    }
    await within(Promise.all(answers), 'the answers');
    await within(listener.close(), 'the close of the listener');
    await within(serving, 'the end of the iteration');
    await within(Promise.all(answers), 'the answers');
    for (const pd of [pdA, pdB]) pd.context.close({ cascade: true });
  });

  it('that nobody accepts end with the listener; beyond the backlog they are refused', async () => {
    using a = openDevice(deviceA);
    using b = openDevice(deviceB);
    using pdA = a.allocPd();
    using pdB = b.allocPd();
    const refused: Error[] = [];
    const onError = (error: Error) => void refused.push(error);
    const listener = await listenTcp({ pd: pdB, port: 0, host: '127.0.0.1', backlog: 2, onError });
    const to = { pd: pdA, host: '127.0.0.1', port: listener.port };
    const attempts = await within(
      Promise.allSettled(Array.from({ length: 6 }, () => connectTcp({ ...to, timeoutMs: DEADLINE_MS / 2 }))),
      'six attempts',
    );
    const made = attempts.filter((each) => each.status === 'fulfilled');
    expect(made.length).toBe(2);
    expect(refused.length).toBe(4);
    await listener.close();
    for (const { value } of made) await within(value.close(), 'a close');

    const next = await listenTcp({ pd: pdB, port: 0, host: '127.0.0.1' });
    const pending = [next.accept(), next.accept(), next.accept()];
    const ended = outcomes(pending, 'the accepts');
    await next.close();
    expect(await ended).toEqual(Array(3).fill(new RdmaClosedError('Listener').code));
  });

  it('leave no TCP connection, even where the peer never ends its side', async () => {
    using a = openDevice(deviceA);
    using b = openDevice(deviceB);
    using pdA = a.allocPd();
    using pdB = b.allocPd();
    const listener = await listenTcp({ pd: pdB, port: 0, host: '127.0.0.1', timeoutMs: DEADLINE_MS });
    using sendCq = a.createCq(16);
    using qp = pdA.createQp({ sendCq, cap: { maxSendWr: 1, maxRecvWr: 1 } });
    const info = connectionInfo(qp);
    const frame = encodeConnectionInfo(info);
    const socket = createConnection({ port: listener.port, host: '127.0.0.1', allowHalfOpen: true });
    let got = Buffer.alloc(0);
    socket.on('data', (data) => {
      got = Buffer.concat([got, data]);
    });
    socket.write(Buffer.concat([Buffer.of(0, frame.length), frame]));
    await until(() => got.length >= 2 + frame.length, 'the answer');
    await connectQueuePair(qp, info, decodeConnectionInfo(got.subarray(2, 2 + frame.length)));
    socket.write(Buffer.of(1));
    const endpoint = await within(listener.accept(), 'the connection');
    await within(endpoint.close(), 'the close of the endpoint');
    await within(listener.close(), 'the close of the listener');
    socket.destroy();
  });

  it('to where there is nobody fail with a code, each once', async () => {
    using a = openDevice(deviceA);
    using pdA = a.allocPd();
    const to = { pd: pdA, port: 9, timeoutMs: 1000 };
    const attempts = [connectTcp({ ...to, host: '127.0.0.1' }), connectTcp({ ...to, host: 'nowhere.invalid' })];
    if (isRxe) {
      // Neither has the VM a route to there, nor a server of names.
      attempts.push(connectTcp({ ...to, host: '198.51.100.1' }));
      attempts.push(connect({ ...to, host: '198.51.100.1' }), connect({ ...to, host: 'nowhere.invalid' }));
      attempts.push(connect({ ...to, host: addressB, localAddress: addressA, timeoutMs: DEADLINE_MS }));
    }
    const codes = await outcomes(attempts, 'the attempts');
    const noName = /ENOTFOUND|EAI_AGAIN|ETIMEDOUT/;
    const noRoute = /ENETUNREACH|EHOSTUNREACH|ENODEV|ETIMEDOUT/;
    const expected = [/ECONNREFUSED/, noName, noRoute, noRoute, noName, /ECONNREFUSED/];
    codes.forEach((code, i) => expect(code).toMatch(expected[i] as RegExp));
  });
});

describe('a peer that is gone', () => {
  it.runIf(!isRxe)(
    'with a thousand requests in flight settles each of them, and the endpoint can be closed',
    async () => {
      await using ends = await Ends.connect({ a: { timeout: 10, retryCnt: 1 } });
      const { a, b, mrA, remoteB } = ends;
      // No receive of b's, so that all of them are there when b goes.
      const sends = Array.from({ length: 1000 }, () => a.send(mrA.slice(0, 64)));
      const receives = Array.from({ length: 200 }, () => a.recv(mrA.slice(0, 64)));
      const reads = Array.from({ length: 10 }, () => a.read(mrA.slice(0, 64), remoteB.slice()));
      const ended = outcomes([...sends, ...receives, ...reads], 'all of them');
      await new Promise((resolve) => setImmediate(resolve));
      b.qp.close();
      b.qp.sendCq.close();
      const words = await ended;
      expect(words[0]).toMatch(/RETRY_EXC_ERR/);
      expect(new Set(words.slice(1))).toEqual(new Set(['WR_FLUSH_ERR']));
      expect(await a.closed).toMatchObject({ statusName: 'RETRY_EXC_ERR' });
      await within(a.close(), 'the close');
      expect(a.qp.closed).toBe(true);
    },
  );
});

/** Sends so many messages of 4 KiB, each with its number, and looks at each that arrives. */
async function transfer({ a, b, mrA, mrB }: Ends, messages: number): Promise<void> {
  const size = 4096;
  const places = mrB.length / size;
  const pattern = fill(mrA.buffer, messages);
  const at = (i: number) => (i * 72) % (mrA.length - size);
  const sends = Array.from({ length: messages }, (_, i) => a.send(mrA.slice(at(i), size), { immData: i }));
  const waiting: Promise<{ byteLen: number; immData: number | undefined }>[] = [];
  const place = (i: number): MemorySlice => mrB.slice((i % places) * size, size);
  for (let i = 0; i < Math.min(places, messages); i++) waiting.push(b.recv(place(i)));
  for (let i = 0; i < messages; i++) {
    const received = await within(waiting.shift() as (typeof waiting)[0], `message ${i}`);
    expect(received).toEqual({ byteLen: size, immData: i });
    const bytes = mrB.buffer.subarray((i % places) * size, (i % places) * size + size);
    expect(bytes.equals(pattern.subarray(at(i), at(i) + size))).toBe(true);
    if (i + places < messages) waiting.push(b.recv(place(i + places)));
  }
  await within(Promise.all(sends), 'the sends');
}

describe.runIf(isRxe)('a wire that loses', () => {
  it.each([1, 5])(
    '%i percent of the packets delivers every byte once and in order',
    { timeout: 200_000 },
    async (n) => {
      await using ends = await Ends.connect();
      lose(n);
      try {
        // Of a hundredth it may lose none, once in some hundred times.
        do await transfer(ends, 128);
        while (lost() === 0);
      } finally {
        lose(0);
      }
    },
  );

  it('the request of a connection takes it to be sent again', { timeout: 2 * DEADLINE_MS }, async () => {
    using pdA = openDevice(deviceA).allocPd();
    using pdB = openDevice(deviceB).allocPd();
    const listener = await listen({ port: 0, host: addressB });
    const accepted = listener.getRequest().then((request) => request.accept({ pd: pdB, timeoutMs: DEADLINE_MS }));
    during('connect', () => lose(100));
    const to = { pd: pdA, host: addressB, localAddress: addressA, port: listener.port, timeoutMs: DEADLINE_MS };
    const connected = connect(to);
    try {
      await until(() => lost() > 0, 'the loss of the request');
    } finally {
      lose(0);
    }
    const [here, there] = await within(Promise.all([connected, accepted]), 'the connection');
    expect([here.qp.state, there.qp.state]).toEqual([QpState.RTS, QpState.RTS]);
    for (const endpoint of [here, there]) await within(endpoint.close(), 'a close');
    await listener.close();
    for (const pd of [pdA, pdB]) pd.context.close({ cascade: true });
  });

  it('everything for three seconds, likewise', { timeout: 200_000 }, async () => {
    // A second for each of 7 attempts: longer than the wire is cut.
    await using ends = await Ends.connect({ a: { timeout: 18 }, b: { timeout: 18 } });
    await transfer(ends, 4);
    let isThere = false;
    let transferred: Promise<void>;
    lose(100);
    try {
      transferred = transfer(ends, 64).then(() => {
        isThere = true;
      });
      await Promise.race([transferred, new Promise((resolve) => setTimeout(resolve, 3000))]);
      expect(isThere).toBe(false);
      expect(lost()).toBeGreaterThan(0);
    } finally {
      lose(0);
    }
    await transferred;
  });
});
