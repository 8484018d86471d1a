/** Endpoints: what waits for its turn, batches, scopes, options of operations, and how it all ends. */
import { describe, expect, it, vi } from 'vitest';
import {
  AccessFlags,
  type Endpoint,
  EventType,
  type MemoryRegion,
  QpState,
  QueueFullError,
  RdmaClosedError,
  RdmaQpFailedError,
  RemoteRegion,
  type SendWr,
  type WorkCompletionError,
  WrOpcode,
} from '../../lib/index.ts';
import { Ends } from './endpoints.ts';
import { expectNoLeaks, fill, isRxe, thrown, within } from './fixture.ts';

expectNoLeaks();

const shallow = { cap: { maxSendWr: 4, maxRecvWr: 4 } };
const { RDMA_WRITE, SEND } = WrOpcode;

/** What a promise rejects with. */
const rejection = (promise: Promise<unknown>): Promise<Error & { code?: string; statusName?: string }> =>
  within(
    promise.then(
      () => new Error('it did not reject'),
      (error) => error,
    ),
    'a rejection',
  );

/** Counts the completions of an endpoint from now on. */
function counted(endpoint: Endpoint): () => number {
  const poll = vi.spyOn(endpoint.qp.sendCq, 'poll');
  return () => poll.mock.results.reduce((sum, { value }) => sum + (value as number), 0);
}

describe('operations beyond the depth of the queue', () => {
  it('wait for their turn in both directions, in the order of the calls, with few completions', async () => {
    await using ends = await Ends.connect({ a: { cap: { maxSendWr: 16 } }, b: shallow });
    const { a, b, mrA, mrB } = ends;
    const order: number[] = [];
    const completions = counted(a);
    const count = 200;
    const received = Array.from({ length: count }, (_, i) => b.recv(mrB.slice(i * 64, 64)));
    fill(mrA.buffer, 4);
    const sends = Array.from({ length: count }, async (_, i) => {
      await a.send(mrA.slice(i * 64, 1 + (i % 60)));
      order.push(i);
    });
    expect(a.qp.sendsInFlight).toBe(16);
    await within(Promise.all(sends), 'the sends');
    expect(order).toEqual(Array.from({ length: count }, (_, i) => i));
    // Sixteen were posted at once, each with a completion; of the others one in four has one.
    expect(completions()).toBeLessThan(count / 2);
    const lengths = (await within(Promise.all(received), 'the receives')).map(({ byteLen }) => byteLen);
    expect(lengths).toEqual(Array.from({ length: count }, (_, i) => 1 + (i % 60)));
    for (let i = 0; i < count; i++) {
      const [from, to] = [i * 64, i * 64 + 1 + (i % 60)];
      expect(mrB.buffer.subarray(from, to).equals(mrA.buffer.subarray(from, to))).toBe(true);
    }
    expect(a.qp.sendsInFlight).toBe(0);
  });

  it('are bounded by maxWaiting, checked at once, and hold their memory', async () => {
    await using ends = await Ends.connect({ a: { ...shallow, maxWaiting: 2 }, b: {} });
    const { a, b, mrA, mrB, pdA, remoteB } = ends;
    const other = pdA.allocSync(4096);
    // No receive of b's: they stay under way.
    const sends = Array.from({ length: 4 }, () => a.send(mrA.slice(0, 8)));
    mrA.buffer.fill(7, 0, 8);
    const write = a.write(other.slice(0, 8), remoteB.slice(512));
    const settled = Promise.allSettled([...sends, write]);
    expect(await rejection(a.write(mrA.slice(0, 8), undefined as never))).toMatchObject({
      code: 'ERR_INVALID_ARG_TYPE',
    });
    const reason = new Error('enough');
    const controller = new AbortController();
    const aborted = rejection(a.write(mrA.slice(0, 8), remoteB.slice(1024), { signal: controller.signal }));
    const full = await rejection(a.read(mrA.slice(0, 8), remoteB.slice()));
    expect(full).toBeInstanceOf(QueueFullError);
    expect(full).toMatchObject({ code: 'ERR_RDMA_QUEUE_FULL', inFlight: 4, waiting: 2 });
    expect(thrown(() => other.close())).toMatchObject({ code: 'EBUSY' });
    // One that is not posted yet is not executed.
    controller.abort(reason);
    expect(await aborted).toBe(reason);
    mrB.buffer.fill(0xee);
    await within(Promise.all([b.recv(), b.recv(), b.recv(), b.recv()].map((recv) => recv.catch(() => {}))), 'receives');
    await within(settled, 'the sends and the write');
    other.close();
  });

  it('are not taken at all with maxWaiting 0, and the next ones are', async () => {
    await using ends = await Ends.connect({ a: { ...shallow, maxWaiting: 0 } });
    const { a, b, mrA, mrB, remoteB } = ends;
    const receives = Array.from({ length: 4 }, () => a.recv(mrA.slice(0, 8)));
    expect(await rejection(a.recv(mrA.slice(0, 8)))).toMatchObject({ inFlight: 4, waiting: 0 });
    await a.write(mrA.slice(0, 8), remoteB.slice());
    for (let i = 0; i < 4; i++) await b.send(mrB.slice(0, 8));
    await within(Promise.all(receives), 'the receives');
    const last = a.recv(mrA.slice(0, 8));
    await b.send(mrB.slice(0, 3));
    expect(await last).toMatchObject({ byteLen: 3 });
  });
});

