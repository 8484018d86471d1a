/** What is in flight is counted alike on every kind of queue: each request from its post to its completion, and no longer. */
import { describe, expect, it } from 'vitest';
import {
  type AnyQueuePair,
  type CompletionQueue,
  GRH_BYTES,
  type MemoryRegion,
  QpState,
  QpType,
  type QueuePair,
  RemoteRegion,
  SendFlags,
  type SendWr,
  type SharedReceiveQueue,
  SrqType,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import {
  completions,
  connectSides,
  deviceA,
  deviceB,
  expectNoLeaks,
  initAttr,
  isRxe,
  openSide,
  rtrAttr,
  rtsAttr,
  type Side,
  thrown,
} from './fixture.ts';
import { DcPair } from './mlx5-fixture.ts';

expectNoLeaks();

const DEPTH = 8;

/** A queue pair that can send, where its requests complete, and a request that succeeds. */
interface Sender {
  qp: QueuePair;
  cq: CompletionQueue;
  mr: MemoryRegion;
  wr: SendWr;
  close: () => void;
}

/** A queue pair that takes from a shared queue, where that completes and where to, and who sends to it. */
interface Receiver {
  qp: AnyQueuePair;
  srq: SharedReceiveQueue;
  cq: CompletionQueue;
  mr: MemoryRegion;
  sender: Sender;
}

const caps = { cap: { maxSendWr: DEPTH, maxRecvWr: DEPTH } };
const closeAll = (...sides: Side[]) => {
  for (const { context } of sides) context.close({ cascade: true });
};
const writeTo = (a: Side, b: Side): SendWr => ({
  opcode: WrOpcode.RDMA_WRITE,
  sgList: a.mr.slice(0, 64),
  remote: new RemoteRegion(b.mr.remote()).slice(),
});

async function rc(): Promise<Sender> {
  const [a, b] = [openSide(deviceA, caps), openSide(deviceB, caps)];
  await connectSides(a, b);
  return { ...a, wr: writeTo(a, b), close: () => closeAll(a, b) };
}

function uc(): Sender {
  const [a, b] = [deviceA, deviceB].map((device) => openSide(device, { ...caps, attr: { qpType: QpType.UC } })) as [
    Side,
    Side,
  ];
  for (const [from, to] of [
    [a, b],
    [b, a],
  ] as const) {
    const { maxDestRdAtomic: _reads, minRnrTimer: _timer, ...rtr } = rtrAttr(from, to);
    from.qp.modifySync(initAttr());
    from.qp.modifySync(rtr);
    from.qp.modifySync({ qpState: QpState.RTS, sqPsn: 0xff_fffe });
  }
  return { ...a, wr: writeTo(a, b), close: () => closeAll(a, b) };
}

function ud(): Sender {
  const [a, b] = [deviceA, deviceB].map((device) => openSide(device, { ...caps, attr: { qpType: QpType.UD } })) as [
    Side,
    Side,
  ];
  for (const { qp } of [a, b]) {
    qp.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 1, qkey: 0x1234 });
    qp.modifySync({ qpState: QpState.RTR });
    qp.modifySync({ qpState: QpState.RTS, sqPsn: 1 });
  }
  const ah = a.pd.createAh({ grh: rtrAttr(a, b).ahAttr!.grh! });
  const wr = { opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 64), ah, remoteQpn: b.qp.qpNum, remoteQkey: 0x1234 };
  return { ...a, wr, close: () => closeAll(a, b) };
}

async function srq(): Promise<Receiver> {
  const [a, b] = [openSide(deviceA, caps), openSide(deviceB, caps)];
  const queue = b.pd.createSrq({ maxWr: DEPTH });
  b.qp.close();
  b.qp = b.pd.createQp({ sendCq: b.cq, srq: queue, cap: { maxSendWr: DEPTH } });
  await connectSides(a, b);
  return { ...b, srq: queue, sender: { ...a, wr: writeTo(a, b), close: () => closeAll(a, b) } };
}

