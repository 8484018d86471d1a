#!/usr/bin/env node
import { buildProgram } from './program.ts';

const args = process.argv.slice(2);
const program = await buildProgram(args);
const [first, about = '-'] = args;
// For a command that is not known commander would show all the help there is, and not say so.
const isUnknown = first === 'help' && !about.startsWith('-') && !program.commands.some((sub) => sub.name() === about);
await program.parseAsync(isUnknown ? [about] : args, { from: 'user' });
