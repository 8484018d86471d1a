/** DMA-BUFs: memory that is named by a file descriptor, whatever has exported it. */
import { fstatSync, readFileSync } from 'node:fs';
import { constants } from 'node:os';
import { instance, integer, rangeError, readOptions, typeError, valueError } from '../args.ts';
import { RdmaError } from '../errors.ts';
import { binding } from '../native/binding.ts';
import type { DmabufHandle, NativeDmabuf } from '../native/native-gpu.ts';
import type { MemoryRegion } from '../verbs/memory-region.ts';
import { ProtectionDomain } from '../verbs/protection-domain.ts';
import type { RegMrOptions } from '../verbs/registration.ts';
import { Resource } from '../verbs/resource.ts';

/** How memory of a DMA-BUF is registered. */
export interface RegisterOptions extends RegMrOptions {
  /** First byte. Default 0. */
  offset?: number;
  /** Bytes. Default all up to the end. */
  length?: number;
  /**
   * The address by which requests and peers name the first byte. Default: the offset. It must be at the same place in its
   * page as the offset: a device translates pages, and the rest of an address is the same on both sides.
   */
  iova?: bigint;
}

/** What the processor is going to do with the memory. */
export type CpuAccess = 'read' | 'write' | 'readwrite';

const NO_DMABUF = 'what is no DMA-BUF';

const accesses: readonly CpuAccess[] = ['read', 'write', 'readwrite'];

/**
 * A DMA-BUF: memory of a device, or of the kernel, that is named by a file descriptor and can be handed to other devices
 * and processes. Made by {@link createUdmabuf}, {@link allocDmaHeap}, {@link openDmabuf}, {@link getDmabuf},
 * `channel.receive()` and `gpuBuffer.exportDmabuf()`.
 *
 * This object owns one descriptor and, once `map()` was called, one mapping. The memory itself lives for as long as
 * anybody has a descriptor, a mapping or a region of it: so this object may be closed while its regions are in use.
 */
export class DmaBuf extends Resource {
  /** The descriptor, which is closed with this object. */
  readonly fd: number;
  /** Length in bytes. */
  readonly length: number;
  /** Who has exported it, as the kernel says: `'udmabuf'`, `'system'` (of the heap), `'nvidia'`; undefined for what is
   * no DMA-BUF, and where /proc does not tell. */
  readonly exporter: string | undefined;
  readonly #handle: DmabufHandle;
  #view: Buffer | undefined;
  protected readonly destroyVerb = 'close';

  /** @internal */
  constructor(native: NativeDmabuf) {
    super([]);
    this.#handle = native.handle;
    this.fd = native.fd;
    try {
      this.length = fstatSync(native.fd).size;
    } catch (error) {
      binding().closeDmabuf(native.handle);
      throw error;
    }
    this.exporter = exporterOf(native.fd);
  }

