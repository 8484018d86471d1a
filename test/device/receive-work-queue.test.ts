/** Receive work queues, their tables and the queue pairs over those. Soft-RoCE has none; on the software device nothing arrives there. */
import { inspect } from 'node:util';
import { describe, expect, it } from 'vitest';
import {
  type Context,
  EventType,
  openDevice,
  QpType,
  RdmaError,
  type ReceiveWorkQueue,
  type RssQpInitAttr,
  RssQueuePair,
  RxHashFields,
  RxHashFunctionFlags,
  WcStatus,
  WqFlags,
  type WqInitAttr,
  WqState,
} from '../../lib/index.ts';
import { collect, completions, deviceA, deviceB, expectNoLeaks, isRxe, thrown, within } from './fixture.ts';

expectNoLeaks();

function open(device: string = deviceA) {
  const context = openDevice(device);
  const pd = context.allocPd();
  return { context, pd, cq: context.createCq(64, { allowOverrun: true }), mr: pd.allocSync(4096) };
}

describe.runIf(isRxe)('on a device without receive work queues', () => {
  it('createWq answers EOPNOTSUPP', () => {
    const { context, pd, cq } = open();
    const error = thrown(() => context.createWq({ pd, cq }));
    expect(error).toBeInstanceOf(RdmaError);
    expect(error).toMatchObject({ code: 'EOPNOTSUPP', syscall: 'ibv_create_wq' });
    expect(context.queryDeviceEx().rssCaps).toMatchObject({ maxRwqIndirectionTables: 0, supportedQpts: 0 });
    // What could not be made holds nothing.
    cq.close();
    context.close({ cascade: true });
  });
});

describe.runIf(!isRxe)('wq.postRecv', () => {
  it('is refused in RESET, held while in flight, and flushed in order in ERR', async () => {
    const { context, pd, cq, mr } = open();
    const wq = context.createWq({ pd, cq, maxWr: 8, maxSge: 2 });
    expect(wq).toMatchObject({ state: WqState.RESET, maxWr: 8, maxSge: 2, recvsInFlight: 0 });
    const recv = { wrId: 1, sgList: mr.slice(0, 64) };
    expect(thrown(() => wq.postRecv(recv))).toMatchObject({ code: 'EINVAL', syscall: 'ibv_post_wq_recv' });
    wq.modify({ wqState: WqState.RDY });
    wq.postRecv([recv, { wrId: Number.MAX_SAFE_INTEGER, sgList: [mr.slice(64, 64), mr.slice(128, 64)] }]);
    const prepared = wq.prepareRecv([{ wrId: 7 }, { wrId: 8, sgList: mr.slice() }]);
    prepared.post();
    expect(wq.recvsInFlight).toBe(4);
    expect(thrown(() => mr.close()).message).toContain('3 work request(s) in flight');
    expect(thrown(() => wq.postRecv({ sgList: [mr.slice(0, 1), mr.slice(0, 1), mr.slice(0, 1)] }))).toMatchObject({
      code: 'ERR_OUT_OF_RANGE',
    });
    wq.postRecv([{}, {}, {}, {}]);
    expect(thrown(() => wq.postRecv({ wrId: 9 }))).toMatchObject({ name: 'PostError', code: 'ENOMEM', index: 0 });
    const event = context.getAsyncEvent();
    wq.modify({ wqState: WqState.ERR });
    const found = await completions(cq, 8);
    expect(found.map(({ wrId }) => wrId)).toEqual([1, Number.MAX_SAFE_INTEGER, 7, 8, 0, 0, 0, 0]);
    expect(found.every((wc) => wc.status === WcStatus.WR_FLUSH_ERR && wc.qpNum === wq.wqNum)).toBe(true);
    expect(wq.recvsInFlight).toBe(0);
    const { type, name, wq: named } = await within(event, 'the event');
    expect({ type, name }).toEqual({ type: EventType.WQ_FATAL, name: 'WQ_FATAL' });
    expect(named).toBe(wq);
    mr.close();
    context.close({ cascade: true });
  });

  it('works again after a reset, which forgets what was in flight', async () => {
    const { context, pd, cq, mr } = open();
    const wq = context.createWq({ pd, cq, maxWr: 4 });
    for (let round = 0; round < 5; round++) {
      wq.modify({ wqState: WqState.RDY });
      wq.postRecv([1, 2, 3].map((i) => ({ wrId: 10 * round + i, sgList: mr.slice(0, 8) })));
      if (round % 2 === 0) {
        wq.modify({ wqState: WqState.ERR, currWqState: WqState.RDY });
        const wrIds = (await completions(cq, 3)).map(({ wrId }) => wrId);
        expect(wrIds).toEqual([1, 2, 3].map((i) => 10 * round + i));
      }
      wq.modify({ wqState: WqState.RESET });
      expect(wq.recvsInFlight).toBe(0);
      expect(cq.poll()).toBe(0);
    }
    wq.close();
    context.close({ cascade: true });
  });

  it('keeps the queue for as long as its completion queue is there', async () => {
    const { context, pd, cq, mr } = open();
    const ref = (() => {
      const wq = context.createWq({ pd, cq });
      wq.modify({ wqState: WqState.RDY });
      wq.postRecv({ sgList: mr.slice() });
      return new WeakRef(wq);
    })();
    await collect();
    expect(ref.deref()).toBeDefined();
    context.close({ cascade: true });
    expect(ref.deref()?.closed).toBe(true);
  });
});

