/** Events of the connection manager as the addon lays them out, also such as no kernel here brings about. */
import { describe, expect, it } from 'vitest';
import { errorOf, isFailure, type RawEvent, readEvents } from '../../lib/cm/cm-event.ts';
import type { EventChannel } from '../../lib/cm/event-channel.ts';
import { Steps } from '../../lib/cm/steps.ts';
import { CmEventType } from '../../lib/index.ts';

const E = CmEventType;
const [NONE, CONN, UD, MULTICAST] = [0, 1, 2, 3];

/** Bytes as they come: in words, the last of which is filled up with what is none of them. */
function words(bytes: readonly number[]): number[] {
  const padded = Buffer.alloc((bytes.length + 3) & ~3, 0xee);
  padded.set(bytes);
  return [...new Uint32Array(padded.buffer, padded.byteOffset, padded.length / 4)];
}

const counting = (length: number) => Array.from({ length }, (_, i) => i + 1);
const head = (type: number, { status = 0, about = 5, other = 0, kind = NONE } = {}) => [
  ...[type, status >>> 0, about, other, kind],
];
const conn = (type: number, data: readonly number[], options: { status?: number; other?: number } = {}) => [
  ...[...head(type, { ...options, kind: CONN }), 4, 8, 1, 7, 6, 1, 0x12_3456],
  ...[data.length, ...words(data)],
];
const datagrams = (type: number, kind: number, isGlobal: boolean, data: readonly number[]) => [
  ...[...head(type, { kind, other: 9 }), 0x11, 0x0123_4567, Number(isGlobal), 3, 2, 64, 104],
  ...[0, 1, 0, 0, 1, ...words([...Array(10).fill(0), 255, 255, 10, 78, 0, 2])],
  ...[data.length, ...words(data)],
];
const one = (numbers: number[]): RawEvent => {
  const events = [...readEvents(numbers)];
  expect(events).toHaveLength(1);
  return events[0] as RawEvent;
};

describe('an event of the connection manager', () => {
  it('has the parameters of a connection, and as many bytes as came', () => {
    for (const length of [0, 1, 2, 3, 4, 5, 56, 195, 196]) {
      const data = counting(length);
      expect(one(conn(E.CONNECT_REQUEST, data, { other: 6 }))).toEqual({
        type: E.CONNECT_REQUEST,
        name: 'CONNECT_REQUEST',
        status: 0,
        about: 5,
        other: 6,
        conn: {
          privateData: Buffer.from(data),
          responderResources: 4,
          initiatorDepth: 8,
          flowControl: true,
          retryCount: 7,
          rnrRetryCount: 6,
          srq: true,
          qpNum: 0x12_3456,
        },
      });
    }
  });

  it('has those of a datagram service, with a global route or none', () => {
    const { ud } = one(datagrams(E.ESTABLISHED, UD, true, counting(7)));
    expect(ud).toEqual({
      privateData: Buffer.from(counting(7)),
      ahAttr: {
        ...{ dlid: 0, sl: 1, srcPathBits: 0, staticRate: 0, portNum: 1 },
        grh: { dgid: '::ffff:10.78.0.2', sgidIndex: 2, flowLabel: 3, hopLimit: 64, trafficClass: 104 },
      },
      qpNum: 0x11,
      qkey: 0x0123_4567,
    });
    expect(one(datagrams(E.ESTABLISHED, UD, false, [])).ud?.ahAttr.grh).toBeUndefined();
  });

  it('comes one of several in a call, each with what is its own', () => {
    const numbers = [
      ...conn(E.CONNECT_REQUEST, counting(5), { other: 6 }),
      ...head(E.ADDR_CHANGE),
      ...datagrams(E.MULTICAST_JOIN, MULTICAST, true, []),
      ...conn(E.REJECTED, counting(1), { status: 28 }),
      ...head(E.TIMEWAIT_EXIT, { about: 7 }),
      ...conn(E.ESTABLISHED, [0xff]),
    ];
    const events = [...readEvents(numbers)];
    expect(events.map(({ name, status, about, other }) => [name, status, about, other])).toEqual([
      ['CONNECT_REQUEST', 0, 5, 6],
      ['ADDR_CHANGE', 0, 5, 0],
      ['MULTICAST_JOIN', 0, 5, 9],
      ['REJECTED', 28, 5, 0],
      ['TIMEWAIT_EXIT', 0, 7, 0],
      ['ESTABLISHED', 0, 5, 0],
    ]);
    expect(events.map(({ conn }) => conn?.privateData.length)).toEqual([5, undefined, undefined, 1, undefined, 1]);
    expect(events[5]?.conn?.privateData).toEqual(Buffer.of(0xff));
    expect([...readEvents([])]).toEqual([]);
  });

  it('of a type that nobody knows has its number for a name, and is no failure by itself', () => {
    expect(one(conn(99, counting(3)))).toMatchObject({ type: 99, name: '99', status: 0 });
    expect(isFailure(99)).toBe(false);
    const error = errorOf('rdma_get_cm_event', one(conn(99, counting(3), { status: -5 })));
    expect(error).toMatchObject({ code: 'EIO', event: 99, eventName: '99', status: -5 });
    expect(error.privateData).toEqual(Buffer.of(1, 2, 3));
    // A status that is no errno of this system.
    expect(errorOf('rdma_connect', one(head(99, { status: -9999 })))).toMatchObject({ code: 'EIO', status: -9999 });
  });

  it.each([
    // The kernel gives up by itself: a status is an errno then, and no reason of the peer's.
    [E.REJECTED, -110, 'ECONNREFUSED', 'connection timed out'],
    [E.REJECTED, 28, 'ECONNREFUSED', "the peer's program refused (reason 28)"],
    [E.REJECTED, 77, 'ECONNREFUSED', 'reason 77'],
    [E.UNREACHABLE, -110, 'ETIMEDOUT', 'connection timed out'],
    [E.UNREACHABLE, 2, 'ECONNREFUSED', "the peer's program refused (SIDR status 2)"],
    [E.UNREACHABLE, 9, 'ECONNREFUSED', 'SIDR status 9'],
    [E.DEVICE_REMOVAL, 0, 'ENODEV', 'the device was removed'],
    [E.MULTICAST_ERROR, -22, 'EINVAL', 'invalid argument'],
    [E.CONNECT_ERROR, -104, 'ECONNRESET', 'connection reset by peer'],
    [E.CONNECT_ERROR, 0, 'EIO', 'status 0'],
    [E.DISCONNECTED, 0, 'ECONNRESET', 'the peer has ended the connection'],
  ])('%i with status %i rejects with %s: %s', (type, status, code, text) => {
    const event = one(conn(type, [], { status }));
    expect(event.status).toBe(status);
    const error = errorOf('rdma_connect', event);
    expect(error).toMatchObject({ code, status, event: type });
    expect(error.message).toBe(`rdma_connect: RDMA_CM_EVENT_${event.name}, ${text}`);
    expect(isFailure(type)).toBe(type !== E.DISCONNECTED);
  });
});

