import type { Command } from 'commander';
import { serveCopies } from '../copy/connection.ts';
import type { ServedFile } from '../copy/server.ts';
import { run, subcommand, whole } from './frame.ts';
import { colour, print, printJson, rounded } from './output.ts';

/** Where files are served when no port is named. */
export const COPY_PORT = 18516;

interface Flags {
  port: number;
  tcp?: true;
  ibDev?: string;
  interface?: string;
  readOnly?: true;
  maxConnections: number;
  json?: true;
}

/** The subcommand `serve`. */
export function serveCommand(): Command {
  return subcommand('serve', 'Serve a directory for node-rdma cp: whoever reaches the port reads and writes in it.')
    .argument('<dir>', 'the directory; no path leads out of it, and symbolic links in it are not followed')
    .option('-p, --port <number>', 'port to listen on; 0 for a free one', whole(0, 0xffff), COPY_PORT)
    .option('-I, --interface <address>', 'address to listen on (default: all)')
    .option('--tcp', 'connect by an exchange over TCP, where the kernel has no connection manager')
    .option('-d, --ib-dev <name>', 'device, with --tcp (default: NODE_RDMA_DEVICE, else the first that is active)')
    .option('--read-only', 'files are got, not put')
    .option('--max-connections <count>', 'at a time; more are refused', whole(1, 10_000), 64)
    .option('--json', 'an object in each line')
    .action((dir: string, flags: Flags) => run((signal) => serve(dir, flags, signal), { isEndless: true }));
}

async function serve(folder: string, flags: Flags, signal: AbortSignal): Promise<void> {
  const { port, json } = flags;
  // What has ended a file and with it the connection is told once.
  const told = new WeakSet<Error>();
  await serveCopies({
    ...{ folder, port, isTcp: flags.tcp === true, device: flags.ibDev, localAddress: flags.interface, signal },
    ...{ isReadOnly: flags.readOnly === true, maxConnections: flags.maxConnections },
    onListening: (at) => {
      if (json) printJson({ type: 'listening', port: at });
      else print(`serving ${folder} on port ${at}`);
    },
    onFile: (file, connection) => {
      const { error, ...more } = file;
      if (error) told.add(error);
      if (!json) print(line(file, connection));
      else
        printJson({
          type: 'file',
          connection,
          ...more,
          seconds: rounded(file.seconds, 9),
          ...(error && { error: described(error) }),
        });
    },
    onError: (error, connection) => {
      if (told.has(error)) return;
      if (json) printJson({ type: 'error', connection, error: described(error) });
      else print(`${connection}: ${colour('red', error.message)}`);
    },
  });
}

const described = (error: Error) => ({ code: (error as NodeJS.ErrnoException).code, message: error.message });

// What a peer names is printed, and may hold anything.
const quoted = (path: string) => JSON.stringify(path);

function line({ direction, path, error, ...copied }: ServedFile, connection: number): string {
  const { bytes, resumedAt, sha256, seconds } = copied;
  const what = `${connection}: ${direction} ${quoted(path)}`;
  if (error) return `${what} ${colour('red', error.message)}`;
  return `${what} ${bytes} bytes${resumedAt ? ` from ${resumedAt}` : ''} in ${seconds.toFixed(2)} s, sha256 ${sha256}`;
}
