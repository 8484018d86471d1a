/** Streams over an endpoint: what Node's streams and HTTP expect of a socket. */
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createReadStream, createWriteStream, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import { buffer, text } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Messages, RdmaSocket, type RdmaSocketOptions } from '../../lib/index.ts';
import { DEADLINE_MS, expectNoLeaks, fill, isRxe, until, within } from './fixture.ts';
import { Ends } from './messages.ts';

let ends: Ends;

beforeAll(() => {
  ends = new Ends();
});

afterAll(() => ends.close());

expectNoLeaks();

const open = { timeoutMs: DEADLINE_MS };

async function opened(options: RdmaSocketOptions = {}): Promise<[RdmaSocket, RdmaSocket]> {
  const [a, b] = await ends.connect({ bufferBytes: 4096, buffers: 8 });
  const how = { ...open, ...options };
  return within(Promise.all([RdmaSocket.open(a, how), RdmaSocket.open(b, how)]), 'the streams');
}

const closed = (...sockets: Duplex[]) =>
  within(Promise.all(sockets.map((socket) => socket.closed || once(socket, 'close'))), 'the close');

describe('a stream', () => {
  it('carries a file, by pipeline(), and ends', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'node-rdma-stream-'));
    const [from, to] = [join(folder, 'from'), join(folder, 'to')];
    writeFileSync(from, randomBytes(isRxe ? 200_001 : 5_000_001));
    const [a, b] = await opened();
    await within(
      Promise.all([pipeline(createReadStream(from), a), pipeline(b, createWriteStream(to))]),
      'both pipelines',
    );
    await closed(a, b);
    expect(readFileSync(to).equals(readFileSync(from))).toBe(true);
    expect([a.bytesWritten, b.bytesRead]).toEqual([readFileSync(from).length, readFileSync(from).length]);
    rmSync(folder, { recursive: true });
  });

  it('goes on when a handler throws, which is an uncaught exception as with a socket of Node', async () => {
    const [a, b] = await opened();
    const seen: unknown[] = [];
    const others = process.rawListeners('uncaughtException');
    process.removeAllListeners('uncaughtException');
    process.on('uncaughtException', (error) => seen.push(error.message));
    try {
      let bytes = 0;
      b.on('data', (chunk: Buffer) => {
        bytes += chunk.length;
        throw new Error('in data');
      });
      // More than there are buffers for: each of its pieces comes into the handler, which throws.
      a.write(Buffer.alloc(100_000), () => {
        throw new Error('in write');
      });
      await until(() => bytes === 100_000, 'all bytes');
      a.end();
      await closed(a, b);
    } finally {
      process.removeAllListeners('uncaughtException');
      for (const other of others) process.on('uncaughtException', other as NodeJS.UncaughtExceptionListener);
    }
    expect([...new Set(seen)].sort()).toEqual(['in data', 'in write']);
    expect(seen.filter((message) => message === 'in data').length).toBeGreaterThan(10);
  });

  it('has no holes: it ends when the memory of what waits is taken away', async () => {
    const [a, b] = await opened();
    const errors: Error[] = [];
    const ends = [a, b].map((socket) => new Promise((resolve) => socket.once('close', resolve)));
    a.on('error', (error) => errors.push(error));
    b.on('error', () => {});
    const lost = Buffer.from(new Uint8Array(100_000).buffer);
    a.write(lost);
    a.write(Buffer.alloc(10_000, 1));
    structuredClone(lost.buffer, { transfer: [lost.buffer] });
    const seen: Buffer[] = [];
    b.on('data', (chunk: Buffer) => seen.push(chunk));
    await within(Promise.all(ends), 'the close');
    expect(errors).toEqual([expect.objectContaining({ code: 'ERR_INVALID_STATE' })]);
    expect(Buffer.concat(seen).includes(1)).toBe(false);
  });

  it('carries both directions at once, in pieces of any length, and one may end before the other', async () => {
    const [a, b] = await opened({ allowHalfOpen: true });
    const bytes = fill(Buffer.alloc(isRxe ? 60_000 : 600_000));
    for (let at = 0, length = 1; at < bytes.length; at += length, length = (length * 7 + 3) % 30_011) {
      a.write(bytes.subarray(at, at + length));
    }
    a.end();
    const chunks: Buffer[] = [];
    await within(
      once(
        b.on('data', (chunk) => chunks.push(chunk)),
        'end',
      ),
      'the bytes',
    );
    expect(Buffer.concat(chunks).equals(bytes)).toBe(true);
    expect([b.writableEnded, b.destroyed, a.readableEnded]).toEqual([false, false, false]);
    b.end('and an answer');
    expect(await within(text(a), 'the answer')).toBe('and an answer');
    await closed(a, b);
    expect(a.endpoint.qp.closed && b.endpoint.qp.closed).toBe(true);
  });

  it('pushes back on who writes, as long as the peer does not read', async () => {
    const [a, b] = await opened({ highWaterMark: 8192 });
    let written = 0;
    const total = isRxe ? 1 << 18 : 1 << 20;
    const writing = (async () => {
      while (written < total) {
        written += 16_384;
        if (!a.write(fill(Buffer.alloc(16_384), written))) await once(a, 'drain');
      }
      a.end();
    })();
    await until(() => a.writableNeedDrain && a.writableLength >= 8192, 'the push back');
    const stopped = written;
    for (let turn = 0; turn < 100; turn++) await new Promise((resolve) => setImmediate(resolve));
    expect(written).toBe(stopped);
    // Eight buffers of 4096, what the reader has taken in advance, and what waits in the writer.
    expect(written).toBeLessThan(200_000);
    const hash = createHash('sha256');
    for (let at = 16_384; at <= total; at += 16_384) hash.update(fill(Buffer.alloc(16_384), at));
    const seen = createHash('sha256');
    for await (const chunk of b) seen.update(chunk as Buffer);
    expect(seen.digest('hex')).toBe(hash.digest('hex'));
    await writing;
    await closed(a, b);
  });

  it('that is destroyed ends the other with ECONNRESET, and calls back once each time', async () => {
    const [a, b] = await opened();
    const calls: unknown[] = [];
    for (let i = 0; i < 40; i++) a.write(Buffer.alloc(4080), (error) => calls.push(error?.message ?? 'done'));
    const failure = once(b, 'error');
    const own = once(a, 'error');
    a.destroy(new Error('mine'));
    expect((await within(own, 'its error'))[0].message).toBe('mine');
    expect((await within(failure, 'the error there'))[0]).toMatchObject({ code: 'ECONNRESET' });
    await closed(a, b);
    expect(calls).toHaveLength(40);
    expect(a.write('more')).toBe(false);
  });

  it('fails when the peer dies, while it is written to and while it is read only', async () => {
    const [a, b] = await opened({ keepAliveMs: 100 });
    const errors = [once(a, 'error'), once(b, 'error')];
    b.endpoint.qp.close();
    a.write('hello?');
    expect((await within(errors[0]!, 'the error'))[0]).toMatchObject({ statusName: 'RETRY_EXC_ERR' });
    b.destroy(new Error('dead'));
    await within(errors[1]!, 'the other error');
    await closed(a, b);
    b.endpoint.qp.sendCq.close();

    const [c, d] = await opened({ keepAliveMs: 50 });
    const error = once(c.resume(), 'error');
    d.on('error', () => {}).endpoint.qp.close();
    expect((await within(error, 'the notice'))[0]).toMatchObject({ statusName: 'RETRY_EXC_ERR' });
    d.destroy();
    await closed(c, d);
    d.endpoint.qp.sendCq.close();
  });

  it('has what programs ask of a socket', async () => {
    const [a, b] = await opened();
    expect(a.setNoDelay().setKeepAlive(true, 1).ref().unref()).toBe(a);
    expect([a.connecting, a.timeout]).toEqual([false, 0]);
    expect(a.remoteAddress).toBe(b.localAddress);
    expect(a.localAddress).toBe(b.remoteAddress);
    expect(a.address()).toEqual({ address: a.localAddress, family: a.remoteFamily });
    expect(a.remoteAddress).toMatch(isRxe ? /^10\.78\.0\.2$/ : /[.:]/);
    const timeout = once(a, 'timeout');
    a.setTimeout(20);
    await within(timeout, 'the timeout');
    let calls = 0;
    const count = () => void calls++;
    a.setTimeout(0, count);
    expect(() => a.setTimeout(-1)).toThrow(RangeError);
    a.end('bye');
    a.destroySoon();
    expect(await within(text(b), 'the text')).toBe('bye');
    await closed(a, b);
    expect([calls, a.localAddress]).toEqual([0, b.remoteAddress]);
  });

  it('is not messages', async () => {
    const [a, b] = await ends.connect();
    const outcomes = await within(
      Promise.allSettled([RdmaSocket.open(a, open), Messages.open(b, open)]),
      'the refusal',
    );
    for (const outcome of outcomes) {
      expect(['ERR_RDMA_PROTOCOL', 'ECONNRESET']).toContain((outcome as PromiseRejectedResult).reason.code);
    }
    await expect(RdmaSocket.open(a, { highwaterMark: 1 } as never)).rejects.toThrow(/highWaterMark/);
  });
});

