/** Memory on the device, and regions of a DMA-BUF. */
import { closeSync, ftruncateSync, openSync, readSync, rmSync, writeSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import {
  AccessFlags,
  type MemoryRegion,
  openDevice,
  type ProtectionDomain,
  type RegDmabufMrOptions,
  RemoteRegion,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import {
  ALL_ACCESS,
  completion,
  deviceA,
  deviceB,
  exerciseRegion,
  expectNoLeaks,
  fill,
  isRxe,
  Pair,
  thrown,
  unsupported,
} from './fixture.ts';

expectNoLeaks();

describe('context.allocDm', () => {
  it('allocates memory that peers reach, and this process copies to and from', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    if (isRxe) {
      expect(thrown(() => b.context.allocDm({ length: 4096 }))).toMatchObject(unsupported('ibv_alloc_dm'));
      return;
    }
    const dm = b.context.allocDm({ length: 8192, logAlignReq: 3 });
    const bytes = fill(Buffer.alloc(8192), 3);
    dm.memcpyTo(0, bytes);
    const mr = b.pd.regDmMr(dm, { offset: 64, length: 4096, access: ALL_ACCESS });
    expect([mr.addr, mr.length, mr.remote().addr, mr.hasBuffer]).toEqual([0n, 4096, '0x0', false]);
    expect(mr.access).toBe(ALL_ACCESS | AccessFlags.ZERO_BASED);
    const read = () => {
      const copy = Buffer.alloc(4096);
      dm.memcpyFrom(copy, 64);
      return copy;
    };
    await exerciseRegion(pair, mr, read);
    // What lies beside the region is as it was.
    const all = Buffer.alloc(8192);
    dm.memcpyFrom(all, 0);
    expect(all.subarray(0, 128).equals(bytes.subarray(0, 128))).toBe(true);
    expect(all.subarray(1152).equals(bytes.subarray(1152))).toBe(true);
    // As local memory, too.
    const remote = new RemoteRegion(a.mr.remote());
    b.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: mr.slice(2000, 2000), remote: remote.slice() });
    expect(await completion(b.cq)).toMatchObject({ status: WcStatus.SUCCESS });
    expect(a.mr.buffer.subarray(0, 2000).equals(bytes.subarray(2064, 4064))).toBe(true);
    // And a request in flight, and a region, hold it.
    b.qp.postRecv({ sgList: mr.slice() });
    expect(thrown(() => mr.close())).toMatchObject({ code: 'EBUSY', message: /1 work request/ });
    expect(thrown(() => dm.close())).toMatchObject({ code: 'EBUSY', syscall: 'ibv_free_dm', message: /MemoryRegion/ });
    expect(thrown(() => mr.reregSync({ access: 0 })).code).toBe('ERR_INVALID_ARG_VALUE');
    b.qp.close();
    dm.close({ cascade: true });
    expect([mr.closed, dm.closed]).toEqual([true, true]);
    for (const use of [
      () => dm.memcpyTo(0, bytes),
      () => dm.memcpyFrom(all, 0),
      () => b.pd.regDmMr(dm),
      () => mr.slice(),
    ]) {
      expect(thrown(use).code).toBe('ERR_RDMA_CLOSED');
    }
  });

  it('gives all of it back', () => {
    const context = openDevice(deviceA);
    if (isRxe) {
      expect(thrown(() => context.allocDm({ length: 1 }))).toMatchObject(unsupported('ibv_alloc_dm'));
    } else {
      // The software device has 256 KiB, in pages.
      for (let i = 0; i < 200; i++) context.allocDm({ length: 100_000 }).close();
      const taken = Array.from({ length: 64 }, () => context.allocDm({ length: 4096 }));
      const none = { code: 'ENOMEM', syscall: 'ibv_alloc_dm' };
      expect(thrown(() => context.allocDm({ length: 1 }))).toMatchObject(none);
      for (const dm of taken) dm.close();
      expect(thrown(() => context.allocDm({ length: (1 << 18) + 1 }))).toMatchObject({ code: 'EINVAL' });
    }
    context.close();
  });

  it('names what is wrong', () => {
    const context = openDevice(deviceA);
    const wrong: [object, string, RegExp][] = [
      [{}, 'ERR_INVALID_ARG_TYPE', /attr\.length/],
      [{ length: 0 }, 'ERR_OUT_OF_RANGE', /attr\.length/],
      [{ length: 8, logAlignReq: 64 }, 'ERR_OUT_OF_RANGE', /attr\.logAlignReq/],
      [{ length: 8, align: 3 }, 'ERR_INVALID_ARG_VALUE', /'align' in attr/],
    ];
    for (const [attr, code, message] of wrong) {
      expect(thrown(() => context.allocDm(attr as never))).toMatchObject({
        code,
        message: expect.stringMatching(message),
      });
    }
    if (!isRxe) {
      const pd = context.allocPd();
      const other = openDevice(deviceB);
      const dm = context.allocDm({ length: 64 });
      const theirs = other.allocDm({ length: 64 });
      const calls: [() => unknown, string, RegExp][] = [
        [() => dm.memcpyTo(60, Buffer.alloc(8)), 'ERR_OUT_OF_RANGE', /past the end/],
        [() => dm.memcpyFrom(Buffer.alloc(65), 0), 'ERR_OUT_OF_RANGE', /past the end/],
        [() => dm.memcpyTo(-4, Buffer.alloc(4)), 'ERR_OUT_OF_RANGE', /dmOffset/],
        [() => dm.memcpyTo(0, 'text' as never), 'ERR_INVALID_ARG_TYPE', /bytes/],
        [() => dm.memcpyTo(2, Buffer.alloc(4)), 'EINVAL', /multiples of 4/],
        [() => dm.memcpyFrom(Buffer.alloc(3), 0), 'EINVAL', /multiples of 4/],
        [() => pd.regDmMr({} as never), 'ERR_INVALID_ARG_TYPE', /dm must be/],
        [() => pd.regDmMr(theirs), 'ERR_INVALID_ARG_VALUE', /another device/],
        [() => pd.regDmMr(dm, { offset: 64 }), 'ERR_OUT_OF_RANGE', /options\.offset/],
        [() => pd.regDmMr(dm, { offset: 8, length: 57 }), 'ERR_OUT_OF_RANGE', /options\.length/],
        [() => pd.regDmMr(dm, { acess: 1 } as never), 'ERR_INVALID_ARG_VALUE', /'acess'/],
        [() => pd.regDmMr(dm, { access: AccessFlags.MW_BIND }), 'EINVAL', /ibv_reg_dm_mr/],
      ];
      for (const [call, code, message] of calls) {
        expect(thrown(call)).toMatchObject({ code, message: expect.stringMatching(message) });
      }
      other.close({ cascade: true });
    }
    context.close({ cascade: true });
    expect(thrown(() => context.allocDm({ length: 8 })).code).toBe('ERR_RDMA_CLOSED');
  });
});

