import type { Command } from 'commander';
import { describeDevices } from '../observe/devices.ts';
import { noDevices, run, subcommand } from './frame.ts';
import { linkLayerName, mtuBytes, portRate, stateName } from './names.ts';
import { printJson, printTable } from './output.ts';

/** The subcommand `devices`. */
export function devicesCommand(): Command {
  return subcommand('devices', 'List the RDMA devices, as ibv_devices does, with their ports.')
    .option('--json', 'as an array of objects')
    .action((flags: { json?: true }) => run(() => list(flags.json === true)));
}

interface Row {
  device: string;
  nodeGuid: string;
  port?: number;
  state?: string;
  link?: string;
  rate?: string;
  mtu?: number;
  netdev?: string | null;
  gid?: string | null;
  error?: string;
}

function list(isJson: boolean): void {
  const devices = describeDevices();
  const rows = devices.flatMap(({ name, guid, ports, error }): Row[] => {
    if (error !== undefined) return [{ device: name, nodeGuid: guid, error }];
    return ports.map(({ portNum, attr, gids, chosen }) => ({
      ...{ device: name, nodeGuid: guid, port: portNum, state: stateName(attr.state) },
      ...{ link: linkLayerName(attr.linkLayer), rate: portRate(attr), mtu: mtuBytes(attr.activeMtu) },
      ...{ netdev: chosen?.netdev ?? gids[0]?.netdev ?? null, gid: chosen?.gid ?? null },
    }));
  });
  if (isJson) {
    printJson(rows);
    return;
  }
  if (rows.length === 0) throw noDevices();
  printTable(
    ['DEVICE', 'NODE_GUID', 'PORT', 'STATE', 'LINK', 'RATE', 'MTU', 'NETDEV', 'GID'],
    rows.map((row) => [
      ...[row.device, row.nodeGuid, row.port, row.state ?? row.error, row.link, row.rate, row.mtu],
      ...[row.netdev, row.gid],
    ]),
  );
}
