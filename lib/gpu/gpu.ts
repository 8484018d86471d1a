/** GPUs, by the libraries of their drivers. */
import { constants } from 'node:os';
import { boolean, integer, rangeError, readOptions, uint64, valueError } from '../args.ts';
import { RdmaError, RdmaUnavailableError } from '../errors.ts';
import { binding } from '../native/binding.ts';
import type { NativeGpu } from '../native/native-gpu.ts';
import { GpuBuffer } from './gpu-buffer.ts';
import { type NearNic, nearestNics } from './placement.ts';

/** Whose driver it is: CUDA's, or AMD's ROCr (HSA). */
export type GpuVendor = 'nvidia' | 'amd';

const libraries: Readonly<Record<GpuVendor, { library: string; variable: string }>> = {
  nvidia: { library: 'libcuda.so.1', variable: 'NODE_RDMA_LIBCUDA' },
  amd: { library: 'libhsa-runtime64.so.1', variable: 'NODE_RDMA_LIBHSA' },
};

/** The library of a GPU's driver on this machine. */
export interface GpuDriver {
  /** Whose it is. */
  vendor: GpuVendor;
  /** Whether it is there, and could be initialized. */
  available: boolean;
  /** Its file; where it is not available, why not. */
  detail: string;
}

/** How memory of a GPU is allocated. */
export interface GpuAllocOptions {
  /**
   * By the driver's functions for virtual memory (`cuMemCreate`, `cuMemMap`), with the mark that a NIC may reach it. CUDA
   * only. Default false: `cuMemAlloc`.
   */
  virtualMemory?: boolean;
}

/** A GPU. Made by {@link listGpus}. */
export class Gpu {
  /** Whose driver has it. */
  readonly vendor: GpuVendor;
  /** Its number for that driver. */
  readonly index: number;
  /** Such as `'NVIDIA H100 80GB HBM3'`. */
  readonly name: string;
  /** Where it is in the PCI tree, such as `'0000:17:00.0'`. */
  readonly pciAddress: string;
  /** Bytes of its own memory. */
  readonly totalMemory: number;
  /** Whether its driver exports its memory as a DMA-BUF. */
  readonly dmabuf: boolean;
  /** What is missing for that, and what to do about it; undefined where nothing is. */
  readonly missing: string | undefined;
  /** Whether its driver lets a NIC at virtual memory (`virtualMemory` of `alloc()`). */
  readonly virtualMemory: boolean;

  /** @internal */
  constructor(vendor: GpuVendor, index: number, native: NativeGpu) {
    this.vendor = vendor;
    this.index = index;
    this.name = native.name;
    this.pciAddress = native.pciAddress;
    this.totalMemory = native.totalMemory;
    this.dmabuf = native.dmabuf;
    this.missing = native.missing || undefined;
    this.virtualMemory = native.virtualMemory;
  }

  /**
   * Allocates memory on it. The first call for a GPU makes its context, which takes some tenths of a second; it is done on a
   * thread of the pool.
   *
   * @param length - bytes
   * @throws GpuError the driver's, such as `CUDA_ERROR_OUT_OF_MEMORY`
   * @throws RdmaError EOPNOTSUPP for virtual memory that the driver has not got
   */
  async alloc(length: number, options: GpuAllocOptions = {}): Promise<GpuBuffer> {
    integer(length, 'length', 1, Number.MAX_SAFE_INTEGER);
    const { virtualMemory = false } = readOptions(options, 'options', ['virtualMemory']);
    if (boolean(virtualMemory, 'options.virtualMemory') && !this.virtualMemory) {
      const verb = this.vendor === 'nvidia' ? 'cuMemCreate' : 'hsa_amd_vmem_handle_create';
      throw new RdmaError(verb, constants.errno.EOPNOTSUPP, `${this.name} lets no NIC at virtual memory`);
    }
    const native = await binding().allocGpuMemory(this.vendor, this.index, length, virtualMemory);
    return new GpuBuffer(this, native, length, false);
  }

  /**
   * The RDMA devices of this machine, nearest to this GPU first: see {@link nearestNics}.
   *
   * @throws RangeError `ERR_OUT_OF_RANGE` where sysfs does not have it
   */
  nearestNics(): NearNic[] {
    return nearestNics(this.pciAddress);
  }
}

/** Which drivers of GPUs this machine has, and why not. */
export function gpuDrivers(): GpuDriver[] {
  return (Object.keys(libraries) as GpuVendor[]).map((vendor) => ({ vendor, ...binding().gpuDriverState(vendor) }));
}

/**
 * The GPUs of this machine whose driver's library is there: libcuda of NVIDIA's, libhsa-runtime64 of AMD's ROCm. None of
 * them is needed; {@link gpuDrivers} says why one has none.
 *
 * @throws GpuError where a driver fails
 */
export function listGpus(): Gpu[] {
  return (Object.keys(libraries) as GpuVendor[]).flatMap(gpusOf);
}

const gpusOf = (vendor: GpuVendor): Gpu[] =>
  binding()
    .listGpus(vendor)
    .map((native, index) => new Gpu(vendor, index, native));

/**
 * Takes memory of a GPU that somebody else has allocated in this process: another addon, by its address (`cuMemAlloc`,
 * `cudaMalloc`, `hipMalloc`). It is not freed. **Its owner must keep it** until this object is closed: regions of it let the
 * NIC at whatever is there.
 *
 * @param address - device address of the first byte
 * @param length - bytes
 * @throws TypeError `ERR_INVALID_ARG_VALUE` for an address that the driver does not know as memory of a GPU
 * @throws RangeError where less was allocated there
 * @throws RdmaUnavailableError where the driver's library is not there
 */
export async function adoptGpuMemory(vendor: GpuVendor, address: bigint, length: number): Promise<GpuBuffer> {
  if (!Object.hasOwn(libraries, vendor)) {
    throw valueError(`vendor must be 'nvidia' or 'amd', not '${String(vendor)}'`);
  }
  uint64(address, 'address');
  integer(length, 'length', 1, Number.MAX_SAFE_INTEGER);
  const { available, detail } = binding().gpuDriverState(vendor);
  if (!available) {
    const { library, variable } = libraries[vendor];
    throw new RdmaUnavailableError(`${library} is not to be had: ${detail}. ${variable} names another file`);
  }
  const gpus = gpusOf(vendor);
  try {
    const native = await binding().adoptGpuMemory(vendor, address, length);
    return new GpuBuffer(gpus[native.gpu] as Gpu, native, length, true);
  } catch (error) {
    const code = error instanceof RdmaError ? error.code : undefined;
    const where = `0x${address.toString(16)}`;
    if (code === 'EINVAL') throw valueError(`address ${where} is not in memory of a GPU`);
    if (code === 'ERANGE') throw rangeError(`At address ${where} fewer than ${length} bytes were allocated`);
    throw error;
  }
}
