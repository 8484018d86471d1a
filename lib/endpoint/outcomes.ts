import type { Received } from './operations.ts';
import { NOTHING } from './request-queue.ts';

/**
 * A promise that a signal rejects, with its reason, when it is aborted before the operation has ended.
 *
 * @param abandon - called then
 * @internal
 */
export function abortable<T>(operation: Promise<T>, signal: AbortSignal, abandon: () => void): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    const abort = () => {
      reject(signal.reason);
      abandon();
    };
    signal.addEventListener('abort', abort, { once: true });
    const ended = () => signal.removeEventListener('abort', abort);
    operation.then(
      (value) => {
        ended();
        resolve(value);
      },
      (error) => {
        ended();
        reject(error);
      },
    );
  });
}

/**
 * How several requests settle one promise: when the last of them has ended, with the first error if there was one.
 *
 * @internal
 */
export function outcomeOf(count: number, resolve: (nothing: Received) => void, reject: (error: Error) => void) {
  let left = count;
  let failure: Error | undefined;
  if (left === 0) resolve(NOTHING);
  const ended = (error?: Error) => {
    failure ??= error;
    left--;
    if (left > 0) return;
    if (failure === undefined) resolve(NOTHING);
    else reject(failure);
  };
  return { resolve: () => ended(), reject: ended };
}
