#!/usr/bin/env node
import { buildProgram } from './program.ts';

const program = await buildProgram(process.argv.slice(2));
await program.parseAsync();
