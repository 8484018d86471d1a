import { describe, expect, it } from 'vitest';
import {
  type CompletionQueue,
  openDevice,
  SendFlags,
  WcStatus,
  WrOpcode,
  wcStatusName,
  wcStatusStr,
} from '../../lib/index.ts';
import {
  completion,
  completions,
  connectSides,
  DEADLINE_MS,
  deviceA,
  deviceB,
  expectNoLeaks,
  isRxe,
  openSide,
  Pair,
  type Side,
  snapshot,
  thrown,
  until,
  within,
} from './fixture.ts';

expectNoLeaks();

/** Posts `count` signalled empty writes, which make `count` completions at this side and nothing at the other. */
function write(side: Side, pair: Pair, count: number, firstId = 0): void {
  const wrs = Array.from({ length: count }, (_, i) => ({
    wrId: firstId + i,
    opcode: WrOpcode.RDMA_WRITE,
    remote: pair.remote.slice(0, 0),
  }));
  side.qp.postSend(wrs);
}

/** Messages from a to b, for events of receives. */
function send(pair: Pair, count: number, sendFlags: number = SendFlags.SIGNALED): void {
  pair.b.qp.postRecv(Array.from({ length: count }, (_, i) => ({ wrId: i })));
  pair.a.qp.postSend(Array.from({ length: count }, (_, i) => ({ wrId: i, opcode: WrOpcode.SEND, sendFlags })));
}

describe('context.createCq', () => {
  it('grants at least the entries asked for', () => {
    using context = openDevice(deviceA);
    for (const cqe of [1, 2, 100, 1000]) {
      using cq = context.createCq(cqe);
      expect(cq.cqe).toBeGreaterThanOrEqual(cqe);
      expect(cq.poll()).toBe(0);
    }
    context.close({ cascade: true });
  });

  it('refuses more entries than the device has with EINVAL from ibv_create_cq', () => {
    using context = openDevice(deviceA);
    const { maxCqe } = context.queryDevice();
    expect(thrown(() => context.createCq(maxCqe + 1, { channel: null }))).toMatchObject({
      name: 'RdmaError',
      code: 'EINVAL',
      syscall: 'ibv_create_cq',
    });
    using cq = context.createCq(8, { channel: null });
    expect(cq.cqe).toBeGreaterThanOrEqual(8);
  });

  it('shares one channel among the queues of a context unless told otherwise', () => {
    using context = openDevice(deviceA);
    using own = context.createCompChannel();
    using a = context.createCq(4);
    using b = context.createCq(4);
    using c = context.createCq(4, { channel: own });
    using d = context.createCq(4, { channel: null });
    expect(a.channel).toBe(b.channel);
    expect(c.channel).toBe(own);
    expect(d.channel).toBeNull();
    expect(a.channel).not.toBe(own);
  });

  it('takes every completion vector that the device has', () => {
    using context = openDevice(deviceA);
    const vectors = Math.min(context.numCompVectors, 4);
    for (let compVector = 0; compVector < vectors; compVector++) {
      using cq = context.createCq(4, { compVector, channel: null });
      expect(cq.poll()).toBe(0);
    }
    expect(thrown(() => context.createCq(4, { compVector: context.numCompVectors })).code).toBe('ERR_OUT_OF_RANGE');
  });
});

