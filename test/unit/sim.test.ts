import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import {
  deadlockScenario,
  simulateDcqcn,
  simulateEcmp,
  simulateLoss,
  simulatePfc,
  simulateSpray,
  simulateTimedLoss,
  spreadingScenario,
} from '../../lib/sim/index.ts';
import { Random } from '../../lib/sim/random.ts';

describe('Random', () => {
  it('is even over its range, and the same for the same seed', () => {
    const [a, b] = [new Random(7), new Random(7)];
    const buckets = new Array(10).fill(0);
    for (let i = 0; i < 100_000; i++) {
      const value = a.next();
      expect(b.next()).toBe(value);
      buckets[Math.floor(value * 10)]++;
    }
    for (const count of buckets) expect(Math.abs(count - 10_000)).toBeLessThan(400);
  });

  it('counts successes as tries one by one would', () => {
    const random = new Random(1);
    let sum = 0;
    for (let i = 0; i < 20_000; i++) sum += random.successes(0.01);
    // The mean of the geometric distribution.
    expect(sum / 20_000 / 99).toBeCloseTo(1, 1);
    expect(random.successes(0)).toBe(Number.POSITIVE_INFINITY);
  });
});

/** Go-back-N packet by packet, as one would write it down at first. */
function goBackN(loss: number, window: number, packets: number, random: Random): number {
  let sent = 0;
  let base = 0;
  while (base < packets) {
    const size = Math.min(window, packets - base);
    let good = 0;
    while (good < size && random.next() >= loss) good++;
    sent += good === size ? size : window;
    base += good;
  }
  return packets / sent;
}

describe('the charts beside Soft-RoCE', () => {
  it('are those of the data and of the models as they are', () => {
    const script = fileURLToPath(new URL('../../scripts/calibrate.mjs', import.meta.url));
    execFileSync(process.execPath, [script, '--check'], { stdio: ['ignore', 'ignore', 'pipe'] });
  });
});

describe('simulateLoss', () => {
  it('loses over a third of the capacity at 0.1 % loss with 1000 packets in flight', () => {
    const { goodput } = simulateLoss('go-back-n', { loss: 0.001 });
    expect(goodput).toBeGreaterThan(0.61);
    expect(goodput).toBeLessThan(2 / 3);
    expect(simulateLoss('selective', { loss: 0.001 }).goodput).toBeCloseTo(0.999, 3);
  });

  it.each([0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2])('agrees with a walk packet by packet at a loss of %d', (loss) => {
    const walked = goBackN(loss, 1000, 500_000, new Random(3));
    const { goodput } = simulateLoss('go-back-n', { loss, packets: 2_000_000 });
    expect(Math.abs(goodput - walked)).toBeLessThan(0.015);
  });

  it('costs more with a larger window', () => {
    const of = (window: number) => simulateLoss('go-back-n', { loss: 1e-3, window }).goodput;
    expect([10, 100, 1000, 10_000].map(of)).toEqual([10, 100, 1000, 10_000].map(of).sort((a, b) => b - a));
    expect(of(1)).toBeCloseTo(0.999, 3);
  });

  it('gives the same for the same seed, and other numbers for another', () => {
    const of = (seed: number) => simulateLoss('go-back-n', { loss: 1e-3, seed }).sent;
    expect(of(5)).toBe(of(5));
    expect(of(5)).not.toBe(of(6));
  });

  it.each([
    [() => simulateLoss('go-back-n', { loss: 1 }), 'options.loss must be from 0 to below 1, not 1'],
    [() => simulateLoss('tcp' as never, { loss: 0 }), "recovery must be 'go-back-n' or 'selective', not tcp"],
    [() => simulateLoss('selective', { loss: 0, windows: 3 } as never), "Unknown option 'windows'"],
    [() => simulateLoss('selective', {} as never), 'options.loss must be a number, not undefined'],
    [() => simulateDcqcn({ senders: 0 }), 'options.senders must be an integer from 1'],
    [() => simulateDcqcn({ kminKb: 10, kmaxKb: 5 }), 'options.kmaxKb must be at least 10'],
    [() => simulateSpray({ jitterUs: -1 }), 'options.jitterUs must be 0 or more'],
    [() => simulatePfc({ links: [], flows: [{ name: 'f', path: ['hostA', 's1'] }] }), 'flow f has no link'],
  ])('refuses what makes no sense: %#', (call, message) => expect(call).toThrow(message));
});

describe('simulateTimedLoss', () => {
  it('loses nothing without loss', () => {
    for (const recovery of ['go-back-n', 'selective'] as const) {
      const result = simulateTimedLoss(recovery, { loss: 0 });
      expect(result.efficiency).toBeCloseTo(1, 9);
      expect(result).toMatchObject({ timeouts: 0, naks: 0 });
    }
  });

  it('needs a timeout for each loss when a message is one packet', () => {
    const result = simulateTimedLoss('go-back-n', { loss: 0.01, messageBytes: 1, messages: 10_000 });
    expect(result.naks).toBe(0);
    expect(result.sent - 10_000).toBe(result.timeouts);
    expect(result.timeouts).toBeGreaterThan(60);
    expect(result.timeouts).toBeLessThan(150);
  });

  it('makes go-back-N suffer from a longer path, and selective retransmission less', () => {
    const of = (recovery: 'go-back-n' | 'selective', rttUs: number) =>
      simulateTimedLoss(recovery, { loss: 1e-3, rttUs, messageBytes: 1 << 24, messages: 200 }).sent;
    expect(of('go-back-n', 100)).toBeGreaterThan(1.15 * of('go-back-n', 10));
    expect(of('selective', 100)).toBeLessThan(1.01 * of('selective', 10));
  });
});