  /**
   * The bytes, in place, where the exporter lets the processor at them; most GPUs do not. The same Buffer each time; it is
   * taken away when this object is closed. Devices and the processor may have caches between them: reading and writing
   * belongs between the two ends of `cpuAccess()`.
   *
   * A DMA-BUF keeps its length. A file, which others may take for one (`exporter` is undefined), need not: to read what was
   * cut off ends the process with SIGBUS, so map it only where its sender is trusted.
   *
   * @throws RdmaError of `mmap` where the exporter has no such mapping (EINVAL, ENODEV, EOPNOTSUPP) or it is forbidden
   *   (EACCES, EPERM: the memfd behind it was sealed)
   */
  map(): Buffer {
    this.requireOpen();
    if (this.#view) return this.#view;
    try {
      const memory = binding().mapDmabuf(this.#handle, this.length, true);
      this.owns(memory);
      this.#view = Buffer.from(memory);
    } catch (error) {
      if (!(error instanceof RdmaError)) throw error;
      const who = this.exporter === undefined ? NO_DMABUF : `the exporter ('${this.exporter}')`;
      throw error.explained(`${who} does not let the processor map this memory`);
    }
    return this.#view;
  }

  /**
   * Lets the processor at the bytes: waits until no device writes them, sees to the caches, calls `work` with the bytes,
   * and sees to the caches again. Blocks this thread for as long as devices take that announce their work (a GPU that
   * renders; a NIC does not: for that one wait for its completion).
   *
   * @param access - what `work` does with them
   * @param work - may be asynchronous; then the access ends when its promise settles
   * @returns what `work` returns
   * @throws RdmaError of `mmap` as `map()`; of `DMA_BUF_IOCTL_SYNC`, ENOTTY for a descriptor that is no DMA-BUF
   */
  cpuAccess<T>(access: CpuAccess, work: (bytes: Buffer) => T): T {
    if (!accesses.includes(access)) {
      throw valueError(`access must be one of ${accesses.join(', ')}, not ${String(access)}`);
    }
    if (typeof work !== 'function') throw typeError('work', 'a function', work);
    const bytes = this.map();
    const sync = (end: boolean) => binding().syncDmabuf(this.#handle, access !== 'write', access !== 'read', end);
    const finish = () => {
      // Closed meanwhile: there is nothing left to see to.
      if (!this.closed) sync(true);
    };
    sync(false);
    let result: T;
    try {
      result = work(bytes);
    } catch (error) {
      finish();
      throw error;
    }
    if (result instanceof Promise) return result.finally(finish) as T;
    finish();
    return result;
  }

  /**
   * Registers a part of it, without a copy: a region like any other, except that it has no `buffer`. The region keeps the
   * memory, so this object may be closed once the promise has settled.
   *
   * @throws RangeError where the range is not inside of it
   * @throws RdmaError EOPNOTSUPP where kernel, library or provider do not register DMA-BUFs; EINVAL, explained, as
   *   {@link importDmabuf}
   * @see ibv_reg_mr(3)
   */
  async register(pd: ProtectionDomain, options: RegisterOptions = {}): Promise<MemoryRegion> {
    this.requireOpen();
    return this.track(registerDmabuf(pd, this.fd, this.length, options));
  }

  /** @internal */
  describe(): string {
    return `DmaBuf (fd ${this.fd}, ${this.length} bytes)`;
  }

  /** @internal */
  protected override fields(): object {
    const { fd, length, exporter } = this;
    return { fd, length, exporter };
  }

  protected destroy(): void {
    binding().closeDmabuf(this.#handle);
    if (this.#view) binding().detach(this.#view.buffer as ArrayBuffer);
  }
}

/**
 * Takes a duplicate of a descriptor of this process: one that was inherited, or that another addon has exported.
 *
 * @param fd - stays the caller's, and may be closed
 * @throws RdmaError EBADF
 */
export function openDmabuf(fd: number): DmaBuf {
  return new DmaBuf(binding().duplicateDmabuf(integer(fd, 'fd', 0, 0x7fff_ffff)));
}

/**
 * Takes a duplicate of a descriptor of another process, which need do nothing for it (Linux 5.6). It takes the right to
 * debug that process: the same user, and what Yama allows (/proc/sys/kernel/yama/ptrace_scope), or CAP_SYS_PTRACE.
 *
 * @param pid - the process
 * @param fd - the descriptor's number there
 * @throws RdmaError ESRCH for no such process; EBADF for no such descriptor; EPERM, explained; ENOSYS on older kernels
 * @see pidfd_getfd(2)
 */
export function getDmabuf(pid: number, fd: number): DmaBuf {
  integer(pid, 'pid', 1, 0x7fff_ffff);
  integer(fd, 'fd', 0, 0x7fff_ffff);
  try {
    return new DmaBuf(binding().dmabufOfProcess(pid, fd));
  } catch (error) {
    if (!(error instanceof RdmaError) || error.code !== 'EPERM') throw error;
    throw error.explained(
      `this process may not debug process ${pid}: see /proc/sys/kernel/yama/ptrace_scope, or use CAP_SYS_PTRACE, or have ` +
        'that process send it (FdChannel)',
    );
  }
}

/**
 * Registers memory of a DMA-BUF that somebody else has exported: a region like any other, with slices and tokens, except
 * that it has no `buffer`. The region keeps the memory.
 *
 * @param fd - the descriptor; it may be closed once the promise has settled
 * @throws RangeError where the range is not inside of the DMA-BUF
 * @throws RdmaError EBADF for no descriptor; EOPNOTSUPP where kernel, library or provider do not register DMA-BUFs; EINVAL
 *   for a descriptor of something else, for access flags that do not go together, and for an `iova` that is not at the same
 *   place in its page as `offset`: the message says which
 * @see ibv_reg_mr(3)
 */
export async function importDmabuf(
  pd: ProtectionDomain,
  fd: number,
  options: RegisterOptions = {},
): Promise<MemoryRegion> {
  integer(fd, 'fd', 0, 0x7fff_ffff);
  let length: number;
  try {
    length = fstatSync(fd).size;
  } catch {
    throw new RdmaError('fstat', constants.errno.EBADF, `there is no descriptor ${fd}`);
  }
  return registerDmabuf(pd, fd, length, options);
}

async function registerDmabuf(
  pd: ProtectionDomain,
  fd: number,
  size: number,
  options: RegisterOptions,
): Promise<MemoryRegion> {
  instance(pd, 'pd', ProtectionDomain);
  const { offset, length } = registerRange(size, options, `DMA-BUF (fd ${fd})`);
  try {
    return await pd.regDmabufMr(fd, { ...options, offset, length });
  } catch (error) {
    throw explain(error, fd, offset, options.iova ?? BigInt(offset));
  }
}

/** Offset and length, with their defaults, of a part of `size` bytes. @internal */
export function registerRange(
  size: number,
  options: RegisterOptions,
  what: string,
): { offset: number; length: number } {
  const known = ['offset', 'length', 'iova', 'access'];
  const { offset = 0, length } = readOptions(options, 'options', known);
  integer(offset, 'options.offset', 0, Number.MAX_SAFE_INTEGER);
  if (offset >= size) throw rangeError(`options.offset ${offset} is past the end of the ${what} of ${size} bytes`);
  if (length === undefined) return { offset, length: size - offset };
  integer(length, 'options.length', 1, Number.MAX_SAFE_INTEGER);
  if (offset + length > size) {
    throw rangeError(
      `options.offset ${offset} + options.length ${length} is past the end of the ${what} of ${size} bytes`,
    );
  }
  return { offset, length };
}

function explain(error: unknown, fd: number, offset: number, iova: bigint): unknown {
  if (!(error instanceof RdmaError)) return error;
  if (error.code === 'EOPNOTSUPP') {
    return error.explained(
      'DMA-BUF regions need rdma-core 34, Linux 5.12, and a device whose driver and provider have them (mlx5 does, ' +
        'Soft-RoCE does not)',
    );
  }
  // 12 bits: no page is smaller.
  if (error.code === 'EINVAL' && ((BigInt(offset) ^ iova) & 0xfffn) !== 0n) {
    return error.explained(
      `offset 0x${offset.toString(16)} and iova 0x${iova.toString(16)} are at different places in their pages: the device ` +
        'translates whole pages, so the two must agree modulo the page size. They need not be multiples of it',
    );
  }
  if (error.code === 'EINVAL' && exporterOf(fd) === undefined) {
    return error.explained(`descriptor ${fd} is no DMA-BUF, as far as /proc/self/fdinfo/${fd} tells`);
  }
  return error;
}

/** Who has exported a DMA-BUF: its fdinfo has a line for that. */
function exporterOf(fd: number): string | undefined {
  try {
    return /^exp_name:\s*(\S+)/m.exec(readFileSync(`/proc/self/fdinfo/${fd}`, 'latin1'))?.[1];
  } catch {
    return undefined;
  }
}