describe.runIf(!isRxe)('wq.modify', () => {
  it('passes on what the kernel refuses, and is in the state that it was in', () => {
    const { context, pd, cq } = open();
    const wq = context.createWq({ pd, cq });
    wq.modify({ wqState: WqState.RDY });
    for (const attr of [
      { wqState: WqState.RDY, currWqState: WqState.ERR },
      { flags: 0, flagsMask: WqFlags.CVLAN_STRIPPING },
    ]) {
      expect(thrown(() => wq.modify(attr))).toMatchObject({ code: 'EINVAL', syscall: 'ibv_modify_wq' });
      expect(wq.state).toBe(WqState.RDY);
    }
    for (const [attr, code] of [
      [undefined, 'ERR_INVALID_ARG_TYPE'],
      [{}, 'ERR_INVALID_ARG_VALUE'],
      [{ state: 1 }, 'ERR_INVALID_ARG_VALUE'],
      [{ wqState: 4 }, 'ERR_OUT_OF_RANGE'],
      [{ wqState: 'RDY' }, 'ERR_INVALID_ARG_TYPE'],
      [{ flags: 1 }, 'ERR_INVALID_ARG_TYPE'],
    ] as const) {
      expect(thrown(() => wq.modify(attr as never))).toMatchObject({ code });
    }
    wq.close();
    expect(thrown(() => wq.modify({ wqState: WqState.RDY }))).toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    expect(thrown(() => wq.postRecv({}))).toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    context.close({ cascade: true });
  });
});

describe('context.createWq', () => {
  it('names what is wrong, before C sees it', () => {
    const { context, pd, cq } = open();
    const other = open(deviceB);
    for (const [attr, code, text] of [
      [undefined, 'ERR_INVALID_ARG_TYPE', 'attr.pd'],
      [{ cq }, 'ERR_INVALID_ARG_TYPE', 'attr.pd'],
      [{ pd }, 'ERR_INVALID_ARG_TYPE', 'attr.cq'],
      [{ pd, cq: pd }, 'ERR_INVALID_ARG_TYPE', 'attr.cq'],
      [{ pd: other.pd, cq }, 'ERR_INVALID_ARG_VALUE', 'attr.pd is of another device'],
      [{ pd, cq: other.cq }, 'ERR_INVALID_ARG_VALUE', 'attr.cq is of another device'],
      [{ pd, cq, maxWr: 0 }, 'ERR_OUT_OF_RANGE', 'attr.maxWr'],
      [{ pd, cq, maxSge: 2 ** 31 }, 'ERR_OUT_OF_RANGE', 'attr.maxSge'],
      [{ pd, cq, createFlags: -1 }, 'ERR_OUT_OF_RANGE', 'attr.createFlags'],
      [{ pd, cq, maxRecvWr: 1 }, 'ERR_INVALID_ARG_VALUE', "did you mean 'maxWr'?"],
    ] as const) {
      const error = thrown(() => context.createWq(attr as WqInitAttr));
      expect(error, text).toMatchObject({ code });
      if (code !== 'ERR_INVALID_ARG_VALUE' || text.startsWith('attr')) expect(error.message).toContain(text);
    }
    for (const each of [context, other.context]) each.close({ cascade: true });
  });

  it.runIf(!isRxe)('explains what is beyond the limits of the device', () => {
    const { context, pd, cq } = open();
    const { maxQpWr } = context.queryDevice();
    const error = thrown(() => context.createWq({ pd, cq, maxWr: 2 * maxQpWr }));
    expect(error).toMatchObject({ syscall: 'ibv_create_wq', code: expect.stringMatching(/EINVAL|ENOMEM/) });
    expect(error.message).toContain(`attr.maxWr is ${2 * maxQpWr}, maxQpWr of the device ${maxQpWr}`);
    context.close({ cascade: true });
  });
});

const queues = (context: Context, attr: WqInitAttr, count: number): ReceiveWorkQueue[] =>
  Array.from({ length: count }, () => context.createWq(attr));

