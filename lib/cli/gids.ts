import type { Command } from 'commander';
import { describeDevices } from '../observe/devices.ts';
import { parseGid } from '../verbs/gid.ts';
import { noDevices, run, subcommand } from './frame.ts';
import { gidVersion } from './names.ts';
import { print, printJson, printTable } from './output.ts';

/** The subcommand `gids`. */
export function gidsCommand(): Command {
  return subcommand('gids', 'List the GID tables in the columns of show_gids; says which GID would be chosen, and why.')
    .argument('[device]', 'only this device')
    .option('--json', 'as an array of objects')
    .action((device: string | undefined, flags: { json?: true }) => run(() => list(device, flags.json === true)));
}

function list(device: string | undefined, isJson: boolean): void {
  const ports = describeDevices(device === undefined ? undefined : [device]).flatMap(({ name, ports }) =>
    ports.map((port) => ({ name, ...port })),
  );
  const rows = ports.flatMap(({ name, portNum, gids, chosen, reason }) =>
    gids.map(({ gid, gidIndex, gidType, netdev }) => {
      const isChosen = chosen?.gidIndex === gidIndex;
      return {
        ...{ device: name, port: portNum, index: gidIndex, gid },
        ipv4: gid.startsWith('::ffff:') ? gid.slice('::ffff:'.length) : null,
        ...{ version: gidVersion(gidType), netdev, chosen: isChosen, reason: isChosen ? reason : null },
      };
    }),
  );
  if (isJson) {
    printJson(rows);
    return;
  }
  if (ports.length === 0) throw noDevices();
  printTable(
    ['DEV', 'PORT', 'INDEX', 'GID', 'IPv4', 'VER', 'DEV', 'USE'],
    rows.map((row) => [
      ...[
        row.device,
        row.port,
        row.index,
        parseGid(row.gid)
          .toString('hex')
          .replace(/....(?!$)/g, '$&:'),
      ],
      ...[row.ipv4, row.version, row.netdev, row.reason === null ? '' : `<- ${row.reason}`],
    ]),
  );
  for (const { name, portNum, chosen, reason } of ports) {
    if (chosen === undefined) print(`${name} port ${portNum}: no GID is chosen: ${reason}`);
  }
}