describe('HTTP over streams', () => {
  it('serves requests with and without bodies, one after another on one connection, and closes', async () => {
    const server = http.createServer((request, response) => {
      const hash = createHash('sha256');
      request.on('data', (chunk) => hash.update(chunk));
      request.on('end', () => {
        const answer = Buffer.from(`${request.method} ${request.url} ${hash.digest('hex')}`);
        response.setHeader('x-peer', String(request.socket.remoteAddress));
        response.end(request.url === '/long' ? Buffer.alloc(300_000, answer) : answer);
      });
    });
    const sockets: RdmaSocket[] = [];
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    const createConnection = (_options: unknown, callback: (error: Error | null, socket?: Duplex) => void) => {
      opened().then(([a, b]) => {
        sockets.push(a, b);
        server.emit('connection', b);
        callback(null, a);
      }, callback);
      return undefined;
    };
    (agent as unknown as { createConnection: unknown }).createConnection = createConnection;
    const ask = async (path: string, body?: Buffer) => {
      const request = http.request({ agent, path, method: body ? 'PUT' : 'GET', host: 'rdma' });
      request.end(body);
      const [response] = (await within(once(request, 'response'), 'a response')) as [http.IncomingMessage];
      return { response, body: await within(buffer(response), 'its body') };
    };
    const hashOf = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');
    const empty = Buffer.alloc(0);
    const large = fill(Buffer.alloc(100_000));
    const first = await ask('/');
    expect(first.body.toString()).toBe(`GET / ${hashOf(empty)}`);
    expect(first.response.headers['x-peer']).toBe(sockets[1]!.remoteAddress);
    expect((await ask('/put', large)).body.toString()).toBe(`PUT /put ${hashOf(large)}`);
    const long = await ask('/long');
    expect(long.body.equals(Buffer.alloc(300_000, `GET /long ${hashOf(empty)}`))).toBe(true);
    expect(sockets).toHaveLength(2);
    // The end of an idle connection is no error.
    agent.destroy();
    await closed(...sockets);
  });

  it('ends with the response when the client asks for it', async () => {
    const server = http.createServer((_request, response) => response.end('once'));
    const [a, b] = await opened();
    server.emit('connection', b);
    const request = http.request({ createConnection: () => a as never, headers: { connection: 'close' } });
    request.end();
    const [response] = (await within(once(request, 'response'), 'a response')) as [http.IncomingMessage];
    expect(await within(text(response), 'its body')).toBe('once');
    await closed(a, b);
  });
});