function xrcSrq(): Receiver {
  const [a, b] = [openSide(deviceA), openSide(deviceB)];
  const xrcd = b.context.openXrcd();
  const cq = b.context.createCq(64);
  const srq = b.pd.createSrq({ srqType: SrqType.XRC, xrcd, cq, maxWr: DEPTH });
  const receiver = b.context.createQp({ qpType: QpType.XRC_RECV, xrcd });
  const sendCq = a.context.createCq(64);
  const qp = a.pd.createQp({ sendCq, qpType: QpType.XRC_SEND, cap: { maxSendWr: DEPTH } });
  const ends: [AnyQueuePair, object][] = [
    [receiver, rtrAttr(b, { ...a, qp })],
    [qp, { ...rtrAttr(a, b), destQpNum: receiver.qpNum, maxDestRdAtomic: undefined, minRnrTimer: undefined }],
  ];
  for (const [end, rtr] of ends) {
    end.modifySync(initAttr());
    end.modifySync(rtr);
  }
  qp.modifySync(rtsAttr());
  const wr = { ...writeTo(a, b), remoteSrqn: srq.srqNum };
  const sender = { qp, cq: sendCq, mr: a.mr, wr, close: () => closeAll(a, b) };
  return { qp: receiver, srq, cq, mr: b.mr, sender };
}

function dct(): Receiver {
  const pair = new DcPair({}, DEPTH);
  const { dci: qp, cq, mr } = pair.a;
  const wr = { opcode: WrOpcode.RDMA_WRITE, sgList: mr.slice(0, 64), remote: pair.remote.slice(), ...pair.target };
  const { dct, ...b } = pair.b;
  return { ...b, qp: dct, sender: { qp, cq, mr, wr, close: () => pair[Symbol.dispose]() } };
}

const dci = () => dct().sender;
const xrcSend = () => xrcSrq().sender;
const senders = { RC: rc, UC: uc, UD: ud, ...(!isRxe && { XRC_SEND: xrcSend, DCI: dci }) };
const receivers = { SRQ: srq, ...(!isRxe && { 'XRC SRQ': xrcSrq, DCT: dct }) };

