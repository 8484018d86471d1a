import { valueError } from '../args.ts';
import { brief } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import type { FlowHandle } from '../native/native.ts';
import type { AnyQueuePair } from './any-queue-pair.ts';
import type { EncodedFlow } from './flow-spec.ts';
import { Resource } from './resource.ts';

/**
 * A flow steering rule: `struct ibv_flow`: packets that match it go to its queue pair. Made by `qp.createFlow()`, in force
 * until it is closed.
 *
 * @see ibv_create_flow(3)
 */
export class Flow extends Resource {
  /** Where the packets go. */
  readonly qp: AnyQueuePair;
  /** @internal */
  readonly handle: FlowHandle;

  /** @internal */
  constructor(qp: AnyQueuePair, { bytes, counters }: EncodedFlow) {
    if (counters.some(({ context }) => context !== qp.context)) {
      throw valueError('attr.specs counts into counters of another device');
    }
    const handle = binding().createFlow(
      qp.handle,
      bytes,
      counters.map((each) => each.handle),
    );
    super([qp, ...new Set<Resource>(counters)]);
    this.qp = qp;
    this.handle = handle;
  }

  /** @internal */
  describe(): string {
    return `Flow to ${this.qp.describe()}`;
  }

  /** @internal */
  protected override fields(): object {
    return { qp: brief(this.qp) };
  }

  protected readonly destroyVerb = 'ibv_destroy_flow';

  protected destroy(): void {
    binding().destroyFlow(this.handle);
  }
}
