/** Endpoints over a TCP bootstrap: operations with await, what fails, what closes. */
import { once } from 'node:events';
import { connect as connectSocket } from 'node:net';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import {
  type Context,
  connectTcp,
  type Endpoint,
  type EndpointOptions,
  listenTcp,
  type MemoryRegion,
  openDevice,
  type ProtectionDomain,
  RemoteRegion,
  SendFlags,
  type SendWr,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import { ALL_ACCESS, deviceA, deviceB, expectNoLeaks, fill, until, within } from './fixture.ts';

let contexts: Context[];
let pdA: ProtectionDomain;
let pdB: ProtectionDomain;
let mrA: MemoryRegion;
let mrB: MemoryRegion;
let remoteB: RemoteRegion;

beforeAll(async () => {
  contexts = [openDevice(deviceA), openDevice(deviceB)];
  [pdA, pdB] = contexts.map((context) => context.allocPd()) as [ProtectionDomain, ProtectionDomain];
  mrA = await pdA.alloc(64 * 1024, { access: ALL_ACCESS });
  mrB = await pdB.alloc(64 * 1024, { access: ALL_ACCESS });
  remoteB = new RemoteRegion(mrB.remote());
  // The shared channels of the contexts are made with their first queue, and outlive the tests.
  for (const context of contexts) context.createCq(1).close();
});

afterAll(() => {
  for (const context of contexts) context.close({ cascade: true });
});

expectNoLeaks();

/** Two connected endpoints, a on device A and b on device B. */
async function connected(
  a: Partial<EndpointOptions> = {},
  b: Partial<EndpointOptions> = {},
): Promise<{ a: Endpoint; b: Endpoint; close: () => Promise<void> }> {
  const listener = await listenTcp({ pd: pdB, port: 0, host: '127.0.0.1', minRnrTimer: 1, ...b });
  const [endpointB, endpointA] = await Promise.all([
    within(listener.accept(), 'accept'),
    within(connectTcp({ pd: pdA, host: '127.0.0.1', port: listener.port, minRnrTimer: 1, ...a }), 'connect'),
  ]);
  await listener.close();
  return {
    a: endpointA,
    b: endpointB,
    close: async () => {
      await within(endpointA.close(), 'close of a');
      await within(endpointB.close(), 'close of b');
    },
  };
}

describe('an endpoint', () => {
  it('sends, receives, writes, reads and adds, with the bytes in place', async () => {
    const { a, b, close } = await connected({ privateData: 'from a' }, { privateData: Buffer.of(1, 2, 3) });
    expect([...a.privateData]).toEqual([1, 2, 3]);
    expect(b.privateData.toString()).toBe('from a');

    const pattern = fill(mrA.buffer, 3);
    mrB.buffer.fill(0);
    const received = [b.recv(mrB.slice(0, 3000)), b.recv(mrB.slice(4096, 16)), b.recv()];
    await a.send(mrA.slice(100, 3000));
    await a.send(mrA.slice(0, 8), { immData: 0xfedc_ba98 });
    await a.writeWithImm(mrA.slice(200, 40), remoteB.slice(8192), 7, { solicited: true });
    expect(await within(Promise.all(received), 'receives')).toEqual([
      { byteLen: 3000, immData: undefined },
      { byteLen: 8, immData: 0xfedc_ba98 },
      { byteLen: 40, immData: 7 },
    ]);
    expect(mrB.buffer.subarray(0, 3000).equals(pattern.subarray(100, 3100))).toBe(true);
    expect(mrB.buffer.subarray(4096, 4104).equals(pattern.subarray(0, 8))).toBe(true);
    expect(mrB.buffer.subarray(8192, 8232).equals(pattern.subarray(200, 240))).toBe(true);

    await a.write(mrA.slice(0, 20_000), remoteB.slice(16 * 1024));
    expect(mrB.buffer.subarray(16 * 1024, 16 * 1024 + 20_000).equals(pattern.subarray(0, 20_000))).toBe(true);
    fill(mrB.buffer, 9).copy(pattern);
    await a.read(mrA.slice(4096, 10_000), remoteB.slice(1));
    expect(mrA.buffer.subarray(4096, 14_096).equals(pattern.subarray(1, 10_001))).toBe(true);

    mrB.buffer.writeBigUInt64LE(2n ** 64n - 1n, 0);
    expect(await a.fetchAdd(mrA.slice(0, 8), remoteB.slice(0), 3n)).toBe(2n ** 64n - 1n);
    expect(await a.compareAndSwap(mrA.slice(0, 8), remoteB.slice(0), 2n, 2n ** 63n, { fence: true })).toBe(2n);
    expect(await a.compareAndSwap(mrA.slice(0, 8), remoteB.slice(0), 2n, 5n)).toBe(2n ** 63n);
    expect(mrB.buffer.readBigUInt64LE(0)).toBe(2n ** 63n);
    await close();
  });

  it('posts what fits inline, a fence and a solicited message as such, and nothing else', async () => {
    const { a, b, close } = await connected({ cap: { maxSendSge: 2, maxInlineData: 64 } });
    const { maxInlineData: most } = a.qp.cap;
    expect(most).toBeGreaterThanOrEqual(64);
    const posted: number[] = [];
    const post = a.qp.postSend.bind(a.qp);
    vi.spyOn(a.qp, 'postSend').mockImplementation((wrs) => {
      for (const { sendFlags } of [wrs].flat() as SendWr[]) posted.push(sendFlags ?? 0);
      post(wrs);
    });
    const flagsOf = async (operation: () => Promise<unknown>): Promise<number[]> => {
      posted.length = 0;
      await within(operation(), 'an operation');
      return [...posted];
    };
    const { SIGNALED, INLINE, FENCE, SOLICITED } = SendFlags;
    const [exact, longer] = [mrA.slice(0, most), mrA.slice(0, most + 1)];
    const remote = remoteB.slice(0);
    const received = Array.from({ length: 7 }, () => b.recv(mrB.slice(0, 4096)));
    expect(await flagsOf(() => a.write(exact, remote))).toEqual([SIGNALED | INLINE]);
    expect(await flagsOf(() => a.write(longer, remote))).toEqual([SIGNALED]);
    expect(await flagsOf(() => a.send(exact))).toEqual([SIGNALED | INLINE]);
    expect(await flagsOf(() => a.send(longer))).toEqual([SIGNALED]);
    expect(await flagsOf(() => a.send())).toEqual([SIGNALED | INLINE]);
    expect(await flagsOf(() => a.writeWithImm(exact, remote, 1))).toEqual([SIGNALED | INLINE]);
    expect(await flagsOf(() => a.send(exact, { immData: 1 }))).toEqual([SIGNALED | INLINE]);
    // What comes back needs memory to come to.
    expect(await flagsOf(() => a.read(mrA.slice(0, 1), remote))).toEqual([SIGNALED]);
    expect(await flagsOf(() => a.read(exact, remote, { fence: true }))).toEqual([SIGNALED | FENCE]);
    expect(await flagsOf(() => a.fetchAdd(mrA.slice(0, 8), remote, 1n))).toEqual([SIGNALED]);
    expect(await flagsOf(() => a.write(longer, remote, { fence: true, solicited: false }))).toEqual([SIGNALED | FENCE]);
    expect(await flagsOf(() => a.send(exact, { solicited: true }))).toEqual([SIGNALED | INLINE | SOLICITED]);
    expect(await flagsOf(() => a.send(longer, { solicited: true, fence: true }))).toEqual([
      SIGNALED | SOLICITED | FENCE,
    ]);
    const batch = [
      { opcode: WrOpcode.RDMA_WRITE, sgList: [mrA.slice(0, 4), mrA.slice(8, most - 4)], remote },
      { opcode: WrOpcode.RDMA_WRITE, sgList: [mrA.slice(0, 4), mrA.slice(8, most - 3)], remote },
      { opcode: WrOpcode.RDMA_READ, sgList: exact, remote, sendFlags: FENCE },
    ];
    expect(await flagsOf(() => a.batch(batch))).toEqual([INLINE, 0, SIGNALED | FENCE]);
    await within(Promise.all(received), 'receives');
    await close();
  });

  it('keeps many operations under way, and their order', async () => {
    const { a, b, close } = await connected();
    const order: number[] = [];
    const receives = Array.from({ length: 60 }, (_, i) => b.recv(mrB.slice(i * 64, 64)));
    await within(
      Promise.all(
        Array.from({ length: 60 }, async (_, i) => {
          mrA.buffer[i * 64] = i;
          await a.send(mrA.slice(i * 64, i + 1));
          order.push(i);
        }),
      ),
      'sends',
    );
    expect(order).toEqual(Array.from({ length: 60 }, (_, i) => i));
    expect((await within(Promise.all(receives), 'receives')).map(({ byteLen }) => byteLen)).toEqual(
      Array.from({ length: 60 }, (_, i) => i + 1),
    );
    await close();
  });

  it('rejects a failed operation with its status, then flushes the others in order, and can be closed', async () => {
    const { a, b, close } = await connected();
    const wrong = new RemoteRegion({ ...mrB.remote(), rkey: mrB.rkey ^ 0x5500 });
    const settled: string[] = [];
    const note = (name: string) => (error: { statusName: string }) => void settled.push(`${name} ${error.statusName}`);
    const work = [
      a.write(mrA.slice(0, 8), wrong.slice()).catch(note('write')),
      a.read(mrA.slice(0, 8), remoteB.slice()).catch(note('read')),
      a.recv(mrA.slice(0, 8)).catch(note('recv')),
    ];
    await within(Promise.all(work), 'failures');
    expect(settled[0]).toBe('write REM_ACCESS_ERR');
    expect(settled).toContain('read WR_FLUSH_ERR');
    expect(settled).toContain('recv WR_FLUSH_ERR');
    await expect(a.send(mrA.slice(0, 8))).rejects.toMatchObject({
      name: 'WorkCompletionError',
      status: WcStatus.WR_FLUSH_ERR,
      qpNum: a.qp.qpNum,
    });
    expect(a.qp.query().qpState).toBe(6);
    await close();
    await expect(a.send(mrA.slice(0, 8))).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    expect(b.qp.closed && b.qp.sendCq.closed).toBe(true);
  });

  it('rejects what cannot be posted at once, and goes on', async () => {
    const { a, b, close } = await connected({ cap: { maxSendWr: 2, maxRecvWr: 2 }, maxWaiting: 0 });
    const depth = a.qp.cap.maxRecvWr;
    const receives = Array.from({ length: depth }, () => a.recv(mrA.slice(0, 8)).catch(() => {}));
    await expect(a.recv(mrA.slice(0, 8))).rejects.toMatchObject({ name: 'QueueFullError', inFlight: depth });
    await expect(a.write(mrA.slice(0, 8), undefined as never)).rejects.toMatchObject({ code: 'ERR_INVALID_ARG_TYPE' });
    await expect(a.send(mrA.slice(0, 8), { fense: true } as never)).rejects.toThrow(/fense/);
    await expect(a.fetchAdd(mrA.slice(0, 4), remoteB.slice(), 1n)).rejects.toMatchObject({ code: 'ERR_OUT_OF_RANGE' });
    await a.write(mrA.slice(0, 8), remoteB.slice());
    await b.send(mrB.slice(0, 8));
    await close();
    await within(Promise.all(receives), 'receives');
  });

  it('posts the receives of recvs before the peer can send', async () => {
    const { a, b, close } = await connected(
      { recvs: () => [mrA.slice(0, 16), mrA.slice(16, 16)] },
      { rnrRetry: 0, recvs: () => [] },
    );
    // With no RNR retries a send that found no receive would fail.
    await within(Promise.all([b.send(mrB.slice(0, 5)), b.send(mrB.slice(0, 6))]), 'sends');
    expect((await within(Promise.all(a.recvs), 'recvs')).map(({ byteLen }) => byteLen)).toEqual([5, 6]);
    expect(b.recvs).toEqual([]);
    await close();
  });

  it('closes within its bound with operations under way and a peer that is gone', async () => {
    const { a, b } = await connected({ timeout: 8 });
    // With 7 Soft-RoCE would never tell.
    expect([a.qp.query().retryCnt, b.qp.query().retryCnt]).toEqual([6, 6]);
    b.qp.close();
    const work = a.write(mrA.slice(0, 8), remoteB.slice()).catch((error) => error);
    const receive = a.recv(mrA.slice(0, 8)).catch((error) => error);
    await within(a.close(), 'close');
    expect((await work).name).toMatch(/WorkCompletionError|RdmaClosedError/);
    expect((await receive).name).toMatch(/WorkCompletionError|RdmaClosedError/);
    expect(a.close()).toBe(a.close());
    await b.close();
    b.qp.sendCq.close();
  });

  it('lets the event loop have its turn while operations complete at once', async () => {
    const { a, close } = await connected();
    let turns = 0;
    let next: NodeJS.Immediate;
    const count = () => {
      turns++;
      next = setImmediate(count);
    };
    next = setImmediate(count);
    for (let i = 0; i < 1100; i++) await a.write(mrA.slice(0, 8), remoteB.slice());
    clearImmediate(next);
    expect(turns).toBeGreaterThanOrEqual(2);
    await close();
  });
});

describe('listenTcp and connectTcp', () => {
  it('serves several peers, by iteration, and ends with close()', async () => {
    const listener = await listenTcp({ pd: pdB, port: 0, host: '127.0.0.1' });
    const seen: string[] = [];
    const served = (async () => {
      for await (const endpoint of listener) {
        seen.push(endpoint.privateData.toString());
        await endpoint.close();
      }
    })();
    for (const name of ['one', 'two', 'three']) {
      const peer = connectTcp({ pd: pdA, host: '127.0.0.1', port: listener.port, privateData: name });
      await (await within(peer, 'connect')).close();
    }
    await within(
      (async () => {
        while (seen.length < 3) await new Promise((resolve) => setImmediate(resolve));
      })(),
      'three peers',
    );
    await listener.close();
    await within(served, 'the end of the iteration');
    expect(seen.sort()).toEqual(['one', 'three', 'two']);
    await expect(listener.accept()).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    await listener.close();
  });

  it('survives peers that speak something else, and tells of them', async () => {
    const errors: Error[] = [];
    const listener = await listenTcp({
      pd: pdB,
      port: 0,
      host: '127.0.0.1',
      // Enough for the good one, too.
      timeoutMs: 2000,
      onError: (error) => errors.push(error),
    });
    const frame = Buffer.alloc(38);
    frame.writeUInt16BE(36);
    const hostile = [Buffer.from('GET / HTTP/1.1\r\n\r\n'), Buffer.alloc(60_000, 0xff), frame, Buffer.alloc(0)];
    for (const bytes of hostile) {
      const socket = connectSocket(listener.port, '127.0.0.1');
      socket.on('error', () => {});
      socket.end(bytes);
      await within(once(socket.resume(), 'close'), 'the end of the connection');
    }
    // One that says nothing at all is given up after the time.
    const silent = connectSocket(listener.port, '127.0.0.1').on('error', () => {});
    await within(once(silent.resume(), 'close'), 'the end of a silent peer');
    await until(() => errors.length === 5, 'five errors');
    expect(errors[4]).toMatchObject({ code: 'ETIMEDOUT' });
    const [b, a] = await Promise.all([
      listener.accept(),
      connectTcp({ pd: pdA, host: '127.0.0.1', port: listener.port }),
    ]);
    await Promise.all([a.close(), b.close()]);
    await listener.close();
  });

  it('rejects with the reason: refused, aborted, too late, closed under the hand', async () => {
    const listener = await listenTcp({ pd: pdB, port: 0, host: '127.0.0.1' });
    const { port } = listener;
    await listener.close();
    const to = { pd: pdA, host: '127.0.0.1', port };
    await expect(connectTcp(to)).rejects.toMatchObject({ code: 'ECONNREFUSED' });
    const reason = new Error('enough');
    await expect(connectTcp({ ...to, signal: AbortSignal.abort(reason) })).rejects.toBe(reason);

    const mute = (await import('node:net')).createServer((socket) => socket.resume().on('error', () => {}));
    await once(mute.listen(0, '127.0.0.1'), 'listening');
    const muted = { ...to, port: (mute.address() as { port: number }).port };
    await expect(connectTcp({ ...muted, timeoutMs: 50 })).rejects.toMatchObject({ code: 'ETIMEDOUT' });
    const controller = new AbortController();
    const waiting = connectTcp({ ...muted, signal: controller.signal });
    controller.abort(reason);
    await expect(within(waiting, 'the abort')).rejects.toBe(reason);
    mute.close();
  });

  it('refuses wrong options before there is a socket, naming them', async () => {
    const to = { pd: pdA, host: '127.0.0.1', port: 1 };
    const wrong: [object, RegExp][] = [
      [{ ...to, pd: {} }, /options\.pd/],
      [{ ...to, port: 0 }, /options\.port/],
      [{ ...to, host: 7 }, /options\.host/],
      [{ ...to, privateData: 7 }, /options\.privateData/],
      [{ ...to, privateData: Buffer.alloc(4097) }, /4097 bytes/],
      [{ ...to, timeoutMs: 0 }, /options\.timeoutMs/],
      [{ ...to, gidindex: 1 }, /did you mean 'gidIndex'/],
      [{ ...to, cap: { maxSendWR: 1 } }, /maxSendWR/],
      [{ ...to, signal: 1 }, /options\.signal/],
    ];
    for (const [options, message] of wrong) await expect(connectTcp(options as never)).rejects.toThrow(message);
  });

  it('refuses an MTU that one of the ports does not have, on both sides', async () => {
    const errors: Error[] = [];
    const listener = await listenTcp({ pd: pdB, port: 0, host: '127.0.0.1', onError: (error) => errors.push(error) });
    const peer = connectTcp({ pd: pdA, host: '127.0.0.1', port: listener.port, mtu: 5 });
    await expect(within(peer, 'the refusal')).rejects.toThrow(/options\.mtu is 4096 bytes/);
    await within(
      (async () => {
        while (errors.length === 0) await new Promise((resolve) => setImmediate(resolve));
      })(),
      'the other side',
    );
    await listener.close();
  });
});
