import { expect, it } from 'vitest';
import { CmError, createEventChannel, PortSpace, QpState, RdmaClosedError } from '../../lib/index.ts';
import { binding } from '../../lib/native/binding.ts';
import {
  addressA,
  addressB,
  CmPair,
  cmFunctionsOf,
  describeCm,
  listening,
  newPort,
  newQpNum,
  rejection,
  request,
  resolved,
  soon,
} from './cm.ts';
import { deviceA, expectNoLeaks, openSide, thrown } from './fixture.ts';

describeCm('steps that fail', () => {
  expectNoLeaks();

  it('says ECONNREFUSED, and that nobody listens', async () => {
    const channel = createEventChannel();
    const id = await resolved(channel, newPort());
    const error = await rejection(id.connect({ qpNum: newQpNum() }, soon()));
    expect(error).toBeInstanceOf(CmError);
    expect(error).toMatchObject({ code: 'ECONNREFUSED', eventName: 'REJECTED', status: 8 });
    expect(error.message).toBe('rdma_connect: RDMA_CM_EVENT_REJECTED, nobody listens there (reason 8)');
    channel.close({ cascade: true });
  });

  it('brings the reason of who rejects, filled up with zeros to 148 bytes', async () => {
    const channel = createEventChannel();
    const port = newPort();
    const listener = await listening(channel, port);
    const id = await resolved(channel, port);
    const pending = rejection(id.connect({ qpNum: newQpNum() }, soon()));
    const { id: asked } = await request(listener);
    asked.reject(Buffer.from('not today'));
    const error = (await pending) as CmError;
    expect(error).toMatchObject({ code: 'ECONNREFUSED', eventName: 'REJECTED', status: 28 });
    const data = Buffer.alloc(148);
    data.write('not today');
    expect(error.privateData).toEqual(data);
    expect(thrown(() => asked.reject())).toMatchObject({ code: 'EINVAL', syscall: 'rdma_reject' });
    channel.close({ cascade: true });
  });

  it('closing a request that was not answered rejects it, closing the listener those that wait', async () => {
    const channel = createEventChannel();
    const port = newPort();
    const listener = await listening(channel, port);
    const ids = [await resolved(channel, port), await resolved(channel, port)];
    const first = rejection(ids[0]!.connect({ qpNum: newQpNum() }, soon()));
    (await request(listener)).id.close();
    expect(await first).toMatchObject({ code: 'ECONNREFUSED', status: 28 });
    const second = rejection(ids[1]!.connect({ qpNum: newQpNum() }, soon()));
    listener.close();
    expect(await second).toMatchObject({ code: 'ECONNREFUSED' });
    channel.close({ cascade: true });
  });

  it('keeps the requests beyond the backlog waiting: their peers ask again, until there is room', async () => {
    // On a channel of its own that nobody waits on, so that requests stay in the kernel.
    const passive = createEventChannel();
    const channel = createEventChannel();
    const port = newPort();
    const listener = await listening(passive, port, 1);
    const ids = [await resolved(channel, port), await resolved(channel, port)];
    const outcomes = ids.map((id) => rejection(id.connect({ qpNum: newQpNum() }, soon())));
    for (let i = 0; i < ids.length; i++) {
      const { id } = await request(listener);
      id.reject(Buffer.of(i));
      id.close();
    }
    const reasons = await Promise.all(outcomes);
    for (const error of reasons) expect(error).toMatchObject({ code: 'ECONNREFUSED', status: 28 });
    expect(reasons.map((error) => (error as CmError).privateData[0]).sort()).toEqual([0, 1]);
    for (const each of [passive, channel]) each.close({ cascade: true });
  });

  it('says what is wrong with an address that leads nowhere', async () => {
    const channel = createEventChannel();
    const id = channel.createId();
    // No route, or a neighbour that does not answer.
    const error = await rejection(id.resolveAddr({ address: '10.78.0.77', port: 1 }, { timeoutMs: 200, ...soon() }));
    expect(error).toBeInstanceOf(Error);
    expect(['ETIMEDOUT', 'EHOSTUNREACH', 'ENETUNREACH', 'ENODEV', 'EADDRNOTAVAIL']).toContain(error.code);
    const other = channel.createId();
    const none = await rejection(
      other.resolveAddr({ address: '198.51.100.1', port: 1 }, { timeoutMs: 200, ...soon() }),
    );
    expect(['ENETUNREACH', 'ENODEV', 'EHOSTUNREACH']).toContain(none.code);
    channel.close({ cascade: true });
  });

  it('refuses to bind to an address of nobody here, and to a port that is taken', async () => {
    const channel = createEventChannel();
    const port = newPort();
    await listening(channel, port);
    const id = channel.createId();
    expect(await rejection(id.bindAddr({ address: '10.99.0.1' }))).toMatchObject({ syscall: 'rdma_bind_addr' });
    expect(await rejection(id.bindAddr({ address: addressB, port }))).toMatchObject({
      code: 'EADDRINUSE',
      syscall: 'rdma_bind_addr',
    });
    channel.close({ cascade: true });
  });

  it('refuses steps out of their order with EINVAL, without a crash', async () => {
    const channel = createEventChannel();
    const id = channel.createId();
    const einval = (syscall: string) => ({ name: 'RdmaError', code: 'EINVAL', syscall });
    expect(await rejection(id.resolveRoute(soon()))).toMatchObject(einval('rdma_resolve_route'));
    expect(await rejection(id.connect({ qpNum: newQpNum() }, soon()))).toMatchObject(einval('rdma_connect'));
    expect(await rejection(id.accept({ qpNum: newQpNum() }, soon()))).toMatchObject(einval('rdma_accept'));
    expect(await rejection(id.disconnect(soon()))).toMatchObject(einval('rdma_disconnect'));
    expect(thrown(() => id.reject())).toMatchObject(einval('rdma_reject'));
    expect(thrown(() => id.establish())).toMatchObject({ syscall: 'rdma_establish' });
    expect(thrown(() => id.initQpAttr(1))).toMatchObject(einval('rdma_init_qp_attr'));
    channel.close({ cascade: true });
  });

  it('makes no queue pair before there is a device, nor on another one, nor a second one', async () => {
    const channel = createEventChannel();
    const side = openSide(deviceA);
    const id = channel.createId();
    expect(await rejection(id.createQp(side.pd, { sendCq: side.cq }))).toMatchObject({
      code: 'EINVAL',
      syscall: 'rdma_create_qp',
    });
    await id.bindAddr({ address: addressB });
    const foreign = await rejection(id.createQp(side.pd, { sendCq: side.cq }));
    expect(foreign).toMatchObject({ code: 'ERR_INVALID_ARG_VALUE' });
    expect(foreign.message).toBe('pd is of rxe0, but the id is bound to rxe1');
    const other = channel.createId();
    await other.bindAddr({ address: addressA });
    const qp = await other.createQp(side.pd, { sendCq: side.cq });
    expect(await rejection(other.createQp(side.pd, { sendCq: side.cq }))).toMatchObject({
      code: 'ERR_INVALID_STATE',
    });
    expect(await rejection(other.connect({ qpNum: 5 }, soon()))).toMatchObject({ code: 'ERR_INVALID_ARG_VALUE' });
    qp.close();
    channel.close({ cascade: true });
    side.context.close({ cascade: true });
  });

  it('refuses private data that the message has no room for, before the call', async () => {
    const channel = createEventChannel();
    const port = newPort();
    const listener = await listening(channel, port);
    const id = await resolved(channel, port);
    const tooLong = await rejection(id.connect({ qpNum: newQpNum(), privateData: Buffer.alloc(57) }, soon()));
    expect(tooLong).toMatchObject({ code: 'ERR_INVALID_ARG_VALUE' });
    expect(tooLong.message).toBe('privateData has 57 bytes, and this message has room for 56');
    const pending = rejection(id.connect({ qpNum: newQpNum(), privateData: Buffer.alloc(56, 7) }, soon()));
    const asked = await request(listener);
    expect(asked.conn?.privateData).toEqual(Buffer.alloc(56, 7));
    expect((await rejection(asked.id.accept({ privateData: Buffer.alloc(197) }, soon()))).message).toContain(
      'room for 196',
    );
    expect(thrown(() => asked.id.reject(Buffer.alloc(149))).message).toContain('room for 148');
    asked.id.reject(Buffer.alloc(148, 9));
    expect(((await pending) as CmError).privateData).toEqual(Buffer.alloc(148, 9));
    const datagrams = channel.createId(PortSpace.UDP);
    await datagrams.bindAddr({ address: addressA });
    const ud = await rejection(datagrams.connect({ privateData: Buffer.alloc(181) }, soon()));
    expect(ud.message).toContain('room for 180');
    channel.close({ cascade: true });
  });
});

