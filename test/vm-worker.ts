/** What {@link vmPool} starts in the VM: the part of vitest that runs tests. It has vitest's messages on 3 and answers on 4. */
import { writeSync } from 'node:fs';
import { Socket } from 'node:net';
import { init, runBaseTests, setupEnvironment } from 'vitest/worker';
import { frame, unframe } from './vm-frames.ts';

// Tests may replace it.
const exit = process.exit.bind(process);
const input = new Socket({ fd: 3 });
const takers = new Set<(message: unknown) => void>();
input.on(
  'data',
  unframe((message) => {
    for (const take of [...takers]) take(message);
  }),
);
input.on('end', () => exit(0));

init({
  // At once, so that nothing is lost in a crash.
  post: (message) => {
    const bytes = frame(message);
    for (let at = 0; at < bytes.length; ) at += writeSync(4, bytes, at);
  },
  on: (take) => takers.add(take),
  off: (take) => takers.delete(take),
  setup: setupEnvironment,
  runTests: (state, traces) => runBaseTests('run', state, traces),
  collectTests: (state, traces) => runBaseTests('collect', state, traces),
});
