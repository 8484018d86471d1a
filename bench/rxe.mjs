#!/usr/bin/env node
// Compares the package with perftest and pyverbs between the two devices of the VM.
//   npm run vm -- node bench/rxe.mjs             a table; --rounds N to choose how often, default 3
//   npm run vm -- node bench/rxe.mjs --json      what measure() gives

import { parseArgs } from 'node:util';
import { measure } from './rxe/measure.mjs';

const { values: flags } = parseArgs({ options: { json: { type: 'boolean' }, rounds: { type: 'string' } } });

const results = await measure({
  device: 'rxe0',
  peerDevice: 'rxe1',
  rounds: Number(flags.rounds ?? 3),
  onProgress: (text) => console.error(`bench: ${text}`),
});

if (flags.json) {
  console.log(JSON.stringify(results, null, 2));
} else {
  const number = (value) => value?.toFixed(1) ?? '';
  const rows = results.map((row) => {
    const cells = ['ours', 'perftest', 'pyverbs'].flatMap((who) => [number(row.best[who]), number(row[who])]);
    // What ours costs beside perftest, time for time.
    const cost = ({ ours, perftest }) => (row.unit === 'us' ? ours / perftest : perftest / ours).toFixed(2);
    const isMet = Number(cost(row.best)) <= row.goal;
    return [
      row.test,
      row.bytes,
      row.unit,
      ...cells,
      cost(row.best),
      cost(row),
      row.goal.toFixed(2),
      isMet ? 'met' : 'missed',
    ];
  });
  const heads = [
    ['', '', '', 'ours', '', 'perftest', '', 'pyverbs', '', 'ours/perftest', '', 'goal', ''],
    ['test', 'bytes', 'unit', ...Array(4).fill(['best', 'median']).flat(), 'of best', ''],
  ];
  console.log('Soft-RoCE in a VM, between rxe0 and rxe1 over a veth pair\n');
  for (const row of [...heads, ...rows]) {
    console.log(row.map((cell, i) => String(cell)[i === 0 ? 'padEnd' : 'padStart'](10)).join(' '));
  }
}
