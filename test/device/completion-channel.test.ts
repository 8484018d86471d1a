/** Events of many completion queues at one channel, and what a wait does before it sleeps. */
import { describe, expect, it, vi } from 'vitest';
import {
  type CompletionQueue,
  Endpoint,
  openDevice,
  type ProtectionDomain,
  type QueuePair,
  RemoteRegion,
  SendFlags,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import {
  ALL_ACCESS,
  completion,
  completions,
  connectSides,
  deviceA,
  deviceB,
  expectNoLeaks,
  openSide,
  Pair,
  type Side,
  thrown,
  until,
  within,
} from './fixture.ts';

expectNoLeaks();

const turn = () => new Promise((resolve) => setImmediate(resolve));

/** Numbers from a fixed seed, so that a failure can be repeated. */
function randomFrom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state * 1_103_515_245 + 12_345) & 0x7fff_ffff;
    return (state >> 8) % below;
  };
}

/** A queue pair with a completion queue of its own at the channel of the context, connected to one of `peer`. */
interface Lane {
  cq: CompletionQueue;
  qp: QueuePair;
  peer: Side;
  taken: number[];
}

/** Where the writes of a lane go. */
const remoteOf = ({ peer }: Lane) => new RemoteRegion(peer.mr.remote()).slice(0, 0);

/** That many lanes, whose completion queues share one channel. */
async function lanes(count: number): Promise<{ lanes: Lane[]; pd: ProtectionDomain; close: () => void }> {
  const context = openDevice(deviceA);
  const pd = context.allocPd();
  const mr = pd.allocSync(4096, { access: ALL_ACCESS });
  const made: Lane[] = [];
  for (let i = 0; i < count; i++) {
    const cq = context.createCq(128);
    const qp = pd.createQp({ sendCq: cq, cap: { maxSendWr: 64, maxRecvWr: 64 } });
    const peer = openSide(deviceB);
    await connectSides({ context, pd, cq, qp, mr }, peer);
    made.push({ cq, qp, peer, taken: [] });
  }
  const close = () => {
    for (const { qp, peer } of made) for (const pair of [qp, peer.qp]) pair.close();
    for (const { peer } of made) peer.context.close({ cascade: true });
    context.close({ cascade: true });
  };
  return { lanes: made, pd, close };
}

const TOTAL = 10_000;

