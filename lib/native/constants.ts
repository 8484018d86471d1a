/** What the objects of constants have in common. */
import { nearest, valueError } from '../args.ts';

/**
 * Freezes an object of constants, and lets no misspelt one pass: in plain JavaScript `AccessFlags.REMOTE_WIRTE` would be
 * undefined, which vanishes in `|`. A name that there is, is found in the object itself, as quickly as ever; only one that
 * there is not reaches the prototype, which throws. Whether there is one, `in` tells.
 */
export function constants<T extends Readonly<Record<string, number>>>(object: string, values: T): Readonly<T> {
  const prototype = new Proxy(
    {},
    {
      get(target, key, receiver) {
        // What else is asked for (toJSON, symbols, ...) comes from those who look at all objects alike.
        if (typeof key === 'string' && /^[A-Z]/.test(key)) {
          const meant = nearest(key, Object.keys(values));
          throw valueError(`There is no ${object}.${key}${meant === undefined ? '' : `; did you mean '${meant}'?`}`);
        }
        return Reflect.get(target, key, receiver);
      },
    },
  );
  return Object.freeze(Object.setPrototypeOf(values, prototype));
}
