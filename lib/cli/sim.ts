import { writeFile } from 'node:fs/promises';
import type { Command } from 'commander';
import { type Chart, drawPage, type Section } from '../plot/chart.ts';
import * as sim from '../sim/index.ts';
import { bytes, positive, run, subcommand, whole } from './frame.ts';
import { print, printJson, printTable } from './output.ts';

interface Output {
  json?: true;
  html?: string;
}

/** What is said of every result. */
const MODEL = "A model's results, not a measurement.";

/** What a subcommand has to show. */
interface Report {
  title: string;
  /** For `--json`. */
  data: object;
  sections: Section[];
}

async function show({ title, data, sections }: Report, { json, html }: Output): Promise<void> {
  if (json) printJson({ model: title, ...data });
  else {
    print(`${title}. ${MODEL}`);
    for (const section of sections) {
      if ('columns' in section) printTable(section.columns, section.rows);
      else if ('text' in section) print(section.text);
    }
  }
  if (html !== undefined) await writeFile(html, drawPage(title, [{ text: MODEL }, ...sections]));
}

const compute = (work: () => Promise<void>) =>
  run(
    async () => {
      try {
        await work();
      } catch (error) {
        throw inFlags(error as Error);
      }
    },
    { isBusy: true },
  );

/** The error of a model, with the options of the command line in the place of its own. */
function inFlags(error: Error): Error {
  error.message = error.message.replace(/\boptions\.([a-z]+)(Us|Kb|Bytes)?\b/g, '--$1');
  return error;
}

function model(name: string, description: string): Command {
  return subcommand(name, description)
    .option('--seed <number>', 'of the random numbers: the same seed gives the same result', whole(0, 0xffff_ffff), 1)
    .option('--json', 'as an object')
    .option('--html <file>', 'write a page with charts, which needs nothing else');
}

/** The subcommand `sim`. */
export function simCommand(): Command {
  return subcommand('sim', "Play with small models of why the network is hard. A model's results, not measurements.")
    .addCommand(lossCommand())
    .addCommand(dcqcnCommand())
    .addCommand(pfcCommand())
    .addCommand(ecmpCommand());
}

const percent = (part: number) => `${(100 * part).toFixed(1)}%`;

interface LossFlags extends Output {
  window: number;
  packets: number;
  loss?: number[];
  timed?: true;
  gbps: number;
  mtu: number;
  rtt: number;
  timeout: number;
  message: number;
  depth: number;
  messages: number;
  seed: number;
}

function lossRates(text: string, before: number[] = []): number[] {
  return [...before, /^0(\.0*)?$/.test(text) ? 0 : positive(text)];
}

function lossCommand(): Command {
  return model('loss', 'What loss costs a sender that goes back N, and one that sends again only what was lost.')
    .option('--loss <probability>', 'of a packet; may be given more than once (default: 0 and 1e-6 to 1e-2)', lossRates)
    .option('--window <packets>', 'in flight', whole(1, 1e9), 1000)
    .option('--packets <count>', 'to deliver', whole(1, 1e9), 2_000_000)
    .option('--timed', 'with the time of the path and timeouts, by the options below')
    .option('--gbps <number>', 'speed of the link', positive, 100)
    .option('--mtu <bytes>', 'payload of a packet', whole(1, 1 << 20), 4096)
    .option('--rtt <microseconds>', 'from a packet to its acknowledgement', positive, 10)
    .option('--timeout <microseconds>', 'till a sender that hears nothing sends again', positive, 4.096 * 2 ** 14)
    .option('--message <size>', 'bytes of a message', bytes, 1 << 20)
    .option('--depth <messages>', 'in flight at once', whole(1, 1e6), 1)
    .option('--messages <count>', 'to deliver', whole(1, 1e8), 2000)
    .action((flags: LossFlags) => compute(() => show(flags.timed ? timedLoss(flags) : loss(flags), flags)));
}

const rates = ({ loss = [0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2] }: LossFlags) => loss;

const lossChart = (title: string, rows: { loss: number; goBackN: number; selective: number }[]): Chart => ({
  title,
  note: MODEL,
  x: { label: 'probability that a packet is lost', log: 10 },
  y: { label: 'part of the capacity that is of use' },
  series: [
    { name: 'go back N', points: rows.map((row): [number, number] => [row.loss, row.goBackN]) },
    { name: 'selective', points: rows.map((row): [number, number] => [row.loss, row.selective]) },
  ],
});