describe.runIf(!isRxe)('context.createRwqIndTable', () => {
  it('makes a table, and the queues are kept open by it', () => {
    const { context, pd, cq } = open();
    const wqs = queues(context, { pd, cq, maxWr: 4 }, 4);
    const table = context.createRwqIndTable([...wqs, ...wqs]);
    expect(table.wqs).toEqual([...wqs, ...wqs]);
    for (const wq of wqs) expect(thrown(() => wq.close())).toMatchObject({ code: 'EBUSY', children: [table] });
    table.close();
    for (const wq of wqs) wq.close();
    const again = queues(context, { pd, cq }, 2);
    const tables = [context.createRwqIndTable(again), context.createRwqIndTable(again)];
    pd.close({ cascade: true });
    expect([...tables, ...again].every(({ closed }) => closed)).toBe(true);
    context.close({ cascade: true });
  });

  it('names what is wrong, before C sees it', () => {
    const { context, pd, cq } = open();
    const other = open(deviceB);
    const wq = context.createWq({ pd, cq });
    const [foreign] = queues(other.context, { pd: other.pd, cq: other.cq }, 1);
    const closed = context.createWq({ pd, cq });
    closed.close();
    for (const [indTbl, code] of [
      [undefined, 'ERR_INVALID_ARG_TYPE'],
      [{ length: 1, 0: wq }, 'ERR_INVALID_ARG_TYPE'],
      [[], 'ERR_INVALID_ARG_VALUE'],
      [[wq, wq, wq], 'ERR_INVALID_ARG_VALUE'],
      [[wq, {}], 'ERR_INVALID_ARG_TYPE'],
      [[wq, foreign], 'ERR_INVALID_ARG_VALUE'],
      [[wq, closed], 'ERR_RDMA_CLOSED'],
    ] as const) {
      expect(thrown(() => context.createRwqIndTable(indTbl as never))).toMatchObject({ code });
    }
    const tooMany = Array.from({ length: 256 }, () => wq);
    expect(thrown(() => context.createRwqIndTable(tooMany))).toMatchObject({ syscall: 'ibv_create_rwq_ind_table' });
    for (const each of [context, other.context]) each.close({ cascade: true });
  });
});