describe('cq.poll', () => {
  it('takes what is there, at most `max`, in order and each once', async () => {
    using pair = await Pair.connect();
    const { a } = pair;
    write(a, pair, 10);
    const seen: number[] = [];
    const take = (max?: number): number => {
      const count = a.cq.poll(max);
      for (let i = 0; i < count; i++) seen.push(a.cq.at(i).wrId);
      return count;
    };
    await until(() => {
      expect(take(3)).toBeLessThanOrEqual(3);
      return seen.length === 10;
    }, 'ten completions');
    expect(seen).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    expect([take(), take(1), take(1_000_000)]).toEqual([0, 0, 0]);
    expect(a.qp.sendsInFlight).toBe(0);
  });

  it('gives one object for all entries, which shows the entry asked for', async () => {
    using pair = await Pair.connect();
    const { a } = pair;
    write(a, pair, 3, 100);
    const found: number[] = [];
    await until(() => {
      const count = a.cq.poll();
      for (let i = 0; i < count; i++) {
        const entry = a.cq.at(i);
        expect(entry).toBe(a.cq.at(0) && a.cq.at(i));
        expect(snapshot(entry)).toMatchObject({ wrId: entry.wrId, status: WcStatus.SUCCESS, qpNum: a.qp.qpNum });
        found.push(entry.wrId);
      }
      return found.length === 3;
    }, 'three completions');
    expect(found).toEqual([100, 101, 102]);
  });

  it('carries wrIds up to 2^53 - 1', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    const ids = [0, 1, 0xffff_ffff, 2 ** 32, 2 ** 32 + 1, 2 ** 52 + 3, Number.MAX_SAFE_INTEGER];
    b.qp.postRecv(ids.map((wrId) => ({ wrId })));
    a.qp.postSend(ids.map((wrId) => ({ wrId, opcode: WrOpcode.SEND })));
    expect((await completions(a.cq, ids.length)).map(({ wrId }) => wrId)).toEqual(ids);
    expect((await completions(b.cq, ids.length)).map(({ wrId }) => wrId)).toEqual(ids);
  });
});

describe('cq.at', () => {
  it('refuses an entry that the last poll did not give', async () => {
    using pair = await Pair.connect();
    const { a } = pair;
    write(a, pair, 1);
    await until(() => a.cq.poll() === 1, 'one completion');
    expect(a.cq.at(0).wrId).toBe(0);
    for (const index of [1, -1, 256, 0.5, Number.NaN, '0', undefined, 2 ** 53]) {
      const error = thrown(() => a.cq.at(index as number));
      expect(error.code, String(index)).toMatch(/^ERR_(OUT_OF_RANGE|INVALID_ARG_TYPE)$/);
      expect(error.message).toContain('index');
    }
  });
});

describe('cq.pollWc', () => {
  it('gives objects that stay as they are', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    send(pair, 2);
    const found: ReturnType<CompletionQueue['pollWc']> = [];
    await until(() => found.push(...b.cq.pollWc(1)) === 2, 'two receives');
    expect(found.map(({ wrId }) => wrId)).toEqual([0, 1]);
    expect(found[0]).not.toBe(found[1]);
    expect(Object.keys(found[0]!)).toEqual(expect.arrayContaining(['wrId', 'status', 'opcode', 'byteLen', 'qpNum']));
    await completions(a.cq, 2);
    expect(b.cq.pollWc()).toEqual([]);
  });
});

