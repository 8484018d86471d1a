/** Random numbers that come the same for the same seed, so that results can be repeated. */

import { uint32 } from '../args.ts';

/** A generator of 32 bits of state: mulberry32, quick and good enough for models. */
export class Random {
  #state: number;

  /** @param seed - 32 bits; the same one gives the same numbers */
  constructor(seed: number) {
    this.#state = uint32(seed, 'seed');
  }

  /** At least 0, below 1. */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let t = this.#state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }

  /** An integer, at least 0, below `limit`. */
  below(limit: number): number {
    return Math.floor(this.next() * limit);
  }

  /** How many tries go well before one fails that fails with this probability; Infinity for 0. */
  successes(failure: number): number {
    if (failure <= 0) return Number.POSITIVE_INFINITY;
    if (failure >= 1) return 0;
    return Math.floor(Math.log(1 - this.next()) / Math.log1p(-failure));
  }
}
