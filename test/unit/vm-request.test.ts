import { execFileSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { quote, requestScript } from '../../lib/vm/request.ts';

const awkward = [
  '',
  ' ',
  "it's",
  '"',
  '$HOME `id` \\',
  'two\nlines\n',
  '-n',
  '*',
  'grüße 世界 🦀',
  '\u0081\u0088\x1b\x7f',
  "''",
];

describe('quote', () => {
  it('gives words that a shell reads as exactly the text', () => {
    const printed = execFileSync('sh', ['-c', `printf '%s\\0' ${awkward.map(quote).join(' ')}`], { encoding: 'utf8' });
    expect(printed.split('\0').slice(0, -1)).toEqual(awkward);
  });
});

describe('requestScript', () => {
  const base = { cwd: '/', hostname: 'h', modules: '/m', token: 'abc', command: 'printf', args: ['%s\\0', ...awkward] };
  const run = (script: string, then: string) =>
    execFileSync('sh', ['-c', `${script}\n${then}`], { encoding: 'utf8', env: { LEAK: '1' } });

  it('runs the command with its arguments', () => {
    const printed = run(requestScript({ ...base, env: process.env }), 'run');
    expect(printed.split('\0').slice(0, -1)).toEqual(awkward);
  });

  it('gives the command the environment asked for and no other', () => {
    const env = { A: "it's\n$B", PATH: process.env.PATH, 'BASH_FUNC_f%%': '() { :; }', UNSET: undefined };
    const printed = run(requestScript({ ...base, env, command: 'env', args: ['-0'] }), 'run');
    expect(printed.split('\0').slice(0, -1).sort()).toEqual(
      ["A=it's\n$B", `PATH=${process.env.PATH}`, 'BASH_FUNC_f%%=() { :; }', 'NODE_RDMA_VM=1'].sort(),
    );
  });

  it('names directory, host and writable folder', () => {
    const script = requestScript({ ...base, env: {}, cwd: "/a b/'c", out: '/o\n', tty: { rows: 24, columns: 80 } });
    expect(run(script, 'printf "%s|" "$cwd" "$hostname" "$modules" "$token" "$out" "$tty"')).toBe(
      "/a b/'c|h|/m|abc|/o\n|sane rows 24 cols 80|",
    );
  });
});