describe('endpoint.batch', () => {
  const writes = (mr: MemoryRegion, remote: RemoteRegion, count: number) =>
    Array.from({ length: count }, (_, i) => ({
      opcode: RDMA_WRITE,
      sgList: mr.slice(i * 32, 32),
      remote: remote.slice(i * 32, 32),
    }));

  it.each([0, 3, 100, 300])(
    'executes %i requests and one in their order with one promise and few completions',
    async (count) => {
      await using ends = await Ends.connect({ a: { cap: { maxSendSge: 2 } } });
      const { a, b, mrA, mrB, remoteB } = ends;
      const pattern = fill(mrA.buffer, count);
      mrB.buffer.fill(0);
      const completions = counted(a);
      const received = b.recv(mrB.slice(60_000, 64));
      await a.batch([...writes(mrA, remoteB, count), { opcode: SEND, sgList: [mrA.slice(0, 5), mrA.slice(9, 1)] }]);
      expect(completions()).toBeLessThanOrEqual(1 + count / 16);
      expect(mrB.buffer.subarray(0, count * 32).equals(pattern.subarray(0, count * 32))).toBe(true);
      expect(await received).toEqual({ byteLen: 6, immData: undefined });
      await a.batch([]);
    },
  );

  it('executes nothing when a request is wrong, whether there is room for it or not', async () => {
    await using ends = await Ends.connect({ a: shallow });
    const { a, mrA, mrB, remoteB } = ends;
    mrB.buffer.fill(0);
    for (const count of [2, 50]) {
      const wrong = { opcode: RDMA_WRITE, sgList: mrA.slice(0, 8) };
      const error = await rejection(a.batch([...writes(mrA, remoteB, count), wrong]));
      expect(error.message).toMatch(new RegExp(`^wrs\\[${count}\\]\\.remote must be`));
      expect(a.qp.sendsInFlight).toBe(0);
    }
    expect(await rejection(a.batch([{ ...writes(mrA, remoteB, 1)[0], wrId: 1 } as SendWr]))).toMatchObject({
      message: 'wrs[0].wrId: an endpoint numbers its requests itself',
    });
    expect((await rejection(a.batch({} as never))).message).toMatch(/^wrs must be an array/);
    expect((await rejection(a.batch([null as never]))).message).toMatch(/^wrs\[0\] must be an object/);
    expect(mrB.buffer.equals(Buffer.alloc(mrB.length))).toBe(true);
  });

  it('rejects with the first failure, once all are settled', async () => {
    await using ends = await Ends.connect();
    const { a, mrA, remoteB } = ends;
    const wrong = new RemoteRegion({ ...ends.mrB.remote(), rkey: ends.mrB.rkey ^ 0x5500 });
    const wrs = writes(mrA, remoteB, 40);
    wrs[20]!.remote = wrong.slice(640, 32);
    const error = (await rejection(a.batch(wrs))) as WorkCompletionError;
    expect(error.statusName).toBe('REM_ACCESS_ERR');
    expect(error.operation).toBe(`RDMA_WRITE of a batch of 32 bytes on queue pair 0x${a.qp.qpNum.toString(16)}`);
    expect(a.qp.sendsInFlight).toBe(0);
    expect(await a.closed).toBe(error);
  });
});

