/** A completion queue has room for all that its queue pairs can have in flight, or they are refused. */
import { describe, expect, it } from 'vitest';
import {
  type CompletionQueue,
  CqOverrunError,
  EventType,
  Mlx5dvDcType,
  mlx5dv,
  openDevice,
  type ProtectionDomain,
  QpType,
  type Resource,
  SrqType,
  WrOpcode,
  type XrcDomain,
} from '../../lib/index.ts';
import {
  ALL_ACCESS,
  completions,
  connectSides,
  deviceA,
  deviceB,
  expectNoLeaks,
  isRxe,
  openSide,
  Pair,
  thrown,
  until,
  within,
} from './fixture.ts';

expectNoLeaks();

const cap = (maxSendWr: number, maxRecvWr: number) => ({ maxSendWr, maxRecvWr });

describe('pd.createQp', () => {
  it('refuses more than the completion queue has room for, with the sum', () => {
    using context = openDevice(deviceA);
    using pd = context.allocPd();
    using cq = context.createCq(32);
    using first = pd.createQp({ sendCq: cq, cap: cap(10, 6) });
    expect(cq.claimed).toBe(16);
    const asked = cq.cqe - 16 + 1;
    const error = thrown(() => pd.createQp({ sendCq: cq, cap: cap(asked - 4, 4) }));
    expect(error).toBeInstanceOf(CqOverrunError);
    expect(error).toMatchObject({
      name: 'CqOverrunError',
      code: 'EINVAL',
      syscall: 'ibv_create_qp',
      cqe: cq.cqe,
      claimed: 16,
      asked,
    });
    expect(error.message).toContain(`${cq.cqe} entries for 16 claimed + ${asked} asked`);
    expect(error.message).toContain(`(${asked - 4} sends + 4 receives) = ${cq.cqe + 1} completions`);
    expect(error.message).toContain('allowOverrun');
    expect(cq.claimed).toBe(16);
    // One less fits exactly.
    using second = pd.createQp({ sendCq: cq, cap: cap(asked - 5, 4) });
    expect(cq.claimed).toBe(cq.cqe);
    expect(thrown(() => pd.createQp({ sendCq: cq, cap: cap(1, 0) }))).toMatchObject({ asked: 1, claimed: cq.cqe });
    expect([first.closed, second.closed]).toEqual([false, false]);
  });

  it('counts sends at one queue and receives at the other, and gives back what is closed', () => {
    using context = openDevice(deviceA);
    using pd = context.allocPd();
    using sendCq = context.createCq(64);
    using recvCq = context.createCq(64);
    const qp = pd.createQp({ sendCq, recvCq, cap: cap(20, 30) });
    expect([sendCq.claimed, recvCq.claimed]).toEqual([20, 30]);
    const receiver = pd.createQp({ sendCq: recvCq, recvCq: sendCq, cap: cap(0, 5) });
    expect([sendCq.claimed, recvCq.claimed]).toEqual([25, 30]);
    // The second of the two queues refuses: the first one has claimed nothing then.
    const tooMany = recvCq.cqe - 30 + 1;
    expect(thrown(() => pd.createQp({ sendCq, recvCq, cap: cap(1, tooMany) }))).toMatchObject({
      claimed: 30,
      asked: tooMany,
    });
    expect([sendCq.claimed, recvCq.claimed]).toEqual([25, 30]);
    qp.close();
    qp.close();
    expect([sendCq.claimed, recvCq.claimed]).toEqual([5, 0]);
    receiver.close();
    expect([sendCq.claimed, recvCq.claimed]).toEqual([0, 0]);
  });

  it('claims nothing when the device refuses', () => {
    using context = openDevice(deviceA);
    using pd = context.allocPd();
    using cq = context.createCq(64);
    expect(thrown(() => pd.createQp({ sendCq: cq, cap: { ...cap(4, 4), maxSendSge: 1 << 24 } }))).toMatchObject({
      name: 'RdmaError',
      syscall: 'ibv_create_qp',
    });
    expect(cq.claimed).toBe(0);
  });

  it('counts a shared receive queue once at each completion queue', () => {
    using context = openDevice(deviceA);
    using pd = context.allocPd();
    using srq = pd.createSrq({ maxWr: 40 });
    using one = context.createCq(64);
    using two = context.createCq(64);
    const qps = [one, one, two].map((sendCq) => pd.createQp({ sendCq, srq, cap: { maxSendWr: 4 } }));
    expect([one.claimed, two.claimed]).toEqual([48, 44]);
    expect(thrown(() => pd.createQp({ sendCq: one, cap: cap(0, one.cqe - 48 + 1) }))).toBeInstanceOf(CqOverrunError);
    using small = context.createCq(16);
    const error = thrown(() => pd.createQp({ sendCq: small, srq, cap: { maxSendWr: 4 } }));
    expect(error.message).toContain('0 claimed + 44 asked (4 sends + 40 shared receives)');
    qps[0]?.close();
    expect(one.claimed).toBe(44);
    qps[1]?.close();
    expect([one.claimed, two.claimed]).toEqual([0, 44]);
    qps[2]?.close();
    expect(two.claimed).toBe(0);
  });

  it('counts every type alike, and nothing for a queue of none', () => {
    using context = openDevice(deviceA);
    using pd = context.allocPd();
    using cq = context.createCq(64);
    using ud = pd.createQp({ sendCq: cq, qpType: QpType.UD, cap: cap(3, 0) });
    using uc = pd.createQp({ sendCq: cq, qpType: QpType.UC, cap: cap(0, 7) });
    expect(cq.claimed).toBe(10);
    expect([ud.cap.maxRecvWr, uc.cap.maxSendWr]).toEqual([0, 0]);
  });

  it('takes into flight what was asked for, whatever more the provider has room for', async () => {
    using pair = await Pair.connect({ cap: cap(5, 5), cqe: 10 });
    const { a, b } = pair;
    expect(a.qp.cap).toMatchObject(cap(5, 5));
    expect(a.qp.query().cap.maxSendWr).toBeGreaterThanOrEqual(5);
    expect(a.cq.claimed).toBe(10);
    b.qp.postRecv(Array.from({ length: 5 }, (_, wrId) => ({ wrId })));
    expect(thrown(() => b.qp.postRecv({}))).toMatchObject({ name: 'PostError', code: 'ENOMEM', index: 0 });
    a.qp.postSend(Array.from({ length: 5 }, (_, wrId) => ({ wrId, opcode: WrOpcode.SEND })));
    expect(thrown(() => a.qp.postSend({ opcode: WrOpcode.SEND }))).toMatchObject({ code: 'ENOMEM', index: 0 });
    await completions(a.cq, 5);
    await completions(b.cq, 5);
  });

  it('fills a queue to its last entry without loss', async () => {
    using pair = await Pair.connect({ cap: cap(64, 64), cqe: 128 });
    const { a, b, remote } = pair;
    const writes = Array.from({ length: 64 }, (_, wrId) => ({
      wrId,
      opcode: WrOpcode.RDMA_WRITE,
      remote: remote.slice(0, 0),
    }));
    a.qp.postRecv(Array.from({ length: 64 }, (_, i) => ({ wrId: 100 + i })));
    b.qp.postSend(Array.from({ length: 64 }, (_, wrId) => ({ wrId, opcode: WrOpcode.SEND })));
    a.qp.postSend(writes);
    // Nobody polls the full queue until the other side has seen all of its own complete.
    await completions(b.cq, 64, 'the sends of the other side');
    const found = await completions(a.cq, 128);
    expect(found.map(({ wrId }) => wrId).sort((x, y) => x - y)).toEqual([
      ...Array.from({ length: 64 }, (_, i) => i),
      ...Array.from({ length: 64 }, (_, i) => 100 + i),
    ]);
    expect([a.qp.sendsInFlight, a.qp.recvsInFlight]).toEqual([0, 0]);
  });
});

