#!/usr/bin/env node
// clang-tidy over native/: over what the compiler is given, one per core, remembering what was clean. It is looked at again
// when a file of it, a header of ours that it includes, the checks or the compiler's flags have changed.

import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join, relative } from 'node:path';
import { configureTidy } from './build.mjs';
import { CommandError, contentHash, root, say, whenMain } from './shell.mjs';

const cache = join(root, '.cache/tidy');

/** What the compiler is given, and all of native/ that it includes. */
function withIncludes(file, seen = new Set()) {
  if (seen.has(file) || !existsSync(join(root, file))) return seen;
  seen.add(file);
  for (const [, name] of readFileSync(join(root, file), 'utf8').matchAll(/^#include "(.*)"/gm)) {
    withIncludes(join('native', name), seen);
  }
  return seen;
}

const analyzer = (...args) => args.map((arg) => `--extra-arg=${arg}`);
const OPTIONS = [
  // Its files are included into what the compiler is given.
  ...analyzer('-Xclang', '-analyzer-opt-analyze-headers'),
  // It goes through each function in so many steps at the most: with its own limit of 225,000 it takes many times as
  // long, nearly all of it in the headers of Node-API.
  ...analyzer('-Xclang', '-analyzer-config', '-Xclang', 'max-nodes=5000'),
];

function tidy(file) {
  return new Promise((resolve) => {
    execFile('clang-tidy-14', ['-p', 'build/cmake', '--quiet', ...OPTIONS, file], { cwd: root }, (error, stdout) => {
      resolve(error === null ? undefined : stdout || error.message);
    });
  });
}

await whenMain(import.meta.url, async () => {
  await configureTidy();
  mkdirSync(cache, { recursive: true });
  const flags = readFileSync(join(root, 'CMakeLists.txt'), 'utf8') + OPTIONS;
  const todo = JSON.parse(readFileSync(join(root, 'build/cmake/compile_commands.json'), 'utf8'))
    .map(({ file }) => relative(root, file))
    .map((file) => ({ file, stamp: join(cache, contentHash([...withIncludes(file), '.clang-tidy'], flags)) }))
    .filter(({ stamp }) => !existsSync(stamp));
  if (todo.length > 0) say(`tidy: ${todo.length} units`);

  const faults = [];
  const worker = async () => {
    for (let next = todo.shift(); next !== undefined; next = todo.shift()) {
      const fault = await tidy(next.file);
      if (fault === undefined) writeFileSync(next.stamp, '');
      else faults.push(fault);
    }
  };
  await Promise.all(Array.from({ length: availableParallelism() }, worker));
  if (faults.length > 0) throw new CommandError(faults.join('\n'));
});
