import { brief } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import type { TdHandle } from '../native/native.ts';
import type { Context } from './context.ts';
import { Resource } from './resource.ts';

/**
 * A thread domain: `struct ibv_td`: a promise that what is made with it is used by one thread at a time, which saves the
 * provider its locks. Objects of this package are, since they belong to one thread. Made by `context.allocTd()`, used by
 * `pd.allocParentDomain()`.
 *
 * @see ibv_alloc_td(3)
 */
export class ThreadDomain extends Resource {
  /** The device it belongs to. */
  readonly context: Context;
  /** @internal */
  readonly handle: TdHandle;

  /** @internal */
  constructor(context: Context) {
    const handle = binding().allocTd(context.handle);
    super([context]);
    this.context = context;
    this.handle = handle;
  }

  /** @internal */
  describe(): string {
    return 'ThreadDomain';
  }

  /** @internal */
  protected override fields(): object {
    return { context: brief(this.context) };
  }

  protected readonly destroyVerb = 'ibv_dealloc_td';

  protected destroy(): void {
    binding().deallocTd(this.handle);
  }
}