describe('endpoint.scope', () => {
  it('is not left before all that was begun in it has completed', async () => {
    await using ends = await Ends.connect();
    const { a, b, mrA, mrB, remoteB } = ends;
    const pattern = fill(mrA.buffer, 8);
    const value = await a.scope(async (s) => {
      for (let i = 0; i < 50; i++) void s.write(mrA.slice(i * 512, 512), remoteB.slice(i * 512), { signaled: i > 20 });
      void s.recv(mrA.slice(60_000, 64));
      void b.send(mrB.slice(0, 3));
      return 'done';
    });
    expect(value).toBe('done');
    expect([a.qp.sendsInFlight, a.qp.recvsInFlight]).toEqual([0, 0]);
    expect(mrB.buffer.subarray(0, 25_600).equals(pattern.subarray(0, 25_600))).toBe(true);
  });

  it('nor when its body throws, and tells of what nobody looked at', async () => {
    await using ends = await Ends.connect();
    const { a, mrA, remoteB } = ends;
    const oops = new Error('oops');
    let kept: Parameters<Parameters<Endpoint['scope']>[0]>[0] | undefined;
    const thrownBy = await rejection(
      a.scope((s) => {
        kept = s;
        for (let i = 0; i < 20; i++) void s.write(mrA.slice(0, 4096), remoteB.slice());
        throw oops;
      }),
    );
    expect(thrownBy).toBe(oops);
    expect(a.qp.sendsInFlight).toBe(0);
    expect(await rejection(kept!.send())).toMatchObject({ code: 'ERR_INVALID_STATE' });
    expect((await rejection(a.scope(7 as never))).message).toMatch(/body must be a function/);

    // An abort rejects the promise; the memory is the device's until the completion, and so is the scope.
    const reason = new Error('enough');
    const controller = new AbortController();
    const left = rejection(
      a.scope(async (s) => {
        const recv = s.recv(mrA.slice(0, 64), { signal: controller.signal });
        controller.abort(reason);
        expect(await rejection(recv)).toBe(reason);
      }),
    );
    expect(await Promise.race([left, new Promise((resolve) => setTimeout(resolve, 20, 'still inside'))])).toBe(
      'still inside',
    );
    const wrong = new RemoteRegion({ ...ends.mrB.remote(), rkey: ends.mrB.rkey ^ 0x5500 });
    const failed = rejection(a.scope((s) => void s.write(mrA.slice(0, 8), wrong.slice())));
    expect(await failed).toMatchObject({ statusName: 'REM_ACCESS_ERR' });
    expect(await left).toMatchObject({ statusName: 'WR_FLUSH_ERR' });
  });
});

