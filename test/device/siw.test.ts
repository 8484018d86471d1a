/** What is different on iWARP, over the kernel's software iWARP: the step `siw`. */
import { buffer } from 'node:stream/consumers';
import { describe, expect, it } from 'vitest';
import {
  AccessFlags,
  Calls,
  type CmEndpointOptions,
  CmError,
  connect,
  connectionInfo,
  connectTcp,
  decodePrivateData,
  type Endpoint,
  encodePrivateData,
  getDeviceList,
  LinkLayer,
  listen,
  listenTcp,
  type MemoryRegion,
  Messages,
  messageEndpoint,
  NodeType,
  openDevice,
  type ProtectionDomain,
  QpState,
  QpType,
  RdmaError,
  RdmaSocket,
  RemoteRegion,
  SendFlags,
  SendOpsFlags,
  type SendWr,
  TransportType,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import { runPerfServer } from '../../lib/perf/perf.ts';
import { type PingResult, ping } from '../../lib/perf/ping.ts';
import { addressA, addressB, CmPair, deviceA, deviceB, rejection, soon } from './cm.ts';
import {
  ALL_ACCESS,
  completions,
  DEADLINE_MS,
  descriptors,
  expectNoLeaks,
  fill,
  isSiw,
  thrown,
  unsupported,
  until,
  within,
} from './fixture.ts';

const timeoutMs = DEADLINE_MS;

/** A domain and memory on each device, and endpoints that are connected by the connection manager. */
class Ends implements Disposable {
  readonly pdA: ProtectionDomain = openDevice(deviceA).allocPd();
  readonly pdB: ProtectionDomain = openDevice(deviceB).allocPd();
  readonly a: MemoryRegion = this.pdA.allocSync(64 * 1024, { access: ALL_ACCESS });
  readonly b: MemoryRegion = this.pdB.allocSync(64 * 1024, { access: ALL_ACCESS });
  /** The memory of b as a sees it. */
  readonly remote = new RemoteRegion(this.b.remote());

  /** The end that asks, and the end that accepts. */
  async connect(a: Partial<CmEndpointOptions> = {}, b: Partial<CmEndpointOptions> = {}): Promise<[Endpoint, Endpoint]> {
    const listener = await listen({ port: 0, host: addressB });
    const to = { host: addressB, localAddress: addressA, port: listener.port };
    const accepted = listener.getRequest(soon()).then((request) => request.accept({ pd: this.pdB, timeoutMs, ...b }));
    try {
      return await Promise.all([connect({ pd: this.pdA, ...to, timeoutMs, ...a }), accepted]);
    } finally {
      await listener.close();
    }
  }

  /** Endpoints that can carry messages. */
  async carriers(): Promise<[Endpoint, Endpoint]> {
    const limits = { bufferBytes: 1024, buffers: 8 };
    return this.connect(messageEndpoint({ pd: this.pdA, ...limits }), messageEndpoint({ pd: this.pdB, ...limits }));
  }

  [Symbol.dispose](): void {
    for (const pd of [this.pdA, this.pdB]) pd.context.close({ cascade: true });
  }
}

const close = (...ends: Endpoint[]) => within(Promise.all(ends.map((end) => end.close())), 'the end of the endpoints');

const iwarp = (syscall: string, text: string) => ({
  ...unsupported(syscall),
  message: expect.stringContaining(`iWARP ${text}`),
});

/** What other devices say of it is that they are none. */
function describeSiw(name: string, tests: () => void): void {
  if (isSiw) {
    describe(name, tests);
    return;
  }
  it('is not what this device speaks', () => {
    using context = openDevice(deviceA);
    expect(context.transportType).toBe(TransportType.IB);
  });
}

describeSiw('iWARP', () => {
  expectNoLeaks();

  it('is said by the list of devices and by the device', () => {
    const device = getDeviceList().find(({ name }) => name === deviceA);
    expect(device).toMatchObject({ nodeType: NodeType.RNIC, transportType: TransportType.IWARP });
    using context = openDevice(deviceA);
    expect(context.transportType).toBe(TransportType.IWARP);
    expect(context.queryPort(1)).toMatchObject({ linkLayer: LinkLayer.ETHERNET });
    expect(context.queryDevice()).toMatchObject({ maxSgeRd: 1 });
  });

  it('says what it lacks, and the connection stands after it', async () => {
    using ends = new Ends();
    const { pdA, a: mr, remote } = ends;
    const cq = pdA.context.createCq(256);
    for (const qpType of [QpType.UD, QpType.UC]) {
      const error = thrown(() => pdA.createQp({ sendCq: cq, qpType }));
      expect(error).toMatchObject(iwarp('ibv_create_qp', 'has reliable connections (RC) only'));
    }
    const extended = thrown(() => pdA.createQp({ sendCq: cq, sendOpsFlags: SendOpsFlags.SEND }));
    expect(extended).toMatchObject(unsupported('ibv_create_qp_ex'));
    const own = pdA.createQp({ sendCq: cq });
    const onlyByCm = iwarp('ibv_modify_qp', 'connects by the connection manager only: listen(), connect()');
    expect(thrown(() => connectionInfo(own))).toMatchObject(onlyByCm);
    const more = { portNum: 1, gidIndex: undefined, trafficClass: undefined, mtu: undefined, events: false };
    const perf = runPerfServer(
      { ...more, test: 'write-bw', device: deviceA, port: 0, signal: soon().signal },
      () => {},
    );
    expect(await rejection(perf)).toMatchObject(onlyByCm);
    expect(await rejection(listenTcp({ pd: pdA, port: 0 }))).toMatchObject(onlyByCm);
    expect(await rejection(connectTcp({ pd: pdA, host: 'localhost', port: 9 }))).toMatchObject(onlyByCm);
    own.close();
    cq.close();

    const [a, b] = await ends.connect();
    const eight = mr.slice(0, 8);
    const there = remote.slice(0, 8);
    const noImmediate = iwarp('ibv_post_send', 'carries no immediate data (SEND_WITH_IMM)');
    const noAtomics = iwarp('ibv_post_send', 'has no atomics (ATOMIC_FETCH_AND_ADD)');
    expect(await rejection(a.send(eight, { immData: 7 }))).toMatchObject(noImmediate);
    expect(await rejection(a.writeWithImm(eight, there, 7))).toMatchObject(
      iwarp('ibv_post_send', 'carries no immediate data (RDMA_WRITE_WITH_IMM)'),
    );
    expect(await rejection(a.fetchAdd(eight, there, 1n))).toMatchObject(noAtomics);
    expect(await rejection(a.compareAndSwap(eight, there, 1n, 2n))).toMatchObject(
      iwarp('ibv_post_send', 'has no atomics (ATOMIC_CMP_AND_SWP)'),
    );
    const wrs: SendWr[] = [
      { opcode: WrOpcode.SEND, sgList: eight },
      { opcode: WrOpcode.SEND_WITH_IMM, sgList: eight, immData: 1 },
    ];
    expect(await rejection(a.batch(wrs))).toMatchObject(noImmediate);
    const window = { access: AccessFlags.LOCAL_WRITE | AccessFlags.MW_BIND };
    const shareable = ends.pdB.allocSync(4096, window);
    expect(await rejection(b.share(shareable, AccessFlags.REMOTE_READ))).toMatchObject(unsupported('ibv_alloc_mw'));
    // Nothing of all that was posted.
    const [received] = await Promise.all([b.recv(ends.b.slice(0, 64)), a.send(eight)]);
    expect(received).toEqual({ byteLen: 8, immData: undefined });
    await close(a, b);
  });

  it('is connected step by step: data both ways, private data as it was sent, the depths changed over', async () => {
    using pair = await CmPair.connect({
      connect: { privateData: Buffer.from('a to b'), initiatorDepth: 4, responderResources: 8 },
      accept: { privateData: Buffer.from('b to a') },
    });
    const { a, b, asked, answered } = pair;
    expect([a.id.device, b.id.device]).toEqual([deviceA, deviceB]);
    expect(asked).toMatchObject({ name: 'CONNECT_REQUEST', conn: { responderResources: 4, initiatorDepth: 8 } });
    expect(asked.conn?.privateData.toString()).toBe('a to b');
    expect(answered).toMatchObject({ name: 'ESTABLISHED', status: 0 });
    expect(answered.conn?.privateData.toString()).toBe('b to a');
    expect([a.qp.state, b.qp.state]).toEqual([QpState.RTS, QpState.RTS]);
    for (const [from, to] of [[a, b] as const, [b, a] as const]) {
      const sent = fill(from.mr.buffer, 5);
      to.qp.postRecv({ wrId: 1, sgList: to.mr.slice() });
      from.qp.postSend({ wrId: 2, opcode: WrOpcode.SEND, sgList: from.mr.slice(), sendFlags: SendFlags.SIGNALED });
      expect(await completions(from.cq, 1)).toMatchObject([{ wrId: 2, status: WcStatus.SUCCESS }]);
      expect(await completions(to.cq, 1)).toMatchObject([{ wrId: 1, status: WcStatus.SUCCESS, byteLen: 4096 }]);
      expect(to.mr.buffer.equals(sent)).toBe(true);
    }
    for (const { qp, mr } of [a, b]) qp.postRecv({ wrId: 7, sgList: mr.slice() });
    const ended = b.id.getEvent(soon());
    await a.id.disconnect(soon());
    expect(await ended).toMatchObject({ name: 'DISCONNECTED', id: b.id });
    await b.id.disconnect(soon());
    for (const { cq } of [a, b]) {
      expect(await completions(cq, 1)).toMatchObject([{ wrId: 7, status: WcStatus.WR_FLUSH_ERR }]);
    }
  });

  it('takes 251 bytes of private data, and 252 are refused before the call', async () => {
    using ends = new Ends();
    const long = fill(Buffer.alloc(250), 3);
    const [a, b] = await ends.connect(
      { privateData: encodePrivateData(long) },
      { privateData: encodePrivateData(long) },
    );
    for (const { privateData } of [a, b]) expect(decodePrivateData(privateData).equals(long)).toBe(true);
    await close(a, b);
    const error = await rejection(ends.connect({ privateData: Buffer.alloc(252) }));
    expect(error.message).toBe('privateData has 252 bytes, and this message has room for 251');
  });

  it('carries messages of any length, none too, writes and reads, with the bytes in place', async () => {
    using ends = new Ends();
    const [a, b] = await ends.connect();
    // A receive must be there before the message: there is no receiver that is not ready, only a connection that ends.
    const [none] = await Promise.all([b.recv(), a.send()]);
    expect(none).toEqual({ byteLen: 0, immData: undefined });
    const sent = fill(ends.a.buffer, 9).subarray(0, 20_000);
    const [received] = await Promise.all([b.recv(ends.b.slice(0, 32_768)), a.send(ends.a.slice(0, 20_000))]);
    expect(received.byteLen).toBe(20_000);
    expect(ends.b.buffer.subarray(0, 20_000).equals(sent)).toBe(true);
    const written = fill(ends.a.buffer, 11).subarray(0, 30_000);
    await a.write(ends.a.slice(0, 30_000), ends.remote.slice(30_000, 30_000));
    // That a write has completed says nothing of the peer; a read behind it does.
    await a.read(ends.a.slice(60_000, 0), ends.remote.slice(0, 0));
    expect(ends.b.buffer.subarray(30_000, 60_000).equals(written)).toBe(true);
    ends.a.buffer.fill(0);
    await a.read(ends.a.slice(0, 30_000), ends.remote.slice(30_000, 30_000));
    expect(ends.a.buffer.subarray(0, 30_000).equals(written)).toBe(true);
    await close(a, b);
  });

  it('completes in order what is behind a read, which siw by itself does not', async () => {
    using ends = new Ends();
    const [a, b] = await ends.connect({ cap: { maxSendWr: 16 } });
    const order: string[] = [];
    const rounds = 40;
    const all: Promise<unknown>[] = [];
    for (let i = 0; i < rounds; i++) {
      ends.b.buffer.writeUInt32LE(i + 1, 4096 + 4 * i);
      all.push(b.recv(ends.b.slice(0, 64)));
    }
    for (let i = 0; i < rounds; i++) {
      const read = a.read(ends.a.slice(8192 + 4 * i, 4), ends.remote.slice(4096 + 4 * i, 4));
      const note = () => order.push(`read ${i}: ${ends.a.buffer.readUInt32LE(8192 + 4 * i)}`);
      all.push(read.then(note));
      all.push(a.send(ends.a.slice(0, 16)).then(() => order.push(`send ${i}`)));
    }
    await within(Promise.all(all), 'all reads and messages');
    const expected = Array.from({ length: rounds }, (_, i) => [`read ${i}: ${i + 1}`, `send ${i}`]).flat();
    expect(order).toEqual(expected);
    await close(a, b);
  });

  it('has batches, scopes, signals, what is not signaled, and more than its queue takes', async () => {
    using ends = new Ends();
    const { a: from, b: to, remote } = ends;
    const [a, b] = await ends.connect({ cap: { maxSendWr: 4 } });
    const sent = fill(from.buffer, 7).subarray(0, 32_000);
    const write = (i: number): SendWr => ({
      ...{ opcode: WrOpcode.RDMA_WRITE, sgList: from.slice(320 * i, 320), remote: remote.slice(320 * i, 320) },
    });
    await a.batch(Array.from({ length: 40 }, (_, i) => write(i)));
    await a.scope((scope) => {
      for (let i = 40; i < 70; i++) void scope.write(from.slice(320 * i, 320), remote.slice(320 * i, 320));
    });
    const rest = Array.from({ length: 30 }, (_, i) => [320 * (70 + i), 320] as const);
    for (const at of rest) await a.write(from.slice(...at), remote.slice(...at), { signaled: false });
    await a.read(from.slice(60_000, 8), remote.slice(31_992, 8));
    expect(to.buffer.subarray(0, 32_000).equals(sent)).toBe(true);
    expect(from.buffer.subarray(60_000, 60_008).equals(sent.subarray(31_992))).toBe(true);
    const abort = new AbortController();
    const given = rejection(b.recv(to.slice(0, 8), { signal: abort.signal }));
    abort.abort(new Error('enough'));
    expect((await given).message).toBe('enough');
    // It takes the message all the same.
    await a.send(from.slice(0, 8));
    // What was sent completes first, and the end is no failure.
    const writes = Array.from({ length: 40 }, (_, i) => a.write(from.slice(i, 8), remote.slice(40_000 + 8 * i, 8)));
    await close(a);
    await Promise.all(writes);
    expect(await a.closed).toBeUndefined();
    expect(await within(b.closed, 'the end')).toMatchObject({ code: 'ERR_RDMA_PEER_LEFT' });
    expect(to.buffer.subarray(40_312, 40_320).equals(sent.subarray(39, 47))).toBe(true);
    await close(b);
  });

  it('ends the connection for what InfiniBand answers, and the errors say so', async () => {
    using ends = new Ends();
    const refusals: [what: string, begin: (a: Endpoint) => Promise<unknown>][] = [
      ['a message without a receive', (a) => a.send(ends.a.slice(0, 64))],
      [
        'a key that is none',
        (a) => a.write(ends.a.slice(0, 64), new RemoteRegion({ ...ends.b.remote(), rkey: 0xdead00 }).slice(0, 64)),
      ],
    ];
    for (const [what, begin] of refusals) {
      const [a, b] = await ends.connect();
      const waiting = rejection(a.recv(ends.a.slice(0, 64)));
      // It has left, which is all that is promised, or the end came before it had.
      await begin(a).catch((error: Error) => expect(error.message).toContain('iWARP has no answer'));
      const text = 'iWARP has no answer for a message without a receive, or for a key, range or right that is refused';
      expect((await waiting).message, what).toContain(text);
      expect(await within(a.closed, what)).toBeInstanceOf(Error);
      expect(await within(b.closed, what)).toBeInstanceOf(Error);
      await close(a, b);
    }
  });

  it('settles what is posted while the peer leaves', async () => {
    using ends = new Ends();
    const [a, b] = await ends.connect();
    const leaving = b.close();
    const outcomes: Promise<string>[] = [];
    const outcome = (operation: Promise<unknown>) =>
      operation.then(
        () => 'done',
        (error: { statusName?: string }) => error.statusName as string,
      );
    let isOver = false;
    void a.closed.then(() => {
      isOver = true;
    });
    await until(() => {
      if (a.qp.sendsInFlight < 100) outcomes.push(outcome(a.send(ends.a.slice(0, 4))));
      if (a.qp.recvsInFlight < 100) outcomes.push(outcome(a.recv(ends.a.slice(64, 4))));
      return isOver;
    }, 'the end');
    await leaving;
    const all = await within(Promise.all(outcomes), 'what was posted');
    expect(new Set(all.filter((each) => each !== 'done'))).toEqual(new Set(['WR_FLUSH_ERR']));
    expect(await a.closed).toMatchObject({ code: 'ERR_RDMA_PEER_LEFT' });
    await close(a);
  });

  it('rejects with what was sent along, and says when nobody listens', async () => {
    using ends = new Ends();
    const listener = await listen({ port: 0, host: addressB });
    const to = { pd: ends.pdA, host: addressB, localAddress: addressA, port: listener.port };
    const refused = rejection(connect({ ...to, timeoutMs }));
    (await listener.getRequest(soon())).reject(Buffer.from('full'));
    const error = (await refused) as CmError;
    expect(error).toBeInstanceOf(CmError);
    expect(error).toMatchObject({ code: 'ECONNREFUSED', eventName: 'REJECTED' });
    expect(error.privateData.toString()).toBe('full');
    await listener.close();
    const nobody = await rejection(connect({ ...to, timeoutMs }));
    expect(nobody).toBeInstanceOf(RdmaError);
    expect(nobody).toMatchObject({ code: 'ECONNREFUSED', syscall: 'rdma_connect' });
  });

  it('is pinged: by a listener, by one that rejects, and where nobody listens', async () => {
    using ends = new Ends();
    const listener = await listen({ port: 0, host: addressB });
    const { port } = listener;
    const pinged = async (count: number) => {
      const results: PingResult[] = [];
      const to = { host: addressB, localAddress: addressA, port, count, intervalMs: 10, timeoutMs };
      for await (const result of ping({ ...to, signal: soon().signal, onBegin: () => {} })) results.push(result);
      return results.map(({ answer, device, reason, ms }) => [answer, device, reason, ms! > 0]);
    };
    const serving = (async () => {
      const endpoint = await (await listener.getRequest(soon())).accept({ pd: ends.pdB, timeoutMs });
      await within(endpoint.closed, 'the end');
      await close(endpoint);
      (await listener.getRequest(soon())).reject();
    })();
    const answered = [
      ['connected', deviceA, undefined, true],
      ['rejected', deviceA, 'ECONNRESET', true],
    ];
    expect(await pinged(2)).toEqual(answered);
    await serving;
    await listener.close();
    expect(await pinged(1)).toEqual([['no listener', deviceA, undefined, true]]);
  });

  it('connections come and go; descriptors and objects are as before', async () => {
    using ends = new Ends();
    let before = 0;
    for (let i = 0; i < 6; i++) {
      const [a, b] = await ends.connect();
      ends.a.buffer.writeUInt32LE(i);
      await Promise.all([b.recv(ends.b.slice(0, 64)), a.send(ends.a.slice(0, 4))]);
      expect(ends.b.buffer.readUInt32LE()).toBe(i);
      for (const end of i % 3 === 0 ? [a, b] : [b, a]) await within(end.close(), 'the end');
      if (i === 1) before = descriptors();
    }
    expect(descriptors()).toBeLessThanOrEqual(before);
  });

  it('carries messages both ways, whichever side opens them first', async () => {
    using ends = new Ends();
    for (const isAcceptingFirst of [true, false]) {
      const [a, b] = await ends.carriers();
      const open = (end: Endpoint) => Messages.open(end, { timeoutMs });
      const opening = (isAcceptingFirst ? [b, a] : [a, b]).map(open);
      const [first, second] = (await within(Promise.all(opening), 'both')) as [Messages, Messages];
      const sizes = [0, 1, 1008, 1009, 70_000, 5];
      const send = (messages: Messages, seed: number) =>
        Promise.all(sizes.map((size, i) => messages.send(fill(Buffer.alloc(size), seed + i))));
      const take = async (messages: Messages, seed: number) => {
        for (const [i, size] of sizes.entries()) {
          using message = await messages.receive(soon());
          expect(message?.data.equals(fill(Buffer.alloc(size), seed + i))).toBe(true);
        }
      };
      await within(Promise.all([send(first, 1), take(second, 1), send(second, 50), take(first, 50)]), 'the messages');
      await within(Promise.all([first.close(), second.close()]), 'the end of the messages');
    }
  });

  it('carries a stream, and calls', async () => {
    using ends = new Ends();
    const [a, b] = await ends.carriers();
    const streams = Promise.all([a, b].map((end) => RdmaSocket.open(end, { timeoutMs })));
    const [from, to] = (await within(streams, 'the stream')) as [RdmaSocket, RdmaSocket];
    // Its queue pair knows no addresses.
    expect([from.remoteAddress, from.localAddress, from.remoteFamily, from.address()]).toEqual([
      ...[undefined, undefined, undefined],
      {},
    ]);
    const bytes = fill(Buffer.alloc(100_001), 5);
    from.end(bytes);
    expect((await within(buffer(to), 'the bytes')).equals(bytes)).toBe(true);
    to.end();
    await until(() => from.destroyed && to.destroyed, 'the end of the stream');

    const [c, d] = await ends.carriers();
    const handlers = { add: ({ x, y }: { x: number; y: number }) => x + y };
    type Adder = { add(params: { x: number; y: number }): number };
    const opening = Promise.all([
      Calls.open<Adder>(c, { timeoutMs }),
      Calls.open<Record<never, never>, Adder>(d, { timeoutMs, handlers }),
    ]);
    const [caller, answerer] = await within(opening, 'the calls');
    expect((await within(caller.call('add', { x: 3, y: 4 }), 'the answer')).result).toBe(7);
    await within(Promise.all([caller.close(), answerer.close()]), 'the end of the calls');
  });
});