describe('one channel of many queues', () => {
  it(`tells of ${TOTAL} completions in random bursts, each exactly once`, { timeout: 240_000 }, async () => {
    const { lanes: all, close } = await lanes(5);
    expect(new Set(all.map(({ cq }) => cq.channel)).size).toBe(1);
    const random = randomFrom(7);
    // Nothing here has a timer, so that an event that is lost is missed for ever. The test's own deadline is outside.
    const quotas = all.map(() => TOTAL / all.length);
    const consumers = all.map(async ({ cq, qp, taken }, lane) => {
      while (taken.length < (quotas[lane] as number)) {
        const count = await cq.wait();
        for (let i = 0; i < count; i++) {
          const { wrId, qpNum, status } = cq.at(i);
          if (qpNum !== qp.qpNum || status !== WcStatus.SUCCESS) throw new Error(`lane ${lane}: ${qpNum} ${status}`);
          taken.push(wrId);
        }
      }
    });
    const posted = all.map(() => 0);
    while (posted.some((count, lane) => count < (quotas[lane] as number))) {
      const lane = random(all.length);
      const { qp } = all[lane] as Lane;
      const room = Math.min(qp.cap.maxSendWr - qp.sendsInFlight, (quotas[lane] as number) - (posted[lane] as number));
      const burst = Math.min(1 + random(40), room);
      if (burst > 0) {
        const first = posted[lane] as number;
        const wrs = Array.from({ length: burst }, (_, i) => ({ wrId: first + i, opcode: WrOpcode.RDMA_WRITE }));
        const remote = remoteOf(all[lane] as Lane);
        qp.postSend(wrs.map((wr) => ({ ...wr, remote })));
        posted[lane] = first + burst;
      }
      if (burst === 0 || random(3) === 0) await turn();
    }
    await within(Promise.all(consumers), 'the last completions');
    for (const [lane, { taken, qp, cq }] of all.entries()) {
      // In order, so each exactly once.
      expect(taken, `lane ${lane}`).toEqual(Array.from({ length: quotas[lane] as number }, (_, i) => i));
      expect([qp.sendsInFlight, cq.poll()]).toEqual([0, 0]);
    }
    close();
  });

  it('wakes the waits of no other queue', async () => {
    const { lanes: all, close } = await lanes(3);
    const woken = all.map(() => 0);
    for (const [lane, { cq }] of all.entries()) {
      const onEvent = cq.onEvent.bind(cq);
      vi.spyOn(cq, 'onEvent').mockImplementation(() => {
        woken[lane] = (woken[lane] as number) + 1;
        onEvent();
      });
    }
    const controllers = all.map(() => new AbortController());
    for (let round = 0; round < 9; round++) {
      const lane = (round * 2) % 3;
      const waits = all.map(({ cq }, i) => cq.wait({ signal: controllers[i]!.signal }));
      for (const wait of waits) wait.catch(() => {});
      const { qp } = all[lane] as Lane;
      const before = [...woken];
      qp.postSend({ opcode: WrOpcode.RDMA_WRITE, remote: remoteOf(all[lane] as Lane), wrId: round });
      expect(await within(waits[lane]!, 'the queue that has something')).toBe(1);
      for (const [i, controller] of controllers.entries()) {
        controller.abort();
        controllers[i] = new AbortController();
        if (i !== lane) await expect(within(waits[i]!, 'the abort')).rejects.toMatchObject({ name: 'AbortError' });
      }
      // The first wait may have found it without an event.
      expect(woken.map((count, i) => (i === lane ? 0 : count - before[i]!))).toEqual([0, 0, 0]);
    }
    close();
  });

  it('gives away an event that nobody waits for, and the wait after it finds what it was about', async () => {
    const { lanes: all, close } = await lanes(2);
    const [{ cq, qp, peer }, later] = all as [Lane, Lane];
    for (let i = 0; i < 20; i++) {
      cq.reqNotify();
      qp.postRecv({ wrId: i });
      peer.qp.postSend({ opcode: WrOpcode.SEND });
      await completion(peer.cq);
      if (i % 2 === 0) {
        // Behind the other in the channel: when it is read, that one has been.
        later.cq.reqNotify();
        const event = later.cq.nextEvent(undefined);
        later.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, remote: remoteOf(later) });
        await within(event, 'the later event');
        expect(later.cq.poll()).toBe(1);
      }
      expect(await within(cq.wait(), 'the wait after it')).toBe(1);
      expect(cq.at(0).wrId).toBe(i);
    }
    close();
  });
});

describe('cq.wait({ solicitedOnly })', () => {
  it('sleeps on until a solicited message comes, and takes the others along', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    b.qp.postRecv([0, 1, 2].map((wrId) => ({ wrId })));
    let isOver = false;
    const waiting = b.cq.wait({ solicitedOnly: true }).finally(() => (isOver = true));
    a.qp.postSend([0, 1].map((wrId) => ({ wrId, opcode: WrOpcode.SEND })));
    await completions(a.cq, 2);
    for (let i = 0; i < 50; i++) await turn();
    expect(isOver).toBe(false);
    a.qp.postSend({ opcode: WrOpcode.SEND, sendFlags: SendFlags.SIGNALED | SendFlags.SOLICITED });
    expect(await within(waiting, 'the solicited message')).toBe(3);
    await completion(a.cq);
  });

  it('takes no event from who waits for any message', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    b.qp.postRecv({ wrId: 1 });
    const aborter = new AbortController();
    const any = b.cq.wait();
    const waiting = b.cq.wait({ solicitedOnly: true, signal: aborter.signal });
    const aborted = expect(waiting).rejects.toMatchObject({ name: 'AbortError' });
    a.qp.postSend({ opcode: WrOpcode.SEND });
    expect(await within(any, 'the message')).toBe(1);
    aborter.abort();
    await within(aborted, 'the abort');
    await completion(a.cq);
  });
});

