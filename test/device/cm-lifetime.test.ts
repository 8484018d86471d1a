import { readdirSync } from 'node:fs';
import { Worker } from 'node:worker_threads';
import { expect, it } from 'vitest';
import { createEventChannel } from '../../lib/index.ts';
import { binding } from '../../lib/native/binding.ts';
import { childPath, runChild } from './children.ts';
import { describeCm, listening, newPort } from './cm.ts';
import { collect, DEADLINE_MS, until, within } from './fixture.ts';

const openFds = (): number => readdirSync('/proc/self/fd').length;

describeCm('the connection manager', () => {
  it.concurrent.each([
    ['resolving', 'exit', { code: 7, signal: null }],
    ['connecting', 'throw', { code: 1, signal: null }],
    ['connecting', 'signal', { code: null, signal: 'SIGTERM' }],
    ['connected', 'exit', { code: 7, signal: null }],
    ['connected', 'nothing', { code: 0, signal: null }],
  ] as const)('a process at the stage "%s" ends by %s, at once and without a crash', async (stage, end, expected) => {
    let isKilled = false;
    const { code, signal, stdout, stderr } = await runChild('cm-stage', [stage, end], {
      onOutput: (text, kill) => {
        if (end !== 'signal' || isKilled || !text.includes('at ')) return;
        isKilled = true;
        kill('SIGTERM');
      },
    });
    expect({ code, signal, stdout }).toEqual({ ...expected, stdout: `at ${stage}\n` });
    if (end === 'throw') expect(stderr).toContain('Error: deliberate');
    else expect(stderr).toBe('');
  });

  it.each(['resolving', 'connecting', 'connected'])(
    'a worker that is terminated at "%s" leaves nothing',
    async (stage) => {
      const before = openFds();
      const worker = new Worker(childPath('cm-stage'), { argv: [stage, 'signal'] });
      const at = await within(
        new Promise((resolve, reject) => {
          worker.once('message', resolve);
          worker.once('error', reject);
        }),
        `the stage ${stage}`,
      );
      expect(at).toBe(stage);
      expect(await within(worker.terminate(), 'the termination')).toBe(1);
      // librdmacm keeps the devices that it has opened: one descriptor each for commands and for events.
      const kept = 2 * 2;
      await until(() => openFds() <= before + kept, `the ${openFds()} descriptors go back to ${before}`);
    },
  );

  it('a channel that is forgotten goes with its ids, and is counted', { timeout: 2 * DEADLINE_MS }, async () => {
    await collect();
    const before = binding().census();
    await (async () => {
      const channel = createEventChannel();
      await listening(channel, newPort());
    })();
    await collect();
    await until(() => binding().census().open <= before.open, 'the channel is collected');
    // The channel, its watcher, and the id.
    expect(binding().census().leaked - before.leaked).toBe(3);
  });
});
