/**
 * Memory of GPUs and of other devices, by DMA-BUF: exported, handed from process to process, and registered as the source
 * and target of RDMA without a copy through the host.
 *
 * @module
 */

export { GpuError } from '../errors.ts';
export {
  type CpuAccess,
  DmaBuf,
  getDmabuf,
  importDmabuf,
  openDmabuf,
  type RegisterOptions,
} from './dmabuf.ts';
export { allocDmaHeap, createUdmabuf, listDmaHeaps, type UdmabufOptions } from './exporters.ts';
export {
  adoptFdChannel,
  connectFd,
  FdChannel,
  FdListener,
  type FdMessage,
  type FdWaitOptions,
  listenFd,
} from './fd-channel.ts';
export {
  adoptGpuMemory,
  Gpu,
  type GpuAllocOptions,
  type GpuDriver,
  type GpuVendor,
  gpuDrivers,
  listGpus,
} from './gpu.ts';
export { GpuBuffer, type GpuExport, type GpuRegion, type GpuRegisterOptions } from './gpu-buffer.ts';
export { type NearNic, nearestNics } from './placement.ts';
