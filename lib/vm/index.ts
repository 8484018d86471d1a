/**
 * Runs commands in a VM with real Soft-RoCE (`rdma_rxe`), for machines that have no RDMA hardware and no rxe in their
 * kernel: CI runners, containers, laptops.
 *
 * @module
 */

export { VmError, type VmErrorCode } from './errors.ts';
export type { Kernel, PrepareOptions } from './kernel.ts';
export { vmPackages } from './packages.ts';
export type { Accelerator } from './qemu.ts';
export { type PreparedVm, prepareVm, runInVm, type VmDrivers, type VmOptions, type VmResult } from './run.ts';
