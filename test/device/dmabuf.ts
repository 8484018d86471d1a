/** DMA-BUFs for the tests: those of real exporters where the kernel has them, and what the software device takes for one. */
import { closeSync, ftruncateSync, openSync, readFileSync, rmSync } from 'node:fs';
import { allocDmaHeap, createUdmabuf, type DmaBuf, openDmabuf } from '../../lib/gpu/index.ts';
import { isRxe } from './fixture.ts';

let names = 0;

/** A file of shared memory without a name. */
export function sharedMemory(bytes: number): number {
  const path = `/dev/shm/node-rdma-${process.pid}-${names++}`;
  const fd = openSync(path, 'wx+');
  rmSync(path);
  ftruncateSync(fd, bytes);
  return fd;
}

/**
 * What exports here. The VM's kernel has udmabuf and the system heap; the machine's need not, and there a file of shared
 * memory stands for one, which the software device takes.
 */
export const exporters: [name: string, create: (bytes: number) => DmaBuf][] = isRxe
  ? [
      ['/dev/udmabuf', (bytes) => createUdmabuf(bytes)],
      ['/dev/dma_heap/system', (bytes) => allocDmaHeap(bytes)],
    ]
  : [
      [
        'shared memory',
        (bytes) => {
          const fd = sharedMemory(bytes);
          try {
            return openDmabuf(fd);
          } finally {
            closeSync(fd);
          }
        },
      ],
    ];

/** Stock Soft-RoCE registers no DMA-BUF; that of `vm --rxe-dmabuf` does. */
export const registers = !isRxe || process.env.RDMA_TEST_DMABUF === '1';

/** How many DMA-BUFs the kernel has; on the software device what stands for them is none. */
export const kernelBuffers = (): number =>
  isRxe ? Number(/Total (\d+) objects/.exec(readFileSync('/sys/kernel/debug/dma_buf/bufinfo', 'utf8'))?.[1]) : 0;
