/** Memory of GPUs, by libraries that stand in for their drivers: each call, in its order, and what fails. */
import { resolve } from 'node:path';
import { Worker } from 'node:worker_threads';
import { beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { adoptGpuMemory, type Gpu, type GpuVendor, gpuDrivers, listGpus } from '../../lib/gpu/index.ts';
import { type MemoryRegion, RemoteRegion, WcStatus, WrOpcode } from '../../lib/index.ts';
import { runChild } from './children.ts';
import { registers } from './dmabuf.ts';
import { ALL_ACCESS, completion, expectNoLeaks, fill, isRxe, Pair, thrown, within } from './fixture.ts';
import { control, driverEnv, takeLog } from './gpu-drivers.ts';

Object.assign(process.env, driverEnv);
expectNoLeaks();
beforeAll(() => {
  control();
  expect(gpuDrivers().map(({ vendor, available }) => [vendor, available])).toEqual([
    ['nvidia', true],
    ['amd', true],
  ]);
});
beforeEach(() => {
  control();
  takeLog();
});

const gpusOf = (vendor: GpuVendor) => listGpus().filter((gpu) => gpu.vendor === vendor);
const oneOf = (vendor: GpuVendor) => gpusOf(vendor)[0] as Gpu;
const token = (mr: MemoryRegion) => new RemoteRegion(JSON.parse(JSON.stringify(mr.remote())));
const done = { status: WcStatus.SUCCESS };
// The best that this device can do.
const best = registers ? 'dmabuf' : 'address';

describe('memory of a GPU', () => {
  it('does not cross to another thread', async () => {
    using buffer = await oneOf('nvidia').alloc(4096);
    expect(thrown(() => structuredClone([buffer]))).toMatchObject({
      name: 'DataCloneError',
      message: expect.stringContaining('this GpuBuffer belongs to the thread'),
    });
  });
});

describe('listGpus', () => {
  it('has what the drivers tell', () => {
    expect(listGpus()).toMatchObject([
      { vendor: 'nvidia', index: 0, name: 'Stand-in GPU 0', pciAddress: '0000:17:00.0', totalMemory: 2 ** 30 },
      { vendor: 'nvidia', index: 1, name: 'Stand-in GPU 1', pciAddress: '0000:18:00.0', virtualMemory: true },
      { vendor: 'amd', index: 0, name: 'Stand-in of Instinct', pciAddress: '0000:83:00.0', totalMemory: 2 ** 34 },
    ]);
    expect(listGpus().map(({ dmabuf, missing }) => [dmabuf, missing])).toEqual(new Array(3).fill([true, undefined]));
  });

  it('says what is missing for a DMA-BUF', () => {
    control('attribute 124 0', 'attribute 516 0', 'attribute 110 0');
    expect(listGpus().map(({ dmabuf, missing, virtualMemory }) => [dmabuf, missing, virtualMemory])).toEqual([
      [false, expect.stringMatching(/open kernel modules/), false],
      [false, expect.stringMatching(/open kernel modules/), false],
      [false, expect.stringMatching(/amdgpu/), false],
    ]);
    control('attribute 116 0');
    expect(oneOf('nvidia').missing).toMatch(/no GPUDirect RDMA/);
    control('cuDeviceGetCount 2');
    expect(thrown(listGpus)).toMatchObject({
      ...{ name: 'GpuError', code: 'CUDA_ERROR_OUT_OF_MEMORY', status: 2, syscall: 'cuDeviceGetCount' },
      message: 'cuDeviceGetCount CUDA_ERROR_OUT_OF_MEMORY: out of memory',
    });
  });
});

const calls = {
  nvidia: {
    made: ['cuMemAlloc 131072 on 0', 'synchronous copies 1'],
    freed: ['cuMemFree 131072 on 0', 'context of 0 is gone'],
    exported: 'cuMemGetHandleForAddressRange 102400',
    alloc: 'cuMemAlloc',
    exporting: 'cuMemGetHandleForAddressRange',
    noMemory: { status: 2, code: 'CUDA_ERROR_OUT_OF_MEMORY' },
    unsupported: { status: 801, code: 'CUDA_ERROR_NOT_SUPPORTED' },
  },
  amd: {
    made: ['hsa_amd_memory_pool_allocate 102400'],
    freed: ['hsa_amd_memory_pool_free 102400'],
    exported: 'hsa_amd_portable_export_dmabuf 102400 at 0',
    alloc: 'hsa_amd_memory_pool_allocate',
    exporting: 'hsa_amd_portable_export_dmabuf',
    noMemory: { status: 0x1008, code: 'HSA_STATUS_ERROR_OUT_OF_RESOURCES' },
    unsupported: { status: 0x1003, code: 'HSA_STATUS_ERROR_INVALID_ALLOCATION' },
  },
} as const;
const LENGTH = 100_000;

describe.each(['nvidia', 'amd'] as const)('a GpuBuffer of %s', (vendor) => {
  const call = calls[vendor];

  it('is allocated, copied to and from, and freed once', async () => {
    const buffer = await oneOf(vendor).alloc(LENGTH);
    expect(takeLog()).toEqual(call.made);
    expect([buffer.length, buffer.adopted, buffer.gpu.vendor]).toEqual([LENGTH, false, vendor]);
    const bytes = fill(Buffer.alloc(LENGTH), 4);
    await buffer.copyFrom(bytes);
    await buffer.copyFrom(Buffer.from('in the middle'), 5000);
    bytes.write('in the middle', 5000);
    const back = new Uint32Array(LENGTH / 4);
    await buffer.copyTo(back);
    expect(Buffer.from(back.buffer).equals(bytes)).toBe(true);
    const part = Buffer.alloc(6);
    await buffer.copyTo(part, 5007);
    expect(part.toString()).toBe('middle');
    const pending = buffer.copyTo(part);
    expect(thrown(() => buffer.close())).toMatchObject({ code: 'EBUSY' });
    await pending;
    const wrong: [() => Promise<unknown>, string, RegExp][] = [
      [() => buffer.copyFrom(bytes, 1), 'ERR_OUT_OF_RANGE', /past the end of GpuBuffer/],
      [() => buffer.copyTo(Buffer.alloc(1), LENGTH), 'ERR_OUT_OF_RANGE', /past the end/],
      [() => buffer.copyTo('x' as never), 'ERR_INVALID_ARG_TYPE', /bytes/],
      [() => buffer.copyTo(part, -1), 'ERR_OUT_OF_RANGE', /offset/],
      [() => oneOf(vendor).alloc(0), 'ERR_OUT_OF_RANGE', /length/],
      [() => oneOf(vendor).alloc(1, { virtual: true } as never), 'ERR_INVALID_ARG_VALUE', /'virtual'/],
    ];
    for (const [call, code, message] of wrong) {
      await expect(call()).rejects.toMatchObject({ code, message: expect.stringMatching(message) });
    }
    expect(takeLog()).toEqual([]);
    buffer.close();
    buffer.close();
    expect(takeLog()).toEqual(call.freed);
    await expect(buffer.copyTo(part)).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    expect(thrown(() => buffer.exportDmabuf()).code).toBe('ERR_RDMA_CLOSED');
  });

  it('says so when the driver refuses, and nothing is left', async () => {
    control(`${call.alloc} ${call.noMemory.status}`);
    await expect(oneOf(vendor).alloc(LENGTH)).rejects.toMatchObject({
      ...{ name: 'GpuError', syscall: call.alloc },
      ...call.noMemory,
    });
    expect(takeLog().slice(1)).toEqual(vendor === 'nvidia' ? ['context of 0 is gone'] : []);
    // One that cannot be freed stays open.
    control();
    const buffer = await oneOf(vendor).alloc(LENGTH);
    const free = vendor === 'nvidia' ? 'cuMemFree' : 'hsa_amd_memory_pool_free';
    control(`${free} ${call.noMemory.status}`);
    expect(thrown(() => buffer.close())).toMatchObject({ name: 'GpuError', syscall: free });
    expect(buffer.closed).toBe(false);
    // A driver that is gone has taken its memory along.
    control(`${free} ${vendor === 'nvidia' ? 4 : 0x100b}`);
    buffer.close();
    expect(buffer.closed).toBe(true);
    takeLog();
  });

  it('is registered and reached by a peer, and held by its region', async () => {
    using pair = await Pair.connect({ bytes: LENGTH });
    const { a, b } = pair;
    const buffer = await oneOf(vendor).alloc(LENGTH);
    takeLog();
    const { mr, via, refused } = await buffer.register(b.pd, { access: ALL_ACCESS });
    expect([via, mr.addr, mr.length, mr.hasBuffer]).toEqual([best, buffer.address, LENGTH, false]);
    expect(refused.map(({ message }) => message)).toEqual(registers ? [] : [expect.stringMatching(/EOPNOTSUPP/)]);
    expect(takeLog()).toEqual([call.exported]);

    const host = a.mr.slice(0, 50_000);
    const sent = fill(host.buffer, 5);
    a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: host, remote: token(mr).slice(12_345, 50_000) });
    expect(await completion(a.cq, 'the write')).toMatchObject(done);
    const seen = Buffer.alloc(LENGTH);
    await buffer.copyTo(seen);
    expect(seen.subarray(12_345, 62_345).equals(sent)).toBe(true);
    expect(Buffer.concat([seen.subarray(0, 12_345), seen.subarray(62_345)]).every((byte) => byte === 0)).toBe(true);
    const written = fill(seen, 7);
    await buffer.copyFrom(seen);
    a.qp.postSend({ opcode: WrOpcode.RDMA_READ, sgList: host, remote: token(mr).slice(1, 50_000) });
    expect(await completion(a.cq, 'the read')).toMatchObject(done);
    expect(host.buffer.equals(written.subarray(1, 50_001))).toBe(true);

    expect(thrown(() => buffer.close())).toMatchObject({ code: 'EBUSY', message: /MemoryRegion/ });
    const part = await buffer.register(b.pd, {
      offset: 4097,
      length: 10,
      iova: 0x7000_0001n + (buffer.address & 0xfffn),
    });
    expect([part.via, part.mr.length]).toEqual([best, 10]);
    await expect(buffer.register(b.pd, { length: LENGTH + 1 })).rejects.toMatchObject({ code: 'ERR_OUT_OF_RANGE' });
    buffer.close({ cascade: true });
    expect([mr.closed, part.mr.closed]).toEqual([true, true]);
    expect(takeLog().slice(-call.freed.length)).toEqual(call.freed);
  });

  it('is registered by its address where it cannot be exported, or else by staging where that is asked for', async () => {
    using pair = await Pair.connect();
    const { pd } = pair.a;
    const gpu = oneOf(vendor);
    control(`${call.exporting} ${call.unsupported.status}`);
    const reachable = await gpu.alloc(LENGTH);
    const first = await reachable.register(pd, { access: ALL_ACCESS });
    expect([first.via, first.mr.addr, first.refused]).toMatchObject([
      ...['address', reachable.address],
      [{ name: 'GpuError', syscall: call.exporting, ...call.unsupported }],
    ]);
    reachable.close({ cascade: true });

    control(`${call.exporting} ${call.unsupported.status}`, 'peermem 0');
    const hidden = await gpu.alloc(LENGTH);
    await expect(hidden.register(pd)).rejects.toMatchObject({
      ...{ name: 'RdmaError', code: 'EFAULT' },
      message: expect.stringMatching(
        new RegExp(`cannot be registered.*${call.unsupported.code}.*nvidia-peermem.*staging`),
      ),
    });
    const { mr, via, refused } = await hidden.register(pd, { staging: true, access: ALL_ACCESS, length: 5000 });
    expect([via, mr.length, mr.hasBuffer, refused.length]).toEqual(['staging', 5000, true, 2]);
    fill(mr.buffer, 3);
    await hidden.copyFrom(mr.buffer);
    const copied = Buffer.alloc(5000);
    await hidden.copyTo(copied);
    expect(copied.equals(mr.buffer)).toBe(true);
    // It is memory of the host, and needs the GPU no more.
    hidden.close();
    mr.close();
  });

  it("may be somebody else's, who frees it", async () => {
    using pair = await Pair.connect();
    const { b } = pair;
    const owner = await oneOf(vendor).alloc(LENGTH);
    const adopted = await adoptGpuMemory(vendor, owner.address + 8192n, 4096);
    expect(adopted).toMatchObject({ address: owner.address + 8192n, length: 4096, adopted: true });
    expect(adopted.gpu).toMatchObject({ vendor, index: 0 });
    const { mr } = await adopted.register(b.pd);
    expect(mr.length).toBe(4096);
    mr.close();
    takeLog();
    adopted.close();
    expect(takeLog()).toEqual([]);
    const other = vendor === 'nvidia' ? 'amd' : 'nvidia';
    const wrong: [() => Promise<unknown>, string, RegExp][] = [
      [() => adoptGpuMemory(vendor, owner.address, 2 ** 30), 'ERR_OUT_OF_RANGE', /fewer than 1073741824 bytes/],
      [
        () => adoptGpuMemory(other, owner.address, 1),
        other === 'amd' ? 'ERR_INVALID_ARG_VALUE' : 'CUDA_ERROR_INVALID_VALUE',
        /./,
      ],
      [() => adoptGpuMemory('intel' as never, 0n, 1), 'ERR_INVALID_ARG_VALUE', /vendor/],
      [() => adoptGpuMemory(vendor, 1 as never, 1), 'ERR_INVALID_ARG_TYPE', /address/],
      [() => adoptGpuMemory(vendor, 1n, 0), 'ERR_OUT_OF_RANGE', /length/],
    ];
    for (const [call, code, message] of wrong) {
      await expect(call()).rejects.toMatchObject({ code, message: expect.stringMatching(message) });
    }
    owner.close();
  });

  it('is exported for others', async () => {
    const buffer = await oneOf(vendor).alloc(LENGTH);
    await buffer.copyFrom(Buffer.from('handed on'), 100);
    const { dmabuf, offset } = buffer.exportDmabuf();
    expect(dmabuf.map().toString('latin1', offset + 100, offset + 109)).toBe('handed on');
    dmabuf.close();
    buffer.close();
  });
});

