import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import * as roce from '../../lib/roce/index.ts';

const root = new URL('../../', import.meta.url);
const text = readFileSync(new URL('docs/roce.md', root), 'utf8');
// A block of code, and what it prints if the next block says so.
const blocks = [...text.matchAll(/^```js\n(.*?)^```\n(?:\n```text\n(.*?)^```)?/gms)];

/** Runs a block of code as a module would, with our source for the package. */
async function run(code: string): Promise<string> {
  const lines: string[] = [];
  const log = (...values: unknown[]) => lines.push(`${values.join(' ')}\n`);
  const modules: Record<string, object> = { 'node-rdma/roce': roce };
  for (const name of ['node:os', 'node:path']) modules[name] = await import(name);
  const body = code
    .replaceAll(/^import (\{.*\}) from ('.*');$/gm, 'const $1 = modules[$2];')
    .replaceAll("'test/fixtures/", `'${fileURLToPath(new URL('test/fixtures/', root))}`);
  const AsyncFunction = (async () => {}).constructor as new (
    ...args: string[]
  ) => (...args: unknown[]) => Promise<void>;
  await new AsyncFunction('modules', 'console', body)(modules, { log });
  return lines.join('');
}

describe('docs/roce.md', () => {
  it('has blocks of code', () => expect(blocks.length).toBe(6));

  it.each(blocks.map(([, code, prints], i) => [i + 1, code!, prints]))('block %i runs', async (_i, code, prints) => {
    const printed = await run(code as string);
    if (prints !== undefined) expect(printed).toBe(prints);
  });
});
