/** Which NIC to use for a GPU. */
import { rangeError, readOptions, string } from '../args.ts';
import { type PciDevice, type PciDistance, readTopology } from '../observe/topology.ts';

/** A NIC, and how near it is to a GPU. */
export interface NearNic extends PciDevice {
  /** How they are related in the PCI tree. */
  distance: PciDistance;
}

const order: readonly PciDistance[] = ['PIX', 'PXB', 'PHB', 'NODE', 'SYS'];

/**
 * The RDMA devices of this machine, nearest to a GPU first: by the PCI tree, as the command `topo` shows it. Behind one
 * switch (`'PIX'`) data goes from the one to the other without the processor; through the link between processors (`'SYS'`)
 * GPUDirect RDMA is slow, and often slower than a copy.
 *
 * @param gpu - the GPU's PCI address, such as `'0000:17:00.0'` (`gpu.pciAddress`), or its name in the order of PCI addresses
 *   (`'GPU0'`)
 * @param options - `sysfs`: the folder of sysfs; default SYSFS_PATH, else `/sys`
 * @returns none where there is no NIC that is a PCI device
 * @throws RangeError `ERR_OUT_OF_RANGE` for a GPU that sysfs does not have
 */
export function nearestNics(gpu: string, options: { sysfs?: string } = {}): NearNic[] {
  string(gpu, 'gpu');
  readOptions(options, 'options', ['sysfs']);
  const { gpus, nics } = readTopology(options);
  const wanted = gpu.toLowerCase();
  const found = gpus.find(({ name, address }) => name.toLowerCase() === wanted || address === wanted);
  if (found === undefined) {
    const known = gpus.map(({ name, address }) => `${name} (${address})`).join(', ') || 'none';
    throw rangeError(`There is no GPU '${gpu}' in the PCI tree; there are: ${known}`);
  }
  return nics
    .map((nic) => ({ ...nic, distance: found.distances[nic.name] as PciDistance }))
    .sort((a, b) => order.indexOf(a.distance) - order.indexOf(b.distance));
}
