// @ts-check
// Ping-pong with the C program ibv_rc_pingpong of rdma-core: another implementation, on the same wire.
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const DEADLINE_MS = 120_000;
const execute = promisify(execFile);
const theirs = ['ibv_rc_pingpong'];
const ours = [process.execPath, fileURLToPath(new URL('../pingpong.mjs', import.meta.url))];

/**
 * @typedef {import('./devices.mjs').DeviceReport} DeviceReport
 */

/** Whether the installed version can check the data that it receives. */
async function canCheck() {
  // It has no --help: it shows its options when there is one that it does not know.
  const { stdout = '', stderr = '', code } = await execute('ibv_rc_pingpong', ['-h']).catch((error) => error);
  if (code === 'ENOENT') throw new Error('ibv_rc_pingpong is not installed (package ibverbs-utils)');
  return `${stdout}${stderr}`.includes('--chk');
}

/**
 * Plays one game. Ours checks each byte of the data; theirs checks each page when it is the server.
 *
 * @param {'ours' | 'theirs'} server whose program is the server
 * @param {DeviceReport} device the server's
 * @param {DeviceReport} peerDevice the client's
 * @param {{ size: number, iterations: number, port: number }} game
 * @returns {Promise<'both' | 'ours'>} who has checked
 */
export async function pingPong(server, device, peerDevice, { size, iterations, port }) {
  const check = await canCheck();
  const mtu = Math.min(device.mtu, peerDevice.mtu);
  // Both sleep until something comes: two that spin would leave no processor to a software device.
  const common = ['-e', '-m', mtu, '-s', size, '-n', iterations, '-p', port].map(String);
  const command = (/** @type {boolean} */ isOurs, /** @type {DeviceReport} */ { name, chosen }) => [
    ...(isOurs ? [...ours, '-c'] : [...theirs, ...(check ? ['-c'] : [])]),
    ...[...common, '-d', name, '-g', String(chosen)],
  ];
  const client = [...command(server === 'theirs', peerDevice), '127.0.0.1'];
  for (const output of await runPair(command(server === 'ours', device), client, port)) {
    if (!output.includes(`${iterations} iters in`) || output.includes('invalid data')) throw new Error(output);
  }
  return check && server === 'theirs' ? 'both' : 'ours';
}

/**
 * Runs a server and then, when it listens, its client.
 *
 * @param {string[]} server
 * @param {string[]} client
 * @param {number} port the TCP port between them
 * @returns what each has printed
 * @throws when one of them fails
 */
export async function runPair(server, client, port) {
  const serving = start(server);
  try {
    await Promise.race([
      listening(port),
      serving.then(() => {
        throw new Error('the server has ended before there was a client');
      }),
    ]);
    return await Promise.all([serving, start(client)]);
  } finally {
    serving.child.kill();
  }
}

/** Runs a program to its end. */
function start(/** @type {string[]} */ [program = '', ...args]) {
  const running = execute(program, args, { timeout: DEADLINE_MS, killSignal: 'SIGKILL' });
  const output = running.then(({ stdout, stderr }) => `${stdout}${stderr}`);
  // It is waited for later.
  output.catch(() => {});
  return Object.assign(output, { child: running.child });
}

/** Until somebody listens on a TCP port. A C program that writes into a pipe does not tell. */
async function listening(/** @type {number} */ port) {
  const listener = new RegExp(`:${port.toString(16).padStart(4, '0')} [0:]+ 0A `, 'i');
  for (const end = Date.now() + DEADLINE_MS; Date.now() < end; await sleep(50)) {
    const tables = await Promise.all(
      ['tcp', 'tcp6'].map((name) => readFile(`/proc/net/${name}`, 'latin1').catch(() => '')),
    );
    if (tables.some((table) => listener.test(table))) return;
  }
  throw new Error(`nobody listens on port ${port}`);
}
