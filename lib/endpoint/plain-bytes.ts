/** Bytes of the caller as they are, whatever a subclass of Uint8Array says about itself. */
import { stateError } from '../args.ts';

const typedArray = Object.getPrototypeOf(Uint8Array.prototype) as object;

function getter<T>(name: string): (bytes: Uint8Array) => T {
  const { get } = Object.getOwnPropertyDescriptor(typedArray, name) as { get: () => T };
  return (bytes) => get.call(bytes);
}

const bufferOf = getter<ArrayBuffer>('buffer');
const byteOffsetOf = getter<number>('byteOffset');

/** How many there are: none when their memory was taken away, given to a worker say. @internal */
export const byteLengthOf = getter<number>('byteLength');

/**
 * The same bytes, in place, as an array that nobody has changed the methods of.
 *
 * @throws Error ERR_INVALID_STATE when their memory was taken away
 * @internal
 */
export function plainBytes(bytes: Uint8Array): Buffer {
  try {
    return Buffer.from(bufferOf(bytes), byteOffsetOf(bytes), byteLengthOf(bytes));
  } catch {
    // The only one that cannot be looked at.
    throw stateError('The memory of the bytes was taken away: their ArrayBuffer is detached');
  }
}
