/**
 * What operators look at: devices and their GIDs, counters, and what they mean.
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
export { type CounterFinding, type CounterRate, counterRates, judgeCounters } from './judge.ts';
export { type CounterKind, type CounterMeaning, counterMeaning } from './meanings.ts';
export { createExporter, formatPrometheus } from './prometheus.ts';
