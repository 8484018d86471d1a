// Packets per second of the streaming decoder, over a generated capture file, and the memory that it takes.
//   node bench/roce.mjs [packets]
import { execFileSync } from 'node:child_process';
import { createWriteStream, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { encodeCapture, encodePacket, FlowTracker, Opcode, PacketView, readCapture } from '../dist/roce/index.js';

const count = Number(process.argv[2] ?? 2_000_000);
const folder = mkdtempSync(join(tmpdir(), 'node-rdma-bench-'));
const file = join(folder, 'bench.pcap');

const addresses = {
  ethernet: { dst: '02:00:00:00:00:02', src: '02:00:00:00:00:01' },
  ipv4: { src: '10.0.0.1', dst: '10.0.0.2', ecn: 2 },
};
const back = {
  ethernet: { dst: '02:00:00:00:00:01', src: '02:00:00:00:00:02' },
  ipv4: { src: '10.0.0.2', dst: '10.0.0.1', ecn: 2 },
};

/** Writes of 4 packets of 1 KiB, with an acknowledgement each; the packets differ in PSN and queue pair only. */
function* packets() {
  const payload = Buffer.alloc(1024, 0x5a);
  const make = (opcode, rest) =>
    encodePacket({ ...addresses, bth: { opcode, destQp: 0x11, psn: 0 }, payload, ...rest });
  const shapes = [
    make(Opcode.RC_RDMA_WRITE_FIRST, { reth: { va: 0x7f00_0000_0000n, rkey: 0xabcd, dmaLen: 4096 } }),
    make(Opcode.RC_RDMA_WRITE_MIDDLE),
    make(Opcode.RC_RDMA_WRITE_MIDDLE),
    make(Opcode.RC_RDMA_WRITE_LAST),
    encodePacket({
      ...back,
      bth: { opcode: Opcode.RC_ACKNOWLEDGE, destQp: 0x12, psn: 0 },
      aeth: { syndrome: 31, msn: 1 },
    }),
  ];
  const bth = 14 + 20 + 8;
  for (let i = 0; i < count; i++) {
    const bytes = shapes[i % 5];
    const message = Math.floor(i / 5);
    const psn = Math.floor(message / 64) * 4 + Math.min(i % 5, 3);
    bytes[bth + 7] = (i % 5 === 4 ? 0x80 : 0) | (message % 64);
    bytes.writeUIntBE(psn & 0xffffff, bth + 9, 3);
    yield { timestamp: 1_700_000_000_000_000_000n + BigInt(i) * 500n, bytes };
  }
}

async function measure(name, each) {
  globalThis.gc?.();
  let peak = 0;
  let seen = 0;
  const begin = process.cpuUsage();
  for await (const record of readCapture(file)) {
    each(record);
    if (++seen % 100_000 === 0) peak = Math.max(peak, process.memoryUsage.rss());
  }
  // All threads of the process: on a machine that does other work too, the clock would measure that.
  const { user, system } = process.cpuUsage(begin);
  const seconds = (user + system) / 1e6;
  report(name, seen / seconds, `   ${Math.round(peak / 2 ** 20)} MiB resident`);
}

function report(name, rate, more = '') {
  const text = Math.round(rate).toLocaleString('en').padStart(12);
  console.log(`${name.padEnd(28)} ${text} packets per second of CPU time${more}`);
}

/** The command, its start included. */
function measureCommand(...args) {
  const script = 'TIMEFORMAT="%U %S"; time "$@" > /dev/null';
  const main = new URL('../dist/cli/main.js', import.meta.url).pathname;
  const given = ['-c', `exec 2>&1; ${script}`, 'bash', process.execPath, main, ...args];
  const [user, system] = execFileSync('bash', given, { encoding: 'utf8' }).trim().split(' ').map(Number);
  report(`node-rdma ${args.slice(0, -1).join(' ')}`, count / (user + system));
}

try {
  await pipeline(encodeCapture(packets()), createWriteStream(file));
  console.log(`${count.toLocaleString('en')} packets`);
  const view = new PacketView();
  let sum = 0;
  await measure('records only', (record) => {
    sum += record.wireLength;
  });
  await measure('headers', (record) => {
    if (record.load(view)) sum += view.opcode + view.psn + view.destQp + (view.rkey ?? 0) + view.payloadLength;
  });
  await measure('headers, ICRC checked', (record) => {
    if (record.load(view) && !view.icrcOk) sum++;
  });
  const tracker = new FlowTracker();
  await measure('headers, flows', (record) => {
    if (record.load(view)) tracker.add(record.timestamp, view);
  });
  measureCommand('decode', '--show', 'flows', file);
  measureCommand('decode', file);
  measureCommand('decode', '--json', file);
  if (sum === 0) throw new Error('nothing was read');
} finally {
  rmSync(folder, { recursive: true });
}
