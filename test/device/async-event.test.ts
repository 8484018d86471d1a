/** Asynchronous events: each says what it is about. */
import { execFileSync } from 'node:child_process';
import { isDeepStrictEqual } from 'node:util';
import { describe, expect, it } from 'vitest';
import {
  type AsyncEvent,
  EventType,
  openDevice,
  PortState,
  QpState,
  RemoteRegion,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import {
  ALL_ACCESS,
  completion,
  connectSides,
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

const ip = (...args: string[]): string => execFileSync('ip', args, { encoding: 'utf8' });

describe('context.getAsyncEvent', () => {
  it('names the shared receive queue whose limit was reached', async () => {
    const sender = openSide(deviceA);
    const context = openDevice(deviceB);
    const pd = context.allocPd();
    const srq = pd.createSrq({ maxWr: 8 });
    const cq = context.createCq(256);
    const qp = pd.createQp({ sendCq: cq, srq });
    const mr = pd.allocSync(4096, { access: ALL_ACCESS });
    await connectSides(sender, { context, pd, cq, qp, mr });
    srq.postRecv([{ sgList: mr.slice(0, 64) }, { sgList: mr.slice(64, 64) }]);
    srq.modify({ srqLimit: 2 });
    const event = context.getAsyncEvent();
    sender.qp.postSend({ opcode: WrOpcode.SEND, sgList: sender.mr.slice(0, 8) });
    await completion(sender.cq, 'the send');
    expect(await within(event, 'the event')).toEqual({
      type: EventType.SRQ_LIMIT_REACHED,
      name: 'SRQ_LIMIT_REACHED',
      srq,
    });
    expect(srq.query().srqLimit).toBe(0);
    sender.qp.close();
    sender.context.close({ cascade: true });
    context.close({ cascade: true });
  });

  it.runIf(!isRxe)('names the queue pair that refused an access', async () => {
    // rdma_rxe does not raise this event.
    using pair = await Pair.connect();
    const wrong = new RemoteRegion({ ...pair.b.mr.remote(), rkey: pair.b.mr.rkey ^ 0x5500 });
    pair.a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: pair.a.mr.slice(0, 8), remote: wrong.slice() });
    expect(await completion(pair.a.cq)).toMatchObject({ status: WcStatus.REM_ACCESS_ERR });
    // It has come while nobody waited, and is kept.
    const event = await within(pair.b.context.getAsyncEvent(), 'the event');
    expect(event).toMatchObject({ type: EventType.QP_ACCESS_ERR, name: 'QP_ACCESS_ERR' });
    expect(event.qp).toBe(pair.b.qp);
  });

  it('names the queue pair that has taken its last receive from a shared queue', async () => {
    const { context, pd, cq, mr } = openSide(deviceA);
    const srq = pd.createSrq({ maxWr: 8 });
    const qp = pd.createQp({ sendCq: cq, srq });
    const peer = openSide(deviceB);
    await connectSides(peer, { context, pd, cq, qp, mr });
    srq.postRecv({ sgList: mr.slice(0, 64) });
    const events = context.asyncEvents();
    const next = events.next();
    await qp.modify({ qpState: QpState.ERR });
    // A device may tell of more before.
    let event = (await within(next, 'the event')).value;
    while (event?.type !== EventType.QP_LAST_WQE_REACHED) event = (await within(events.next(), 'the event')).value;
    expect(event.name).toBe('QP_LAST_WQE_REACHED');
    expect(event.qp).toBe(qp);
    // The receive is still there, for the other queue pairs.
    expect(srq.recvsInFlight).toBe(1);
    for (const each of [context, peer.context]) each.close({ cascade: true });
  });

  it.runIf(isRxe)('names the port that goes down, and comes up again', async () => {
    // Taken down the interface loses its link-local address and its routes, and keeps its other address.
    const table = 'route add 10.78.0.1 dev v1 table 101';
    const [contextA, contextB] = [openDevice(deviceA), openDevice(deviceB)];
    const state = () => ({
      gids: [contextA, contextB].map((context) => context.queryGidTable()),
      addresses: ['v0', 'v1'].map((device) => ip('-o', 'address', 'show', 'dev', device)),
      routes: ip('route', 'show', 'table', 'all').split('\n').sort(),
    });
    const before = state();
    const events = [contextA, contextB].map((context) => context.asyncEvents());
    /** The next change of state of a port; before it there may be others, such as of GIDs. */
    const change = async (i: number): Promise<AsyncEvent> => {
      for (;;) {
        const { value } = await within(events[i]!.next(), `an event of port ${i}`);
        if (value?.type === EventType.PORT_ERR || value?.type === EventType.PORT_ACTIVE) return value;
      }
    };
    try {
      ip('link', 'set', 'v1', 'down');
      for (const i of [0, 1]) {
        expect(await change(i)).toEqual({ type: EventType.PORT_ERR, name: 'PORT_ERR', portNum: 1 });
      }
      for (const context of [contextA, contextB]) expect(context.queryPort(1).state).toBe(PortState.DOWN);
    } finally {
      ip('link', 'set', 'v1', 'up');
      ip(...table.split(' '));
    }
    for (const i of [0, 1]) {
      expect(await change(i)).toEqual({ type: EventType.PORT_ACTIVE, name: 'PORT_ACTIVE', portNum: 1 });
    }
    for (const context of [contextA, contextB]) expect(context.queryPort(1).state).toBe(PortState.ACTIVE);
    // The kernel gives the link-local address, and its GID, back a moment later.
    await until(() => isDeepStrictEqual(state(), before), 'addresses, routes and GIDs are as they were');
    for (const iterator of events) void iterator.return();
    for (const context of [contextA, contextB]) context.close();
    using pair = await Pair.connect();
    pair.a.mr.buffer.write('up again');
    pair.a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: pair.a.mr.slice(0, 8), remote: pair.remote.slice() });
    expect(await completion(pair.a.cq, 'the write')).toMatchObject({ status: WcStatus.SUCCESS });
    expect(pair.b.mr.buffer.toString('latin1', 0, 8)).toBe('up again');
  });

  it('ends with the signal, and with the context', async () => {
    const context = openDevice(deviceA);
    const controller = new AbortController();
    const aborted = context.getAsyncEvent({ signal: controller.signal });
    const reason = new Error('enough');
    controller.abort(reason);
    await expect(within(aborted, 'the abort')).rejects.toBe(reason);
    const closed = context.getAsyncEvent();
    const iterated = context.asyncEvents().next();
    context.close();
    await expect(within(closed, 'the close')).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    expect(await within(iterated, 'the iteration')).toEqual({ value: undefined, done: true });
    expect(() => thrown(() => context.queryDevice())).not.toThrow();
  });
});
