import { named, nameOf, printed } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import { EventType } from '../native/constants.gen.ts';
import type { AsyncEventsHandle, ContextHandle } from '../native/native.ts';
import type { AnyQueuePair } from './any-queue-pair.ts';
import type { CompletionQueue } from './completion-queue.ts';
import type { ReceiveWorkQueue } from './receive-work-queue.ts';
import type { Resource } from './resource.ts';
import type { SharedReceiveQueue } from './shared-receive-queue.ts';
import { eventTypeStr } from './text.ts';

/** What an event can be about. An object that the program has let go of is undefined. */
export interface AsyncEventElements {
  /** The queue pair. */
  qp: AnyQueuePair | undefined;
  /** The completion queue. */
  cq: CompletionQueue | undefined;
  /** The shared receive queue. */
  srq: SharedReceiveQueue | undefined;
  /** The receive work queue. */
  wq: ReceiveWorkQueue | undefined;
  /** The port, from 1. */
  portNum: number;
}

/** An event of some types, with what it is about. The other fields are absent. */
export type AsyncEventOf<Type extends EventType, About extends keyof AsyncEventElements = never> = {
  /** What happened. */
  type: Type;
  /** The C name without its prefix, such as `'QP_FATAL'`. */
  name: string;
} & Pick<AsyncEventElements, About> & { [Other in Exclude<keyof AsyncEventElements, About>]?: undefined };

/**
 * An asynchronous event of a device: `struct ibv_async_event`. Its `type` says what it is about, so that in a `case` of a
 * `switch` its `qp`, `cq`, `srq`, `wq` or `portNum` is there. One that is younger than this package comes as its number,
 * which is its `name` too: no `case` is for it.
 */
export type AsyncEvent =
  | AsyncEventOf<(typeof EventType)['CQ_ERR'], 'cq'>
  | AsyncEventOf<
      (typeof EventType)[
        | 'QP_FATAL'
        | 'QP_REQ_ERR'
        | 'QP_ACCESS_ERR'
        | 'COMM_EST'
        | 'SQ_DRAINED'
        | 'PATH_MIG'
        | 'PATH_MIG_ERR'
        | 'QP_LAST_WQE_REACHED'],
      'qp'
    >
  | AsyncEventOf<(typeof EventType)['SRQ_ERR' | 'SRQ_LIMIT_REACHED'], 'srq'>
  | AsyncEventOf<(typeof EventType)['WQ_FATAL'], 'wq'>
  | AsyncEventOf<
      (typeof EventType)[
        | 'PORT_ACTIVE'
        | 'PORT_ERR'
        | 'LID_CHANGE'
        | 'PKEY_CHANGE'
        | 'SM_CHANGE'
        | 'CLIENT_REREGISTER'
        | 'GID_CHANGE'],
      'portNum'
    >
  | AsyncEventOf<(typeof EventType)['DEVICE_FATAL' | 'DEVICE_SPEED_CHANGE']>;

// The name is in the type.
const printedEvent = printed<AsyncEvent>('AsyncEvent', { type: named(EventType, eventTypeStr), name: null });

/** An event that nobody has taken yet. */
interface Arrived {
  type: number;
  portNum?: number;
  kind?: Element;
  element?: WeakRef<Resource> | undefined;
}

type Element = 'qp' | 'cq' | 'srq' | 'wq';

/** The events of one context, and the objects that they can be about. @internal */
export class AsyncEvents {
  readonly #context: ContextHandle;
  readonly #onFatal: () => void;
  // Made when somebody waits for the first time, for an event or for a completion.
  #handle: AsyncEventsHandle | undefined;
  readonly #elements = new Map<string, WeakRef<Resource>>();
  // What has come and nobody has taken yet. An object that is only named here may be collected.
  readonly #events: Arrived[] = [];
  #isFatal = false;
  readonly #waiters = new Set<() => void>();

  /** @param onFatal - called once the device is gone; must not hold the context */
  constructor(context: ContextHandle, onFatal: () => void) {
    this.#context = context;
    this.#onFatal = onFatal;
  }

  /** An object that events can be about, by what the addon calls it. */
  enter(kind: Element, number: number, element: Resource): void {
    this.#elements.set(`${kind}${number}`, new WeakRef(element));
  }

  leave(kind: Element, number: number): void {
    this.#elements.delete(`${kind}${number}`);
  }

  /** The next event, or undefined when there is none yet. */
  take(): AsyncEvent | undefined {
    const found = this.#events.shift();
    if (found === undefined) return undefined;
    const { type, portNum, kind, element } = found;
    const about = portNum !== undefined ? { portNum } : kind !== undefined ? { [kind]: element?.deref() } : {};
    // Of that shape by what the addon says of each type.
    return printedEvent({ type, name: nameOf(EventType, type), ...about } as AsyncEvent);
  }

  /**
   * Begins to watch, for who waits for completions would wait for ever on a device that is gone. This does not keep the
   * process alive.
   */
  watch(): AsyncEventsHandle {
    // Not `this`: the addon holds the callback, which must not hold the context.
    const self = new WeakRef<AsyncEvents>(this);
    this.#handle ??= binding().createAsyncEvents(this.#context, (...numbers) => {
      const found = self.deref();
      if (found) found.#arrived(numbers);
    });
    return this.#handle;
  }

  /** Calls when there are events. The first waiter keeps the process alive; the last one ends that. */
  addWaiter(wake: () => void): void {
    this.#waiters.add(wake);
    if (this.#waiters.size === 1) binding().startAsyncEvents(this.watch());
  }

  removeWaiter(wake: () => void): void {
    if (this.#waiters.delete(wake) && this.#waiters.size === 0 && this.#handle) binding().stopAsyncEvents(this.#handle);
  }

  close(): void {
    if (this.#handle) binding().destroyAsyncEvents(this.#handle);
    this.#handle = undefined;
    for (const wake of this.#waiters) wake();
    this.#waiters.clear();
  }

  // Three numbers an event: its type, the kind of object, which one.
  #arrived(numbers: number[]): void {
    let isFatal = false;
    for (let i = 0; i < numbers.length; i += 3) {
      const [type = 0, which = 0, number = 0] = numbers.slice(i, i + 3);
      // Of a device that was removed it may come twice.
      if (type === EventType.DEVICE_FATAL && (isFatal || this.#isFatal)) continue;
      isFatal ||= type === EventType.DEVICE_FATAL;
      const kind = kinds[which];
      if (kind === 'portNum') this.#events.push({ type, portNum: number });
      else if (kind === undefined) this.#events.push({ type });
      else {
        const element = this.#elements.get(`${kind}${number}`);
        this.#events.push({ type, kind, element });
        if (kind === 'qp' && failures.includes(type))
          (element?.deref() as AnyQueuePair | undefined)?.failed(type as EventType);
      }
    }
    if (isFatal) {
      this.#isFatal = true;
      this.#onFatal();
    }
    for (const wake of this.#waiters) wake();
  }
}

// After these a queue pair is in the error state.
const failures: readonly number[] = [EventType.QP_FATAL, EventType.QP_REQ_ERR, EventType.QP_ACCESS_ERR];

// As in native/verbs/async_event.cc.
const kinds = [undefined, 'portNum', 'qp', 'cq', 'srq', 'wq'] as const;
