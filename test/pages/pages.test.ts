/** The pages that --html writes, as a browser shows them. Those of perf come from measurements on the software device. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { buildProgram } from '../../lib/cli/program.ts';
import { runPerfServer } from '../../lib/perf/perf.ts';
import { deviceA, deviceB } from '../device/fixture.ts';
import { Chromium } from './chromium.ts';
import { look } from './look.ts';

const folder = mkdtempSync(join(tmpdir(), 'node-rdma-pages-'));
const pageOf = (args: readonly string[]) => join(folder, `${args.join('_')}.html`);

let browser: Chromium;
beforeAll(() => {
  browser = new Chromium();
});
afterAll(async () => {
  await browser.close();
  rmSync(folder, { recursive: true });
});

/** Runs the command in this process, as on a terminal. @returns what it writes to stderr */
async function command(...args: string[]): Promise<string> {
  const silent = [process.stdout, process.stderr].map((stream) => vi.spyOn(stream, 'write').mockReturnValue(true));
  const { isTTY } = process.stderr;
  process.stderr.isTTY = true;
  try {
    await (await buildProgram(args)).parseAsync(args, { from: 'user' });
    expect(process.exitCode).toBe(undefined);
    return silent[1]!.mock.calls.map(([text]) => text).join('');
  } finally {
    for (const spy of silent) spy.mockRestore();
    process.stderr.isTTY = isTTY;
  }
}

/** `perf`, both sides of it; the client is the command. */
async function perf([test, ...more]: readonly string[], file: string): Promise<string> {
  const server = {
    ...{ test: test as 'write-bw', device: deviceA, port: 0, portNum: 1, gidIndex: undefined, mtu: undefined },
    ...{ trafficClass: undefined, events: false, signal: AbortSignal.timeout(50_000) },
  };
  let client: Promise<string> | undefined;
  await runPerfServer(server, (port) => {
    const args = ['-d', deviceB, '-p', String(port), '-n', '200', ...more, '--html', file];
    client = command('perf', test!, '127.0.0.1', ...args);
    client.catch(() => {});
  });
  return client!;
}

interface Chart {
  title: string;
  area: number;
  lines: { name: string; length: number; colour: string }[];
}

interface Seen {
  title: string;
  paragraphs: string[];
  charts: Chart[];
  rows: string[][][];
}

/** Opens a page: it asks for nothing but itself, says nothing, and all of it can be seen. */
async function shown(file: string): Promise<Seen> {
  const { seen, noise } = await browser.open<Seen>(file, 1000, look);
  expect(noise).toEqual({ complaints: [], requests: [pathToFileURL(file).href] });
  expect(seen).toMatchObject({ heading: seen.title, cutTables: 0, isTooWide: false, mode: 'CSS1Compat' });
  for (const { title, area, lines, ...bad } of seen.charts) {
    expect(bad, title).toEqual({ hiddenPoints: 0, outside: [], overlapping: [] });
    expect(area).toBeGreaterThan(300_000);
    // A curve, not a dot.
    for (const { length } of lines) expect(length, title).toBeGreaterThan(100);
    const names = new Map(lines.map(({ name, colour }) => [name, colour]));
    expect(new Set(names.values()).size, title).toBe(names.size);
  }
  return seen;
}

const chartsOf = ({ charts }: Seen) =>
  charts.map(({ title, lines }) => [title, [...new Set(lines.map(({ name }) => name))]]);

describe('node-rdma sim --html', { timeout: 120_000 }, () => {
  it.each([
    [
      ['loss'],
      [['Goodput by loss, 1000 packets in flight', ['go back N', 'selective']]],
      ['LOSS', 'GO_BACK_N', 'SELECTIVE'],
    ],
    [
      ['loss', '--timed', '--messages', '100'],
      [['Goodput by loss, 100 Gb/s, 10 us round trip, timeout 67109 us', ['go back N', 'selective']]],
      ['LOSS', 'GO_BACK_N', 'GBIT/S', 'TIMEOUTS', 'SELECTIVE', 'GBIT/S', 'TIMEOUTS'],
    ],
    [
      ['dcqcn'],
      [
        ['Rates of senders with DCQCN', Array.from({ length: 8 }, (_, i) => `sender ${i + 1}`)],
        ['Queue of the switch', ['DCQCN', 'PFC only']],
      ],
      ['CONTROL', 'LINK_USED', 'QUEUE_KB', 'MAX_KB', 'PAUSED', 'PAUSES', 'CNPS', 'FAIRNESS'],
    ],
    [['pfc'], [['Pauses spread', ['PFC']]], ['FLOW', 'RATE_WITH_PFC', 'DROPS', 'RATE_WITHOUT', 'DROPS']],
    [
      ['pfc', '--deadlock'],
      [['Pauses spread', ['PFC', 'PFC, watchdog after 200 slots']]],
      ['NETWORK', 'PACKETS_A_SLOT', 'DROPS', 'DEADLOCK_AT', 'WATCHDOG'],
    ],
  ] as const)('%j shows its table and its curves, and that it is a model', async (args, charts, columns) => {
    const file = pageOf(args);
    await command('sim', ...args, '--html', file);
    const seen = await shown(file);
    expect(chartsOf(seen)).toEqual(charts);
    expect(seen.rows[0]![0]).toEqual(columns);
    expect(seen.paragraphs[0]).toBe("A model's results, not a measurement.");
  });

  it('ecmp shows two tables and two charts', async () => {
    const file = pageOf(['ecmp']);
    await command('sim', 'ecmp', '--html', file);
    const seen = await shown(file);
    expect(seen.charts).toHaveLength(2);
    expect(seen.rows.map(([head]) => head![0])).toEqual(['BALANCING', 'RECEIVER']);
  });
});

describe('node-rdma perf --html', { timeout: 120_000 }, () => {
  it('shows bandwidths by size', async () => {
    const file = pageOf(['write-bw']);
    const said = await perf(['write-bw', '--all', '--max-size', '64K'], file);
    // A bar that grows, makes way for each row, and is gone in the end.
    expect(said).toMatch(/^(\r {30,}\r\r\[#* *\] \d+\/16){15}(\r {30,}\r){2}$/);
    expect(said).toContain(`\r[${'#'.repeat(15)}${' '.repeat(15)}] 8/16`);
    const seen = await shown(file);
    expect(seen.title).toBe(`write-bw from ${deviceB} to 127.0.0.1, by node-rdma perf`);
    expect(seen.paragraphs[0]).toMatch(
      new RegExp(
        `^write-bw to 127\\.0\\.0\\.1: ${deviceB} port 1, GID \\d+ \\S+, MTU \\d+, RC, 1 queue pair, tx depth 128$`,
      ),
    );
    expect(chartsOf(seen)).toEqual([['write-bw: bandwidth', ['average', 'peak']]]);
    expect(seen.rows[0]!.slice(1).map(([size]) => Number(size))).toEqual(
      Array.from({ length: 16 }, (_, i) => 2 ** (i + 1)),
    );
  });

  it('shows latencies by size, and how they are spread', async () => {
    const file = pageOf(['send-lat']);
    await perf(['send-lat', '--all', '--max-size', '4K'], file);
    // On a telephone the table is wider than the screen, and the page is not.
    expect((await browser.open(file, 400, look)).seen).toMatchObject({ cutTables: 1, isTooWide: false });
    expect(chartsOf(await shown(file))).toEqual([
      ['send-lat: latency', ['typical', '99 %', '99.9 %']],
      ['send-lat: how 2 bytes are spread', ['200 messages']],
    ]);
  });
});
