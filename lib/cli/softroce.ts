import type { Command } from 'commander';
import { addSoftRoce, listSoftRoce, removeSoftRoce, type SoftRoceLink } from '../observe/soft-roce.ts';
import { run, subcommand } from './frame.ts';
import { print, printJson, printTable } from './output.ts';

interface Flags {
  json?: true;
}

/** The subcommand `softroce`. */
export function softroceCommand(): Command {
  const json = ['--json', 'as an object'] as const;
  return subcommand('softroce', 'Add, remove and list Soft-RoCE devices: RDMA over any network interface, in software.')
    .addCommand(
      subcommand('add', 'Add one to a network interface; takes root, and loads the module rdma_rxe.')
        .argument('<interface>', 'such as eth0; not a VLAN')
        .argument('[name]', 'of the device (default: the first of rxe0, rxe1, ... that is free)')
        .option(...json)
        .action((netdev: string, name: string | undefined, flags: Flags) =>
          run(async () => tell('added', await addSoftRoce(netdev, name), flags)),
        ),
    )
    .addCommand(
      subcommand('remove', 'Remove one; takes root. The kernel waits for programs that have it open.')
        .argument('<device>', 'its name, or its network interface')
        .option(...json)
        .action((which: string, flags: Flags) => run(async () => tell('removed', await removeSoftRoce(which), flags))),
    )
    .addCommand(
      subcommand('list', 'List them.')
        .option('--json', 'as an array of objects')
        .action((flags: Flags) => run(() => list(flags))),
    );
}

function tell(what: string, link: SoftRoceLink, { json }: Flags): void {
  if (json) printJson(link);
  else
    print(`${what} ${link.name} on ${link.netdev}${what === 'removed' || link.state === '' ? '' : `, ${link.state}`}`);
}

function list({ json }: Flags): void {
  const links = listSoftRoce();
  if (json) printJson(links);
  else {
    printTable(
      ['DEVICE', 'NETDEV', 'STATE'],
      links.map(({ name, netdev, state }) => [name, netdev, state]),
    );
  }
}
