import { constants } from 'node:buffer';
import { readFileSync } from 'node:fs';
import { markAsUntransferable } from 'node:worker_threads';
import { boolean, integer, rangeError, readOptions, typeError, uint32, uint64, valueError } from '../args.ts';
import { RdmaError } from '../errors.ts';
import { AccessFlags } from '../native/constants.gen.ts';
import type { PdHandle } from '../native/native.ts';
import type { Context } from './context.ts';

/** How memory is registered. */
export interface RegMrOptions {
  /**
   * `AccessFlags` joined with `|`: what may be done with the region. Default `LOCAL_WRITE`. Remote write and atomic need
   * LOCAL_WRITE too.
   */
  access?: number;
  /**
   * The address by which requests and peers name the first byte. Default: where it lies in memory; 0 with
   * `AccessFlags.ZERO_BASED`. It must be at the same place in its page as the memory, and the region may not go on past
   * 2^64 (RangeError).
   */
  iova?: bigint;
}

/** How memory is allocated. */
export interface AllocOptions extends RegMrOptions {
  /** Use huge pages of the system's default size (see /proc/sys/vm/nr_hugepages). Default false. */
  hugePages?: boolean;
}

/** What a DMA-BUF is registered with. */
export interface RegDmabufMrOptions extends RegMrOptions {
  /** First byte within the DMA-BUF. Default 0. */
  offset?: number;
  /** Bytes. */
  length: number;
  /** The address by which requests and peers name the first byte. Default: the offset. */
  iova?: bigint;
}

/** What `regOptions()` reads, with its defaults. @internal */
export interface Registration {
  access: number;
  iova: bigint | undefined;
}

/** @internal */
export function regOptions(options: AllocOptions, others: readonly string[] = []): Registration {
  const { access = AccessFlags.LOCAL_WRITE, iova } = readOptions(options, 'options', ['access', 'iova', ...others]);
  uint32(access, 'options.access');
  if (iova !== undefined) uint64(iova, 'options.iova');
  if ((access & AccessFlags.ZERO_BASED) === 0) return { access, iova };
  if (iova !== undefined && iova !== 0n) throw valueError('options.iova must be 0n, or missing, with ZERO_BASED');
  return { access, iova: 0n };
}

/** The last byte has an address too: a range does not go on at 0. @internal */
export function requireFits(start: bigint | undefined, length: number, name = 'options.iova'): void {
  if (start === undefined || start + BigInt(length) <= 1n << 64n) return;
  throw rangeError(`${name} 0x${start.toString(16)} + ${length} bytes is past the end of the 64-bit addresses`);
}

/** What `pd.alloc()` is called with. @internal */
export function allocArgs(length: number, options: AllocOptions): { hugePages: boolean; how: Registration } {
  const how = regOptions(options, ['hugePages']);
  // The longest Buffer that Node has: 4 GiB in Node 20.
  integer(length, 'length', 1, constants.MAX_LENGTH);
  requireFits(how.iova, length);
  const { hugePages = false } = options;
  return { how, hugePages: boolean(hugePages, 'options.hugePages') };
}

/** What `pd.regMr()` is called with; the memory is marked as not transferable. @internal */
export function regArgs(pd: PdHandle, memory: ArrayBufferView | ArrayBuffer, options: RegMrOptions) {
  const how = regOptions(options);
  const { buffer, view } = memoryOf(memory);
  requireFits(how.iova, view.length);
  markAsUntransferable(buffer);
  return { view, how, args: [pd, buffer, view.byteOffset, view.length, how.access, how.iova] as const };
}

/** What `pd.regMrAddress()` is called with. @internal */
export function addressArgs(pd: PdHandle, address: bigint, length: number, options: RegMrOptions) {
  const how = regOptions(options);
  uint64(address, 'address');
  integer(length, 'length', 1, Number.MAX_SAFE_INTEGER);
  requireFits(address, length, 'address');
  requireFits(how.iova, length);
  return { how, args: [pd, address, length, how.access, how.iova] as const };
}

