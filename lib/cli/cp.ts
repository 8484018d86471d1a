import { basename } from 'node:path';
import type { Command } from 'commander';
import type { CopyClient } from '../copy/client.ts';
import { withCopyClient } from '../copy/connection.ts';
import type { Copied, Progress } from '../copy/transfer.ts';
import { Complaint, Exit, run, subcommand, whole } from './frame.ts';
import { print, printJson, rounded } from './output.ts';
import { COPY_PORT } from './serve.ts';

interface Flags {
  port: number;
  tcp?: true;
  ibDev?: string;
  interface?: string;
  json?: true;
}

/** The subcommand `cp`. */
export function cpCommand(): Command {
  return subcommand(
    'cp',
    'Copy files to or from a host where node-rdma serve runs. A copy that was cut off is gone on with. No directory is made.',
  )
    .argument('<path...>', 'FILE... HOST:[PATH], or HOST:PATH... TARGET; an address of IPv6 in brackets')
    .option('-p, --port <number>', 'port of the server', whole(1, 0xffff), COPY_PORT)
    .option('-I, --interface <address>', "this side's address (default: by the routes of the system)")
    .option('--tcp', 'connect by an exchange over TCP, as the server does')
    .option('-d, --ib-dev <name>', 'device, with --tcp (default: NODE_RDMA_DEVICE, else the first that is active)')
    .option('--json', 'an object in each line')
    .action((paths: string[], flags: Flags) => run((signal) => copy(paths, flags, signal)));
}

/** Files that go one way, between this side and one host. */
export interface CopyJob {
  host: string;
  direction: 'put' | 'get';
  sources: string[];
  target: string;
}

/** Splits `host:path`; undefined for a path of this side, which has a slash before any colon, or no colon. */
function remote(path: string): [host: string, path: string] | undefined {
  const [, bracketed, host, rest] = /^(?:\[([^\]/]+)\]|([^:/[\]]+)):(.*)$/s.exec(path) ?? [];
  const name = bracketed ?? host;
  return name === undefined ? undefined : [name, rest as string];
}

/** What the arguments ask for. @throws Complaint */
export function copyJob(paths: readonly string[]): CopyJob {
  const wrong = (why: string) => new Complaint(`${why} (--help tells how it is used)`, Exit.USAGE);
  if (paths.length < 2) throw wrong('cp needs what to copy, and where to');
  const sources = paths.slice(0, -1);
  const last = paths.at(-1) as string;
  const to = remote(last);
  const froms = sources.map(remote);
  if (to) {
    if (froms.some((from) => from !== undefined)) throw wrong('one side must be this one');
    // Several files need a directory, which a slash at the end demands.
    const target = sources.length > 1 && to[1] !== '' && !to[1].endsWith('/') ? `${to[1]}/` : to[1];
    return { host: to[0], direction: 'put', sources, target };
  }
  const hosts = new Set(froms.map((from) => from?.[0]));
  const [host] = hosts;
  if (host === undefined && hosts.size === 1) throw wrong('no path names a host: HOST:PATH');
  if (hosts.size > 1) throw wrong('all files must come from one host');
  const target = sources.length > 1 && !last.endsWith('/') ? `${last}/` : last;
  return { host: host as string, direction: 'get', sources: froms.map((from) => from![1]), target };
}

async function copy(paths: string[], flags: Flags, signal: AbortSignal): Promise<void> {
  const job = copyJob(paths);
  const { port, tcp, ibDev, json } = flags;
  const route = { port, isTcp: tcp === true, device: ibDev, localAddress: flags.interface };
  let failed = false;
  await withCopyClient(job.host, route, signal, async (client) => {
    for (const source of job.sources) {
      const bar = new Bar(basename(source));
      const begin = performance.now();
      try {
        const copied = await one(client, job, source, bar.show);
        bar.clear();
        report(job, source, copied, (performance.now() - begin) / 1000, json === true);
      } catch (error) {
        bar.clear();
        if (signal.aborted)
          console.error(`node-rdma: ${source}: ${bar.at}; the same command goes on with what is there`);
        const { code, message } = error as NodeJS.ErrnoException;
        if (signal.aborted || client.ended || code === undefined) throw error;
        failed = true;
        console.error(`node-rdma: ${told(error as Error, job.host)}`);
        if (json) printJson({ type: 'error', source, error: { code, message } });
      }
    }
  });
  if (failed) process.exitCode = Exit.FAILED;
}

const one = (client: CopyClient, { direction, target }: CopyJob, source: string, progress: Progress) =>
  direction === 'put' ? client.put(source, target, progress) : client.get(source, target, progress);

const told = (error: Error & { isRemote?: boolean }, host: string) =>
  error.isRemote ? `${host}: ${error.message}` : error.message;

function report(job: CopyJob, source: string, copied: Copied, seconds: number, isJson: boolean): void {
  const { bytes, resumedAt, sha256 } = copied;
  if (isJson) {
    printJson({ type: 'file', direction: job.direction, source, ...copied, seconds: rounded(seconds, 9) });
    return;
  }
  const rate = (bytes - resumedAt) / 1e6 / seconds;
  const resumed = resumedAt > 0 ? `, gone on at ${resumedAt}` : '';
  print(`${source}: ${bytes} bytes${resumed}, ${seconds.toFixed(2)} s, ${rate.toFixed(1)} MB/s, sha256 ${sha256}`);
}

/** How far a file is, on a terminal. */
class Bar {
  readonly #name: string;
  readonly #begin = performance.now();
  #from: number | undefined;
  #done = 0;
  #size = 0;
  #shown = 0;
  #width = 0;

  constructor(name: string) {
    this.#name = name;
  }

  readonly show = (done: number, size: number): void => {
    const now = performance.now();
    this.#from ??= done;
    [this.#done, this.#size] = [done, size];
    if (!process.stderr.isTTY || (now - this.#shown < 100 && done < size)) return;
    this.#shown = now;
    const rate = (done - this.#from) / ((now - this.#begin) / 1000);
    const left = rate > 0 ? `${Math.ceil((size - done) / rate)} s left` : '';
    const filled = size === 0 ? 30 : Math.round((30 * done) / size);
    const bar = `[${'#'.repeat(filled)}${' '.repeat(30 - filled)}]`;
    const text = `${this.#name} ${bar} ${done}/${size}  ${(rate / 1e6).toFixed(1)} MB/s  ${left}`;
    process.stderr.write(`\r${text.padEnd(this.#width)}`);
    this.#width = text.length;
  };

  /** Where it was interrupted. */
  get at(): string {
    return this.#from === undefined ? 'interrupted' : `interrupted at ${this.#done} of ${this.#size} bytes`;
  }

  clear(): void {
    if (this.#width > 0) process.stderr.write(`\r${' '.repeat(this.#width)}\r`);
  }
}