describe('simulateDcqcn', () => {
  it('keeps PFC out of an incast, fills the link and shares it', () => {
    const result = simulateDcqcn();
    expect(result.utilisation).toBeGreaterThan(0.95);
    expect(result.paused).toBeLessThan(0.001);
    expect(result.fairness).toBeGreaterThan(0.95);
    expect(result.meanQueueKb).toBeLessThan(200);
    expect(result.cnps).toBeGreaterThan(50);
    expect(result.samples.length).toBeLessThanOrEqual(1000);
    expect(result.samples[0]).toMatchObject({ us: 0 });
    expect(result.samples.at(-1)!.rates).toHaveLength(8);
  });

  it.each([2, 4, 8, 32])('without it %d senders are paused for as long as they are too many', (senders) => {
    const result = simulateDcqcn({ senders, control: false });
    expect(result.paused).toBeCloseTo(1 - 1 / senders, 1);
    expect(result.cnps).toBe(0);
    expect(result.pauses).toBeGreaterThan(100);
  });

  it('lets one sender alone', () => {
    const result = simulateDcqcn({ senders: 1 });
    expect(result).toMatchObject({ cnps: 0, pauses: 0, maxQueueKb: 0 });
    expect(result.utilisation).toBeCloseTo(1, 6);
  });
});

describe('simulatePfc', () => {
  it('spreads pauses hop by hop, and slows a flow that has no part in it', () => {
    const { rates, drops, links, deadlockAt } = simulatePfc(spreadingScenario());
    expect(rates.culprit).toBeCloseTo(0.1, 2);
    expect(rates.victim).toBeCloseTo(0.1, 1);
    expect(drops).toEqual({ culprit: 0, victim: 0 });
    expect(deadlockAt).toBeUndefined();
    const first = (name: string) => links.find(({ link }) => link === name)!.firstPause!;
    expect(first('s3 > s4')).toBeLessThan(first('s2 > s3'));
    expect(first('s2 > s3')).toBeLessThan(first('s1 > s2'));
  });

  it('without it the victim has its share, and packets are dropped', () => {
    const { rates, drops, links } = simulatePfc({ ...spreadingScenario(), pfc: false });
    expect(rates.victim).toBeCloseTo(0.5, 1);
    expect(drops.culprit).toBeGreaterThan(1000);
    expect(links.every(({ paused }) => paused === 0)).toBe(true);
  });

  it('locks a ring for good; a watchdog frees it by dropping', () => {
    const stuck = simulatePfc(deadlockScenario());
    expect(stuck.deadlockAt).toBeGreaterThan(50);
    expect(stuck.deadlockAt).toBeLessThan(2000);
    expect(Object.values(stuck.rates)).toEqual([0, 0, 0, 0]);
    const freed = simulatePfc({ ...deadlockScenario(), watchdog: 200 });
    expect(freed.deadlockAt).toBeUndefined();
    for (const rate of Object.values(freed.rates)) expect(rate).toBeGreaterThan(0.05);
    expect(Object.values(freed.drops).reduce((a, b) => a + b)).toBeGreaterThan(100);
    expect(simulatePfc({ ...deadlockScenario(), pfc: false }).deadlockAt).toBeUndefined();
  });
});

describe('simulateEcmp', () => {
  it('agrees with what can be computed', () => {
    const result = simulateEcmp({ flows: 8, paths: 8, trials: 100_000 });
    // 8! / 8^8, and (7/8)^8.
    expect(result.even).toBeCloseTo(0.0024, 3);
    expect(result.idle).toBeCloseTo(0.3436, 2);
    expect(result.mean).toBeGreaterThan(2);
    expect(result.worst).toBeLessThanOrEqual(8);
  });

  it('is fair to many small flows', () => {
    expect(simulateEcmp({ flows: 100_000, paths: 8, trials: 20 }).mean).toBeLessThan(1.03);
  });

  it('does no harm on one path, or with one flow', () => {
    expect(simulateEcmp({ flows: 5, paths: 1 }).worst).toBe(1);
    expect(simulateEcmp({ flows: 1, paths: 8 }).worst).toBe(1);
  });
});

describe('simulateSpray', () => {
  it('costs go-back-N nothing where packets keep their order', () => {
    expect(simulateSpray({ jitterUs: 0 })).toMatchObject({ reordered: 0, goBackN: 1, episodes: 0 });
    expect(simulateSpray({ paths: 1, jitterUs: 5 })).toMatchObject({ reordered: 0, goBackN: 1 });
  });

  it('costs it most of the capacity where packets overtake each other', () => {
    const { reordered, goBackN, anyOrder } = simulateSpray({ jitterUs: 2 });
    expect(reordered).toBeGreaterThan(0.2);
    expect(goBackN).toBeLessThan(0.3);
    expect(anyOrder).toBe(1);
  });
});
