import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';

// A suite for each place that tests run in. scripts/test.mjs starts them with the backend that each needs.
const suite = (name: string, options: object = {}) => ({
  extends: true as const,
  test: { name, include: [`test/${name}/**/*.test.ts`], ...options },
});

// In an emulated VM it takes minutes to compile lib/: there the tests use what is built of it.
const built = {
  name: 'dist',
  enforce: 'pre' as const,
  resolveId(id: string) {
    const [, path] = /\/lib\/(.*)\.ts$/.exec(id) ?? [];
    if (path === undefined || process.env.NODE_RDMA_VM === undefined) return null;
    return { id: fileURLToPath(new URL(`dist/${path}.js`, import.meta.url)), external: true };
  },
};

export default defineConfig({
  plugins: [built],
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
      // They share one device, or one VM.
      suite('device', { fileParallelism: false }),
      // A foreign program on the other end of the wire: in the VM only.
      suite('interop', { fileParallelism: false }),
      suite('vm', { fileParallelism: false }),
      // In a browser.
      suite('pages'),
    ],
  },
});
