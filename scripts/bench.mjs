#!/usr/bin/env node
// Compares the package with a C program that does the same: same provider, same run, in turns.
//   npm run bench             a table
//   npm run bench -- --json   [{ case, batch, cNs, jsNs, ratio }] on stdout; for objects { case, cBytes, jsBytes, ratio }

import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { compare, compareObjects } from '../bench/compare.mjs';
import { setup } from './setup.mjs';
import { CommandError, root, run, say, whenMain } from './shell.mjs';

const model = join(root, 'build/model/libmlx5model.so');

/** @returns {string} the C side */
export function compile() {
  run('make', ['-s', '-C', 'test/mlx5-model', model]);
  mkdirSync(join(root, 'build/bench'), { recursive: true });
  const program = join(root, 'build/bench/bench');
  run('cc', ['-O2', '-Wall', '-Wextra', '-Werror', '-o', program, 'bench/c/bench.c', '-libverbs']);
  return program;
}

const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];

function table(results) {
  const rows = results.map(({ case: name, batch, goal, c, js }) => {
    const [cNs, jsNs] = [median(c), median(js)];
    const wanted = goal?.plusNs ? `+${goal.plusNs} ns` : goal?.ratio ? `${goal.ratio}x` : '';
    const met = goal?.plusNs ? jsNs - cNs <= goal.plusNs : goal?.ratio ? jsNs / cNs <= goal.ratio : undefined;
    return [
      ...[name, batch, cNs.toFixed(1), jsNs.toFixed(1), `+${(jsNs - cNs).toFixed(1)}`, `${(jsNs / cNs).toFixed(2)}x`],
      ...[Math.min(...c).toFixed(1), Math.min(...js).toFixed(1), wanted, { true: 'met', false: 'missed' }[met] ?? ''],
    ];
  });
  const all = [['case', 'batch', 'C', 'JS', 'JS - C', 'JS / C', 'C min', 'JS min', 'goal', ''], ...rows];
  const widths = all[0].map((_, column) => Math.max(...all.map((row) => String(row[column]).length)));
  const line = (row) =>
    row.map((cell, i) => (i === 0 ? String(cell).padEnd(widths[i]) : String(cell).padStart(widths[i]))).join('  ');
  return all.map((row) => line(row).trimEnd()).join('\n');
}

await whenMain(import.meta.url, async (args) => {
  const unknown = args.find((arg) => arg !== '--json');
  if (unknown !== undefined) throw new CommandError(`bench: unknown option ${unknown}`);
  await setup({ system: ['build', 'run'] });
  const env = { ...process.env, LD_PRELOAD: model, MLX5MODEL_MODE: 'inline' };
  const c = compile();
  const results = await compare({ c, env }, (text) => say(`bench: ${text}`));
  const [registration, ...memory] = await compareObjects({ c, env });

  if (args.includes('--json')) {
    const rows = results.map(({ case: name, batch, c, js }) => {
      const [cNs, jsNs] = [median(c), median(js)];
      return { case: name, batch, cNs: +cNs.toFixed(1), jsNs: +jsNs.toFixed(1), ratio: +(jsNs / cNs).toFixed(3) };
    });
    const ratio = ({ c, js }) => +(js / c).toFixed(3);
    rows.push({
      ...{
        case: `${registration.case}-64mib`,
        batch: 1,
        cNs: Math.round(registration.c),
        jsNs: Math.round(registration.js),
      },
      ratio: ratio(registration),
    });
    for (const row of memory) {
      rows.push({ case: row.case, cBytes: Math.round(row.c), jsBytes: Math.round(row.js), ratio: ratio(row) });
    }
    console.log(JSON.stringify(rows, null, 2));
    return;
  }
  console.log('libmlx5 over a software device model, inline mode: CPU cost of the path, not ConnectX performance');
  console.log(`Nanoseconds of CPU time per request, 8 bytes each; median of ${results[0].c.length} runs in turns\n`);
  console.log(table(results));
  const perGiB = (ns) => ((ns * 16) / 1e6).toFixed(1);
  console.log(
    `\nRegistration and deregistration: ${perGiB(registration.c)} ms of CPU time per GiB in C, ${perGiB(registration.js)} here`,
  );
  console.log(
    'Resident memory per object, in bytes; a queue pair of 128 sends and receives, a completion queue of 256',
  );
  for (const { case: name, c, js } of memory) {
    console.log(
      `${name.padEnd(10)} ${String(Math.round(c)).padStart(8)} in C ${String(Math.round(js)).padStart(8)} here`,
    );
  }
});