describe('cq.spinUs', () => {
  it('finds by polling what comes soon, without arming the queue', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    const arm = vi.spyOn(b.cq, 'reqNotify');
    b.cq.spinUs = 1_000_000;
    b.qp.postRecv([{ wrId: 1 }, { wrId: 2 }]);
    const waiting = b.cq.wait();
    setImmediate(() => a.qp.postSend({ opcode: WrOpcode.SEND }));
    expect(await within(waiting, 'the message')).toBe(1);
    expect(b.cq.at(0).wrId).toBe(1);
    const iterator = b.cq[Symbol.asyncIterator]();
    const next = iterator.next();
    setImmediate(() => a.qp.postSend({ opcode: WrOpcode.SEND }));
    expect((await within(next, 'the next')).value).toMatchObject({ wrId: 2 });
    expect(arm).not.toHaveBeenCalled();
    await iterator.return();
    await completions(a.cq, 2);
  });

  it('arms the queue when its time is up, and is woken by the event', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    b.cq.spinUs = 100;
    const arm = vi.spyOn(b.cq, 'reqNotify');
    b.qp.postRecv({ wrId: 5 });
    const waiting = b.cq.wait();
    await until(() => arm.mock.calls.length === 1, 'the arming');
    a.qp.postSend({ opcode: WrOpcode.SEND });
    expect(await within(waiting, 'the message')).toBe(1);
    await completion(a.cq);
  });

  it('lets the event loop have its turn', async () => {
    using context = openDevice(deviceA);
    using cq = context.createCq(4);
    cq.spinUs = 1_000_000;
    const aborter = new AbortController();
    const arm = vi.spyOn(cq, 'reqNotify');
    const waiting = expect(cq.wait({ signal: aborter.signal })).rejects.toMatchObject({ name: 'AbortError' });
    // It spins in slices of half a millisecond. All of it at once would be over after the first turn, and the queue armed.
    for (let i = 0; i < 5; i++) await turn();
    expect(arm).not.toHaveBeenCalled();
    aborter.abort();
    await within(waiting, 'the abort');
    cq.close();
    context.close({ cascade: true });
  });

  it('ends with a signal that is aborted as the spinning ends', async () => {
    using context = openDevice(deviceA);
    using cq = context.createCq(4);
    // One spins on this turn to its end, the other one goes on in later ones.
    for (const us of [50, 700]) {
      cq.spinUs = us;
      for (let jobs = 0; jobs < 6; jobs++) {
        const aborter = new AbortController();
        const waiting = cq.wait({ signal: aborter.signal });
        for (let i = 0; i < jobs; i++) await null;
        aborter.abort();
        await expect(within(waiting, `the abort after ${jobs} microtasks`)).rejects.toMatchObject({
          name: 'AbortError',
        });
      }
    }
    cq.close();
    context.close({ cascade: true });
  });

  it('ends with the signal, and with the queue', async () => {
    using context = openDevice(deviceA);
    const cq = context.createCq(4);
    cq.spinUs = 1_000_000;
    const reason = new Error('enough');
    const aborter = new AbortController();
    setImmediate(() => aborter.abort(reason));
    await expect(within(cq.wait({ signal: aborter.signal }), 'the abort')).rejects.toBe(reason);
    const waiting = cq.wait();
    const iteration = cq[Symbol.asyncIterator]().next();
    setImmediate(() => cq.close());
    await expect(within(waiting, 'the close')).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    expect(await within(iteration, 'the close')).toEqual({ value: undefined, done: true });
    context.close({ cascade: true });
  });

  it('serves the operations of an endpoint', async () => {
    using pair = await Pair.connect();
    const { a, b, remote } = pair;
    const [client, server] = [new Endpoint(a.qp), new Endpoint(b.qp)];
    for (const { cq } of [a, b]) cq.spinUs = 200;
    for (let i = 0; i < 50; i++) {
      const received = server.recv(b.mr.slice(0, 64));
      a.mr.buffer.writeUInt32LE(i * 7, 0);
      await within(client.send(a.mr.slice(0, 64)), 'the send');
      expect(await within(received, 'the message')).toMatchObject({ byteLen: 64 });
      expect(b.mr.buffer.readUInt32LE(0)).toBe(i * 7);
      await within(client.write(a.mr.slice(0, 4), remote.slice(1024, 4)), 'the write');
      expect(b.mr.buffer.readUInt32LE(1024)).toBe(i * 7);
    }
    // What nothing comes for sleeps, and is ended by the close.
    const last = server.recv(b.mr.slice(0, 64));
    last.catch(() => {});
    await turn();
    await within(server.close(), 'the close');
    await expect(last).rejects.toThrow();
    await within(client.close(), 'the close');
  });

  it('is a number of microseconds up to a second, 0 by default', () => {
    using context = openDevice(deviceA);
    using cq = context.createCq(4, { channel: null });
    expect(cq.spinUs).toBe(0);
    for (const value of [-1, 0.5, 1_000_001, Number.NaN, '20', null]) {
      const error = thrown(() => {
        cq.spinUs = value as number;
      });
      expect(error.code, String(value)).toMatch(/^ERR_(OUT_OF_RANGE|INVALID_ARG_TYPE)$/);
      expect(error.message).toContain('spinUs');
    }
    cq.spinUs = 20;
    expect(cq.spinUs).toBe(20);
  });
});
