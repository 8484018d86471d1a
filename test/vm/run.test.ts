import { createHash, randomBytes } from 'node:crypto';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable, Writable } from 'node:stream';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { runInVm, type VmOptions, type VmResult } from '../../lib/vm/index.ts';

/** Keeps what is written to it. */
class Sink extends Writable {
  readonly chunks: Buffer[] = [];
  override _write(chunk: Buffer, _encoding: string, done: () => void): void {
    this.chunks.push(chunk);
    done();
  }
  get bytes(): Buffer {
    return Buffer.concat(this.chunks);
  }
}

const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');

async function run(options: VmOptions) {
  const stdout = new Sink();
  const stderr = new Sink();
  const outcome: VmResult | Error = await runInVm({ stdout, stderr, ...options }).catch((error: Error) => error);
  return { outcome, stdout: stdout.bytes, stderr: stderr.bytes };
}

// A boot takes seven seconds and more, so one guest answers many questions.
describe('runInVm', () => {
  const folder = mkdtempSync(join(tmpdir(), "node-rdma vm 'test' "));
  const out = join(folder, 'new', 'results');
  const read = (name: string) => readFileSync(join(out, name), 'utf8');
  const args = [
    '',
    ' ',
    "it's",
    '"',
    '$HOME `id` \\',
    'two\nlines\n',
    '-n',
    '*',
    'grüße 世界 🦀',
    '\u0081\u0088\x1b\x7f',
  ];
  const input = randomBytes(5_000_000);
  const notes = randomBytes(300_000);
  let result: Awaited<ReturnType<typeof run>>;

  const script = `
pwd >"$OUT/pwd"
cd "$OUT"
printf '%s\\0' "$@" >args
env -0 >env
ibv_devinfo >devices
touch ../outside /etc/node-rdma-test && ls ../outside /etc/node-rdma-test >written
tty >tty
trap '' TERM
sleep 1000 &
tcpdump -Z root --immediate-mode -s 2048 -B 16384 -i v0 -c 160 -w capture.pcap udp port 4791 2>tcpdump &
capture=$!
until grep -q listening tcpdump; do sleep 0.1; done
ibv_rc_pingpong -d rxe1 -g 1 -n 20 >server &
until ibv_rc_pingpong -d rxe0 -g 1 -n 20 10.78.0.2 >client 2>&1; do sleep 0.2; done
wait $!
wait $capture
cat "$NOTES" >&2
cat
kill -KILL $$
`;

  beforeAll(async () => {
    writeFileSync(join(folder, 'script'), script);
    writeFileSync(join(folder, 'notes'), notes);
    const env = { PATH: process.env.PATH, OUT: out, NOTES: join(folder, 'notes'), QUOTED: "it's\n$B" };
    const command = { command: '/bin/sh', args: ['script', ...args], cwd: folder, env, out };
    result = await run({ ...command, stdin: Readable.from([input]), timeoutMs: 120_000 });
    if (result.outcome instanceof Error) throw result.outcome;
  }, 300_000);
  afterAll(() => rmSync(folder, { recursive: true }));

  it('ends with 128 + the signal that killed the command, and ends what the command left running', () => {
    expect(result.outcome).toMatchObject({ code: 128 + 9 });
  });

  it('passes standard input, output and error on, each by itself and byte for byte', () => {
    expect(result.stdout.length).toBe(input.length);
    expect(sha256(result.stdout)).toBe(sha256(input));
    expect(sha256(result.stderr)).toBe(sha256(notes));
    expect(read('tty')).toBe('not a tty\n');
  });

  it('hands over arguments with any characters', () => {
    expect(read('args').split('\0').slice(0, -1)).toEqual(args);
  });

  it('gives the command the environment asked for', () => {
    expect(read('env').split('\0')).toEqual(
      expect.arrayContaining([`OUT=${out}`, "QUOTED=it's\n$B", 'NODE_RDMA_VM=1']),
    );
    expect(read('env')).not.toContain('VITEST');
  });

  it('runs in the directory asked for', () => {
    expect(read('pwd')).toBe(`${folder}\n`);
  });

  it('keeps what is written to the out directory, and nothing else', () => {
    expect(read('written')).toBe('../outside\n/etc/node-rdma-test\n');
    expect(existsSync(join(out, '../outside'))).toBe(false);
    expect(existsSync('/etc/node-rdma-test')).toBe(false);
  });

  it('has two active devices', () => {
    expect(read('devices').match(/^hca_id:\s+(\S+)/gm)).toEqual(['hca_id:\trxe0', 'hca_id:\trxe1']);
    expect(read('devices').match(/PORT_ACTIVE/g)).toHaveLength(2);
  });

  it('joins them by a wire on which the packets of a ping-pong can be captured', () => {
    expect(read('client')).toMatch(/20 iters in/);
    expect(read('server')).toMatch(/20 iters in/);
    // 20 messages of 4 KiB each way in packets of 1 KiB, and acknowledgements behind them: tcpdump ends by itself, when it
    // has written 160.
    expect(read('tcpdump')).toContain('160 packets captured');
    const capture = readFileSync(join(out, 'capture.pcap'));
    const source = Buffer.from([10, 78, 0, 1, 10, 78, 0, 2]);
    expect(capture.includes(source)).toBe(true);
  });
});

describe('a guest whose kernel', { timeout: 180_000 }, () => {
  it('warns makes a content command fail, at the end', async () => {
    const kmsg = `echo '<4>------------[ cut here ]------------' >/dev/kmsg; echo '<4>WARNING: made up' >/dev/kmsg`;
    const { outcome, stdout } = await run({ command: 'sh', args: ['-c', `${kmsg}; echo done`] });
    expect(stdout.toString()).toBe('done\n');
    expect(outcome).toMatchObject({ code: 'ERR_VM_KERNEL_OOPS', message: expect.stringContaining('WARNING: made up') });
  });
});

describe('limits', { timeout: 180_000 }, () => {
  it('end a command that takes longer than timeoutMs', async () => {
    const { outcome, stdout } = await run({ command: 'sh', args: ['-c', 'echo begun; sleep 1000'], timeoutMs: 2000 });
    expect(outcome).toMatchObject({ code: 'ERR_VM_TIMEOUT' });
    expect(stdout.toString()).toBe('begun\n');
  });

  it('end at once by an AbortSignal, with its reason', async () => {
    const reason = new Error('enough');
    const abort = new AbortController();
    setTimeout(() => abort.abort(reason), 500);
    const begin = performance.now();
    const { outcome } = await run({ command: 'true', signal: abort.signal });
    expect(outcome).toBe(reason);
    expect(performance.now() - begin).toBeLessThan(5000);
  });
});
