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
  // The queues that are waited for, by number. What the addon calls refers to them, so that none is collected meanwhile.
  readonly #waited = new Map<number, CompletionQueue>();
  #waits = 0;

  /** @internal */
  constructor(context: Resource, handle: ContextHandle) {
    const channel = binding().createCompChannel(handle);
    super([context]);
    this.context = context;
    this.handle = channel;
    const waited = this.#waited;
    const device = new WeakRef(context);
    this.#events = binding().createChannelEvents(this.handle, (...ids) => {
      for (const id of ids) waited.get(id)?.onEvent();
      // None is named when the device is gone.
      if (ids.length === 0) device.deref()?.lose();
    });
  }

  /** Tells the queue of its events, and keeps it and the process alive, until `endWait()`. @internal */
  beginWait(id: number, queue: CompletionQueue): void {
    this.#waited.set(id, queue);
    this.hold();
  }

  /** @internal */
  endWait(id: number): void {
    this.#waited.delete(id);
    this.release();
  }

  /** Keeps the process alive for the waits to come: to begin and to end that for each is two calls. @internal */
  hold(): void {
    if (++this.#waits === 1) binding().startChannelEvents(this.#events);
  }

  /** @internal */
  release(): void {
    if (--this.#waits === 0 && !this.closed) binding().stopChannelEvents(this.#events);
  }

  /** @internal */
  describe(): string {
    return 'CompletionChannel';
  }

  /** @internal */
  protected override fields(): object {
    return { context: brief(this.context), waits: this.#waits };
  }

  protected readonly destroyVerb = 'ibv_destroy_comp_channel';

  protected destroy(): void {
    binding().destroyChannelEvents(this.#events);
    binding().destroyCompChannel(this.handle);
  }
}
