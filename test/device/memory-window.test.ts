/** Memory windows of both types: bound, used, taken back. */
import { describe, expect, it } from 'vitest';
import { AccessFlags, MwType, RemoteRegion, WcOpcode, WcStatus, WrOpcode } from '../../lib/index.ts';
import { ALL_ACCESS, completion, expectNoLeaks, fill, Pair, thrown } from './fixture.ts';

expectNoLeaks();

const access = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ;

describe.each([MwType.MW_TYPE_1, MwType.MW_TYPE_2])('a memory window of type %i', (type) => {
  it('gives access to its part of the region, and to nothing else, until it is taken back', async () => {
    using pair = await Pair.connect({ access: ALL_ACCESS | AccessFlags.MW_BIND });
    const { a, b } = pair;
    const mw = b.pd.allocMw(type);
    expect(mw.remote()).toBeUndefined();
    const rkey = b.qp.bindMw(mw, { wrId: 7, local: b.mr.slice(1024, 512), access });
    expect(thrown(() => b.mr.close())).toMatchObject({ code: 'EBUSY' });
    expect(await completion(b.cq, 'the binding')).toMatchObject({
      wrId: 7,
      status: WcStatus.SUCCESS,
      opcode: WcOpcode.BIND_MW,
    });
    const token = mw.remote();
    expect(token).toEqual({ addr: `0x${(b.mr.addr + 1024n).toString(16)}`, rkey, length: 512 });
    expect(mw.rkey).toBe(rkey);

    const window = new RemoteRegion(token!);
    const sent = fill(a.mr.buffer.subarray(0, 512), 8);
    a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 512), remote: window.slice() });
    expect(await completion(a.cq, 'the write')).toMatchObject({ status: WcStatus.SUCCESS });
    expect(b.mr.buffer.subarray(1024, 1536).equals(sent)).toBe(true);
    expect(b.mr.buffer.subarray(1536, 1540)).toEqual(Buffer.alloc(4));

    // Bound anew: the old key is worth nothing.
    if (type === MwType.MW_TYPE_2) {
      b.qp.postSend({ opcode: WrOpcode.LOCAL_INV, invalidateRkey: rkey });
      expect(await completion(b.cq, 'the invalidation')).toMatchObject({ status: WcStatus.SUCCESS });
    } else {
      const next = b.qp.bindMw(mw, { local: b.mr.slice(0, 256), access });
      expect(await completion(b.cq, 'the second binding')).toMatchObject({ status: WcStatus.SUCCESS });
      expect(next).not.toBe(rkey);
    }
    a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: window.slice() });
    expect(await completion(a.cq, 'the refused write')).toMatchObject({ status: WcStatus.REM_ACCESS_ERR });
    b.qp.close();
    mw.close();
  });
});

describe('SEND_WITH_INV', () => {
  it("ends the peer's window of type 2, and tells it which", async () => {
    using pair = await Pair.connect({ access: ALL_ACCESS | AccessFlags.MW_BIND });
    const { a, b } = pair;
    const mw = b.pd.allocMw(MwType.MW_TYPE_2);
    const rkey = b.qp.bindMw(mw, { local: b.mr.slice(0, 512), access });
    await completion(b.cq, 'the binding');
    b.qp.postRecv({ wrId: 3, sgList: b.mr.slice(4096, 64) });
    a.qp.postSend({ opcode: WrOpcode.SEND_WITH_INV, sgList: a.mr.slice(0, 8), invalidateRkey: rkey });
    await completion(a.cq, 'the send');
    const wc = await completion(b.cq, 'the receive');
    expect(wc).toMatchObject({ wrId: 3, status: WcStatus.SUCCESS, invalidatedRkey: rkey });
    const window = new RemoteRegion(mw.remote()!);
    a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: window.slice() });
    expect(await completion(a.cq, 'the refused write')).toMatchObject({ status: WcStatus.REM_ACCESS_ERR });
    b.qp.close();
    mw.close();
  });
});

describe('qp.bindMw', () => {
  it('refuses what is wrong, naming it', async () => {
    using pair = await Pair.connect({ access: ALL_ACCESS | AccessFlags.MW_BIND });
    const { a, b } = pair;
    using mw = b.pd.allocMw(MwType.MW_TYPE_2);
    const request = { local: b.mr.slice(), access };
    expect(() => b.qp.bindMw({} as never, request)).toThrow(/mw must be/);
    expect(() => a.qp.bindMw(mw, request)).toThrow(/one protection domain/);
    expect(() => b.qp.bindMw(mw, { ...request, local: b.mr as never })).toThrow(/request\.local/);
    expect(() => b.qp.bindMw(mw, { ...request, acces: 1 } as never)).toThrow(/acces/);
    expect(b.qp.sendsInFlight).toBe(0);
    expect(() => b.pd.allocMw(3 as never)).toThrow(/type/);
  });
});
