#!/usr/bin/env node
// build/vm-tests/: the tests that run in the VM, compiled, on dist/ in place of lib/. The name of a test file keeps its .ts,
// so that it can be chosen in the VM by the path that it has here.

import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { rolldown } from 'rolldown';
import { entries } from './dist.mjs';
import { contentHash, filesBelow, root, say, whenChanged, whenMain } from './shell.mjs';

const out = 'build/vm-tests';

/** Modules of lib/ are those of dist/: what scripts/dist.mjs makes an entry of. */
const builtLibrary = {
  name: 'built-library',
  resolveId(id, from) {
    const [, path] = /\/lib\/(.*)\.ts$/.exec(id) ?? [];
    if (path !== undefined && !entries.includes(path)) {
      throw new Error(`${from} imports lib/${path}.ts, which is no entry of scripts/dist.mjs`);
    }
    return path === undefined ? null : { id: join(root, `dist/${path}.js`), external: 'absolute' };
  },
};

async function buildVmTests() {
  // They have pieces of other suites, too.
  const sources = filesBelow('test').filter((path) => path.endsWith('.ts'));
  const inputs = [...sources, 'package-lock.json', 'scripts/dist.mjs', 'scripts/vm-tests.mjs'];
  // The modules name dist/ by its whole path.
  return whenChanged(`${out}/.built`, contentHash(inputs, root), async () => {
    say('setup: the tests for the VM, since they have changed');
    rmSync(join(root, out), { recursive: true, force: true });
    const bundle = await rolldown({
      cwd: root,
      input: Object.fromEntries(
        sources
          .filter((path) => /^test\/((device|interop)\/.*\.test|vm-worker)\.ts$/.test(path))
          .map((path) => [path, path]),
      ),
      platform: 'node',
      // It has Symbol.dispose but not the `using` statement.
      transform: { target: 'node20' },
      // The helpers that `using` is lowered to are in rolldown itself.
      external: (id) => !/^([./\0]|@oxc-project)/.test(id),
      plugins: [builtLibrary],
    });
    await bundle.write({ dir: out, sourcemap: 'inline', keepNames: true });
    await bundle.close();
  });
}

await whenMain(import.meta.url, buildVmTests);
