import { type FileHandle, open } from 'node:fs/promises';
import type { Command } from 'commander';
import { captureInterface } from '../roce/index.ts';
import { Complaint, Exit, run, seconds, subcommand, whole } from './frame.ts';
import { type PacketFlags, showOption, showPackets } from './packets.ts';

interface Flags extends PacketFlags {
  write?: string;
  /** Milliseconds. */
  duration?: number;
  filter?: string;
  snapLength?: number;
}

/** The subcommand `capture`. */
export function captureCommand(): Command {
  return subcommand('capture', 'Capture the RoCE packets of an interface, by tcpdump or dumpcap, and decode them.')
    .argument('<interface>', 'such as eth0, or any')
    .addOption(showOption())
    .option(
      '-w, --write <file>',
      'keep the capture in this file too, for decode and Wireshark; it may hold more packets than are shown',
    )
    .option('--qp <number>', 'show only packets to or from this queue pair', whole(0, 0xff_ffff))
    .option('--count <packets>', 'stop after so many RoCE packets', whole(1))
    .option('--duration <seconds>', 'stop after this time', seconds)
    .option('--snap-length <bytes>', 'keep only so much of each packet', whole(64, 262_144))
    .option('--filter <expression>', 'capture this instead of RoCE, as pcap-filter(7) says')
    .option('--json', 'an object in each line; the type of each tells what it is')
    .addHelpText(
      'after',
      '\nCtrl-C ends the capture, and shows the flows. What a RoCE NIC handles is not seen: it does not pass the kernel.',
    )
    .action((name: string, flags: Flags) => run((signal) => capture(name, flags, signal), { isEndless: true }));
}

async function capture(name: string, flags: Flags, signal: AbortSignal): Promise<void> {
  const { duration, filter, snapLength, write } = flags;
  const over = new AbortController();
  const captured = captureInterface(name, {
    signal: AbortSignal.any([signal, over.signal]),
    onMessage: (line) => console.error(line),
    ...(filter !== undefined && { filter }),
    ...(snapLength !== undefined && { snapLength }),
  });
  // Counted from the first bytes, which are there when tcpdump has begun.
  let timer: NodeJS.Timeout | undefined;
  let hasBegun = false;
  async function* begun() {
    for await (const chunk of captured) {
      if (!hasBegun && duration !== undefined) timer = setTimeout(() => over.abort(), duration);
      hasBegun = true;
      yield chunk;
    }
  }
  const file = write === undefined ? undefined : await open(write, 'w');
  try {
    const chunks = begun();
    const { packets, others } = await showPackets(file === undefined ? chunks : tee(chunks, file), flags, signal);
    if (packets + others === 0) {
      console.error(`node-rdma: nothing was seen. What a RoCE NIC handles does not pass the kernel; Soft-RoCE does.`);
    }
  } catch (error) {
    if (signal.aborted && !hasBegun) return;
    const { code, message } = error as NodeJS.ErrnoException;
    throw code === 'ERR_CAPTURE_UNAVAILABLE' ? new Complaint(message, Exit.UNAVAILABLE) : error;
  } finally {
    clearTimeout(timer);
    await file?.close();
  }
}

/** Hands chunks on, and writes them to a file, no faster than it takes them. */
async function* tee(chunks: AsyncIterable<Uint8Array>, file: FileHandle): AsyncGenerator<Uint8Array> {
  for await (const chunk of chunks) {
    await file.appendFile(chunk);
    yield chunk;
  }
}
