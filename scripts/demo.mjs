#!/usr/bin/env node
// npm run demo: sets up, then runs examples/demo.mjs on this machine's RDMA device, or in the VM where there is none.
//   npm run demo                              the first usable device, or the VM
//   npm run demo -- --device NAME             this device; given twice: one for each end
//   npm run demo -- --vm                      the VM, whatever devices there are
//   npm run demo -- --json                    results as JSON on stdout

import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { setup } from './setup.mjs';
import { CommandError, root, say, whenMain } from './shell.mjs';

const job = join(root, 'examples/demo.mjs');

await whenMain(import.meta.url, async (args) => {
  const { device, vm, json } = parseFlags(args);
  const begin = performance.now();
  await setup({ system: ['build', 'run'] });
  const options = json ? ['--json'] : [];
  process.exitCode =
    vm || (device.length === 0 && !(await hasDevice()))
      ? await runInside(options)
      : await runHere([...device.flatMap((name) => ['--device', name]), ...options]);
  say(`demo: done in ${((performance.now() - begin) / 1000).toFixed(1)} s`);
});

function parseFlags(args) {
  try {
    const { values } = parseArgs({
      args,
      options: {
        device: { type: 'string', multiple: true, default: [] },
        vm: { type: 'boolean', default: false },
        json: { type: 'boolean', default: false },
      },
    });
    return values;
  } catch (error) {
    throw new CommandError(`demo: ${error.message}`);
  }
}

// What was just built is imported only now.
async function hasDevice() {
  const { isUsable, reportDevices } = await import('../examples/demo/devices.mjs');
  return reportDevices().some(isUsable);
}

function runHere(options) {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [job, ...options], { stdio: 'inherit' });
    child.on('error', reject);
    child.on('close', (code) => resolve(code ?? 1));
  });
}

async function runInside(options) {
  const { runInVm, VmError } = await import('../dist/vm/index.js');
  say('demo: no RDMA device is used here: the VM with Soft-RoCE starts');
  const abort = new AbortController();
  for (const name of ['SIGINT', 'SIGTERM']) process.once(name, () => abort.abort(new CommandError(`demo: ${name}`)));
  try {
    const { code, bootMs, accel } = await runInVm({
      command: process.execPath,
      args: [job, '--device', 'rxe0', '--device', 'rxe1', ...options],
      cwd: root,
      // The guest writes into a pipe, and cannot see where it ends.
      env: { ...process.env, ...(process.stdout.isTTY && process.stdout.hasColors() && { FORCE_COLOR: '1' }) },
      timeoutMs: 600_000,
      signal: abort.signal,
      onProgress: (text) => say(`demo: ${text}`),
    });
    say(`demo: the VM (${accel}) took ${(bootMs / 1000).toFixed(1)} s to start`);
    return code;
  } catch (error) {
    throw error instanceof VmError ? new CommandError(`demo: ${error.code}: ${error.message}`) : error;
  }
}
