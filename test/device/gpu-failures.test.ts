/** What a driver of GPUs, the machine and a careless program do to node-rdma/gpu: errors with a code, and nothing left. */
import { closeSync, openSync } from 'node:fs';
import { resolve } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import {
  adoptGpuMemory,
  createUdmabuf,
  type GpuVendor,
  importDmabuf,
  listGpus,
  openDmabuf,
} from '../../lib/gpu/index.ts';
import { openDevice } from '../../lib/index.ts';
import { runChild } from './children.ts';
import { sharedMemory } from './dmabuf.ts';
import { deviceA, expectNoLeaks, isRxe, thrown } from './fixture.ts';
import { control, driverEnv, takeLog } from './gpu-drivers.ts';

const LENGTH = 100_000;
const gpuOf = (vendor: GpuVendor) => listGpus().find((gpu) => gpu.vendor === vendor)!;

/** Functions of each driver, and its status for what has no name. */
const functions = {
  nvidia: [
    ...['cuDeviceGetCount', 'cuDeviceGet', 'cuDeviceGetName', 'cuDeviceTotalMem', 'cuDeviceGetAttribute'],
    ...['cuDevicePrimaryCtxRetain', 'cuCtxPushCurrent', 'cuMemAlloc', 'cuMemFree', 'cuMemcpyHtoD', 'cuMemcpyDtoH'],
    ...[
      'cuPointerGetAttribute',
      'cuPointerSetAttribute',
      'cuMemGetHandleForAddressRange',
      'cuMemGetAllocationGranularity',
    ],
    ...['cuMemCreate', 'cuMemAddressReserve', 'cuMemMap', 'cuMemSetAccess', 'cuMemUnmap', 'cuMemAddressFree'],
    'cuMemRelease',
  ],
  amd: [
    ...['hsa_system_get_info', 'hsa_agent_get_info', 'hsa_amd_agent_iterate_memory_pools'],
    ...['hsa_amd_memory_pool_get_info', 'hsa_amd_memory_pool_allocate', 'hsa_amd_memory_pool_free', 'hsa_memory_copy'],
    ...['hsa_amd_pointer_info', 'hsa_amd_portable_export_dmabuf'],
  ],
} as const;

