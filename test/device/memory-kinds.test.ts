/** Regions of every kind that are not simply a buffer: other addresses, on-demand, null, raw addresses. */
import { describe, expect, it } from 'vitest';
import {
  AccessFlags,
  AdviseMrAdvice,
  AdviseMrFlags,
  type MemoryRegion,
  MwType,
  type ProtectionDomain,
  type RegMrOptions,
  RemoteRegion,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import {
  ALL_ACCESS,
  collect,
  completion,
  completions,
  exerciseRegion,
  expectNoLeaks,
  fill,
  isRxe,
  Pair,
  thrown,
  unsupported,
} from './fixture.ts';

expectNoLeaks();

describe('iova', () => {
  it('is refused where the region would go on past 2^64', async () => {
    using pair = await Pair.connect();
    const { pd } = pair.a;
    const iova = 2n ** 64n - 4096n;
    const options = { iova, length: 8192 };
    const expected = { name: 'RangeError', code: 'ERR_OUT_OF_RANGE' };
    const named = { ...expected, message: expect.stringMatching(/^options\.iova 0xfffffffffffff000 \+ 8192 bytes/) };
    const memory = Buffer.alloc(8192);
    for (const call of [
      () => pd.allocSync(8192, { iova }),
      () => pd.regMrSync(memory, { iova }),
      () => pd.regMrAddressSync(0x1000n, 8192, { iova }),
      () => pd.regDmabufMrSync(0, options),
    ]) {
      expect(thrown(call)).toMatchObject(named);
    }
    await expect(pd.alloc(8192, { iova })).rejects.toMatchObject(named);
    await expect(pd.regMr(memory, { iova })).rejects.toMatchObject(named);
    await expect(pd.regMrAddress(0x1000n, 8192, { iova })).rejects.toMatchObject(named);
    await expect(pd.regDmabufMr(0, options)).rejects.toMatchObject(named);
  });

  it.each([0x1000n, 0x7fff_ffff_f000n, 0xffff_ffff_ffff_0000n - 0x4000n])('names the first byte 0x%s', async (iova) => {
    using pair = await Pair.connect();
    const { b } = pair;
    using mr = await b.pd.alloc(8192, { access: ALL_ACCESS, iova });
    expect(mr.addr).toBe(iova);
    await exerciseRegion(pair, mr, () => mr.buffer);
    // For local requests too.
    mr.buffer.write('named by another address', 100);
    b.qp.postSend({
      opcode: WrOpcode.RDMA_WRITE,
      sgList: mr.slice(100, 24),
      remote: new RemoteRegion(pair.a.mr.remote()).slice(),
    });
    expect(await completion(b.cq)).toMatchObject({ status: WcStatus.SUCCESS });
    expect(pair.a.mr.buffer.toString('latin1', 0, 24)).toBe('named by another address');
  });

  it('must be at the same place in its page', async () => {
    using pair = await Pair.connect();
    const { pd } = pair.a;
    const expected = {
      code: 'EINVAL',
      syscall: 'ibv_reg_mr_iova',
      message: expect.stringContaining('same place in its page'),
    };
    expect(thrown(() => pd.allocSync(4096, { iova: 8n }))).toMatchObject(expected);
    await expect(pd.alloc(4096, { iova: 8n })).rejects.toMatchObject(expected);
    const { buffer } = pair.a.mr;
    using mr = pd.regMrSync(buffer.subarray(8), { iova: 8n });
    expect(mr.addr).toBe(8n);
  });

  it('is where a memory window is bound', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    const mr = b.pd.allocSync(8192, { access: ALL_ACCESS | AccessFlags.MW_BIND, iova: 0x10000n });
    const mw = b.pd.allocMw(MwType.MW_TYPE_2);
    b.qp.bindMw(mw, { local: mr.slice(4096, 64), access: AccessFlags.REMOTE_WRITE });
    expect(await completion(b.cq, 'the binding')).toMatchObject({ status: WcStatus.SUCCESS });
    expect(mw.remote()).toMatchObject({ addr: '0x11000', length: 64 });
    const sent = fill(a.mr.buffer.subarray(0, 64), 2);
    a.qp.postSend({
      opcode: WrOpcode.RDMA_WRITE,
      sgList: a.mr.slice(0, 64),
      remote: new RemoteRegion(mw.remote()!).slice(),
    });
    expect(await completion(a.cq, 'the write')).toMatchObject({ status: WcStatus.SUCCESS });
    expect(mr.buffer.subarray(4096, 4160).equals(sent)).toBe(true);
    // Before its queue pair: rxe of Linux 6.12 waits ten seconds for the window otherwise, and warns.
    mw.close();
  });
});