describe('options of operations', () => {
  it('signaled: false is posted with the others of its turn, and waits for room', async () => {
    await using ends = await Ends.connect({ a: { cap: { maxSendWr: 16 } } });
    const { a, mrA, mrB, remoteB } = ends;
    const pattern = fill(mrA.buffer, 5);
    mrB.buffer.fill(0);
    const completions = counted(a);
    const count = 400;
    const posted = Array.from({ length: count }, (_, i) =>
      a.write(mrA.slice(i * 100, 100), remoteB.slice(i * 100), { signaled: false }),
    );
    await within(Promise.all(posted), 'the posting');
    await a.write(mrA.slice(0, 4), remoteB.slice());
    expect(mrB.buffer.subarray(0, count * 100).equals(pattern.subarray(0, count * 100))).toBe(true);
    expect(completions()).toBeLessThan(count / 2);
    expect(a.qp.sendsInFlight).toBe(0);
    // What nobody waits for is told all the same when it is a mistake, and does not hold up the others.
    const wrong = rejection(a.write(mrA.slice(0, 8), undefined as never, { signaled: false }));
    const right = a.write(mrA.slice(0, 8), remoteB.slice(), { signaled: false });
    expect((await wrong).message).toMatch(/remote must be/);
    await right;
    const atomic = a.fetchAdd(mrA.slice(0, 8), remoteB.slice(), 1n, { signaled: false });
    expect((await rejection(atomic)).message).toMatch(/options\.signaled/);
    expect((await rejection(a.send(mrA.slice(0, 4), { signaled: 1 as never }))).message).toMatch(/options\.signaled/);
  });

  it('signaled: false tells of a failure by closed', async () => {
    await using ends = await Ends.connect();
    const { a, mrA } = ends;
    const wrong = new RemoteRegion({ ...ends.mrB.remote(), rkey: ends.mrB.rkey ^ 0x5500 });
    await a.write(mrA.slice(0, 8), wrong.slice(), { signaled: false });
    expect(await within(a.closed, 'the end')).toMatchObject({ statusName: 'REM_ACCESS_ERR' });
  });

  it('signal may be of many operations, without a warning', async () => {
    await using ends = await Ends.connect();
    const { a, mrA } = ends;
    const warnings: Error[] = [];
    const warn = (warning: Error) => warnings.push(warning);
    process.on('warning', warn);
    try {
      const controller = new AbortController();
      const { signal } = controller;
      const recvs = Array.from({ length: 20 }, () => rejection(a.recv(mrA.slice(0, 8), { signal })));
      const reason = new Error('enough');
      controller.abort(reason);
      expect(new Set(await Promise.all(recvs))).toEqual(new Set([reason]));
      // Node tells of them in another turn.
      await new Promise((resolve) => setImmediate(resolve));
    } finally {
      process.off('warning', warn);
    }
    expect(warnings).toEqual([]);
  });

  it('signal rejects the promise, and the memory stays held until the completion', async () => {
    await using ends = await Ends.connect();
    const { a, b, pdA, mrB, remoteB, mrA } = ends;
    const own = pdA.allocSync(4096);
    const reason = new Error('enough');
    expect(await rejection(a.send(own.slice(0, 8), { signal: AbortSignal.abort(reason) }))).toBe(reason);
    expect(await rejection(a.recv(own.slice(), { signal: AbortSignal.abort(reason) }))).toBe(reason);
    expect(await rejection(a.batch([{ opcode: SEND }], { signal: AbortSignal.abort(reason) }))).toBe(reason);
    expect([a.qp.sendsInFlight, a.qp.recvsInFlight]).toEqual([0, 0]);

    const controller = new AbortController();
    const receive = rejection(a.recv(own.slice(0, 64), { signal: controller.signal }));
    const next = a.recv(mrA.slice(0, 64));
    controller.abort(reason);
    expect(await receive).toBe(reason);
    expect(thrown(() => own.close())).toMatchObject({ code: 'EBUSY' });
    mrB.buffer.write('unseen');
    await b.send(mrB.slice(0, 6));
    await b.send(mrB.slice(0, 2));
    // The one that was aborted has taken the first message.
    expect(await within(next, 'the receive')).toMatchObject({ byteLen: 2 });
    expect(own.buffer.toString('latin1', 0, 6)).toBe('unseen');
    own.close();
    // One that ends first leaves nothing behind at the signal.
    const calm = new AbortController();
    await a.write(mrA.slice(0, 8), remoteB.slice(), { signal: calm.signal });
    calm.abort(reason);
    expect((await rejection(a.send(mrA.slice(0, 8), { signal: {} as never }))).message).toMatch(/options\.signal/);
  });
});

