import { stateError } from '../args.ts';
import type { RecvWr } from '../verbs/recv-list.ts';
import type { SendWr } from '../verbs/send-wr.ts';
import type { Endpoint } from './endpoint.ts';
import { type OperationOptions, Operations, type Received } from './operations.ts';

/**
 * A part of a program that is not left before every operation that it began has completed: made by `endpoint.scope()`.
 * It has the operations of the endpoint, in one order with all others.
 */
export class Scope extends Operations {
  readonly #endpoint: Endpoint;
  #underWay = 0;
  #failure: { error: unknown } | undefined;
  #isLeft = false;
  #onIdle: (() => void) | undefined;

  /** @internal */
  constructor(endpoint: Endpoint) {
    super();
    this.#endpoint = endpoint;
  }

  /** @internal */
  override perform(wr: SendWr, name: string, options: OperationOptions | undefined): Promise<void> {
    // One that nobody waits for is waited for here.
    const awaited = options?.signaled === false ? { ...options, signaled: true } : options;
    return this.#entered(() => this.#endpoint.perform(wr, name, awaited, this));
  }

  /** @internal */
  override performRecv(wr: RecvWr, options: { signal?: AbortSignal } | undefined): Promise<Received> {
    return this.#entered(() => this.#endpoint.performRecv(wr, options, this));
  }

  /** @internal */
  override performAll(wrs: readonly SendWr[], options: { signal?: AbortSignal } | undefined): Promise<void> {
    return this.#entered(() => this.#endpoint.performAll(wrs, options, this));
  }

  /** Counts an operation, whatever becomes of the promise that its caller has. @internal */
  track(operation: Promise<unknown>): void {
    this.#underWay++;
    const ended = () => {
      this.#underWay--;
      if (this.#underWay === 0) this.#onIdle?.();
    };
    operation.then(ended, (error) => {
      this.#failure ??= { error };
      ended();
    });
  }

  /** Ends it: resolves when all has completed. @internal */
  async leave(): Promise<void> {
    while (this.#underWay > 0) {
      await new Promise<void>((resolve) => {
        this.#onIdle = resolve;
      });
    }
    this.#isLeft = true;
  }

  /** @internal */
  throwIfFailed(): void {
    if (this.#failure) throw this.#failure.error;
  }

  #entered<T>(begin: () => Promise<T>): Promise<T> {
    if (this.#isLeft) return Promise.reject(stateError('The scope was left: its operations are over'));
    const promise = begin();
    // Who does not look at it is told by the scope.
    promise.catch(() => {});
    return promise;
  }
}