// No kernel of a VM is in it.
describe.runIf(!isRxe)('node-rdma/gpu', () => {
  expectNoLeaks();
  beforeAll(() => {
    Object.assign(process.env, driverEnv);
    control();
    listGpus();
  });

  it.each([
    ['nvidia', false],
    ['nvidia', true],
    ['amd', false],
  ] as const)(
    'gives back everything, whichever call of the driver fails: %s, virtual memory %s',
    async (vendor, virtualMemory) => {
      using context = openDevice(deviceA);
      using pd = context.allocPd();
      const gpu = gpuOf(vendor);
      let count = 0;
      for (const name of functions[vendor]) {
        takeLog();
        const attempt = async <T>(work: () => T | Promise<T>): Promise<T | undefined> => {
          control(`${name} 999`);
          try {
            return await work();
          } catch (error) {
            // The names of the library are those behind the macros; of a pool that is not found the search is told.
            expect(error, name).toMatchObject({ name: 'GpuError', status: 999 });
            count++;
            return undefined;
          } finally {
            control();
          }
        };
        const made =
          (await attempt(() => gpu.alloc(LENGTH, { virtualMemory }))) ?? (await gpu.alloc(LENGTH, { virtualMemory }));
        await attempt(listGpus);
        await attempt(() => made.copyFrom(Buffer.alloc(10)));
        await attempt(() => made.copyTo(Buffer.alloc(10)));
        (await attempt(() => made.exportDmabuf()))?.dmabuf.close();
        (await attempt(() => made.register(pd)))?.mr.close();
        const adopted = await attempt(() => adoptGpuMemory(vendor, made.address, 10));
        await attempt(() => adopted?.close());
        adopted?.close();
        await attempt(() => made.close());
        made.close();
        const log = takeLog().filter((line) => !line.includes('fails') && !line.startsWith('synchronous'));
        expect(log.at(-1), name).toMatch(vendor === 'nvidia' ? /^context of 0 is gone$/ : /pool_free/);
        const counted = (what: RegExp) => log.filter((line) => what.test(line)).length;
        expect(counted(/^cuMemAlloc|^cuMemCreate|pool_alloc/), name).toBe(
          counted(/^cuMemFree|^cuMemRelease|pool_free/),
        );
        expect(counted(/^cuMemAddressReserve/), name).toBe(counted(/^cuMemAddressFree/));
      }
      expect(count).toBeGreaterThan(functions[vendor].length);
    },
  );

  it('keeps the memory of the host that it copies', async () => {
    using context = openDevice(deviceA);
    using pd = context.allocPd();
    using buffer = await gpuOf('nvidia').alloc(2 ** 20);
    using mr = await pd.alloc(2 ** 20);
    const fd = sharedMemory(2 ** 20);
    using dmabuf = openDmabuf(fd);
    closeSync(fd);
    for (const [owner, bytes] of [[mr, mr.buffer] as const, [dmabuf, dmabuf.map()] as const]) {
      for (const begin of [() => buffer.copyFrom(bytes), () => buffer.copyTo(bytes)]) {
        const copy = begin();
        expect(thrown(() => owner.close())).toMatchObject({ code: 'EBUSY', message: /operation\(s\) under way/ });
        await copy;
      }
    }
    for (const change of [{ access: 0 }, { memory: Buffer.alloc(64) }]) {
      const busy = {
        code: 'EBUSY',
        syscall: 'ibv_rereg_mr',
        message: expect.stringMatching(/operation\(s\) under way/),
      };
      const copy = buffer.copyFrom(mr.buffer);
      expect(thrown(() => mr.reregSync(change))).toMatchObject(busy);
      await expect(mr.rereg(change)).rejects.toMatchObject(busy);
      await copy;
    }
    const changed = mr.rereg({ access: 0 });
    await expect(buffer.copyTo(mr.buffer)).rejects.toMatchObject({ code: 'ERR_INVALID_STATE' });
    (await changed).close();
  });

  it('asks no driver for what it has said not to have', async () => {
    control('attribute 110 0');
    await expect(gpuOf('nvidia').alloc(LENGTH, { virtualMemory: true })).rejects.toMatchObject({
      ...{ name: 'RdmaError', code: 'EOPNOTSUPP', syscall: 'cuMemCreate' },
      message: expect.stringMatching(/Stand-in GPU 0 lets no NIC at virtual memory/),
    });
    control();
  });

  it('names a domain that is none, and descriptors of something else', async () => {
    using context = openDevice(deviceA);
    using pd = context.allocPd();
    using buffer = await gpuOf('amd').alloc(4096);
    const fd = openSync('/tmp', 'r');
    using folder = openDmabuf(fd);
    const noDomain = { code: 'ERR_INVALID_ARG_TYPE', message: expect.stringMatching(/^pd must be a ProtectionDomain/) };
    for (const wrong of [undefined, null, {}, context] as never[]) {
      await expect(buffer.register(wrong)).rejects.toMatchObject(noDomain);
      await expect(folder.register(wrong)).rejects.toMatchObject(noDomain);
      await expect(importDmabuf(wrong, fd)).rejects.toMatchObject(noDomain);
    }
    const none = {
      code: 'EINVAL',
      message: expect.stringMatching(/^ibv_reg_dmabuf_mr EINVAL: invalid argument: descriptor \d+ is no DMA-BUF/),
    };
    await expect(importDmabuf(pd, fd)).rejects.toMatchObject(none);
    expect(thrown(() => folder.map()).message).toMatch(
      /what is no DMA-BUF does not let the processor map this memory$/,
    );
    expect(thrown(() => createUdmabuf(4096, { memfd: fd }))).toMatchObject({ name: 'RdmaError', syscall: 'fcntl' });
    closeSync(fd);
    await expect(importDmabuf(pd, fd)).rejects.toMatchObject({ code: 'EBADF' });
    await expect(adoptGpuMemory(Symbol('amd') as never, 1n, 1)).rejects.toMatchObject({
      code: 'ERR_INVALID_ARG_VALUE',
    });
  });

  const built = resolve('build/gpu-drivers');
  it.each([
    ['another library', 'libc.so.6', 'libm.so.6', /libc\.so\.6 has no cu/, /libm\.so\.6 has no hsa_/],
    ['what is no library', '/etc/hostname', '/tmp', /\/etc\/hostname: /, /\/tmp: /],
  ])('says so where a driver is %s', async (_what, cuda, hsa, ...why) => {
    const { code, stdout, stderr } = await runChild('gpu', ['drivers'], {
      env: { NODE_RDMA_LIBCUDA: cuda, NODE_RDMA_LIBHSA: hsa },
    });
    expect([code, stderr]).toEqual([0, '']);
    const reasons = why.map((detail) => expect.stringMatching(detail));
    expect(JSON.parse(stdout)).toEqual({
      drivers: [
        { vendor: 'nvidia', available: false, detail: reasons[0] },
        { vendor: 'amd', available: false, detail: reasons[1] },
      ],
      gpus: [],
    });
  });

  it('says how old a driver is, and registers by the address', async () => {
    const { code, stdout, stderr } = await runChild('gpu', ['drivers'], {
      env: { ...driverEnv, NODE_RDMA_LIBCUDA: `${built}/libcuda-old.so`, NODE_RDMA_LIBHSA: `${built}/libhsa-old.so` },
    });
    expect([code, stderr]).toEqual([0, '']);
    const nvidia = { missing: expect.stringMatching(/older than CUDA 11\.7/), virtual: 'EOPNOTSUPP', via: 'address' };
    const amd = { missing: expect.stringMatching(/older than ROCm 5\.3/), virtual: 'EOPNOTSUPP', via: 'address' };
    expect(JSON.parse(stdout).gpus).toEqual([nvidia, nvidia, amd]);
  });

  it('has a code for each call where no descriptor is left, and goes on when there are some again', async () => {
    const through = ['prlimit', '--nofile=64'];
    // Sanitizers take descriptors for their own checks: it is the addon as it is published.
    const env = { ...driverEnv, NODE_RDMA_ADDON: undefined };
    const { code, stdout, stderr } = await runChild('gpu', ['descriptors'], { env, through });
    expect([code, stderr]).toEqual([0, '']);
    const { without, again, left } = JSON.parse(stdout);
    expect(without).toEqual({
      ...{
        openDmabuf: 'EMFILE',
        createUdmabuf: 'EMFILE',
        getDmabuf: 'EMFILE',
        register: 'EMFILE',
        importDmabuf: 'EMFILE',
      },
      ...{ connectFd: 'EMFILE', listenFd: 'EMFILE', accept: 'EMFILE', receive: 'EMFILE' },
      ...{ exportDmabuf: 'CUDA_ERROR_NOT_SUPPORTED', alloc: 'CUDA_ERROR_OUT_OF_MEMORY', gpuRegister: 'address' },
    });
    expect(again).toEqual({ register: 'ok', accept: 'ok', gpuRegister: 'dmabuf' });
    expect(left).toBe(0);
    takeLog();
  });

  it('frees memory after its regions, when it is collected and when the process ends', async () => {
    for (const end of ['nothing', 'collect']) {
      takeLog();
      // The software device writes what it is asked to stderr: into the log of the drivers.
      const through = ['sh', '-c', 'exec "$@" 2>>"$STAND_IN_LOG"', 'sh'];
      const { code, stdout } = await runChild('gpu', [end], { env: { ...driverEnv, MLX5MODEL_LOG: '1' }, through });
      expect(code).toBe(0);
      // The memory that was allocated and what adopted a part of it have a region each.
      let regions = 0;
      let freed = 0;
      const log = takeLog();
      for (const line of log) {
        if (line.includes('DEREG_MR: ok')) regions++;
        if (/^cuMemFree|^hsa_amd_memory_pool_free/.test(line)) expect(++freed, line).toBeLessThanOrEqual(regions);
      }
      expect([regions, freed]).toEqual([6, 3]);
      // Each driver is initialized once, by the first question.
      expect(log.filter((line) => /^cuInit|^hsa_init/.test(line))).toEqual(['cuInit 0', 'hsa_init, the 1. time']);
      expect(stdout).toBe(end === 'collect' ? 'collected, 3 freed\n' : '');
    }
  });

  it('says what npm run test:gpu could not check where there is no RDMA', async () => {
    const nowhere = { NODE_RDMA_LIBIBVERBS: '/nonexistent' };
    const { code, stdout } = await runChild('../../../scripts/check-gpu', [], { env: { ...driverEnv, ...nowhere } });
    expect(code).toBe(0);
    expect(stdout).toMatch(/^- not checked: RDMA: .*\/nonexistent/m);
    expect(stdout.match(/^- not checked: .*registration and transfer: no RDMA device$/gm)).toHaveLength(5);
    expect(stdout).toMatch(/✓ Stand-in GPU 0 \(0000:17:00\.0\), virtual memory: exported as a DMA-BUF: fd \d+/);
    takeLog();
  });
});