type Register = (pd: ProtectionDomain, fd: number, options: RegDmabufMrOptions) => Promise<MemoryRegion>;
const ways: [string, Register][] = [
  ['regDmabufMr', (pd, fd, options) => pd.regDmabufMr(fd, options)],
  ['regDmabufMrSync', async (pd, fd, options) => pd.regDmabufMrSync(fd, options)],
];

/** A file of shared memory: what the software device takes for a DMA-BUF. */
class Exported implements Disposable {
  readonly #path = `/dev/shm/node-rdma-dmabuf-${process.pid}`;
  readonly fd = openSync(this.#path, 'w+');
  constructor(bytes: number) {
    rmSync(this.#path);
    ftruncateSync(this.fd, bytes);
  }
  read(offset: number, length: number): Buffer {
    const bytes = Buffer.alloc(length);
    expect(readSync(this.fd, bytes, 0, length, offset)).toBe(length);
    return bytes;
  }
  [Symbol.dispose](): void {
    closeSync(this.fd);
  }
}

describe.each(ways)('pd.%s', (_name, register) => {
  it('registers memory of a DMA-BUF, which the region keeps when the descriptor is closed', async () => {
    using pair = await Pair.connect();
    const { b } = pair;
    using exported = new Exported(16384);
    if (isRxe) {
      await expect(register(b.pd, exported.fd, { length: 4096 })).rejects.toMatchObject(
        unsupported('ibv_reg_dmabuf_mr'),
      );
      return;
    }
    for (const [options, addr] of [
      [{ length: 16384 }, 0n],
      [{ offset: 4096, length: 8192 }, 4096n],
      [{ offset: 4200, length: 8000, iova: 0x7000_0000_0068n }, 0x7000_0000_0068n],
    ] as [RegDmabufMrOptions, bigint][]) {
      const fd = openSync(`/proc/self/fd/${exported.fd}`, 'r+');
      const pending = register(b.pd, fd, { ...options, access: ALL_ACCESS });
      // Not even until it is registered.
      closeSync(fd);
      const mr = await pending;
      expect([mr.addr, mr.length, mr.hasBuffer]).toEqual([addr, options.length, false]);
      await exerciseRegion(pair, mr, () => exported.read(options.offset ?? 0, options.length));
      // What the exporter writes is read.
      writeSync(exported.fd, 'from the exporter', (options.offset ?? 0) + 7000);
      const { a } = pair;
      const remote = new RemoteRegion(mr.remote());
      a.qp.postSend({ opcode: WrOpcode.RDMA_READ, sgList: a.mr.slice(0, 17), remote: remote.slice(7000) });
      expect(await completion(a.cq)).toMatchObject({ status: WcStatus.SUCCESS });
      expect(a.mr.buffer.toString('latin1', 0, 17)).toBe('from the exporter');
      expect(thrown(() => mr.buffer).code).toBe('ERR_INVALID_STATE');
      mr.close();
    }
  });

  it('says what is wrong with it', async () => {
    using pair = await Pair.connect();
    const { pd } = pair.a;
    using exported = new Exported(16384);
    const { fd } = exported;
    const wrong: [number, object, string, RegExp][] = [
      [-1, { length: 8 }, 'ERR_OUT_OF_RANGE', /fd/],
      ['3' as never, { length: 8 }, 'ERR_INVALID_ARG_TYPE', /fd/],
      [fd, {}, 'ERR_INVALID_ARG_TYPE', /options\.length/],
      [fd, { length: 0 }, 'ERR_OUT_OF_RANGE', /options\.length/],
      [fd, { length: 8, offset: -1 }, 'ERR_OUT_OF_RANGE', /options\.offset/],
      [fd, { length: 8, iova: 1 }, 'ERR_INVALID_ARG_TYPE', /options\.iova/],
      [fd, { length: 8, size: 1 }, 'ERR_INVALID_ARG_VALUE', /'size' in options/],
    ];
    if (!isRxe) {
      wrong.push(
        [1_000_000, { length: 8 }, 'EBADF', /ibv_reg_dmabuf_mr/],
        [fd, { length: 16385 }, 'EINVAL', /ibv_reg_dmabuf_mr/],
        [fd, { length: 8, offset: 16384 }, 'EINVAL', /ibv_reg_dmabuf_mr/],
        [fd, { length: 8, offset: 100, iova: 4096n }, 'EINVAL', /same place in its page/],
        [fd, { length: 8, access: AccessFlags.REMOTE_WRITE }, 'EINVAL', /LOCAL_WRITE/],
      );
    }
    for (const [descriptor, options, code, message] of wrong) {
      await expect(register(pd, descriptor, options as never)).rejects.toMatchObject({
        code,
        message: expect.stringMatching(message),
      });
    }
  });
});
