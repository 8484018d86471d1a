import { describe, expect, it } from 'vitest';
import {
  AccessFlags,
  Mtu,
  openDevice,
  type QpAttr,
  QpState,
  QpType,
  type QueuePair,
  RemoteRegion,
  SendFlags,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import {
  completion,
  completions,
  connectSides,
  deviceA,
  deviceB,
  expectNoLeaks,
  initAttr,
  isRxe,
  openSide,
  Pair,
  rtrAttr,
  rtsAttr,
  type Side,
  thrown,
  within,
} from './fixture.ts';

expectNoLeaks();

/** Two sides that are not connected, closed at the end. */
class Sides implements Disposable {
  readonly a: Side = openSide(deviceA);
  readonly b: Side = openSide(deviceB);
  [Symbol.dispose](): void {
    for (const { context } of [this.a, this.b]) context.close({ cascade: true });
  }
}

/** The same attributes without some. */
function without(attr: QpAttr, ...names: (keyof QpAttr)[]): QpAttr {
  const rest = { ...attr };
  for (const name of names) delete rest[name];
  return rest;
}

/** The send queue of a queue pair in SQD has drained: only then the kernel lets it leave the state. */
async function drained(qp: QueuePair): Promise<void> {
  while (qp.query().sqDraining) await new Promise((resolve) => setImmediate(resolve));
}

describe('pd.createQp', () => {
  it('grants at least what was asked for, and makes an RC queue pair in RESET', () => {
    using sides = new Sides();
    const { pd, cq } = sides.a;
    const cap = { maxSendWr: 33, maxRecvWr: 17, maxSendSge: 3, maxRecvSge: 2, maxInlineData: 20 };
    using qp = pd.createQp({ sendCq: cq, cap });
    for (const [name, wanted] of Object.entries(cap)) {
      expect(qp.cap[name as keyof typeof cap], name).toBeGreaterThanOrEqual(wanted);
    }
    expect(Object.isFrozen(qp.cap)).toBe(true);
    expect([qp.state, qp.qpType, qp.pd, qp.sendCq, qp.recvCq]).toEqual([QpState.RESET, QpType.RC, pd, cq, cq]);
    expect([qp.sendsInFlight, qp.recvsInFlight]).toEqual([0, 0]);
    expect(qp.qpNum).toBeGreaterThan(0);
    expect(qp.qpNum).toBeLessThan(2 ** 24);
    expect(qp.query()).toMatchObject({ qpState: QpState.RESET, initAttr: { sqSigAll: false } });
  });

  it('leaves the capacities of the caller as they were', () => {
    using sides = new Sides();
    const cap = Object.freeze({ maxSendWr: 5 });
    using qp = sides.a.pd.createQp(Object.freeze({ sendCq: sides.a.cq, cap, sqSigAll: true }));
    expect(cap).toEqual({ maxSendWr: 5 });
    const { maxInlineData, maxSendSge, maxRecvSge } = qp.cap;
    const { initAttr } = qp.query();
    expect(initAttr).toMatchObject({ sqSigAll: true, qpType: QpType.RC });
    expect(initAttr.cap).toMatchObject({ maxInlineData, maxSendSge, maxRecvSge });
    // The provider may have room for more.
    expect(initAttr.cap.maxSendWr).toBeGreaterThanOrEqual(5);
  });

  it('gives each queue pair a number of its own', () => {
    using sides = new Sides();
    const cap = { maxSendWr: 4, maxRecvWr: 4 };
    const pairs = Array.from({ length: 8 }, () => sides.a.pd.createQp({ sendCq: sides.a.cq, cap }));
    expect(new Set(pairs.map(({ qpNum }) => qpNum)).size).toBe(8);
    for (const qp of pairs) qp.close();
  });

  it.each(['maxSendWr', 'maxRecvWr', 'maxSendSge', 'maxRecvSge', 'maxInlineData'] as const)(
    'refuses more %s than the device has',
    (name) => {
      using sides = new Sides();
      const { pd, context } = sides.a;
      using cq = context.createCq(256, { allowOverrun: true });
      const error = thrown(() => pd.createQp({ sendCq: cq, cap: { [name]: 1 << 24 } }));
      expect(error).toMatchObject({ name: 'RdmaError', syscall: 'ibv_create_qp' });
      expect(['EINVAL', 'ENOMEM']).toContain(error.code);
      using qp = pd.createQp({ sendCq: cq });
      expect(qp.state).toBe(QpState.RESET);
    },
  );

  it('makes one that only sends or only receives', async () => {
    using a = openDevice(deviceA);
    using b = openDevice(deviceB);
    const [pdA, pdB] = [a.allocPd(), b.allocPd()];
    const sender = { context: a, pd: pdA, cq: a.createCq(128), mr: pdA.allocSync(64) };
    const receiver = { context: b, pd: pdB, cq: b.createCq(128), mr: pdB.allocSync(64) };
    const qpA = pdA.createQp({ sendCq: sender.cq, cap: { maxRecvWr: 0, maxRecvSge: 0 } });
    const qpB = pdB.createQp({ sendCq: receiver.cq, cap: { maxSendWr: 0, maxSendSge: 0 } });
    await connectSides({ ...sender, qp: qpA }, { ...receiver, qp: qpB });
    if (qpA.cap.maxRecvWr === 0) expect(thrown(() => qpA.postRecv({})).code).toBe('ERR_OUT_OF_RANGE');
    if (qpB.cap.maxSendWr === 0) {
      expect(thrown(() => qpB.postSend({ opcode: WrOpcode.SEND })).code).toBe('ERR_OUT_OF_RANGE');
    }
    qpB.postRecv({ sgList: receiver.mr.slice() });
    sender.mr.buffer.write('one way');
    qpA.postSend({ opcode: WrOpcode.SEND, sgList: sender.mr.slice(0, 7) });
    expect((await completion(receiver.cq)).byteLen).toBe(7);
    await completion(sender.cq);
    for (const context of [a, b]) context.close({ cascade: true });
  });
});

describe.each<[string, (qp: QueuePair, attr: QpAttr) => Promise<void>]>([
  ['modify', (qp, attr) => qp.modify(attr)],
  ['modifySync', async (qp, attr) => qp.modifySync(attr)],
])('qp.%s', (_name, modify) => {
  it('takes a queue pair through all states, and the state is tracked', async () => {
    using sides = new Sides();
    const { a, b } = sides;
    const steps: [QpAttr, QpState][] = [
      [initAttr(), QpState.INIT],
      [initAttr(), QpState.INIT],
      [rtrAttr(a, b), QpState.RTR],
      [rtsAttr(), QpState.RTS],
      [{ minRnrTimer: 5 }, QpState.RTS],
      [{ qpState: QpState.SQD }, QpState.SQD],
      [{ qpState: QpState.RTS }, QpState.RTS],
      [{ qpState: QpState.ERR }, QpState.ERR],
      [{ qpState: QpState.RESET }, QpState.RESET],
      [{ qpState: QpState.RESET }, QpState.RESET],
      [initAttr(), QpState.INIT],
      [{ qpState: QpState.ERR }, QpState.ERR],
    ];
    for (const [attr, state] of steps) {
      await modify(a.qp, attr);
      expect(a.qp.state).toBe(state);
      expect(a.qp.query().qpState).toBe(state);
      if (state === QpState.SQD) await drained(a.qp);
    }
  });

  it('hands every attribute to the device, which gives it back', async () => {
    using sides = new Sides();
    const { a, b } = sides;
    const flags = AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC;
    await modify(a.qp, initAttr({ qpAccessFlags: flags }));
    expect(a.qp.query()).toMatchObject({ qpAccessFlags: flags, pkeyIndex: 0, portNum: 1 });
    const local = a.context.selectGid();
    const { gid } = b.context.selectGid();
    // The kernel replaces the hop limit by that of the route when it resolves the neighbour, for Soft-RoCE.
    const hopLimit = isRxe ? 64 : 33;
    const grh = { dgid: gid, sgidIndex: local.gidIndex, flowLabel: 0xabcde, hopLimit, trafficClass: 0x68 };
    const path = { pathMtu: Mtu.MTU_512, destQpNum: 0x123456, rqPsn: 0xfedcba, maxDestRdAtomic: 8, minRnrTimer: 31 };
    // What the link has: Soft-RoCE has none, and does not keep it.
    const link = { sl: 5, srcPathBits: 3, staticRate: 2 };
    const kept = isRxe ? { sl: 0, srcPathBits: 0, staticRate: 0 } : link;
    await modify(a.qp, { qpState: QpState.RTR, ...path, ahAttr: { grh, portNum: 1, ...link } });
    const atRtr = a.qp.query();
    expect(atRtr).toMatchObject({ ...path, qpState: QpState.RTR, curQpState: QpState.RTR });
    expect(atRtr.ahAttr).toMatchObject({ isGlobal: true, grh, portNum: 1, ...kept });
    const out = { sqPsn: 0x654321, timeout: 19, retryCnt: 3, rnrRetry: 5, maxRdAtomic: 2 };
    // The state that it is thought to be in is compared with the one that it is in.
    const wrong = await modify(a.qp, { qpState: QpState.RTS, curQpState: QpState.SQD, ...out }).catch((error) => error);
    expect(wrong).toMatchObject({ code: 'EINVAL', syscall: 'ibv_modify_qp' });
    expect(a.qp.query().qpState).toBe(QpState.RTR);
    await modify(a.qp, { qpState: QpState.RTS, curQpState: QpState.RTR, ...out });
    const atRts = { ...path, ...out, qpState: QpState.RTS, curQpState: QpState.RTS, qpAccessFlags: flags };
    expect(a.qp.query()).toMatchObject(atRts);
    await modify(a.qp, { qpAccessFlags: AccessFlags.REMOTE_WRITE, minRnrTimer: 0 });
    expect(a.qp.query()).toMatchObject({ qpAccessFlags: AccessFlags.REMOTE_WRITE, minRnrTimer: 0 });
  });

  it('fills in the defaults of an address: hop limit 64, the rest 0', async () => {
    using sides = new Sides();
    const { a, b } = sides;
    await modify(a.qp, initAttr());
    await modify(a.qp, rtrAttr(a, b));
    const { grh } = a.qp.query().ahAttr;
    expect(grh).toMatchObject({ hopLimit: 64, trafficClass: 0, flowLabel: 0 });
  });

  it.each<[string, (a: Side, b: Side) => [QpAttr[], QpAttr], RegExp]>([
    ['INIT without a port', () => [[], without(initAttr(), 'portNum')], /RESET -> INIT needs PORT$/],
    ['INIT with a timeout', () => [[], initAttr({ timeout: 3 })], /RESET -> INIT does not take TIMEOUT$/],
    [
      'INIT with too little and too much',
      () => [[], without(initAttr({ rqPsn: 1, sqPsn: 1 }), 'pkeyIndex', 'qpAccessFlags')],
      /needs PKEY_INDEX \| ACCESS_FLAGS; RESET -> INIT does not take RQ_PSN \| SQ_PSN|needs ACCESS_FLAGS \| PKEY_INDEX; /,
    ],
    ['RTS from RESET', () => [[], rtsAttr()], /no transition RESET -> RTS/],
    ['RTR from RESET', (a, b) => [[], rtrAttr(a, b)], /no transition RESET -> RTR/],
    ['ERR from RESET', () => [[], { qpState: QpState.ERR }], /no transition RESET -> ERR/],
    ['RTS from INIT', () => [[initAttr()], rtsAttr()], /no transition INIT -> RTS/],
    [
      'RTR without a destination',
      (a, b) => [[initAttr()], without(rtrAttr(a, b), 'destQpNum', 'rqPsn')],
      /INIT -> RTR needs (DEST_QPN|RQ_PSN) \| (DEST_QPN|RQ_PSN)$/,
    ],
    ['RTR without an address', (a, b) => [[initAttr()], without(rtrAttr(a, b), 'ahAttr')], /INIT -> RTR needs AV$/],
    [
      'RTR without a GRH, on Ethernet',
      (a, b) => [[initAttr()], { ...rtrAttr(a, b), ahAttr: { dlid: 1 } }],
      /ahAttr\.grh is missing, which Ethernet needs/,
    ],
    [
      'RTR by way of an empty place of the GID table',
      (a, b) => [
        [initAttr()],
        { ...rtrAttr(a, b), ahAttr: { grh: { dgid: b.context.selectGid().gid, sgidIndex: 7 } } },
      ],
      /GID index 7 of the port is empty/,
    ],
    [
      'RTR by way of a place past the GID table',
      (a, b) => [
        [initAttr()],
        { ...rtrAttr(a, b), ahAttr: { grh: { dgid: b.context.selectGid().gid, sgidIndex: 255 } } },
      ],
      /GID index 255 of the port is empty/,
    ],
    [
      'RTR by way of a port that is not there',
      (a, b) => {
        const attr = rtrAttr(a, b);
        return [[initAttr()], { ...attr, ahAttr: { ...attr.ahAttr!, portNum: 9 } }];
      },
      /there is no port 9/,
    ],
    ['INIT on a port that is not there', () => [[], initAttr({ portNum: 9 })], /there is no port 9/],
    [
      'RTS without its attributes',
      (a, b) => [[initAttr(), rtrAttr(a, b)], { qpState: QpState.RTS }],
      /RTR -> RTS needs .*SQ_PSN/,
    ],
    ['RTS from ERR', () => [[initAttr(), { qpState: QpState.ERR }], rtsAttr()], /no transition ERR -> RTS/],
    [
      'a reset with attributes',
      () => [[initAttr()], { qpState: QpState.RESET, portNum: 1 }],
      /takes no attributes, but was given PORT/,
    ],
    ['SQD from INIT', () => [[initAttr()], { qpState: QpState.SQD }], /no transition INIT -> SQD/],
  ])('explains the refusal of %s, and stays in the state', async (_what, make, explanation) => {
    using sides = new Sides();
    const { a, b } = sides;
    const [before, attr] = make(a, b);
    for (const step of before) a.qp.modifySync(step);
    const { state } = a.qp;
    const error: Error & { code?: string } = await modify(a.qp, attr).then(
      () => {
        throw new Error('it was accepted');
      },
      (reason) => reason,
    );
    expect(error).toMatchObject({ name: 'RdmaError', syscall: 'ibv_modify_qp' });
    expect(error.message).toMatch(explanation);
    expect(a.qp.state).toBe(state);
    expect(a.qp.query().qpState).toBe(state);
  });
});

describe('qp.modify', () => {
  it('leaves the event loop going, and keeps the queue pair open until it is done', async () => {
    using sides = new Sides();
    const { a } = sides;
    const modifying = a.qp.modify(initAttr());
    expect(thrown(() => a.qp.close())).toMatchObject({ code: 'EBUSY', message: expect.stringContaining('under way') });
    expect(thrown(() => a.context.close({ cascade: true }))).toMatchObject({ code: 'EBUSY' });
    await within(modifying, 'the transition');
    expect(a.qp.state).toBe(QpState.INIT);
    a.qp.close();
  });

  it('refuses an alternate path in part', () => {
    using sides = new Sides();
    const error = thrown(() => sides.a.qp.modifySync({ altPortNum: 1, altTimeout: 3 }));
    expect(error).toMatchObject({ code: 'ERR_INVALID_ARG_VALUE', message: expect.stringContaining('attr.altAhAttr') });
  });
});

describe('a queue pair before RTS', () => {
  it('refuses sends, since it would keep them and send them later', async () => {
    using sides = new Sides();
    const { a, b } = sides;
    const refuses = (state: string) => {
      const error = thrown(() => a.qp.postSend({ opcode: WrOpcode.SEND }));
      expect(error).toMatchObject({ name: 'RdmaError', code: 'EINVAL', syscall: 'ibv_post_send' });
      expect(error.message).toContain(`in state ${state}`);
      expect(a.qp.sendsInFlight).toBe(0);
    };
    refuses('RESET');
    a.qp.modifySync(initAttr());
    refuses('INIT');
    a.qp.modifySync(rtrAttr(a, b));
    refuses('RTR');
    a.qp.modifySync(rtsAttr());
    a.qp.postSend([]);
  });

  it('refuses receives in RESET, and takes them from INIT on', async () => {
    using sides = new Sides();
    const { a, b } = sides;
    expect(thrown(() => b.qp.postRecv({}))).toMatchObject({ code: 'EINVAL', syscall: 'ibv_post_recv' });
    expect(thrown(() => b.qp.postRecv([{}])).message).toContain('in state RESET');
    for (const { qp } of [a, b]) qp.modifySync(initAttr());
    b.qp.postRecv({ wrId: 1, sgList: b.mr.slice(0, 8) });
    b.qp.modifySync(rtrAttr(b, a));
    b.qp.postRecv({ wrId: 2, sgList: b.mr.slice(8, 8) });
    expect(b.qp.recvsInFlight).toBe(2);
    a.qp.modifySync(rtrAttr(a, b));
    a.qp.modifySync(rtsAttr());
    // The packet sequence numbers begin at 0xfffffe here: the third packet is past the wrap.
    a.mr.buffer.write('first...second..third...');
    a.qp.postSend([0, 1].map((i) => ({ opcode: WrOpcode.SEND, sgList: a.mr.slice(i * 8, 8) })));
    b.qp.postRecv({ wrId: 3, sgList: b.mr.slice(16, 8) });
    a.qp.postSend({ opcode: WrOpcode.SEND, sgList: a.mr.slice(16, 8) });
    expect((await completions(b.cq, 3)).map(({ wrId }) => wrId)).toEqual([1, 2, 3]);
    expect((await completions(a.cq, 3)).every(({ status }) => status === WcStatus.SUCCESS)).toBe(true);
    expect(b.mr.buffer.toString('latin1', 0, 24)).toBe('first...second..third...');
  });
});

describe('RESET', () => {
  it('forgets what is in flight, and lets go of its memory', async () => {
    using pair = await Pair.connect();
    const { a } = pair;
    a.qp.postRecv([{ sgList: a.mr.slice() }, { sgList: a.mr.slice() }]);
    a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: pair.remote.slice(), sendFlags: 0 });
    expect([a.qp.sendsInFlight, a.qp.recvsInFlight]).toEqual([1, 2]);
    a.qp.modifySync({ qpState: QpState.RESET });
    expect([a.qp.sendsInFlight, a.qp.recvsInFlight]).toEqual([0, 0]);
    a.mr.close();
    expect(a.mr.closed).toBe(true);
  });

  it('drops completions of before that nobody has polled', async () => {
    using pair = await Pair.connect();
    const { a, b, remote } = pair;
    a.qp.postSend([
      { wrId: 1, opcode: WrOpcode.RDMA_WRITE, remote: remote.slice() },
      { wrId: 2, opcode: WrOpcode.RDMA_WRITE, remote: remote.slice() },
    ]);
    expect(await a.cq.wait()).toBeGreaterThan(0);
    for (const { qp } of [a, b]) qp.modifySync({ qpState: QpState.RESET });
    await connectSides(a, b);
    // The sequence goes on where it was, so what comes now cannot be taken for one of those.
    a.qp.postSend({ wrId: 3, opcode: WrOpcode.RDMA_WRITE, remote: remote.slice() });
    expect(await completion(a.cq)).toMatchObject({ wrId: 3, status: WcStatus.SUCCESS });
  });

  it('lets a queue pair be connected again, to another peer', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    for (let round = 0; round < 3; round++) {
      a.mr.buffer.writeUInt32LE(round + 7, 0);
      const { rkey, addr, length } = b.mr;
      const remote = new RemoteRegion({ rkey, addr: `0x${addr.toString(16)}`, length });
      const wr = {
        wrId: round,
        opcode: WrOpcode.RDMA_WRITE,
        sgList: a.mr.slice(0, 4),
        remote: remote.slice(4 * round),
      };
      a.qp.postSend(wr);
      expect(await completion(a.cq)).toMatchObject({ wrId: round, status: WcStatus.SUCCESS });
      expect(b.mr.buffer.readUInt32LE(4 * round)).toBe(round + 7);
      for (const { qp } of [a, b]) qp.modifySync({ qpState: QpState.RESET });
      await connectSides(a, b);
    }
  });
});