describeCm('steps that do not end', () => {
  expectNoLeaks();

  it('reject when their id is closed, and those who wait for its events too', async () => {
    const channel = createEventChannel();
    const port = newPort();
    await listening(channel, port);
    const id = await resolved(channel, port);
    const step = rejection(id.connect({ qpNum: newQpNum() }));
    const event = rejection(id.getEvent());
    id.close();
    expect(await step).toBeInstanceOf(RdmaClosedError);
    expect(await event).toBeInstanceOf(RdmaClosedError);
    expect(await rejection(id.connect())).toBeInstanceOf(RdmaClosedError);
    const resolving = channel.createId();
    const early = rejection(resolving.resolveAddr({ address: addressB, port: 1 }));
    resolving.close();
    expect(await early).toBeInstanceOf(RdmaClosedError);
    const waiting = rejection(channel.getEvent());
    channel.close({ cascade: true });
    expect(await waiting).toBeInstanceOf(RdmaClosedError);
  });

  it('reject with the reason of their signal; the event comes to the channel', async () => {
    const channel = createEventChannel();
    const port = newPort();
    const listener = await listening(channel, port);
    const id = await resolved(channel, port);
    const controller = new AbortController();
    const step = rejection(id.connect({ qpNum: newQpNum() }, { signal: controller.signal }));
    const asked = await request(listener);
    const reason = new Error('enough');
    controller.abort(reason);
    expect(await step).toBe(reason);
    asked.id.reject();
    expect(await id.getEvent(soon())).toMatchObject({ name: 'REJECTED', id, error: { code: 'ECONNREFUSED' } });
    expect(await rejection(id.getEvent({ signal: AbortSignal.abort(reason) }))).toBe(reason);
    expect(await rejection(id.resolveRoute({ signal: AbortSignal.abort(reason) }))).toBe(reason);
    channel.close({ cascade: true });
  });

  it('a channel is not closed under its ids, and a closed one does nothing', async () => {
    const channel = createEventChannel();
    const id = channel.createId();
    expect(thrown(() => channel.close())).toMatchObject({ code: 'EBUSY', syscall: 'rdma_destroy_event_channel' });
    id.close();
    id.close();
    channel.close();
    expect(thrown(() => channel.createId())).toBeInstanceOf(RdmaClosedError);
    expect(await rejection(channel.getEvent())).toBeInstanceOf(RdmaClosedError);
    for (const call of [() => id.listen(), () => id.reject(), () => id.verbs, () => id.setOption({ tos: 1 })]) {
      expect(thrown(call)).toBeInstanceOf(RdmaClosedError);
    }
  });

  it('an id goes to another channel with its events, its waits and its steps', async () => {
    const [first, second] = [createEventChannel(), createEventChannel()];
    const port = newPort();
    const listener = await listening(first, port);
    const id = await resolved(first, port);
    const waiting = listener.getEvent(soon());
    listener.migrate(second);
    expect(listener.channel).toBe(second);
    const step = rejection(id.connect({ qpNum: newQpNum() }, soon()));
    id.migrate(second);
    first.close();
    const asked = await waiting;
    expect(asked).toMatchObject({ name: 'CONNECT_REQUEST', listenId: listener });
    expect(asked.id.channel).toBe(second);
    asked.id.reject();
    expect(await step).toMatchObject({ code: 'ECONNREFUSED', status: 28 });
    second.close({ cascade: true });
  });

  it('destroys ids in every state without holding the event loop', async () => {
    using pair = await CmPair.connect();
    const { channel, a } = pair;
    const port = newPort();
    const listener = await listening(channel, port);
    const connecting = await resolved(channel, port);
    const step = rejection(connecting.connect({ qpNum: newQpNum() }, soon()));
    const asked = await request(listener);
    const resolving = channel.createId();
    const resolution = rejection(resolving.resolveAddr({ address: addressB, port }, soon()));
    const times: Record<string, number> = {};
    const ids = { resolving, connecting, asked: asked.id, listener, connected: a.id, fresh: channel.createId() };
    for (const [name, id] of Object.entries(ids)) {
      const begin = performance.now();
      id.close();
      times[name] = performance.now() - begin;
    }
    await Promise.all([step, resolution]);
    // A second is what a wait for a peer or a timer would take at the least; emulation is slow, but not that slow.
    for (const [name, ms] of Object.entries(times)) expect(ms, name).toBeLessThan(1000);
  });
});

