import { inspect } from 'node:util';
import { expect, it } from 'vitest';
import {
  CmError,
  CmEventType,
  createEventChannel,
  PortSpace,
  QpState,
  SendFlags,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import {
  addressA,
  addressB,
  CmPair,
  closeSide,
  cmSide,
  describeCm,
  deviceA,
  deviceB,
  listening,
  newPort,
  newQpNum,
  rejection,
  request,
  resolved,
  soon,
} from './cm.ts';
import { completion, DEADLINE_MS, expectNoLeaks, fill, within } from './fixture.ts';

expectNoLeaks();

describeCm('a connection, step by step', () => {
  it('carries data both ways, and tells each side what the other said', async () => {
    using pair = await CmPair.connect({
      connect: { privateData: 'a to b', initiatorDepth: 4, responderResources: 8, retryCount: 6 },
      accept: { privateData: Buffer.from('b to a') },
    });
    const { a, b, asked, answered, listener } = pair;
    expect(a.id.device).toBe(deviceA);
    expect(b.id.device).toBe(deviceB);
    expect(asked).toMatchObject({ name: 'CONNECT_REQUEST', status: 0, listenId: listener });
    expect(asked.error).toBeUndefined();
    // The depths change sides on their way. (Powers of two, since rdma_rxe has no others.)
    expect(asked.conn).toMatchObject({ responderResources: 4, initiatorDepth: 8, retryCount: 6, srq: false });
    expect(asked.conn?.qpNum).toBe(a.qp.qpNum);
    const said = Buffer.alloc(56);
    said.write('a to b');
    expect(asked.conn?.privateData).toEqual(said);
    expect(answered).toMatchObject({ name: 'ESTABLISHED', type: CmEventType.ESTABLISHED, status: 0 });
    const reply = Buffer.alloc(196);
    reply.write('b to a');
    expect(answered.conn?.privateData).toEqual(reply);

    const local = a.id.getLocalAddr();
    expect(local).toMatchObject({ address: addressA, family: 'IPv4' });
    expect(a.id.getPeerAddr()).toEqual({ address: addressB, family: 'IPv4', port: listener.getLocalAddr()?.port });
    expect(b.id.getPeerAddr()).toEqual(local);

    expect([a.qp.state, b.qp.state]).toEqual([QpState.RTS, QpState.RTS]);
    expect(a.qp.query()).toMatchObject({ maxRdAtomic: 4, maxDestRdAtomic: 8, retryCnt: 6, destQpNum: b.qp.qpNum });
    expect(b.qp.query()).toMatchObject({ maxRdAtomic: 8, maxDestRdAtomic: 4, destQpNum: a.qp.qpNum });
    for (const [from, to] of [[a, b] as const, [b, a] as const]) {
      const sent = fill(from.mr.buffer, 5);
      to.mr.buffer.fill(0);
      to.qp.postRecv({ wrId: 1, sgList: to.mr.slice() });
      from.qp.postSend({ wrId: 2, opcode: WrOpcode.SEND, sgList: from.mr.slice(), sendFlags: SendFlags.SIGNALED });
      expect(await completion(from.cq)).toMatchObject({ wrId: 2, status: WcStatus.SUCCESS });
      expect(await completion(to.cq)).toMatchObject({ wrId: 1, status: WcStatus.SUCCESS, byteLen: 4096 });
      expect(to.mr.buffer.equals(sent)).toBe(true);
    }
  });

  it('ends for both sides: DISCONNECTED for the peer, flushed requests for both', async () => {
    using pair = await CmPair.connect();
    const { a, b } = pair;
    for (const { qp, mr } of [a, b]) qp.postRecv({ wrId: 7, sgList: mr.slice() });
    const ended = b.id.getEvent(soon());
    const left = a.id.disconnect(soon());
    expect(await ended).toMatchObject({ name: 'DISCONNECTED', id: b.id });
    expect(a.qp.state).toBe(QpState.ERR);
    // Answers the peer; there is no second event to wait for.
    await b.id.disconnect(soon());
    await left;
    for (const { cq } of [a, b]) expect(await completion(cq)).toMatchObject({ wrId: 7, status: WcStatus.WR_FLUSH_ERR });
  });

  it('is ended once for all who wait for that', async () => {
    using pair = await CmPair.connect();
    const { a, b } = pair;
    await Promise.all([a, a, b].map(({ id }) => id.disconnect(soon())));
  });

  it('is made of a queue pair of the caller too, through initQpAttr() and establish()', async () => {
    const channel = createEventChannel();
    const port = newPort();
    const listener = await listening(channel, port);
    const id = await resolved(channel, port);
    const a = await cmSide(id, {});
    const own = a.pd.createQp({ sendCq: a.cq, cap: { maxSendWr: 16, maxRecvWr: 16 } });
    a.qp.close();
    expect(id.qp).toBeUndefined();
    const answered = id.connect({ qpNum: own.qpNum, flowControl: true, srq: true, rnrRetryCount: 3 }, soon());
    const asked = await request(listener);
    const { qpNum } = own;
    expect(asked.conn).toMatchObject({ qpNum, flowControl: true, srq: true, retryCount: 7, rnrRetryCount: 3 });
    const b = await cmSide(asked.id);
    const accepted = b.id.accept({}, soon());
    expect(await answered).toMatchObject({ name: 'CONNECT_RESPONSE', status: 0 });
    for (const state of [QpState.INIT, QpState.RTR, QpState.RTS]) await own.modify(id.initQpAttr(state));
    id.establish();
    await accepted;
    b.qp.postRecv({ wrId: 1, sgList: b.mr.slice() });
    const sent = fill(a.mr.buffer, 3);
    own.postSend({ wrId: 1, opcode: WrOpcode.SEND, sgList: a.mr.slice(), sendFlags: SendFlags.SIGNALED });
    expect(await completion(b.cq)).toMatchObject({ status: WcStatus.SUCCESS });
    expect(await completion(a.cq)).toMatchObject({ status: WcStatus.SUCCESS });
    expect(b.mr.buffer.equals(sent)).toBe(true);
    for (const side of [a, b]) closeSide(side);
    channel.close({ cascade: true });
  });

  it('is accepted with a queue pair of the caller too, which is in RTS before, and takes from a shared queue', async () => {
    const channel = createEventChannel();
    const port = newPort();
    const listener = await listening(channel, port);
    const a = await cmSide(await resolved(channel, port));
    const answered = a.id.connect({ rnrRetryCount: 5 }, soon());
    const { id, conn } = await request(listener);
    expect(conn).toMatchObject({ srq: false, flowControl: false, rnrRetryCount: 5 });
    const b = await cmSide(id);
    b.qp.close();
    const srq = b.pd.createSrq({ maxWr: 4 });
    const own = b.pd.createQp({ sendCq: b.cq, srq, cap: { maxSendWr: 16 } });
    for (const state of [QpState.INIT, QpState.RTR, QpState.RTS]) await own.modify(id.initQpAttr(state));
    srq.postRecv({ wrId: 1, sgList: b.mr.slice() });
    const accept = { qpNum: own.qpNum, srq: true, flowControl: true, rnrRetryCount: 2 };
    const tooLong = await rejection(id.accept({ ...accept, privateData: Buffer.alloc(197) }));
    expect(tooLong.message).toBe('privateData has 197 bytes, and this message has room for 196');
    const said = fill(Buffer.alloc(196), 4);
    await id.accept({ ...accept, privateData: said }, soon());
    const answer = await answered;
    expect(answer).toMatchObject({ name: 'ESTABLISHED', conn: { qpNum: own.qpNum, srq: true, flowControl: true } });
    expect(answer.conn?.privateData).toEqual(said);
    // Each side tells the other how often that one may find no receive.
    expect(a.qp.query()).toMatchObject({ destQpNum: own.qpNum, rnrRetry: 2 });
    expect(own.query()).toMatchObject({ destQpNum: a.qp.qpNum, rnrRetry: 5 });
    const sent = fill(a.mr.buffer, 3);
    a.qp.postSend({ wrId: 1, opcode: WrOpcode.SEND, sgList: a.mr.slice(), sendFlags: SendFlags.SIGNALED });
    expect(await completion(b.cq)).toMatchObject({ wrId: 1, status: WcStatus.SUCCESS, qpNum: own.qpNum });
    expect(await completion(a.cq)).toMatchObject({ status: WcStatus.SUCCESS });
    expect(b.mr.buffer.equals(sent)).toBe(true);
    for (const side of [a, b]) closeSide(side);
    channel.close({ cascade: true });
  });

  it('gives the events of all ids to who iterates over the channel, each once', async () => {
    const channel = createEventChannel();
    const port = newPort();
    const listener = await listening(channel, port);
    const names: string[] = [];
    const over = (async () => {
      for await (const event of channel) {
        names.push(event.name);
        if (event.name === 'CONNECT_REQUEST') {
          event.id.reject();
          event.id.close();
        }
      }
    })();
    const ids = [await resolved(channel, port), await resolved(channel, port)];
    for (const id of ids) {
      const error = await id.connect({ qpNum: newQpNum() }, soon()).catch((reason) => reason);
      expect(error).toBeInstanceOf(CmError);
    }
    channel.close({ cascade: true });
    await within(over, 'the iteration');
    expect(names).toEqual(['CONNECT_REQUEST', 'CONNECT_REQUEST']);
    expect([listener, ...ids].every((id) => id.closed)).toBe(true);
  });

  it('loses the events of an id with it, but not the request that it has brought', async () => {
    const channel = createEventChannel();
    const holds = (text: string) => expect.poll(() => inspect(channel), { timeout: DEADLINE_MS }).toBe(text);
    const port = newPort();
    const listener = await listening(channel, port);
    const id = await resolved(channel, port);
    const controller = new AbortController();
    const refused = rejection(id.connect({ qpNum: newQpNum() }, { signal: controller.signal }));
    const other = await resolved(channel, port);
    const pending = rejection(other.connect({ qpNum: newQpNum() }, soon()));
    const asked = await request(listener);
    controller.abort(new Error('enough'));
    expect((await refused).message).toBe('enough');
    asked.id.reject();
    asked.id.close();
    // The refusal, which nobody waits for any more, and the other request.
    await holds('EventChannel { ids: 4, events: 2 }');
    id.close();
    listener.close();
    expect(inspect(channel)).toBe('EventChannel { ids: 2, events: 1 }');
    const event = await channel.getEvent(soon());
    expect(event).toMatchObject({ name: 'CONNECT_REQUEST', listenId: listener });
    event.id.reject();
    expect(await pending).toMatchObject({ code: 'ECONNREFUSED' });
    channel.close({ cascade: true });
  });

  it('opens the device of an id as an ordinary context, one for all of them', async () => {
    const channel = createEventChannel();
    const port = newPort();
    const listener = await listening(channel, port);
    const context = listener.verbs;
    expect(context?.name).toBe(deviceB);
    const other = await listening(channel, newPort());
    expect(other.verbs).toBe(context);
    const unbound = channel.createId();
    expect([unbound.verbs, unbound.device, unbound.getLocalAddr(), unbound.portNum]).toEqual([null, null, null, 0]);
    context?.close();
    const again = listener.verbs;
    expect(again).not.toBe(context);
    channel.close({ cascade: true });
    expect(again?.allocPd().close()).toBeUndefined();
    again?.close();
  });

  it('works in the port space of InfiniBand with IP addresses', async () => {
    const channel = createEventChannel();
    const port = newPort();
    const listener = channel.createId(PortSpace.IB);
    await listener.bindAddr({ address: addressB, port });
    listener.listen();
    const id = channel.createId(PortSpace.IB);
    expect(id.portSpace).toBe(PortSpace.IB);
    await id.resolveAddr({ address: addressB, port }, { src: { address: addressA }, ...soon() });
    await id.resolveRoute(soon());
    const a = await cmSide(id);
    const answered = id.connect({}, soon());
    const b = await cmSide((await request(listener)).id);
    await b.id.accept({}, soon());
    expect(await answered).toMatchObject({ name: 'ESTABLISHED' });
    for (const side of [a, b]) closeSide(side);
    channel.close({ cascade: true });
  });
});
