/**
 * What operators look at: devices and their GIDs, counters and what they mean, the placement of GPUs and NICs, what goes wrong;
 * and Soft-RoCE links.
 *
 * @module
 */

export {
  type Counter,
  type CounterSource,
  type PortCounters,
  parseEthtool,
  type ReadCountersOptions,
  readCounters,
} from './counters.ts';
export { type DeviceDescription, describeDevices, type PortDescription } from './devices.ts';
export { examine } from './doctor.ts';
export { type CounterFinding, type CounterRate, counterRates, judgeCounters } from './judge.ts';
export { type CounterKind, type CounterMeaning, counterMeaning } from './meanings.ts';
export { createExporter, formatPrometheus } from './prometheus.ts';
export { addSoftRoce, listSoftRoce, removeSoftRoce, type SoftRoceLink } from './soft-roce.ts';
export {
  type GpuPlacement,
  type NcclVariable,
  type PciDevice,
  type PciDistance,
  readTopology,
  type Topology,
} from './topology.ts';
