// Latency and bandwidth between two RDMA devices of this machine, ours beside perftest's and pyverbs': each side is a
// process, and all do the same.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { openDevice } from 'node-rdma';

/** The tests, with the program of perftest for each, and what ours may cost at the most beside it: 1.1 times, where not said. */
const allTests = [
  { test: 'writeLat', program: 'ib_write_lat', unit: 'us' },
  { test: 'sendLat', program: 'ib_send_lat', unit: 'us' },
  { test: 'udLat', program: 'ib_send_lat', more: ['-c', 'UD'], unit: 'us' },
  { test: 'srqLat', program: 'ib_send_lat', more: ['--use-srq'], unit: 'us' },
  { test: 'readLat', program: 'ib_read_lat', unit: 'us' },
  { test: 'atomicLat', program: 'ib_atomic_lat', unit: 'us' },
  { test: 'writeBw', program: 'ib_write_bw', unit: 'MiB/s' },
  // Not of perftest, whose programs have no such mode for two sides: C that sleeps until an event.
  { test: 'awaitedLat', program: 'ibv_rc_pingpong', unit: 'us', goal: 1.5 },
];

// Under emulation on a busy machine Node alone may take half a minute to start.
const DEADLINE_MS = 300_000;

/**
 * @typedef {object} Row
 * @property {string} test
 * @property {number} bytes
 * @property {string} unit
 * @property {number} goal how many times the other's cost ours may be
 * @property {number} ours median of the rounds' medians
 * @property {number} [perftest]
 * @property {number} [pyverbs]
 * @property {{ ours: number, perftest?: number, pyverbs?: number }} best of all
 */

/**
 * Latency of half a round trip (readLat and atomicLat: of the whole), or bandwidth. All sides spin, and so does whoever else is measured
 * here: where processors are few, the kernel's own work waits for them, and the medians are that wait; the best is the path.
 *
 * @param {object} options
 * @param {string} options.device the client's
 * @param {string} options.peerDevice the server's
 * @param {number} [options.iterations] of each test in one run
 * @param {number} [options.latencyBytes]
 * @param {number} [options.bandwidthBytes]
 * @param {number} [options.rounds] runs in turns
 * @param {string[]} [options.only] names of tests, in place of all
 * @param {boolean} [options.pyverbs] whether to run pyverbs, with all that it has
 * @param {(text: string) => void} [options.onProgress]
 * @returns {Promise<Row[]>}
 */
export async function measure(options) {
  const { device, peerDevice, iterations = 300, latencyBytes = 8, bandwidthBytes = 65536, rounds = 3 } = options;
  const { only = allTests.map(({ test }) => test), pyverbs = true, onProgress = () => {} } = options;
  const tests = allTests.filter(({ test }) => only.includes(test));
  const sizes = { latencyBytes, bandwidthBytes, iterations, only };
  const server = { role: 'server', device: peerDevice, gidIndex: gidIndexOf(peerDevice), ...sizes };
  const client = { role: 'client', device, gidIndex: gidIndexOf(device), ...sizes };

  // In turns, so that what the machine does meanwhile hits all.
  const runs = { ours: [], perftest: [], pyverbs: [] };
  for (let round = 1; round <= rounds; round++) {
    onProgress(`round ${round} of ${rounds}: ours`);
    runs.ours.push(await runPair([process.execPath, file('side.mjs')], server, client));
    onProgress(`round ${round} of ${rounds}: perftest`);
    const results = {};
    for (const { test, program, more } of tests) results[test] = await runPerftest(program, server, client, more);
    runs.perftest.push(results);
    if (pyverbs) {
      onProgress(`round ${round} of ${rounds}: pyverbs`);
      // The distribution's own Python, which the package of pyverbs belongs to.
      runs.pyverbs.push(await runPair(['/usr/bin/python3', file('pyverbs_side.py')], server, client));
    }
  }

  return tests.map(({ test, unit, goal = 1.1 }) => {
    const row = { test, bytes: unit === 'us' ? latencyBytes : bandwidthBytes, unit, goal, best: {} };
    const bestOf = unit === 'us' ? Math.min : Math.max;
    for (const [who, results] of Object.entries(runs)) {
      const figures = results.map((result) => result[test]).filter((figure) => figure !== undefined);
      if (figures.length === 0) continue;
      row[who] = figures.map(({ typical }) => typical).sort((x, y) => x - y)[figures.length >> 1];
      row.best[who] = bestOf(...figures.map(({ best }) => best));
    }
    return row;
  });
}

