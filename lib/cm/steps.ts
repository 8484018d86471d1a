import { abortSignal } from '../args.ts';
import { CmEventType } from '../native/constants.gen.ts';
import { type CmEvent, errorOf } from './cm-event.ts';
import type { EventChannel } from './event-channel.ts';

/** What is begun, and which events end it. @internal */
export interface Step {
  /** The C function. */
  operation: string;
  /** The events that say that it is done. */
  ends: readonly number[];
  /** Those that say that it failed. */
  fails: readonly number[];
  /** For a multicast group: the number of the join that the event must have. */
  join?: number;
  /** Calls the C function. */
  start: () => void | Promise<void>;
}

interface Pending extends Step {
  isSettled: boolean;
  resolve: (event: CmEvent) => void;
  reject: (error: Error) => void;
}

/** The steps of one id that are under way. @internal */
export class Steps {
  #channel: EventChannel;
  #pending: Pending[] = [];

  constructor(channel: EventChannel) {
    this.#channel = channel;
  }

  /** Begins something, and waits for the event that ends it. */
  async run(step: Step, given: unknown): Promise<CmEvent> {
    const signal = abortSignal(given, 'options.signal');
    signal?.throwIfAborted();
    const pending: Pending = { ...step, isSettled: false, resolve: () => {}, reject: () => {} };
    const abort = () => pending.reject(signal?.reason as Error);
    this.#pending.push(pending);
    this.#channel.wait(1);
    signal?.addEventListener('abort', abort, { once: true });
    try {
      const settled = new Promise<CmEvent>((resolve, reject) => Object.assign(pending, { resolve, reject }));
      const [event] = await Promise.all([settled, step.start()]);
      return event;
    } finally {
      this.#pending = this.#pending.filter((other) => other !== pending);
      this.#channel.wait(-1);
      signal?.removeEventListener('abort', abort);
    }
  }

  /** An event has come; true when a step has taken it. */
  settle(event: CmEvent, join: number): boolean {
    const { type, status } = event;
    if (type === CmEventType.DEVICE_REMOVAL) {
      for (const step of this.#pending) step.reject(errorOf(step.operation, event));
      return false;
    }
    const found = this.#pending.filter(
      ({ ends, fails, join: number, isSettled }) =>
        !isSettled && (ends.includes(type) || fails.includes(type)) && (number === undefined || number === join),
    );
    // Each step has an event of its own, but a connection ends once, whoever waits for that.
    const steps = type === CmEventType.DISCONNECTED ? found : found.slice(0, 1);
    for (const step of steps) {
      step.isSettled = true;
      if (status === 0 && step.ends.includes(type)) step.resolve(event);
      else step.reject(errorOf(step.operation, event));
    }
    return steps.length > 0;
  }

  /** The id goes to another channel: its waits go along. */
  moveTo(channel: EventChannel): void {
    this.#channel.wait(-this.#pending.length);
    this.#channel = channel;
    channel.wait(this.#pending.length);
  }

  /** The id is closed. */
  rejectAll(error: Error): void {
    for (const step of this.#pending) step.reject(error);
  }
}
