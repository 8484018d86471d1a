import { setTimeout as sleep } from 'node:timers/promises';
import type { Command } from 'commander';
import {
  type CounterFinding,
  type CounterRate,
  counterRates,
  judgeCounters,
  type PortCounters,
  readCounters,
} from '../observe/index.ts';
import { Complaint, noDevices, run, seconds, subcommand } from './frame.ts';
import { colour, print, printJson, printTable, toJson } from './output.ts';

interface Flags {
  /** Milliseconds. */
  watch?: true | number;
  all?: true;
  json?: true;
}

/** The subcommand `counters`. */
export function countersCommand(): Command {
  return subcommand('counters', 'Show the counters of ports and their network interfaces, and what they mean.')
    .argument('[device]', 'only this device')
    .option('-w, --watch [seconds]', 'show what changes, again and again, until Ctrl-C (default: each second)', seconds)
    .option('-a, --all', 'with those that are 0, and those whose meaning is not known')
    .option('--json', 'an array of objects; with --watch an object in each line, for each port and time')
    .addHelpText('after', '\nPause frames and priorities come from ethtool, where it is installed.')
    .action((device: string | undefined, flags: Flags) =>
      run((signal) => (flags.watch === undefined ? show(device, flags) : watch(device, flags, signal)), {
        isEndless: true,
      }),
    );
}

async function ports(device: string | undefined): Promise<PortCounters[]> {
  const found = await readCounters(device === undefined ? {} : { device });
  if (found.length === 0) {
    if (device !== undefined) throw new Complaint(`no RDMA device '${device}'`);
    throw noDevices();
  }
  return found;
}

async function show(device: string | undefined, { all, json }: Flags): Promise<void> {
  const found = await ports(device);
  if (json) {
    printJson(found);
    return;
  }
  const shown = found.flatMap(({ device, portNum, netdev, counters }) =>
    counters
      .filter(({ value, meaning }) => all || (value > 0n && meaning !== undefined))
      .map(({ source, name, value, meaning }) => [
        ...[`${device}/${portNum}`, source === 'ethtool' ? netdev : source, name, value],
        ...[meaning?.kind, meaning?.text],
      ]),
  );
  if (shown.length > 0) printTable(['PORT', 'SOURCE', 'COUNTER', 'VALUE', 'KIND', 'MEANING'], shown);
  for (const name of found.map(({ device, portNum }) => `${device}/${portNum}`)) {
    if (shown.some(([port]) => port === name)) continue;
    print(`${name}: ${all ? 'it has no counters' : 'all counters that have a known meaning are 0; --all shows them'}`);
  }
}

async function watch(device: string | undefined, { watch, all, json }: Flags, signal: AbortSignal): Promise<void> {
  const milliseconds = watch === true || watch === undefined ? 1000 : watch;
  let before = await ports(device);
  for (;;) {
    await sleep(milliseconds, undefined, { signal });
    const after = await readCounters(device === undefined ? {} : { device });
    for (const port of after) {
      const old = before.find((other) => other.device === port.device && other.portNum === port.portNum);
      // A device that has just come has no rates yet.
      if (old === undefined) continue;
      const rates = counterRates(old, port).filter(({ meaning }) => all || meaning !== undefined);
      const findings = judgeCounters(rates);
      if (json) {
        const { device, portNum, netdev } = port;
        print(
          toJson({
            time: new Date(),
            device,
            portNum,
            netdev,
            seconds: (port.time - old.time) / 1000,
            rates,
            findings,
          }),
        );
      } else showRates(port, rates, findings);
    }
    before = after;
  }
}

function showRates({ device, portNum }: PortCounters, rates: CounterRate[], findings: CounterFinding[]): void {
  const time = new Date().toTimeString().slice(0, 8);
  print(colour('bold', `${time} ${device}/${portNum}${rates.length === 0 ? ': nothing changes' : ''}`));
  if (rates.length === 0) return;
  printTable(
    ['SOURCE', 'COUNTER', 'CHANGE', 'PER_SECOND', 'MEANING'],
    rates.map((rate) => [rate.source, rate.name, rate.change, rate.perSecond.toFixed(1), rate.meaning?.text]),
  );
  for (const { level, text } of findings) print(`${colour(level === 'warning' ? 'yellow' : 'grey', level)}: ${text}`);
}
