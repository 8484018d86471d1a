/** DMA-BUFs: exporters, views, registration, and traffic with them on either side. */
import { closeSync, existsSync, fstatSync, openSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import {
  allocDmaHeap,
  createUdmabuf,
  type DmaBuf,
  importDmabuf,
  listDmaHeaps,
  openDmabuf,
  type RegisterOptions,
} from '../../lib/gpu/index.ts';
import { AccessFlags, type MemoryRegion, RemoteRegion, WcStatus, WrOpcode } from '../../lib/index.ts';
import { exporters, kernelBuffers, registers, sharedMemory } from './dmabuf.ts';
import {
  ALL_ACCESS,
  completion,
  completions,
  descriptors,
  expectNoLeaks,
  fill,
  isRxe,
  Pair,
  thrown,
  until,
} from './fixture.ts';

expectNoLeaks();

const SIZE = 64 * 1024;
const isDmabuf = isRxe;

/** Reads the bytes as a program should; what stands for a DMA-BUF has no such access. */
const bytesOf = (dmabuf: DmaBuf): Buffer =>
  isDmabuf ? dmabuf.cpuAccess('read', (bytes) => Buffer.from(bytes)) : Buffer.from(dmabuf.map());
const write = (dmabuf: DmaBuf, work: (bytes: Buffer) => void): void =>
  isDmabuf ? dmabuf.cpuAccess('write', work) : work(dmabuf.map());

const token = (mr: MemoryRegion) => new RemoteRegion(JSON.parse(JSON.stringify(mr.remote())));
const done = { status: WcStatus.SUCCESS };

describe('exporters', () => {
  it('are there, or say what is missing', () => {
    if (existsSync('/dev/udmabuf')) {
      using dmabuf = createUdmabuf(8192);
      expect([dmabuf.length, dmabuf.exporter]).toEqual([8192, 'udmabuf']);
    } else {
      expect(isRxe).toBe(false);
      expect(thrown(() => createUdmabuf(8192))).toMatchObject({
        ...{ name: 'RdmaError', code: 'ENOENT', syscall: 'open' },
        message: expect.stringMatching(/\/dev\/udmabuf is not there \(CONFIG_UDMABUF/),
      });
    }
    if (listDmaHeaps().includes('system')) {
      using dmabuf = allocDmaHeap(8191);
      expect([dmabuf.length, dmabuf.exporter]).toEqual([8192, 'system']);
    } else {
      expect(isRxe).toBe(false);
      expect(thrown(() => allocDmaHeap(8192))).toMatchObject({
        code: 'ENOENT',
        message: expect.stringMatching(/no heaps at all/),
      });
    }
    expect(thrown(() => allocDmaHeap(4096, { heap: 'none' }))).toMatchObject({ code: 'ENOENT', syscall: 'open' });
  });

  it('name what is wrong with an argument', () => {
    const wrong: [() => unknown, string, RegExp][] = [
      [() => createUdmabuf(0), 'ERR_OUT_OF_RANGE', /length/],
      [() => createUdmabuf('1' as never), 'ERR_INVALID_ARG_TYPE', /length/],
      [() => createUdmabuf(4096, { memFd: 3 } as never), 'ERR_INVALID_ARG_VALUE', /did you mean 'memfd'/],
      [() => createUdmabuf(4096, { memfd: -1 }), 'ERR_OUT_OF_RANGE', /options\.memfd/],
      [() => createUdmabuf(4096, { offset: -1 }), 'ERR_OUT_OF_RANGE', /options\.offset/],
      [() => allocDmaHeap(-1), 'ERR_OUT_OF_RANGE', /length/],
      [() => allocDmaHeap(4096, { heap: '../null' }), 'ERR_INVALID_ARG_VALUE', /options\.heap/],
      [() => openDmabuf(-1), 'ERR_OUT_OF_RANGE', /fd/],
      [() => openDmabuf(1_000_000), 'EBADF', /fcntl/],
    ];
    for (const [call, code, message] of wrong) {
      expect(thrown(call)).toMatchObject({ code, message: expect.stringMatching(message) });
    }
    if (!isRxe) return;
    const limits: [() => unknown, string, RegExp][] = [
      [() => createUdmabuf(4097), 'EINVAL', /multiples of the page size/],
      [() => createUdmabuf(65 * 2 ** 20), 'EINVAL', /size_limit_mb allows 64 MiB/],
      [() => allocDmaHeap(2 ** 40), 'ENOMEM', /no memory for/],
    ];
    for (const [call, code, message] of limits) {
      expect(thrown(call)).toMatchObject({ name: 'RdmaError', code, message: expect.stringMatching(message) });
    }
    // A file that is no memfd.
    const fd = openSync('/etc/hostname', 'r');
    expect(thrown(() => createUdmabuf(4096, { memfd: fd }))).toMatchObject({ syscall: 'fcntl' });
    closeSync(fd);
  });
});

describe.each(exporters)('a DMA-BUF of %s', (_name, create) => {
  it('can be mapped until it is closed, and is closed once', () => {
    const dmabuf = create(SIZE);
    const view = dmabuf.map();
    expect([view.length, dmabuf.length, view === dmabuf.map()]).toEqual([SIZE, SIZE, true]);
    const written = fill(view, 3);
    using other = openDmabuf(dmabuf.fd);
    expect(other.map().equals(written)).toBe(true);
    dmabuf.close();
    dmabuf.close();
    expect(view.length).toBe(0);
    for (const call of [() => dmabuf.map(), () => dmabuf.cpuAccess('read', () => 0)]) {
      expect(thrown(call).code).toBe('ERR_RDMA_CLOSED');
    }
    expect(thrown(() => fstatSync(dmabuf.fd)).code).toBe('EBADF');
    expect(other.map().equals(written)).toBe(true);
  });

  it('lets the processor at it', async () => {
    using dmabuf = create(4096);
    expect(thrown(() => dmabuf.cpuAccess('all' as never, () => 0)).code).toBe('ERR_INVALID_ARG_VALUE');
    expect(thrown(() => dmabuf.cpuAccess('read', 1 as never)).code).toBe('ERR_INVALID_ARG_TYPE');
    if (!isDmabuf) {
      expect(thrown(() => dmabuf.cpuAccess('read', () => 0))).toMatchObject({
        ...{ code: 'ENOTTY', syscall: 'DMA_BUF_IOCTL_SYNC' },
      });
      return;
    }
    dmabuf.cpuAccess('write', (bytes) => bytes.fill(7));
    expect(dmabuf.cpuAccess('read', (bytes) => bytes[4095])).toBe(7);
    expect(await dmabuf.cpuAccess('readwrite', async (bytes) => bytes[0])).toBe(7);
    const fault = new Error('of the caller');
    expect(
      thrown(() =>
        dmabuf.cpuAccess('read', () => {
          throw fault;
        }),
      ),
    ).toBe(fault);
  });

  it.runIf(!registers)('is not registered by stock Soft-RoCE, which is said', async () => {
    using pair = await Pair.connect();
    using dmabuf = create(SIZE);
    const expected = {
      ...{ name: 'RdmaError', code: 'EOPNOTSUPP', syscall: 'ibv_reg_dmabuf_mr' },
      message: expect.stringMatching(/need rdma-core 34, Linux 5\.12/),
    };
    await expect(dmabuf.register(pair.a.pd)).rejects.toMatchObject(expected);
    await expect(importDmabuf(pair.a.pd, dmabuf.fd)).rejects.toMatchObject(expected);
  });

  const ranges: [string, RegisterOptions, number, number, bigint][] = [
    ['all of it', {}, 0, SIZE, 0n],
    ['an address of its own', { iova: 0x7f00_0000_0000n }, 0, SIZE, 0x7f00_0000_0000n],
    [
      'an offset within a page',
      { offset: 8192 + 128, length: SIZE - 3 * 8192, iova: 0x1_0000_0080n },
      ...([8192 + 128, SIZE - 3 * 8192, 0x1_0000_0080n] as const),
    ],
    ['odd numbers', { offset: 3 * 4096 + 7, length: 4097 }, 3 * 4096 + 7, 4097, BigInt(3 * 4096 + 7)],
    [
      'the last bytes',
      { offset: SIZE - 100, iova: 2n ** 40n + 4096n - 100n },
      ...([SIZE - 100, 100, 2n ** 40n + 4096n - 100n] as const),
    ],
  ];
  it.runIf(registers).each(ranges)(
    'is written, read, sent and received, and nothing beside it: %s',
    async (_range, options, offset, length, addr) => {
      using pair = await Pair.connect({ bytes: SIZE });
      const { a, b, remote } = pair;
      const dmabuf = create(SIZE);
      using view = openDmabuf(dmabuf.fd);
      write(view, (bytes) => bytes.fill(0xee));
      using mr = await dmabuf.register(b.pd, { ...options, access: ALL_ACCESS });
      expect([mr.addr, mr.length, mr.hasBuffer]).toEqual([addr, length, false]);
      // The region keeps the memory.
      dmabuf.close();
      const host = a.mr.slice(0, length);

      const sent = fill(a.mr.buffer, 5).subarray(0, length);
      a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: host, remote: token(mr).slice(0, length) });
      expect(await completion(a.cq, 'the write')).toMatchObject(done);
      /** What the region covers; nothing beside it has changed. */
      const seen = () => {
        const all = bytesOf(view);
        const beside = Buffer.concat([all.subarray(0, offset), all.subarray(offset + length)]);
        expect(beside.every((byte) => byte === 0xee)).toBe(true);
        return all.subarray(offset, offset + length);
      };
      expect(seen().equals(sent)).toBe(true);

      let written: Buffer = Buffer.alloc(0);
      write(view, (bytes) => {
        written = fill(bytes.subarray(offset, offset + length), 6);
      });
      a.qp.postSend({ opcode: WrOpcode.RDMA_READ, sgList: host, remote: token(mr).slice(0, length) });
      expect(await completion(a.cq, 'the read')).toMatchObject(done);
      expect(host.buffer.equals(written)).toBe(true);

      // As local memory: the source of a write and of a send, the target of a receive and of a read.
      a.mr.buffer.fill(0);
      b.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: mr.slice(), remote: token(a.mr).slice(0, length) });
      expect(await completion(b.cq, 'the write from it')).toMatchObject(done);
      expect(host.buffer.equals(written)).toBe(true);
      a.mr.buffer.fill(0);
      a.qp.postRecv({ sgList: host });
      b.qp.postSend({ opcode: WrOpcode.SEND, sgList: mr.slice() });
      expect(await completion(a.cq, 'the receive')).toMatchObject({ ...done, byteLen: length });
      await completion(b.cq, 'the send');
      expect(host.buffer.equals(written)).toBe(true);
      const message = fill(a.mr.buffer, 8).subarray(0, length);
      b.qp.postRecv({ sgList: mr.slice() });
      a.qp.postSend({ opcode: WrOpcode.SEND, sgList: host });
      await completions(a.cq, 1, 'the send');
      expect(await completion(b.cq, 'the receive into it')).toMatchObject({ ...done, byteLen: length });
      expect(seen().equals(message)).toBe(true);
      const wanted = fill(a.mr.buffer, 9).subarray(0, length);
      b.qp.postSend({ opcode: WrOpcode.RDMA_READ, sgList: mr.slice(), remote: token(a.mr).slice(0, length) });
      expect(await completion(b.cq, 'the read into it')).toMatchObject(done);
      expect(seen().equals(wanted)).toBe(true);

      if (addr % 8n === 0n) {
        const before = seen().readBigUInt64LE();
        const atomic = { sgList: a.mr.slice(0, 8), remote: token(mr).slice(0, 8) };
        a.qp.postSend({ opcode: WrOpcode.ATOMIC_FETCH_AND_ADD, ...atomic, compareAdd: 5n });
        expect(await completion(a.cq, 'the addition')).toMatchObject(done);
        const after = BigInt.asUintN(64, before + 5n);
        expect([a.mr.buffer.readBigUInt64LE(), seen().readBigUInt64LE()]).toEqual([before, after]);
        a.qp.postSend({ opcode: WrOpcode.ATOMIC_CMP_AND_SWP, ...atomic, compareAdd: after, swap: 77n });
        expect(await completion(a.cq, 'the swap')).toMatchObject(done);
        expect([a.mr.buffer.readBigUInt64LE(), seen().readBigUInt64LE()]).toEqual([after, 77n]);
        // What was there before comes into it.
        a.mr.buffer.writeBigUInt64LE(1n);
        b.qp.postSend({
          ...{ opcode: WrOpcode.ATOMIC_FETCH_AND_ADD, compareAdd: 2n },
          ...{ sgList: mr.slice(8, 8), remote: token(a.mr).slice(0, 8) },
        });
        expect(await completion(b.cq, 'the addition from it')).toMatchObject(done);
        expect([a.mr.buffer.readBigUInt64LE(), seen().readBigUInt64LE(8)]).toEqual([3n, 1n]);
      }
      expect(remote.length).toBe(SIZE);
    },
  );

  it.runIf(registers)('is not reached past the end of its region', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    using dmabuf = create(SIZE);
    using mr = await dmabuf.register(b.pd, { offset: 4096, length: 4096, access: ALL_ACCESS });
    const beyond = new RemoteRegion({ ...mr.remote(), length: 8192 });
    fill(a.mr.buffer, 3);
    a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8192), remote: beyond.slice() });
    expect(await completion(a.cq)).toMatchObject({ status: WcStatus.REM_ACCESS_ERR });
    const seen = bytesOf(dmabuf);
    expect([...seen.subarray(0, 4096), ...seen.subarray(8192)].every((byte) => byte === 0)).toBe(true);
  });

  it.runIf(registers)('says what is wrong with a registration', async () => {
    using pair = await Pair.connect();
    const { pd } = pair.a;
    using dmabuf = create(SIZE);
    const wrong: [RegisterOptions, string, RegExp][] = [
      [{ offset: SIZE }, 'ERR_OUT_OF_RANGE', /offset 65536 is past the end/],
      [{ length: SIZE + 1 }, 'ERR_OUT_OF_RANGE', /length 65537 is past the end/],
      [{ offset: 4096, length: SIZE }, 'ERR_OUT_OF_RANGE', /past the end/],
      [{ length: 0 }, 'ERR_OUT_OF_RANGE', /options\.length/],
      [{ offset: 0.5 }, 'ERR_OUT_OF_RANGE', /options\.offset/],
      [{ iova: 4 as never }, 'ERR_INVALID_ARG_TYPE', /options\.iova/],
      [{ ofset: 4 } as never, 'ERR_INVALID_ARG_VALUE', /did you mean 'offset'/],
      [{ offset: 128, iova: 0n }, 'EINVAL', /offset 0x80 and iova 0x0 are at different places in their pages/],
      [{ access: AccessFlags.REMOTE_WRITE }, 'EINVAL', /LOCAL_WRITE/],
    ];
    for (const [options, code, message] of wrong) {
      const expected = { code, message: expect.stringMatching(message) };
      await expect(dmabuf.register(pd, options)).rejects.toMatchObject(expected);
      await expect(importDmabuf(pd, dmabuf.fd, options)).rejects.toMatchObject(expected);
    }
    const closed = create(4096);
    closed.close();
    await expect(closed.register(pd)).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    await expect(importDmabuf(pd, 1_000_000)).rejects.toMatchObject({ code: 'EBADF' });
    // Busy until the region is there.
    const pending = dmabuf.register(pd);
    expect(thrown(() => dmabuf.close())).toMatchObject({ code: 'EBUSY' });
    (await pending).close();
  });

  it.runIf(registers)('takes 420 of them with three regions each, and leaves none', async () => {
    using pair = await Pair.connect();
    const { pd } = pair.a;
    const regions: MemoryRegion[] = [];
    const before = [descriptors(), kernelBuffers()];
    for (let i = 0; i < 420; i++) {
      using dmabuf = create(3 * 4096);
      dmabuf.map();
      for (let k = 0; k < 3; k++) regions.push(await dmabuf.register(pd, { offset: k * 4096, length: 4096 }));
    }
    expect(new Set(regions.map(({ lkey }) => lkey)).size).toBe(1260);
    expect(kernelBuffers()).toBe(before[1]! + (isDmabuf ? 420 : 0));
    for (const mr of regions) mr.close();
    expect(descriptors()).toBeLessThanOrEqual(before[0]!);
    // The mapping of the last one goes in a turn of the event loop.
    await until(() => kernelBuffers() === before[1], 'the end of the memory');
  });
});

describe('importDmabuf', () => {
  it.runIf(registers)('says so where a descriptor is none of a DMA-BUF', async () => {
    using pair = await Pair.connect();
    const fd = isRxe ? sharedMemory(4096) : openSync('/dev/null', 'r');
    try {
      const expected = isRxe
        ? { code: 'EINVAL', message: expect.stringMatching(/is no DMA-BUF/) }
        : { code: 'ERR_OUT_OF_RANGE', message: expect.stringMatching(/of 0 bytes/) };
      await expect(importDmabuf(pair.a.pd, fd)).rejects.toMatchObject(expected);
    } finally {
      closeSync(fd);
    }
  });
});