/** What something that completes is made with. */
interface Use {
  pd: ProtectionDomain;
  cq: CompletionQueue;
  xrcd: XrcDomain;
}

describe.skipIf(isRxe)('what else completes in a completion queue', () => {
  const { DCI, DCT } = Mlx5dvDcType;

  /** What each kind asks for, the sum in words, and how one is made that asks for so many. */
  const kinds: [what: string, verb: string, parts: string, make: (use: Use, asked: number) => Resource][] = [
    [
      'a receive work queue',
      'ibv_create_wq',
      'receives',
      ({ pd, cq }, maxWr) => cq.context.createWq({ pd, cq, maxWr }),
    ],
    [
      'a shared receive queue of XRC',
      'ibv_create_srq_ex',
      'receives',
      ({ pd, cq, xrcd }, maxWr) => pd.createSrq({ srqType: SrqType.XRC, xrcd, cq, maxWr }),
    ],
    [
      'a target of DC',
      'mlx5dv_create_qp',
      'shared receives',
      ({ pd, cq }, maxWr) =>
        mlx5dv.createQp(pd, { sendCq: cq, srq: pd.createSrq({ maxWr }) }, { dcType: DCT, dctAccessKey: 1n }),
    ],
    [
      'an initiator of DC',
      'ibv_create_qp',
      'sends',
      ({ pd, cq }, maxSendWr) => mlx5dv.createQp(pd, { sendCq: cq, cap: { maxSendWr } }, { dcType: DCI }),
    ],
  ];

  it.each(kinds)('counts %s: what does not fit is refused with the sum', (_what, verb, parts, make) => {
    using context = openDevice(deviceA);
    const use = { pd: context.allocPd(), cq: context.createCq(64), xrcd: context.openXrcd() };
    const { cq } = use;
    const one = make(use, 10);
    expect(cq.claimed).toBe(10);
    const asked = cq.cqe - 10 + 1;
    const error = thrown(() => make(use, asked));
    expect(error).toBeInstanceOf(CqOverrunError);
    expect(error).toMatchObject({ code: 'EINVAL', syscall: verb, cqe: cq.cqe, claimed: 10, asked });
    expect(error.message).toContain(
      `${cq.cqe} entries for 10 claimed + ${asked} asked (${asked} ${parts}) = ${cq.cqe + 1} completions`,
    );
    expect(cq.claimed).toBe(10);
    // One less fits exactly, beside a queue pair then nothing does.
    const other = make(use, asked - 1);
    expect(cq.claimed).toBe(cq.cqe);
    expect(thrown(() => use.pd.createQp({ sendCq: cq, cap: cap(1, 0) }))).toBeInstanceOf(CqOverrunError);
    other.close();
    other.close();
    expect(cq.claimed).toBe(10);
    make(use, asked - 1).close();
    one.close();
    expect(cq.claimed).toBe(0);
    using wide = context.createCq(4, { allowOverrun: true });
    const large = make({ ...use, cq: wide }, 100);
    expect(wide.claimed).toBe(100);
    large.close();
    expect(wide.claimed).toBe(0);
    context.close({ cascade: true });
  });

  it('counts the shared queue of several targets once', () => {
    using context = openDevice(deviceA);
    const [pd, cq] = [context.allocPd(), context.createCq(64)];
    const srq = pd.createSrq({ maxWr: 40 });
    const targets = [1, 2, 3].map(() => mlx5dv.createQp(pd, { sendCq: cq, srq }, { dcType: DCT, dctAccessKey: 1n }));
    expect(cq.claimed).toBe(40);
    for (const [i, target] of targets.entries()) {
      target.close();
      expect(cq.claimed).toBe(i < 2 ? 40 : 0);
    }
    context.close({ cascade: true });
  });
});

