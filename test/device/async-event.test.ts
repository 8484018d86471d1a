/** Asynchronous events: each says what it is about. */
import { describe, expect, it } from 'vitest';
import { EventType, openDevice, QpState, RemoteRegion, WcStatus, WrOpcode } from '../../lib/index.ts';
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
  within,
} from './fixture.ts';

expectNoLeaks();

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
