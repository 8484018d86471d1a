import { access, constants, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { Argument, type Command, Option } from 'commander';
import { counted } from '../inspect.ts';
import type { Bandwidth, Latency } from '../perf/measure.ts';
import { type PerfContext, type PerfTest, perfTests, runPerfClient, runPerfServer } from '../perf/perf.ts';
import { drawPage, type Section } from '../plot/chart.ts';
import { bytes, Complaint, Exit, positive, run, subcommand, whole } from './frame.ts';
import { colour, print, printJson, printRows, rounded } from './output.ts';

interface Flags {
  ibDev?: string;
  ibPort: number;
  gidIndex?: number;
  tclass?: number;
  mtu?: string;
  port: number;
  size?: number;
  all?: true;
  maxSize: number;
  iters?: number;
  duration?: number;
  qp: number;
  txDepth: number;
  rxDepth: number;
  events?: true;
  histogram?: true;
  json?: true;
  html?: string;
}

/** The subcommand `perf`. */
export function perfCommand(): Command {
  return subcommand('perf', "Measure bandwidth and latency between two machines, as perftest's programs do.")
    .addArgument(new Argument('<test>', 'what to measure').choices(perfTests))
    .argument('[host]', 'the server (default: be the server, for one client; it needs only -d, -i, -x, -m, -p and -e)')
    .option('-d, --ib-dev <name>', 'device (default: NODE_RDMA_DEVICE, else the first that is active)')
    .option('-i, --ib-port <number>', 'its port', whole(1, 255), 1)
    .option('-x, --gid-index <index>', 'GID of this side (default: as node-rdma gids says)', whole(0, 255))
    .option('--tclass <number>', 'traffic class of the packets', whole(0, 255))
    .addOption(
      new Option('-m, --mtu <bytes>', 'of the path (default: as large as the ports allow)').choices([
        '256',
        '512',
        '1024',
        '2048',
        '4096',
      ]),
    )
    .option('-p, --port <number>', 'TCP port to agree by', whole(0, 0xffff), 18515)
    .option('-s, --size <size>', 'bytes of a message (default: 64K for bandwidth, 2 for latency; 8 for atomics)', bytes)
    .option('-a, --all', 'all sizes, by powers of two from 2 bytes')
    .option('--max-size <size>', 'up to here with --all', bytes, 8 << 20)
    .option(
      '-n, --iters <count>',
      'messages of each queue pair (default: 5000 for bandwidth, 1000 for latency)',
      whole(1, 1e9),
    )
    .addOption(
      new Option('-D, --duration <seconds>', 'measure for this time instead').argParser(positive).conflicts('iters'),
    )
    .option('-q, --qp <count>', 'queue pairs, for bandwidth', whole(1, 1024), 1)
    .option('-t, --tx-depth <count>', 'messages in flight of each', whole(1, 32_768), 128)
    .option('-r, --rx-depth <count>', 'receives of each that wait', whole(2, 32_768), 512)
    .option('-e, --events', 'sleep until there are completions, instead of polling')
    .option('-H, --histogram', 'show how latencies are spread, as bars')
    .option('--json', 'as an object')
    .option('--html <file>', 'write a page with charts, which needs nothing else')
    .action((test: PerfTest, host: string | undefined, flags: Flags) =>
      run((signal) => (host === undefined ? serve(test, flags, signal) : measure(test, host, flags, signal))),
    );
}

const common = (test: PerfTest, flags: Flags, signal: AbortSignal) => ({
  ...{ test, device: flags.ibDev, portNum: flags.ibPort, gidIndex: flags.gidIndex, trafficClass: flags.tclass },
  ...{ mtu: flags.mtu === undefined ? undefined : Number(flags.mtu), port: flags.port },
  ...{ events: flags.events === true, signal },
});

async function serve(test: PerfTest, flags: Flags, signal: AbortSignal): Promise<void> {
  await runPerfServer(common(test, flags, signal), (port) => {
    console.error(`node-rdma: ${test}: waiting for a client on port ${port}`);
  });
}

/** What is not measured is refused, and not left out. @throws Complaint */
function check(test: PerfTest, { size, all, maxSize, qp, events, histogram }: Flags): void {
  const isLatency = test.endsWith('-lat');
  const wrong: [isWrong: boolean, why: string][] = [
    [isLatency && qp > 1, '--qp is for bandwidth: latency is that of one queue pair'],
    [!isLatency && histogram === true, '--histogram is of latencies'],
    [test === 'write-lat' && events === true, 'write-lat looks at memory: there are no --events to wait for'],
    [test.startsWith('atomic') && (all === true || (size ?? 8) !== 8), 'atomics have 8 bytes'],
    [size === 0, '--size is 1 at the least'],
    [all === true && maxSize < 2, '--all begins with 2 bytes, so --max-size is 2 at the least'],
  ];
  for (const [isWrong, why] of wrong) {
    if (isWrong) throw new Complaint(`${why} (--help tells how it is used)`, Exit.USAGE);
  }
}

function sizesOf(test: PerfTest, { size, all, maxSize }: Flags): number[] {
  if (test.startsWith('atomic')) return [8];
  if (!all) return [size ?? (test.endsWith('-bw') ? 65_536 : 2)];
  const sizes: number[] = [];
  for (let bytes = 2; bytes <= maxSize; bytes *= 2) sizes.push(bytes);
  return sizes;
}

const isLatency = (result: Bandwidth | Latency): result is Latency => 'typical' in result;

async function measure(test: PerfTest, host: string, flags: Flags, signal: AbortSignal): Promise<void> {
  check(test, flags);
  // A folder that cannot be written to is better known before a sweep than behind it.
  if (flags.html !== undefined) await access(dirname(flags.html), constants.W_OK);
  const sizes = sizesOf(test, flags);
  const isBandwidth = test.endsWith('-bw');
  let printRow: ((row: readonly string[]) => void) | undefined;
  let context: PerfContext | undefined;
  let done = 0;
  const results: (Bandwidth | Latency)[] = [];
  // What was measured before an error, or before Ctrl-C, is worth showing.
  const conclude = async () => {
    if (context === undefined || results.length === 0) return;
    if (flags.json) printJson({ test, host, context, results: results.map(toNanoseconds) });
    else if (flags.histogram) for (const result of results.filter(isLatency)) showHistogram(result);
    if (flags.html !== undefined) await writeFile(flags.html, page(test, context, results));
  };
  const measuring = runPerfClient({
    ...common(test, flags, signal),
    ...{ host, sizes, seconds: flags.duration, qps: flags.qp, txDepth: flags.txDepth, rxDepth: flags.rxDepth },
    iters: flags.duration === undefined ? (flags.iters ?? (isBandwidth ? 5000 : 1000)) : undefined,
    onConnected: (connected) => {
      context = connected;
      if (!flags.json) print(`# ${contextText(test, connected)}`);
    },
    onResult: (result) => {
      results.push(result);
      progress(sizes.length, sizes.length);
      printRow ??= flags.json ? () => {} : printRows(columns(isBandwidth));
      printRow(row(result));
      progress(++done, sizes.length);
    },
  });
  try {
    await measuring;
  } catch (error) {
    await conclude().catch(({ message }: Error) => console.error(`node-rdma: ${message}`));
    throw error;
  }
  await conclude();
}

/** What was measured with, in a line. */
function contextText(test: PerfTest, context: PerfContext): string {
  const { host, device, portNum, gidIndex, gid, mtu, qps, txDepth, transport } = context;
  const from = `${device} port ${portNum}, GID ${gidIndex} ${gid}`;
  return `${test} to ${host}: ${from}, MTU ${mtu}, ${transport}, ${counted(qps, 'queue pair')}, tx depth ${txDepth}`;
}

function toNanoseconds(result: Bandwidth | Latency): Bandwidth | Latency {
  if (!isLatency(result)) return result;
  const { min, max, typical, average, stdev, p99, p999 } = result;
  const times = Object.entries({ min, max, typical, average, stdev, p99, p999 });
  return { ...result, ...Object.fromEntries(times.map(([name, microseconds]) => [name, rounded(microseconds, 3)])) };
}

/** A bar on a terminal, below the results; what is whole is taken away. */
function progress(done: number, all: number): void {
  if (!process.stderr.isTTY || all < 2) return;
  const filled = Math.round((30 * done) / all);
  const bar = `[${'#'.repeat(filled)}${' '.repeat(30 - filled)}] ${done}/${all}`;
  process.stderr.write(done === all ? `\r${' '.repeat(bar.length)}\r` : `\r${bar}`);
}

// Those of perftest.
const columns = (isBandwidth: boolean) =>
  isBandwidth
    ? ['#bytes', '#iterations', 'BW peak[MB/sec]', 'BW average[MB/sec]', 'MsgRate[Mpps]']
    : [
        ...['#bytes', '#iterations', 't_min[usec]', 't_max[usec]', 't_typical[usec]', 't_avg[usec]', 't_stdev[usec]'],
        ...['99% percentile[usec]', '99.9% percentile[usec]'],
      ];

function row(result: Bandwidth | Latency): string[] {
  const { size, iterations } = result;
  const numbers = isLatency(result)
    ? [result.min, result.max, result.typical, result.average, result.stdev, result.p99, result.p999]
    : [result.peak, result.average];
  const rate = isLatency(result) ? [] : [result.mpps.toFixed(6)];
  return [String(size), String(iterations), ...numbers.map((value) => value.toFixed(2)), ...rate];
}

function showHistogram({ size, histogram, iterations }: Latency): void {
  print();
  print(colour('bold', `${size} bytes, microseconds`));
  const most = Math.max(...histogram.map(({ count }) => count));
  for (const { from, to, count } of histogram) {
    const share = ((100 * count) / iterations).toFixed(1).padStart(5);
    print(
      `${from.toFixed(1).padStart(10)} - ${to.toFixed(1).padEnd(10)} ${share}% ${'#'.repeat(Math.ceil((40 * count) / most))}`,
    );
  }
}

function page(test: PerfTest, context: PerfContext, results: (Bandwidth | Latency)[]): string {
  const isBandwidth = test.endsWith('-bw');
  const line = (name: string, of: (result: never) => number) => ({
    name,
    points: results.map((result): [number, number] => [result.size, of(result as never)]),
  });
  const note = `measured by node-rdma perf, ${new Date().toISOString().slice(0, 16).replace('T', ' ')} UTC`;
  const x = { label: 'bytes of a message', log: 2 as const };
  const sections: Section[] = [
    { text: contextText(test, context) },
    { columns: columns(isBandwidth), rows: results.map(row) },
    isBandwidth
      ? {
          chart: {
            ...{ title: `${test}: bandwidth`, note, x, y: { label: 'MB/s (2^20 bytes)' } },
            series: [line('average', (r: Bandwidth) => r.average), line('peak', (r: Bandwidth) => r.peak)],
          },
        }
      : {
          chart: {
            ...{ title: `${test}: latency`, note, x, y: { label: 'microseconds' } },
            series: [
              line('typical', (r: Latency) => r.typical),
              line('99 %', (r: Latency) => r.p99),
              line('99.9 %', (r: Latency) => r.p999),
            ],
          },
        },
  ];
  for (const result of results.filter(isLatency).slice(0, 1)) {
    const points = result.histogram.map(({ from, count }): [number, number] => [from, count]);
    sections.push({
      chart: {
        ...{
          title: `${test}: how ${result.size} bytes are spread`,
          note,
          x: { label: 'microseconds', log: 2 as const },
        },
        ...{ y: { label: 'messages' }, series: [{ name: `${result.iterations} messages`, points }] },
      },
    });
  }
  return drawPage(`${test} from ${context.device} to ${context.host}, by node-rdma perf`, sections);
}