describe('virtual memory of CUDA', () => {
  const made = ['cuMemCreate 2097152 on 1', 'cuMemAddressReserve 2097152', 'cuMemMap 2097152', 'cuMemSetAccess 1'];
  const freed = ['cuMemUnmap 2097152', 'cuMemAddressFree 2097152', 'cuMemRelease', 'context of 1 is gone'];

  it('is made and freed in order, on the GPU that was asked for', async () => {
    using pair = await Pair.connect();
    const buffer = await gpusOf('nvidia')[1]!.alloc(5000, { virtualMemory: true });
    expect(takeLog()).toEqual([...made, 'synchronous copies 1']);
    const { mr, via } = await buffer.register(pair.a.pd);
    expect([via, mr.length]).toEqual([best, 5000]);
    mr.close();
    takeLog();
    buffer.close();
    expect(takeLog()).toEqual(freed);
  });

  it('is given back when a step fails', async () => {
    const undone = ['cuMemRelease', 'cuMemAddressFree 2097152', 'cuMemUnmap 2097152'];
    const steps = ['cuMemCreate', 'cuMemAddressReserve', 'cuMemMap', 'cuMemSetAccess'];
    for (const [i, step] of steps.entries()) {
      control(`${step} 2`);
      await expect(gpusOf('nvidia')[1]!.alloc(5000, { virtualMemory: true })).rejects.toMatchObject({
        ...{ syscall: step, code: 'CUDA_ERROR_OUT_OF_MEMORY' },
      });
      expect(takeLog()).toEqual([
        ...made.slice(0, i),
        `${step} fails with 2`,
        ...undone.slice(0, i).reverse(),
        'context of 1 is gone',
      ]);
    }
    await expect(oneOf('amd').alloc(5000, { virtualMemory: true })).rejects.toMatchObject({ code: 'EOPNOTSUPP' });
  });
});

