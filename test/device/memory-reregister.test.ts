/** Registering anew: what stays, what ends, what is refused. */
import { describe, expect, it } from 'vitest';
import {
  AccessFlags,
  type MemoryRegion,
  openDevice,
  RemoteRegion,
  type ReregMrChange,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import { binding } from '../../lib/native/binding.ts';
import {
  ALL_ACCESS,
  collect,
  completion,
  deviceA,
  expectNoLeaks,
  fill,
  isRxe,
  openSide,
  Pair,
  thrown,
  until,
} from './fixture.ts';

expectNoLeaks();

const ways: [name: string, rereg: (mr: MemoryRegion, change: ReregMrChange) => Promise<MemoryRegion>][] = [
  ['rereg', (mr, change) => mr.rereg(change)],
  ['reregSync', async (mr, change) => mr.reregSync(change)],
];

const readOnly = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ;

describe.each(ways)('mr.%s', (_name, rereg) => {
  if (isRxe) {
    it('is answered with EOPNOTSUPP by a provider without it, and leaves the region as it was', async () => {
      using pair = await Pair.connect();
      const { a, b, remote } = pair;
      for (const change of [{ access: readOnly }, { memory: Buffer.alloc(64) }, { pd: b.context.allocPd() }]) {
        await expect(rereg(b.mr, change)).rejects.toMatchObject({
          name: 'RdmaError',
          code: 'EOPNOTSUPP',
          syscall: 'ibv_rereg_mr',
          message: expect.stringContaining('the region is as it was'),
        });
      }
      const sent = fill(a.mr.buffer);
      a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(), remote: remote.slice() });
      expect(await completion(a.cq)).toMatchObject({ status: WcStatus.SUCCESS });
      expect(b.mr.buffer.equals(sent)).toBe(true);
    });
    return;
  }

  it('changes the access', async () => {
    using pair = await Pair.connect();
    const { a, b, remote } = pair;
    const bytes = fill(b.mr.buffer, 3);
    const mr = await rereg(b.mr, { access: readOnly });
    expect(b.mr.closed).toBe(true);
    expect([mr.access, mr.length, mr.addr, mr.pd]).toEqual([readOnly, b.mr.length, b.mr.addr, b.pd]);
    expect(mr.buffer.equals(bytes)).toBe(true);
    const theirs = new RemoteRegion(mr.remote());
    a.qp.postSend({ opcode: WrOpcode.RDMA_READ, sgList: a.mr.slice(), remote: theirs.slice() });
    expect(await completion(a.cq, 'the read')).toMatchObject({ status: WcStatus.SUCCESS });
    expect(a.mr.buffer.equals(bytes)).toBe(true);
    a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: remote.slice() });
    expect(await completion(a.cq, 'the write')).toMatchObject({ status: WcStatus.REM_ACCESS_ERR });
    // It is the owner of the memory now.
    mr.close();
    expect(mr.buffer.length).toBe(0);
  });

  it('changes the memory, and lets go of the old one', async () => {
    using pair = await Pair.connect();
    const { a, b, remote } = pair;
    const old = b.mr.buffer;
    const memory = Buffer.alloc(8192, 1);
    const mr = await rereg(b.mr, { memory });
    expect([mr.access, mr.length, old.length]).toEqual([ALL_ACCESS, 8192, 0]);
    const sent = fill(a.mr.buffer.subarray(0, 4096), 5);
    const theirs = new RemoteRegion(mr.remote());
    a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 4096), remote: theirs.slice(4000) });
    expect(await completion(a.cq, 'the write')).toMatchObject({ status: WcStatus.SUCCESS });
    expect(memory.subarray(4000, 8096).equals(sent)).toBe(true);
    expect([memory[3999], memory[8096]]).toEqual([1, 1]);
    // Nothing answers where the old token points to.
    a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: remote.slice() });
    expect(await completion(a.cq, 'the write to the old memory')).toMatchObject({ status: WcStatus.REM_ACCESS_ERR });
    mr.close();
    expect(memory.length).toBe(8192);
  });

  it('changes the domain', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    const pd = b.context.allocPd();
    const mr = await rereg(b.mr, { pd });
    expect(mr.pd).toBe(pd);
    expect(thrown(() => pd.close())).toMatchObject({ code: 'EBUSY', message: expect.stringContaining('MemoryRegion') });
    expect(thrown(() => b.qp.postRecv({ sgList: mr.slice() })).message).toMatch(/another protection domain/);
    const theirs = new RemoteRegion(mr.remote());
    a.qp.postSend({ opcode: WrOpcode.RDMA_READ, sgList: a.mr.slice(), remote: theirs.slice() });
    expect(await completion(a.cq, 'a read of another domain')).toMatchObject({ status: WcStatus.REM_ACCESS_ERR });
    mr.close();
    pd.close();
  });

  it('ends slices and prepared lists that were made before', async () => {
    using pair = await Pair.connect();
    const { a, remote } = pair;
    const slice = a.mr.slice(0, 8);
    const wr = { opcode: WrOpcode.RDMA_WRITE, sgList: slice, remote: remote.slice() };
    const prepared = a.qp.prepareSend(wr);
    prepared.post();
    await completion(a.cq);
    const mr = await rereg(a.mr, { access: ALL_ACCESS });
    expect(thrown(() => prepared.post()).code).toBe('ERR_RDMA_CLOSED');
    expect(thrown(() => a.qp.postSend(wr)).code).toBe('ERR_RDMA_CLOSED');
    expect(thrown(() => a.mr.slice()).code).toBe('ERR_RDMA_CLOSED');
    expect(a.qp.sendsInFlight).toBe(0);
    prepared.setLocal(0, mr.slice(0, 8));
    prepared.post();
    expect(await completion(a.cq)).toMatchObject({ status: WcStatus.SUCCESS });
  });

  it('is refused while a request uses the region, with the number', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    for (let i = 0; i < 3; i++) b.qp.postRecv({ sgList: b.mr.slice(i * 64, 64) });
    await expect(rereg(b.mr, { access: readOnly })).rejects.toMatchObject({
      name: 'BusyError',
      code: 'EBUSY',
      syscall: 'ibv_rereg_mr',
      message: expect.stringContaining('3 work request(s) in flight'),
    });
    const sent = fill(a.mr.buffer.subarray(0, 64));
    a.qp.postSend({ opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 64) });
    expect(await completion(b.cq)).toMatchObject({ status: WcStatus.SUCCESS, byteLen: 64 });
    expect(b.mr.buffer.subarray(0, 64).equals(sent)).toBe(true);
  });

  it('says that the region is lost when the command failed, and lets it be closed', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    const prepared = b.qp.prepareSend({ opcode: WrOpcode.SEND, sgList: b.mr.slice(0, 8) });
    await expect(rereg(b.mr, { access: AccessFlags.REMOTE_WRITE })).rejects.toMatchObject({
      code: 'EINVAL',
      syscall: 'ibv_rereg_mr',
      message: expect.stringContaining('the region is lost'),
    });
    expect(b.mr.closed).toBe(false);
    expect(b.mr.access).toBe(ALL_ACCESS);
    for (const use of [
      () => b.mr.slice(),
      () => b.mr.remote(),
      () => prepared.post(),
      () => b.mr.reregSync({ access: readOnly }),
    ]) {
      expect(thrown(use)).toMatchObject({ code: 'ERR_INVALID_STATE', message: expect.stringContaining('lost') });
    }
    expect([a.qp.sendsInFlight, b.qp.sendsInFlight]).toEqual([0, 0]);
    b.mr.close();
    expect(b.mr.buffer.length).toBe(0);
  });

  it('takes a region through many changes', async () => {
    const side = openSide(deviceA);
    const before = binding().census();
    let { mr } = side;
    for (let i = 0; i < 50; i++) {
      mr = await rereg(
        mr,
        i % 2 === 0 ? { memory: new Uint8Array(100 + i) } : { access: i % 4 === 1 ? 0 : ALL_ACCESS },
      );
    }
    expect(binding().census()).toEqual(before);
    expect(mr.length).toBe(148);
    mr.close();
    side.context.close({ cascade: true });
  });
});

