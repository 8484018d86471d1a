import { describe, expect, it } from 'vitest';
import { edited } from '../../lib/vm/rxe-dmabuf.ts';
import { edits } from '../../lib/vm/rxe-dmabuf-sources.ts';

describe('the edits of rxe', () => {
  const edit = { file: 'rxe.h', at: /^first line\n/m, text: 'added\n' };

  it('go in front of their place, or behind it', () => {
    const text = '/* a file */\nfirst line\nlast line\n';
    expect(edited(text, { ...edit, place: 'before' })).toBe('/* a file */\nadded\nfirst line\nlast line\n');
    expect(edited(text, { ...edit, place: 'after' })).toBe('/* a file */\nfirst line\nadded\nlast line\n');
  });

  it('fail where their place is missing, or there twice', () => {
    for (const [text, count] of [
      ['last line\n', 0],
      ['first line\nfirst line\n', 2],
    ] as const) {
      expect(() => edited(text, { ...edit, place: 'after' })).toThrow(
        `its rxe is another one: rxe.h has ${count} places like /^first line\\n/m, not one`,
      );
    }
  });

  it('are of files of rxe', () => {
    expect(new Set(edits.map(({ file }) => file))).toEqual(
      new Set(['Makefile', 'rxe_loc.h', 'rxe_mr.c', 'rxe_verbs.c', 'rxe_verbs.h']),
    );
  });
});
