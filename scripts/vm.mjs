#!/usr/bin/env node
// npm run vm -- COMMAND ARGS: sets up what the VM needs, then runs the command in it. Options: npm run vm -- --help

import { join } from 'node:path';
import { setup } from './setup.mjs';
import { root } from './shell.mjs';

// With the addon: what is run in the VM is mostly a program that uses it.
await setup({ system: ['build', 'run'] });

// npm starts scripts in the package's folder, which need not be where the user is.
if (process.env.npm_lifecycle_event === 'vm') process.chdir(process.env.INIT_CWD);

// In this process: signals, terminal and exit code need no handing on.
const main = join(root, 'dist/cli/main.js');
process.argv.splice(1, 1, main, 'vm');
await import(main);
