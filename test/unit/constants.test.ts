import { readFileSync } from 'node:fs';
import { inspect } from 'node:util';
import { describe, expect, it } from 'vitest';
import * as api from '../../lib/index.ts';
import { binding } from '../../lib/native/binding.ts';
import { Layout } from '../../lib/native/layout.gen.ts';

const source = readFileSync(new URL('../../lib/native/constants.gen.ts', import.meta.url), 'utf8');

/** Object, name in JavaScript, name in C, as the generated file has them. */
function constants(): [object: string, name: string, cName: string][] {
  const found: [string, string, string][] = [];
  let object = '';
  let cName = '';
  for (const line of source.split('\n')) {
    object = /^export const (\w+) = /.exec(line)?.[1] ?? object;
    cName = /^ {2}\/\*\* `(\w+)`/.exec(line)?.[1] ?? cName;
    const name = /^ {2}(\w+): /.exec(line)?.[1];
    if (name !== undefined) found.push([object, name, cName]);
  }
  return found;
}

describe('the constants', () => {
  it('have the numbers of the header that the addon was compiled with, each and all', () => {
    const compiled = binding().constants;
    const seen = new Set<string>();
    for (const [object, name, cName] of constants()) {
      const value = (api as unknown as Record<string, Record<string, number>>)[object]?.[name];
      expect(value, `${object}.${name} (${cName})`).toBe(compiled[cName]);
      expect(cName.endsWith(name), `${name} is the tail of ${cName}`).toBe(true);
      seen.add(cName);
    }
    expect(Object.keys(compiled).filter((cName) => !seen.has(cName))).toEqual([]);
    expect(seen.size).toBeGreaterThan(200);
  });

  it('let no name pass that is not there, which | would make nothing of', () => {
    const objects = Object.entries(api).filter(([name]) => source.includes(`export const ${name} = `));
    expect(objects.length).toBeGreaterThan(20);
    for (const [name, object] of objects) {
      const values = object as unknown as Record<string, number>;
      expect(() => values.NOT_A_NAME, name).toThrow(
        expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE', message: `There is no ${name}.NOT_A_NAME` }),
      );
      expect('NOT_A_NAME' in values).toBe(false);
    }
  });

  it('look like plain objects to all else', () => {
    const { MwType } = api;
    expect(inspect(MwType)).toBe('{ MW_TYPE_1: 1, MW_TYPE_2: 2 }');
    expect(JSON.stringify(MwType)).toBe('{"MW_TYPE_1":1,"MW_TYPE_2":2}');
    expect({ ...MwType }).toEqual({ MW_TYPE_1: 1, MW_TYPE_2: 2 });
    expect(`${MwType}`).toBe('[object Object]');
    const names: string[] = [];
    for (const name in MwType) names.push(name);
    expect(names).toEqual(['MW_TYPE_1', 'MW_TYPE_2']);
    expect(structuredClone(MwType)).toEqual({ ...MwType });
  });

  it('cannot be changed', () => {
    expect(Object.isFrozen(api.WcStatus)).toBe(true);
    expect(() => {
      (api.WcStatus as { SUCCESS: number }).SUCCESS = 1;
    }).toThrow(TypeError);
  });
});

describe('the layout of the structs', () => {
  it('is that of the header that the addon was compiled with', () => {
    expect(binding().layout).toEqual(Layout);
    expect(Layout.sendWr.size % 8).toBe(0);
    expect(Layout.sge).toMatchObject({ size: 16, addr: 0, length: 8, lkey: 12 });
  });
});
