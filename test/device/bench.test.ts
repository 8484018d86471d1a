/** Each benchmark runs, on both sides: the figures of so few requests mean nothing. */
import { spawnSync } from 'node:child_process';
import { resolve } from 'node:path';
import { describe, expect, it } from 'vitest';
import { cases, objects } from '../../bench/cases.mjs';
import { isRxe, isSanitized } from './fixture.ts';

describe.skipIf(isRxe || isSanitized)('the benchmark', { timeout: 120_000 }, () => {
  it.each([
    ['C', async () => [(await import(resolve('scripts/bench.mjs'))).compile() as string]],
    ['node-rdma', async () => [process.execPath, '--expose-gc', resolve('bench/js.mjs')]],
  ] as const)('runs each case in %s', async (_, side) => {
    const [program, ...args] = await side();
    const names = [...cases, ...objects].map(({ name }) => name);
    const env = { ...process.env, MLX5MODEL_MODE: 'inline' };
    const input = names.map((name) => `${name} 64\n`).join('');
    const { status, stdout, stderr } = spawnSync(program!, args, { env, input, encoding: 'utf8', timeout: 60_000 });
    expect([status, stderr]).toEqual([0, '']);
    const rows: { case: string; value: number }[] = stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    expect(rows.map((row) => row.case)).toEqual(names);
    for (const { value } of rows) expect(value).toEqual(expect.any(Number));
  });
});
