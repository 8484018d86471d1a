import { defineConfig } from 'vitest/config';

// A suite for each place that tests run in. scripts/test.mjs starts them with the backend that each needs.
const suite = (name: string, options: object = {}) => ({
  extends: true as const,
  test: { name, include: [`test/${name}/**/*.test.ts`], ...options },
});

// Those with a device share it, and it costs more to load their modules than to run them. In an emulated VM it would take
// half a minute to compile them, too: there they are what scripts/vm-tests.mjs has made of them, which Node loads by itself.
const onDevice = (name: string) =>
  suite(name, {
    fileParallelism: false,
    isolate: false,
    ...(process.env.NODE_RDMA_VM !== undefined && {
      include: [`build/vm-tests/test/${name}/**/*.test.ts.js`],
      experimental: { viteModuleRunner: false, nodeLoader: false },
    }),
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
      suite('unit'),
      suite('loader'),
      onDevice('device'),
      // A foreign program on the other end of the wire: in the VM only.
      onDevice('interop'),
      suite('vm', { fileParallelism: false }),
      // In a browser.
      suite('pages'),
    ],
  },
});
