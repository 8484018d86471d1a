import { brief } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import type { ChannelEventsHandle, ChannelHandle, ContextHandle } from '../native/native.ts';
import type { CompletionQueue } from './completion-queue.ts';
import { Resource } from './resource.ts';

/**
 * A completion channel: where completion queues tell that they have something. Its fd is watched on the event loop while
 * somebody waits for one of its queues, and only then does it keep the process alive.
 *
 * @see ibv_create_comp_channel(3)
 */
export class CompletionChannel extends Resource {
  /** @internal */
  readonly context: Resource;
  /** @internal */
  readonly handle: ChannelHandle;
  readonly #events: ChannelEventsHandle;
  readonly #queues = new Map<number, WeakRef<CompletionQueue>>();
  #waiting = 0;

  /** @internal */
  constructor(context: Resource, handle: ContextHandle) {
    const channel = binding().createCompChannel(handle);
    super([context]);
    this.context = context;
    this.handle = channel;
    const queues = this.#queues;
    const device = new WeakRef(context);
    this.#events = binding().createChannelEvents(this.handle, (ids) => {
      for (const id of ids) queues.get(id)?.deref()?.onEvent();
      // None is named when the device is gone.
      if (ids.length === 0) device.deref()?.lose();
    });
  }

  /** @internal */
  attach(id: number, queue: CompletionQueue): void {
    this.#queues.set(id, new WeakRef(queue));
  }

  /** @internal */
  detach(id: number): void {
    this.#queues.delete(id);
  }

  /** Somebody waits (+1), or no longer does (-1). @internal */
  wait(change: 1 | -1): void {
    this.#waiting += change;
    if (change === 1 && this.#waiting === 1) binding().startChannelEvents(this.#events);
    if (change === -1 && this.#waiting === 0 && !this.closed) binding().stopChannelEvents(this.#events);
  }

  /** @internal */
  describe(): string {
    return 'CompletionChannel';
  }

  /** @internal */
  protected override fields(): object {
    const queues = [...this.#queues.values()].filter((queue) => queue.deref() !== undefined).length;
    return { context: brief(this.context), queues, waits: this.#waiting };
  }

  protected readonly destroyVerb = 'ibv_destroy_comp_channel';

  protected destroy(): void {
    binding().destroyChannelEvents(this.#events);
    binding().destroyCompChannel(this.handle);
  }
}