describe('a failure', () => {
  it('settles everything once and in order, what waits too, and says why', async () => {
    await using ends = await Ends.connect({ a: { cap: { maxSendWr: 32, maxRecvWr: 8 } } });
    const { a, mrA, remoteB } = ends;
    const wrong = new RemoteRegion({ ...ends.mrB.remote(), rkey: ends.mrB.rkey ^ 0x5500 });
    const settled: [string, number, string][] = [];
    const note = (promise: Promise<unknown>, kind: string, i: number) =>
      promise.then(
        () => void settled.push([kind, i, 'SUCCESS']),
        (error: WorkCompletionError) => void settled.push([kind, i, error.statusName]),
      );
    const all: Promise<unknown>[] = [];
    for (let i = 0; i < 1000; i++) {
      const remote = i === 40 ? wrong.slice() : remoteB.slice();
      all.push(note(a.write(mrA.slice(0, 8), remote), 'write', i));
      if (i % 50 === 0) all.push(note(a.recv(mrA.slice(0, 8)), 'recv', i));
    }
    await within(Promise.all(all), 'the end of all');
    for (const kind of ['write', 'recv']) {
      const own = settled.filter(([of]) => of === kind);
      expect(own.map(([, i]) => i)).toEqual(own.map(([, i]) => i).sort((x, y) => x - y));
    }
    const writes = settled.filter(([kind]) => kind === 'write').map(([, , status]) => status);
    const expected = writes.map((_, i) => (i < 40 ? 'SUCCESS' : i === 40 ? 'REM_ACCESS_ERR' : 'WR_FLUSH_ERR'));
    expect(writes).toEqual(expected);
    expect(settled.filter(([kind]) => kind === 'recv').every(([, , status]) => status === 'WR_FLUSH_ERR')).toBe(true);
    const reason = (await a.closed) as WorkCompletionError;
    expect(reason).toMatchObject({ name: 'WorkCompletionError', statusName: 'REM_ACCESS_ERR' });
    const late = (await rejection(a.recv(mrA.slice(0, 8)))) as WorkCompletionError;
    expect(late).toMatchObject({ statusName: 'WR_FLUSH_ERR', qpNum: a.qp.qpNum });
    expect(late.causes[0]).toContain(reason.message);
  });

  it('names the key, the range and the right that was refused', async () => {
    await using ends = await Ends.connect({ access: AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ });
    const { a, mrA, mrB, remoteB } = ends;
    const error = (await rejection(a.write(mrA.slice(0, 100), remoteB.slice(64)))) as WorkCompletionError;
    expect(error.operation).toMatch(/^write of 100 bytes on queue pair 0x/);
    expect(error.message).toContain(
      `100 bytes at 0x${(mrB.addr + 64n).toString(16)} + ${mrB.length - 64} (rkey 0x${mrB.rkey.toString(16)})`,
    );
    expect(error.causes.join()).toContain('lacks REMOTE_WRITE');
    // mlx5 has codes of its own; Soft-RoCE has none.
    expect(error.vendorErr).toBe(isRxe ? 0 : 0x88);
    expect(error.message.includes('(IBV_WC_REM_ACCESS_ERR, vendor error 0x88)')).toBe(!isRxe);
  });

  it('names the slice that the device may not write to', async () => {
    await using ends = await Ends.connect();
    const readOnly = ends.pdA.allocSync(4096, { access: 0 });
    const slice = readOnly.slice(64, 100);
    const error = (await rejection(ends.a.read(slice, ends.remoteB.slice()))) as WorkCompletionError;
    expect(error.statusName).toBe('LOC_PROT_ERR');
    expect(error.causes).toEqual([
      `${slice.describe()} is not in an open region, or the region lacks LOCAL_WRITE where bytes come in`,
    ]);
    expect(error.message).toContain(`0x${(readOnly.addr + 64n).toString(16)}`);
  });

  it('names the retries of a receiver that is not ready', async () => {
    await using ends = await Ends.connect({ a: { rnrRetry: 1 } });
    const error = (await rejection(ends.a.send(ends.mrA.slice(0, 8)))) as WorkCompletionError;
    expect(error.statusName).toBe('RNR_RETRY_EXC_ERR');
    expect(error.causes[0]).toMatch(/the receiver was not ready.* 1 retries/);
  });

  it('names the GIDs, the MTU and the milliseconds of a peer that does not answer', async () => {
    await using ends = await Ends.connect({ a: { timeout: 12, retryCnt: 1 } });
    const { a, b, mrA, remoteB } = ends;
    b.qp.close();
    b.qp.sendCq.close();
    const error = (await rejection(a.write(mrA.slice(0, 8), remoteB.slice()))) as WorkCompletionError;
    expect(error.statusName).toBe('RETRY_EXC_ERR');
    const { gid, gidIndex } = a.qp.context.selectGid();
    const peer = b.qp.context.selectGid().gid;
    expect(error.causes[0]).toBe(
      `no answer from ${peer}, asked from ${gid} (GID index ${gidIndex}), where each of 2 attempts waits for 16.8 ms or some ` +
        'times that (timeout 12)',
    );
    expect(error.causes.join()).toMatch(/path MTU of \d+ bytes/);
    expect(await a.closed).toBe(error);
  });

  it('names the length of a receive that is too short', async () => {
    await using ends = await Ends.connect();
    const { a, b, mrA, mrB } = ends;
    const receive = rejection(b.recv(mrB.slice(0, 16))) as Promise<WorkCompletionError>;
    const send = (await rejection(a.send(mrA.slice(0, 100)))) as WorkCompletionError;
    // Soft-RoCE answers the latter.
    expect(send.statusName).toMatch(/^(REM_INV_REQ_ERR|REM_OP_ERR)$/);
    expect(send.causes[0]).toContain('the 100 bytes of the message');
    expect((await receive).causes[0]).toContain('16 bytes of its receive');
  });
});

