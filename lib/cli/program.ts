import { readFileSync } from 'node:fs';
import { Command } from 'commander';
import { Exit } from './frame.ts';

/** The subcommands, in the order of the help text. Each is loaded when it is needed, which takes longer than to run most of them. */
const commands: Record<string, (program: Command) => Promise<Command>> = {
  devices: async () => (await import('./devices.ts')).devicesCommand(),
  devinfo: async () => (await import('./devinfo.ts')).devinfoCommand(),
  gids: async () => (await import('./gids.ts')).gidsCommand(),
  decode: async () => (await import('./decode.ts')).decodeCommand(),
  capture: async () => (await import('./capture.ts')).captureCommand(),
  counters: async () => (await import('./counters.ts')).countersCommand(),
  export: async () => (await import('./export.ts')).exportCommand(),
  ping: async () => (await import('./ping.ts')).pingCommand(),
  pingpong: async () => (await import('./pingpong.ts')).pingpongCommand(),
  perf: async () => (await import('./perf.ts')).perfCommand(),
  serve: async () => (await import('./serve.ts')).serveCommand(),
  cp: async () => (await import('./cp.ts')).cpCommand(),
  topo: async () => (await import('./topo.ts')).topoCommand(),
  doctor: async () => (await import('./doctor.ts')).doctorCommand(),
  softroce: async () => (await import('./softroce.ts')).softroceCommand(),
  sim: async () => (await import('./sim.ts')).simCommand(),
  vm: async () => (await import('./vm.ts')).vmCommand(),
  // Of all the others.
  completion: async (program) => (await import('./completion.ts')).completionCommand(program),
};

/** What the exit codes mean, for the help text and the manual page. */
export const exitCodes: readonly (readonly [code: string, meaning: string])[] = [
  ['0', 'all is well. Ctrl-C is the ordinary end of capture, counters --watch, export and serve'],
  ['1', 'it failed, or what was looked at is not as it should be'],
  ['2', 'the command line is wrong'],
  ['3', 'RDMA, or a program that is needed, is not here'],
  ['128 + n', 'signal n ended it'],
  ['ping', 'as of ping(8): 0 when an answer came, also after Ctrl-C, 1 when none did, 2 when none can'],
  ['vm', 'that of the command in the VM; 70, 124 and 125 as node-rdma vm --help says'],
];

/** Version of the package. */
export function packageVersion(): string {
  return JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')).version;
}

/**
 * The command `node-rdma`.
 *
 * @param args - its arguments: where they begin with a subcommand that stands for itself, only that one is there
 */
export async function buildProgram(args: readonly string[] = []): Promise<Command> {
  const program = new Command('node-rdma')
    .description('RDMA for Node.js: tools')
    .version(packageVersion(), '-V, --version', 'print the version')
    .addHelpText('after', `\nExit codes:\n${exitCodes.map(([code, text]) => `  ${code.padEnd(8)} ${text}`).join('\n')}`)
    // What follows a subcommand's first argument belongs to that argument.
    .enablePositionalOptions()
    .exitOverride((error) => process.exit(error.exitCode === 0 ? 0 : Exit.USAGE));
  const [first = ''] = args;
  const isAlone = Object.hasOwn(commands, first) && first !== 'completion';
  for (const name of isAlone ? [first] : Object.keys(commands)) program.addCommand(await commands[name]!(program));
  return program;
}
