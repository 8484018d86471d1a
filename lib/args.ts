/** Checks of arguments: each names the argument and gives an error with one of Node's codes, before C sees anything. */

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

/** An options object; a key that is not known is refused, so that a misspelt option cannot be passed over. */
export function readOptions<T extends object>(
  value: T | undefined,
  name: string,
  known: readonly string[],
): Partial<T> {
  if (value === undefined) return {};
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw typeError(name, 'an object', value);
  for (const key of Object.keys(value)) {
    if (!known.includes(key)) {
      const meant = known.find((k) => k.toLowerCase() === key.toLowerCase().replaceAll('_', ''));
      throw valueError(
        `Unknown option '${key}' in ${name}${meant ? `; did you mean '${meant}'?` : `; known are ${known.join(', ')}`}`,
      );
    }
  }
  return value;
}

/** An AbortSignal or nothing. */
export function abortSignal(value: unknown, name: string): AbortSignal | undefined {
  if (value === undefined || value instanceof AbortSignal) return value;
  throw typeError(name, 'an AbortSignal', value);
}