// Soft-RoCE raises no such event: it leaves the receives where they are, and says nothing.
describe.runIf(!isRxe)('a request of the peer that is refused', () => {
  it('is told to who waits for nothing, and to who waits for a message', async () => {
    await using ends = await Ends.connect();
    const { a, b, mrA, mrB } = ends;
    const wrong = new RemoteRegion({ ...mrB.remote(), rkey: mrB.rkey ^ 0x5500 });
    expect(await rejection(a.write(mrA.slice(0, 8), wrong.slice()))).toMatchObject({ statusName: 'REM_ACCESS_ERR' });
    const reason = await within(b.closed, 'the end');
    expect(reason).toBeInstanceOf(RdmaQpFailedError);
    expect(reason).toMatchObject({ code: 'ERR_RDMA_QP_FAILED', event: EventType.QP_ACCESS_ERR });
    const late = (await rejection(b.recv(mrB.slice(0, 8)))) as WorkCompletionError;
    expect(late.causes[0]).toContain('QP_ACCESS_ERR');
  });

  // The completions come by one way, and the event by another.
  it.each([0, 20])('is told with the reason by receives that are flushed %i ms before it', async (ms) => {
    await using ends = await Ends.connect();
    const { a, b, mrA, mrB } = ends;
    const failed = b.qp.failed.bind(b.qp);
    b.qp.failed = (event) => void (ms > 0 ? setTimeout(failed, ms, event) : failed(event));
    const settled: number[] = [];
    const receives = Array.from({ length: 3 }, (_, i) =>
      rejection(b.recv(mrB.slice(0, 8))).finally(() => settled.push(i)),
    );
    const wrong = new RemoteRegion({ ...mrB.remote(), rkey: mrB.rkey ^ 0x5500 });
    expect(await rejection(a.write(mrA.slice(0, 8), wrong.slice()))).toMatchObject({ statusName: 'REM_ACCESS_ERR' });
    expect(await within(b.closed, 'the end')).toMatchObject({ code: 'ERR_RDMA_QP_FAILED' });
    for (const error of await within(Promise.all(receives), 'the receives')) {
      expect(error).toMatchObject({ statusName: 'WR_FLUSH_ERR' });
      expect((error as WorkCompletionError).causes[0]).toContain('QP_ACCESS_ERR');
    }
    expect(settled).toEqual([0, 1, 2]);
  });
});

