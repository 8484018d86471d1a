import { stateError } from '../args.ts';
import { flagged, hex } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import { AccessFlags } from '../native/constants.gen.ts';
import type { MrHandle, NativeMr } from '../native/native.ts';
import { MemoryRegion } from './memory-region.ts';
import type { ProtectionDomain } from './protection-domain.ts';
import { memoryOf } from './registration.ts';
import { Resource } from './resource.ts';

/**
 * A region of all memory of this process, whose pages the device faults in as it uses them: implicit on-demand paging.
 * Made by `pd.regImplicitMr()`. Requests of this process use memory through it without registering each; peers cannot
 * reach it.
 *
 * @see ibv_reg_mr(3)
 */
export class ImplicitRegion extends Resource {
  /** The domain it belongs to. */
  readonly pd: ProtectionDomain;
  /** The access flags it was registered with. */
  readonly access: number;
  /** The key that requests name it by. */
  readonly lkey: number;
  readonly #handle: MrHandle;

  /** @internal */
  constructor(pd: ProtectionDomain, native: NativeMr, access: number) {
    super([pd]);
    this.pd = pd;
    this.access = access;
    this.lkey = native.lkey;
    this.#handle = native.handle;
  }

  /**
   * A region for memory of the caller's, to make slices of: costs no registration, and pins nothing. The memory is held,
   * as that of `pd.regMr()`, until the region is closed and no request uses it.
   *
   * @param memory - a Buffer, TypedArray, DataView or ArrayBuffer of a fixed size
   * @throws TypeError or RangeError for resizable, detached, shared or empty memory
   */
  cover(memory: ArrayBufferView | ArrayBuffer): MemoryRegion {
    this.requireOpen();
    return new CoveredRegion(this, this.#handle, memory);
  }

  /** @internal */
  describe(): string {
    return `ImplicitRegion (lkey 0x${this.lkey.toString(16)})`;
  }

  /** @internal */
  protected override fields(): object {
    return { lkey: hex(this.lkey), access: flagged(AccessFlags)(this.access) };
  }

  protected readonly destroyVerb = 'ibv_dereg_mr';

  protected destroy(): void {
    binding().deregMr(this.#handle);
    this.pd.closings++;
  }
}

/** Memory that an implicit region covers: no verbs object of its own. */
class CoveredRegion extends MemoryRegion {
  constructor(implicit: ImplicitRegion, handle: MrHandle, memory: ArrayBufferView | ArrayBuffer) {
    const { buffer, view } = memoryOf(memory);
    const addr = binding().addressOf(buffer, view.byteOffset, view.length);
    const native = { handle, addr, lkey: implicit.lkey, rkey: 0, nativeHandle: 0 };
    super(implicit.pd, native, implicit.access, { length: view.length, view, parents: [implicit] });
  }

  override remote(): never {
    throw stateError('A region of implicit on-demand paging is not for remote use: register the memory with regMr()');
  }

  protected override destroy(): void {
    this.pd.closings++;
  }
}