describe('ZERO_BASED', () => {
  it('counts from 0', async () => {
    using pair = await Pair.connect();
    const { b } = pair;
    const access = ALL_ACCESS | AccessFlags.ZERO_BASED;
    if (isRxe) {
      for (const error of [
        thrown(() => b.pd.allocSync(8192, { access })),
        await b.pd.alloc(8192, { access }).catch((e: Error) => e),
      ]) {
        expect(error).toMatchObject(unsupported('ibv_reg_mr_iova'));
      }
      return;
    }
    using mr = await b.pd.alloc(8192, { access });
    expect([mr.addr, mr.remote().addr]).toEqual([0n, '0x0']);
    await exerciseRegion(pair, mr, () => mr.buffer);
  });

  it('takes no other iova', async () => {
    using pair = await Pair.connect();
    const { pd } = pair.a;
    const error = thrown(() => pd.allocSync(4096, { access: AccessFlags.ZERO_BASED, iova: 4096n }));
    expect(error).toMatchObject({ code: 'ERR_INVALID_ARG_VALUE', message: expect.stringContaining('options.iova') });
  });
});

/** The ways to a region by address. */
const byAddress: [
  string,
  (pd: ProtectionDomain, address: bigint, length: number, o?: RegMrOptions) => Promise<MemoryRegion>,
][] = [
  ['regMrAddress', (pd, address, length, options) => pd.regMrAddress(address, length, options)],
  ['regMrAddressSync', async (pd, address, length, options) => pd.regMrAddressSync(address, length, options)],
];

describe.each(byAddress)('pd.%s', (_name, register) => {
  it('registers what lies there', async () => {
    using pair = await Pair.connect();
    const { b } = pair;
    // Memory whose address is known here: that of another region.
    using mr = await register(b.pd, b.mr.addr + 1000n, 4096, { access: ALL_ACCESS });
    expect([mr.addr, mr.length, mr.hasBuffer]).toEqual([b.mr.addr + 1000n, 4096, false]);
    await exerciseRegion(pair, mr, () => b.mr.buffer.subarray(1000));
  });

  it('has no buffer, cannot be registered anew, and is held as others are', async () => {
    using pair = await Pair.connect();
    const { b } = pair;
    const mr = await register(b.pd, b.mr.addr, 4096);
    for (const use of [() => mr.buffer, () => mr.slice(0, 8).buffer]) {
      expect(thrown(use)).toMatchObject({ code: 'ERR_INVALID_STATE', message: expect.stringContaining('no buffer') });
    }
    expect(thrown(() => mr.reregSync({ access: 0 })).code).toBe('ERR_INVALID_ARG_VALUE');
    b.qp.postRecv({ sgList: mr.slice() });
    expect(thrown(() => mr.close())).toMatchObject({ code: 'EBUSY', message: /1 work request/ });
    b.qp.close();
    mr.close();
    expect(b.mr.slice().length).toBe(b.mr.length);
  });

  it('fails where there is no memory, and refuses what is no address', async () => {
    using pair = await Pair.connect();
    const { pd } = pair.a;
    // ENOMEM where libibverbs has to keep the range from forks, which looks at it first.
    const code = expect.stringMatching(/^(EFAULT|ENOMEM)$/);
    await expect(register(pd, 4096n, 4096)).rejects.toMatchObject({ name: 'RdmaError', code, syscall: 'ibv_reg_mr' });
    const wrong: [unknown, unknown, string, RegExp][] = [
      [4096, 4096, 'ERR_INVALID_ARG_TYPE', /address/],
      [-1n, 4096, 'ERR_OUT_OF_RANGE', /address/],
      [1n << 64n, 4096, 'ERR_OUT_OF_RANGE', /address/],
      [0xffff_ffff_ffff_f000n, 8192, 'ERR_OUT_OF_RANGE', /address/],
      [4096n, 0, 'ERR_OUT_OF_RANGE', /length/],
      [4096n, 2 ** 53, 'ERR_OUT_OF_RANGE', /length/],
      [4096n, 1n, 'ERR_INVALID_ARG_TYPE', /length/],
    ];
    for (const [address, length, code, message] of wrong) {
      await expect(register(pd, address as never, length as never)).rejects.toMatchObject({
        code,
        message: expect.stringMatching(message),
      });
    }
  });
});

