import type { Command } from 'commander';
import { run, subcommand, whole } from './frame.ts';
import { type PacketFlags, showOption, showPackets } from './packets.ts';

/** The subcommand `decode`. */
export function decodeCommand(): Command {
  return subcommand('decode', 'Decode a capture file, pcap or pcapng: a line for each RoCE packet, then the flows.')
    .argument('<file>', 'the capture, or - for standard input')
    .addOption(showOption())
    .option('--qp <number>', 'only packets to or from this queue pair', whole(0, 0xff_ffff))
    .option('--count <packets>', 'stop after so many RoCE packets', whole(1))
    .option('--json', 'an object in each line; the type of each tells what it is')
    .action((file: string, flags: PacketFlags) =>
      run(async (signal) => {
        // A read that waits would hold Ctrl-C up.
        signal.addEventListener('abort', () => process.stdin.destroy());
        await showPackets(file === '-' ? process.stdin : file, flags, signal);
      }),
    );
}