describe('mr.rereg', () => {
  it('refuses what is wrong, naming it, and changes nothing', async () => {
    const side = openSide(deviceA);
    const other = openSide(deviceA);
    const { context, mr } = side;
    const closed = context.allocPd();
    closed.close();
    const cases: [ReregMrChange, RegExp, string][] = [
      [undefined as never, /at least one of pd, memory, access/, 'ERR_INVALID_ARG_VALUE'],
      [{}, /at least one of pd, memory, access/, 'ERR_INVALID_ARG_VALUE'],
      [{ acess: 1 } as never, /'acess' in change/, 'ERR_INVALID_ARG_VALUE'],
      [{ pd: {} as never }, /change\.pd/, 'ERR_INVALID_ARG_TYPE'],
      [{ pd: closed }, /closed/, 'ERR_RDMA_CLOSED'],
      [{ pd: other.pd }, /change\.pd is of another device/, 'ERR_INVALID_ARG_VALUE'],
      [{ access: -1 }, /change\.access/, 'ERR_OUT_OF_RANGE'],
      [{ access: '1' as never }, /change\.access/, 'ERR_INVALID_ARG_TYPE'],
      [{ memory: new ArrayBuffer(0) }, /change\.memory/, 'ERR_OUT_OF_RANGE'],
      [{ memory: new SharedArrayBuffer(8) as never }, /change\.memory/, 'ERR_INVALID_ARG_TYPE'],
    ];
    for (const [change, message, code] of cases) {
      for (const error of [thrown(() => mr.reregSync(change)), await mr.rereg(change).catch((e: Error) => e)]) {
        expect(error).toMatchObject({ code, message: expect.stringMatching(message) });
      }
    }
    expect(mr.slice().length).toBe(mr.length);
    for (const { context } of [side, other]) context.close({ cascade: true });
    expect(thrown(() => mr.reregSync({ access: 0 })).code).toBe('ERR_RDMA_CLOSED');
    await expect(mr.rereg({ access: 0 })).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
  });

  it('keeps the region from being used, and it and its domains from being closed, while it runs', async () => {
    const side = openSide(deviceA);
    const { context, pd, qp, mr } = side;
    const slice = mr.slice(0, 8);
    const next = context.allocPd();
    const pending = mr.rereg({ pd: next }).catch((error: Error) => error);
    expect(thrown(() => mr.slice())).toMatchObject({ code: 'ERR_INVALID_STATE', message: /registered anew/ });
    expect(thrown(() => qp.postRecv({ sgList: slice })).code).toMatch(/ERR_INVALID_STATE|EINVAL/);
    expect(thrown(() => mr.reregSync({ access: 0 })).code).toBe('ERR_INVALID_STATE');
    for (const busy of [mr, next, pd]) expect(thrown(() => busy.close()).code).toBe('EBUSY');
    const result = await pending;
    if (isRxe) expect(result).toMatchObject({ code: 'EOPNOTSUPP' });
    else (result as MemoryRegion).close();
    expect(mr.closed).toBe(!isRxe);
    side.context.close({ cascade: true });
  });

  it('may be forgotten while it runs, with the region', async () => {
    const context = openDevice(deviceA);
    let settled = false;
    (() => {
      const pd = context.allocPd();
      const forgotten = pd.regMrSync(new Uint8Array(4096));
      forgotten
        .rereg({ memory: new Uint8Array(1 << 20) })
        .then((region) => region.close())
        .catch(() => forgotten.close())
        .finally(() => {
          settled = true;
          pd.close();
        });
    })();
    await collect();
    await until(() => settled, 'the re-registration');
    context.close();
  });
});
