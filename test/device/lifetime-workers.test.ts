import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { MessageChannel, receiveMessageOnPort, Worker } from 'node:worker_threads';
import { describe, expect, it } from 'vitest';
import * as gpu from '../../lib/gpu/index.ts';
import { connectFd, listenFd } from '../../lib/gpu/index.ts';
import * as api from '../../lib/index.ts';
import {
  BufferPool,
  createEventChannel,
  Endpoint,
  Mlx5dvDcType,
  MwType,
  mlx5dv,
  QpType,
  RemoteRegion,
  type RemoteRegionToken,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import { binding } from '../../lib/native/binding.ts';
import { childPath } from './children.ts';
import { exporters } from './dmabuf.ts';
import {
  completion,
  descriptors,
  deviceA,
  deviceB,
  expectNoLeaks,
  isRxe,
  openSide,
  Pair,
  thrown,
  until,
  within,
} from './fixture.ts';

expectNoLeaks();

const start = (stage: string, more: object = {}): Worker =>
  new Worker(childPath('worker'), { workerData: { deviceA, deviceB, stage, ...more } });

/** The first message of a worker; its error where it fails instead. */
function message(worker: Worker, what: string): Promise<unknown> {
  return within(
    new Promise((resolve, reject) => {
      worker.once('message', resolve);
      worker.once('error', reject);
    }),
    what,
  );
}

/** Writes from a to b and looks at the bytes: the process, the devices and the addon are in order. */
async function expectHealthy(): Promise<void> {
  using pair = await Pair.connect();
  pair.a.mr.buffer.write('healthy');
  pair.a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: pair.a.mr.slice(0, 7), remote: pair.remote.slice() });
  expect((await completion(pair.a.cq)).status).toBe(WcStatus.SUCCESS);
  expect(pair.b.mr.buffer.toString('latin1', 0, 7)).toBe('healthy');
}

describe('a worker thread', () => {
  // A worker takes seconds to start in an emulated VM: there one is at all the stages that have what the others have, and at
  // those of the connection manager, which only that kernel has. The last are where something is under way.
  const stages = isRxe
    ? ['in-flight,cm-connected,cm-connecting,cm-resolving,mr-pending,polling']
    : ['opened', 'waiting', 'mr-pending', 'in-flight', 'polling'];
  // librdmacm keeps the devices that it has opened: one descriptor each for commands and for events.
  const kept = isRxe ? 2 * 2 : 0;

  it.each(stages)('that is terminated at the stage "%s" leaves nothing behind', async (stage) => {
    const before = descriptors();
    const worker = start(stage);
    expect(await message(worker, `the stage ${stage}`)).toBe(stage);
    expect(await within(worker.terminate(), 'the termination')).toBe(1);
    await until(() => descriptors() <= before + kept, `the ${descriptors()} descriptors go back to ${before}`);
    await expectHealthy();
  });

  // The last has flows, receive work queues and XRC, which Soft-RoCE lacks. There one does the others all at the same time.
  it.each(isRxe ? ['events,registering,creating'] : ['events', 'registering', 'creating', 'kinds'])(
    'may be terminated at any moment of "%s"',
    async (stage) => {
      const before = descriptors();
      // Where it is when the termination comes is another place each time.
      const rounds = Array.from({ length: isRxe ? 1 : 8 }, (_, i) => 5 + i);
      for (const round of rounds) {
        const worker = start(stage, { rounds: round });
        expect(await message(worker, stage)).toBe(stage);
        expect(await within(worker.terminate(), 'the termination')).toBe(1);
      }
      await until(() => descriptors() <= before, 'the descriptors go back');
      await expectHealthy();
    },
  );

  it('works beside others and the main thread, each with its own objects', async () => {
    const before = descriptors();
    const rounds = isRxe ? 20 : 200;
    const workers = Array.from({ length: isRxe ? 2 : 4 }, (_, i) => start('work', { rounds, seed: 1000 * i }));
    const results = workers.map((worker, i) => message(worker, `worker ${i}`));
    const exits = workers.map((worker) => new Promise((resolve) => worker.once('exit', resolve)));
    using pair = await Pair.connect();
    for (let i = 0; i < rounds; i++) {
      pair.a.mr.buffer.writeUInt32LE(i + 7, 0);
      pair.a.qp.postSend({
        opcode: WrOpcode.RDMA_WRITE,
        sgList: pair.a.mr.slice(0, 4),
        remote: pair.remote.slice(4 * i),
      });
      expect((await completion(pair.a.cq)).status).toBe(WcStatus.SUCCESS);
      expect(pair.b.mr.buffer.readUInt32LE(4 * i)).toBe(i + 7);
    }
    for (const result of await Promise.all(results)) {
      expect(result).toEqual({ isRight: true, census: { open: 0, leaked: 0 } });
    }
    // They end by themselves: nothing of theirs keeps them alive.
    await within(Promise.all(exits), 'the exits');
    pair[Symbol.dispose]();
    await until(() => descriptors() <= before, 'the descriptors go back');
  });

  it.skipIf(isRxe)('imports what another thread has made, by its numbers', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    const { addr, access, nativeHandle: mrHandle } = b.mr;
    const numbers = { cmdFd: b.context.cmdFd, pdHandle: b.pd.nativeHandle, mrHandle, addr, access };
    const worker = start('importing', numbers);
    const { found, made } = (await message(worker, 'the imports')) as {
      found: RemoteRegionToken;
      made: RemoteRegionToken;
    };
    expect(found).toEqual(b.mr.remote());
    a.mr.buffer.write('to memory');
    for (const token of [found, made]) {
      const remote = new RemoteRegion(token).slice(0, 9);
      a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 9), remote });
      expect((await completion(a.cq)).status).toBe(WcStatus.SUCCESS);
    }
    expect(b.mr.buffer.toString('latin1', 0, 9)).toBe('to memory');
    const exit = new Promise((resolve) => worker.once('exit', resolve));
    worker.postMessage('look');
    expect(await message(worker, 'the look')).toEqual({ text: 'to memory', census: { open: 0, leaked: 0 } });
    await within(exit, 'the exit');
    // What was imported is let go of there, and goes on here.
    expect([b.pd.closed, b.mr.closed]).toEqual([false, false]);
    a.qp.postSend({
      opcode: WrOpcode.RDMA_WRITE,
      sgList: a.mr.slice(0, 9),
      remote: new RemoteRegion(found).slice(64, 9),
    });
    expect((await completion(a.cq)).status).toBe(WcStatus.SUCCESS);
    expect(b.mr.buffer.toString('latin1', 64, 73)).toBe('to memory');
  });
});