describe('a step', () => {
  const channel = { wait: () => {} } as unknown as EventChannel;
  const eventOf = (type: number, status = 0) => ({ ...one(head(type, { status })), id: undefined as never });
  const connecting = (steps: Steps) =>
    steps.run(
      { operation: 'rdma_connect', ends: [E.ESTABLISHED], fails: [E.REJECTED, E.CONNECT_ERROR], start: () => {} },
      undefined,
    );

  it('takes the event that ends it, and leaves to the channel what it does not wait for', async () => {
    const steps = new Steps(channel);
    const step = connecting(steps);
    for (const type of [E.ADDR_CHANGE, E.TIMEWAIT_EXIT, E.UNREACHABLE, 99]) {
      expect(steps.settle(eventOf(type), 0)).toBe(false);
    }
    expect(steps.settle(eventOf(E.ESTABLISHED), 0)).toBe(true);
    // One that has ended takes no more.
    expect(steps.settle(eventOf(E.ESTABLISHED), 0)).toBe(false);
    expect(await step).toMatchObject({ name: 'ESTABLISHED' });
    expect(steps.settle(eventOf(E.REJECTED, 28), 0)).toBe(false);
  });

  it('fails by an event that says so, by a status, and by the removal of the device, which is given out too', async () => {
    for (const [type, status, isTaken, code] of [
      [E.CONNECT_ERROR, -104, true, 'ECONNRESET'],
      [E.ESTABLISHED, -110, true, 'ETIMEDOUT'],
      [E.DEVICE_REMOVAL, 0, false, 'ENODEV'],
    ] as const) {
      const steps = new Steps(channel);
      const steps2 = [connecting(steps), connecting(steps)];
      const outcome = Promise.allSettled(steps2);
      expect(steps.settle(eventOf(type, status), 0)).toBe(isTaken);
      if (isTaken) steps.rejectAll(new Error('closed'));
      const [first, second] = (await outcome) as PromiseRejectedResult[];
      expect(first?.reason).toMatchObject({ code });
      if (isTaken) expect(second?.reason.message).toBe('closed');
      else expect(second?.reason).toMatchObject({ code });
    }
  });

  it('of a multicast group takes only the event of its own join', async () => {
    const steps = new Steps(channel);
    const join = (number: number) =>
      steps.run(
        {
          ...{ operation: 'rdma_join_multicast', ends: [E.MULTICAST_JOIN], fails: [E.MULTICAST_ERROR], join: number },
          start: () => {},
        },
        undefined,
      );
    const [first, second] = [join(1), join(2)];
    const failed = first.catch((error) => error);
    expect(steps.settle(eventOf(E.MULTICAST_JOIN), 3)).toBe(false);
    expect(steps.settle(eventOf(E.MULTICAST_JOIN), 2)).toBe(true);
    expect(steps.settle(eventOf(E.MULTICAST_ERROR, -110), 1)).toBe(true);
    expect(await second).toMatchObject({ name: 'MULTICAST_JOIN' });
    expect(await failed).toMatchObject({ code: 'ETIMEDOUT', eventName: 'MULTICAST_ERROR' });
  });
});
