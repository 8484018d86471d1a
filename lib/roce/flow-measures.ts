/** What a flow measures, in memory that does not grow: PSN arithmetic, latencies, bytes over time. */

/** How far one PSN is ahead of another, on the circle of 24 bits: -2^23 to 2^23 - 1. */
export function psnDistance(psn: number, from: number): number {
  return ((psn - from) << 8) >> 8;
}

/** The PSN that is `count` behind another. */
export function psnAdd(psn: number, count: number): number {
  return (psn + count) & 0xff_ffff;
}

// Four buckets for each power of two: a percentile is at most 19 % off.
const STEPS = 4;
const BUCKETS = 48 * STEPS;
const HOUR = 3600e9;

/** Durations in nanoseconds: their number, extremes and mean, and percentiles to within a fifth. */
export class Durations {
  /** How many. */
  count = 0;
  /** The shortest; 0 without any. */
  min = 0;
  /** The longest; 0 without any. */
  max = 0;
  /** What is none, and not counted: beyond an hour, or as long before its beginning. Its two times are of two clocks. */
  ofTwoClocks = 0;
  #sum = 0;
  #buckets: Uint32Array | undefined;

  /** @internal */
  add(nanoseconds: number): void {
    if (Math.abs(nanoseconds) > HOUR) {
      this.ofTwoClocks++;
      return;
    }
    // Clocks of two interfaces may disagree a little.
    const value = Math.max(0, nanoseconds);
    this.min = this.count === 0 ? value : Math.min(this.min, value);
    this.max = Math.max(this.max, value);
    this.#sum += value;
    this.count++;
    this.#buckets ??= new Uint32Array(BUCKETS);
    const bucket = Math.min(BUCKETS - 1, Math.floor(STEPS * Math.log2(value + 1)));
    this.#buckets[bucket]!++;
  }

  /** The mean; 0 without any. */
  get mean(): number {
    return this.count === 0 ? 0 : this.#sum / this.count;
  }

  /**
   * A percentile.
   *
   * @param percent - above 0, to 100; 50 is the median
   * @returns nanoseconds, at most 19 % too many; 0 without any
   */
  percentile(percent: number): number {
    let left = Math.ceil((this.count * percent) / 100);
    for (const [bucket, count] of (this.#buckets ?? []).entries()) {
      left -= count;
      if (left <= 0) return Math.min(this.max, 2 ** ((bucket + 1) / STEPS) - 1);
    }
    return this.max;
  }
}

const SLOTS = 512;

/** Bytes over time, in at most 512 equal intervals: they double when time goes on. */
export class Timeline {
  /** Nanoseconds of an interval: at first one millisecond. */
  interval = 1_000_000;
  #slots: Float64Array | undefined;
  #used = 0;

  /** Bytes in each interval, from the first packet of the tracker on. */
  get bytes(): number[] {
    return Array.from(this.#slots?.subarray(0, this.#used) ?? []);
  }

  /** @internal */
  add(time: number, bytes: number): void {
    this.#slots ??= new Float64Array(SLOTS);
    let slot = Math.max(0, Math.floor(time / this.interval));
    while (slot >= SLOTS) {
      this.#halve(this.#slots);
      slot = Math.floor(time / this.interval);
    }
    this.#slots[slot]! += bytes;
    this.#used = Math.max(this.#used, slot + 1);
  }

  #halve(slots: Float64Array): void {
    for (let i = 0; i < SLOTS / 2; i++) slots[i] = slots[2 * i]! + slots[2 * i + 1]!;
    slots.fill(0, SLOTS / 2);
    this.interval *= 2;
    this.#used = Math.ceil(this.#used / 2);
  }
}

const PENDING = 256;

/** Requests that wait for their acknowledgement, oldest first; when there are too many the oldest are forgotten. */
export class PendingAcks {
  readonly #psns = new Int32Array(PENDING);
  readonly #times = new Float64Array(PENDING);
  #first = 0;
  #count = 0;

  add(psn: number, time: number): void {
    if (this.#count === PENDING) this.#shift();
    const at = (this.#first + this.#count++) % PENDING;
    this.#psns[at] = psn;
    this.#times[at] = time;
  }

  #shift(): void {
    this.#first = (this.#first + 1) % PENDING;
    this.#count--;
  }

  /** Takes those up to a PSN, and notes how long they have waited. */
  acknowledge(psn: number, time: number, latencies: Durations): void {
    while (this.#count > 0 && psnDistance(psn, this.#psns[this.#first]!) >= 0) {
      latencies.add(time - this.#times[this.#first]!);
      this.#shift();
    }
  }

  /** Forgets those from a PSN on: it is sent again, and nobody could say which of the two is answered. */
  forgetFrom(psn: number): void {
    while (this.#count > 0 && psnDistance(this.#psns[(this.#first + this.#count - 1) % PENDING]!, psn) >= 0) {
      this.#count--;
    }
  }
}

/** No window is that large: a queue pair that jumps so far has begun anew. */
export const WINDOW = 1 << 16;
const RANGES = 16;

/**
 * PSNs that have been counted, as far as a window goes back: ranges, lowest first. There are several when the start of a
 * flow, or a whole read, was lost before the capture. When there are too many, the hole between the lowest two is closed.
 */
export class PsnRanges {
  readonly #ranges: { from: number; to: number }[] = [];

  clear(): void {
    this.#ranges.length = 0;
  }

  has(psn: number): boolean {
    return this.#ranges.some(({ from, to }) => psnDistance(psn, from) >= 0 && psnDistance(psn, to) < 0);
  }

  /** Adds the PSNs up to, not including, `end`. @returns whether the first was new */
  add(psn: number, end: number): boolean {
    const ranges = this.#ranges;
    const last = ranges[ranges.length - 1];
    if (last !== undefined && last.to === psn) {
      last.to = end;
      if (psnDistance(end, last.from) > WINDOW) last.from = psnAdd(end, -WINDOW);
      if (psnDistance(end, ranges[0]!.to) > WINDOW) ranges.shift();
      return true;
    }
    if (this.has(psn)) return false;
    let i = ranges.findLastIndex(({ to }) => psnDistance(to, psn) <= 0);
    if (ranges[i]?.to !== psn) ranges.splice(++i, 0, { from: psn, to: psn });
    const range = ranges[i]!;
    range.to = end;
    const above = ranges[i + 1];
    if (above !== undefined && psnDistance(above.from, end) <= 0) {
      if (psnDistance(above.to, end) > 0) range.to = above.to;
      ranges.splice(i + 1, 1);
    }
    if (ranges.length > RANGES) ranges[0]!.to = ranges.splice(1, 1)[0]!.to;
    return true;
  }
}
