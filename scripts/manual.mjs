#!/usr/bin/env node
// Writes docs/node-rdma.1, the manual page of the command, from what the command says of itself.
// With --check nothing is written; a difference fails.

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { buildProgram, exitCodes, packageVersion } from '../dist/cli/program.js';
import { CommandError, root, whenMain } from './shell.mjs';

const file = join(root, 'docs/node-rdma.1');

/** Text as roff wants it. */
const escaped = (text) =>
  text
    .replace(/\\/g, '\\e')
    .replace(/-/g, '\\-')
    .replace(/^(?=[.'])/gm, '\\&');

const item = (term, text) => `.TP\n.B ${escaped(term)}\n${escaped(text)}`;

function usageOf(command) {
  const names = [];
  for (let at = command; at !== null; at = at.parent) names.unshift(at.name());
  return `${names.join(' ')} ${command.usage()}`;
}

/** A (sub)command and those below it. */
function section(command) {
  const options = command.options
    .filter(({ hidden }) => !hidden)
    .map((option) => {
      const more = [
        option.argChoices && `one of ${option.argChoices.join(', ')}`,
        option.defaultValue !== undefined && `default ${option.defaultValueDescription ?? option.defaultValue}`,
      ].filter(Boolean);
      return item(option.flags, `${option.description}${more.length > 0 ? ` (${more.join('; ')})` : ''}`);
    });
  const args = command.registeredArguments.map((argument) => {
    const choices = argument.argChoices ? ` (one of ${argument.argChoices.join(', ')})` : '';
    return item(argument.name(), `${argument.description}${choices}`);
  });
  const own = [`.SS ${escaped(usageOf(command))}`, escaped(command.description()), ...args, ...options];
  return [...own, ...command.commands.map(section)].join('\n');
}

async function page() {
  const program = await buildProgram();
  return `.\\" Made by scripts/manual.mjs. Do not edit: npm run manual.
.TH NODE\\-RDMA 1 "" "node\\-rdma ${packageVersion()}" "User Commands"
.SH NAME
node\\-rdma \\- look at, measure and debug RDMA and RoCE
.SH SYNOPSIS
.B node\\-rdma
.I command
.RI [ options ]
.SH DESCRIPTION
The tools of the package node\\-rdma. On a terminal, tables are aligned and coloured; elsewhere a tab divides the columns. With
.B \\-\\-json
the output is JSON: numbers of 64 bits are strings, and what goes on is an object in each line.
Colours heed
.BR NO_COLOR .
.SH COMMANDS
${program.commands.map(section).join('\n')}
.SH EXIT STATUS
${exitCodes.map(([code, meaning]) => item(code, meaning)).join('\n')}
.SH ENVIRONMENT
${item('NODE_RDMA_DEVICE, NODE_RDMA_GID_INDEX, NODE_RDMA_TC', 'the device, the GID and the traffic class when none is named.')}
.SH SEE ALSO
.BR ibv_devinfo (1),
.BR rdma (8),
.BR tcpdump (8);
the guides of the package, docs/cli.md first.
`;
}

await whenMain(import.meta.url, async ([option]) => {
  const text = await page();
  if (option !== '--check') writeFileSync(file, text);
  else if (readFileSync(file, 'utf8') !== text) {
    throw new CommandError('docs/node-rdma.1 differs from what the command says of itself: npm run manual');
  }
});
