/**
 * Small models of why the network is hard: loss recovery, congestion control, pauses, load balancing. Pure TypeScript, seeded:
 * the same options give the same result. What they give is a model's result, never a measurement.
 *
 * @module
 */

export { type DcqcnOptions, type DcqcnResult, type DcqcnSample, simulateDcqcn } from './dcqcn.ts';
export {
  type EcmpOptions,
  type EcmpResult,
  type SprayOptions,
  type SprayResult,
  simulateEcmp,
  simulateSpray,
} from './ecmp.ts';
export {
  type LossOptions,
  type LossResult,
  type Recovery,
  simulateLoss,
  simulateTimedLoss,
  type TimedLossOptions,
  type TimedLossResult,
} from './loss.ts';
export {
  deadlockScenario,
  type PfcFlow,
  type PfcLink,
  type PfcLinkResult,
  type PfcOptions,
  type PfcResult,
  type PfcScenario,
  simulatePfc,
  spreadingScenario,
} from './pfc.ts';
