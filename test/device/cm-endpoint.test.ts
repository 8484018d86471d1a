import { execFile, execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { inspect, promisify } from 'node:util';
import { expect, it, vi } from 'vitest';
import {
  CmError,
  CmEventType,
  CmId,
  type CmListener,
  connect,
  connectTcp,
  createEventChannel,
  type Endpoint,
  listen,
  listenTcp,
  type MemoryRegion,
  openDevice,
  type ProtectionDomain,
  RdmaClosedError,
  RdmaPeerLeftError,
  RemoteRegion,
} from '../../lib/index.ts';
import { runChild } from './children.ts';
import { addressA, addressB, describeCm, deviceA, deviceB, linkLocal, newPort, rejection } from './cm.ts';
import { outcomes } from './endpoints.ts';
import { ALL_ACCESS, DEADLINE_MS, descriptors, expectNoLeaks, fill, thrown, within } from './fixture.ts';
import { lose, lost, slow } from './lossy-wire.ts';

const timeoutMs = DEADLINE_MS;

/** A protection domain and memory on each device. */
class Memory implements Disposable {
  readonly a: MemoryRegion;
  readonly b: MemoryRegion;
  readonly pdA: ProtectionDomain;
  readonly pdB: ProtectionDomain;
  constructor() {
    this.pdA = openDevice(deviceA).allocPd();
    this.pdB = openDevice(deviceB).allocPd();
    this.a = this.pdA.allocSync(8192, { access: ALL_ACCESS });
    this.b = this.pdB.allocSync(8192, { access: ALL_ACCESS });
  }
  [Symbol.dispose](): void {
    for (const pd of [this.pdA, this.pdB]) pd.context.close({ cascade: true });
  }
}

/** Both ends of a connection to the listener. */
async function pair(memory: Memory, listener: CmListener): Promise<[a: Endpoint, b: Endpoint]> {
  const to = { host: addressB, localAddress: addressA, port: listener.port };
  const accepted = listener.getRequest().then((request) => request.accept({ pd: memory.pdB, timeoutMs }));
  return Promise.all([connect({ pd: memory.pdA, ...to, timeoutMs }), accepted]);
}

describeCm('listen() and connect()', () => {
  expectNoLeaks();

  it('tell who has connected that the peer gave up accept() after its answer', async () => {
    using memory = new Memory();
    const listener = await listen({ port: 0, host: addressB });
    // The answer is here, and the confirmation still on its way.
    slow(60);
    try {
      for (let i = 0; i < 3; i++) {
        const abort = new AbortController();
        const options = { pd: memory.pdB, timeoutMs, signal: abort.signal };
        const accepting = listener.getRequest().then((request) => rejection(request.accept(options)));
        const to = { host: addressB, localAddress: addressA, port: listener.port };
        const a = await within(connect({ pd: memory.pdA, ...to, timeoutMs }), 'the connection');
        const receive = rejection(a.recv(memory.a.slice(0, 64)));
        abort.abort(new Error('enough'));
        expect(await within(accepting, 'the other side')).toMatchObject({ message: 'enough' });
        expect(await within(a.closed, 'the notice')).toBeInstanceOf(RdmaPeerLeftError);
        expect(await within(receive, 'the receive')).toMatchObject({ statusName: 'WR_FLUSH_ERR' });
        await within(a.close(), 'the close');
      }
    } finally {
      lose(0);
    }
    await listener.close();
  });

  it('give endpoints with promises, what was sent along, and receives that were there before', async () => {
    using memory = new Memory();
    const listener = await listen({ port: 0, host: addressB });
    expect(listener.address).toMatchObject({ address: addressB, family: 'IPv4' });
    expect(listener.port).toBeGreaterThan(0);
    const { pdA, pdB, a: mrA, b: mrB } = memory;

    const token = JSON.stringify(mrB.remote());
    const serving = (async () => {
      for await (const request of listener) {
        expect(request.device).toBe(deviceB);
        expect(request.peerAddress.address).toBe(addressA);
        expect(request.privateData.toString('utf8', 0, 5)).toBe('hello');
        const endpoint = await request.accept({
          pd: pdB,
          privateData: Buffer.from(token),
          recvs: () => [mrB.slice(4096, 64)],
          timeoutMs,
        });
        return endpoint;
      }
      throw new Error('nobody came');
    })();
    const options = { pd: pdA, host: addressB, localAddress: addressA, port: listener.port, timeoutMs };
    const a = await connect({ ...options, privateData: Buffer.from('hello') });
    const b = await within(serving, 'the request');
    expect(a.privateData.length).toBe(196);
    const remote = RemoteRegion.parse(a.privateData.subarray(0, token.length));

    const length = mrA.buffer.write('the first message');
    const [received] = await Promise.all([b.recvs[0], a.send(mrA.slice(0, length))]);
    expect(received).toEqual({ byteLen: length, immData: undefined });
    expect(mrB.buffer.toString('utf8', 4096, 4096 + length)).toBe('the first message');

    const written = fill(mrA.buffer, 9).subarray(0, 4096);
    await a.write(mrA.slice(0, 4096), remote.slice(0, 4096));
    expect(mrB.buffer.subarray(0, 4096).equals(written)).toBe(true);
    mrA.buffer.fill(0);
    await a.read(mrA.slice(0, 4096), remote.slice(0, 4096));
    expect(mrA.buffer.subarray(0, 4096).equals(written)).toBe(true);

    await Promise.all([a.close(), b.close()]);
    await listener.close();
    await listener.close();
  });

  it('tell an endpoint when its peer has left: what is under way rejects, and nothing hangs', async () => {
    using memory = new Memory();
    const listener = await listen({ port: 0, host: addressB });
    const [a, b] = await pair(memory, listener);
    const pending = [rejection(b.recv(memory.b.slice(0, 64))), rejection(b.recv(memory.b.slice(64, 64)))];
    await a.close();
    for (const error of await Promise.all(pending)) expect(error).toMatchObject({ statusName: 'WR_FLUSH_ERR' });
    expect(await within(b.closed, 'the end')).toMatchObject({ code: 'ERR_RDMA_PEER_LEFT' });
    expect(await a.closed).toBeUndefined();
    expect(await rejection(a.send())).toBeInstanceOf(RdmaClosedError);
    await b.close();
    await b.close();
    await listener.close();
  });

  it('rejects with a reason, and says so when nobody listens', async () => {
    using memory = new Memory();
    const listener = await listen({ port: 0, host: addressB });
    const to = { pd: memory.pdA, host: addressB, localAddress: addressA, port: listener.port, timeoutMs };
    const refused = rejection(connect(to));
    (await listener.getRequest()).reject(Buffer.from('full'));
    const error = (await refused) as CmError;
    expect(error).toBeInstanceOf(CmError);
    expect(error).toMatchObject({ code: 'ECONNREFUSED', status: 28 });
    expect(error.privateData.toString('utf8', 0, 4)).toBe('full');
    const waiting = rejection(listener.getRequest());
    await listener.close();
    expect(await waiting).toBeInstanceOf(RdmaClosedError);
    expect(await rejection(connect(to))).toMatchObject({ code: 'ECONNREFUSED', status: 8 });
  });

  it('gives up at the deadline, at a signal, and on the wrong device, and leaves nothing behind', async () => {
    using memory = new Memory();
    const listener = await listen({ port: 0, host: addressB });
    const to = { pd: memory.pdA, host: addressB, localAddress: addressA, port: listener.port };
    const late = await rejection(connect({ ...to, timeoutMs: 1500 }));
    expect(late).toMatchObject({ code: 'ETIMEDOUT', message: 'No connection within 1500 ms' });
    const reason = new Error('enough');
    const controller = new AbortController();
    const aborted = rejection(connect({ ...to, timeoutMs, signal: controller.signal }));
    controller.abort(reason);
    expect(await aborted).toBe(reason);
    expect(await rejection(connect({ ...to, signal: AbortSignal.abort(reason) }))).toBe(reason);
    const wrong = await rejection(connect({ ...to, pd: memory.pdB, timeoutMs }));
    expect(wrong.message).toBe('pd is of rxe1, but the id is bound to rxe0');
    // What nobody has answered is rejected with the listener.
    await listener.close();
  });

  it('take what they are given to the queue pairs', async () => {
    using memory = new Memory();
    const listener = await listen({ port: 0, host: addressB });
    const to = { host: addressB, localAddress: addressA, port: listener.port, timeoutMs };
    const asked = listener.getRequest();
    const path = { tos: 0x68, ackTimeout: 13, retryCount: 5, rnrRetryCount: 3, minRnrTimer: 14 };
    const connecting = connect({ pd: memory.pdA, ...to, ...path, responderResources: 2, initiatorDepth: 4 });
    const b = await (await asked).accept({ pd: memory.pdB, timeoutMs, rnrRetryCount: 2, minRnrTimer: 10 });
    const a = await connecting;
    // How often one may find no receive is the other's to say.
    expect(a.qp.query()).toMatchObject({
      ...{ timeout: 13, retryCnt: 5, rnrRetry: 2, minRnrTimer: 14, maxRdAtomic: 4, maxDestRdAtomic: 2 },
      ahAttr: { grh: { trafficClass: 0x68 } },
    });
    expect(b.qp.query()).toMatchObject({
      retryCnt: 5,
      rnrRetry: 3,
      minRnrTimer: 10,
      maxRdAtomic: 2,
      maxDestRdAtomic: 4,
    });
    await listener.close();
    await Promise.all([a.close(), b.close()]);
  });

  it('take link-local addresses with their interface, names, a backlog, and an address that is bound', async () => {
    using memory = new Memory();
    const spy = vi.spyOn(CmId.prototype, 'listen');
    const listener = await listen({ port: 0, host: linkLocal('v1'), backlog: 3 });
    expect(listener.address).toMatchObject({ address: linkLocal('v1'), family: 'IPv6' });
    const [name, line] = ['wire-b.test', `${addressB} wire-b.test\n`];
    const before = readFileSync('/etc/hosts');
    writeFileSync('/etc/hosts', `${before}${line}`);
    const named = await listen({ port: 0, host: addressB });
    expect(spy.mock.calls).toEqual([[3], [16]]);
    spy.mockRestore();
    try {
      for (const [to, host, localAddress] of [
        [listener, linkLocal('v1').replace('%v1', '%v0'), linkLocal('v0')],
        [named, name, addressA],
      ] as const) {
        const accepted = to.getRequest().then((request) => request.accept({ pd: memory.pdB, timeoutMs }));
        const connecting = connect({ pd: memory.pdA, host, localAddress, port: to.port, timeoutMs });
        const [a, b] = await Promise.all([connecting, accepted]);
        await Promise.all([b.recv(memory.b.slice(0, 64)), a.send(memory.a.slice(0, 4))]);
        await Promise.all([a.close(), b.close()]);
      }
    } finally {
      writeFileSync('/etc/hosts', before);
    }
    // One that is bound and does not listen: beside it one may be bound too, and not listen.
    const channel = createEventChannel();
    const id = channel.createId();
    id.setOption({ reuseAddr: true });
    const port = newPort();
    await id.bindAddr({ address: addressB, port });
    for (const [reuseAddr, syscall] of [
      [false, 'rdma_bind_addr'],
      [true, 'rdma_listen'],
    ] as const) {
      const refused = await rejection(listen({ port, host: addressB, reuseAddr }));
      expect(refused).toMatchObject({ code: 'EADDRINUSE', syscall });
    }
    channel.close({ cascade: true });
    await Promise.all([listener.close(), named.close()]);
  });

  it('keep nothing of clients that gave up before they were answered', async () => {
    using memory = new Memory();
    const listener = await listen({ port: 0, host: addressB });
    const to = { pd: memory.pdA, host: addressB, localAddress: addressA, port: listener.port, timeoutMs };
    const knock = () => {
      const controller = new AbortController();
      return { controller, refused: rejection(connect({ ...to, signal: controller.signal })) };
    };
    let client = knock();
    let request = await within(listener.getRequest(), 'the first request');
    const { channel } = request.id;
    for (const answer of ['reject', 'accept']) {
      const next = listener.getRequest();
      client.controller.abort(new Error('enough'));
      expect((await client.refused).message).toBe('enough');
      client = knock();
      const taken = await within(next, 'the next request');
      // The kernel tells of an id that a request has brought only from accept() on, which knows.
      expect(inspect(channel)).toBe('EventChannel { ids: 3, events: 0 }');
      if (answer === 'reject') {
        expect(thrown(() => request.reject())).toMatchObject({ code: 'EINVAL', syscall: 'rdma_reject' });
      } else {
        expect(await rejection(request.accept({ pd: memory.pdB, timeoutMs }))).toMatchObject({ code: 'EINVAL' });
      }
      expect(inspect(channel)).toBe('EventChannel { ids: 2, events: 0 }');
      request = taken;
    }
    request.reject();
    expect(await client.refused).toMatchObject({ code: 'ECONNREFUSED', status: 28 });
    await listener.close();
  });

  it('connections come and go; descriptors and objects are as before', { timeout: 400_000 }, async () => {
    using memory = new Memory();
    const listener = await listen({ port: 0, host: addressB });
    const cycles = 20;
    let before = 0;
    for (let i = 0; i < cycles; i++) {
      const [a, b] = await pair(memory, listener);
      memory.a.buffer.writeUInt32LE(i);
      await Promise.all([b.recv(memory.b.slice(0, 64)), a.send(memory.a.slice(0, 4))]);
      expect(memory.b.buffer.readUInt32LE()).toBe(i);
      // Either end may be the first to leave.
      await (i % 3 === 0 ? a : b).close();
      await (i % 3 === 0 ? b : a).close();
      if (i === 1) before = descriptors();
    }
    expect(descriptors()).toBeLessThanOrEqual(before);
    await listener.close();
  });

  it('are closed in time when the wire is down, by the connection manager and over TCP', async () => {
    using memory = new Memory();
    const listener = await listen({ port: 0, host: addressB });
    const byCm = await pair(memory, listener);
    const tcp = await listenTcp({ pd: memory.pdB, port: 0, host: '127.0.0.1' });
    // The device would ask for eight seconds and more before it gave up.
    const to = { pd: memory.pdA, port: tcp.port, host: '127.0.0.1', timeout: 18, retryCnt: 7 };
    const byTcp = await Promise.all([connectTcp(to), tcp.accept()]);
    lose(100);
    try {
      for (const [endpoint] of [byCm, byTcp]) {
        const ends = outcomes(
          Array.from({ length: 10 }, () => endpoint.send(memory.a.slice(0, 64))),
          'what was sent',
        );
        const begin = performance.now();
        await within(endpoint.close({ drainMs: 300 }), 'the close');
        const ms = performance.now() - begin;
        // What was sent has its time, then a farewell has a second, and a flush two: less than the device would take.
        expect(ms).toBeGreaterThan(299);
        expect(ms).toBeLessThan(8000);
        expect(await ends).toEqual(Array(10).fill('WR_FLUSH_ERR'));
        expect(await endpoint.closed).toBeUndefined();
      }
      expect(lost()).toBeGreaterThan(0);
    } finally {
      lose(0);
    }
    for (const [, peer] of [byCm, byTcp]) await within(peer.close({ drainMs: 0 }), 'the close of the peer');
    await listener.close();
    await tcp.close();
  });

  it('are told that the device was removed, and can be closed', { timeout: 3 * DEADLINE_MS }, async () => {
    const run = (program: string, ...args: string[]) => execFileSync(program, args, { encoding: 'utf8' });
    run('ip', 'link', 'add', 'soft1', 'type', 'dummy');
    try {
      run('ip', 'address', 'add', '10.79.1.1/24', 'dev', 'soft1');
      run('ip', 'link', 'set', 'soft1', 'up');
      run('rdma', 'link', 'add', 'rxe3', 'type', 'rxe', 'netdev', 'soft1');
      let removal: Promise<unknown> | undefined;
      const { code, stdout, stderr } = await runChild('removed', ['rxe3', '10.79.1.1'], {
        onOutput: (text) => {
          if (text.includes('ready')) removal ??= promisify(execFile)('rdma', ['link', 'delete', 'rxe3']);
        },
      });
      expect(code, stderr).toBe(0);
      const { reasons, ...told } = JSON.parse(stdout.slice('ready\n'.length));
      expect(told).toEqual({ received: 'WorkCompletionError', event: CmEventType.DEVICE_REMOVAL });
      // The kernel takes one end away after the other, and the other may hear of that first.
      expect(reasons).toContain('ERR_RDMA_DEVICE_LOST');
      for (const reason of reasons) expect(['ERR_RDMA_DEVICE_LOST', 'ERR_RDMA_PEER_LEFT']).toContain(reason);
      // The kernel waits until the process has let go of it.
      await within(removal!, 'the removal');
      expect(run('rdma', 'link')).not.toContain('rxe3');
    } finally {
      run('ip', 'link', 'del', 'soft1');
    }
  });

  it('refuse wrong options, naming them', async () => {
    using memory = new Memory();
    const { pdA: pd } = memory;
    const to = { pd, host: addressB, port: newPort() };
    const cases: [object, RegExp][] = [
      [{ ...to, portt: 1 }, /Unknown option 'portt'/],
      [{ ...to, pd: {} }, /options.pd must be a ProtectionDomain/],
      [{ ...to, port: 0 }, /options.port/],
      [{ ...to, host: 7 }, /options.host/],
      [{ ...to, timeoutMs: -1 }, /options.timeoutMs/],
      [{ ...to, recvs: [] }, /options.recvs must be a function/],
      [{ ...to, tos: 256 }, /options.tos/],
      [{ ...to, localAddress: 'nowhere' }, /is not an IP address/],
    ];
    for (const [options, message] of cases) {
      expect((await rejection(connect(options as Parameters<typeof connect>[0]))).message).toMatch(message);
    }
    expect((await rejection(listen({ port: 70_000 }))).message).toMatch(/options.port/);
    expect((await rejection(listen({ port: 0, backlog: 0 }))).message).toMatch(/options.backlog/);
    expect(thrown(() => memory.pdA.close()).name).toBe('BusyError');
  });
});