describe.each(Object.entries(senders))('a send queue of type %s', (_type, make) => {
  const signaled = { sendFlags: SendFlags.SIGNALED };
  const unsignaled = { sendFlags: 0 };

  it('counts each request, signalled or not, until a completion says that it is over', async () => {
    const { qp, cq, mr, wr, close } = await make();
    qp.postSend([
      { ...wr, wrId: 1, ...unsignaled },
      { ...wr, wrId: 2, ...unsignaled },
      { ...wr, wrId: 3, ...signaled },
    ]);
    expect(qp.sendsInFlight).toBe(3);
    expect(thrown(() => mr.close())).toMatchObject({ code: 'EBUSY', message: /3 work request\(s\) in flight/ });
    expect(await completions(cq, 1)).toMatchObject([{ wrId: 3, status: WcStatus.SUCCESS }]);
    expect([qp.sendsInFlight, cq.poll()]).toEqual([0, 0]);

    // Those behind the last signalled one are not known to be over.
    qp.postSend([
      { ...wr, wrId: 4, ...signaled },
      { ...wr, wrId: 5, ...unsignaled },
      { ...wr, wrId: 6, ...unsignaled },
    ]);
    await completions(cq, 1);
    expect(qp.sendsInFlight).toBe(2);
    qp.postSend({ ...wr, wrId: 7, ...signaled });
    expect(await completions(cq, 1)).toMatchObject([{ wrId: 7 }]);
    expect(qp.sendsInFlight).toBe(0);
    close();
  });

  it('counts of a list that does not fit what was posted, and flushes what is left', async () => {
    const { qp, cq, mr, wr, close } = await make();
    const list = Array.from({ length: DEPTH + 2 }, (_, wrId) => ({ ...wr, wrId, ...signaled }));
    const error = thrown(() => qp.postSend(list));
    expect(error).toMatchObject({ name: 'PostError', code: 'ENOMEM', index: DEPTH });
    expect(qp.sendsInFlight).toBe(DEPTH);
    expect((await completions(cq, DEPTH)).map(({ wrId }) => wrId)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
    expect(qp.sendsInFlight).toBe(0);

    // A flushed request has a completion, whatever its flags.
    qp.modifySync({ qpState: QpState.ERR });
    qp.postSend([
      { ...wr, wrId: 10, ...unsignaled },
      { ...wr, wrId: 11, ...signaled },
    ]);
    expect(qp.sendsInFlight).toBe(2);
    const flushed = await completions(cq, 2);
    expect(flushed.map(({ wrId, status }) => [wrId, status])).toEqual([
      [10, WcStatus.WR_FLUSH_ERR],
      [11, WcStatus.WR_FLUSH_ERR],
    ]);
    expect(qp.sendsInFlight).toBe(0);

    // Nobody polls for these: they go with their queue pair, and with them the hold on the memory.
    qp.postSend([{ ...wr, ...signaled }, wr]);
    expect(thrown(() => mr.close())).toMatchObject({ code: 'EBUSY', message: /2 work request\(s\) in flight/ });
    qp.close();
    expect([qp.sendsInFlight, cq.poll()]).toEqual([0, 0]);
    mr.close();
    close();
  });
});

describe.each(Object.entries({ RC: rc, UC: uc, UD: ud }))('a receive queue of type %s', (_type, make) => {
  it('counts each receive until its completion, flushed or not', async () => {
    const { qp, cq, mr, close } = await make();
    const recv = { sgList: mr.slice(0, GRH_BYTES + 64) };
    qp.postRecv([recv, recv, recv]);
    expect(qp.recvsInFlight).toBe(3);
    expect(thrown(() => mr.close())).toMatchObject({ code: 'EBUSY', message: /3 work request\(s\) in flight/ });
    const error = thrown(() => qp.postRecv(Array(DEPTH).fill(recv)));
    expect(error).toMatchObject({ name: 'PostError', code: 'ENOMEM', index: DEPTH - 3 });
    expect(qp.recvsInFlight).toBe(DEPTH);
    qp.modifySync({ qpState: QpState.ERR });
    const flushed = await completions(cq, DEPTH);
    expect(flushed.every(({ status }) => status === WcStatus.WR_FLUSH_ERR)).toBe(true);
    expect(qp.recvsInFlight).toBe(0);
    qp.postRecv([recv, recv]);
    qp.close();
    expect([qp.recvsInFlight, cq.poll()]).toEqual([0, 0]);
    mr.close();
    close();
  });
});

describe.each(Object.entries(receivers))('a shared receive queue: %s', (type, make) => {
  it('counts each receive until its completion, and those of a queue pair that is closed', async () => {
    const { qp, srq, cq, mr, sender } = await make();
    const recv = { sgList: mr.slice(0, 64) };
    const { opcode: _write, remote: _remote, ...aim } = sender.wr as SendWr & { remote?: unknown };
    const send = async () => {
      sender.qp.postSend({ ...aim, opcode: WrOpcode.SEND, sendFlags: SendFlags.SIGNALED });
      expect(await completions(sender.cq, 1)).toMatchObject([{ status: WcStatus.SUCCESS }]);
    };
    srq.postRecv([recv, recv, recv]);
    expect(srq.recvsInFlight).toBe(3);
    expect(thrown(() => mr.close())).toMatchObject({ code: 'EBUSY', message: /3 work request\(s\) in flight/ });
    const depth = srq.maxWr;
    const error = thrown(() => srq.postRecv(Array(depth).fill(recv)));
    expect(error).toMatchObject({ name: 'PostError', code: 'ENOMEM', index: depth - 3 });
    for (let left = depth; left > 0; left--) {
      expect(srq.recvsInFlight).toBe(left);
      await send();
      expect(await completions(cq, 1)).toMatchObject([{ status: WcStatus.SUCCESS, qpNum: qp.qpNum }]);
    }
    expect([srq.recvsInFlight, cq.poll()]).toEqual([0, 0]);

    // Two that nobody polls for before their queue pair is closed. Those of XRC are the shared queue's, whoever they came by.
    srq.postRecv([recv, recv, recv]);
    await send();
    await send();
    expect(srq.recvsInFlight).toBe(3);
    qp.close();
    if (type === 'XRC SRQ') {
      expect(srq.recvsInFlight).toBe(3);
      expect(cq.poll()).toBe(2);
    }
    expect([srq.recvsInFlight, cq.poll()]).toEqual([1, 0]);
    srq.postRecv(Array(depth - 1).fill(recv));
    expect(srq.recvsInFlight).toBe(depth);
    srq.close();
    expect([srq.recvsInFlight, cq.poll()]).toEqual([0, 0]);
    mr.close();
    sender.close();
  });
});
