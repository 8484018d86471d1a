/** The wire of the VM, made to lose packets, or to be slow. */
import { execFileSync } from 'node:child_process';

const ends = ['v0', 'v1'];
const tc = (...args: string[]): string => execFileSync('tc', args, { encoding: 'utf8' });

/** Makes it lose so many percent of the packets, in both directions. */
export function lose(percent: number): void {
  for (const end of ends) {
    if (percent > 0) tc('qdisc', 'replace', 'dev', end, 'root', 'netem', 'loss', `${percent}%`);
    else if (losses(end).length > 0) tc('qdisc', 'del', 'dev', end, 'root');
  }
}

/** Makes each packet take so many milliseconds more, in both directions; `lose(0)` undoes it. */
export function slow(milliseconds: number): void {
  for (const end of ends) tc('qdisc', 'replace', 'dev', end, 'root', 'netem', 'delay', `${milliseconds}ms`);
}

/** How many packets it has lost since it was last told to. */
export function lost(): number {
  return ends.flatMap(losses).reduce((sum, { drops }) => sum + drops, 0);
}

function losses(end: string): { drops: number }[] {
  const all = JSON.parse(tc('-s', '-j', 'qdisc', 'show', 'dev', end)) as { kind: string; drops: number }[];
  return all.filter(({ kind }) => kind === 'netem');
}
