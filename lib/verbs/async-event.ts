import { named, nameOf, printed } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import { EventType } from '../native/constants.gen.ts';
import type { AsyncEventsHandle, ContextHandle } from '../native/native.ts';
import type { CompletionQueue } from './completion-queue.ts';
import type { QueuePair } from './queue-pair.ts';
import type { ReceiveWorkQueue } from './receive-work-queue.ts';
import type { Resource } from './resource.ts';
import type { SharedReceiveQueue } from './shared-receive-queue.ts';
import { eventTypeStr } from './text.ts';

/** An asynchronous event of a device: `struct ibv_async_event`. It says what it is about; the other fields are absent. */
export interface AsyncEvent {
  /** What happened: one of `EventType`, or a number that is younger than this package. */
  type: number;
  /** The C name without its prefix, such as `'QP_FATAL'`, or the number. */
  name: string;
  /** The queue pair that it is about. */
  qp?: QueuePair;
  /** The completion queue. */
  cq?: CompletionQueue;
  /** The shared receive queue. */
  srq?: SharedReceiveQueue;
  /** The receive work queue. */
  wq?: ReceiveWorkQueue;
  /** The port, from 1. */
  portNum?: number;
}

// The name is in the type.
const printedEvent = printed<AsyncEvent>('AsyncEvent', { type: named(EventType, eventTypeStr), name: null });

/** The events of one context, and the objects that they can be about. @internal */
export class AsyncEvents {
  readonly #context: ContextHandle;
  // Made when somebody waits for the first time.
  #handle: AsyncEventsHandle | undefined;
  readonly #elements = new Map<string, WeakRef<Resource>>();
  readonly #events: AsyncEvent[] = [];
  readonly #waiters = new Set<() => void>();

  constructor(context: ContextHandle) {
    this.#context = context;
  }

  /** An object that events can be about, by what the addon calls it. */
  enter(kind: 'qp' | 'cq' | 'srq' | 'wq', number: number, element: Resource): void {
    this.#elements.set(`${kind}${number}`, new WeakRef(element));
  }

  leave(kind: 'qp' | 'cq' | 'srq' | 'wq', number: number): void {
    this.#elements.delete(`${kind}${number}`);
  }

  /** The next event, or undefined when there is none yet. */
  take(): AsyncEvent | undefined {
    return this.#events.shift();
  }

  /** Calls when there are events. The first waiter begins to watch, and so keeps the process alive; the last one ends it. */
  addWaiter(wake: () => void): void {
    this.#waiters.add(wake);
    if (this.#waiters.size > 1) return;
    if (this.#handle === undefined) {
      // Not `this`: the addon holds the callback, which must not hold the context.
      const self = new WeakRef<AsyncEvents>(this);
      this.#handle = binding().createAsyncEvents(this.#context, (numbers) => {
        const found = self.deref();
        if (found) found.#arrived(numbers);
      });
    }
    binding().startAsyncEvents(this.#handle);
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
    for (let i = 0; i < numbers.length; i += 3) {
      const [type = 0, kind = 0, number = 0] = numbers.slice(i, i + 3);
      const event = printedEvent({ type, name: nameOf(EventType, type) });
      const element = kinds[kind];
      if (element === 'portNum') event.portNum = number;
      else if (element) Object.assign(event, { [element]: this.#elements.get(`${element}${number}`)?.deref() });
      this.#events.push(event);
    }
    for (const wake of this.#waiters) wake();
  }
}

// As in native/verbs/async_event.cc.
const kinds = [undefined, 'portNum', 'qp', 'cq', 'srq', 'wq'] as const;