describe('cq.poll', () => {
  it('does not take the leftovers of a closed queue pair for an empty queue', async () => {
    // rdma_rxe leaves them there. More than one poll takes, in front of what somebody waits for.
    using pair = await Pair.connect({ cap: cap(64, 64), cqe: 1024 });
    const { a, b, remote } = pair;
    const doomed = { ...a, qp: a.pd.createQp({ sendCq: a.cq, cap: cap(600, 1) }) };
    const other = { ...b, qp: b.pd.createQp({ sendCq: b.cq, cap: cap(1, 1) }) };
    await connectSides(doomed, other);
    const write = { opcode: WrOpcode.RDMA_WRITE, remote: remote.slice(0, 0) };
    // The last one wakes the other side, so all have completed then.
    b.qp.postRecv({});
    other.qp.postRecv({});
    const more = { opcode: WrOpcode.RDMA_WRITE_WITH_IMM, remote: remote.slice(0, 0), immData: 1 };
    doomed.qp.postSend([...Array.from({ length: 599 }, (_, wrId) => ({ ...write, wrId })), { ...more, wrId: 599 }]);
    await completions(b.cq, 1, 'the last of them');
    doomed.qp.close();
    other.qp.close();
    a.qp.postSend({ ...more, wrId: 7 });
    await completions(b.cq, 1, 'the message');
    expect(await completions(a.cq, 1, 'the completion behind them')).toMatchObject([{ wrId: 7 }]);
  });
});

describe('allowOverrun', () => {
  it('takes what does not fit, and the device names the queue that overflows', async () => {
    const a = openSide(deviceA);
    const context = openDevice(deviceB);
    const pd = context.allocPd();
    const cq = context.createCq(4, { allowOverrun: true });
    expect(cq.allowOverrun).toBe(true);
    const depth = cq.cqe + 8;
    const qp = pd.createQp({ sendCq: cq, cap: cap(4, depth) });
    expect(cq.claimed).toBe(depth + 4);
    const mr = pd.allocSync(64, { access: ALL_ACCESS });
    await connectSides(a, { context, pd, cq, qp, mr });
    const event = context.getAsyncEvent();
    qp.postRecv(Array.from({ length: depth }, (_, wrId) => ({ wrId })));
    for (let i = 0; i < depth; i++) a.qp.postSend({ wrId: i, opcode: WrOpcode.SEND });
    const seen = await within(event, 'the event');
    expect(seen).toMatchObject({ type: EventType.CQ_ERR, name: 'CQ_ERR' });
    expect(seen.cq).toBe(cq);
    // What fitted is there still.
    const first: number[] = [];
    await until(() => {
      for (const { wrId } of cq.pollWc()) first.push(wrId);
      return first.length >= cq.cqe;
    }, 'the completions that fitted');
    expect(first.slice(0, 4)).toEqual([0, 1, 2, 3]);
    a.qp.close();
    a.context.close({ cascade: true });
    context.close({ cascade: true });
  });

  it('is a boolean, false by default', () => {
    using context = openDevice(deviceA);
    for (const allowOverrun of [1, 'yes', null]) {
      expect(thrown(() => context.createCq(4, { allowOverrun } as never))).toMatchObject({
        code: 'ERR_INVALID_ARG_TYPE',
        message: expect.stringContaining('options.allowOverrun'),
      });
    }
    expect(thrown(() => context.createCq(4, { allowoverrun: true } as never)).message).toContain("'allowOverrun'");
    using cq = context.createCq(4, { channel: null });
    expect(cq.allowOverrun).toBe(false);
  });
});
