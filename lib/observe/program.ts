/** What programs of the machine print. */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

const run = promisify(execFile);

/** What a program prints; undefined where it is not installed, not allowed, or fails: nothing is known then. */
export async function output(program: string, ...args: string[]): Promise<string | undefined> {
  try {
    // Without the folders of system programs a plain user's PATH finds few of them.
    const env = { ...process.env, LC_ALL: 'C', PATH: `${process.env.PATH ?? ''}:/usr/sbin:/sbin` };
    // A firewall of Kubernetes has more than the default of a megabyte.
    return (await run(program, args, { env, timeout: 10_000, maxBuffer: 256 * 1024 * 1024 })).stdout;
  } catch {
    return undefined;
  }
}
