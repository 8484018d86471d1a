import { readFileSync } from 'node:fs';
import { Command } from 'commander';
import { captureCommand } from './capture.ts';
import { completionCommand } from './completion.ts';
import { countersCommand } from './counters.ts';
import { cpCommand } from './cp.ts';
import { decodeCommand } from './decode.ts';
import { devicesCommand } from './devices.ts';
import { devinfoCommand } from './devinfo.ts';
import { doctorCommand } from './doctor.ts';
import { exportCommand } from './export.ts';
import { Exit } from './frame.ts';
import { gidsCommand } from './gids.ts';
import { perfCommand } from './perf.ts';
import { pingCommand } from './ping.ts';
import { pingpongCommand } from './pingpong.ts';
import { serveCommand } from './serve.ts';
import { simCommand } from './sim.ts';
import { softroceCommand } from './softroce.ts';
import { topoCommand } from './topo.ts';
import { vmCommand } from './vm.ts';

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

/** The whole command `node-rdma`. */
export function buildProgram(): Command {
  const program = new Command('node-rdma')
    .description('RDMA for Node.js: tools')
    .version(packageVersion(), '-V, --version', 'print the version')
    .addHelpText('after', `\nExit codes:\n${exitCodes.map(([code, text]) => `  ${code.padEnd(8)} ${text}`).join('\n')}`)
    // What follows a subcommand's first argument belongs to that argument.
    .enablePositionalOptions()
    .exitOverride((error) => process.exit(error.exitCode === 0 ? 0 : Exit.USAGE));
  const commands = [
    ...[devicesCommand(), devinfoCommand(), gidsCommand()],
    ...[decodeCommand(), captureCommand()],
    ...[countersCommand(), exportCommand()],
    ...[pingCommand(), pingpongCommand(), perfCommand()],
    ...[serveCommand(), cpCommand()],
    ...[topoCommand(), doctorCommand(), softroceCommand()],
    simCommand(),
    ...[vmCommand(), completionCommand(program)],
  ];
  for (const command of commands) program.addCommand(command);
  return program;
}
