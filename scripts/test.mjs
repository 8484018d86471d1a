#!/usr/bin/env node
// npm test: sets up, runs every check and every suite, and ends with one line, "N passed, N failed, N skipped".
//   node scripts/test.mjs                         everything
//   node scripts/test.mjs device asan             these steps, and what they need
//   node scripts/test.mjs device -t 'closes'      a step, with further arguments for vitest
//
// Each suite names the backend it needs with RDMA_TEST_REQUIRED=1, so that a missing one fails and does not skip.

import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, setPriority } from 'node:os';
import { delimiter, join } from 'node:path';
import { setup } from './setup.mjs';
import { filesBelow, root, run } from './shell.mjs';

const node = process.execPath;
const bin = (name) => join(root, 'node_modules', name);
const results = (step) => join(root, 'build/results', step);
const script = (name, ...args) => [node, join(root, 'scripts', `${name}.mjs`), ...args];

const model = join(root, 'build/model/libmlx5model.so');
const cSources = () =>
  [...filesBelow('native'), ...filesBelow('test/mlx5-model'), ...filesBelow('test/gpu-drivers')].filter((file) =>
    /\.(c|cc|h)$/.test(file),
  );

/** A suite of vitest; its counts come from the JSON that it writes. */
function suite(step, project, { more = [], ...rest } = {}) {
  const file = join(results(step), 'vitest.json');
  const vitest = [node, bin('vitest/vitest.mjs'), 'run', '--project', project, '--reporter=default', '--reporter=json'];
  return { ...rest, results: file, command: [...vitest, ...more, `--outputFile.json=${file}`] };
}

/**
 * Node reads them whenever it starts, which takes twice as long as all else of a start, and a second and more in an emulated
 * VM. Only pack speaks TLS, when it asks for packages.
 */
const withoutCertificates = { NODE_EXTRA_CA_CERTS: undefined };

const onModel = { RDMA_TEST_REQUIRED: '1', RDMA_TEST_BACKEND: 'model' };

/**
 * The steps, longest first. `builds` marks one that only makes what others need: it counts when it fails. `tool` is a
 * program without which the step is skipped: set-up has then said that this distribution lacks it. `vm` marks those that
 * run in a VM: two emulated machines at once take longer than one after the other.
 */
const steps = {
  image: { builds: true, command: [node, join(root, 'dist/cli/main.js'), 'vm', '--prepare'] },
  'gpu-drivers': {
    builds: true,
    command: ['make', '-C', 'test/gpu-drivers', `OUT=${join(root, 'build/gpu-drivers')}`],
  },
  model: { builds: true, command: ['make', '-C', 'test/mlx5-model', `OUT=${join(root, 'build/model')}`] },
  'vm-tests': { builds: true, command: script('vm-tests') },
  rxe: suite('rxe', 'rxe', { vm: true, needs: ['image', 'gpu-drivers', 'vm-tests'] }),
  vm: suite('vm', 'vm', { vm: true, needs: ['image'], env: () => ({ RDMA_TEST_REQUIRED: '1' }) }),
  // With the compiler that Debian's kernel was made by; other distributions have another one, and other packages of kernels.
  drivers: {
    builds: true,
    tool: 'gcc-12',
    needs: ['image'],
    command: [node, join(root, 'dist/cli/main.js'), 'vm', '--prepare', '--rxe-dmabuf', '--siw'],
  },
  dmabuf: suite('dmabuf', 'dmabuf', { vm: true, tool: 'gcc-12', needs: ['drivers', 'gpu-drivers', 'vm-tests'] }),
  siw: suite('siw', 'siw', { vm: true, tool: 'gcc-12', needs: ['drivers', 'vm-tests'] }),
  sanitized: { builds: true, command: script('build', '--sanitize') },
  tidy: { command: script('tidy'), tool: 'clang-tidy-14' },
  // The whole suite runs with the sanitizers, and in the VM without them. Here without them: leaks in ten thousand rounds,
  // all ways to post by libmlx5; the examples; and that each benchmark runs.
  device: suite('device', 'device', {
    needs: ['model', 'gpu-drivers'],
    more: ['leak', 'queue-pair', 'endpoint-hold', 'examples', 'bench'].map((name) => `test/device/${name}`),
    env: () => ({ ...onModel, LD_PRELOAD: model }),
  }),
  asan: suite('asan', 'device', {
    needs: ['model', 'gpu-drivers', 'sanitized'],
    env: () => ({
      ...onModel,
      NODE_RDMA_ADDON: join(root, 'build/asan/node_rdma.node'),
      // The runtime must come first of all. Leaks are counted by the tests; V8 frees nothing at exit.
      LD_PRELOAD: [run('c++', ['-print-file-name=libasan.so']).trim(), model].join(delimiter),
      ASAN_OPTIONS: 'detect_leaks=0:abort_on_error=1',
      UBSAN_OPTIONS: 'print_stacktrace=1',
    }),
  }),
  'model-check': { needs: ['model'], command: script('check-model') },
  pack: { command: script('check-pack'), env: () => ({ NODE_EXTRA_CA_CERTS: process.env.NODE_EXTRA_CA_CERTS }) },
  types: { command: [node, bin('typescript/bin/tsc'), '-p', 'tsconfig.check.json'] },
  docs: { command: [node, bin('typedoc/bin/typedoc'), '--emit', 'none'] },
  unit: suite('unit', 'unit'),
  // What perf writes is measured on the model.
  pages: suite('pages', 'pages', {
    tool: 'chromium',
    needs: ['model'],
    env: () => ({ ...onModel, LD_PRELOAD: model }),
  }),
  loader: suite('loader', 'loader', {
    needs: ['model'],
    // A machine without rdma-core, as far as the addon can tell.
    env: () => ({
      NODE_RDMA_LIBIBVERBS: '/nonexistent/libibverbs.so.1',
      NODE_RDMA_LIBRDMACM: '/nonexistent/librdmacm.so.1',
      NODE_RDMA_LIBMLX5: '/nonexistent/libmlx5.so.1',
      NODE_RDMA_LIBCUDA: '/nonexistent/libcuda.so.1',
      NODE_RDMA_LIBHSA: '/nonexistent/libhsa-runtime64.so.1',
    }),
  }),
  biome: { command: [node, bin('@biomejs/biome/bin/biome'), 'ci', '--colors=off', '.'] },
  'clang-format': {
    tool: 'clang-format-14',
    command: () => ['clang-format-14', '--dry-run', '-Werror', ...cSources()],
  },
  gen: { command: script('gen', '--check') },
  manual: { command: script('manual', '--check') },
  floor: { command: script('check-floor') },
};

