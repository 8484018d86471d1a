import type { Command } from 'commander';
import { examine } from '../observe/doctor.ts';
import { Exit, run, subcommand } from './frame.ts';
import { colour, print, printJson } from './output.ts';

/** The subcommand `doctor`. */
export function doctorCommand(): Command {
  return subcommand('doctor', 'Look at everything that commonly goes wrong, and say the line to type.')
    .option('--json', 'as an object')
    .addHelpText('after', '\nThe exit code is 1 when RDMA cannot be used; warnings alone do not count.')
    .action((flags: { json?: true }) => run(() => show(flags.json === true)));
}

const colours = { ok: 'green', warning: 'yellow', error: 'red' } as const;

async function show(isJson: boolean): Promise<void> {
  const diagnosis = await examine();
  if (!diagnosis.ok) process.exitCode = Exit.FAILED;
  if (isJson) {
    printJson(diagnosis);
    return;
  }
  for (const { level, name, detail, fix } of diagnosis.findings) {
    print(`${colour(colours[level], level.padEnd(7))} ${name}: ${detail}`);
    if (fix !== undefined) print(`        ${colour('cyan', fix)}`);
  }
}
