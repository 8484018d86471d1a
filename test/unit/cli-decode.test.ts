import { chmodSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import { encodePacket, Opcode, type PacketInit, readCapture, writeCapture } from '../../lib/roce/index.ts';
import { command, jsonLines, start } from './command.ts';

const fixture = (name: string) => fileURLToPath(new URL(`../fixtures/${name}`, import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'node-rdma-decode-'));
afterAll(() => rmSync(folder, { recursive: true }));

/** A capture of these packets, a microsecond apart. */
async function captureOf(name: string, packets: Partial<PacketInit>[]): Promise<string> {
  const path = join(folder, name);
  const base = {
    ethernet: { dst: '02:00:00:00:00:02', src: '02:00:00:00:00:01' },
    ipv4: { src: '10.0.0.1', dst: '10.0.0.2' },
  };
  const frames = packets.map((packet, i) => ({
    timestamp: 1_700_000_000_000_000_000n + BigInt(i) * 1000n,
    bytes: encodePacket({ ...base, ...packet } as PacketInit),
  }));
  await writeCapture(path, frames);
  return path;
}

const payload = Buffer.from('hello from the NIC');
const write: Partial<PacketInit> = {
  bth: { opcode: Opcode.RC_RDMA_WRITE_ONLY, destQp: 0x11, psn: 1000, ackReq: true },
  reth: { va: 0x7f0012345000n, rkey: 0xabcd, dmaLen: payload.length },
  payload,
};
const back = { ipv4: { src: '10.0.0.2', dst: '10.0.0.1' } };
const answer = (psn: number, syndrome: number, more: object = {}): Partial<PacketInit> => ({
  ...back,
  bth: { opcode: Opcode.RC_ACKNOWLEDGE, destQp: 0x12, psn },
  aeth: { syndrome, msn: 1 },
  ...more,
});

describe('node-rdma decode', () => {
  it('shows a packet in a line', async () => {
    const refusal = answer(1000, 0x62, { ipv4: { ...back.ipv4, ecn: 3 } });
    const path = await captureOf('write.pcap', [write, answer(1000, 0x08), refusal, answer(1001, 0x2e)]);
    const { code, stdout, stderr } = await command(['decode', path]);
    expect(stdout.split('\n').slice(0, 4)).toEqual([
      '0.000000000 10.0.0.1 > 10.0.0.2 QP 0x000011 RC_RDMA_WRITE_ONLY psn 1000 len 18 va 0x7f0012345000 rkey 0xabcd dmalen 18 ackreq',
      '0.000001000 10.0.0.2 > 10.0.0.1 QP 0x000012 RC_ACKNOWLEDGE psn 1000 len 0 msn 1 ACK, 16 credits',
      '0.000002000 10.0.0.2 > 10.0.0.1 QP 0x000012 RC_ACKNOWLEDGE psn 1000 len 0 msn 1 NAK, REMOTE_ACCESS_ERROR ECN CE',
      '0.000003000 10.0.0.2 > 10.0.0.1 QP 0x000012 RC_ACKNOWLEDGE psn 1001 len 0 msn 1 RNR NAK, 1.28 ms',
    ]);
    expect(stdout).toContain('warning: 1 request refused for good');
    expect(stdout).toContain('warning: 1 RNR NAK: the receiver at 10.0.0.2 had no receive posted');
    expect(stdout).toContain('note: 1 ECN mark (33.3 %): a switch asks to slow down, as designed');
    expect(stdout).toMatch(/\n4 RoCE packets in 2 flows; 0 others, 0 cannot be read\n$/);
    expect([code, stderr]).toEqual([0, '']);
  });

  it('tells a bad ICRC, what is no RoCE, and what cannot be read', async () => {
    const path = await captureOf('odd.pcap', [write]);
    const frames: Buffer[] = [];
    for await (const { bytes } of readCapture(path)) frames.push(Buffer.from(bytes));
    const frame = frames[0]!;
    const flipped = Buffer.from(frame);
    flipped[70]! ^= 1;
    const arp = Buffer.alloc(60);
    arp.writeUInt16BE(0x0806, 12);
    const reserved = Buffer.from(frame);
    reserved[42] = 0x7f;
    await writeCapture(
      path,
      [flipped, arp, reserved].map((bytes) => ({ timestamp: 1n, bytes })),
    );
    const { stdout } = await command(['decode', path]);
    expect(stdout).toContain(' ackreq BAD ICRC\n');
    expect(stdout).toContain('0.000000000 cannot be read: no such opcode (at byte 42)\n');
    expect(stdout).toContain('1 RoCE packet in 1 flow, 1 with a bad ICRC; 1 other, 1 cannot be read\n');
    // It is not checked where packets are not shown, and not said to be good.
    for (const [show, badIcrc] of [
      ['packets', 1],
      ['events', null],
      ['flows', null],
    ] as const) {
      const total = jsonLines((await command(['decode', path, '--show', show, '--json'])).stdout).at(-1);
      expect(total).toEqual({ type: 'total', flows: 1, packets: 1, others: 1, malformed: 1, badIcrc });
    }
  });

  it('gives an object for each packet and flow with --json', async () => {
    const { code, stdout } = await command(['decode', fixture('roce-small.pcap'), '--json']);
    const objects = jsonLines(stdout);
    const packets = objects.filter(({ type }) => type === 'packet');
    expect(packets).toHaveLength(324);
    expect(packets.every(({ icrcOk }) => icrcOk === true)).toBe(true);
    expect(packets.filter(({ opcode }) => opcode === 'RC_ACKNOWLEDGE')).toHaveLength(72);
    expect(objects.at(-1)).toEqual({ type: 'total', flows: 22, packets: 324, others: 0, malformed: 0, badIcrc: 0 });
    expect(objects.filter(({ type }) => type === 'flow')).toHaveLength(22);
    expect(code).toBe(0);
  });

  it('gives times to the nanosecond, before 2001 and backwards too', async () => {
    const path = join(folder, 'times.pcap');
    const bytes = encodePacket({
      ...{ ethernet: { dst: '02:00:00:00:00:02', src: '02:00:00:00:00:01' } },
      ...{ ipv4: { src: '10.0.0.1', dst: '10.0.0.2' }, ...write },
    } as PacketInit);
    const times = [5n, 999_999_999n, 1_000_000_005n, 1_700_000_000_999_999_999n, 1_700_000_001_000_000_000n, 3n];
    await writeCapture(
      path,
      times.map((timestamp) => ({ timestamp, bytes })),
    );
    const packets = jsonLines((await command(['decode', path, '--json'])).stdout).filter(
      ({ type }) => type === 'packet',
    );
    expect(packets.map(({ time }) => time)).toEqual(times.map(String));
    const lines = (await command(['decode', path])).stdout.split('\n').slice(0, times.length);
    expect(lines.map((line) => line.split(' ')[0])).toEqual([
      ...['0.000000000', '0.999999994', '1.000000000', '1700000000.999999994', '1700000000.999999995', '-0.000000002'],
    ]);
  });

  it('gives times before 1970, which the offset of an interface makes', async () => {
    const path = join(folder, 'offset.pcapng');
    const bytes = encodePacket({
      ...{ ethernet: { dst: '02:00:00:00:00:02', src: '02:00:00:00:00:01' } },
      ...{ ipv4: { src: '10.0.0.1', dst: '10.0.0.2' }, ...write },
    } as PacketInit);
    await writeCapture(path, [{ timestamp: 5n, bytes }], { format: 'pcapng' });
    const written = readFileSync(path);
    const at = written.readUInt32LE(4);
    const length = written.readUInt32LE(at + 4);
    // if_tsoffset is 14, of 8 bytes; it comes in front of the options that there are.
    const option = Buffer.alloc(12);
    option.writeUInt16LE(14, 0);
    option.writeUInt16LE(8, 2);
    option.writeBigInt64LE(-2n, 4);
    const block = Buffer.concat([written.subarray(at, at + 16), option, written.subarray(at + 16, at + length)]);
    block.writeUInt32LE(length + 12, 4);
    block.writeUInt32LE(length + 12, length + 8);
    writeFileSync(path, Buffer.concat([written.subarray(0, at), block, written.subarray(at + length)]));
    const { code, stdout } = await command(['decode', path, '--json']);
    expect([code, jsonLines(stdout)[0]!.time]).toEqual([0, '-1999999995']);
  });

  it('diagnoses loss, and shows events', async () => {
    const { stdout } = await command(['decode', fixture('roce-lossy.pcapng'), '--show', 'events']);
    expect(stdout).toMatch(
      /^\d\.\d{9} 10\.78\.0\.1 > 10\.78\.0\.2 QP 0x00001c go-back-N by \w+: \d+ packets, 0 bytes again/m,
    );
    expect(stdout).toContain('warning: 1 packet lost before this place (1.6 %)');
    expect(stdout).toContain('one lost packet costs all that was sent after it');
    expect(stdout).toContain('175 RoCE packets in 4 flows');
  });

  it('keeps to one queue pair, and to a count', async () => {
    const { stdout } = await command(['decode', fixture('roce-lossy.pcapng'), '--qp', '0x1b', '--count', '3']);
    expect(stdout.split('\n').filter((line) => line.includes(' RC_'))).toHaveLength(3);
    expect(stdout).toContain('3 RoCE packets in 1 flow;');
  });

  it('reads standard input', async () => {
    const input = readFileSync(fixture('roce-small.pcap'));
    const { code, stdout } = await command(['decode', '-', '--show', 'flows'], { input });
    expect(stdout).toContain('324 RoCE packets');
    expect(code).toBe(0);
  });

  it('shows what it has read of a damaged file, then says where the damage is, with exit code 1', async () => {
    const path = join(folder, 'cut.pcap');
    writeFileSync(path, readFileSync(fixture('roce-small.pcap')).subarray(0, 40_000));
    const { code, stdout, stderr } = await command(['decode', path, '--show', 'flows']);
    expect(stdout).toMatch(/\d+ RoCE packets in \d+ flows/);
    expect(stderr).toMatch(/^node-rdma: cut off\? The capture ends in the middle of the record \(at byte 3\d{4}\)\n$/);
    expect(code).toBe(1);
  });

  it.each([
    ['', 'the file is empty (at byte 0)'],
    ['0a0d0d0a1c00', 'cut off? The capture ends in its header (at byte 0)'],
  ])('says of the file %j that %s', async (hex, message) => {
    const { code, stderr } = await command(['decode', '-'], { input: Buffer.from(hex, 'hex') });
    expect([code, stderr]).toEqual([1, `node-rdma: ${message}\n`]);
  });

  it('says that there is no such file, with exit code 1', async () => {
    const { code, stderr } = await command(['decode', '/nonexistent.pcap']);
    expect(stderr).toMatch(/^node-rdma: ENOENT: .*'\/nonexistent\.pcap'\n$/);
    expect(code).toBe(1);
  });

  it('ends without a word when the reader of its output has gone', async () => {
    const { stdout, stderr } = await command([], {
      shell: `node-rdma decode '${fixture('roce-small.pcap')}' | head -n 1; echo "\${PIPESTATUS[0]}"`,
    });
    expect(stdout.split('\n')[1]).toMatch(/^(0|141)$/);
    expect(stderr).toBe('');
  });

  it('ends by Ctrl-C in the middle of a file, with what it has read till then', async () => {
    const path = join(folder, 'long.pcap');
    const small = readFileSync(fixture('roce-small.pcap'));
    // Enough for output to be seen; then, of zeros, more empty records than are read in a second.
    writeFileSync(path, Buffer.concat([small, ...Array(20).fill(small.subarray(24))]));
    truncateSync(path, 2 ** 31);
    const started = start(['decode', path, '--show', 'events'], { input: '' });
    await started.untilOutput('SEND of');
    // Somewhere among them.
    setTimeout(() => started.child.kill('SIGINT'), 200);
    const { code, stdout, stderr } = await started.ended;
    expect([code, stderr]).toEqual([130, '']);
    const [, empty] = /RoCE packets in 22 flows; 0 others, (\d+) cannot be read\n$/.exec(stdout)!;
    expect(Number(empty)).toBeLessThan(2 ** 31 / 16 - 1_000_000);
  });

  it('reads what is no regular file', async () => {
    const { code, stdout } = await command([], {
      shell: `node-rdma decode <(cat '${fixture('roce-small.pcap')}') --show flows`,
    });
    expect(stdout).toContain('324 RoCE packets');
    expect(code).toBe(0);
  });

  it('ends by Ctrl-C while it waits for input, with exit code 130', async () => {
    const started = start(['decode', '-']);
    started.child.stdin!.write(readFileSync(fixture('roce-small.pcap')));
    await started.untilOutput('RC_ACKNOWLEDGE');
    started.child.kill('SIGINT');
    expect(await started.ended).toMatchObject({ code: 130, stderr: '' });
  });
});

describe('node-rdma capture', () => {
  /** A folder with a program in the place of tcpdump. */
  function programs(tcpdump: string): string {
    const path = mkdtempSync(join(folder, 'bin-'));
    writeFileSync(join(path, 'tcpdump'), `#!/bin/sh\n${tcpdump}\n`);
    chmodSync(join(path, 'tcpdump'), 0o755);
    return `${path}:${process.env.PATH}`;
  }

  it('shows packets as they come and keeps the capture; Ctrl-C ends it well, with the flows', async () => {
    const file = join(folder, 'kept.pcap');
    // Ends as tcpdump does, and not before it is told to.
    const tcpdump = `trap 'echo "7 packets captured" >&2; exit 0' TERM; cat '${fixture('roce-small.pcap')}'; while :; do sleep 0.05; done`;
    const started = start(['capture', 'eth0', '-w', file], { env: { PATH: programs(tcpdump) } });
    await started.untilOutput('RC_ACKNOWLEDGE');
    started.child.kill('SIGINT');
    const { code, stdout, stderr } = await started.ended;
    expect([code, stderr]).toEqual([0, '7 packets captured\n']);
    expect(stdout).toContain('324 RoCE packets in 22 flows');
    expect(readFileSync(file)).toEqual(readFileSync(fixture('roce-small.pcap')));
  });

  it('stops after a count, and stops the program', async () => {
    const tcpdump = `cat '${fixture('roce-small.pcap')}'; exec sleep 1000`;
    const { code, stdout } = await command(['capture', 'eth0', '--count', '5', '--json'], {
      env: { PATH: programs(tcpdump) },
    });
    expect(jsonLines(stdout).filter(({ type }) => type === 'packet')).toHaveLength(5);
    expect(code).toBe(0);
  });

  it('stops after a time, and says when that is longer than a timer can be', async () => {
    const env = { PATH: programs(`cat '${fixture('roce-small.pcap')}'; exec sleep 1000`) };
    const { code, stdout } = await command(['capture', 'eth0', '--duration', '0.2505', '--show', 'flows'], { env });
    expect(stdout).toContain('324 RoCE packets in 22 flows');
    expect(code).toBe(0);
    // Which does not run before tcpdump has begun.
    const late = { PATH: programs(`sleep 0.3; cat '${fixture('roce-small.pcap')}'; exec sleep 1000`) };
    const begun = await command(['capture', 'eth0', '--duration', '0.2', '--show', 'flows'], { env: late });
    expect([begun.code, begun.stdout]).toEqual([0, expect.stringContaining('324 RoCE packets in 22 flows')]);
    const endless = await command(['capture', 'eth0', '--duration', '2147484'], { env });
    expect([endless.code, endless.stderr]).toEqual([2, expect.stringContaining('Up to 2147483 seconds.')]);
  });

  it('says that the file to keep takes no more, and stops the program', async () => {
    const env = { PATH: programs(`cat '${fixture('roce-small.pcap')}'; exec sleep 1000`) };
    const { code, stderr } = await command(['capture', 'eth0', '-w', '/dev/full'], { env });
    expect([code, stderr]).toEqual([1, 'node-rdma: ENOSPC: no space left on device, write\n']);
  });

  it("gives the program's words once when it fails", async () => {
    const tcpdump = 'printf "tcpdump: eth9: No such device exists\\n(No such device exists)\\n" >&2; exit 1';
    const { code, stderr } = await command(['capture', 'eth9'], { env: { PATH: programs(tcpdump) } });
    expect(stderr).toMatch(/^node-rdma: \S+\/tcpdump: eth9: No such device exists\n$/);
    expect(code).toBe(1);
  });

  it('says what to install where there is neither tcpdump nor dumpcap', async () => {
    const { code, stderr } = await command(['capture', 'eth0'], { env: { PATH: '/nonexistent' } });
    expect(stderr).toBe('node-rdma: capturing takes tcpdump or dumpcap: apt-get install -y tcpdump\n');
    expect(code).toBe(3);
  });

  it('takes no option for an interface, nor for a filter', async () => {
    expect(await command(['capture', '--', '-r/etc/passwd'])).toMatchObject({ code: 2, stdout: '' });
    const env = { PATH: programs('echo "$*" >&2; exit 1') };
    const { code, stderr } = await command(['capture', 'eth0', '--filter=-z reboot'], { env });
    expect(stderr.split('\n')[0]).toMatch(/ -i eth0 -w - -- -z reboot$/);
    expect(code).toBe(1);
  });
});
