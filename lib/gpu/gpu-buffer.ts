/** Memory of a GPU, and the ways to register it. */
import { boolean, instance, integer, rangeError, readOptions } from '../args.ts';
import { GpuError, RdmaError } from '../errors.ts';
import { hex, word } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import type { GpuMemoryHandle } from '../native/native.ts';
import type { NativeGpuMemory } from '../native/native-gpu.ts';
import { MemoryRegion } from '../verbs/memory-region.ts';
import { ProtectionDomain } from '../verbs/protection-domain.ts';
import { explainRegistration, memoryOf, regOptions, requireFits } from '../verbs/registration.ts';
import { onMemory, Resource } from '../verbs/resource.ts';
import { DmaBuf, type RegisterOptions, registerRange } from './dmabuf.ts';
import type { Gpu } from './gpu.ts';

/** How memory of a GPU is registered. */
export interface GpuRegisterOptions extends RegisterOptions {
  /**
   * Whether memory of the host may stand in for the GPU's where the NIC cannot reach that. Then the program copies: see
   * {@link GpuRegion}. Default false: it is an error.
   */
  staging?: boolean;
}

/** What memory of a GPU is exported as. */
export interface GpuExport {
  /** The DMA-BUF, whose ends are those of whole pages. It is the caller's to close. */
  dmabuf: DmaBuf;
  /** Where in it the memory begins. */
  offset: number;
}

/** A region for memory of a GPU, and how it came to be. */
export interface GpuRegion {
  /** The region. Of the GPU's memory it has no `buffer`. */
  mr: MemoryRegion;
  /**
   * `'dmabuf'`: the NIC reaches the GPU's memory, by a DMA-BUF. `'address'`: it does, by the device address, which
   * `ibv_reg_mr` took (nvidia-peermem). `'staging'`: it reaches memory of the host, `mr.buffer`: after what arrives there
   * `gpuBuffer.copyFrom(mr.buffer, offset)` is for the program to call, and before what leaves `gpuBuffer.copyTo(mr.buffer,
   * offset)`.
   */
  via: 'dmabuf' | 'address' | 'staging';
  /** What was tried before, and why it was refused. */
  refused: Error[];
}

/**
 * Memory of a GPU. Made by `gpu.alloc()` and {@link adoptGpuMemory}. It is freed when it is closed, which is refused while
 * regions of it are open; without `close()` when nothing needs it any more, also at the end of a worker or of the process.
 */
export class GpuBuffer extends Resource {
  /** The GPU. */
  readonly gpu: Gpu;
  /** Device address of the first byte. */
  readonly address: bigint;
  /** Length in bytes. */
  readonly length: number;
  /** Whether somebody else has allocated it, and will free it. */
  readonly adopted: boolean;
  readonly #handle: GpuMemoryHandle;
  protected readonly destroyVerb: string;

  /** @internal */
  constructor(gpu: Gpu, native: NativeGpuMemory, length: number, adopted: boolean) {
    super([]);
    this.gpu = gpu;
    this.address = native.address;
    this.length = length;
    this.adopted = adopted;
    this.#handle = native.handle;
    this.destroyVerb = gpu.vendor === 'nvidia' ? 'cuMemFree' : 'hsa_amd_memory_pool_free';
  }

