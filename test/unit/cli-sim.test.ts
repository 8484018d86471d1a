import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { drawChart, drawPage } from '../../lib/plot/chart.ts';
import { command, start } from './command.ts';

const folder = mkdtempSync(join(tmpdir(), 'node-rdma-sim-'));
afterAll(() => rmSync(folder, { recursive: true }));
const MODEL = "A model's results, not a measurement.";

/** Elements that are opened and not closed, or the other way. */
function unbalanced(markup: string): string[] {
  const open: string[] = [];
  for (const [, close, name, rest] of markup.matchAll(/<(\/?)([a-z0-9]+)\b([^<>]*)>/g)) {
    if (['meta'].includes(name!) || rest!.endsWith('/')) continue;
    if (close === '') open.push(name!);
    else if (open.pop() !== name) return [name!];
  }
  return open;
}

describe('node-rdma sim', () => {
  it.each([
    [['loss'], /^0\.001\t6\d\.\d%\t99\.9%$/m],
    [['loss', '--loss', '0.01', '--window', '10'], /^0\.01\t9\d\.\d%\t99\.0%$/m],
    [['loss', '--loss', '0', '--packets', '1000'], /^0\t100\.0%\t100\.0%$/m],
    [['loss', '--timed', '--messages', '200'], /^0\t100\.0%\t89\.35\t0\t100\.0%\t89\.35\t0$/m],
    [['dcqcn'], /^PFC only\t100\.0%\t\S+\t\S+\t87\.5%/m],
    [['pfc'], /^victim\t0\.1\d\d\t0\t0\.5\d\d\t\d+$/m],
    [['pfc', '--deadlock'], /^PFC\t0\.000\t0\t\d+\t0$/m],
    [['ecmp'], /^ECMP\t2\.\d\d\t3\.00\t5\.00/m],
  ])('%j shows a table, which says that it is a model', async (args, row) => {
    const { code, stdout, stderr } = await command(['sim', ...args]);
    expect(stdout).toMatch(row);
    expect(stdout.split('\n')[0]).toContain(MODEL);
    expect([code, stderr]).toEqual([0, '']);
  });

  it('gives the same for the same seed, as JSON too', async () => {
    const of = async (seed: string) => (await command(['sim', 'ecmp', '--seed', seed, '--json'])).stdout;
    expect(await of('4')).toBe(await of('4'));
    expect(await of('4')).not.toBe(await of('5'));
    expect(JSON.parse(await of('4'))).toMatchObject({ model: '8 flows over 8 paths', seed: 4, hashed: { median: 3 } });
  });

  it('writes a page that needs nothing else', async () => {
    const file = join(folder, 'page.html');
    expect(await command(['sim', 'dcqcn', '--html', file])).toMatchObject({ code: 0, stderr: '' });
    const page = readFileSync(file, 'utf8');
    expect(page).toContain(MODEL);
    expect(page.match(/<svg /g)).toHaveLength(2);
    expect(page).not.toMatch(/<script|\bsrc=|<link|url\(|https?:(?!\/\/www\.w3\.org\/2000\/svg)/);
    expect(unbalanced(page)).toEqual([]);
  });

  it('ends by Ctrl-C in the middle of a model', async () => {
    const started = start(['sim', 'loss', '--packets', '1000000000', '--loss', '0.01']);
    // It handles no signal, so nothing tells that it is at work; any time will do.
    setTimeout(() => started.child.kill('SIGINT'), 500);
    const begin = performance.now();
    expect(await started.ended).toMatchObject({ code: null, signal: 'SIGINT', stdout: '', stderr: '' });
    expect(performance.now() - begin).toBeLessThan(10_000);
  });

  it('says what is wrong with a number, with exit code 2', async () => {
    const { code, stderr } = await command(['sim', 'loss', '--loss', '2']);
    expect([code, stderr]).toEqual([2, 'node-rdma: --loss must be from 0 to below 1, not 2\n']);
    expect(await command(['sim', 'dcqcn', '--senders', '0'])).toMatchObject({ code: 2, stdout: '' });
  });
});

describe('drawChart', () => {
  const chart = {
    title: 'Bandwidth <of> "all" & sizes',
    x: { label: 'bytes', log: 2 as const },
    y: { label: 'MB/s' },
    series: [{ name: 'write', points: [[2, 1] as const, [1024, 50] as const, [1 << 20, 100] as const] }],
  };

  it('places points by their values', () => {
    const svg = drawChart(chart);
    const points = [...svg.matchAll(/<circle cx="([\d.]+)" cy="([\d.]+)"/g)].map(([, x, y]) => [Number(x), Number(y)]);
    expect(points).toHaveLength(3);
    const [first, middle, last] = points as [number[], number[], number[]];
    // 2^10 lies in the middle between 2^1 and 2^20, nearly; and half of the height.
    expect((middle[0]! - first[0]!) / (last[0]! - first[0]!)).toBeCloseTo(9 / 19, 2);
    expect((first[1]! - middle[1]!) / (first[1]! - last[1]!)).toBeCloseTo(49 / 99, 2);
    expect(svg).toContain('>2 Ki</text>');
    expect(svg).toContain('<title>write: 1 Mi, 100</title>');
    expect(svg).toContain('Bandwidth &lt;of&gt; &quot;all&quot; &amp; sizes');
    expect(unbalanced(svg)).toEqual([]);
  });

  it('labels powers of ten shortly', () => {
    const points = [1e-7, 1e-4, 0.01, 1e7].map((x) => [x, x] as const);
    const svg = drawChart({ ...chart, x: { label: '', log: 10 }, series: [{ name: 'a', points }] });
    const labels = [...svg.matchAll(/text-anchor="middle">([^<]+)<\/text>/g)].map(([, text]) => text);
    expect(labels.slice(0, 8)).toEqual(['1e-7', '1e-5', '0.001', '0.1', '10', '1000', '100000', '1e7']);
  });

  it('leaves gaps for what is no number, and draws nothing without values', () => {
    const points = [[2, 1] as const, [4, Number.NaN] as const, [8, 2] as const];
    expect(drawChart({ ...chart, series: [{ name: 'a', points }] }).match(/<polyline/g)).toHaveLength(2);
    expect(unbalanced(drawChart({ ...chart, series: [] }))).toEqual([]);
    const flat = drawChart({ ...chart, series: [{ name: 'a', points: [[0, 0] as const] }], x: { label: '' } });
    expect(flat).not.toMatch(/NaN|Infinity/);
  });
});

describe('drawPage', () => {
  it('escapes what it is given', () => {
    const page = drawPage('<a>', [{ text: '<b>&' }, { columns: ['<c>'], rows: [['<d>'], [5]] }]);
    expect(page).toContain('<h1>&lt;a&gt;</h1>');
    expect(page).toContain('<p>&lt;b&gt;&amp;</p>');
    expect(page).toContain('<th>&lt;c&gt;</th>');
    expect(page).toContain('<td>&lt;d&gt;</td>');
    expect(unbalanced(page)).toEqual([]);
  });
});
