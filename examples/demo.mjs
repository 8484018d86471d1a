// @ts-check
// Shows what the package does, on real devices: npm run demo starts it, in a VM where this machine has none.
//   node examples/demo.mjs [--device NAME [--device NAME]] [--checks-only] [--json]
// Two names: one for each end. One name, or none for the first usable device: both ends are on it.
// --checks-only leaves out the figures.
import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { measure } from '../bench/rxe/measure.mjs';
import { isUsable, reportDevice, reportDevices } from './demo/devices.mjs';
import { pingPong } from './demo/interop.mjs';
import { atomics, connectPeers, startPeer, transfer, transfers } from './demo/operations.mjs';

const started = performance.now();
const { values: flags } = parseArgs({
  options: {
    device: { type: 'string', multiple: true, default: [] },
    'checks-only': { type: 'boolean', default: false },
    json: { type: 'boolean', default: false },
  },
});

const colours = !process.env.NO_COLOR && (process.env.FORCE_COLOR === '1' || process.stdout.isTTY);
// What the processes say that are started here is read by a program.
delete process.env.FORCE_COLOR;
const paint = (/** @type {number} */ code) => (/** @type {string} */ text) =>
  colours ? `\x1b[${code}m${text}\x1b[0m` : text;
const [bold, red, green, grey] = [paint(1), paint(31), paint(32), paint(90)];
const print = (/** @type {string} */ text) => flags.json || console.log(text);
const progress = (/** @type {string} */ text) => console.error(grey(`demo: ${text}`));

/** @type {{ group: string, name: string, ok: boolean, detail: string }[]} */
const checks = [];
let group = '';

function heading(/** @type {string} */ text) {
  group = text;
  print(`\n${bold(text)}`);
}

/**
 * Does something and reports how it went. What fails does not keep the rest from being tried.
 *
 * @param {string} name
 * @param {() => string | Promise<string>} work gives what is to be said about it
 */
async function check(name, work) {
  progress(name);
  try {
    record(name, true, await work());
  } catch (error) {
    record(name, false, /** @type {Error} */ (error).message);
  }
}

function record(/** @type {string} */ name, /** @type {boolean} */ ok, /** @type {string} */ detail) {
  checks.push({ group, name, ok, detail });
  print(`  ${ok ? green('✓') : red('✗')} ${name.padEnd(27)} ${ok ? detail : red(detail)}`);
}

const isEmulated = /QEMU TCG/.test(readFileSync('/proc/cpuinfo', 'utf8'));

/** @type {Awaited<ReturnType<typeof measure>>} */
let measurements = [];

/**
 * @param {string} device
 * @param {string} peerDevice
 */
async function showFigures(device, peerDevice) {
  heading(`Latency and bandwidth beside programs in C, ${device} ⇄ ${peerDevice}`);
  const names = new Map([
    ['writeLat', 'WRITE latency'],
    ['sendLat', 'SEND latency'],
    ['readLat', 'READ latency'],
    ['writeBw', 'WRITE bandwidth'],
    ['awaitedLat', 'SEND with await'],
  ]);
  await check('measured in turns', async () => {
    const options = { device, peerDevice, iterations: 100, rounds: 1, only: [...names.keys()], pyverbs: false };
    measurements = await measure({ ...options, onProgress: progress });
    return `${options.iterations} times each, in this run`;
  });
  const row = (/** @type {string[]} */ [first = '', ...rest]) =>
    print(`    ${first.padEnd(24)}${rest.map((cell) => cell.padStart(14)).join('')}`);
  if (measurements.length === 0) return;
  row(['', 'bytes', 'node-rdma', 'in C', 'ratio', 'median: ours', 'in C']);
  for (const { test, bytes, unit, best, ...medians } of measurements) {
    const number = (/** @type {number | undefined} */ value) => value?.toFixed(1) ?? '–';
    const ratio = best.perftest === undefined ? '–' : (best.ours / best.perftest).toFixed(1);
    // These two are averages, of which there is one.
    const isAverage = test === 'writeBw' || test === 'awaitedLat';
    const rest = isAverage ? [] : [number(medians.ours), number(medians.perftest)];
    row([`${names.get(test)}, ${unit}`, String(bytes), number(best.ours), number(best.perftest), ratio, ...rest]);
  }
  const notes = [
    'The best of each latency, half a round trip, of READ a whole one; behind it the median, which on few processors is',
    'mostly the wait for one, since all sides spin. Bandwidth, and SEND with await, are averages: there both sides sleep',
    'until an event, and beside it stands ibv_rc_pingpong -e.',
    ...(isEmulated
      ? ['This machine is emulated: that compares the programs a little, and says nothing of a NIC.']
      : []),
  ];
  for (const note of notes) print(grey(`    ${note}`));
}