/** No step takes this long unless it hangs. */
const DEADLINE_MS = 900_000;

const children = new Set();

/**
 * The suites in a VM follow each other, and nothing is over before them: all else takes the processors that they leave. Under
 * the scheduler's autogroups a session has a nice value of its own, and only that counts.
 */
function givesWay(pid) {
  const nice = 10;
  try {
    setPriority(pid, nice);
    writeFileSync(`/proc/${pid}/autogroup`, String(nice));
  } catch (error) {
    // Who is not root may do so ten times a second. Else it has ended, or this kernel has no autogroups.
    if (error.code === 'EAGAIN') setTimeout(givesWay, 150, pid).unref();
  }
}

const isUrgent = (name) => steps[name].vm === true || steps.rxe.needs.includes(name);

/** Runs one command to its end. Its output is kept, or shown at once when `live`. */
function execute(command, env, { live, urgent }) {
  return new Promise((resolve) => {
    const child = spawn(command[0], command.slice(1), {
      cwd: root,
      env: { ...process.env, ...withoutCertificates, ...env },
      stdio: live ? ['inherit', 'inherit', 'inherit'] : ['ignore', 'pipe', 'pipe'],
      // A group of its own, so that all of it can be ended: vitest's workers, QEMU.
      detached: !live,
    });
    let output = '';
    for (const stream of [child.stdout, child.stderr])
      stream?.setEncoding('utf8').on('data', (text) => (output += text));
    children.add(child);
    if (!live && !urgent && child.pid !== undefined) givesWay(child.pid);
    const timer = setTimeout(() => {
      output += `\nended after ${DEADLINE_MS / 1000} s`;
      end(child);
    }, DEADLINE_MS);
    const finish = (ok, more = '') => {
      clearTimeout(timer);
      children.delete(child);
      resolve({ ok, output: output + more });
    };
    child.on('error', (error) => finish(false, error.message));
    child.on('close', (code, signal) =>
      finish(code === 0, code === 0 ? '' : `\nended with ${signal ?? `exit code ${code}`}`),
    );
  });
}

/** Ends a child and its group: first with a chance to end its own children, QEMU above all. */
function end(child) {
  signal(child, 'SIGTERM');
  setTimeout(() => signal(child, 'SIGKILL'), 5_000).unref();
}

function signal(child, name) {
  if (!children.has(child)) return;
  try {
    process.kill(-child.pid, name);
  } catch {
    // Not a group of its own: it is shown live.
    child.kill(name);
  }
}

