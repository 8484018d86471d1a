/**
 * Commands whose two sides talk over the wire, beside the programs that they are like. Each start of node takes seconds in an
 * emulated VM: one side is in this process.
 */
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { serveCopies } from '../../lib/copy/connection.ts';
import { partName } from '../../lib/copy/folder.ts';
import type { ServedFile } from '../../lib/copy/server.ts';
import { parseEthtool, readCounters } from '../../lib/observe/index.ts';
import { runPerfServer } from '../../lib/perf/perf.ts';
import { start } from '../unit/command.ts';
import { addressA, addressB, newPort } from './cm.ts';
import { command, run } from './command.ts';
import { deviceA, deviceB, isRxe } from './fixture.ts';

/** Asks now and then: the processors are for the programs. */
async function until(condition: () => boolean, what: string): Promise<void> {
  const end = performance.now() + 120_000;
  while (!condition()) {
    if (performance.now() > end) throw new Error(`${what}: not within two minutes`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Runs a program of perftest, both sides of it. @returns what the client prints */
async function perftest(program: string, ...args: string[]): Promise<string> {
  const port = newPort();
  const line = (device: string) => `${program} -F -d ${device} -x 1 -p ${port} ${args.join(' ')}`;
  const server = start([], { shell: line(deviceA) });
  // It is refused until the server listens.
  const client = start([], {
    shell: `for i in $(seq 200); do ${line(deviceB)} 127.0.0.1 && exit; sleep 0.1; done; exit 9`,
  });
  const { code, stdout, stderr } = await client.ended;
  expect([code, (await server.ended).code], stderr).toEqual([0, 0]);
  return stdout;
}

/** The same by ours; the client is the command. */
async function ours(test: 'read-lat' | 'write-bw', ...args: string[]): Promise<string> {
  const port = newPort();
  const client = async () => {
    const flags = ['-d', deviceB, '-p', String(port), ...args];
    const { code, stdout, stderr } = await command(['perf', test, '127.0.0.1', ...flags]);
    expect([code, stderr]).toEqual([0, '']);
    return stdout;
  };
  let output: Promise<string> | undefined;
  const more = { portNum: 1, gidIndex: undefined, trafficClass: undefined, mtu: undefined, events: false };
  const signal = AbortSignal.timeout(120_000);
  await runPerfServer({ ...more, test, device: deviceA, port, signal }, () => {
    output = client();
    output.catch(() => {});
  });
  return output!;
}

/** Column names without the spaces between and in them, and the numbers below. */
function figures(output: string): { columns: string; numbers: number[] } {
  const lines = output.split('\n');
  const head = lines.findIndex((line) => line.includes('#bytes'));
  return { columns: lines[head]!.replace(/\s/g, ''), numbers: lines[head + 1]!.trim().split(/\s+/).map(Number) };
}

// The software device is of one process, and has neither wire nor connection manager.
describe.runIf(isRxe)('on the wire', { timeout: 300_000 }, () => {
  it.each([
    // The least latency, where one side has nothing to do: two that spin have no processor to spare here. The average of bandwidth.
    ['read-lat', 'ib_read_lat', ['-s', '8', '-n', '50'], 2],
    ['write-bw', 'ib_write_bw', ['-s', '65536', '-n', '100'], 3],
  ] as const)("perf %s gives %s's columns, and figures of the same order", async (test, program, args, column) => {
    const theirs = figures(await perftest(program, ...args));
    const own = figures(await ours(test, ...args));
    expect(own.columns).toBe(theirs.columns);
    expect(own.numbers.slice(0, 2)).toEqual(theirs.numbers.slice(0, 2));
    expect(own.numbers).toHaveLength(theirs.numbers.length);
    // The units agree: no more is meant by this, and the next unit is a thousand times as large.
    const [ownFigure, theirFigure] = [own.numbers[column]!, theirs.numbers[column]!];
    // It measures its clock, and prints 0 where the machine is too busy for that.
    const figure = theirFigure === 0 ? ownFigure : theirFigure;
    expect(ownFigure).toBeGreaterThan(figure / 200);
    expect(ownFigure).toBeLessThan(figure * 200);
  });

  it('perf ends by Ctrl-C in the middle, and tells the other side', async () => {
    const port = newPort();
    const page = join(fs.mkdtempSync(join(tmpdir(), 'rdma-perf-')), 'page.html');
    let client: ReturnType<typeof start> | undefined;
    const more = { portNum: 1, gidIndex: undefined, trafficClass: undefined, mtu: undefined, events: true };
    const signal = AbortSignal.timeout(120_000);
    const served = runPerfServer({ ...more, test: 'write-bw', device: deviceA, port, signal }, () => {
      const flags = ['-e', '-a', '-D', '1', '-d', deviceB, '-p', String(port), '--html', page];
      client = start(['perf', 'write-bw', '127.0.0.1', ...flags]);
    }).then(
      () => undefined,
      (error: Error) => error,
    );
    await until(() => /^2\t\d+\t/m.test(client?.stdout ?? ''), 'the figures of the first size');
    client!.child.kill('SIGINT');
    const { code, stderr } = await client!.ended;
    expect([code, stderr]).toEqual([130, '']);
    expect(await served).toMatchObject({ code: 'ERR_PERF', message: 'the peer has closed the connection' });
    // With what was measured till then.
    expect(fs.readFileSync(page, 'utf8')).toContain('<td>2</td>');
    fs.rmSync(dirname(page), { recursive: true });
  });

  it('capture takes what goes through any interface', async () => {
    const captured = start(['capture', 'any', '--count', '8', '--json']);
    let isOver = false;
    void captured.ended.then(() => {
      isOver = true;
    });
    // When it has begun nobody says.
    while (!isOver) await ours('write-bw', '-s', '64', '-n', '4');
    const { code, stdout } = await captured.ended;
    const packets = stdout.split('\n').filter((line) => line.includes('"type":"packet"'));
    expect([code, packets.length]).toEqual([0, 8]);
    expect(stdout).toContain('"opcode":"RC_RDMA_WRITE_ONLY"');
  });

  it('pingpong plays with ibv_rc_pingpong, and tells addresses and times in its words', async () => {
    const port = String(newPort());
    const game = run(['pingpong', '-d', deviceA, '-p', port, '-n', '50', '-s', '1024']);
    await until(() => game.stdout.includes('local address'), 'the server');
    const client = `ibv_rc_pingpong -d ${deviceB} -g 1 -p ${port} -n 50 -s 1024 127.0.0.1`;
    const [{ code, stdout }, theirs] = await Promise.all([game.ended, start([], { shell: client }).ended]);
    expect([code, theirs.code]).toEqual([0, 0]);
    const shape = (text: string) =>
      text
        .trim()
        .replace(/0x[0-9a-f]+/g, 'HEX')
        .replace(/::ffff:[\d.]+/g, 'GID')
        .replace(/[\d.]+/g, 'NUMBER')
        .split('\n');
    expect(shape(stdout)).toEqual(shape(theirs.stdout));
  });

  it('cp ends by Ctrl-C in the middle, and is gone on with by the same command', async () => {
    const root = fs.mkdtempSync(join(tmpdir(), 'rdma-cp-'));
    const [source, served] = [join(root, 'file'), join(root, 'served')];
    fs.mkdirSync(served);
    const data = Buffer.alloc(12 << 20, randomBytes(4099));
    fs.writeFileSync(source, data);
    const port = newPort();
    const args = ['cp', source, `${addressB}:`, '-I', addressA, '-p', String(port)];
    const part = join(served, partName('file'));
    const files: ServedFile[] = [];
    const copies = async () => {
      const first = start(args, { input: '' });
      await until(() => fs.existsSync(part) && fs.statSync(part).size > 0, 'the first bytes');
      first.child.kill('SIGINT');
      expect(await first.ended).toMatchObject({
        ...{ code: 130, stdout: '' },
        stderr: expect.stringMatching(
          /^node-rdma: .*file: interrupted( at \d+ of 12582912 bytes)?; the same command goes on with what is there\n$/,
        ),
      });
      await until(() => files.length === 1, 'the end of the first');
      expect(fs.readdirSync(served)).toEqual([partName('file')]);

      const { code, stdout, stderr } = await command(args);
      expect([code, stderr]).toEqual([0, '']);
      expect(stdout).toMatch(/: 12582912 bytes, gone on at \d+, [\d.]+ s, [\d.]+ MB\/s, sha256 [0-9a-f]{64}\n$/);
      expect(fs.readdirSync(served)).toEqual(['file']);
      expect(fs.readFileSync(join(served, 'file')).equals(data)).toBe(true);
    };
    const abort = new AbortController();
    let done: Promise<void> | undefined;
    await serveCopies({
      ...{ folder: served, port, isTcp: false, device: undefined, localAddress: addressB, isReadOnly: false },
      ...{ maxConnections: 4, signal: abort.signal, onError: () => {} },
      onFile: (file) => files.push(file),
      onListening: () => {
        done = copies().finally(() => abort.abort());
        done.catch(() => {});
      },
    });
    await done;
    expect(files.map(({ path, error }) => [path, error !== undefined])).toEqual([
      ['file', true],
      ['file', false],
    ]);
    fs.rmSync(root, { recursive: true });
  });

  it('counters are those of ethtool -S', async () => {
    const listed = parseEthtool(execFileSync('ethtool', ['-S', 'v0'], { encoding: 'utf8' }));
    const [port] = await readCounters({ device: deviceA });
    const own = port!.counters.filter(({ source }) => source === 'ethtool');
    expect(listed.length).toBeGreaterThan(0);
    expect(own.map(({ name }) => name)).toEqual(listed.map(({ name }) => name));
    // Which interface is at the other end does not change.
    const peer = Number(fs.readFileSync('/sys/class/net/v1/ifindex', 'latin1'));
    expect(own.find(({ name }) => name === 'peer_ifindex')).toMatchObject({ value: BigInt(peer) });
  });
});
