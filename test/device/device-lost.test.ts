/**
 * A device that fails or is removed. Only the software device can do that: a file that is opened makes it happen. Soft-RoCE
 * never does, and its driver waits for every open file before it goes.
 */
import { closeSync, openSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import {
  Endpoint,
  EventType,
  openDevice,
  PortState,
  QpState,
  QpType,
  RdmaDeviceLostError,
  RdmaError,
  RemoteRegion,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import { runChild } from './children.ts';
import {
  collect,
  completion,
  DEADLINE_MS,
  deviceA,
  expectNoLeaks,
  isRxe,
  openSide,
  Pair,
  thrown,
  until,
  within,
} from './fixture.ts';

expectNoLeaks();

/** Makes something happen to the first device, which is a's. */
function happen(what: 'fatal' | 'removed' | 'port-down' | 'port-up'): void {
  closeSync(openSync(`/dev/mlx5model/0/${what}`, 'r'));
}

const LOST = { name: 'RdmaDeviceLostError', code: 'ERR_RDMA_DEVICE_LOST' };

describe.runIf(!isRxe).each(['fatal', 'removed'] as const)('a device that is lost (%s)', (how) => {
  it('ends every wait and iteration, and tells who waits for events last of all', async () => {
    const { context, cq, qp } = openSide(deviceA);
    const own = context.createCq(8, { channel: context.createCompChannel() });
    const waiting: Promise<unknown>[] = [cq.wait(), cq.wait(), own.wait(), cq[Symbol.asyncIterator]().next()];
    const waits = waiting.map((wait) => expect(within(wait, 'the wait')).rejects.toMatchObject(LOST));
    const events: string[] = [];
    const iterated = (async () => {
      for await (const event of context.asyncEvents()) events.push(event.name);
    })();
    const event = context.getAsyncEvent();
    happen(how);
    await Promise.all(waits);
    // Each event is given out once: one of them has it, the other one's wait is over.
    const second = await within(event, 'the event').catch((error: unknown) => error);
    await within(iterated, 'the iteration');
    expect(events).toEqual(['DEVICE_FATAL']);
    expect(second).toMatchObject(LOST);
    await expect(context.getAsyncEvent()).rejects.toMatchObject(LOST);
    expect([context, cq, own, qp].every(({ lost }) => lost)).toBe(true);
    context.close({ cascade: true });
    await expect(context.getAsyncEvent()).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
  });

  it('lets an endpoint be closed before anybody knows of it', async () => {
    using pair = await Pair.connect();
    const endpoint = new Endpoint(pair.a.qp);
    const received = endpoint.recv(pair.a.mr.slice()).catch((error) => error);
    happen(how);
    await within(endpoint.close({ drainMs: 0 }), 'the close');
    expect(await received).toBeInstanceOf(Error);
    expect([endpoint.qp.closed, endpoint.qp.sendCq.closed, await endpoint.closed]).toEqual([true, true, undefined]);
  });

  it('refuses every verb with a typed error, and can be closed object by object, without EBUSY', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    const { context, pd, cq, qp, mr } = a;
    const srq = pd.createSrq();
    const mw = pd.allocMw(2);
    const ud = pd.createQp({ sendCq: cq, qpType: QpType.UD });
    const flow = ud.createFlow({});
    const counters = context.createCounters();
    const wq = context.createWq({ pd, cq });
    const table = context.createRwqIndTable([wq]);
    const prepared = qp.prepareSend({ opcode: WrOpcode.SEND });
    qp.postRecv([{ sgList: mr.slice() }, { sgList: mr.slice() }]);
    qp.postSend({ opcode: WrOpcode.SEND, sgList: mr.slice(0, 8) });
    srq.postRecv({ sgList: mr.slice() });
    happen(how);
    // Nobody waits; the event is read all the same.
    await until(() => context.lost, 'the loss');
    const send = { opcode: WrOpcode.SEND };
    const calls = [
      () => context.queryDevice(),
      () => context.allocPd(),
      () => context.createCq(8),
      () => pd.allocSync(64),
      () => pd.createQp({ sendCq: cq }),
      () => mr.slice(),
      () => mr.remote(),
      () => cq.reqNotify(),
      () => qp.modifySync({ qpState: QpState.ERR }),
      () => qp.query(),
      () => qp.postSend(send),
      () => qp.postSend([send, send]),
      () => qp.postRecv({}),
      () => qp.prepareSend(send),
      () => prepared.post(),
      () => srq.postRecv({}),
      () => srq.query(),
      () => wq.postRecv({}),
      () => wq.modify({ wqState: 1 }),
      () => counters.read(1),
      () => ud.createFlow({}),
    ];
    for (const call of calls) {
      const error = thrown(call);
      expect(error).toBeInstanceOf(RdmaDeviceLostError);
      expect(error).toMatchObject(LOST);
      expect(error.message).toContain('DEVICE_FATAL');
    }
    for (const promise of [() => pd.alloc(64), () => qp.modify({ qpState: QpState.ERR }), () => cq.wait()]) {
      await expect(promise()).rejects.toMatchObject(LOST);
    }
    // In an order that would be EBUSY otherwise for the requests in flight.
    for (const resource of [mr, mw, flow, table, wq, counters, qp, ud, srq, cq, pd, context]) {
      resource.close();
      expect(resource.closed).toBe(true);
    }
    expect(thrown(() => qp.postSend(send))).toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    // The peer finds out by itself, and its device is in order.
    b.mr.buffer.write('alone');
    expect(b.qp.query().qpState).toBe(QpState.RTS);
    using again = openDevice(deviceA);
    expect(again.queryPort(1).state).toBe(PortState.ACTIVE);
  });

  it('still gives out what had completed, then says that it is lost', async () => {
    using pair = await Pair.connect();
    const { a, remote } = pair;
    a.qp.postSend({ wrId: 5, opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: remote.slice() });
    a.mr.buffer.fill(1, 0, 8);
    const written = fillAndWait(pair);
    await written;
    happen(how);
    await until(() => a.cq.lost, 'the loss');
    expect(a.cq.pollWc()).toMatchObject([{ wrId: 5, status: WcStatus.SUCCESS }]);
    expect(thrown(() => a.cq.poll())).toMatchObject(LOST);
    expect(thrown(() => a.cq.pollWc())).toMatchObject(LOST);
  });

  it('ends the operations of an endpoint, which can be closed', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    const endpoint = new Endpoint(a.qp);
    const slice = a.mr.slice(0, 64);
    const pending = [endpoint.recv(slice), endpoint.recv()];
    const outcomes = pending.map((recv) => expect(within(recv, 'the receive')).rejects.toMatchObject(LOST));
    await new Promise((resolve) => setImmediate(resolve));
    happen(how);
    await Promise.all(outcomes);
    await expect(endpoint.send(slice)).rejects.toMatchObject(LOST);
    expect(await endpoint.closed).toMatchObject(LOST);
    await within(endpoint.close(), 'the close');
    expect([a.qp.closed, a.cq.closed, b.qp.closed]).toEqual([true, true, false]);
  });

  it('is told to an endpoint that waits for nothing', async () => {
    using pair = await Pair.connect();
    const endpoint = new Endpoint(pair.a.qp);
    happen(how);
    expect(await within(endpoint.closed, 'the end')).toMatchObject(LOST);
    await within(endpoint.close(), 'the close');
  });

  it('is EIO of each verb until its event was read, and closing succeeds', () => {
    const side = openSide(deviceA);
    happen(how);
    // The event loop had no turn.
    for (const [call, syscall] of [
      [() => side.context.allocPd(), 'ibv_alloc_pd'],
      [() => side.pd.allocSync(64), 'ibv_reg_mr'],
      [() => side.qp.query(), 'ibv_query_qp'],
      [() => side.context.createCompChannel(), 'ibv_create_comp_channel'],
    ] as const) {
      const error = thrown(call);
      expect(error).toBeInstanceOf(RdmaError);
      expect(error).toMatchObject({ code: 'EIO', syscall });
    }
    side.context.close({ cascade: true });
    for (const resource of Object.values(side)) expect(resource.closed).toBe(true);
  });

  it('is collected when it is forgotten, and counts no wait as a reason to live on', async () => {
    const ref = await (async () => {
      const side = openSide(deviceA);
      const wait = side.cq.wait();
      happen(how);
      await wait.catch(() => {});
      side.context.close({ cascade: true });
      return new WeakRef(side.context);
    })();
    await until(() => {
      (globalThis.gc as () => void)();
      return ref.deref() === undefined;
    }, 'the context is collected');
    await collect();
  });

  it.each(['exit', 'nothing', 'close'] as const)(
    'lets a process end by "%s", at once and without a crash',
    async (end) => {
      const { code, signal, stdout, stderr } = await runChild('lost', [how, end]);
      const lost = 'ERR_RDMA_DEVICE_LOST ERR_RDMA_DEVICE_LOST\n';
      const census = end === 'close' ? `${JSON.stringify({ open: 0, leaked: 0 })}\n` : '';
      expect({ code, signal, stdout, stderr }).toEqual({
        code: end === 'exit' ? 7 : 0,
        signal: null,
        stdout: lost + census,
        stderr: '',
      });
    },
    2 * DEADLINE_MS,
  );

  it('is closed as well where libibverbs is told to expect it, and frees what it has', async () => {
    const env = { RDMAV_ALLOW_DISASSOC_DESTROY: '1' };
    const { code, stdout, stderr } = await runChild('lost', [how, 'close'], { env });
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout).toContain(JSON.stringify({ open: 0, leaked: 0 }));
  });
});

/** Waits until a's write has arrived at b. */
async function fillAndWait(pair: Pair): Promise<void> {
  const { a, b } = pair;
  const slice = { sgList: b.mr.slice(64, 8), remote: new RemoteRegion(a.mr.remote()).slice(64, 8) };
  // The acknowledgement of b's own write comes behind a's write.
  b.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, ...slice });
  await completion(b.cq);
}

describe.runIf(!isRxe)('a port', () => {
  it('that goes down and comes up again has two events, with its number', async () => {
    using context = openDevice(deviceA);
    const events = context.asyncEvents();
    const first = events.next();
    happen('port-down');
    expect(await within(first, 'the event')).toEqual({
      value: { type: EventType.PORT_ERR, name: 'PORT_ERR', portNum: 1 },
      done: false,
    });
    expect(context.queryPort(1).state).toBe(PortState.DOWN);
    happen('port-up');
    expect(await within(events.next(), 'the event')).toEqual({
      value: { type: EventType.PORT_ACTIVE, name: 'PORT_ACTIVE', portNum: 1 },
      done: false,
    });
    expect(context.queryPort(1).state).toBe(PortState.ACTIVE);
    expect(context.lost).toBe(false);
  });
});
