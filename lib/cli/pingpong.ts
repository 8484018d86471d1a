import { type Command, Option } from 'commander';
import { type PingpongAddress, pingpong } from '../perf/pingpong.ts';
import { bytes, run, subcommand, whole } from './frame.ts';
import { print, printJson, rounded } from './output.ts';

interface Flags {
  transport: 'rc' | 'uc' | 'ud';
  port: number;
  ibDev?: string;
  ibPort: number;
  size?: number;
  mtu: string;
  rxDepth: number;
  iters: number;
  sl: number;
  gidIdx?: number;
  events?: true;
  chk?: true;
  json?: true;
}

/** The subcommand `pingpong`. */
export function pingpongCommand(): Command {
  return subcommand('pingpong', 'Play ping-pong, also with ibv_rc_pingpong, ibv_uc_pingpong and ibv_ud_pingpong.')
    .argument('[host]', 'the server to play with (default: be the server)')
    .addOption(new Option('-t, --transport <name>', 'which of them').choices(['rc', 'uc', 'ud']).default('rc'))
    .option('-p, --port <number>', 'TCP port to listen on or to connect to', whole(1, 0xffff), 18515)
    .option('-d, --ib-dev <name>', 'device (default: NODE_RDMA_DEVICE, else the first that is active)')
    .option('-i, --ib-port <number>', 'its port', whole(1, 255), 1)
    .option(
      '-s, --size <size>',
      'bytes of a message, the same on both sides (default: 4096; ud: 2048, or the MTU)',
      bytes,
    )
    .addOption(
      new Option('-m, --mtu <bytes>', 'of the path').choices(['256', '512', '1024', '2048', '4096']).default('1024'),
    )
    .option('-r, --rx-depth <count>', 'receives to post at a time', whole(1, 1 << 20), 500)
    .option('-n, --iters <count>', 'exchanges', whole(1, 1e9), 1000)
    .option('-l, --sl <number>', 'service level', whole(0, 15), 0)
    .option('-e, --events', 'sleep until there are completions, instead of polling')
    .option('-g, --gid-idx <index>', 'GID of this side (default: as node-rdma gids says)', whole(0, 255))
    .option('-c, --chk', 'check the received data; on both sides')
    .option('--json', 'as an object')
    .action((host: string | undefined, flags: Flags) => run((signal) => play(host, flags, signal)));
}

const hex = (value: number, digits: number) => value.toString(16).padStart(digits, '0');
const text = ({ lid, qpn, psn, gid }: PingpongAddress) =>
  `LID 0x${hex(lid, 4)}, QPN 0x${hex(qpn, 6)}, PSN 0x${hex(psn, 6)}, GID ${gid}`;

async function play(host: string | undefined, flags: Flags, signal: AbortSignal): Promise<void> {
  const { transport, json, chk } = flags;
  let mine: PingpongAddress | undefined;
  const size = flags.size ?? (transport === 'ud' ? Math.min(2048, Number(flags.mtu)) : 4096);
  const result = await pingpong({
    ...{ transport, host, device: flags.ibDev, port: flags.port, portNum: flags.ibPort, size, mtu: Number(flags.mtu) },
    ...{ rxDepth: flags.rxDepth, iters: flags.iters, sl: flags.sl, gidIndex: flags.gidIdx },
    ...{ events: flags.events === true, check: chk === true, signal },
    onLocal: (local) => {
      mine = local;
      if (!json) print(`  local address:  ${text(local)}`);
    },
    onRemote: (remote) => {
      if (!json) print(`  remote address: ${text(remote)}`);
    },
  });
  const { remote, bytes, iters, seconds } = result;
  const [mbits, usec] = [(bytes * 8) / seconds / 1e6, (seconds * 1e6) / iters];
  if (json) {
    const times = { seconds: rounded(seconds, 9), usec: rounded(usec, 3) };
    printJson({ transport, local: mine, remote, bytes, iters, ...times, mbits, checked: chk === true });
    return;
  }
  print(`${bytes} bytes in ${seconds.toFixed(2)} seconds = ${mbits.toFixed(2)} Mbit/sec`);
  print(`${iters} iters in ${seconds.toFixed(2)} seconds = ${usec.toFixed(2)} usec/iter`);
  if (chk) print(`${size} bytes checked`);
}
