#!/usr/bin/env node
import { Command } from 'commander';
import { vmCommand } from './vm.ts';

await new Command('node-rdma')
  .description('RDMA for Node.js: tools')
  // What follows a subcommand's first argument belongs to that argument.
  .enablePositionalOptions()
  .addCommand(vmCommand())
  .parseAsync();
