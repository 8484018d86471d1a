/** Runs the command node-rdma as a user would, to its end. */
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

export const main = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url));
if (!existsSync(main)) throw new Error('dist/ is missing: node scripts/setup.mjs');

export interface Ended {
  code: number | null;
  signal: NodeJS.Signals | null;
  stdout: string;
  stderr: string;
}

export interface Started extends Ended {
  child: ChildProcess;
  ended: Promise<Ended>;
  /** Waits until stdout has that text, or matches. */
  untilOutput(text: string | RegExp): Promise<void>;
}

export interface CommandOptions {
  env?: Record<string, string | undefined>;
  input?: string | Buffer;
  /** A shell line in which `node-rdma` is the command. */
  shell?: string;
}

// Emulated, on a busy machine, each start takes many seconds.
const DEADLINE_MS = 280_000;

/** Starts it. One that does not end by itself is killed at the deadline, which shows as SIGKILL. */
export function start(args: readonly string[], options: CommandOptions = {}): Started {
  // Node takes a terminal of a CI for one without colours. BASH_ENV would be run by each bash.
  const own = { CI: undefined, NO_COLOR: undefined, FORCE_COLOR: undefined, BASH_ENV: undefined };
  const env: NodeJS.ProcessEnv = { ...process.env, ...own, ...options.env };
  // vitest's workers are told so by these; ours is a plain program.
  for (const key of ['NODE_OPTIONS', 'VITEST', 'VITEST_WORKER_ID', 'VITEST_POOL_ID']) delete env[key];
  // With a socket as its input bash would take itself for a remote shell, and run ~/.bashrc: seconds in the VM.
  const command =
    options.shell === undefined ? [process.execPath, main, ...args] : ['bash', '--norc', '-c', shell(options.shell)];
  const child = spawn(command[0]!, command.slice(1), { env, stdio: ['pipe', 'pipe', 'pipe'] });
  const started: Started = {
    ...{ child, code: null, signal: null, stdout: '', stderr: '' },
    ended: new Promise((resolve, reject) => {
      const timer = setTimeout(() => child.kill('SIGKILL'), DEADLINE_MS);
      child.on('error', reject);
      child.on('close', (code, signal) => {
        clearTimeout(timer);
        resolve({ code, signal, stdout: started.stdout, stderr: started.stderr });
      });
    }),
    untilOutput: async (text) => {
      while (typeof text === 'string' ? !started.stdout.includes(text) : !text.test(started.stdout)) {
        if (child.exitCode !== null || child.signalCode !== null) {
          throw new Error(`it ended without '${text}':\n${started.stdout}${started.stderr}`);
        }
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
    },
  };
  child.stdout!.setEncoding('utf8').on('data', (text: string) => (started.stdout += text));
  child.stderr!.setEncoding('utf8').on('data', (text: string) => (started.stderr += text));
  // A command that ends early does not read all of it.
  child.stdin!.on('error', () => {});
  if (options.input !== undefined) child.stdin!.end(options.input);
  return started;
}

const quote = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;
const shell = (line: string) => `node-rdma() { ${quote(process.execPath)} ${quote(main)} "$@"; }\n${line}`;

/** Runs it to its end; its input is empty unless given. */
export const command = (args: readonly string[], options: CommandOptions = {}): Promise<Ended> =>
  start(args, { input: '', ...options }).ended;

/** The objects of its output, one in each line. */
export const jsonLines = (text: string): Record<string, unknown>[] =>
  text
    .split('\n')
    .filter(Boolean)
    .map((line) => JSON.parse(line));
