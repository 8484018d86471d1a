#!/usr/bin/env node
// Makes a clean clone ready to use: system packages, npm packages, the addon, the compiled TypeScript, and on request the
// VM. Each step looks first and does nothing when nothing is missing.
//   node scripts/setup.mjs [--vm]

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { build } from './build.mjs';
import { buildDist } from './dist.mjs';
import { CommandError, root, run, say, whenMain } from './shell.mjs';

const qemu = process.arch === 'arm64' ? 'qemu-system-arm' : 'qemu-system-x86';

/** Debian and Ubuntu packages, by what they are for. */
export const packages = {
  build: ['g++', 'make', 'cmake', 'python3', 'pkg-config', 'libibverbs-dev', 'librdmacm-dev'],
  // The library and its providers at run time, the VM that stands in for hardware, and the foreign peers of the tests.
  run: [
    ...[
      'rdma-core',
      'ibverbs-providers',
      'ibverbs-utils',
      'rdmacm-utils',
      'perftest',
      'python3-pyverbs',
      'tcpdump',
      'tshark',
      'ethtool',
      'zsh',
    ],
    ...[qemu, 'busybox-static', 'cpio', 'kmod', 'xz-utils', 'zstd', 'iproute2'],
  ],
  // Named with their version: another one formats and judges differently. The browser is to look at our pages.
  check: ['clang-format-14', 'clang-tidy-14', 'chromium'],
};

/**
 * Sets up what is asked for and missing.
 *
 * @param {object} [options]
 * @param {boolean | (keyof typeof packages)[]} [options.system] the system packages, all or by group
 * @param {boolean} [options.npm] the npm packages
 * @param {boolean} [options.native] the addon
 * @param {boolean} [options.ts] dist/
 * @param {boolean} [options.vm] kernel and initrd of the VM, which otherwise come with its first boot
 */
export async function setup({ system = true, npm = true, native = true, ts = true, vm = false } = {}) {
  if (system) setUpSystem(system === true ? Object.keys(packages) : system);
  if (npm) setUpNpm();
  if (native) await build();
  if (ts) await buildDist();
  if (vm) run(process.execPath, ['dist/cli/main.js', 'vm', '--prepare'], { stdio: ['ignore', 2, 2] });
}

function setUpSystem(groups) {
  const wanted = groups.flatMap((group) => packages[group]);
  const missing = missingPackages(wanted);
  if (missing === undefined) {
    say(`setup: this is not Debian or Ubuntu. Please see to what these packages hold there: ${wanted.join(' ')}`);
    return;
  }
  if (missing.length === 0) return;

  const known = knownPackages(missing);
  const isListed = readdirSync('/var/lib/apt/lists').some((name) => name.includes('_Packages'));
  if (!isListed || missing.some((name) => !known.includes(name) && !packages.check.includes(name))) {
    apt(['update'], 'to learn where the packages are');
    known.splice(0, known.length, ...knownPackages(missing));
  }
  const unknown = missing.filter((name) => !known.includes(name));
  const needed = unknown.filter((name) => !packages.check.includes(name));
  if (needed.length > 0) throw new CommandError(`setup: this distribution has no package ${needed.join(', ')}`);
  if (unknown.length > 0)
    say(`setup: this distribution has no ${unknown.join(', ')}: the checks that use it will be skipped`);
  if (known.length === 0) return;

  const install = ['install', '-y', '--no-install-recommends', ...known];
  const reason = 'to build, to run in a VM, and to check';
  try {
    apt(install, reason);
  } catch (error) {
    // The archive moves on: an old list names files that are gone.
    if (!/404|Unable to fetch|Failed to fetch/.test(error.message)) throw error;
    apt(['update'], 'since its lists are out of date');
    apt(install, reason);
  }
}

/** Which of these packages are not installed; undefined where there is no dpkg. */
function missingPackages(names) {
  let output;
  try {
    output = run('sh', [
      '-c',
      'command -v apt-get >/dev/null && { dpkg-query -W -f "$0" "$@" 2>/dev/null || true; }',
      // biome-ignore lint/suspicious/noTemplateCurlyInString: dpkg-query's own syntax
      '${Package} ${db:Status-Status}\n',
      ...names,
    ]);
  } catch {
    return undefined;
  }
  const installed = new Set(
    output
      .split('\n')
      .filter((line) => line.endsWith(' installed'))
      .map((line) => line.split(' ')[0]),
  );
  return names.filter((name) => !installed.has(name));
}

/** Which of these packages apt could install. */
function knownPackages(names) {
  const output = run('sh', ['-c', 'apt-cache show --no-all-versions "$@" 2>/dev/null || true', 'sh', ...names]);
  const known = new Set([...output.matchAll(/^Package: (.*)$/gm)].map(([, name]) => name));
  return names.filter((name) => known.has(name));
}

function apt(args, why) {
  const line = `apt-get ${args.join(' ')}`;
  say(`setup: ${line} (${why})`);
  const isRoot = process.getuid() === 0;
  try {
    run(isRoot ? 'env' : 'sudo', [
      ...(isRoot ? [] : ['-n', 'env']),
      // Without this tshark asks a question.
      'DEBIAN_FRONTEND=noninteractive',
      ...['apt-get', '-qq', '-o', 'Dpkg::Use-Pty=0', ...args],
    ]);
  } catch (error) {
    if (isRoot || !/sudo|ENOENT/.test(error.message)) throw error;
    throw new CommandError(
      `setup: root is needed here, and sudo would ask for a password. Type this, then try again:\n  sudo ${line}`,
    );
  }
}

/** npm keeps what it has installed in a lock file of its own, so no stamp of ours can be wrong. */
function setUpNpm() {
  const wanted = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8')).packages;
  let installed = {};
  try {
    installed = JSON.parse(readFileSync(join(root, 'node_modules/.package-lock.json'), 'utf8')).packages;
  } catch {}
  const isSettled = Object.entries(wanted).every(
    // Optional packages are those of other platforms.
    ([path, { version, optional }]) =>
      path === '' || (installed[path]?.version ?? (optional ? version : undefined)) === version,
  );
  if (isSettled) return;
  say('setup: npm ci, since node_modules differs from package-lock.json');
  // The only script that would run is our own install script, and what it builds is built next.
  run('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund']);
}

await whenMain(import.meta.url, (args) => setup({ vm: args.includes('--vm') }));