const devices = flags.device.length > 0 ? [...new Set(flags.device)].map(reportDevice) : reportDevices();
const usable = devices.filter(isUsable);
const [here, there = here] = flags.device.length > 0 ? usable : usable.slice(0, 1);

print(
  `${bold('node-rdma demo')}: Node ${process.version}, Linux ${process.arch}${process.env.NODE_RDMA_VM ? ', in a VM' : ''}`,
);
heading('Devices and their GIDs');
for (const device of devices) {
  const { name, active, linkLayer, mtu, gids, chosen, reason } = device;
  const port = `port 1 ${active ? 'active' : 'down'}, ${linkLayer}, MTU ${mtu}, ${gids.length} GIDs`;
  record(name, isUsable(device), chosen === undefined ? `${reason}` : port);
  for (const { index, type, gid, netdev } of gids) {
    const why = index === chosen ? green(`  ← chosen: ${reason}`) : '';
    print(`      ${String(index).padStart(3)}  ${type}  ${gid.padEnd(26)} ${netdev ?? ''}${why}`);
  }
}

if (here === undefined || there === undefined) {
  record('a usable device', false, 'there is none: npm run demo starts a VM that has two');
} else {
  const [a, b] = [startPeer(here.name), startPeer(there.name)];
  const ends = `${here.name} ⇄ ${there.name}`;

  heading(`Two processes, ${ends}: each checks its own memory, byte for byte`);
  await check('RC connection', async () => {
    const numbers = await connectPeers(a, b);
    return `queue pairs ${numbers.map((number) => `0x${number.toString(16)}`).join(' and ')}`;
  });
  const mtu = Math.min(here.mtu, there.mtu);
  const lengths = [1, mtu, mtu + 1, 64 * 1024 + 1];
  for (const name of Object.keys(transfers)) {
    await check(name, async () => {
      let hash = '';
      for (const length of lengths) {
        hash = await transfer(name, a, b, length);
        await transfer(name, b, a, length);
      }
      return `both ways, ${lengths.join(', ')} bytes; the last: SHA-256 ${hash.slice(0, 16)}…`;
    });
  }
  for (const [name, run] of Object.entries(atomics)) {
    await check(name, async () => {
      await run(a, b);
      await run(b, a);
      return 'both ways: the value found, and the value left';
    });
  }
  await check('end', async () => {
    await Promise.all([a.close(), b.close()]).finally(() => [a, b].forEach((peer) => peer.kill()));
    return 'both have closed everything';
  });

  heading(`The C program ibv_rc_pingpong, ${ends}`);
  const game = { size: 16 * 1024 + 1, iterations: 20 };
  // Both games at once: most of their time is the start of the processes.
  const games = [
    { name: 'C client, our server', playing: pingPong('ours', here, there, { ...game, port: 18515 }) },
    { name: 'our client, C server', playing: pingPong('theirs', here, there, { ...game, port: 18516 }) },
  ];
  for (const { playing } of games) playing.catch(() => {});
  for (const { name, playing } of games) {
    await check(name, async () => {
      const checkedBy = await playing;
      return `${game.iterations} times ${game.size} bytes there and back, checked by ${checkedBy}`;
    });
  }

  if (!flags['checks-only']) await showFigures(here.name, there.name);
}

const failed = checks.filter(({ ok }) => !ok).length;
const seconds = Number(((performance.now() - started) / 1000).toFixed(1));
if (flags.json) {
  console.log(JSON.stringify({ ok: failed === 0, seconds, devices, checks, measurements }, null, 2));
} else {
  const summary = `${checks.length - failed} of ${checks.length} verified`;
  print(`\n${failed === 0 ? green(`✓ ${summary}`) : red(`✗ ${summary}, ${failed} failed`)} in ${seconds} s`);
}
process.exitCode = failed === 0 ? 0 : 1;
