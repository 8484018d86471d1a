/** Changes that overlap, and the attributes that have verbs of their own. */
import { describe, expect, it } from 'vitest';
import {
  AccessFlags,
  type ProtectionDomain,
  QpState,
  QpType,
  type QueuePair,
  RemoteRegion,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import {
  completion,
  completions,
  deviceA,
  deviceB,
  expectNoLeaks,
  initAttr,
  isRxe,
  openSide,
  rtrAttr,
  type Side,
  thrown,
  within,
} from './fixture.ts';

expectNoLeaks();

class Alone implements Disposable {
  readonly side: Side = openSide(deviceA);
  get qp(): QueuePair {
    return this.side.qp;
  }
  get pd(): ProtectionDomain {
    return this.side.pd;
  }
  [Symbol.dispose](): void {
    this.side.context.close({ cascade: true });
  }
}

const init = { qpState: QpState.INIT, pkeyIndex: 0, portNum: 1, qkey: 1 };
const rtr = { qpState: QpState.RTR };
const rts = { qpState: QpState.RTS, sqPsn: 0 };
const reset = { qpState: QpState.RESET };

describe('changes of one queue pair that overlap', () => {
  it('follow each other in the order of the calls', async () => {
    using alone = new Alone();
    using qp = alone.pd.createQp({ sendCq: alone.side.cq, qpType: QpType.UD });
    for (let round = 0; round < 20; round++) {
      const seen: number[] = [];
      const changes = [init, rtr, rts, reset].map((attr) => qp.modify(attr).then(() => seen.push(qp.state)));
      await within(Promise.all(changes), 'four changes');
      expect(seen).toEqual([QpState.INIT, QpState.RTR, QpState.RTS, QpState.RESET]);
      expect(qp.query().qpState).toBe(QpState.RESET);
    }
  });

  it('go on behind one that failed', async () => {
    using alone = new Alone();
    const { qp } = alone;
    const [failed, done] = await within(Promise.allSettled([qp.modify(rts), qp.modify(initAttr())]), 'two changes');
    expect(failed).toMatchObject({ status: 'rejected', reason: { code: 'EINVAL', syscall: 'ibv_modify_qp' } });
    expect(done?.status).toBe('fulfilled');
    expect(qp.state).toBe(QpState.INIT);
  });

  it('let a reset forget only what was posted before it', async () => {
    using alone = new Alone();
    const { qp } = alone;
    for (let round = 0; round < 20; round++) {
      await qp.modify(initAttr());
      qp.postRecv([{}, {}, {}]);
      const changes = [qp.modify(reset), qp.modify(initAttr())];
      await within(changes[1] as Promise<void>, 'the reset and INIT');
      expect(qp.recvsInFlight).toBe(0);
      qp.postRecv([{}, {}]);
      await Promise.all(changes);
      expect(qp.recvsInFlight).toBe(2);
      await qp.modify(reset);
      expect(qp.recvsInFlight).toBe(0);
    }
  });

  it('keep out modifySync() and close() until they are over', async () => {
    using alone = new Alone();
    const { qp } = alone;
    const change = qp.modify(initAttr());
    const busy = { code: 'EBUSY', syscall: 'ibv_modify_qp', message: expect.stringContaining('under way') };
    expect(thrown(() => qp.modifySync(reset))).toMatchObject(busy);
    expect(thrown(() => qp.close())).toMatchObject({ code: 'EBUSY', syscall: 'ibv_destroy_qp' });
    await change;
    qp.modifySync(reset);
    expect(qp.state).toBe(QpState.RESET);
  });
});

describe('qp.queryEce and qp.setEce', () => {
  it('agree with the other end, or are EOPNOTSUPP where the device has no such options', () => {
    using alone = new Alone();
    const { qp } = alone;
    if (!isRxe) {
      const offered = qp.queryEce();
      expect(offered).toEqual({ vendorId: 0x15b3, options: 0x1000_0005 });
      expect(thrown(() => qp.setEce({ ...offered, vendorId: 1 }))).toMatchObject({ code: 'EINVAL' });
      // What the other end offers is set, and what this one takes of it is known after the transition.
      qp.setEce({ ...offered, options: 0x1000_0006 });
      expect(qp.queryEce().options).toBe(0);
      qp.modifySync(initAttr());
      expect(qp.queryEce().options).toBe(0x1000_0004);
    } else {
      expect(thrown(() => qp.queryEce())).toMatchObject({ code: 'EOPNOTSUPP', syscall: 'ibv_query_ece' });
      const set = () => qp.setEce({ vendorId: 0x15b3, options: 1 });
      expect(thrown(set)).toMatchObject({ code: 'EOPNOTSUPP', syscall: 'ibv_set_ece' });
    }
    for (const value of [undefined, null, 1, [], { vendorId: 1 }, { vendorId: -1, options: 0 }, { options: 0 }]) {
      expect(thrown(() => qp.setEce(value as never)).code).toMatch(/^ERR_/);
    }
  });
});

describe('qp.modifyRateLimit', () => {
  it('is an error of the device where it has no pacing', () => {
    using alone = new Alone();
    const { qp } = alone;
    const limit = () => qp.modifyRateLimit({ rateLimit: 1000 });
    // mlx5 has it for raw packets.
    const code = isRxe ? 'EOPNOTSUPP' : 'EINVAL';
    expect(thrown(limit)).toMatchObject({ code, syscall: 'ibv_modify_qp_rate_limit' });
    expect(qp.query().rateLimit).toBe(0);
    for (const [name, value] of [
      ['rateLimit', -1],
      ['maxBurstSz', 2 ** 32],
      ['typicalPktSz', 2 ** 16],
    ] as const) {
      expect(() => qp.modifyRateLimit({ rateLimit: 1, [name]: value })).toThrow(`attr.${name}`);
    }
  });
});

describe('qp.queryDataInOrder', () => {
  it('says no where the device promises nothing', () => {
    using alone = new Alone();
    const { qp } = alone;
    for (const opcode of [WrOpcode.SEND, WrOpcode.RDMA_WRITE, WrOpcode.RDMA_READ]) {
      expect(qp.queryDataInOrder(opcode)).toBe(0);
    }
    expect(() => qp.queryDataInOrder(99 as never)).toThrow('opcode');
    expect(() => qp.queryDataInOrder(WrOpcode.SEND, -1)).toThrow('flags');
  });
});

describe('a raw packet queue pair', () => {
  it('is EOPNOTSUPP on a device that has none', () => {
    using alone = new Alone();
    const create = () => alone.pd.createQp({ sendCq: alone.side.cq, qpType: QpType.RAW_PACKET });
    expect(thrown(create)).toMatchObject({
      code: 'EOPNOTSUPP',
      syscall: 'ibv_create_qp',
    });
  });
});

describe('the state SQE', () => {
  it('comes from a failed send of a UC queue pair, which goes on receiving, and is left for RTS', async () => {
    const [a, b] = [openSide(deviceA), openSide(deviceB)];
    const cap = { maxSendSge: 28 };
    const [from, to] = [a, b].map((side) => ({
      ...side,
      qp: side.pd.createQp({ sendCq: side.cq, qpType: QpType.UC, cap }),
    })) as [Side, Side];
    for (const [one, other] of [
      [from, to],
      [to, from],
    ] as const) {
      const { maxDestRdAtomic: _, minRnrTimer: __, ...rtrOfUc } = rtrAttr(one, other);
      for (const attr of [initAttr({ qpAccessFlags: AccessFlags.REMOTE_WRITE }), rtrOfUc, rts])
        await one.qp.modify(attr);
    }
    expect(thrown(() => from.qp.modifySync({ qpState: QpState.SQE }))).toMatchObject({
      code: 'EINVAL',
      message: expect.stringContaining('there is no transition RTS -> SQE'),
    });
    if (isRxe) {
      // rdma_rxe goes to ERR in its place, flushes the request that has failed as all others, and receives nothing more.
      from.qp.postRecv({ wrId: 4, sgList: from.mr.slice(0, 64) });
      Object.assign(from.mr, { lkey: from.mr.lkey ^ 0xff_ff00 });
      from.qp.postSend([
        { wrId: 1, opcode: WrOpcode.SEND, sgList: from.mr.slice(0, 8) },
        { wrId: 2, opcode: WrOpcode.SEND },
      ]);
      const found = await completions(from.cq, 3);
      expect(found.map(({ wrId }) => wrId).sort()).toEqual([1, 2, 4]);
      for (const { status } of found) expect(status).toBe(WcStatus.WR_FLUSH_ERR);
      expect([from.qp.query().qpState, from.qp.state]).toEqual([QpState.ERR, QpState.ERR]);
      expect([from.qp.sendsInFlight, from.qp.recvsInFlight]).toEqual([0, 0]);
      expect(to.qp.query().qpState).toBe(QpState.RTS);
      expect(thrown(() => from.qp.modifySync({ qpState: QpState.RTS })).code).toBe('EINVAL');
    } else {
      // More than a message may have; the device says so when it gathers it, before it touches the memory.
      const large = from.pd.allocSync(40 * 2 ** 20);
      const sgList = Array.from({ length: 28 }, () => large.slice());
      const remote = new RemoteRegion({ ...to.mr.remote(), length: 2 ** 31 }).slice();
      from.qp.postSend([
        { wrId: 1, opcode: WrOpcode.RDMA_WRITE, sgList, remote },
        { wrId: 2, opcode: WrOpcode.SEND, sgList: from.mr.slice(0, 8) },
      ]);
      expect((await completions(from.cq, 2)).map(({ wrId, status }) => [wrId, status])).toEqual([
        [1, WcStatus.LOC_LEN_ERR],
        [2, WcStatus.WR_FLUSH_ERR],
      ]);
      expect([from.qp.query().qpState, from.qp.state]).toEqual([QpState.SQE, QpState.SQE]);
      from.qp.postSend({ wrId: 3, opcode: WrOpcode.SEND });
      expect(await completion(from.cq)).toMatchObject({ wrId: 3, status: WcStatus.WR_FLUSH_ERR });
      from.qp.postRecv({ wrId: 4, sgList: from.mr.slice(0, 64) });
      to.mr.buffer.write('still here');
      to.qp.postSend({ opcode: WrOpcode.SEND, sgList: to.mr.slice(0, 10) });
      expect(await completion(from.cq)).toMatchObject({ wrId: 4, status: WcStatus.SUCCESS, byteLen: 10 });
      expect(from.mr.buffer.toString('latin1', 0, 10)).toBe('still here');
      await completion(to.cq);
      await from.qp.modify({ qpState: QpState.RTS });
      to.qp.postRecv({ wrId: 5, sgList: to.mr.slice(64, 64) });
      from.qp.postSend({ opcode: WrOpcode.SEND, sgList: from.mr.slice(0, 10) });
      expect((await completion(from.cq)).status).toBe(WcStatus.SUCCESS);
      expect(await completion(to.cq)).toMatchObject({ wrId: 5, status: WcStatus.SUCCESS });
    }
    for (const { context } of [a, b]) context.close({ cascade: true });
  });
});
