import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import type { Command } from 'commander';
import { createExporter, formatPrometheus, readCounters } from '../observe/index.ts';
import { noDevices, run, subcommand, whole } from './frame.ts';

interface Flags {
  host: string;
  port: number;
  once?: true;
}

/** The subcommand `export`. */
export function exportCommand(): Command {
  return subcommand('export', 'Offer the counters to Prometheus, at /metrics, until Ctrl-C.')
    .option('--host <address>', 'where to listen; 0.0.0.0 for all of IPv4', '127.0.0.1')
    .option('-p, --port <number>', 'TCP port; 0 for a free one', whole(0, 0xffff), 9879)
    .option('--once', 'print the counters in the same format and end: for the textfile collector of node_exporter')
    .action((flags: Flags) => run((signal) => serve(flags, signal), { isEndless: true }));
}

async function serve({ host, port, once: isOnce }: Flags, signal: AbortSignal): Promise<void> {
  if (isOnce) {
    const ports = await readCounters();
    if (ports.length === 0) throw noDevices();
    process.stdout.write(formatPrometheus(ports));
    return;
  }
  const server = createExporter();
  server.listen({ host, port, signal });
  await once(server, 'listening');
  const { address, family, port: bound } = server.address() as AddressInfo;
  console.error(`node-rdma: counters at http://${family === 'IPv6' ? `[${address}]` : address}:${bound}/metrics`);
  if ((await readCounters()).length === 0) console.error('node-rdma: no RDMA devices yet: "node-rdma doctor" says why');
  signal.addEventListener('abort', () => server.closeAllConnections());
  await once(server, 'close');
}
