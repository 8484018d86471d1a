import { defineConfig } from 'vitest/config';
import type { VmDrivers } from './lib/vm/index.ts';
import { vmPool } from './test/vm-pool.ts';

// A suite for each place that tests run in. scripts/test.mjs starts them with the backend that each needs.
const suite = (name: string, options: object = {}) => ({
  extends: true as const,
  test: { name, include: [`test/${name}/**/*.test.ts`], ...options },
});

// Those with a device share it, and it costs more to load their modules than to run them.
const onDevice = { fileParallelism: false, isolate: false };

// In an emulated VM it would take half a minute to compile them, too: there they are what scripts/vm-tests.mjs has made of
// them, which Node loads by itself.
const inVm = (name: string, files: string, env: Record<string, string>, drivers: VmDrivers = {}) =>
  suite(name, {
    ...onDevice,
    include: [`build/vm-tests/test/${files}.test.ts.js`],
    // What is refused before any device is asked; and more of messages and calls, of which messages.test.ts and
    // messages-wire.test.ts have what a device can do to them.
    exclude: ['arguments', 'binding', 'messages-memory', 'rpc'].map(
      (file) => `build/vm-tests/test/device/${file}.test.ts.js`,
    ),
    experimental: { viteModuleRunner: false, nodeLoader: false },
    // It has no processors to spare for threads of V8.
    execArgv: ['--expose-gc', '--single-threaded'],
    pool: vmPool({ RDMA_TEST_REQUIRED: '1', RDMA_TEST_BACKEND: 'rxe', ...env }, drivers),
    // The end of the VM.
    teardownTimeout: 60_000,
  });

export default defineConfig({
  // Node 20 has Symbol.dispose but not the `using` statement: lower it.
  oxc: { target: 'node20' },
  test: {
    pool: 'forks',
    // Lifetime tests collect garbage when they want to.
    execArgv: ['--expose-gc'],
    // A test that passes at the second try has found a race: that is a failure.
    retry: 0,
    // A deadline against hanging; under the sanitizers and in an emulated VM everything takes many times as long.
    testTimeout: 60_000,
    hookTimeout: 60_000,
    projects: [
      suite('unit', { isolate: false }),
      suite('loader'),
      suite('device', onDevice),
      // On Soft-RoCE, also with a foreign program on the other end of the wire.
      inVm('rxe', '{device,interop}/**/*', {}),
      inVm('dmabuf', 'device/{dmabuf,gpu}*', { RDMA_TEST_DMABUF: '1' }, { rxeDmabuf: true }),
      // What is different on iWARP, and what iWARP can do of the connection manager's.
      inVm('siw', 'device/{siw,cm-addresses,cm-interop}', { RDMA_TEST_BACKEND: 'siw' }, { siw: true }),
      suite('vm', { fileParallelism: false }),
      // In a browser.
      suite('pages'),
    ],
  },
});
