/**
 * What `console.log` and `util.inspect` show of the objects of this package: their properties under the names that a
 * program reads them by, numbers of an enum by their names. Nothing here throws, asks a device or waits.
 */
import { type InspectOptionsStylized, inspect } from 'node:util';
import { integer, typeError } from './args.ts';

/** One of the generated constant objects. */
type Constants = Readonly<Record<string, number>>;

/** So many of what a word names. */
export const counted = (count: number, word: string): string => `${count} ${word}${count === 1 ? '' : 's'}`;

/** The name of a value of an enum such as `QpState`; the number as text where it has none. */
export function nameOf(object: Constants, value: number): string {
  for (const [name, known] of Object.entries(object)) if (known === value) return name;
  return String(value);
}

/**
 * The names of flags, as a program writes them.
 *
 * @param flags - what they belong to, such as `AccessFlags`
 * @param value - flags joined with `|`
 * @returns such as `'LOCAL_WRITE | REMOTE_READ'`; bits without a name in hexadecimal; `'0'` for none
 */
export function flagNames(flags: Readonly<Record<string, number>>, value: number | bigint): string {
  if (typeof flags !== 'object' || flags === null) throw typeError('flags', 'an object of names and bits', flags);
  if (typeof value !== 'bigint') integer(value, 'value', -(2 ** 31), Number.MAX_SAFE_INTEGER);
  // Numbers that were joined with | are negative when they have the highest of 32 bits.
  let rest = BigInt(typeof value === 'number' && value < 0 ? value >>> 0 : value);
  const names: string[] = [];
  for (const [name, bit] of Object.entries(flags)) {
    if ((rest & BigInt(bit)) === 0n) continue;
    names.push(name);
    rest &= ~BigInt(bit);
  }
  if (rest !== 0n || names.length === 0) names.push(rest === 0n ? '0' : `0x${rest.toString(16)}`);
  return names.join(' | ');
}

// Shown without quotes.
class Word {
  readonly #text: string;
  readonly #style: 'number' | 'special';
  constructor(text: string, style: 'number' | 'special') {
    this.#text = text;
    this.#style = style;
  }
  [inspect.custom](_depth: number, options: InspectOptionsStylized): string {
    return options.stylize(this.#text, this.#style);
  }
}

/** Shown as it is, without quotes. */
export function word(text: string): object {
  return new Word(text, 'special');
}

/** Shown in hexadecimal. */
export function hex(value: number | bigint): object {
  return new Word(`0x${value.toString(16)}`, 'number');
}

/** Shown in hexadecimal, with all its zeros. */
export function hex64(value: bigint): object {
  return new Word(`0x${value.toString(16).padStart(16, '0')}`, 'number');
}

/** Shown as the name in an enum, followed by the C library's text where that says more. */
export function named(object: Constants, text?: (value: number) => string): (value: number) => object {
  return (value) => {
    const name = nameOf(object, value);
    const more = text?.(value) ?? name;
    return word(name.toLowerCase() === more.toLowerCase().replaceAll(' ', '_') ? name : `${name} (${more})`);
  };
}

/** Shown as the names of its flags. */
export function flagged(flags: Constants): (value: number | bigint) => object {
  return (value) => word(flagNames(flags, value));
}

/** Another object of the package, shown in a few words. */
export function brief(object: { describe(): string; closed: boolean }): object {
  return word(`${object.describe()}${object.closed ? ' [closed]' : ''}`);
}

/** What `[inspect.custom]()` is called with: how many levels more, and how. */
export type Inspecting = [depth: number, options: InspectOptionsStylized];

// Characters of a line, as `breakLength` of util.inspect() counts them: what fits is shown on one.
const LINE = 180;

/**
 * What `[inspect.custom]()` returns: one line where it fits, else an object for `util.inspect` to print; as deep, coloured
 * and compact as it was told.
 *
 * @param name - what it is called
 * @param tag - behind the name in brackets, such as `'closed'`
 * @param fields - asked for what to show; an undefined field is left out
 */
export function shown(
  name: string,
  tag: string | undefined,
  fields: () => object,
  ...[depth, options]: Inspecting
): object | string {
  class Shown {}
  Object.defineProperty(Shown, 'name', { value: name });
  if (tag !== undefined) Object.defineProperty(Shown.prototype, Symbol.toStringTag, { value: tag });
  const result = new Shown();
  try {
    for (const [key, value] of Object.entries(fields())) {
      if (value !== undefined) Object.assign(result, { [key]: value });
    }
  } catch {
    // Something that only looks like the object: it has no fields to show.
  }
  if (depth < 0 || options?.compact === false) return result;
  const line = inspect(result, { ...options, depth, breakLength: Math.max(options?.breakLength ?? 0, LINE) });
  // Only util.inspect() knows how far to indent the second line.
  return line.includes('\n') ? result : line;
}

/** How fields of a plain object are shown: those that are not named here as they are, and not at all where null. */
export type Formats<T> = { [K in keyof T]?: ((value: NonNullable<T[K]>) => unknown) | null };

/**
 * A function that gives names to the numbers of plain objects, wherever they are printed. The objects stay plain: what
 * it adds to them is neither enumerable nor copied.
 *
 * @param name - what the objects are called
 */
export function printed<T extends object>(name: string, formats: Formats<T>): (object: T) => T {
  const known = formats as Record<string, ((value: unknown) => unknown) | null | undefined>;
  const value = function (this: T, ...how: Inspecting): object | string {
    const fields = () =>
      Object.fromEntries(Object.entries(this).map(([key, field]) => [key, formatted(known[key], field)]));
    return shown(name, undefined, fields, ...how);
  };
  return (object) => Object.defineProperty(object, inspect.custom, { value });
}

function formatted(format: ((value: unknown) => unknown) | null | undefined, field: unknown): unknown {
  if (format === null) return undefined;
  try {
    return format === undefined ? field : format(field);
  } catch {
    // The program has put something else there.
    return field;
  }
}
