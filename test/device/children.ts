/** Programs that the tests run beside themselves: test/device/children/*.mjs, on the compiled package. */
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { DEADLINE_MS, deviceA, deviceB } from './fixture.ts';

const dist = resolve('dist/index.js');
if (!existsSync(dist)) throw new Error('dist/ is missing: node scripts/setup.mjs');

export interface Ended {
  code: number | null;
  signal: NodeJS.Signals | null;
  stdout: string;
  stderr: string;
}

export interface ChildOptions {
  /** Set in its environment; undefined takes a variable away. */
  env?: Record<string, string | undefined>;
  /** What it is started by, such as prlimit. */
  through?: readonly string[];
  /** Called with each piece of its output and a way to send it a signal. */
  onOutput?: (stdout: string, kill: (signal: NodeJS.Signals) => void) => void;
}

/** Path of a program or worker. */
export const childPath = (name: string, suffix = 'mjs'): string => resolve(`test/device/children/${name}.${suffix}`);

/** Runs a program to its end. One that does not end by itself is killed at the deadline, which shows as SIGKILL. */
export function runChild(name: string, args: readonly string[] = [], options: ChildOptions = {}): Promise<Ended> {
  const { env = {}, through = [], onOutput } = options;
  const command = [...through, process.execPath, '--expose-gc', childPath(name), ...args];
  const all = { ...process.env, DEVICE_A: deviceA, DEVICE_B: deviceB, ...env };
  // vitest's workers are told so by these; ours are plain programs.
  for (const key of ['NODE_OPTIONS', 'VITEST', 'VITEST_WORKER_ID', 'VITEST_POOL_ID'])
    delete all[key as keyof typeof all];
  return new Promise((resolve, reject) => {
    const child = spawn(command[0]!, command.slice(1), { env: all, stdio: ['ignore', 'pipe', 'pipe'] });
    const ended: Ended = { code: null, signal: null, stdout: '', stderr: '' };
    const timer = setTimeout(() => child.kill('SIGKILL'), 2 * DEADLINE_MS);
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      ended.stdout += text;
      onOutput?.(ended.stdout, (signal) => child.kill(signal));
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => (ended.stderr += text));
    child.on('error', reject);
    child.on('close', (code, signal) => {
      clearTimeout(timer);
      resolve({ ...ended, code, signal });
    });
  });
}
