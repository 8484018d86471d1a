import { describe, expect, it } from 'vitest';
import { runChild } from './children.ts';
import { isRxe } from './fixture.ts';

const stages = ['opened', 'pd', 'mr-pending', 'mr', 'cq', 'waiting', 'connected', 'in-flight'];
const ends = {
  exit: { code: 7, signal: null },
  throw: { code: 1, signal: null },
  signal: { code: null, signal: 'SIGTERM' },
  nothing: { code: 0, signal: null },
};
type End = keyof typeof ends;

// A wait keeps the process alive, so there is no such end there.
const waits = ['waiting', 'in-flight'];
const all = stages.flatMap((stage) =>
  (Object.keys(ends) as End[])
    .filter((end) => end !== 'nothing' || !waits.includes(stage))
    .map((end) => [stage, end] as const),
);
// Starting Node takes seconds in an emulated VM: there each end comes once, at the stages that have what the others have, and
// at those of the connection manager, which only that kernel has. The last is where something is under way.
const few = [
  ['cm-connecting,mr-pending', 'throw'],
  ['cm-connecting,waiting', 'signal'],
  ['cm-idle,connected', 'nothing'],
  ['cm-connected,in-flight,cm-resolving', 'exit'],
] as const;
const chosen: readonly (readonly [stage: string, end: End])[] = isRxe ? few : all;

describe('a process', () => {
  const used = [...new Set(chosen.map(([stage]) => stage))];
  it.concurrent.each(used)('at the stage "%s" ends as it was told to, at once and without a crash', async (stage) => {
    const mine = chosen.filter(([name]) => name === stage);
    expect(mine.length).toBeGreaterThan(0);
    await Promise.all(
      mine.map(async ([, end]) => {
        let isKilled = false;
        const result = await runChild('stage', [stage, end], {
          onOutput: (text, kill) => {
            if (end !== 'signal' || isKilled || !text.includes('at ')) return;
            isKilled = true;
            kill('SIGTERM');
          },
        });
        const { code, signal, stdout, stderr } = result;
        expect({ end, stdout, code, signal, stderr: end === 'throw' ? '' : stderr }).toEqual({
          end,
          stdout: `at ${stage}\n`,
          stderr: '',
          ...ends[end],
        });
        if (end === 'throw') expect(stderr).toContain('Error: deliberate');
        expect(stderr).not.toMatch(/Sanitizer|model|FATAL|terminate/i);
      }),
    );
  });
});
