/** What the addon has of GPUs and DMA-BUFs, as TypeScript sees it. */
import type { GpuMemoryHandle, Handle } from './native.ts';

export type DmabufHandle = Handle<'DmaBuf'>;
export type FdSocketHandle = Handle<'FdSocket'>;
export type FdSocketEventsHandle = Handle<'FdSocketEvents'>;

export interface NativeGpu {
  name: string;
  pciAddress: string;
  totalMemory: number;
  dmabuf: boolean;
  virtualMemory: boolean;
  missing: string;
}

export interface NativeGpuMemory {
  handle: GpuMemoryHandle;
  address: bigint;
  gpu: number;
}

export interface NativeDmabuf {
  handle: DmabufHandle;
  fd: number;
}

export interface GpuBinding {
  gpuDriverState(vendor: string): { available: boolean; detail: string };
  listGpus(vendor: string): NativeGpu[];
  allocGpuMemory(vendor: string, gpu: number, length: number, virtualMemory: boolean): Promise<NativeGpuMemory>;
  adoptGpuMemory(vendor: string, address: bigint, length: number): Promise<NativeGpuMemory>;
  exportGpuMemory(memory: GpuMemoryHandle): NativeDmabuf & { offset: number };
  copyToGpu(memory: GpuMemoryHandle, offset: number, ...bytes: readonly [ArrayBuffer, number, number]): Promise<void>;
  copyFromGpu(memory: GpuMemoryHandle, offset: number, ...bytes: readonly [ArrayBuffer, number, number]): Promise<void>;
  freeGpuMemory(memory: GpuMemoryHandle): void;
  createUdmabuf(memfd: number | null, offset: number, length: number): NativeDmabuf;
  allocDmaHeap(heap: string, length: number): NativeDmabuf;
  duplicateDmabuf(fd: number): NativeDmabuf;
  dmabufOfProcess(pid: number, fd: number): NativeDmabuf;
  mapDmabuf(dmabuf: DmabufHandle, length: number, writable: boolean): ArrayBuffer;
  syncDmabuf(dmabuf: DmabufHandle, read: boolean, write: boolean, end: boolean): void;
  closeDmabuf(dmabuf: DmabufHandle): void;
  connectFdSocket(path: string): FdSocketHandle;
  listenFdSocket(path: string): FdSocketHandle;
  duplicateFdSocket(fd: number): FdSocketHandle;
  acceptFdSocket(socket: FdSocketHandle): FdSocketHandle | null;
  sendFds(socket: FdSocketHandle, fds: number[], bytes: Uint8Array): void;
  receiveFds(socket: FdSocketHandle): { dmabufs: NativeDmabuf[]; bytes: Buffer } | null;
  closeFdSocket(socket: FdSocketHandle): void;
  /** The callback is called once for each start. */
  createFdSocketEvents(socket: FdSocketHandle, callback: () => void): FdSocketEventsHandle;
  startFdSocketEvents(events: FdSocketEventsHandle): void;
  stopFdSocketEvents(events: FdSocketEventsHandle): void;
  closeFdSocketEvents(events: FdSocketEventsHandle): void;
}
