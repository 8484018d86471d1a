import { describe, expect, it } from 'vitest';
import { copyJob } from '../../lib/cli/cp.ts';
import { namesOf, partName } from '../../lib/copy/folder.ts';
import { command } from './command.ts';

describe('copyJob()', () => {
  it('tells the host from the path', () => {
    expect(copyJob(['a', 'host:'])).toEqual({ host: 'host', direction: 'put', sources: ['a'], target: '' });
    expect(copyJob(['./a:b', '/c:d', 'host:x/y'])).toEqual({
      ...{ host: 'host', direction: 'put', sources: ['./a:b', '/c:d'] },
      target: 'x/y/',
    });
    expect(copyJob(['[fe80::1%eth0]:a:b', '.'])).toEqual({
      ...{ host: 'fe80::1%eth0', direction: 'get', sources: ['a:b'], target: '.' },
    });
    expect(copyJob(['host:a', 'host:b', 'dir'])).toMatchObject({ sources: ['a', 'b'], target: 'dir/' });
  });

  it.each([
    [['a'], 'cp needs what to copy, and where to'],
    [['a', 'b'], 'no path names a host: HOST:PATH'],
    [['host:a', 'host:b'], 'one side must be this one'],
    [['host:a', 'other:b', '.'], 'all files must come from one host'],
    [['host:a', 'b', '.'], 'all files must come from one host'],
  ])('refuses %j', (paths, message) => {
    expect(() => copyJob(paths)).toThrow(`${message} (--help tells how it is used)`);
  });
});

describe('namesOf()', () => {
  it('takes paths below a directory', () => {
    expect([namesOf(''), namesOf('.'), namesOf('a//b/./c/')]).toEqual([[], [], ['a', 'b', 'c']]);
    expect(namesOf('..a/b..')).toEqual(['..a', 'b..']);
  });

  it.each(['/', '/a', '..', 'a/..', '../a', 'a/../../b', 'a\0', `a/${partName('b')}`])('refuses %j', (path) => {
    expect(() => namesOf(path)).toThrow(expect.objectContaining({ code: 'ERR_COPY_PATH' }));
  });
});

describe('node-rdma cp', () => {
  it('ends with exit code 2 when it is used wrongly', async () => {
    expect(await command(['cp', 'a', 'b'])).toMatchObject({
      ...{ code: 2, stdout: '' },
      stderr: 'node-rdma: no path names a host: HOST:PATH (--help tells how it is used)\n',
    });
  });
});
