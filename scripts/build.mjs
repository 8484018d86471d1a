#!/usr/bin/env node
// Builds the addon.
//   node scripts/build.mjs              build/Release/node_rdma.node, by node-gyp: what users get
//   node scripts/build.mjs --sanitize   build/asan/node_rdma.node, by CMake, with AddressSanitizer and UBSan
//   node scripts/build.mjs --prebuild   prebuilds/<platform>/, by prebuildify: what is published; made anew from nothing
//   node scripts/build.mjs --tidy       build/cmake/compile_commands.json, by CMake, for clang-tidy

import { existsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { dirname, join } from 'node:path';
import { contentHash, filesBelow, root, run, say, whenChanged, whenMain } from './shell.mjs';

const nodeGyp = 'node_modules/node-gyp/bin/node-gyp.js';

/** Node's own headers where they are installed beside it; else node-gyp fetches them into build/headers. */
const prefix = dirname(dirname(process.execPath));
const headers = existsSync(join(prefix, 'include/node/node_api.h'))
  ? { options: ['--nodedir', prefix], include: join(prefix, 'include/node') }
  : {
      options: ['--devdir', join(root, 'build/headers')],
      include: join(root, 'build/headers', process.versions.node, 'include/node'),
    };

const inputs = () =>
  contentHash(['binding.gyp', 'CMakeLists.txt', ...filesBelow('native')], process.version, process.arch);

function timed(what, work) {
  const begin = Date.now();
  say(`build: ${what}`);
  work();
  say(`build: done in ${((Date.now() - begin) / 1000).toFixed(1)} s`);
}

export function build() {
  return whenChanged('build/Release/.built', inputs(), () =>
    timed('the addon, since native/ has changed', () =>
      run(
        process.execPath,
        [nodeGyp, ...['configure', 'build', '--release', '-j', String(availableParallelism())], ...headers.options],
        // Our own builds take a warning for an error. A user's does not: compilers to come will have new ones.
        { env: { ...process.env, CXXFLAGS: `${process.env.CXXFLAGS ?? ''} -Werror` } },
      ),
    ),
  );
}

function cmake(folder, ...settings) {
  if (!existsSync(headers.include)) run(process.execPath, [nodeGyp, 'install', ...headers.options]);
  run('cmake', ['-S', '.', '-B', folder, `-DNODE_INCLUDE_DIR=${headers.include}`, ...settings]);
}

export function buildSanitized() {
  return whenChanged('build/asan/.built', inputs(), () =>
    timed('the addon with sanitizers, since native/ has changed', () => {
      cmake('build/asan', '-DRDMA_SANITIZE=ON');
      run('cmake', ['--build', 'build/asan', '--parallel', String(availableParallelism())]);
    }),
  );
}

/** Writes build/cmake/compile_commands.json. */
export function configureTidy() {
  const inputs = contentHash(['CMakeLists.txt'], filesBelow('native').join(' '), process.version);
  return whenChanged('build/cmake/.configured', inputs, () =>
    cmake('build/cmake', '-DCMAKE_EXPORT_COMPILE_COMMANDS=ON'),
  );
}

function prebuild() {
  timed('the prebuilt addon for publishing', () =>
    run(process.execPath, ['node_modules/prebuildify/bin.js', '--napi', '--strip', '--tag-libc'], {
      env: { ...process.env, ...(headers.options[0] === '--nodedir' && { npm_config_nodedir: prefix }) },
    }),
  );
}

await whenMain(import.meta.url, async ([option]) => {
  const builds = new Map([
    [undefined, build],
    ['--sanitize', buildSanitized],
    ['--prebuild', prebuild],
    ['--tidy', configureTidy],
  ]);
  const chosen = builds.get(option);
  if (chosen === undefined) throw new Error(`unknown option ${option}`);
  await chosen();
});
