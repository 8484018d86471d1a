/** A small fuzzer that is guided by coverage: it keeps each input that reaches code which none before has reached. */

import { Session } from 'node:inspector';
import type { Random } from './roce-samples.ts';

/** Which characters of the code of lib/roce have run, as V8 counts its blocks. */
export class Coverage {
  readonly #session = new Session();
  /** By URL: 1 for each character that has run. The limits of V8's blocks vary with their counts, so these are no measure. */
  readonly #known = new Map<string, Uint8Array>();

  constructor() {
    this.#session.connect();
    this.#session.post('Profiler.enable');
    this.#session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: true });
  }

  /** Whether code has run since the last call that had not run before the last `learn`. */
  take(learn: boolean): boolean {
    let isNew = false;
    // A session of one's own thread answers at once.
    this.#session.post('Profiler.takePreciseCoverage', (error, { result }) => {
      if (error !== null) throw error;
      for (const { url, functions } of result) {
        if (!url.includes('/lib/roce/')) continue;
        const ranges = functions.flatMap((entry) => entry.ranges);
        const length = Math.max(...ranges.map(({ endOffset }) => endOffset));
        const ran = new Uint8Array(length);
        // From the outer to the inner.
        for (const { startOffset, endOffset, count } of ranges) ran.fill(count > 0 ? 1 : 0, startOffset, endOffset);
        const known = this.#known.get(url) ?? new Uint8Array(0);
        if (!ran.some((value, at) => value > (known[at] ?? 0))) continue;
        isNew = true;
        if (learn)
          this.#known.set(
            url,
            ran.map((value, at) => value | (known[at] ?? 0)),
          );
      }
    });
    return isNew;
  }

  /** How many characters of code have run. */
  get size(): number {
    return [...this.#known.values()].flatMap((ran) => [...ran]).reduce((sum, value) => sum + value, 0);
  }

  stop(): void {
    this.#session.disconnect();
  }
}

const INTERESTING = [0, 1, 2, 4, 8, 11, 12, 15, 16, 0x11, 0x1b, 0x20, 0x7f, 0x80, 0x81, 0xb7, 0xff];

/** Another input, made from one of the corpus. */
export function mutate(random: Random, corpus: readonly Buffer[]): Buffer {
  let bytes = Buffer.from(random.pick(corpus));
  for (let changes = 1 + random.below(4); changes > 0; changes--) {
    const at = random.below(bytes.length + 1);
    const length = 1 + random.below(random.pick([1, 4, 16, 64]));
    switch (random.below(8)) {
      case 0:
        if (at < bytes.length) bytes[at]! ^= 1 << random.below(8);
        break;
      case 1:
        if (at < bytes.length) bytes[at] = random.pick(INTERESTING);
        break;
      case 2:
        if (at < bytes.length) bytes[at] = random.below(256);
        break;
      case 3:
        // A number of four bytes, in either order.
        if (at + 4 <= bytes.length) {
          const value = random.pick([0, 1, 4, 12, 28, 32, 255, 65_535, 2 ** 31, 2 ** 32 - 1]);
          if (random.flag()) bytes.writeUInt32LE(value, at);
          else bytes.writeUInt32BE(value, at);
        }
        break;
      case 4:
        bytes = bytes.subarray(0, at);
        break;
      case 5:
        bytes = Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + length)]);
        break;
      case 6:
        bytes = Buffer.concat([bytes.subarray(0, at), random.bytes(length), bytes.subarray(at)]);
        break;
      default: {
        // A piece of another input.
        const other = random.pick(corpus);
        const from = random.below(other.length + 1);
        bytes = Buffer.concat([bytes.subarray(0, at), other.subarray(from, from + length), bytes.subarray(at)]);
      }
    }
  }
  return Buffer.from(bytes.subarray(0, 2048));
}

/** Taking the coverage costs as much as some dozens of inputs. */
const BATCH = 100;

/**
 * Runs a target on inputs made from a corpus until there were enough.
 *
 * @param target - throws when it has found a fault
 * @param corpus - inputs to start from; those that reach new code are added
 * @param isEnough - asked after each batch, with the number of inputs so far
 * @returns how many inputs there were, those that were added, and how many characters of code they have reached
 */
export function fuzz(
  target: (input: Buffer) => void,
  corpus: Buffer[],
  random: Random,
  isEnough: (inputs: number) => boolean,
): { inputs: number; added: Buffer[]; reached: number } {
  const coverage = new Coverage();
  const attempt = (input: Buffer) => {
    try {
      target(input);
    } catch (cause) {
      throw new Error(`This input finds a fault: ${input.toString('hex')}`, { cause });
    }
  };
  try {
    for (const input of corpus) attempt(input);
    coverage.take(true);
    const added: Buffer[] = [];
    let inputs = corpus.length;
    while (!isEnough(inputs)) {
      const batch = Array.from({ length: BATCH }, () => mutate(random, corpus));
      inputs += BATCH;
      for (const input of batch) attempt(input);
      if (!coverage.take(false)) continue;
      // Which of them was it? Once more, one by one.
      for (const input of batch) {
        attempt(input);
        if (!coverage.take(true)) continue;
        added.push(input);
        corpus.push(input);
      }
    }
    return { inputs, added, reached: coverage.size };
  } finally {
    coverage.stop();
  }
}