  /**
   * Copies bytes of the host to it, on a thread of the pool. Until that is done no region or DmaBuf that they belong to can be
   * closed, or registered anew.
   *
   * @param bytes - of a Buffer, TypedArray, DataView or ArrayBuffer; not to be changed before the promise settles
   * @param offset - first byte here. Default 0
   * @throws RangeError where it does not fit
   * @throws GpuError the driver's
   */
  async copyFrom(bytes: ArrayBufferView | ArrayBuffer, offset = 0): Promise<void> {
    const host = this.#hostArgs(bytes, offset);
    await this.track(onMemory(host[0], () => binding().copyToGpu(this.#handle, offset, ...host)));
  }

  /**
   * Copies bytes of it to the host, as many as `bytes` has, on a thread of the pool. What holds for `copyFrom()` holds here.
   *
   * @param bytes - a Buffer, TypedArray, DataView or ArrayBuffer
   * @param offset - first byte here. Default 0
   * @throws RangeError where there are not so many
   * @throws GpuError the driver's
   */
  async copyTo(bytes: ArrayBufferView | ArrayBuffer, offset = 0): Promise<void> {
    const host = this.#hostArgs(bytes, offset);
    await this.track(onMemory(host[0], () => binding().copyFromGpu(this.#handle, offset, ...host)));
  }

  /**
   * Exports it as a DMA-BUF: to hand it to another process or device. Keep this object until nobody uses that any more.
   *
   * @throws GpuError the driver's; `gpu.missing` may say why
   * @throws RdmaError EOPNOTSUPP, where the driver is too old
   */
  exportDmabuf(): GpuExport {
    this.requireOpen();
    const { offset, ...native } = this.#export();
    return { dmabuf: new DmaBuf(native), offset };
  }

  /**
   * Registers a part of it: by a DMA-BUF; where driver, kernel or NIC do not have that, by its device address, which takes the
   * kernel module nvidia-peermem; where that is refused too, and only if it is asked for, with memory of the host in its
   * place. The result says which it was.
   *
   * @param options - `offset`, `length` and `access` as elsewhere; `iova`: default the device address of the first byte
   * @throws RangeError where the range is not inside of it
   * @throws RdmaError when each way was refused: that of the last one, with the reasons of all
   * @see ibv_reg_mr(3)
   */
  async register(pd: ProtectionDomain, options: GpuRegisterOptions = {}): Promise<GpuRegion> {
    this.requireOpen();
    instance(pd, 'pd', ProtectionDomain).requireOpen();
    const { staging = false, ...rest } = readOptions(options, 'options', known) as GpuRegisterOptions;
    boolean(staging, 'options.staging');
    const { offset, length } = registerRange(this.length, rest, this.describe());
    const how = regOptions(rest, ['offset', 'length']);
    const { access, iova = this.address + BigInt(offset) } = how;
    requireFits(iova, length);
    const made = async (native: Promise<ConstructorParameters<typeof MemoryRegion>[1]>) => {
      try {
        return new MemoryRegion(pd, await native, access, { length, parents: [this] });
      } catch (error) {
        throw explainRegistration(error, length, how, pd.context);
      }
    };
    const byDmabuf = async () => {
      const exported = this.#export();
      try {
        const at = exported.offset + offset;
        return await made(binding().regDmabufMr(pd.handle, exported.fd, at, length, iova, access, this.#handle));
      } finally {
        binding().closeDmabuf(exported.handle);
      }
    };
    const byAddress = () =>
      made(binding().regMrAddress(pd.handle, this.address + BigInt(offset), length, access, iova, this.#handle));
    const refused: Error[] = [];
    const attempt = async (): Promise<GpuRegion> => {
      for (const [via, way] of [
        ['dmabuf', byDmabuf],
        ['address', byAddress],
      ] as const) {
        try {
          return { mr: await way(), via, refused };
        } catch (error) {
          if (!isRefusal(error)) throw error;
          refused.push(error);
        }
      }
      if (staging) return { mr: await pd.alloc(length, { access }), via: 'staging', refused };
      throw this.#failure(refused);
    };
    return this.track(pd.track(attempt()));
  }

  #export() {
    try {
      return binding().exportGpuMemory(this.#handle);
    } catch (error) {
      if (!(error instanceof RdmaError) || this.gpu.missing === undefined) throw error;
      throw error.explained(this.gpu.missing);
    }
  }

  #failure(refused: readonly Error[]): RdmaError {
    const last = refused.at(-1) as RdmaError;
    const reasons = refused.map(({ message }) => message).join('; ');
    const { missing } = this.gpu;
    return new RdmaError(
      last.syscall,
      -last.errno,
      `memory of ${this.gpu.name} (${this.gpu.pciAddress}) cannot be registered. ${reasons}. ` +
        `${missing === undefined ? '' : `For DMA-BUF: ${missing}. `}For device addresses: modprobe nvidia-peermem. Or pass ` +
        '{ staging: true }, and copy',
    );
  }

  #hostArgs(bytes: ArrayBufferView | ArrayBuffer, offset: number): readonly [ArrayBuffer, number, number] {
    this.requireOpen();
    const { buffer, view } = memoryOf(bytes, 'bytes');
    integer(offset, 'offset', 0, Number.MAX_SAFE_INTEGER);
    if (offset + view.length > this.length) {
      throw rangeError(`offset ${offset} + ${view.length} bytes is past the end of ${this.describe()}`);
    }
    return [buffer, view.byteOffset, view.length];
  }

  /** @internal */
  describe(): string {
    return `GpuBuffer (${this.length} bytes of ${this.gpu.name})`;
  }

  /** @internal */
  protected override fields(): object {
    const { address, length, adopted, gpu } = this;
    return { gpu: word(gpu.name), address: hex(address), length, adopted };
  }

  protected destroy(): void {
    binding().freeGpuMemory(this.#handle);
  }
}

const known = ['offset', 'length', 'iova', 'access', 'staging'];

/**
 * Whether a way is not there, rather than taken wrongly: the driver exports nothing, kernel or provider know no DMA-BUF, or
 * no module translates addresses of the GPU (EFAULT; ENOMEM and EINVAL from some providers are for the caller to see).
 */
function isRefusal(error: unknown): error is Error {
  if (error instanceof GpuError) return true;
  if (!(error instanceof RdmaError)) return false;
  return ['EOPNOTSUPP', 'EPROTONOSUPPORT', 'ENOSYS', 'EFAULT', 'EIO', 'ENXIO'].includes(error.code);
}