describe('cq.wait', () => {
  it('comes back with what is already there', async () => {
    using pair = await Pair.connect();
    write(pair.a, pair, 1);
    await until(() => pair.a.qp.sendsInFlight === 1, 'the post');
    expect((await completion(pair.a.cq)).status).toBe(WcStatus.SUCCESS);
  });

  it('waits for what comes later, with the event loop going on', async () => {
    using pair = await Pair.connect();
    let turns = 0;
    const waiting = pair.b.cq.wait();
    for (; turns < 20; turns++) await new Promise((resolve) => setImmediate(resolve));
    send(pair, 1);
    expect(await within(waiting, 'the wait')).toBe(1);
    expect(pair.b.cq.at(0).status).toBe(WcStatus.SUCCESS);
    await completion(pair.a.cq);
  });

  it('comes back at once when a completion arrives between the poll and the arming', async () => {
    using pair = await Pair.connect();
    // Whatever the moment at which the message arrives: none may be lost.
    for (let i = 0; i < 40; i++) {
      const waiting = pair.b.cq.wait();
      for (let turn = 0; turn < i % 4; turn++) await new Promise((resolve) => setImmediate(resolve));
      send(pair, 1);
      expect(await within(waiting, `message ${i}`)).toBe(1);
      await completion(pair.a.cq);
    }
  });

  it('rejects with the reason of its signal, and takes nothing', async () => {
    using pair = await Pair.connect();
    const reason = new Error('enough');
    await expect(pair.b.cq.wait({ signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
    const controller = new AbortController();
    const waiting = pair.b.cq.wait({ signal: controller.signal });
    controller.abort(reason);
    await expect(within(waiting, 'the abort')).rejects.toBe(reason);
    send(pair, 1);
    expect(await completion(pair.b.cq)).toMatchObject({ wrId: 0 });
    await completion(pair.a.cq);
  });

  it('can be aborted by a timeout and waited for again', async () => {
    using pair = await Pair.connect();
    await expect(pair.b.cq.wait({ signal: AbortSignal.timeout(10) })).rejects.toMatchObject({ name: 'TimeoutError' });
    send(pair, 1);
    await completion(pair.b.cq);
    await completion(pair.a.cq);
  });

  it('rejects with ERR_RDMA_CLOSED when the queue is closed meanwhile', async () => {
    using context = openDevice(deviceA);
    const cq = context.createCq(4);
    const waits = [cq.wait(), cq.wait()];
    cq.close();
    for (const wait of waits) {
      await expect(within(wait, 'the close')).rejects.toMatchObject({
        name: 'RdmaClosedError',
        code: 'ERR_RDMA_CLOSED',
      });
    }
    await expect(cq.wait()).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    context.close({ cascade: true });
  });

  it('rejects when the whole context is closed with cascade', async () => {
    const context = openDevice(deviceA);
    const waiting = context.createCq(4).wait();
    context.close({ cascade: true });
    await expect(within(waiting, 'the close')).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
  });

  it('refuses a queue without a channel, which can only be polled', async () => {
    using context = openDevice(deviceA);
    using cq = context.createCq(4, { channel: null });
    const expected = { code: 'ERR_INVALID_STATE', message: expect.stringContaining('no channel') };
    await expect(cq.wait()).rejects.toMatchObject(expected);
    await expect(cq[Symbol.asyncIterator]().next()).rejects.toMatchObject(expected);
    expect(thrown(() => cq.reqNotify())).toMatchObject(expected);
  });

  it('wakes only who waits for the queue that has something', async () => {
    using context = openDevice(deviceA);
    const pd = context.allocPd();
    using quiet = context.createCq(16);
    const a = { context, pd, cq: context.createCq(256) };
    const qp = pd.createQp({ sendCq: a.cq });
    const b = openSide(deviceB);
    const side: Side = { ...a, qp, mr: pd.allocSync(4096) };
    expect(quiet.channel).toBe(a.cq.channel);
    await connectSides(side, b);
    let isWoken = false;
    const aborter = new AbortController();
    const quietWait = quiet.wait({ signal: aborter.signal }).then(
      () => (isWoken = true),
      () => {},
    );
    const waiting = a.cq.wait();
    b.qp.postRecv({});
    qp.postSend({ opcode: WrOpcode.SEND });
    expect(await within(waiting, 'the busy queue')).toBe(1);
    await completion(b.cq);
    expect(isWoken).toBe(false);
    aborter.abort();
    await within(quietWait, 'the quiet queue');
    expect(isWoken).toBe(false);
    qp.close();
    b.context.close({ cascade: true });
    context.close({ cascade: true });
  });
});

describe('events', () => {
  it('lose nothing and double nothing in bursts of any size', async () => {
    using pair = await Pair.connect({ cap: { maxSendWr: 200, maxRecvWr: 16 } });
    const { a } = pair;
    const total = isRxe ? 1000 : 10_000;
    // Bursts of 1 to 60 from a fixed seed, so that a failure can be repeated.
    let seed = 42;
    const random = (n: number): number => {
      seed = (seed * 1_103_515_245 + 12_345) & 0x7fff_ffff;
      return (seed >> 8) % n;
    };
    let posted = 0;
    let taken = 0;
    const consumer = (async () => {
      const signal = AbortSignal.timeout(2 * DEADLINE_MS);
      while (taken < total) {
        const count = await a.cq.wait({ signal });
        for (let i = 0; i < count; i++) {
          // In order, so each exactly once.
          if (a.cq.at(i).wrId !== taken++) throw new Error(`wrId ${a.cq.at(i).wrId} came at place ${taken - 1}`);
        }
      }
    })();
    while (posted < total) {
      const room = a.qp.cap.maxSendWr - a.qp.sendsInFlight;
      const burst = Math.min(1 + random(60), total - posted, room);
      if (burst > 0) write(a, pair, burst, posted);
      posted += burst;
      if (random(3) === 0 || burst === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    await consumer;
    expect(taken).toBe(total);
    expect(a.qp.sendsInFlight).toBe(0);
    expect(a.cq.poll()).toBe(0);
  });

  it('come for solicited receives only when that was asked for', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    expect(b.cq.poll()).toBe(0);
    b.cq.reqNotify(true);
    let events = 0;
    const event = b.cq.nextEvent(undefined).then(() => events++);
    send(pair, 1);
    await completion(a.cq, 'the unsolicited send');
    for (let turn = 0; turn < 50; turn++) await new Promise((resolve) => setImmediate(resolve));
    expect(events).toBe(0);
    send(pair, 1, SendFlags.SIGNALED | SendFlags.SOLICITED);
    await within(event, 'the event of the solicited send');
    await completions(b.cq, 2);
    await completion(a.cq);
  });
});

describe('for await (const wc of cq)', () => {
  it('gives every completion, waiting for each, and takes none in advance', async () => {
    using pair = await Pair.connect();
    const { a } = pair;
    const seen: number[] = [];
    write(a, pair, 5);
    for await (const wc of a.cq) {
      seen.push(wc.wrId);
      if (wc.wrId === 2) break;
    }
    expect(seen).toEqual([0, 1, 2]);
    const rest = await completions(a.cq, 2);
    expect(rest.map(({ wrId }) => wrId)).toEqual([3, 4]);
  });

  it('waits where nothing is there yet', async () => {
    using pair = await Pair.connect();
    const iterator = pair.b.cq[Symbol.asyncIterator]();
    const next = iterator.next();
    await new Promise((resolve) => setImmediate(resolve));
    send(pair, 2);
    expect((await within(next, 'the first')).value).toMatchObject({ wrId: 0 });
    expect((await within(iterator.next(), 'the second')).value).toMatchObject({ wrId: 1 });
    await iterator.return();
    await completions(pair.a.cq, 2);
  });

  it('ends when the queue is closed', async () => {
    using context = openDevice(deviceA);
    const cq = context.createCq(4);
    const next = cq[Symbol.asyncIterator]().next();
    cq.close();
    expect(await within(next, 'the close')).toEqual({ value: undefined, done: true });
    context.close({ cascade: true });
  });
});

describe('cq.close', () => {
  it('does not hang on events that were never looked at', async () => {
    // ibv_destroy_cq waits for ever for an event that was taken but not acknowledged.
    using pair = await Pair.connect();
    for (let i = 0; i < 5; i++) {
      pair.b.cq.reqNotify();
      send(pair, 1);
      await completion(pair.a.cq);
      await until(() => pair.b.cq.poll() === 1, 'the receive');
    }
    pair.b.cq.reqNotify();
    send(pair, 1);
    await completion(pair.a.cq);
    pair.b.qp.close();
    pair.b.cq.close();
    expect(pair.b.cq.closed).toBe(true);
  });

  it('leaves the others of its channel alone, also with its events pending', async () => {
    using pair = await Pair.connect();
    const { b } = pair;
    const doomed = b.context.createCq(256);
    const qp = b.pd.createQp({ sendCq: doomed });
    expect(doomed.channel).toBe(b.cq.channel);
    doomed.reqNotify();
    // A queue pair in ERR completes what is posted to it at once.
    qp.modifySync({ qpState: 1, pkeyIndex: 0, portNum: 1, qpAccessFlags: 0 });
    qp.postRecv({});
    qp.modifySync({ qpState: 6 });
    qp.close();
    doomed.close();
    const waiting = b.cq.wait();
    send(pair, 1);
    expect(await within(waiting, 'the other queue')).toBe(1);
    await completion(pair.a.cq);
  });
});

describe('the text of a status', () => {
  it('is that of libibverbs, and its name the C name', () => {
    expect(wcStatusStr(WcStatus.SUCCESS)).toBe('success');
    expect(wcStatusStr(WcStatus.RNR_RETRY_EXC_ERR)).toBe('RNR retry counter exceeded');
    expect(wcStatusName(WcStatus.RNR_RETRY_EXC_ERR)).toBe('RNR_RETRY_EXC_ERR');
    expect(wcStatusName(999)).toBe('999');
    expect(wcStatusStr(999)).toMatch(/unknown/);
  });
});
