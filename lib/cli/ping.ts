import { type Command, Option } from 'commander';
import { counted } from '../inspect.ts';
import { type PingResult, ping, summarizePings } from '../perf/ping.ts';
import { Complaint, Exit, run, seconds, subcommand, whole } from './frame.ts';
import { print, printJson, rounded } from './output.ts';

interface Flags {
  count?: number;
  /** Milliseconds. */
  interval: number;
  /** Milliseconds. */
  timeout: number;
  port: number;
  interface?: string;
  json?: true;
}

// As ping(8) has it: something else went wrong than that no answer came.
const OTHER = 2;

/** The subcommand `ping`. */
export function pingCommand(): Command {
  return (
    subcommand('ping', 'See whether a host is reached by the connection manager, and how long its answers take.')
      .argument('<host>', 'its name or address')
      .option('-c, --count <count>', 'requests to make (default: until Ctrl-C)', whole(1))
      .addOption(
        new Option('-i, --interval <seconds>', 'from one request to the next').argParser(seconds).default(1000, '1'),
      )
      // The connection manager sends a request again after 4.3 seconds.
      .addOption(new Option('-W, --timeout <seconds>', 'that an answer may take').argParser(seconds).default(4000, '4'))
      .option('-p, --port <number>', 'port of the connection manager; nobody need listen there', whole(1, 0xffff), 7471)
      .option('-I, --interface <address>', "this side's address (default: by the routes of the system)")
      .option('--json', 'an object in each line')
      .action((host: string, flags: Flags) => run((signal) => pings(host, flags, signal), { isEndless: true }))
  );
}

async function pings(host: string, flags: Flags, signal: AbortSignal): Promise<void> {
  const { port, json } = flags;
  const results: PingResult[] = [];
  let peer = host;
  const requests = ping({
    ...{ host, port, localAddress: flags.interface, count: flags.count, signal },
    ...{ intervalMs: flags.interval, timeoutMs: flags.timeout },
    onBegin: (address) => {
      peer = address;
      if (!json) print(`PING ${host} (${address}) port ${port}: requests to connect`);
    },
  });
  try {
    for await (const result of requests) {
      results.push(result);
      if (json) printJson({ type: 'ping', host: peer, port, ...result, ms: rounded(result.ms, 6) });
      else print(line(peer, result));
    }
  } catch (error) {
    const { code, message, syscall } = error as NodeJS.ErrnoException;
    const hasRdma = syscall !== 'rdma_create_event_channel';
    if (!hasRdma || !/^(ENOTFOUND|EAI_|ENODEV|EADDRNOTAVAIL|ENETUNREACH|EINVAL)/.test(code ?? '')) throw error;
    throw new Complaint(message, OTHER);
  }
  const summary = summarizePings(results);
  const { sent, received, lossPercent, min, avg, max, mdev } = summary;
  if (received === 0) process.exitCode ||= Exit.FAILED;
  if (json) {
    const times = { min: rounded(min, 6), avg: rounded(avg, 6), max: rounded(max, 6), mdev: rounded(mdev, 6) };
    printJson({ type: 'summary', host: peer, port, ...summary, ...times });
    return;
  }
  print();
  print(`--- ${host} ping statistics ---`);
  print(`${counted(sent, 'request')}, ${counted(received, 'answer')}, ${Number(lossPercent.toFixed(1))}% lost`);
  if (received > 0) print(`rtt min/avg/max/mdev = ${[min, avg, max, mdev].map((ms) => ms!.toFixed(3)).join('/')} ms`);
}

function line(peer: string, { seq, answer, ms, device, reason }: PingResult): string {
  if (ms === undefined) return `${peer}: seq=${seq} ${reason}`;
  const what = {
    connected: 'connected',
    'no listener': 'nobody listens, its kernel answers',
    rejected: `the listener rejects it (${reason})`,
    none: '',
  }[answer];
  return `${peer} by ${device}: seq=${seq} time=${ms.toFixed(3)} ms (${what})`;
}