describe('pd.allocNullMr', () => {
  it('takes what is written, and reads as zeros', async () => {
    using pair = await Pair.connect({ cap: { maxSendSge: 2 } });
    const { a, b, remote } = pair;
    if (isRxe) {
      expect(thrown(() => a.pd.allocNullMr())).toMatchObject(unsupported('ibv_alloc_null_mr'));
      return;
    }
    const nothing = a.pd.allocNullMr();
    expect([nothing.length, nothing.addr, nothing.hasBuffer]).toEqual([Number.MAX_SAFE_INTEGER, 0n, false]);
    const before = fill(b.mr.buffer, 4);
    const sent = fill(a.mr.buffer, 5);
    a.qp.postSend({ opcode: WrOpcode.RDMA_READ, sgList: nothing.slice(1 << 30, 4096), remote: remote.slice(0, 4096) });
    expect(await completion(a.cq, 'the read')).toMatchObject({ status: WcStatus.SUCCESS });
    a.qp.postSend({
      opcode: WrOpcode.RDMA_WRITE,
      sgList: [a.mr.slice(0, 4), nothing.slice(0, 100)],
      remote: remote.slice(4, 104),
    });
    expect(await completion(a.cq, 'the write')).toMatchObject({ status: WcStatus.SUCCESS });
    expect(b.mr.buffer.subarray(0, 4).equals(before.subarray(0, 4))).toBe(true);
    expect(b.mr.buffer.subarray(4, 8).equals(sent.subarray(0, 4))).toBe(true);
    expect(b.mr.buffer.subarray(8, 108).equals(Buffer.alloc(100))).toBe(true);
    expect(b.mr.buffer.subarray(108).equals(before.subarray(108))).toBe(true);
    a.qp.postRecv({ sgList: nothing.slice(0, 64) });
    expect(thrown(() => nothing.close())).toMatchObject({ code: 'EBUSY' });
    b.qp.postSend({ opcode: WrOpcode.SEND, sgList: b.mr.slice(0, 64) });
    expect(await completion(a.cq, 'the receive')).toMatchObject({ status: WcStatus.SUCCESS, byteLen: 64 });
    nothing.close();
    expect(thrown(() => nothing.slice(0, 1)).code).toBe('ERR_RDMA_CLOSED');
  });

  it('has no remote key, and cannot be registered anew', async () => {
    using pair = await Pair.connect();
    if (isRxe) {
      expect(thrown(() => pair.b.pd.allocNullMr())).toMatchObject(unsupported('ibv_alloc_null_mr'));
      return;
    }
    const nothing = pair.a.pd.allocNullMr();
    expect(thrown(() => nothing.remote())).toMatchObject({ code: 'ERR_INVALID_STATE', message: /no remote key/ });
    expect(thrown(() => nothing.reregSync({ access: 0 })).code).toBe('ERR_INVALID_ARG_VALUE');
    expect(thrown(() => nothing.slice(Number.MAX_SAFE_INTEGER, 1)).code).toBe('ERR_OUT_OF_RANGE');
  });
});

