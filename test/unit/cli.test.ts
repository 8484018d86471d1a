import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { command, main, start } from './command.ts';

const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'));
const withoutLibrary = { NODE_RDMA_LIBIBVERBS: '/nonexistent/libibverbs.so.1' };

describe('node-rdma', () => {
  it('prints its version', async () => {
    expect(await command(['--version'])).toMatchObject({ code: 0, stdout: `${version}\n`, stderr: '' });
  });

  it('lists its subcommands and exit codes for --help', async () => {
    const { code, stdout } = await command(['--help']);
    expect(code).toBe(0);
    const commands = stdout.slice(stdout.indexOf('Commands:'), stdout.indexOf('Exit codes:'));
    const listed = [...commands.matchAll(/^ {2}([a-z]+) (?=[ [<])/gm)].map(([, name]) => name);
    const talking = ['ping', 'pingpong', 'perf', 'serve', 'cp'];
    const looking = ['counters', 'export', ...talking, 'topo', 'doctor', 'softroce', 'sim', 'vm', 'completion'];
    expect(listed).toEqual(['devices', 'devinfo', 'gids', 'decode', 'capture', ...looking, 'help']);
    expect(stdout).toContain('the command line is wrong');
  });

  it.each([
    [['bogus'], "unknown command 'bogus'"],
    [['help', 'devces'], "unknown command 'devces'\n(Did you mean devices?)"],
    [['gids', '--bogus'], "unknown option '--bogus'"],
    [['decode'], "missing required argument 'file'"],
    [['decode', 'x', '--qp', '99999999'], 'From 0 to 16777215.'],
    [['decode', 'x', '--show', 'nothing'], 'Allowed choices are packets, events, flows'],
  ])('says on stderr what is wrong with %j, with exit code 2', async (args, message) => {
    const { code, stdout, stderr } = await command(args);
    expect(stderr).toContain(message);
    expect([code, stdout]).toEqual([2, '']);
  });

  it('says of vm with exit code 125 that it is wrong, as 1 and 2 are what its command may say', async () => {
    for (const wrong of [['--cpus', 'none'], ['--bogus']]) {
      const { code, stderr } = await command(['vm', ...wrong]);
      expect([code, stderr]).toEqual([125, expect.stringContaining('(--help tells how it is used)')]);
    }
  });

  it.each([
    'topo',
    'doctor --json',
    'completion bash',
    'sim loss --packets 1000',
    'decode test/fixtures/roce-small.pcap',
    'decode test/fixtures/roce-small.pcap --json',
  ])('%s says in a line that its output takes no more, with exit code 1', async (line) => {
    const { code, stderr } = await command([], { shell: `node-rdma ${line} >/dev/full` });
    expect([code, stderr]).toEqual([1, 'node-rdma: ENOSPC: no space left on device, write\n']);
  });

  it.each(['devices', 'devinfo', 'gids'])(
    '%s says what to install where there is no libibverbs, with exit code 3',
    async (name) => {
      const { code, stdout, stderr } = await command([name], { env: withoutLibrary });
      expect(stderr).toMatch(
        /^node-rdma: \/nonexistent\/libibverbs\.so\.1 cannot be loaded .*apt-get install .*; "node-rdma doctor" says why\n$/,
      );
      expect([code, stdout]).toEqual([3, '']);
    },
  );
});

describe('node-rdma completion', () => {
  /** What bash offers behind these words. */
  async function offered(...words: string[]): Promise<string[]> {
    const line = words.map((word) => `'${word}'`).join(' ');
    const script = `source <(node-rdma completion bash); COMP_WORDS=(node-rdma ${line}); COMP_CWORD=${words.length}; _node_rdma; printf '%s\\n' "\${COMPREPLY[@]}"`;
    const { code, stdout, stderr } = await command([], { shell: script });
    expect([code, stderr]).toEqual([0, '']);
    return stdout.split('\n').filter(Boolean);
  }

  it('makes bash offer subcommands, options and values', async () => {
    expect(await offered('dev')).toEqual(['devices', 'devinfo']);
    expect(await offered('gids', '--j')).toEqual(['--json']);
    expect(await offered('decode', '--show', '')).toEqual(['packets', 'events', 'flows']);
    expect(await offered('perf', 'write-')).toEqual(['write-bw', 'write-lat']);
    expect(await offered('completion', '')).toEqual(['bash', 'zsh']);
    expect(await offered('sim', '')).toEqual(['loss', 'dcqcn', 'pfc', 'ecmp']);
    expect(await offered('softroce', '')).toEqual(['add', 'remove', 'list']);
  });

  it('makes bash offer values behind the short name of an option, of the subcommand that it is an option of', async () => {
    expect(await offered('pingpong', '-t', '')).toEqual(['rc', 'uc', 'ud']);
    expect(await offered('perf', 'write-bw', '-m', '1')).toEqual(['1024']);
    expect(await offered('perf', '-t', '')).toEqual([]);
  });

  it.each([[['decode', '']], [['cp', 'x', '']], [['capture', '-w', '']], [['perf', 'read-bw', '']]])(
    'makes bash offer nothing of its own behind %j, and so files',
    async (words) => {
      expect(await offered(...words)).toEqual([]);
    },
  );

  it('makes zsh offer the same', async () => {
    /** What its function gives to zsh, which takes what fits. */
    const given = async (...words: string[]) => {
      const script = `compdef() { :; }; _default() { print a file; }; compadd() { shift; print -l -- "$@"; }; source <("$0" "$1" completion zsh)
words=(node-rdma ${words.map((word) => `'${word}'`).join(' ')}); CURRENT=$#words; _node_rdma`;
      const line = `exec zsh -fc '${script.replaceAll("'", "'\\''")}' '${process.execPath}' '${main}'`;
      const { code, stdout, stderr } = await command([], { shell: line });
      expect([code, stderr]).toEqual([0, '']);
      return stdout.split('\n').filter(Boolean);
    };
    expect(await given('dev')).toEqual(expect.arrayContaining(['devices', 'devinfo', 'vm']));
    expect(await given('-')).toEqual(['--version', '--help']);
    expect(await given('gids', '--j')).toEqual(['--json', '--help']);
    expect(await given('decode', '--show', '')).toEqual(['packets', 'events', 'flows']);
    expect(await given('pingpong', '-t', '')).toEqual(['rc', 'uc', 'ud']);
    expect(await given('softroce', 'add', '-')).toEqual(['--json', '--help']);
    expect(await given('softroce', 'add', '')).toEqual(['a file']);
  });

  it('knows no other shell', async () => {
    expect(await command(['completion', 'cmd'])).toMatchObject({ code: 2, stdout: '' });
  });
});

describe('on a terminal', () => {
  const inTerminal = (args: string, env: Record<string, string>) =>
    start([], {
      shell: `script -qec "'${process.execPath}' '${main}' ${args}" /dev/null`,
      env: { TERM: 'xterm-256color', ...env },
      input: '',
    }).ended;
  const lossy = 'decode test/fixtures/roce-lossy.pcapng --show flows';

  it('there are colours, unless NO_COLOR is set', async () => {
    expect((await inTerminal(lossy, {})).stdout).toContain('\x1b[33mwarning\x1b[0m');
    expect((await inTerminal(lossy, { NO_COLOR: '1' })).stdout).not.toContain('\x1b[');
  });

  it('elsewhere there are none', async () => {
    expect((await command(lossy.split(' '))).stdout).not.toContain('\x1b[');
  });
});
