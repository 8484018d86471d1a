import { integer, rangeError, typeError } from '../args.ts';
import { RdmaError } from '../errors.ts';
import { brief } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import type { DmHandle } from '../native/native.ts';
import type { Context } from './context.ts';
import { Resource } from './resource.ts';

/**
 * Memory on the device: `struct ibv_dm`. Made by `context.allocDm()`; regions of it by `pd.regDmMr()`. Peers reach it
 * without crossing the bus to the host's memory; this process copies to and from it.
 *
 * @see ibv_alloc_dm(3)
 */
export class DeviceMemory extends Resource {
  /** The device it is on. */
  readonly context: Context;
  /** Length in bytes. */
  readonly length: number;
  /** What the kernel knows it by: for `context.importDm()` where the device is imported. */
  readonly nativeHandle: number;
  /** @internal */
  readonly handle: DmHandle;
  protected readonly destroyVerb: string;

  /** @internal */
  constructor(
    context: Context,
    native: { handle: DmHandle; nativeHandle: number },
    length: number,
    destroyVerb: string,
  ) {
    super([context]);
    this.context = context;
    this.length = length;
    this.handle = native.handle;
    this.nativeHandle = native.nativeHandle;
    this.destroyVerb = destroyVerb;
  }

  /**
   * Copies bytes to it.
   *
   * @param dmOffset - where to, in bytes from its start
   * @param bytes - what
   * @throws RangeError when it does not fit
   * @throws RdmaError EINVAL from mlx5 for an offset or a length that is no multiple of 4
   * @see ibv_alloc_dm(3)
   */
  memcpyTo(dmOffset: number, bytes: Uint8Array): void {
    this.#copy(dmOffset, bytes, () => binding().memcpyToDm(this.handle, dmOffset, bytes));
  }

  /**
   * Copies bytes from it, as many as `bytes` has.
   *
   * @param bytes - where to
   * @param dmOffset - where from, in bytes from its start
   * @throws RangeError when there are not so many
   * @throws RdmaError EINVAL from mlx5 for an offset or a length that is no multiple of 4
   * @see ibv_alloc_dm(3)
   */
  memcpyFrom(bytes: Uint8Array, dmOffset: number): void {
    this.#copy(dmOffset, bytes, () => binding().memcpyFromDm(this.handle, dmOffset, bytes));
  }

  #copy(dmOffset: number, bytes: Uint8Array, copy: () => void): void {
    this.requireOpen();
    integer(dmOffset, 'dmOffset', 0, Number.MAX_SAFE_INTEGER);
    if (!(bytes instanceof Uint8Array)) throw typeError('bytes', 'a Uint8Array', bytes);
    if (dmOffset + bytes.length > this.length) {
      throw rangeError(`dmOffset ${dmOffset} + ${bytes.length} bytes is past the end of ${this.describe()}`);
    }
    try {
      copy();
    } catch (error) {
      if (!(error instanceof RdmaError) || error.code !== 'EINVAL') throw error;
      throw error.explained(`dmOffset ${dmOffset}, ${bytes.length} bytes; mlx5 takes multiples of 4 only`);
    }
  }

  /** @internal */
  describe(): string {
    return `DeviceMemory (${this.length} bytes)`;
  }

  /** @internal */
  protected override fields(): object {
    return { context: brief(this.context), length: this.length };
  }

  protected destroy(): void {
    binding().freeDm(this.handle);
  }
}
