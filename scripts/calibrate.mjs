#!/usr/bin/env node
// Runs the models of loss beside Soft-RoCE under the same loss by netem, in the VM, and writes what docs/sim.md shows: the
// data and the charts in docs/sim/. Takes some minutes; for maintainers, where the model or Soft-RoCE has changed.
//   node scripts/calibrate.mjs           measures, and writes data and charts
//   node scripts/calibrate.mjs --draw    draws the charts again, of the data that there are
//   node scripts/calibrate.mjs --check   whether the charts are those of the data and of the models as they are now

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setup } from './setup.mjs';
import { CommandError, root, run, whenMain } from './shell.mjs';

const folder = join(root, 'docs/sim');
const dataFile = join(folder, 'loss-rxe.json');

const load = {
  ...{ messageBytes: 65_536, mtu: 1024, timeout: 14, seconds: 9 },
  ...{ depths: [1, 16], losses: [0.0003, 0.001, 0.003, 0.01, 0.03] },
};
/** Soft-RoCE stops when so many packets of a queue pair are on their way, and goes on at 16 (RXE_INFLIGHT_SKBS_PER_QP_HIGH, _LOW). */
const WINDOW = 64;

async function measure() {
  await setup({ system: ['build', 'run'] });
  const guest = ['node', 'bench/rxe/loss.mjs', JSON.stringify(load)];
  const text = run(process.execPath, ['dist/cli/main.js', 'vm', '--timeout', '900', ...guest], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const { roundTripUs, points } = JSON.parse(text);
  return { measured: new Date().toISOString().slice(0, 10), ...load, roundTripUs, points };
}

/** What the models say of the loads that were measured. */
async function modelled({ messageBytes, mtu, timeout, roundTripUs, points }) {
  const { simulateLoss, simulateTimedLoss } = await import('../dist/sim/index.js');
  const packetsOf = messageBytes / mtu;
  return points.map((point) => {
    const { loss, depth, messages, packets, cleanUs, lossyUs } = point;
    // Without loss a batch takes its packets and a round trip.
    const packetUs = (cleanUs * depth - roundTripUs) / (depth * packetsOf);
    const time = simulateTimedLoss('go-back-n', {
      ...{ loss, gbps: (mtu * 8) / (packetUs * 1000), mtu, rttUs: roundTripUs, timeoutUs: 4.096 * 2 ** timeout },
      ...{ messageBytes, depth, messages: 20_000 },
    });
    return {
      ...point,
      // Parts of the packets that were of use.
      useful: (messages * packetsOf) / packets,
      usefulModel: simulateLoss('go-back-n', { loss, window: Math.min(WINDOW, depth * packetsOf) }).goodput,
      // The speed by that without loss.
      speed: cleanUs / lossyUs,
      speedModel: time.efficiency,
    };
  });
}

async function charts(data) {
  const { drawChart } = await import('../dist/plot/chart.js');
  const rows = await modelled(data);
  const note = `Soft-RoCE: measured in an emulated VM, ${data.measured}. Model: computed.`;
  const x = { label: 'probability that a packet is lost', log: 10 };
  const line = (name, depth, of) => ({
    name,
    points: rows.filter((row) => row.depth === depth).map((row) => [row.loss, of(row)]),
  });
  return {
    'loss-packets.svg': drawChart({
      ...{ title: 'Messages of 64 KiB over a lossy wire: packets', note, x },
      y: { label: 'part of the packets that is of use' },
      series: [
        ...data.depths.map((depth) => line(`Soft-RoCE, ${depth} at once`, depth, ({ useful }) => useful)),
        line(`model, ${WINDOW} packets in flight`, data.depths[0], ({ usefulModel }) => usefulModel),
      ],
    }),
    'loss-speed.svg': drawChart({
      ...{ title: 'Messages of 64 KiB over a lossy wire: speed', note, x },
      y: { label: 'speed, by that without loss' },
      series: data.depths.flatMap((depth) => [
        line(`Soft-RoCE, ${depth} at once`, depth, ({ speed }) => speed),
        line(`model, ${depth} at once`, depth, ({ speedModel }) => speedModel),
      ]),
    }),
  };
}

/** For docs/sim.md. */
function table(rows) {
  const percent = (part) => `${(100 * part).toFixed(0)} %`;
  console.log('| at once | loss | lost | NAKs | of use: Soft-RoCE | model | speed: Soft-RoCE | model |');
  for (const row of rows) {
    const cells = [row.depth, `${100 * row.loss} %`, row.drops, row.naks];
    const parts = [row.useful, row.usefulModel, row.speed, row.speedModel].map(percent);
    console.log(`| ${[...cells, ...parts].join(' | ')} |`);
  }
}

await whenMain(import.meta.url, async (args) => {
  const [flag] = args;
  if (flag !== undefined && flag !== '--draw' && flag !== '--check')
    throw new CommandError(`calibrate: unknown option ${flag}`);
  if (flag === undefined) writeFileSync(dataFile, `${JSON.stringify(await measure(), null, 2)}\n`);
  const data = JSON.parse(readFileSync(dataFile, 'utf8'));
  for (const [name, svg] of Object.entries(await charts(data))) {
    const file = join(folder, name);
    if (flag !== '--check') writeFileSync(file, svg);
    else if (readFileSync(file, 'utf8') !== svg)
      throw new CommandError(`docs/sim/${name} is not of the model as it is: node scripts/calibrate.mjs --draw`);
  }
  table(await modelled(data));
});
