// A worker thread: opens its own context, and goes to stages at which it is terminated, or does its work and ends.
import { once } from 'node:events';
import { parentPort, workerData } from 'node:worker_threads';
import {
  AccessFlags,
  connectionInfo,
  connectQueuePair,
  importDevice,
  openDevice,
  QpState,
  QpType,
  RemoteRegion,
  SrqType,
  WqState,
  WrOpcode,
} from '../../../dist/index.js';
import { binding } from '../../../dist/native/binding.js';
import { cmStages } from './cm-stages.mjs';

const { deviceA, deviceB, stage } = workerData;
const names = stage.split(',');
const access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ;

function open(device, createCq = (context) => context.createCq(256)) {
  const context = openDevice(device);
  const pd = context.allocPd();
  const cq = createCq(context);
  return { context, pd, cq, qp: pd.createQp({ sendCq: cq }), mr: pd.allocSync(1 << 16, { access }) };
}

async function connected(createCq) {
  const [a, b] = [open(deviceA, createCq), open(deviceB, createCq)];
  const [infoA, infoB] = [connectionInfo(a.qp), connectionInfo(b.qp)];
  await connectQueuePair(a.qp, infoA, infoB);
  await connectQueuePair(b.qp, infoB, infoA);
  return [a, b];
}

/** A rule with a counter, a table of receive work queues with a queue pair over it, and XRC from a to b, connected. */
function younger(a, b) {
  const { context, pd } = a;
  const datagrams = pd.createQp({ sendCq: context.createCq(256), qpType: QpType.UD });
  datagrams.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 1, qkey: 1 });
  const counters = context.createCounters();
  const wq = context.createWq({ pd, cq: context.createCq(256), maxWr: 64 });
  const rwqIndTbl = context.createRwqIndTable([wq]);
  const rss = pd.createQp({ rwqIndTbl, rxHashConf: { rxHashKey: Buffer.alloc(40), rxHashFieldsMask: 0 } });
  const xrcd = b.context.openXrcd();
  const srqCq = b.context.createCq(256);
  const srq = b.pd.createSrq({ srqType: SrqType.XRC, xrcd, cq: srqCq });
  const receiver = b.context.createQp({ qpType: QpType.XRC_RECV, xrcd });
  const sender = pd.createQp({ sendCq: context.createCq(256), qpType: QpType.XRC_SEND });
  const path = (to) => {
    const { gid, gidIndex } = to.context.selectGid();
    return { qpState: QpState.RTR, pathMtu: 3, rqPsn: 0, ahAttr: { grh: { dgid: gid, sgidIndex: gidIndex } } };
  };
  const init = { qpState: QpState.INIT, pkeyIndex: 0, portNum: 1, qpAccessFlags: 0 };
  receiver.modifySync(init);
  receiver.modifySync({ ...path(a), destQpNum: sender.qpNum, maxDestRdAtomic: 1, minRnrTimer: 1 });
  sender.modifySync(init);
  sender.modifySync({ ...path(b), destQpNum: receiver.qpNum });
  sender.modifySync({ qpState: QpState.RTS, sqPsn: 0, timeout: 14, retryCnt: 7, rnrRetry: 7, maxRdAtomic: 1 });
  return { datagrams, counters, wq, rss, srq, srqCq, sender };
}

let missing = names.length;
/** Tells that the worker is at a stage: of several, when it is at all. */
function reached() {
  if (--missing === 0) parentPort.postMessage(stage);
}