/** @internal */
export function dmabufOptions(fd: number, options: RegDmabufMrOptions) {
  if (options === undefined) throw typeError('options', 'an object with length', options);
  const { access, iova } = regOptions(options, ['offset', 'length']);
  const { offset = 0, length } = options;
  integer(fd, 'fd', 0, 0x7fff_ffff);
  integer(offset, 'options.offset', 0, Number.MAX_SAFE_INTEGER);
  integer(length, 'options.length', 1, Number.MAX_SAFE_INTEGER);
  requireFits(iova, length);
  // Of an iova at the right place there is nothing to say where a registration fails. 12 bits: no page is smaller.
  const isOdd = iova !== undefined && ((iova ^ BigInt(offset)) & 0xfffn) !== 0n;
  const asked: Registration = { access, iova: isOdd ? iova : undefined };
  return { offset, length, how: { access, iova: iova ?? BigInt(offset) }, asked };
}

// The addon interface cannot reach the memory of one.
const NOT_SHARED =
  '(a SharedArrayBuffer cannot be registered: each thread registers memory of its own, and copies or sends between them)';

/** The memory behind a view: what `ibv_reg_mr` is told. @internal */
export function memoryOf(memory: unknown, name = 'memory'): { buffer: ArrayBuffer; view: Buffer } {
  const isView = ArrayBuffer.isView(memory);
  if (!isView && !(memory instanceof ArrayBuffer)) {
    const expected = 'a Buffer, TypedArray, DataView or ArrayBuffer';
    throw typeError(name, memory instanceof SharedArrayBuffer ? `${expected} ${NOT_SHARED}` : expected, memory);
  }
  // `resizable` is younger than the library definitions that we compile with.
  const backing: ArrayBufferLike & { resizable?: boolean } = isView ? memory.buffer : memory;
  if (!(backing instanceof ArrayBuffer)) throw typeError(name, `backed by an ArrayBuffer ${NOT_SHARED}`, memory);
  if (backing.resizable) throw typeError(name, 'of a fixed size, since a resizable one may move', memory);
  // Looked at first: a DataView of a detached one throws when it is asked for its length.
  if (backing.byteLength === 0 || memory.byteLength === 0) {
    throw rangeError(`${name} must have at least one byte (is it detached?)`);
  }
  const offset = isView ? memory.byteOffset : 0;
  const length = memory.byteLength;
  return { buffer: backing, view: Buffer.from(backing, offset, length) };
}

/**
 * EINVAL from a registration is nearly always about the access flags, and ENOMEM about the limit on locked memory; neither
 * says so.
 *
 * @internal
 */
export function explainRegistration(error: unknown, length: number, of: Registration, context: Context): unknown {
  const { LOCAL_WRITE, REMOTE_WRITE, REMOTE_ATOMIC } = AccessFlags;
  if (!(error instanceof RdmaError)) return error;
  if (error.code === 'EINVAL') {
    const { maxMrSize } = context.queryDevice();
    if (BigInt(length) > maxMrSize) return error.explained(`${length} bytes, maxMrSize of the device is ${maxMrSize}`);
    if ((of.access & (REMOTE_WRITE | REMOTE_ATOMIC)) !== 0 && (of.access & LOCAL_WRITE) === 0) {
      return error.explained('REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE too: add AccessFlags.LOCAL_WRITE');
    }
    if (of.iova === undefined) return error;
    return error.explained(`iova 0x${of.iova.toString(16)} must be at the same place in its page as the memory`);
  }
  if (error.syscall === 'mmap' && error.code === 'ENOMEM') {
    return error.explained(`no memory for ${length} bytes; with hugePages, see /proc/sys/vm/nr_hugepages`);
  }
  if (error.code !== 'ENOMEM') return error;
  const limit = /^Max locked memory +(\S+) +(\S+)/m.exec(readFileSync('/proc/self/limits', 'utf8'));
  return error.explained(
    `registering ${length} bytes; RLIMIT_MEMLOCK is ${limit?.[1] ?? 'unknown'} bytes (hard limit ${limit?.[2] ?? 'unknown'}). ` +
      'Raise it with "ulimit -l unlimited", LimitMEMLOCK=infinity in the systemd unit, or "--ulimit memlock=-1" for a container',
  );
}