/** Both sides have to agree on the version of the GID, and all on the one that we would choose. */
export function gidIndexOf(device) {
  const context = openDevice(device);
  try {
    return context.selectGid().gidIndex;
  } finally {
    context.close();
  }
}

/** Runs a program as both sides: the server prints its port, the client the results. */
export async function runPair(command, server, client) {
  const serving = start([...command, JSON.stringify(server)]);
  try {
    const { value: port } = await Promise.race([serving.lines.next(), serving.failed]);
    const { output } = start([...command, JSON.stringify({ ...client, port: Number(port) })]);
    const text = await Promise.race([output, serving.failed]);
    await serving.output;
    return JSON.parse(text);
  } finally {
    serving.child.kill();
  }
}

export async function runPerftest(program, server, client, more = []) {
  if (program === 'ibv_rc_pingpong') return runPingPong(server, client);
  const isLatency = program.endsWith('_lat');
  const bytes = isLatency ? client.latencyBytes : client.bandwidthBytes;
  // -F: the processor's speed may change, which is not our concern. A port of its own: the last one may still be busy.
  const where = (side) => ['-d', side.device, '-x', side.gidIndex, '-p', port];
  const args = (side) => ['-F', ...where(side), '-s', bytes, '-n', side.iterations, ...more];
  const port = nextPort++;
  const serving = start([program, ...args(server).map(String)]);
  try {
    await Promise.race([listening(port), serving.failed]);
    const { output } = start([program, ...args(client).map(String), '127.0.0.1']);
    const text = await Promise.race([output, serving.failed]);
    await serving.output;
    // Bytes, iterations, then min, max, typical, or peak, average.
    const row = text.split('\n').find((line) => new RegExp(`^ *${bytes} +${client.iterations} `).test(line));
    if (row === undefined) throw new Error(`${program} prints no result:\n${text}`);
    const columns = row.trim().split(/\s+/).map(Number);
    const [best, typical] = isLatency ? [columns[2], columns[4]] : [columns[2], columns[3]];
    if (!Number.isFinite(best) || !Number.isFinite(typical)) throw new Error(`${program} prints no figures: ${row}`);
    return { best, typical };
  } finally {
    serving.child.kill();
  }
}

/** Both sides print the time of a round trip, on average. */
async function runPingPong(server, client) {
  const port = nextPort++;
  const args = (side) => [
    '-e',
    '-d',
    side.device,
    '-g',
    side.gidIndex,
    '-s',
    client.latencyBytes,
    '-n',
    client.iterations,
  ];
  const serving = start(['ibv_rc_pingpong', ...args(server).map(String), '-p', String(port)]);
  try {
    await Promise.race([listening(port), serving.failed]);
    const { output } = start(['ibv_rc_pingpong', ...args(client).map(String), '-p', String(port), '127.0.0.1']);
    const text = await Promise.race([output, serving.failed]);
    await serving.output;
    const mean = Number(/= ([\d.]+) usec\/iter/.exec(text)?.[1]) / 2;
    if (!Number.isFinite(mean)) throw new Error(`ibv_rc_pingpong prints no result:\n${text}`);
    return { best: mean, typical: mean };
  } finally {
    serving.child.kill();
  }
}

let nextPort = 18515;

/** Until somebody listens on the port. Connecting to find out would be taken for the client. */
async function listening(port) {
  const entry = new RegExp(`:${port.toString(16).toUpperCase().padStart(4, '0')} [0-9A-F]+:0000 0A `);
  while (!['/proc/net/tcp', '/proc/net/tcp6'].some((table) => entry.test(readFileSync(table, 'latin1')))) {
    await setTimeout(50);
  }
}

export function file(name) {
  return fileURLToPath(new URL(name, import.meta.url));
}

/** Starts a process. `output` is all that it prints; it and `failed` reject when the process fails. */
function start([program, ...args]) {
  const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'pipe'], timeout: DEADLINE_MS });
  let printed = '';
  let complaints = '';
  child.stdout.on('data', (chunk) => {
    printed += chunk;
  });
  child.stderr.on('data', (chunk) => {
    complaints += chunk;
  });
  const output = (async () => {
    const [code, signal] = await once(child, 'close');
    if (code === 0) return printed;
    throw new Error(`${[program, ...args].join(' ')} ended with ${signal ?? code}:\n${printed}${complaints}`);
  })();
  output.catch(() => {});
  const failed = output.then(() => new Promise(() => {}));
  failed.catch(() => {});
  return { child, output, failed, lines: createInterface({ input: child.stdout })[Symbol.asyncIterator]() };
}
