import type { Command } from 'commander';
import { readTopology } from '../observe/topology.ts';
import { run, subcommand } from './frame.ts';
import { print, printJson, printTable } from './output.ts';

/** The subcommand `topo`. */
export function topoCommand(): Command {
  return subcommand(
    'topo',
    'Show how near GPUs and NICs are, in the terms of nvidia-smi topo, and what NCCL should be told.',
  )
    .option('--json', 'as an object')
    .action((flags: { json?: true }) => run(() => show(flags.json === true)));
}

const legend = `
PIX   behind one PCIe switch
PXB   behind several PCIe switches, below one host bridge
PHB   through a host bridge: through the processor
NODE  through several host bridges of a NUMA node
SYS   through the link between NUMA nodes`;

function show(isJson: boolean): void {
  const topology = readTopology();
  if (isJson) {
    printJson(topology);
    return;
  }
  const { gpus, nics, nccl, notes } = topology;
  if (gpus.length + nics.length === 0) {
    print('no GPU was found, and no RDMA device that is a PCI device');
    for (const note of notes) print(`note: ${note}`);
    return;
  }
  printTable(
    ['', 'PCI', 'NUMA', ...nics.map(({ name }) => name)],
    gpus.map((gpu) => [gpu.name, gpu.address, gpu.numaNode, ...nics.map(({ name }) => gpu.distances[name])]),
  );
  if (nics.length > 0) {
    print();
    printTable(
      ['NIC', 'PCI', 'NUMA'],
      nics.map(({ name, address, numaNode }) => [name, address, numaNode]),
    );
  }
  print(legend);
  if (gpus.length === 0) print('\nno GPU was found');
  if (nics.length === 0) print('\nno RDMA device was found that is a PCI device');
  if (nccl.length > 0) print();
  for (const { name, value, reason } of nccl) print(`export ${name}=${value}    # ${reason}`);
  for (const note of notes) print(`note: ${note}`);
}
