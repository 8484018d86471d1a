/** Checks of arguments: each names the argument and gives an error with one of Node's codes, before C sees anything. */
import { setMaxListeners } from 'node:events';

function coded<E extends Error>(error: E, code: string): E {
  return Object.assign(error, { code });
}

function show(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value);
  if (typeof value === 'bigint') return `${value}n`;
  if (typeof value === 'function') return `function ${value.name}`;
  if (typeof value === 'object' && value !== null) return `an instance of ${value.constructor?.name ?? 'Object'}`;
  return String(value);
}

/** TypeError `ERR_INVALID_ARG_TYPE`. */
export function typeError(name: string, expected: string, value: unknown): TypeError {
  return coded(new TypeError(`${name} must be ${expected}, not ${show(value)}`), 'ERR_INVALID_ARG_TYPE');
}

/** TypeError `ERR_INVALID_ARG_VALUE`. */
export function valueError(message: string): TypeError {
  return coded(new TypeError(message), 'ERR_INVALID_ARG_VALUE');
}

/** RangeError `ERR_OUT_OF_RANGE`. */
export function rangeError(message: string): RangeError {
  return coded(new RangeError(message), 'ERR_OUT_OF_RANGE');
}

/** Error `ERR_INVALID_STATE`. */
export function stateError(message: string): Error {
  return coded(new Error(message), 'ERR_INVALID_STATE');
}

/** An integer from `min` to `max`. */
export function integer(value: unknown, name: string, min: number, max: number): number {
  if (typeof value !== 'number') throw typeError(name, 'a number', value);
  if (!Number.isInteger(value) || value < min || value > max) {
    throw rangeError(`${name} must be an integer from ${min} to ${max}, not ${value}`);
  }
  return value;
}

/** An unsigned number of 32 bits. */
export function uint32(value: unknown, name: string): number {
  return integer(value, name, 0, 0xffff_ffff);
}

/** An unsigned bigint of 64 bits. */
export function uint64(value: unknown, name: string): bigint {
  if (typeof value !== 'bigint') throw typeError(name, 'a bigint', value);
  if (value < 0n || value > 0xffff_ffff_ffff_ffffn) throw rangeError(`${name} must fit 64 bits, not ${value}`);
  return value;
}

/** A boolean. */
export function boolean(value: unknown, name: string): boolean {
  if (typeof value !== 'boolean') throw typeError(name, 'a boolean', value);
  return value;
}

/** A string. */
export function string(value: unknown, name: string): string {
  if (typeof value !== 'string') throw typeError(name, 'a string', value);
  return value;
}

/** An object that is no array. */
export function object<T>(value: T, name: string): T {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw typeError(name, 'an object', value);
  return value;
}

/** An array of objects. */
export function objects<T>(value: readonly T[], name: string): readonly T[] {
  if (!Array.isArray(value)) throw typeError(name, 'an array', value);
  for (const [i, each] of value.entries()) object(each, `${name}[${i}]`);
  return value;
}

/** An instance of a class of this package. */
export function instance<T>(value: unknown, name: string, type: abstract new (...args: never[]) => T): T {
  if (!(value instanceof type)) throw typeError(name, `a ${type.name}`, value);
  return value;
}

/** One of the values of a constant object such as `QpType`. */
export function oneOf<T extends number>(value: unknown, name: string, object: Record<string, T>, type: string): T {
  for (const known of Object.values(object)) if (known === value) return known;
  if (typeof value !== 'number') throw typeError(name, `a ${type}`, value);
  throw rangeError(`${name} must be a ${type} (${Object.keys(object).join(', ')}), not ${value}`);
}

/**
 * An options object; a key that is not known is refused, so that a misspelt option cannot be passed over.
 *
 * @param hints - what to say to keys that are not known here, but that C has
 */
export function readOptions<T extends object>(
  value: T | undefined,
  name: string,
  known: readonly string[],
  hints: Readonly<Record<string, string>> = {},
): Partial<T> {
  if (value === undefined) return {};
  object(value, name);
  for (const key of Object.keys(value)) {
    if (known.includes(key)) continue;
    const meant = nearest(key, known);
    const advice = Object.hasOwn(hints, key)
      ? `: ${hints[key]}`
      : `; ${meant === undefined ? `known are ${known.join(', ')}` : `did you mean '${meant}'?`}`;
    throw valueError(`Unknown option '${key}' in ${name}${advice}`);
  }
  return value;
}

/** The known name that was probably meant: the one with the fewest edits, of one for every three letters at the most. */
export function nearest(given: string, known: readonly string[]): string | undefined {
  const plain = (name: string) => name.toLowerCase().replaceAll('_', '');
  let fewest = Math.max(Math.floor(given.length / 3), 1) + 1;
  let found: string | undefined;
  // No name of ours is as long as that, and the work grows with the length.
  if (given.length > 40) return undefined;
  for (const name of known) {
    const count = edits(plain(given), plain(name));
    if (count < fewest) [fewest, found] = [count, name];
  }
  return found;
}

// Letters to insert, take out or replace, and neighbours to swap, to make one word of the other.
function edits(a: string, b: string): number {
  let before: number[] = [];
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const isSwap = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      const [up, left, corner] = [row[j], next[j - 1], row[j - 1]] as [number, number, number];
      next[j] = Math.min(up + 1, left + 1, corner + Number(a[i - 1] !== b[j - 1]));
      if (isSwap) next[j] = Math.min(next[j] as number, (before[j - 2] as number) + 1);
    }
    [before, row] = [row, next];
  }
  return row[b.length] as number;
}

/**
 * An AbortSignal or nothing. One signal is for as many operations as one likes: Node's younger releases do not warn of eleven
 * listeners any more, which a leak might be, and neither do these before them.
 */
export function abortSignal(value: unknown, name: string): AbortSignal | undefined {
  if (value === undefined) return undefined;
  if (!(value instanceof AbortSignal)) throw typeError(name, 'an AbortSignal', value);
  setMaxListeners(0, value);
  return value;
}

/** A number from an environment variable that operators set; undefined when it is not set. */
export function environmentNumber(name: string, max: number): number | undefined {
  const value = process.env[name];
  if (value === undefined || value === '') return undefined;
  const number = Number(value);
  if (Number.isNaN(number)) throw rangeError(`${name} must be an integer from 0 to ${max}, not '${value}'`);
  return integer(number, name, 0, max);
}
