#!/usr/bin/env node
// dist/: what is published of lib/. A module for each entry point, with what they share beside them, rather than one for
// each file: the 150 files take three times as long to import. Declarations stay as they are, a file each.

import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { contentHash, filesBelow, root, run, say, whenChanged, whenMain } from './shell.mjs';

// Those of package.json; and what scripts, and tests in the VM, use.
export const entries = [
  'index',
  'gpu/index',
  'observe/index',
  'roce/index',
  'sim/index',
  'vm/index',
  'cli/main',
  'cli/program',
  'copy/channel',
  'copy/client',
  'copy/connection',
  'copy/folder',
  'copy/server',
  'copy/transfer',
  'endpoint/connect',
  'endpoint/messages',
  'native/binding',
  'perf/control',
  'perf/measure',
  'perf/perf',
  'perf/ping',
  'perf/pingpong',
  'plot/chart',
  'verbs/flow-spec',
];

export function buildDist() {
  const inputs = [...filesBelow('lib'), 'tsconfig.json', 'package-lock.json', 'scripts/dist.mjs'];
  return whenChanged('dist/.built', contentHash(inputs), async () => {
    say('setup: dist/, since lib/ has changed');
    rmSync(join(root, 'dist'), { recursive: true, force: true });
    run(process.execPath, ['node_modules/typescript/bin/tsc', '-p', 'tsconfig.json']);
    // Not before npm ci.
    const { rolldown } = await import('rolldown');
    const bundle = await rolldown({
      cwd: root,
      input: Object.fromEntries(entries.map((name) => [name, `lib/${name}.ts`])),
      platform: 'node',
      external: (id) => !/^[./]/.test(id),
    });
    // As deep as the sources: package.json and the addon are found from there.
    await bundle.write({ dir: 'dist', chunkFileNames: 'chunks/[name]-[hash].js', sourcemap: true, keepNames: true });
    await bundle.close();
  });
}

await whenMain(import.meta.url, buildDist);
