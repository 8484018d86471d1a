/** Exporters of DMA-BUFs that need no GPU. */
import { readdirSync, readFileSync, statfsSync } from 'node:fs';
import { constants, totalmem } from 'node:os';
import { join } from 'node:path';
import { integer, readOptions, string, valueError } from '../args.ts';
import { RdmaError } from '../errors.ts';
import { binding } from '../native/binding.ts';
import { DmaBuf } from './dmabuf.ts';

/** What a udmabuf is made of. */
export interface UdmabufOptions {
  /**
   * The descriptor of a memfd of the caller's, made with MFD_ALLOW_SEALING, whose memory is exported. It is sealed against
   * shrinking, and stays the caller's. Default: one is made, which nobody else has.
   */
  memfd?: number;
  /** First byte within the memfd, a multiple of the page size. Default 0. */
  offset?: number;
}

// HUGETLBFS_MAGIC of linux/magic.h.
const HUGETLBFS = 0x958458f6;
const sizeLimit = '/sys/module/udmabuf/parameters/size_limit_mb';

/**
 * Exports ordinary memory as a DMA-BUF, by `/dev/udmabuf` over a sealed memfd: to share registered memory between
 * processes, and to try what is meant for a GPU where there is none. The processor may map it.
 *
 * @param length - bytes, a multiple of the page size; the kernel has a limit, by default 64 MiB
 * @throws RdmaError of `open`: ENOENT where the kernel has no udmabuf, EACCES for who may not use it; of `UDMABUF_CREATE`:
 *   EINVAL, explained; of `fcntl`: EPERM for a memfd that does not allow sealing
 * @throws TypeError `ERR_INVALID_ARG_VALUE` for a memfd of huge pages, which current kernels map wrongly
 */
export function createUdmabuf(length: number, options: UdmabufOptions = {}): DmaBuf {
  integer(length, 'length', 1, Number.MAX_SAFE_INTEGER);
  const { memfd, offset = 0 } = readOptions(options, 'options', ['memfd', 'offset']);
  integer(offset, 'options.offset', 0, Number.MAX_SAFE_INTEGER - length);
  if (memfd !== undefined) {
    integer(memfd, 'options.memfd', 0, 0x7fff_ffff);
    if (fileSystemOf(memfd) === HUGETLBFS) {
      throw valueError(
        'options.memfd is of huge pages (MFD_HUGETLB): what the kernel maps of a udmabuf of huge pages is other memory ' +
          'than what was written (seen with Linux 6.12), so it is refused. Use ordinary pages',
      );
    }
  }
  try {
    return new DmaBuf(binding().createUdmabuf(memfd ?? null, offset, length));
  } catch (error) {
    if (!(error instanceof RdmaError)) throw error;
    throw explainUdmabuf(error, length, offset);
  }
}

function fileSystemOf(fd: number): number | undefined {
  try {
    return statfsSync(`/proc/self/fd/${fd}`).type;
  } catch {
    // No descriptor: the kernel says so.
    return undefined;
  }
}

function explainUdmabuf(error: RdmaError, length: number, offset: number): RdmaError {
  const { syscall, code } = error;
  if (syscall === 'open') return explainDevice(error, '/dev/udmabuf', 'CONFIG_UDMABUF; modprobe udmabuf');
  if (syscall === 'fcntl' && code === 'EPERM') {
    return error.explained('options.memfd must be made with MFD_ALLOW_SEALING, and not be sealed with F_SEAL_SEAL');
  }
  if (syscall !== 'UDMABUF_CREATE' || code !== 'EINVAL') return error;
  const limit = readNumber(sizeLimit);
  if (limit !== undefined && length > limit * 2 ** 20) {
    return error.explained(`${length} bytes, where ${sizeLimit} allows ${limit} MiB`);
  }
  return error.explained(
    `offset ${offset} and length ${length} must be multiples of the page size and inside of the memfd, which must not be ` +
      `sealed against writing; ${sizeLimit} says ${limit ?? 'nothing'} (MiB)`,
  );
}

function explainDevice(error: RdmaError, path: string, how: string): RdmaError {
  if (error.code === 'ENOENT' || error.code === 'ENODEV') return error.explained(`${path} is not there (${how})`);
  if (error.code !== 'EACCES' && error.code !== 'EPERM') return error;
  return error.explained(`${path} may not be opened: be root, or of the group that owns it`);
}

function readNumber(path: string): number | undefined {
  try {
    return Number(readFileSync(path, 'latin1'));
  } catch {
    return undefined;
  }
}

const heaps = '/dev/dma_heap';

/** The DMA-BUF heaps of this machine: names of `/dev/dma_heap`; none where the kernel has none. */
export function listDmaHeaps(): string[] {
  try {
    return readdirSync(heaps).sort();
  } catch {
    return [];
  }
}

/**
 * Allocates memory of a DMA-BUF heap: the kernel's own allocator for memory that devices share. The processor may map it.
 *
 * @param length - bytes; rounded up to whole pages
 * @param options - `heap`: one of {@link listDmaHeaps}. Default `'system'`, which takes ordinary memory
 * @throws RdmaError of `open`: ENOENT where there is no such heap, EACCES for who may not use it; of
 *   `DMA_HEAP_IOCTL_ALLOC`: ENOMEM for more than the machine has. Less, but more than is free, has the kernel kill a process
 */
export function allocDmaHeap(length: number, options: { heap?: string } = {}): DmaBuf {
  integer(length, 'length', 1, Number.MAX_SAFE_INTEGER);
  const { heap = 'system' } = readOptions(options, 'options', ['heap']);
  string(heap, 'options.heap');
  if (heap === '' || heap.includes('/')) throw valueError(`options.heap must be a name of ${heaps}, not '${heap}'`);
  const path = join(heaps, heap);
  if (heap === 'system' && length > totalmem()) {
    // The kernel would try, and kill a process for it.
    throw new RdmaError('DMA_HEAP_IOCTL_ALLOC', constants.errno.ENOMEM, `no memory for ${length} bytes`);
  }
  try {
    return new DmaBuf(binding().allocDmaHeap(path, length));
  } catch (error) {
    if (!(error instanceof RdmaError)) throw error;
    if (error.syscall === 'open') {
      const known = listDmaHeaps();
      const there =
        known.length > 0 ? `there are ${known.join(', ')}` : 'CONFIG_DMABUF_HEAPS; there are no heaps at all';
      throw explainDevice(error, path, there);
    }
    throw error;
  }
}