function loss(flags: LossFlags): Report {
  const { window, packets, seed } = flags;
  const rows = rates(flags).map((loss) => ({
    loss,
    goBackN: sim.simulateLoss('go-back-n', { loss, window, packets, seed }).goodput,
    selective: sim.simulateLoss('selective', { loss, window, packets, seed }).goodput,
  }));
  const title = `Goodput by loss, ${window} packets in flight`;
  return {
    title,
    data: { window, packets, seed, rows },
    sections: [
      {
        columns: ['LOSS', 'GO_BACK_N', 'SELECTIVE'],
        rows: rows.map((row) => [row.loss, percent(row.goBackN), percent(row.selective)]),
      },
      { chart: lossChart(title, rows) },
    ],
  };
}

function timedLoss(flags: LossFlags): Report {
  const { gbps, mtu, rtt: rttUs, timeout: timeoutUs, message: messageBytes, depth, messages, seed } = flags;
  const path = { gbps, mtu, rttUs, timeoutUs, messageBytes, depth, messages, seed };
  const rows = rates(flags).map((loss) => {
    const goBackN = sim.simulateTimedLoss('go-back-n', { loss, ...path });
    const selective = sim.simulateTimedLoss('selective', { loss, ...path });
    return { loss, goBackN, selective };
  });
  const title = `Goodput by loss, ${gbps} Gb/s, ${rttUs} us round trip, timeout ${Math.round(timeoutUs)} us`;
  return {
    title,
    data: { ...path, rows },
    sections: [
      {
        columns: ['LOSS', 'GO_BACK_N', 'GBIT/S', 'TIMEOUTS', 'SELECTIVE', 'GBIT/S', 'TIMEOUTS'],
        rows: rows.map(({ loss, goBackN, selective }) => [
          loss,
          ...[percent(goBackN.efficiency), goBackN.goodputGbps.toFixed(2), goBackN.timeouts],
          ...[percent(selective.efficiency), selective.goodputGbps.toFixed(2), selective.timeouts],
        ]),
      },
      {
        chart: lossChart(
          title,
          rows.map((row) => ({
            loss: row.loss,
            goBackN: row.goBackN.efficiency,
            selective: row.selective.efficiency,
          })),
        ),
      },
    ],
  };
}

interface DcqcnFlags extends Output {
  senders: number;
  gbps: number;
  milliseconds: number;
  kmin: number;
  kmax: number;
  pmax: number;
  pause: number;
  resume: number;
  feedback: number;
  seed: number;
}

function dcqcnCommand(): Command {
  return model('dcqcn', 'Congestion control at an incast: marks, CNPs and rates, against no control but PFC.')
    .option('--senders <count>', 'that start at once', whole(1, 1000), 8)
    .option('--gbps <number>', 'speed of each link', positive, 100)
    .option('--milliseconds <number>', 'to simulate', positive, 20)
    .option('--kmin <KB>', 'queue from which the switch marks', positive, 5)
    .option('--kmax <KB>', 'queue from which it marks each packet', positive, 200)
    .option('--pmax <probability>', 'of a mark just below kmax', positive, 0.01)
    .option('--pause <KB>', 'queue from which PFC pauses the senders', positive, 400)
    .option('--resume <KB>', 'queue at which they go on', positive, 300)
    .option('--feedback <microseconds>', 'from the switch by way of the receiver to the sender', positive, 8)
    .action((flags: DcqcnFlags) => compute(() => show(dcqcn(flags), flags)));
}

function dcqcn(flags: DcqcnFlags): Report {
  const { senders, gbps, milliseconds, pmax, seed } = flags;
  const options = {
    ...{ senders, gbps, milliseconds, pmax, seed, feedbackUs: flags.feedback },
    ...{ kminKb: flags.kmin, kmaxKb: flags.kmax, pauseKb: flags.pause, resumeKb: flags.resume },
  };
  const controlled = sim.simulateDcqcn(options);
  const free = sim.simulateDcqcn({ ...options, control: false });
  const row = (name: string, r: sim.DcqcnResult) => [
    ...[name, percent(r.utilisation), r.meanQueueKb.toFixed(1), r.maxQueueKb.toFixed(1), percent(r.paused), r.pauses],
    ...[r.cnps, r.fairness.toFixed(3)],
  ];
  const title = `Incast of ${senders} senders at ${gbps} Gb/s`;
  const shown = Math.min(senders, 8);
  const x = { label: 'milliseconds' };
  const queue = (r: sim.DcqcnResult) => r.samples.map((sample): [number, number] => [sample.us / 1000, sample.queueKb]);
  return {
    title,
    data: { ...options, controlled, free },
    sections: [
      {
        columns: ['CONTROL', 'LINK_USED', 'QUEUE_KB', 'MAX_KB', 'PAUSED', 'PAUSES', 'CNPS', 'FAIRNESS'],
        rows: [row('DCQCN', controlled), row('PFC only', free)],
      },
      {
        chart: {
          ...{ title: 'Rates of senders with DCQCN', note: MODEL, x, y: { label: 'Gb/s' } },
          series: Array.from({ length: shown }, (_, i) => ({
            name: `sender ${i + 1}`,
            points: controlled.samples.map(({ us, rates }): [number, number] => [us / 1000, rates[i]!]),
          })),
        },
      },
      {
        chart: {
          ...{ title: 'Queue of the switch', note: MODEL, x, y: { label: 'KB' } },
          series: [
            { name: 'DCQCN', points: queue(controlled) },
            { name: 'PFC only', points: queue(free) },
          ],
        },
      },
    ],
  };
}