const stages = {
  ...cmStages,
  opened: () => open(deviceA),
  waiting: () => {
    const { cq } = open(deviceA);
    return [cq.wait(), cq[Symbol.asyncIterator]().next()];
  },
  'mr-pending': () => {
    const { pd, qp } = open(deviceA);
    return [
      pd.alloc(64 << 20),
      pd.regMr(Buffer.alloc(1 << 22)),
      qp.modify({ qpState: 1, pkeyIndex: 0, portNum: 1, qpAccessFlags: 0 }),
    ];
  },
  'in-flight': async () => {
    const [a, b] = await connected();
    b.qp.postRecv([{ sgList: b.mr.slice() }, { sgList: b.mr.slice() }]);
    a.qp.postSend([1, 2, 3].map((wrId) => ({ wrId, opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 4096) })));
    return [a, b, b.cq.wait()];
  },
  // Busy in the addon when the termination comes.
  polling: async () => {
    const [a, b] = await connected();
    reached();
    const remote = new RemoteRegion(b.mr.remote()).slice(0, 64);
    for (;;) {
      a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 64), remote });
      while (a.cq.poll() === 0);
    }
  },
  // Events arrive all the time, so one may be there when the thread can no longer run JavaScript.
  events: async () => {
    const [a, b] = await connected();
    const remote = new RemoteRegion(b.mr.remote()).slice(0, 64);
    for (let i = 0; ; i++) {
      if (i === workerData.rounds) reached();
      a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 64), remote });
      await a.cq.wait();
    }
  },
  registering: async () => {
    const { pd } = open(deviceA);
    for (let i = 0; ; i++) {
      if (i === workerData.rounds) reached();
      const [first, second] = await Promise.all([
        pd.alloc(4096),
        pd.regMr(Buffer.alloc(64)),
        pd.alloc(0).catch(() => {}),
      ]);
      first.close();
      second.close();
    }
  },
  creating: async () => {
    const { context, pd } = open(deviceA);
    for (let i = 0; ; i++) {
      if (i === workerData.rounds) reached();
      const cq = context.createCq(8);
      pd.createQp({ sendCq: cq, cap: { maxSendWr: 4, maxRecvWr: 4 } }).close();
      cq.close();
      pd.allocSync(64).close();
      context.queryDevice();
      context.queryGidTable();
      try {
        context.queryPort(9);
      } catch {}
      if (i % 4 === 0) await new Promise((resolve) => setImmediate(resolve));
    }
  },
  // Every younger kind of object, alive and busy.
  kinds: async () => {
    const [a, b] = await connected((context) => context.createCqEx(256));
    const remote = new RemoteRegion(b.mr.remote()).slice(0, 64);
    const { datagrams, wq, rss, srq, srqCq, sender } = younger(a, b);
    for (let i = 0; ; i++) {
      if (i === workerData.rounds) reached();
      a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 64), remote });
      await a.cq.wait();
      const flows = [datagrams, rss].map((qp) => qp.createFlow({ specs: [] }));
      wq.modify({ wqState: WqState.RDY });
      wq.postRecv([{ sgList: a.mr.slice(0, 8) }, { sgList: a.mr.slice(8, 8) }]);
      srq.postRecv({ sgList: b.mr.slice(0, 64) });
      sender.postSend({ opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 64), remoteSrqn: srq.srqNum });
      await srqCq.wait();
      if (i % 2 === 0) wq.modify({ wqState: WqState.ERR });
      wq.modify({ wqState: WqState.RESET });
      wq.cq.poll();
      sender.sendCq.poll();
      for (const flow of flows) flow.close();
    }
  },
  // Finds what the main thread has made, by its numbers, and makes memory in its domain, which that thread then writes to.
  importing: async () => {
    const { cmdFd, pdHandle, mrHandle, addr, access } = workerData;
    const context = importDevice(cmdFd);
    const pd = context.importPd(pdHandle);
    const found = pd.importMr(mrHandle, { addr, access });
    const made = pd.allocSync(4096, { access });
    parentPort.postMessage({ found: found.remote(), made: made.remote() });
    await once(parentPort, 'message');
    const text = made.buffer.toString('latin1', 0, 9);
    context.close({ cascade: true });
    return { text, census: binding().census() };
  },
  work: async () => {
    const [a, b] = await connected();
    const remote = new RemoteRegion(b.mr.remote());
    for (let i = 0; i < workerData.rounds; i++) {
      a.mr.buffer.writeUInt32LE(workerData.seed + i, 0);
      a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 4), remote: remote.slice(4 * i, 4) });
      await a.cq.wait();
    }
    const sum = Array.from(
      { length: workerData.rounds },
      (_, i) => b.mr.buffer.readUInt32LE(4 * i) - workerData.seed - i,
    );
    for (const { qp } of [a, b]) qp.close();
    for (const { context } of [a, b]) context.close({ cascade: true });
    return { isRight: sum.every((difference) => difference === 0), census: binding().census() };
  },
};

// These go on without end.
const endless = ['polling', 'events', 'registering', 'creating', 'kinds'];
// These end, with a result.
const ending = ['work', 'importing'];

globalThis.kept = [];
for (const name of names) {
  const result = stages[name]();
  globalThis.kept.push(endless.includes(name) ? result : await result);
  if (ending.includes(name)) parentPort.postMessage(await result);
  else if (!endless.includes(name)) reached();
}
// It would end by itself otherwise, where nothing waits.
if (!ending.includes(stage)) setInterval(() => {}, 1000);