describe('on-demand memory', () => {
  const access = ALL_ACCESS | AccessFlags.ON_DEMAND;

  it('works like pinned memory', async () => {
    using pair = await Pair.connect();
    const { b } = pair;
    if (isRxe) {
      await expect(b.pd.alloc(8192, { access })).rejects.toMatchObject(unsupported('ibv_reg_mr'));
      return;
    }
    using mr = await b.pd.alloc(8192, { access });
    await exerciseRegion(pair, mr, () => mr.buffer);
  });

  it('may be announced with pd.adviseMr', async () => {
    using pair = await Pair.connect();
    const { pd, mr: pinned } = pair.a;
    const { PREFETCH, PREFETCH_WRITE } = AdviseMrAdvice;
    const other = pair.a.context.allocPd();
    if (isRxe) {
      await expect(pd.adviseMr(PREFETCH, 0, pinned.slice())).rejects.toMatchObject(unsupported('ibv_advise_mr'));
      return;
    }
    using mr = await pd.alloc(1 << 20, { access });
    using source = await pd.alloc(4096, { access: AccessFlags.ON_DEMAND });
    await pd.adviseMr(PREFETCH_WRITE, AdviseMrFlags.FLUSH, [mr.slice(0, 5000), mr.slice(500_000)]);
    await pd.adviseMr(PREFETCH, 0, source.slice());
    const failures: [() => Promise<void>, string][] = [
      [() => pd.adviseMr(PREFETCH, AdviseMrFlags.FLUSH, [mr.slice(), pinned.slice()]), 'ENOENT'],
      [() => pd.adviseMr(PREFETCH_WRITE, AdviseMrFlags.FLUSH, source.slice()), 'EPERM'],
      [() => other.adviseMr(PREFETCH, 0, mr.slice()), 'EPERM'],
      [() => pd.adviseMr(PREFETCH, 1 << 20, mr.slice()), 'EOPNOTSUPP'],
    ];
    for (const [failure, code] of failures) {
      await expect(failure()).rejects.toMatchObject({ name: 'RdmaError', code, syscall: 'ibv_advise_mr' });
    }
    // Its region is needed until the device has heard of it.
    const pending = pd.adviseMr(PREFETCH, AdviseMrFlags.FLUSH, mr.slice());
    for (const busy of [mr, pd]) expect(thrown(() => busy.close()).code).toBe('EBUSY');
    await pending;
  });

  it('pd.adviseMr names what is wrong', async () => {
    using pair = await Pair.connect();
    const { pd, mr } = pair.a;
    const closed = pd.allocSync(64);
    const slice = closed.slice();
    closed.close();
    const wrong: [unknown, unknown, unknown, string, RegExp][] = [
      [7, 0, mr.slice(), 'ERR_OUT_OF_RANGE', /advice/],
      ['PREFETCH', 0, mr.slice(), 'ERR_INVALID_ARG_TYPE', /advice/],
      [0, -1, mr.slice(), 'ERR_OUT_OF_RANGE', /flags/],
      [0, 0, [], 'ERR_OUT_OF_RANGE', /slices/],
      [0, 0, mr, 'ERR_INVALID_ARG_TYPE', /slices/],
      [0, 0, [mr.slice(), {}], 'ERR_INVALID_ARG_TYPE', /slices/],
      [0, 0, slice, 'ERR_RDMA_CLOSED', /closed/],
    ];
    for (const [advice, flags, slices, code, message] of wrong) {
      await expect(pd.adviseMr(advice as never, flags as never, slices as never)).rejects.toMatchObject({
        code,
        message: expect.stringMatching(message),
      });
    }
  });
});