// On the software device only, as above.
it.runIf(!isRxe)('npm run test:gpu checks what is there, and says what is not', async () => {
  control('attribute 516 0', 'attribute 102 0');
  const { code, stdout, stderr } = await runChild('../../../scripts/check-gpu', [], { env: driverEnv });
  expect([code, stderr]).toEqual([0, '']);
  const lines = stdout.trim().split('\n');
  expect(lines.at(-1)).toMatch(/^\d+ passed, 0 failed, 4 not checked$/);
  expect(lines.filter((line) => line.startsWith('-'))).toEqual([
    expect.stringMatching(/Stand-in GPU 0 .0000:17:00.0., virtual memory/),
    expect.stringMatching(/Stand-in GPU 1 .0000:18:00.0., virtual memory/),
    expect.stringMatching(/Instinct .0000:83:00.0., virtual memory/),
    expect.stringMatching(/Instinct .0000:83:00.0., memory: DMA-BUF/),
  ]);
  expect(stdout).toMatch(/✓ Stand-in GPU 1 .0000:18:00.0., memory, mlx5_1: registered, written and read: via dmabuf\n/);
  takeLog();
});

// Each start of Node takes seconds in an emulated VM, and what ends is the same there.
describe.runIf(!isRxe)('memory that nobody closes', () => {
  const freed = ['cuMemFree 131072 on 0', 'cuMemFree 131072 on 1', 'hsa_amd_memory_pool_free 102400'];
  const ended = ['exit with 0 allocations', 'exit with 0 allocations, 0 and 0 shares of contexts'];

  it.each([
    ['nothing', 0],
    ['collect', 0],
  ] as const)('is freed when the process ends: %s', async (end, code) => {
    const result = await runChild('gpu', [end], { env: driverEnv });
    expect([result.code, result.signal]).toEqual([code, null]);
    const log = takeLog();
    expect(log.filter((line) => /[fF]ree/.test(line)).sort()).toEqual(freed);
    expect(log.filter((line) => line.startsWith('exit')).sort()).toEqual(ended);
  });

  it.each([
    ['exit', 7],
    ['throw', 1],
  ] as const)('is left to the driver of the kernel where the process ends without a cleanup: %s', async (end, code) => {
    const result = await runChild('gpu', [end], { env: driverEnv });
    expect([result.code, result.signal]).toEqual([code, null]);
    const log = takeLog();
    expect(log.filter((line) => /[fF]ree/.test(line))).toEqual([]);
    expect(log.filter((line) => line.startsWith('exit')).sort()).toEqual([
      'exit with 1 allocations',
      'exit with 2 allocations, 2 and 2 shares of contexts',
    ]);
  });

  it('is freed with its worker', async () => {
    const source = `
      import(${JSON.stringify(resolve('dist/gpu/index.js'))}).then(async ({ listGpus }) => {
        globalThis.buffers = await Promise.all(listGpus().map((gpu) => gpu.alloc(${LENGTH})));
        require('node:worker_threads').parentPort.postMessage('made');
        setInterval(() => {}, 1000);
      });`;
    const worker = new Worker(source, { eval: true });
    await within(new Promise((resolve) => worker.once('message', resolve)), 'the worker');
    await within(worker.terminate(), 'its end');
    expect(
      takeLog()
        .filter((line) => /[fF]ree/.test(line))
        .sort(),
    ).toEqual(freed);
  });
});
