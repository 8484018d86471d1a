/** The command node-rdma for tests of the device: as a user would run it, or in this process where starting one takes seconds. */
import { vi } from 'vitest';
import { buildProgram } from '../../lib/cli/program.ts';
import { type Ended, start } from '../unit/command.ts';
import { isRxe } from './fixture.ts';

/** Its output so far, and its end. */
interface Running {
  stdout: string;
  stderr: string;
  ended: Promise<Ended>;
}

/** Runs it in this process, one at a time, by the same code: its output is caught, and its exit code taken back. */
function runHere(args: readonly string[]): Running {
  const exitCode = process.exitCode;
  const listeners = process.stdout.listeners('error');
  const spies = [
    vi.spyOn(process.stdout, 'write').mockImplementation((text) => {
      running.stdout += text;
      return true;
    }),
    vi.spyOn(console, 'error').mockImplementation((text) => {
      running.stderr += `${text}\n`;
    }),
  ];
  process.exitCode = 0;
  const work = async (): Promise<Ended> => {
    try {
      await (await buildProgram(args)).parseAsync(args, { from: 'user' });
      return { code: Number(process.exitCode), signal: null, stdout: running.stdout, stderr: running.stderr };
    } finally {
      for (const spy of spies) spy.mockRestore();
      process.exitCode = exitCode;
      // A program looks at its stdout to the end.
      for (const listener of process.stdout.listeners('error')) {
        if (!listeners.includes(listener)) process.stdout.off('error', listener as () => void);
      }
    }
  };
  const running: Running = { stdout: '', stderr: '', ended: Promise.resolve().then(work) };
  return running;
}

/** Starts it. */
export const run = (args: readonly string[]): Running => (isRxe ? runHere(args) : start(args, { input: '' }));

/** Runs it to its end. */
export const command = (args: readonly string[]): Promise<Ended> => run(args).ended;
