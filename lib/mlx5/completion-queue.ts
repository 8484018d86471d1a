import { instance, integer, readOptions, uint32 } from '../args.ts';
import { mlx5 } from '../native/binding.ts';
import type { NativeMlx5CqInitAttr } from '../native/native.ts';
import type { CompletionQueue, CqOptions } from '../verbs/completion-queue.ts';
import { Context } from '../verbs/context.ts';

/** What libmlx5 has beyond verbs: `struct mlx5dv_cq_init_attr`. The mask of the C function follows from the keys. */
export interface Mlx5dvCqInitAttr {
  /** Compresses completion entries, as this one of `Mlx5dvCqeCompResFormat`: it takes less of the bus. Default: not. */
  cqeCompResFormat?: number;
  /** `Mlx5dvCqInitAttrFlags` joined with `|`. Default none. */
  flags?: number;
  /** Bytes of an entry: 64 or 128. Default 64, or what the environment variable MLX5_CQE_SIZE says. */
  cqeSize?: number;
}

/**
 * Creates a completion queue with what libmlx5 has beyond verbs.
 *
 * @param context - the device
 * @param cqe - entries wanted, as of `context.createCq()`
 * @param options - as of `context.createCq()`
 * @param mlx5Attr - what is beyond that
 * @throws RdmaError EINVAL for a format, a flag or a size that the device does not have: see `queryDevice()`; EOPNOTSUPP
 *   where the device is another one
 * @see mlx5dv_create_cq(3)
 */
export function createCq(
  context: Context,
  cqe: number,
  options: CqOptions = {},
  mlx5Attr: Mlx5dvCqInitAttr = {},
): CompletionQueue {
  instance(context, 'context', Context).requireOpen();
  mlx5();
  const known = ['cqeCompResFormat', 'flags', 'cqeSize'];
  const { cqeCompResFormat, flags, cqeSize } = readOptions(mlx5Attr, 'mlx5Attr', known);
  const native: NativeMlx5CqInitAttr = {};
  if (cqeCompResFormat !== undefined) {
    native.cqeCompResFormat = integer(cqeCompResFormat, 'mlx5Attr.cqeCompResFormat', 1, 255);
  }
  if (flags !== undefined) native.flags = uint32(flags, 'mlx5Attr.flags');
  if (cqeSize !== undefined) native.cqeSize = integer(cqeSize, 'mlx5Attr.cqeSize', 1, 0xffff);
  return context.makeCq(cqe, options, native);
}
