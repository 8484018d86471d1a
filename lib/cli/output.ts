/** What goes to stdout: tables and colours on a terminal, columns between tabs elsewhere, JSON where asked for. */
import { once } from 'node:events';

const { stdout } = process;
// hasColors knows NO_COLOR, FORCE_COLOR and TERM.
const hasColors = stdout.isTTY === true && stdout.hasColors();

const codes = { bold: 1, red: 31, green: 32, yellow: 33, cyan: 36, grey: 90 } as const;

/** A text in a colour, where stdout has colours. */
export function colour(name: keyof typeof codes, text: string): string {
  return hasColors && text !== '' ? `\x1b[${codes[name]}m${text}\x1b[0m` : text;
}

/** Prints a line. */
export function print(text = ''): void {
  stdout.write(`${text}\n`);
}

/** Prints a value as JSON: indented on a terminal, else in one line. 64-bit numbers are strings of decimal digits. */
export function printJson(value: unknown): void {
  print(toJson(value, stdout.isTTY ? 2 : 0));
}

/** As {@link printJson} writes it. */
export function toJson(value: unknown, indent = 0): string {
  return JSON.stringify(value, (_key, item) => (typeof item === 'bigint' ? String(item) : item), indent);
}

/** A number with at most so many digits behind the point: what JSON has no need of is left out. */
export function rounded<Value extends number | undefined>(value: Value, digits: number): Value {
  return (value === undefined ? undefined : Number(value.toFixed(digits))) as Value;
}

type Cell = string | number | bigint | null | undefined;

/**
 * Prints rows under column names. On a terminal the columns are aligned, and what holds numbers only stands to the right;
 * elsewhere a tab divides them, for `cut` and `awk -F '\t'`.
 */
export function printTable(columns: readonly string[], rows: readonly (readonly Cell[])[]): void {
  const texts = rows.map((row) => row.map((cell) => (cell === null || cell === undefined ? '' : String(cell))));
  if (!stdout.isTTY) {
    for (const row of [columns, ...texts]) print(row.join('\t'));
    return;
  }
  const widths = columns.map((name, i) => Math.max(name.length, ...texts.map((row) => row[i]!.length)));
  const isNumeric = columns.map((_, i) => texts.length > 0 && texts.every((row) => /^[\d.,%-]*$/.test(row[i]!)));
  const line = (row: readonly string[]) =>
    row.map((text, i) => (isNumeric[i] ? text.padStart(widths[i]!) : text.padEnd(widths[i]!))).join('  ');
  print(colour('bold', line(columns).trimEnd()));
  for (const row of texts) print(line(row).trimEnd());
}

/** As `printTable()`, but for rows of numbers that come one by one: prints the names, and returns what prints a row. */
export function printRows(columns: readonly string[]): (row: readonly string[]) => void {
  const line = (row: readonly string[]) =>
    stdout.isTTY ? row.map((text, i) => text.padStart(Math.max(columns[i]!.length, 9))).join('  ') : row.join('\t');
  print(colour('bold', line(columns)));
  return (row) => print(line(row));
}

/** Lines for stdout, written in large pieces: for hundreds of thousands a second, in memory that does not grow. */
export class LineWriter {
  #text = '';

  add(line: string): void {
    this.#text += line;
    this.#text += '\n';
  }

  /** Whether {@link LineWriter.flush} should be called. */
  get isFull(): boolean {
    return this.#text.length > 1 << 16;
  }

  /** Writes what there is, and waits while the reader is behind. */
  async flush(signal: AbortSignal): Promise<void> {
    const text = this.#text;
    this.#text = '';
    // Nothing in it is beyond ASCII, and so it need not be looked at.
    if (text === '' || stdout.write(text, 'latin1')) return;
    await once(stdout, 'drain', { signal });
  }
}