describe('an object of verbs', () => {
  it('does not cross to another thread, and the error says which one it was', async () => {
    using pair = await Pair.connect();
    const { context, pd, cq, qp, mr } = pair.a;
    const device = { length: 64 };
    const closings: (() => void)[] = [];
    const own = <T extends api.Resource>(object: T, options = {}): T => {
      closings.push(() => object.close(options));
      return object;
    };
    const folder = mkdtempSync(join(tmpdir(), 'node-rdma-crossing-'));
    const listener = own(listenFd(join(folder, 'socket')));
    const pool = new BufferPool(pd, { bufferBytes: 64, maxBuffers: 1 });
    const buffer = await pool.acquire();
    qp.postSend({ opcode: WrOpcode.RDMA_WRITE, remote: pair.remote.slice() });
    await completion(cq);
    const made: Record<string, () => unknown> = {
      BufferPool: () => pool,
      PoolBuffer: () => buffer,
      AddressHandle: () =>
        pd.createAh({ grh: { dgid: context.selectGid().gid, sgidIndex: context.selectGid().gidIndex } }),
      CompletionChannel: () => context.createCompChannel(),
      CompletionQueue: () => cq,
      CompletionQueueEx: () => context.createCqEx(16),
      Context: () => context,
      Endpoint: () => new Endpoint(qp),
      MemoryRegion: () => mr,
      MemorySlice: () => mr.slice(),
      MemoryWindow: () => pd.allocMw(MwType.MW_TYPE_1),
      ProtectionDomain: () => pd,
      QueuePair: () => qp,
      RecvList: () => qp.prepareRecv({}),
      RemoteRegion: () => pair.remote,
      RemoteSlice: () => pair.remote.slice(),
      SendList: () => qp.prepareSend({ opcode: WrOpcode.SEND }),
      SharedReceiveQueue: () => pd.createSrq(),
      'completion of at()': () => cq.at(0),
      DmaBuf: () => own(exporters[0]![1](4096)),
      FdListener: () => listener,
      FdChannel: () => own(connectFd(listener.path)),
    };
    // What one of the backends lacks, the other shows.
    const onRxe: typeof made = {
      EventChannel: () => own(createEventChannel(), { cascade: true }),
      CmId: () => own(createEventChannel(), { cascade: true }).createId(),
    };
    const wq = () => context.createWq({ pd, cq: context.createCq(128) });
    const table = () => context.createRwqIndTable([wq()]);
    const rss = () =>
      pd.createQp({ rwqIndTbl: table(), rxHashConf: { rxHashKey: Buffer.alloc(40), rxHashFieldsMask: 0 } });
    const dct = { dcType: Mlx5dvDcType.DCT, dctAccessKey: 1n };
    const onModel: typeof made = {
      Counters: () => context.createCounters(),
      DeviceMemory: () => context.allocDm(device),
      ImplicitRegion: () => pd.regImplicitMr(),
      NullRegion: () => pd.allocNullMr(),
      ReceiveWorkQueue: wq,
      RwqIndTable: table,
      RssQueuePair: rss,
      Flow: () => rss().createFlow({}),
      ThreadDomain: () => context.allocTd(),
      XrcDomain: () => context.openXrcd(),
      XrcRecvQueuePair: () => context.createQp({ qpType: QpType.XRC_RECV, xrcd: context.openXrcd() }),
      DctQueuePair: () => mlx5dv.createQp(pd, { sendCq: context.createCq(128), srq: pd.createSrq() }, dct),
    };
    // An initiator is a QueuePair like any other.
    const dci = isRxe ? [] : [mlx5dv.createQp(pd, { sendCq: context.createCq(128) }, { dcType: Mlx5dvDcType.DCI })];
    const shown: [string, unknown][] = Object.entries({ ...made, ...(isRxe ? onRxe : onModel) }).map(([name, make]) => [
      name,
      make(),
    ]);
    for (const qp of dci) shown.push(['QueuePair', qp]);
    // Each class of this package is among them, but for those that only others are made of; gpu.test.ts has the last one.
    const classes = Object.entries({ ...api, ...api.mlx5dv, ...gpu }).filter(
      ([, value]) =>
        typeof value === 'function' && (value as { prototype?: unknown }).prototype instanceof api.Resource,
    );
    expect(classes.length).toBeGreaterThan(25);
    const known = [...Object.keys({ ...made, ...onRxe, ...onModel }), 'DeviceQueries', 'AnyQueuePair', 'ReceiveQueue'];
    expect(classes.map(([name]) => name).filter((name) => !known.includes(name))).toEqual(['GpuBuffer']);

    const { port1, port2 } = new MessageChannel();
    for (const [name, object] of shown) {
      const refused = {
        name: 'DataCloneError',
        message: expect.stringContaining(`this ${name} belongs to the thread`),
      };
      expect(
        thrown(() => port1.postMessage(object)),
        name,
      ).toMatchObject(refused);
      expect(
        thrown(() => structuredClone({ deep: [object] })),
        name,
      ).toMatchObject(refused);
    }
    expect(thrown(() => new Worker('', { eval: true, workerData: qp })).name).toBe('DataCloneError');
    expect(receiveMessageOnPort(port2)).toBeUndefined();
    port1.close();
    rmSync(folder, { recursive: true });
    buffer.release();
    pool.close();
    for (const close of closings.reverse()) close();
  });

  it('keeps its memory: what crosses of mr.buffer is a copy', () => {
    const side = openSide(deviceA);
    const { buffer } = side.mr;
    buffer.write('bytes');
    const copy = structuredClone(buffer);
    buffer.write('other');
    expect(Buffer.from(copy).toString('latin1', 0, 5)).toBe('bytes');
    expect(copy.length).toBe(buffer.length);
    side.context.close({ cascade: true });
  });

  it('cannot be made of a handle that crossed', () => {
    const side = openSide(deviceA);
    for (const handle of [side.context.handle, side.pd.handle, side.cq.handle]) {
      const clone = structuredClone(handle);
      expect(thrown(() => binding().queryDevice(clone as never)).code).toBe('ERR_INVALID_ARG_TYPE');
      expect(thrown(() => binding().allocMrSync(clone as never, 64, 1, false, 0n)).code).toBe('ERR_INVALID_ARG_TYPE');
    }
    side.context.close({ cascade: true });
  });

  it('gives tokens that may cross, and mean the same memory there', async () => {
    using pair = await Pair.connect();
    const token = structuredClone(pair.b.mr.remote());
    pair.b.mr.buffer.write('token');
    const remote = new RemoteRegion(token).slice(0, 5);
    pair.a.qp.postSend({ opcode: WrOpcode.RDMA_READ, sgList: pair.a.mr.slice(0, 5), remote });
    await completion(pair.a.cq);
    expect(pair.a.mr.buffer.toString('latin1', 0, 5)).toBe('token');
  });
});
