import { hex, named } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import { MwType } from '../native/constants.gen.ts';
import type { MwHandle } from '../native/native.ts';
import type { ProtectionDomain } from './protection-domain.ts';
import type { RemoteRegionToken } from './remote-region.ts';
import { Resource } from './resource.ts';

/**
 * A memory window: `struct ibv_mw`: a key of its own to a part of a region, which can be taken back. Made by
 * `pd.allocMw()`, bound by `qp.bindMw()`. The key of type 2 also ends by `LOCAL_INV`, and by the peer's `SEND_WITH_INV`.
 *
 * @see ibv_alloc_mw(3), ibv_bind_mw(3)
 */
export class MemoryWindow extends Resource {
  /** The domain it belongs to. */
  readonly pd: ProtectionDomain;
  /** `MwType.TYPE_1` or `TYPE_2`. */
  readonly type: MwType;
  /** @internal */
  readonly handle: MwHandle;
  #rkey: number;
  #bound: { addr: bigint; length: number } | undefined;

  /** @internal */
  constructor(pd: ProtectionDomain, type: MwType) {
    const native = binding().allocMw(pd.handle, type);
    super([pd]);
    this.pd = pd.root;
    this.type = type;
    this.handle = native.handle;
    this.#rkey = native.rkey;
  }

  /** The key: a new one with each binding. */
  get rkey(): number {
    return this.#rkey;
  }

  /** What a peer needs to reach what the window is bound to; undefined when it was bound to nothing yet. */
  remote(): RemoteRegionToken | undefined {
    this.requireOpen();
    if (this.#bound === undefined) return undefined;
    return { addr: `0x${this.#bound.addr.toString(16)}`, rkey: this.#rkey, length: this.#bound.length };
  }

  /** @internal */
  bound(rkey: number, addr: bigint, length: number): void {
    this.#rkey = rkey;
    this.#bound = length === 0 ? undefined : { addr, length };
  }

  /** @internal */
  describe(): string {
    return `MemoryWindow (rkey 0x${this.#rkey.toString(16)})`;
  }

  /** @internal */
  protected override fields(): object {
    const bound = this.#bound;
    return {
      type: named(MwType)(this.type),
      rkey: hex(this.#rkey),
      addr: bound && hex(bound.addr),
      length: bound?.length,
    };
  }

  protected readonly destroyVerb = 'ibv_dealloc_mw';

  protected override busyReasons(): string[] {
    const inFlight = this.pd.inFlight(this);
    return inFlight === 0 ? [] : [`${inFlight} work request(s) in flight`];
  }

  protected destroy(): void {
    binding().deallocMw(this.handle);
  }
}
