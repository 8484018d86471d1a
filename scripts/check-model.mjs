// Builds the software device (test/mlx5-model) and runs its checks in every mode.
//
//   node scripts/check-model.mjs [--out <dir>] [--sanitize] [--mode thread|inline|poll] [--only <part of a name>]
//
// Exits 0 if all checks passed in all modes.
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const root = resolve(fileURLToPath(import.meta.url), '../..');
const { values } = parseArgs({
  options: {
    out: { type: 'string' },
    sanitize: { type: 'boolean', default: false },
    mode: { type: 'string', multiple: true, default: ['thread', 'inline', 'poll'] },
    only: { type: 'string', default: '' },
  },
});
const out = resolve(values.out ?? join(root, 'build', values.sanitize ? 'model-sanitized' : 'model'));

execFileSync(
  'make',
  ['-s', '-C', join(root, 'test/mlx5-model'), `OUT=${out}`, ...(values.sanitize ? ['SANITIZE=1'] : [])],
  { stdio: 'inherit' },
);

// The runtimes of the sanitizers have to come before everything else.
const runtimes = values.sanitize
  ? ['libasan.so', 'libubsan.so'].map((name) =>
      execFileSync('cc', [`-print-file-name=${name}`], { encoding: 'utf8' }).trim(),
    )
  : [];

let failed = false;
const directory = mkdtempSync(join(tmpdir(), 'mlx5-model-'));
try {
  for (const mode of values.mode) {
    console.log(`MLX5MODEL_MODE=${mode}`);
    const run = spawnSync(join(out, 'check'), values.only ? [values.only] : [], {
      stdio: 'inherit',
      timeout: 300_000,
      env: {
        ...process.env,
        MLX5MODEL_MODE: mode,
        MLX5MODEL_DIR: directory,
        LD_PRELOAD: [...runtimes, join(out, 'libmlx5model.so')].join(':'),
      },
    });
    if (run.signal) console.log(`ended by ${run.signal}`);
    failed ||= run.status !== 0;
  }
} finally {
  rmSync(directory, { recursive: true, force: true });
}
process.exitCode = failed ? 1 : 0;