describe('a queue pair that is put into the error state, which nobody tells', () => {
  it.each([false, true])('ends its endpoint with the flush; closed meanwhile: %s', async (isClosed) => {
    await using ends = await Ends.connect();
    const { b, mrB } = ends;
    const settled: number[] = [];
    const receives = Array.from({ length: 2 }, () => rejection(b.recv(mrB.slice(0, 8))));
    await b.qp.modify({ qpState: QpState.ERR });
    // Soft-RoCE flushes the receives of a queue pair that is told so twice.
    if (isRxe) await b.qp.modify({ qpState: QpState.ERR });
    if (isClosed) {
      // Some are flushed before it is closed, and some behind it.
      await new Promise((resolve) => setTimeout(resolve, 20));
      receives.push(...Array.from({ length: 2 }, () => rejection(b.recv(mrB.slice(0, 8)))));
      for (const [i, receive] of receives.entries()) void receive.then(() => settled.push(i));
      await within(b.close(), 'the close');
      expect(settled).toEqual([0, 1, 2, 3]);
    }
    for (const error of await within(Promise.all(receives), 'the receives')) {
      expect(error).toMatchObject({ statusName: 'WR_FLUSH_ERR' });
    }
    const reason = await within(b.closed, 'the end');
    if (isClosed) expect(reason).toBeUndefined();
    else expect(reason).toMatchObject({ statusName: 'WR_FLUSH_ERR' });
  });
});

describe('endpoint.close', () => {
  it('lets what was sent complete, also what waits for its turn, and closed resolves with undefined', async () => {
    await using ends = await Ends.connect({ a: shallow });
    const { a, b, mrA, mrB, remoteB } = ends;
    const pattern = fill(mrA.buffer, 6);
    mrB.buffer.fill(0);
    const work = Array.from({ length: 40 }, (_, i) => a.write(mrA.slice(i * 512, 512), remoteB.slice(i * 512)));
    const receive = rejection(a.recv(mrA.slice(0, 8)));
    const closing = a.close();
    expect(await rejection(a.send())).toBeInstanceOf(RdmaClosedError);
    await within(Promise.all(work), 'the writes');
    expect(await receive).toMatchObject({ statusName: 'WR_FLUSH_ERR' });
    await within(closing, 'the close');
    expect(await a.closed).toBeUndefined();
    expect(mrB.buffer.subarray(0, 20_480).equals(pattern.subarray(0, 20_480))).toBe(true);
    expect(a.close()).toBe(closing);
    expect(b.qp.closed).toBe(false);
  });

  it('flushes at once with drainMs 0, and refuses wrong options', async () => {
    await using ends = await Ends.connect({ a: shallow });
    const { a, mrA } = ends;
    expect(() => a.close({ drainms: 0 } as never)).toThrow(/drainMs/);
    expect(() => a.close({ drainMs: -1 })).toThrow(/options\.drainMs/);
    // The peer has no receive.
    const work = Array.from({ length: 10 }, () => rejection(a.send(mrA.slice(0, 8))));
    const start = performance.now();
    await within(a.close({ drainMs: 0 }), 'the close');
    expect(performance.now() - start).toBeLessThan(2000);
    for (const error of await Promise.all(work)) expect(error.name).toMatch(/WorkCompletionError|RdmaClosedError/);
  });

  it('of the queue pair under an endpoint settles everything', async () => {
    await using ends = await Ends.connect();
    const { b, mrB } = ends;
    const receive = rejection(b.recv(mrB.slice(0, 8)));
    b.qp.close();
    b.qp.sendCq.close();
    expect(await receive).toBeInstanceOf(RdmaClosedError);
    expect(await b.closed).toBeInstanceOf(RdmaClosedError);
  });
});
