/** Each program of examples/ as a reader would run it. */
import { execFile } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { resolve } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import { runPair as runSides } from '../../bench/rxe/measure.mjs';
import { runPair } from '../../examples/demo/interop.mjs';
import { deviceA, deviceB, isRxe, isSanitized } from './fixture.ts';

const ours = (name: string) => [process.execPath, resolve('examples', name)];

/** Programs that contain both sides, and what they print in the end. */
const whole = [
  ['raw-verbs.mjs', 'after 1000 writes the other side has 1000'],
  ['events.mjs', 'receive 4: message 5'],
  ['datagram.mjs', 'answer of 31 bytes: It is '],
  [
    'kv.mjs',
    'colour is green',
    '50 more reads, 0 calls of the server',
    '40 values read while they changed, all of them whole',
    '3 clients have counted to 30',
  ],
] as const;

/** Those that run elsewhere, and where. */
const elsewhere = {
  // Its port is none that one can see: beside rping.
  'cm-ping.mjs': 'cm-interop.test.ts',
  // It needs a device that registers DMA-BUFs.
  'gpu-target.mjs': 'dmabuf-processes.test.ts',
};

async function printed([program, ...args]: string[]): Promise<string> {
  return (await promisify(execFile)(program!, args, { timeout: 170_000, killSignal: 'SIGKILL' })).stdout;
}

// They know nothing of sanitizers, and each start with them takes seconds.
describe.skipIf(isSanitized)('examples', { timeout: 180_000 }, () => {
  it('are all here', () => {
    const names = [...whole.map(([name]) => name), ...Object.keys(elsewhere), 'write.mjs', 'pingpong.mjs', 'demo.mjs'];
    expect(readdirSync('examples').filter((name) => name.endsWith('.mjs'))).toEqual(names.sort());
  });

  // They are in one process, and where that is makes no difference to them. Each takes ten seconds in an emulated VM.
  it.skipIf(isRxe).each(whole)('%s', async (name, ...texts) => {
    const output = await printed([...ours(name), deviceA, deviceB]);
    for (const text of texts) expect(output).toContain(text);
  });

  // Two processes on the two ends of a wire.
  describe.runIf(isRxe)('with a process on each side', () => {
    it('write.mjs', async () => {
      const side = (device: string) => ['env', `NODE_RDMA_DEVICE=${device}`, ...ours('write.mjs')];
      const [server, client] = await runPair(side(deviceA), [...side(deviceB), '127.0.0.1'], 18515);
      expect(server).toContain('written into my memory: Hello from the other side!');
      expect(client).toContain('26 bytes written');
    });

    // It plays pingpong.mjs with ibv_rc_pingpong, both ways. As on a terminal.
    it('demo.mjs --checks-only', async () => {
      const demo = [...ours('demo.mjs'), '--checks-only', '--device', deviceA, '--device', deviceB];
      expect(await printed(['env', 'FORCE_COLOR=1', ...demo])).toContain('\x1b[32m✓ 12 of 12 verified\x1b[0m in ');
    });

    it('what figures come from, also where Node is told to use colours', async () => {
      const only = ['writeLat', 'sendLat', 'udLat', 'srqLat', 'readLat', 'atomicLat', 'writeBw', 'awaitedLat'];
      const sizes = { latencyBytes: 8, bandwidthBytes: 512, iterations: 3, only };
      const side = (role: string, device: string) => ({ role, device, gidIndex: 1, ...sizes });
      const command = ['env', 'FORCE_COLOR=1', process.execPath, resolve('bench/rxe/side.mjs')];
      const figures = await runSides(command, side('server', deviceB), side('client', deviceA));
      const figure = { best: expect.any(Number), typical: expect.any(Number) };
      expect(figures).toEqual(Object.fromEntries(only.map((name) => [name, figure])));
    });
  });
});