describe('pd.createQp with rwqIndTbl', () => {
  const { SRC_IPV4, DST_IPV4, SRC_IPV6, SRC_PORT_UDP, DST_PORT_UDP, SRC_PORT_TCP } = RxHashFields;
  const rxHashConf = { rxHashKey: Buffer.alloc(40, 0x6d), rxHashFieldsMask: SRC_IPV4 | DST_IPV4 };

  it.runIf(!isRxe)('makes a queue pair that rules lead to, and that keeps the table', () => {
    const { context, pd, cq } = open();
    const wqs = queues(context, { pd, cq, maxWr: 4 }, 2);
    const table = context.createRwqIndTable(wqs);
    const spread = { ...rxHashConf, rxHashFieldsMask: SRC_IPV4 | DST_IPV4 | SRC_PORT_UDP | DST_PORT_UDP };
    const qp = pd.createQp({ rwqIndTbl: table, rxHashConf: spread });
    const whole = { rxHashFunction: RxHashFunctionFlags.TOEPLITZ, rxHashKey: Buffer.alloc(40), rxHashFieldsMask: 0 };
    const other = pd.createQp({ rwqIndTbl: table, rxHashConf: whole, qpType: QpType.RAW_PACKET });
    expect(qp).toBeInstanceOf(RssQueuePair);
    expect(qp).toMatchObject({ qpType: QpType.RAW_PACKET, rwqIndTbl: table, pd, context });
    expect(inspect(qp)).toMatch(/^RssQueuePair \{ qpNum: 0x0, qpType: RAW_PACKET, .* rwqIndTbl: RwqIndTable of 2 \}$/);
    const flow = qp.createFlow({ specs: [] });
    expect(flow.qp).toBe(qp);
    expect(thrown(() => qp.close())).toMatchObject({ code: 'EBUSY', children: [flow] });
    expect(thrown(() => table.close())).toMatchObject({ code: 'EBUSY', children: [qp, other] });
    expect(thrown(() => pd.close())).toMatchObject({ code: 'EBUSY' });
    // mlx5 has no states of it.
    expect(thrown(() => qp.query())).toMatchObject({ code: 'EOPNOTSUPP', syscall: 'ibv_query_qp' });
    expect(thrown(() => qp.modifySync({ qpState: 1 }))).toMatchObject({ code: 'EOPNOTSUPP', syscall: 'ibv_modify_qp' });
    table.close({ cascade: true });
    expect([flow, qp, other].every(({ closed }) => closed)).toBe(true);
    for (const wq of wqs) wq.close();
    context.close({ cascade: true });
  });

  it.runIf(!isRxe)('passes on what the device refuses', () => {
    const { context, pd, cq } = open();
    const rwqIndTbl = context.createRwqIndTable(queues(context, { pd, cq }, 1));
    for (const [more, code] of [
      [{ rxHashKey: Buffer.alloc(39) }, 'EINVAL'],
      [{ rxHashKey: Buffer.alloc(255) }, 'EINVAL'],
      [{ rxHashFieldsMask: SRC_IPV4 | SRC_IPV6 }, 'EINVAL'],
      [{ rxHashFieldsMask: SRC_IPV4 | SRC_PORT_UDP | SRC_PORT_TCP }, 'EINVAL'],
    ] as const) {
      const error = thrown(() => pd.createQp({ rwqIndTbl, rxHashConf: { ...rxHashConf, ...more } }));
      expect(error).toMatchObject({ name: 'RdmaError', code, syscall: 'ibv_create_qp_ex' });
    }
    const onUd = { rwqIndTbl, rxHashConf, qpType: QpType.UD };
    expect(thrown(() => pd.createQp(onUd))).toMatchObject({ code: 'EOPNOTSUPP', syscall: 'ibv_create_qp_ex' });
    // What could not be made holds nothing.
    rwqIndTbl.close();
    context.close({ cascade: true });
  });

  it('names what is wrong, before C sees it', () => {
    const { context, pd, cq } = open();
    const other = open(deviceB);
    const made = isRxe
      ? []
      : [context, other.context].map((each, i) => {
          const side = i === 0 ? { pd, cq } : other;
          return each.createRwqIndTable(queues(each, { pd: side.pd, cq: side.cq }, 1));
        });
    const [rwqIndTbl, foreign] = made;
    for (const [attr, code, text] of [
      [{ rwqIndTbl: undefined, rxHashConf }, 'ERR_INVALID_ARG_TYPE', 'attr.rwqIndTbl must be a RwqIndTable'],
      [{ rwqIndTbl: cq, rxHashConf }, 'ERR_INVALID_ARG_TYPE', 'attr.rwqIndTbl must be a RwqIndTable'],
      [{ rwqIndTbl, rxHashConf, sendCq: cq }, 'ERR_INVALID_ARG_VALUE', "Unknown option 'sendCq'"],
      [{ sendCq: cq, rxHashConf }, 'ERR_INVALID_ARG_VALUE', 'it goes with rwqIndTbl'],
      ...(isRxe
        ? []
        : ([
            [{ rwqIndTbl: foreign, rxHashConf }, 'ERR_INVALID_ARG_VALUE', 'attr.rwqIndTbl is of another device'],
            [{ rwqIndTbl }, 'ERR_INVALID_ARG_TYPE', 'attr.rxHashConf'],
            [{ rwqIndTbl, rxHashConf, qpType: QpType.RC }, 'ERR_INVALID_ARG_VALUE', 'attr.qpType'],
            [{ rwqIndTbl, rxHashConf: {} }, 'ERR_INVALID_ARG_TYPE', 'attr.rxHashConf.rxHashKey'],
            [{ rwqIndTbl, rxHashConf: { rxHashKey: [1] } }, 'ERR_INVALID_ARG_TYPE', 'attr.rxHashConf.rxHashKey'],
            [
              { rwqIndTbl, rxHashConf: { ...rxHashConf, rxHashKey: Buffer.alloc(256) } },
              'ERR_INVALID_ARG_VALUE',
              '255',
            ],
            [
              { rwqIndTbl, rxHashConf: { ...rxHashConf, rxHashFieldsMask: -1 } },
              'ERR_OUT_OF_RANGE',
              'rxHashFieldsMask',
            ],
            [{ rwqIndTbl, rxHashConf: { ...rxHashConf, rxHashFunction: 2 } }, 'ERR_OUT_OF_RANGE', 'rxHashFunction'],
            [{ rwqIndTbl, rxHashConf: { ...rxHashConf, rxHashKeyLen: 40 } }, 'ERR_INVALID_ARG_VALUE', 'rxHashKeyLen'],
          ] as const)),
    ] as const) {
      const error = thrown(() => pd.createQp(attr as unknown as RssQpInitAttr));
      expect(error, text).toMatchObject({ code });
      expect(error.message).toContain(text);
    }
    rwqIndTbl?.close();
    if (rwqIndTbl)
      expect(thrown(() => pd.createQp({ rwqIndTbl, rxHashConf }))).toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    for (const each of [context, other.context]) each.close({ cascade: true });
  });
});
