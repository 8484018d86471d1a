#!/usr/bin/env node
// Runs each program in examples/ as a reader would: those that need no second process on the software device, all in the
// VM on Soft-RoCE, there also with ibv_rc_pingpong as the other side.
//   node scripts/check-examples.mjs            all
//   node scripts/check-examples.mjs --inside   what runs in the VM

import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { runPair } from '../examples/demo/interop.mjs';
import { CommandError, root, run, whenMain } from './shell.mjs';

const model = join(root, 'build/model/libmlx5model.so');
const PORT = 18515;

const ours = (name) => [process.execPath, join(root, 'examples', name)];
const withDevice = (device, command) => ['env', `NODE_RDMA_DEVICE=${device}`, ...command];

/** Programs that contain both sides, and what they print in the end. */
const whole = [
  { name: 'raw-verbs.mjs', prints: 'after 1000 writes the other side has 1000' },
  { name: 'events.mjs', prints: 'receive 4: message 5' },
  { name: 'datagram.mjs', prints: 'answer of 31 bytes: It is ' },
  { name: 'kv.mjs', prints: '3 clients have counted to 30' },
];

/** A server and its client, and what both print. */
const pairs = [
  {
    name: 'write.mjs',
    server: withDevice('rxe0', ours('write.mjs')),
    client: withDevice('rxe1', ours('write.mjs')),
    prints: ['written into my memory: Hello from the other side!', '26 bytes written'],
  },
  pingPong('ours', 'ours', '-e -c -n 20 -s 8192 -r 2'),
  pingPong('ours', 'theirs', '-c -n 5 -s 65537 -m 512'),
  pingPong('theirs', 'ours', '-e -c -n 20 -s 1 -r 1'),
];

function pingPong(server, client, flags) {
  const side = (who, device) => [
    ...(who === 'ours' ? ours('pingpong.mjs') : ['ibv_rc_pingpong', '-g', '1']),
    ...['-d', device, ...flags.split(' ')],
  ];
  const lines = { ours: 'bytes checked', theirs: 'iters in' };
  return {
    name: `pingpong.mjs ${flags}, ${server} as server, ${client} as client`,
    server: side(server, 'rxe0'),
    client: side(client, 'rxe1'),
    prints: [lines[server], lines[client]],
  };
}

const failed = [];

async function attempt(name, work) {
  const begin = performance.now();
  let complaint = '';
  try {
    await work();
  } catch (error) {
    complaint = `\n${error.message}`;
    failed.push(name);
  }
  const seconds = ((performance.now() - begin) / 1000).toFixed(1);
  console.log(`${complaint === '' ? '✓' : '✗'} ${name} ${seconds} s${complaint}`);
}

function expect(output, text) {
  if (!output.includes(text) || output.includes('invalid data')) throw new CommandError(`no '${text}' in:\n${output}`);
}

async function runWhole(where, devices, env) {
  for (const { name, prints } of whole) {
    await attempt(`${name} ${where}`, () => {
      const [program, ...args] = [...ours(name), ...devices];
      expect(run(program, args, { env: { ...process.env, ...env }, timeout: 120_000 }), prints);
    });
  }
}

async function runInside() {
  await runWhole('on rxe0 and rxe1', ['rxe0', 'rxe1']);
  for (const { name, server, client, prints } of pairs) {
    await attempt(name, async () => {
      const outputs = await runPair(server, [...client, '127.0.0.1'], PORT);
      outputs.forEach((output, side) => expect(output, prints[side]));
    });
  }
  await attempt('demo.mjs --checks-only', () => {
    const [program, ...args] = [...ours('demo.mjs'), '--checks-only', '--device', 'rxe0', '--device', 'rxe1'];
    run(program, args, { timeout: 180_000 });
  });
}

async function runAll() {
  // cm-ping.mjs runs beside rping in test/device/cm-interop.test.ts: its port is none that one can see. gpu-target.mjs needs
  // a device that registers DMA-BUFs: test/device/dmabuf-processes.test.ts.
  const covered = [
    'demo.mjs',
    'cm-ping.mjs',
    'gpu-target.mjs',
    ...whole.map(({ name }) => name),
    ...pairs.map(({ name }) => name.split(' ')[0]),
  ];
  for (const file of readdirSync(join(root, 'examples')).filter((name) => name.endsWith('.mjs'))) {
    if (!covered.includes(file)) failed.push(`${file}, which nothing here runs`);
  }
  run('make', ['-s', '-C', 'test/mlx5-model', `OUT=${join(root, 'build/model')}`, model]);
  await runWhole('on the software device', ['mlx5_0', 'mlx5_1'], { LD_PRELOAD: model });

  const inside = [process.execPath, join(root, 'scripts/check-examples.mjs'), '--inside'];
  await attempt('in the VM', () => {
    process.stdout.write(run(process.execPath, ['dist/cli/main.js', 'vm', '--', ...inside]));
  });
}

await whenMain(import.meta.url, async ([option]) => {
  await (option === '--inside' ? runInside() : runAll());
  if (failed.length > 0) throw new CommandError(`failed: ${failed.join(', ')}`);
});
