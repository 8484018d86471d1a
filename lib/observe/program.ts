/** What programs of the machine print. */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

const run = promisify(execFile);

/** What system programs run with: without their folders a plain user's PATH finds few of them. */
export const toolEnv = () => ({ ...process.env, LC_ALL: 'C', PATH: `${process.env.PATH ?? ''}:/usr/sbin:/sbin` });

/** What a program prints; undefined where it is not installed, not allowed, fails, or hangs: nothing is known then. */
export async function output(program: string, ...args: string[]): Promise<string | undefined> {
  try {
    // Prometheus waits 10 s for all of an answer. A firewall of Kubernetes has more than the default of a megabyte.
    return (await run(program, args, { env: toolEnv(), timeout: 5000, maxBuffer: 256 * 1024 * 1024 })).stdout;
  } catch {
    return undefined;
  }
}
