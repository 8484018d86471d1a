#!/usr/bin/env node
// Runs each program in examples/ to its end in the VM, on Soft-RoCE, as a reader would on a machine that has it.
//   node scripts/check-examples.mjs            compiles them, then runs all in one VM
//   node scripts/check-examples.mjs --inside   what runs in there

import { spawnSync } from 'node:child_process';
import { readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { CommandError, filesBelow, root, run, whenMain } from './shell.mjs';

/** Inside the root of the package, so that `import 'node-rdma'` is this package. */
const folder = 'build/examples';
const DEADLINE_MS = 60_000;

function compile() {
  rmSync(join(root, folder), { recursive: true, force: true });
  run(process.execPath, [
    'node_modules/typescript/bin/tsc',
    ...['--outDir', folder, '--rootDir', 'examples', '--target', 'es2022', '--lib', 'es2023,esnext.disposable'],
    ...['--module', 'nodenext', '--types', 'node', '--skipLibCheck', '--strict', '--ignoreConfig'],
    ...filesBelow('examples').filter((file) => file.endsWith('.ts')),
  ]);
}

function runAll() {
  const failed = readdirSync(join(root, folder)).filter((file) => {
    const { status, signal, stdout, stderr } = spawnSync(process.execPath, [join(root, folder, file)], {
      encoding: 'utf8',
      timeout: DEADLINE_MS,
    });
    console.log(`${status === 0 ? '✓' : '✗'} ${file}`);
    if (status !== 0) console.log(`${stdout}${stderr}ended with ${signal ?? `exit code ${status}`}`);
    return status !== 0;
  });
  if (failed.length > 0) throw new CommandError(`failed: ${failed.join(', ')}`);
}

await whenMain(import.meta.url, ([option]) => {
  if (option === '--inside') return runAll();
  compile();
  const inside = [process.execPath, join(root, 'scripts/check-examples.mjs'), '--inside'];
  process.stdout.write(run(process.execPath, ['dist/cli/main.js', 'vm', '--', ...inside]));
});
