import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';

const main = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url));

function start(args: string[], program = process.execPath): { child: ChildProcess; output: () => string } {
  const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'pipe'] });
  let output = '';
  for (const stream of [child.stdout!, child.stderr!]) stream.on('data', (chunk) => (output += chunk));
  return { child, output: () => output };
}

async function until(what: string, isTrue: () => boolean, ms: number): Promise<void> {
  const deadline = performance.now() + ms;
  while (!isTrue()) {
    if (performance.now() > deadline) throw new Error(`${what}: not within ${ms} ms`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Waits for a text in the output of a VM that is booting. */
async function untilOutput(text: string, { child, output }: ReturnType<typeof start>): Promise<void> {
  await until(text, () => output().includes(text) || child.exitCode !== null, 120_000);
  expect(output()).toContain(text);
}

interface Process {
  name: string;
  state: string;
  parent: number;
}

function processOf(pid: number): Process | undefined {
  try {
    const [, name = '', state = '', parent] =
      /\((.*)\) (\S) (\d+)/.exec(readFileSync(`/proc/${pid}/stat`, 'utf8')) ?? [];
    return { name, state, parent: Number(parent) };
  } catch {
    return undefined;
  }
}

/** The id of the QEMU that a process has started. */
async function qemuOf(parent: number): Promise<number> {
  const find = () =>
    readdirSync('/proc')
      .map(Number)
      .find((pid) => processOf(pid)?.parent === parent && processOf(pid)?.name.startsWith('qemu'));
  await until('QEMU runs', () => find() !== undefined, 10_000);
  return find()!;
}

/** Where nobody reaps orphans, a process that has ended stays as a zombie. */
function hasEnded(pid: number): boolean {
  return (processOf(pid)?.state ?? 'Z') === 'Z';
}

describe('node-rdma vm', { timeout: 180_000 }, () => {
  it('ends quickly and without a left-over by SIGINT, with exit code 130', async () => {
    const started = start([main, 'vm', 'sh', '-c', 'trap "" INT TERM; echo running; sleep 1000']);
    const { child } = started;
    const qemu = await qemuOf(child.pid!);
    await untilOutput('running', started);
    const begin = performance.now();
    child.kill('SIGINT');
    expect(await once(child, 'exit')).toEqual([130, null]);
    expect(performance.now() - begin).toBeLessThan(3000);
    expect(hasEnded(qemu)).toBe(true);
  });

  it('takes QEMU along when it is killed', async () => {
    const { child } = start([main, 'vm', 'sleep', '1000']);
    const qemu = await qemuOf(child.pid!);
    child.kill('SIGKILL');
    await until('QEMU has gone', () => hasEnded(qemu), 3000);
  });

  it('exits with 70 and shows the kernel log when the kernel crashes', async () => {
    // When its words have come out: a crash takes along what is on its way.
    const started = start([main, 'vm', 'sh', '-c', 'echo before; read line; echo c >/proc/sysrq-trigger']);
    const { child, output } = started;
    await untilOutput('before\n', started);
    child.stdin!.end('go\n');
    expect(await once(child, 'close')).toEqual([70, null]);
    expect(output()).toContain('ERR_VM_KERNEL_OOPS');
    expect(output()).toContain('Kernel panic - not syncing: sysrq triggered crash');
  });

  it('gives a command that is started from a terminal a terminal', async () => {
    const quoted = `'${process.execPath}' '${main}' vm sh -c 'stty size; read line; echo "<$line>"; tty; sleep 1000'`;
    const started = start(['-qec', `stty rows 33 cols 77; ${quoted}`, '/dev/null'], 'script');
    const { child } = started;
    await untilOutput('33 77', started);
    child.stdin!.write('typed\r');
    await untilOutput('<typed>\r\n/dev/hvc0\r\n', started);
    child.stdin!.write('\x03');
    expect(await once(child, 'close')).toEqual([130, null]);
  });
});