describe('SQD', () => {
  it('keeps the queue pair connected: after it, requests go on', async () => {
    using pair = await Pair.connect();
    const { a, remote } = pair;
    a.qp.modifySync({ qpState: QpState.SQD });
    expect(a.qp.query().qpState).toBe(QpState.SQD);
    await drained(a.qp);
    a.qp.modifySync({ qpState: QpState.RTS });
    a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: remote.slice() });
    expect((await completion(a.cq)).status).toBe(WcStatus.SUCCESS);
  });
});

describe('qp.query', () => {
  it('learns that the device has moved it to ERR', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    const bad = new RemoteRegion({ ...b.mr.remote(), rkey: (b.mr.rkey ^ 0xff00) >>> 0 });
    a.qp.postSend({ opcode: WrOpcode.RDMA_READ, sgList: a.mr.slice(0, 8), remote: bad.slice(0, 8) });
    expect((await completion(a.cq)).status).toBe(WcStatus.REM_ACCESS_ERR);
    expect(a.qp.state).toBe(QpState.RTS);
    expect(a.qp.query().qpState).toBe(QpState.ERR);
    expect(a.qp.state).toBe(QpState.ERR);
    // In ERR a request completes at once, flushed.
    a.qp.postSend({ wrId: 77, opcode: WrOpcode.SEND, sendFlags: SendFlags.SIGNALED });
    expect(await completion(a.cq)).toMatchObject({ wrId: 77, status: WcStatus.WR_FLUSH_ERR });
  });
});