/** What a suite did. Nothing executed is a failure, and so is a bad end after good tests: a crashed worker, say. */
function countSuite(file, ok) {
  if (!existsSync(file)) return { passed: 0, failed: 1, skipped: 0 };
  const report = JSON.parse(readFileSync(file, 'utf8'));
  const broken = report.testResults.filter(
    ({ status, assertionResults }) => status === 'failed' && assertionResults.length === 0,
  );
  const failed = report.numFailedTests + broken.length;
  const isEmpty = report.numPassedTests + failed === 0;
  return {
    passed: report.numPassedTests,
    failed: failed === 0 && (!ok || isEmpty) ? 1 : failed,
    skipped: report.numPendingTests + report.numTodoTests,
  };
}

function hasTool(name) {
  return process.env.PATH.split(delimiter).some((folder) => existsSync(join(folder, name)));
}

const total = { passed: 0, failed: 0, skipped: 0 };

function report(mark, name, ms, detail, counts) {
  for (const key of Object.keys(total)) total[key] += counts[key] ?? 0;
  process.stdout.write(`${mark} ${name.padEnd(13)}${`${(ms / 1000).toFixed(1)} s`.padStart(8)}  ${detail}\n`);
}

async function runStep(name, extra, live) {
  const step = steps[name];
  if (step.tool !== undefined && !hasTool(step.tool)) {
    report('-', name, 0, `skipped: no ${step.tool} here`, { skipped: 1 });
    return true;
  }
  const command = typeof step.command === 'function' ? step.command() : step.command;
  if (step.results !== undefined) {
    rmSync(step.results, { force: true });
    mkdirSync(results(name), { recursive: true });
  }
  const begin = performance.now();
  const { ok, output } = await execute(step.results === undefined ? command : [...command, ...extra], step.env?.(), {
    live,
    urgent: isUrgent(name),
  });
  const ms = performance.now() - begin;

  const whole = step.builds ? { failed: ok ? 0 : 1 } : { passed: ok ? 1 : 0, failed: ok ? 0 : 1 };
  const counts = step.results === undefined ? whole : countSuite(step.results, ok);
  const isGood = counts.failed === 0;
  const detail =
    step.results === undefined ? '' : `${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped`;
  report(isGood ? '✓' : '✗', name, ms, detail, counts);
  if (!isGood && !live) process.stdout.write(`${output.trim()}\n\n`);
  return isGood;
}

/** The steps named and what they need, in the order of the table. */
function closure(names) {
  const wanted = new Set();
  const add = (name) => {
    if (steps[name] === undefined) throw new Error(`no step ${name}; there are ${Object.keys(steps).join(', ')}`);
    for (const need of steps[name].needs ?? []) add(need);
    wanted.add(name);
  };
  names.forEach(add);
  return Object.keys(steps).filter((name) => wanted.has(name));
}

/** As many at once as there are cores: each step starts when what it needs has ended. */
async function runSteps(names, extra, live) {
  const waiting = [...names];
  const done = new Map();
  const running = new Map();
  while (waiting.length + running.size > 0) {
    for (const name of [...waiting]) {
      const { needs = [] } = steps[name];
      if (needs.some((need) => done.get(need) === false)) {
        waiting.splice(waiting.indexOf(name), 1);
        done.set(name, false);
        report('✗', name, 0, 'not run: what it needs has failed', { failed: 1 });
        continue;
      }
      const isReady = needs.every((need) => done.has(need));
      const isSecondVm = steps[name].vm && [...running.keys()].some((other) => steps[other].vm);
      if (!isReady || isSecondVm || running.size >= availableParallelism()) continue;
      waiting.splice(waiting.indexOf(name), 1);
      running.set(
        name,
        runStep(name, extra, live).then((isGood) => {
          done.set(name, isGood);
          running.delete(name);
        }),
      );
    }
    if (running.size > 0) await Promise.race(running.values());
  }
}

for (const name of ['SIGINT', 'SIGTERM']) {
  process.once(name, () => {
    for (const child of children) end(child);
    process.exit(1);
  });
}

const args = process.argv.slice(2);
const optionsAt = args.findIndex((arg) => arg.startsWith('-'));
const named = optionsAt === -1 ? args : args.slice(0, optionsAt);
const extra = optionsAt === -1 ? [] : args.slice(optionsAt);
const begin = performance.now();
try {
  const names = closure(named.length > 0 ? named : Object.keys(steps));
  await setup();
  report('✓', 'set-up', performance.now() - begin, '', {});
  await runSteps(names, extra, named.length === 1);
} catch (error) {
  report('✗', 'set-up', performance.now() - begin, '', { failed: 1 });
  process.stdout.write(`${error.message}\n\n`);
}
if (total.failed > 0) process.exitCode = 1;
process.stdout.write(`${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped\n`);
