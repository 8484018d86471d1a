import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';

const read = (path: string) => readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8');

describe('README.md', () => {
  it('shows examples/write.mjs as it is', () => {
    const [block] = read('README.md').match(/(?<=\[examples\/write\.mjs\]\(.*?\):\n\n```js\n).*?(?=```\n)/s) ?? [];
    expect(block).toBe(read('examples/write.mjs'));
  });
});