describe('pd.regImplicitMr', () => {
  it('covers memory without registering it', async () => {
    using pair = await Pair.connect();
    const { a, b, remote } = pair;
    if (isRxe) {
      expect(thrown(() => a.pd.regImplicitMr())).toMatchObject(unsupported('ibv_reg_mr'));
      return;
    }
    const all = a.pd.regImplicitMr();
    const memories = [Buffer.alloc(3000), new Uint8Array(5000), Buffer.from('a small one of the pool')];
    for (const memory of memories) {
      const mr = all.cover(memory);
      expect([mr.length, mr.lkey, mr.pd]).toEqual([memory.byteLength, all.lkey, a.pd]);
      const sent = fill(mr.buffer, 6);
      a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: mr.slice(), remote: remote.slice() });
      expect(await completion(a.cq, 'the write')).toMatchObject({ status: WcStatus.SUCCESS });
      expect(b.mr.buffer.subarray(0, sent.length).equals(sent)).toBe(true);
      fill(b.mr.buffer, 7);
      a.qp.postSend({ opcode: WrOpcode.RDMA_READ, sgList: mr.slice(), remote: remote.slice(0, mr.length) });
      expect(thrown(() => mr.close())).toMatchObject({ code: 'EBUSY' });
      expect(await completion(a.cq, 'the read')).toMatchObject({ status: WcStatus.SUCCESS });
      expect(mr.buffer.equals(b.mr.buffer.subarray(0, mr.length))).toBe(true);
      expect(Buffer.from(memory.buffer, memory.byteOffset, memory.byteLength).equals(mr.buffer)).toBe(true);
      expect(thrown(() => all.close())).toMatchObject({ code: 'EBUSY', message: /MemoryRegion/ });
      mr.close();
      expect(thrown(() => mr.slice()).code).toBe('ERR_RDMA_CLOSED');
    }
    all.close();
    expect(thrown(() => all.cover(Buffer.alloc(8))).code).toBe('ERR_RDMA_CLOSED');
  });

  it('is not for peers, and not written to when it is read-only', async () => {
    using pair = await Pair.connect();
    const { a, remote } = pair;
    if (isRxe) {
      expect(thrown(() => a.pd.regImplicitMr({ readOnly: true }))).toMatchObject(unsupported('ibv_reg_mr'));
      return;
    }
    const all = a.pd.regImplicitMr({ readOnly: true });
    const mr = all.cover(Buffer.alloc(64));
    expect(all.access).toBe(AccessFlags.ON_DEMAND);
    expect(thrown(() => mr.remote())).toMatchObject({ code: 'ERR_INVALID_STATE', message: /remote/ });
    expect(thrown(() => all.cover(new SharedArrayBuffer(8) as never)).code).toBe('ERR_INVALID_ARG_TYPE');
    expect(thrown(() => a.pd.regImplicitMr({ access: 1 } as never)).message).toMatch(/'access'/);
    a.qp.postSend({ opcode: WrOpcode.RDMA_READ, sgList: mr.slice(), remote: remote.slice(0, 64) });
    expect(await completion(a.cq)).toMatchObject({ status: WcStatus.LOC_PROT_ERR });
  });

  it('holds the memory of a region that is forgotten in flight', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    if (isRxe) {
      expect(thrown(() => b.pd.regImplicitMr())).toMatchObject(unsupported('ibv_reg_mr'));
      return;
    }
    const all = a.pd.regImplicitMr();
    let memory: WeakRef<ArrayBuffer>;
    (() => {
      const view = new Uint8Array(1 << 16);
      memory = new WeakRef(view.buffer);
      a.qp.postRecv({ sgList: all.cover(view).slice() });
    })();
    await collect();
    expect(memory!.deref()).toBeDefined();
    b.qp.postSend({ opcode: WrOpcode.SEND, sgList: b.mr.slice() });
    await completions(a.cq, 1);
  });
});
