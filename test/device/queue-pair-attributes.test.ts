/** Changes that overlap, and the attributes that have verbs of their own. */
import { describe, expect, it } from 'vitest';
import { type ProtectionDomain, QpState, QpType, type QueuePair, WrOpcode } from '../../lib/index.ts';
import { deviceA, expectNoLeaks, initAttr, isRxe, openSide, type Side, thrown, within } from './fixture.ts';

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
  it('are EOPNOTSUPP where the device has no such options', () => {
    using alone = new Alone();
    const { qp } = alone;
    if (isRxe) {
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
