/** The type of an asynchronous event says what it is about: to the compiler, which reads this file before it runs. */
import { describe, expect, expectTypeOf, it } from 'vitest';
import {
  type AnyQueuePair,
  type AsyncEvent,
  type CompletionQueue,
  EventType,
  type ReceiveWorkQueue,
  type SharedReceiveQueue,
} from '../../lib/index.ts';

/** What an event is about, by all of its types. The compiler finds a field that is not there, and a type that is missing. */
function about(event: AsyncEvent): keyof AsyncEvent | 'device' {
  switch (event.type) {
    case EventType.CQ_ERR:
      expectTypeOf(event.cq).toEqualTypeOf<CompletionQueue | undefined>();
      expectTypeOf(event.qp).toEqualTypeOf<undefined>();
      return 'cq';
    case EventType.QP_FATAL:
    case EventType.QP_REQ_ERR:
    case EventType.QP_ACCESS_ERR:
    case EventType.COMM_EST:
    case EventType.SQ_DRAINED:
    case EventType.PATH_MIG:
    case EventType.PATH_MIG_ERR:
    case EventType.QP_LAST_WQE_REACHED:
      expectTypeOf(event.qp).toEqualTypeOf<AnyQueuePair | undefined>();
      expectTypeOf(event.portNum).toEqualTypeOf<undefined>();
      return 'qp';
    case EventType.SRQ_ERR:
    case EventType.SRQ_LIMIT_REACHED:
      expectTypeOf(event.srq).toEqualTypeOf<SharedReceiveQueue | undefined>();
      expectTypeOf(event.cq).toEqualTypeOf<undefined>();
      return 'srq';
    case EventType.WQ_FATAL:
      expectTypeOf(event.wq).toEqualTypeOf<ReceiveWorkQueue | undefined>();
      expectTypeOf(event.srq).toEqualTypeOf<undefined>();
      return 'wq';
    case EventType.PORT_ACTIVE:
    case EventType.PORT_ERR:
    case EventType.LID_CHANGE:
    case EventType.PKEY_CHANGE:
    case EventType.SM_CHANGE:
    case EventType.CLIENT_REREGISTER:
    case EventType.GID_CHANGE:
      expectTypeOf(event.portNum).toEqualTypeOf<number>();
      expectTypeOf(event.wq).toEqualTypeOf<undefined>();
      return 'portNum';
    case EventType.DEVICE_FATAL:
    case EventType.DEVICE_SPEED_CHANGE:
      expectTypeOf(event.portNum).toEqualTypeOf<undefined>();
      return 'device';
    default:
      return event satisfies never;
  }
}

describe('an asynchronous event', () => {
  it('is about what its type says', () => {
    const types = Object.values(EventType);
    const kinds = types.map((type) => about({ type, name: '' } as AsyncEvent));
    expect(kinds).not.toContain(undefined);
    expect([...new Set(kinds)].sort()).toEqual(['cq', 'device', 'portNum', 'qp', 'srq', 'wq']);
    // Without asking for the type, each may be there.
    expectTypeOf<AsyncEvent['qp']>().toEqualTypeOf<AnyQueuePair | undefined>();
    expectTypeOf<AsyncEvent['portNum']>().toEqualTypeOf<number | undefined>();
    expectTypeOf<AsyncEvent['type']>().toEqualTypeOf<EventType>();
  });
});