interface PfcFlags extends Output {
  switches: number;
  slowness: number;
  deadlock?: true;
  watchdog: number;
  slots: number;
  xoff: number;
  xon: number;
}

function pfcCommand(): Command {
  return subcommand('pfc', 'How pauses spread hop by hop, hold up who has no part in it, and lock a ring of switches.')
    .option('--switches <count>', 'in a row, or in a ring', whole(3, 100), 4)
    .option('--slowness <slots>', 'that the slow receiver takes for a packet', whole(1, 1e6), 10)
    .option('--deadlock', 'a ring of switches instead of a row')
    .option('--watchdog <slots>', 'of a pause, after which a queue is dropped', whole(1, 1e9), 200)
    .option('--slots <count>', 'to simulate', whole(2, 1e7), 20_000)
    .option('--xoff <packets>', 'of a link that wait when it is paused', whole(1, 1e6), 50)
    .option('--xon <packets>', 'at which it goes on', whole(0, 1e6), 40)
    .option('--json', 'as an object')
    .option('--html <file>', 'write a page with charts, which needs nothing else')
    .action((flags: PfcFlags) => compute(() => show(flags.deadlock ? deadlock(flags) : spreading(flags), flags)));
}

/** How many links were paused by when. */
function pauseChart(results: readonly (readonly [name: string, result: sim.PfcResult])[]): Chart {
  return {
    ...{
      title: 'Pauses spread',
      note: MODEL,
      x: { label: 'slots' },
      y: { label: 'links that were paused at least once' },
    },
    series: results.map(([name, { links }]) => {
      const slots = links.flatMap(({ firstPause }) => firstPause ?? []).sort((a, b) => a - b);
      return { name, points: slots.map((slot, i): [number, number] => [slot, i + 1]) };
    }),
  };
}

function spreading({ switches, slowness, slots, xoff, xon }: PfcFlags): Report {
  const scenario = sim.spreadingScenario(switches, slowness);
  const paused = sim.simulatePfc({ ...scenario, slots, xoff, xon });
  const free = sim.simulatePfc({ ...scenario, slots, xoff, xon, pfc: false });
  const hit = paused.links
    .filter(({ firstPause }) => firstPause !== undefined)
    .sort((a, b) => a.firstPause! - b.firstPause!);
  return {
    title: `A receiver that takes ${slowness} slots for a packet, behind ${switches} switches`,
    data: { switches, slowness, slots, xoff, xon, withPfc: paused, withoutPfc: free },
    sections: [
      {
        columns: ['FLOW', 'RATE_WITH_PFC', 'DROPS', 'RATE_WITHOUT', 'DROPS'],
        rows: Object.keys(paused.rates).map((name) => [
          ...[name, paused.rates[name]!.toFixed(3), paused.drops[name]!],
          ...[free.rates[name]!.toFixed(3), free.drops[name]!],
        ]),
      },
      {
        text: 'The victim shares no slow link with the culprit, only one that is paused because of it. Links in the order of their first pause:',
      },
      {
        columns: ['LINK', 'FIRST_PAUSE', 'PAUSED'],
        rows: hit.map(({ link, firstPause, paused }) => [link, firstPause!, percent(paused)]),
      },
      { chart: pauseChart([['PFC', paused]]) },
    ],
  };
}

function deadlock({ switches, slots, xoff, xon, watchdog }: PfcFlags): Report {
  const scenario = { ...sim.deadlockScenario(switches), slots, xoff, xon };
  const results: [string, sim.PfcResult][] = [
    ['PFC', sim.simulatePfc(scenario)],
    [`PFC, watchdog after ${watchdog} slots`, sim.simulatePfc({ ...scenario, watchdog })],
    ['no PFC', sim.simulatePfc({ ...scenario, pfc: false })],
  ];
  const sum = (values: Record<string, number>) => Object.values(values).reduce((a, b) => a + b, 0);
  return {
    title: `A ring of ${switches} switches, each flow two hops on`,
    data: { switches, slots, xoff, xon, watchdog, results: Object.fromEntries(results) },
    sections: [
      {
        columns: ['NETWORK', 'PACKETS_A_SLOT', 'DROPS', 'DEADLOCK_AT', 'WATCHDOG'],
        rows: results.map(([name, { rates, drops, deadlockAt, links }]) => [
          ...[name, sum(rates).toFixed(3), sum(drops), deadlockAt ?? 'never'],
          links.reduce((all, { watchdogs }) => all + watchdogs, 0),
        ]),
      },
      { chart: pauseChart(results.filter(([name]) => name !== 'no PFC')) },
    ],
  };
}