type Native = (...args: unknown[]) => unknown;
const native = binding() as unknown as Record<string, Native>;
const call = (name: string, ...args: unknown[]): unknown => native[name]!(...args);

const garbage = [undefined, null, 0, -1, 'text', true, 1n, () => {}, {}, [], Buffer.alloc(8), Object.create(null)];

describeCm('the functions of the addon', () => {
  expectNoLeaks();

  it('refuse every other object than the handle that they take, garbage behind it, and a handle that is closed', () => {
    const channel = call('createEventChannel');
    const events = call('createCmEvents', channel, () => {});
    const { handle: id } = call('createCmId', channel, PortSpace.TCP) as { handle: unknown };
    const context = (call('openDevice', deviceA) as { handle: unknown }).handle;
    const handles: Record<string, unknown> = { EventChannel: channel, CmEvents: events, CmId: id };
    for (const [kind, names] of Object.entries(cmFunctionsOf)) {
      const others = Object.keys(handles).filter((other) => other !== kind);
      const wrong = [
        ...garbage,
        context,
        ...others.map((other) => handles[other]),
        Object.create(handles[kind] as object),
      ];
      for (const name of names) {
        for (const value of wrong) {
          const { code } = thrown(() => call(name, value, value, value, value, value, value));
          expect(code, `${name}(${typeof value})`).toBe('ERR_INVALID_ARG_TYPE');
        }
      }
    }
    // What is left of the arguments; those of one byte are cut to it.
    for (const [name, ...args] of [
      ['createCmEvents', channel, {}],
      ['createCmId', channel, 'TCP'],
      ['createEp', channel, {}],
      ['createEp', channel, { flags: 0, family: 0, qpType: 2, portSpace: 262, dstAddr: {} }],
      ['takeCmId', events, 7],
      ['bindAddr', id, 'nowhere', 1],
      ['bindAddr', id, '::', 'x'],
      ['resolveAddr', id, '10.0.0.1', 1, 7, 1, 1],
      ['resolveRoute', id, 'x'],
      ['setCmOption', id, {}, 1],
      ['migrateCmId', id, id],
      ['joinMulticast', id, '239.0.0.1', 0, {}, 1],
      ['connectCmId', id, {}],
      ['rejectCmId', id, Buffer.alloc(256)],
      ['initQpAttr', id, {}],
      ['initQpAttr', id, QpState.RTS],
    ] as [string, ...unknown[]][]) {
      expect(
        thrown(() => call(name, ...args)),
        name,
      ).toBeInstanceOf(Error);
    }
    call('destroyCmEvents', events);
    call('destroyCmId', id);
    call('destroyCmId', id);
    call('destroyEventChannel', channel);
    call('closeDevice', context);
    expect(thrown(() => call('queryCmId', id)).code).toBe('ERR_RDMA_CLOSED');
    expect(thrown(() => call('createCmId', channel, PortSpace.TCP)).code).toBe('ERR_RDMA_CLOSED');
    expect(thrown(() => call('startCmEvents', events, true)).code).toBe('ERR_RDMA_CLOSED');
  });
});
