#!/usr/bin/env node
// Throughput of messages and of streams between the two devices of the VM, beside perftest and TCP over the same wire.
//   npm run vm -- node bench/streams.mjs             a table; --rounds N to choose how often, default 3; --bytes N
//   npm run vm -- node bench/streams.mjs --json      [{ test, bytes, best, median, ratio }], MiB/s, ib_write_bw's over it

import { parseArgs } from 'node:util';
import { file, gidIndexOf, runPair, runPerftest } from './rxe/measure.mjs';

const { values: flags } = parseArgs({
  options: { json: { type: 'boolean' }, rounds: { type: 'string' }, bytes: { type: 'string' } },
});
const rounds = Number(flags.rounds ?? 3);
const bandwidthBytes = Number(flags.bytes ?? 1 << 20);
const both = { bandwidthBytes, iterations: 24 };
const server = { role: 'server', device: 'rxe1', gidIndex: gidIndexOf('rxe1'), ...both };
const client = { role: 'client', device: 'rxe0', gidIndex: gidIndexOf('rxe0'), ...both };

const rates = { ib_write_bw: [], ib_read_bw: [], messageBw: [], streamBw: [], tcpBw: [] };
// In turns, so that what the machine does meanwhile hits all.
for (let round = 1; round <= rounds; round++) {
  console.error(`bench: round ${round} of ${rounds}`);
  for (const program of ['ib_write_bw', 'ib_read_bw']) {
    rates[program].push((await runPerftest(program, server, client)).typical);
  }
  const ours = await runPair([process.execPath, file('message_side.mjs')], server, client);
  for (const [test, { typical }] of Object.entries(ours)) rates[test].push(typical);
}

const median = (list) => list.toSorted((x, y) => x - y)[list.length >> 1];
const results = Object.entries(rates).map(([test, list]) => ({
  test,
  bytes: bandwidthBytes,
  best: Math.max(...list),
  median: median(list),
  ratio: median(rates.ib_write_bw) / median(list),
}));

if (flags.json) console.log(JSON.stringify(results, null, 2));
else {
  console.log('Soft-RoCE in a VM, between rxe0 and rxe1 over a veth pair, MiB/s. Goal: ib_write_bw within 1.15x\n');
  for (const row of [{ test: 'test', bytes: 'bytes', best: 'best', median: 'median', ratio: 'behind' }, ...results]) {
    const cells = Object.values(row).map((cell) =>
      Number.isFinite(cell) && cell % 1 ? cell.toFixed(2) : String(cell),
    );
    console.log(cells.map((cell, i) => cell[i === 0 ? 'padEnd' : 'padStart'](12)).join(' '));
  }
}