interface EcmpFlags extends Output {
  flows: number;
  paths: number;
  trials: number;
  jitter: number;
  gbps: number;
  mtu: number;
  rtt: number;
  seed: number;
}

function ecmpCommand(): Command {
  return model('ecmp', 'Hashing few large flows onto paths, against spraying their packets, and what order costs then.')
    .option('--flows <count>', 'of equal size, that start at once', whole(1, 1e5), 8)
    .option('--paths <count>', 'of equal speed', whole(1, 4096), 8)
    .option('--trials <count>', 'of the hashes', whole(1, 1e6), 10_000)
    .option('--jitter <microseconds>', 'by which paths differ', positive, 2)
    .option('--gbps <number>', 'speed of a sender', positive, 100)
    .option('--mtu <bytes>', 'payload of a packet', whole(1, 1 << 20), 4096)
    .option('--rtt <microseconds>', 'from a packet to its acknowledgement', positive, 10)
    .action((flags: EcmpFlags) => compute(() => show(ecmp(flags), flags)));
}

function ecmp({ flows, paths, trials, jitter, gbps, mtu, rtt, seed }: EcmpFlags): Report {
  const hashed = sim.simulateEcmp({ flows, paths, trials, seed });
  const spray = { paths, gbps, mtu, rttUs: rtt, seed };
  const sprayed = sim.simulateSpray({ ...spray, jitterUs: jitter });
  const jitters = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10];
  const curve = jitters.map((jitterUs): [number, number] => [
    jitterUs,
    sim.simulateSpray({ ...spray, jitterUs, packets: 20_000 }).goBackN,
  ]);
  const counts = [1, 2, 4, 8, 16, 32, 64, 128, 256];
  const slowest = (what: 'mean' | 'p99') =>
    counts.map((count): [number, number] => [
      count,
      sim.simulateEcmp({ flows: count, paths, trials: 2000, seed })[what],
    ]);
  return {
    title: `${flows} flows over ${paths} paths`,
    data: { flows, paths, trials, seed, hashed, jitterUs: jitter, sprayed },
    sections: [
      { text: 'Time of the slowest flow, as a multiple of that with an even spread:' },
      {
        columns: ['BALANCING', 'MEAN', 'MEDIAN', 'P99', 'WORST', 'EVEN', 'IDLE_PATHS'],
        rows: [
          [
            ...[
              'ECMP',
              hashed.mean.toFixed(2),
              hashed.median.toFixed(2),
              hashed.p99.toFixed(2),
              hashed.worst.toFixed(2),
            ],
            ...[percent(hashed.even), percent(hashed.idle)],
          ],
          ['spraying', '1.00', '1.00', '1.00', '1.00', percent(1), percent(0)],
        ],
      },
      {
        text: `Sprayed over paths that differ by up to ${jitter} us, ${percent(sprayed.reordered)} of the packets overtake others:`,
      },
      {
        columns: ['RECEIVER', 'CAPACITY_OF_USE'],
        rows: [
          ['goes back N', percent(sprayed.goBackN)],
          ['places packets in any order', percent(sprayed.anyOrder)],
        ],
      },
      {
        chart: {
          ...{ title: `Slowest of the flows by ECMP over ${paths} paths`, note: MODEL },
          ...{ x: { label: 'flows', log: 2 }, y: { label: 'time, by that of an even spread' } },
          series: [
            { name: 'mean', points: slowest('mean') },
            { name: '99 of 100', points: slowest('p99') },
            { name: 'spraying', points: counts.map((count): [number, number] => [count, 1]) },
          ],
        },
      },
      {
        chart: {
          ...{ title: 'Spraying towards a receiver that goes back N', note: MODEL },
          ...{
            x: { label: 'difference of the paths, in microseconds', log: 10 },
            y: { label: 'part of the capacity of use' },
          },
          series: [
            { name: 'goes back N', points: curve },
            { name: 'any order', points: jitters.map((jitterUs): [number, number] => [jitterUs, 1]) },
          ],
        },
      },
    ],
  };
}
