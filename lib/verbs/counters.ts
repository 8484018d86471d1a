import { instance, integer, oneOf, readOptions, uint32 } from '../args.ts';
import { brief } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import { CounterDescription } from '../native/constants.gen.ts';
import type { CountersHandle } from '../native/native.ts';
import type { Context } from './context.ts';
import { Flow } from './flow.ts';
import { Resource } from './resource.ts';

/**
 * Counters that flow steering rules count into: `struct ibv_counters`. Made by `context.createCounters()`; a rule counts
 * into them by `{ type: FlowSpecType.ACTION_COUNT, counters }`.
 *
 * @see ibv_create_counters(3)
 */
export class Counters extends Resource {
  /** The device it belongs to. */
  readonly context: Context;
  /** @internal */
  readonly handle: CountersHandle;

  /** @internal */
  constructor(context: Context) {
    const handle = binding().createCounters(context.handle);
    super([context]);
    this.context = context;
    this.handle = handle;
  }

  /**
   * Says what is counted at an index: before the rule is made that counts, or for one that there is.
   *
   * @param attr - `counterDesc`: `CounterDescription.PACKETS` or `BYTES`. `index`: where `read()` finds it, from 0
   * @param flow - a rule, where the device can add to one. Default: the rules that are made with these counters
   * @throws RdmaError EINVAL and EOPNOTSUPP (or ENOTSUP) where the device cannot
   * @see ibv_attach_counters_point_flow(3)
   */
  attach(attr: { counterDesc: CounterDescription; index: number }, flow?: Flow): void {
    this.requireOpen();
    const { counterDesc, index } = readOptions(attr, 'attr', ['counterDesc', 'index']);
    oneOf(counterDesc, 'attr.counterDesc', CounterDescription, 'CounterDescription');
    uint32(index, 'attr.index');
    if (flow !== undefined) instance(flow, 'flow', Flow).requireOpen();
    binding().attachCounters(this.handle, counterDesc as number, index as number, flow ? flow.handle : null);
  }

  /**
   * Reads the first of them.
   *
   * @param count - how many, by their indexes from 0
   * @param flags - `ReadCountersFlags`. Default 0
   * @returns as many numbers of 64 bits
   * @see ibv_read_counters(3)
   */
  read(count: number, flags = 0): bigint[] {
    this.requireOpen();
    return binding().readCounters(this.handle, integer(count, 'count', 1, 0xffff), uint32(flags, 'flags'));
  }

  /** @internal */
  describe(): string {
    return 'Counters';
  }

  /** @internal */
  protected override fields(): object {
    return { context: brief(this.context) };
  }

  protected readonly destroyVerb = 'ibv_destroy_counters';

  protected destroy(): void {
    binding().destroyCounters(this.handle);
  }
}
