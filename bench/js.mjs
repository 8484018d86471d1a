// The JavaScript side of the comparison: what bench/c/bench.c does, with the package as its users have it. It is told
// what to do on stdin and answers on stdout as the C program does.

import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import {
  AccessFlags,
  connectionInfo,
  connectQueuePair,
  Endpoint,
  GRH_BYTES,
  getDeviceList,
  openDevice,
  QpState,
  QpType,
  RemoteRegion,
  SendFlags,
  WcStatus,
  WrOpcode,
} from 'node-rdma';

const BYTES = 8;
const BATCH = 32;
const REGION = 64 << 20;

const context = openDevice(getDeviceList()[0].name);
const pd = context.allocPd();
const sendCq = context.createCq(1024);
const recvCq = context.createCq(1024);
// Of queue pairs that are only made.
const wideCq = context.createCq(256, { allowOverrun: true });
const srq = pd.createSrq({ maxWr: 128, maxSge: 1 });
const [here, there] = await connectedPair(recvCq);
const [toSrq] = await connectedPair(recvCq, srq);
// Each end has its own events.
const hereCq = context.createCq(256);
const thereCq = context.createCq(256);
const [ping, pong] = await connectedPair(hereCq, undefined, thereCq);
// Endpoints poll by themselves.
const endpointCq = context.createCq(1024);
const endpoint = new Endpoint((await connectedPair(endpointCq, undefined, endpointCq, endpointCq))[0]);
const QKEY = 0x11111111;
const [udHere, udThere] = [datagramQp(), datagramQp()];
const gid = context.selectGid();
const ah = pd.createAh({ grh: { dgid: gid.gid, sgidIndex: gid.gidIndex, hopLimit: 64 } });

const { LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC } = AccessFlags;
const mr = pd.allocSync(8192, { access: LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC });
const local = mr.slice(0, BYTES);
const target = mr.slice(4096, BYTES);
const remote = new RemoteRegion(mr.remote()).slice(4096, BYTES);

function createQp(recvCq, attr, from = sendCq) {
  const cap = { maxSendWr: 128, maxRecvWr: 128, maxSendSge: 1, maxRecvSge: 1, maxInlineData: 64 };
  return pd.createQp({ sendCq: from, recvCq, cap, ...attr });
}

function datagramQp() {
  const qp = createQp(recvCq, { qpType: QpType.UD });
  qp.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 1, qkey: QKEY });
  qp.modifySync({ qpState: QpState.RTR });
  qp.modifySync({ qpState: QpState.RTS, sqPsn: 0 });
  return qp;
}

async function connectedPair(cq, shared = undefined, peerCq = cq, from = sendCq) {
  const pair = [createQp(cq, {}, from), createQp(peerCq, shared ? { srq: shared } : {}, from)];
  const infos = pair.map((qp) => connectionInfo(qp));
  await connectQueuePair(pair[0], infos[0], infos[1]);
  await connectQueuePair(pair[1], infos[1], infos[0]);
  return pair;
}

/** Polls until `count` completions were there. */
function drain(cq, count) {
  while (count > 0) {
    const found = cq.poll(count);
    for (let i = 0; i < found; i++) check(cq.at(i).status);
    count -= found;
  }
}

function check(status) {
  if (status !== WcStatus.SUCCESS) throw new Error(`a completion has status ${status}`);
}

function prepared(requests, wr) {
  const list = here.prepareSend({ sgList: local, remote, ...wr });
  for (let i = 0; i < requests; i++) {
    list.post();
    drain(sendCq, 1);
  }
}

/** Writes, of which the last is signaled, or all are. */
function batch(sendFlags) {
  const wrs = [];
  for (let wrId = 0; wrId < BATCH; wrId++) {
    const flags = wrId === BATCH - 1 ? SendFlags.SIGNALED : sendFlags;
    wrs.push({ wrId, opcode: WrOpcode.RDMA_WRITE, sgList: local, remote, sendFlags: flags });
  }
  return wrs;
}

function preparedBatch(requests, sendFlags, completions) {
  const list = here.prepareSend(batch(sendFlags));
  for (let i = 0; i < requests; i += BATCH) {
    list.post();
    drain(sendCq, completions);
  }
}

const run = {
  'write-prepared': (requests) => prepared(requests, { opcode: WrOpcode.RDMA_WRITE }),
  'write-inline-prepared': (requests) =>
    prepared(requests, { opcode: WrOpcode.RDMA_WRITE, sendFlags: SendFlags.SIGNALED | SendFlags.INLINE }),
  'read-prepared': (requests) => prepared(requests, { opcode: WrOpcode.RDMA_READ }),
  'fetch-add-prepared': (requests) => prepared(requests, { opcode: WrOpcode.ATOMIC_FETCH_AND_ADD, compareAdd: 1n }),
  'write-batch': (requests) => preparedBatch(requests, 0, 1),
  'write-batch-signaled': (requests) => preparedBatch(requests, SendFlags.SIGNALED, BATCH),

  'send-recv-prepared': (requests) => {
    const send = here.prepareSend({ opcode: WrOpcode.SEND, sgList: local });
    const recv = there.prepareRecv({ sgList: target });
    for (let i = 0; i < requests; i++) {
      recv.post();
      send.post();
      drain(sendCq, 1);
      drain(recvCq, 1);
    }
  },

  'send-srq-prepared': (requests) => {
    const send = toSrq.prepareSend({ opcode: WrOpcode.SEND, sgList: local });
    const recv = srq.prepareRecv({ sgList: target });
    for (let i = 0; i < requests; i++) {
      recv.post();
      send.post();
      drain(sendCq, 1);
      drain(recvCq, 1);
    }
  },

  'datagram-prepared': (requests) => {
    const address = { ah, remoteQpn: udThere.qpNum, remoteQkey: QKEY };
    const send = udHere.prepareSend({ opcode: WrOpcode.SEND, sgList: local, ...address });
    const recv = udThere.prepareRecv({ sgList: mr.slice(4096, GRH_BYTES + BYTES) });
    for (let i = 0; i < requests; i++) {
      recv.post();
      send.post();
      drain(sendCq, 1);
      drain(recvCq, 1);
    }
  },

  'write-object': (requests) => {
    for (let wrId = 0; wrId < requests; wrId++) {
      here.postSend({ wrId, opcode: WrOpcode.RDMA_WRITE, sgList: local, remote });
      drain(sendCq, 1);
    }
  },

  'write-object-batch': (requests) => {
    for (let i = 0; i < requests; i += BATCH) {
      here.postSend(batch(0));
      drain(sendCq, 1);
    }
  },

  'write-awaited': async (requests) => {
    for (let i = 0; i < requests; i++) await endpoint.write(local, remote);
  },

  'write-awaited-batch': async (requests) => {
    for (let i = 0; i < requests; i += BATCH) {
      const writes = [];
      for (let k = 0; k < BATCH; k++) writes.push(endpoint.write(local, remote));
      await Promise.all(writes);
    }
  },

  'poll-empty': (requests) => {
    for (let i = 0; i < requests; i++) if (sendCq.poll(1) !== 0) throw new Error('a completion of nothing');
  },

  'event-wait': async (requests) => {
    const list = here.prepareSend({ opcode: WrOpcode.RDMA_WRITE, sgList: local, remote });
    for (let i = 0; i < requests; i++) {
      // It has polled and armed when it gives the promise.
      const found = sendCq.wait();
      list.post();
      if ((await found) !== 1) throw new Error('more completions than requests');
      check(sendCq.at(0).status);
    }
  },

  'event-ping-pong': async (requests) => {
    const send = { opcode: WrOpcode.SEND, sgList: local };
    const [sends, replies] = [ping.prepareSend(send), pong.prepareSend(send)];
    const [here, there] = [ping.prepareRecv({ sgList: target }), pong.prepareRecv({ sgList: target })];
    for (let i = 0; i < requests; i++) {
      here.post();
      there.post();
      const arrived = thereCq.wait();
      sends.post();
      await arrived;
      check(thereCq.at(0).status);
      const answered = hereCq.wait();
      replies.post();
      await answered;
      check(hereCq.at(0).status);
      drain(sendCq, 2);
    }
  },

  'socket-ping-pong': async (requests) => {
    sockets ??= await socketPair();
    const [ping, pong] = sockets;
    ping.ref();
    let left = 2 * requests;
    await new Promise((resolve) => {
      const answer = (socket) => (byte) => (--left === 0 ? resolve() : socket.write(byte));
      ping.removeAllListeners('data').on('data', answer(ping));
      pong.removeAllListeners('data').on('data', answer(pong));
      ping.write('x');
    });
    // It does not keep the process alive beyond the last case.
    ping.unref();
  },

  'reg-mr': (requests) => {
    memory ??= Buffer.alloc(REGION);
    for (let i = 0; i < requests; i++) pd.regMrSync(memory, { access: LOCAL_WRITE }).close();
  },
};

/** Both ends of a connection of Node's own. */
async function socketPair() {
  const path = join(tmpdir(), `node-rdma-bench-${process.pid}`);
  const server = createServer().listen(path);
  const here = connect(path);
  const [there] = await once(server, 'connection');
  server.close();
  return [here.unref(), there.unref()];
}

let sockets;
let memory;
const everything = [];

/** What objects take, all of one kind and kept: in C, in the addon and in JavaScript. */
function memoryOf(objects, create) {
  const kept = [create()];
  globalThis.gc();
  const before = process.memoryUsage.rss();
  for (let i = 0; i < objects; i++) kept.push(create());
  globalThis.gc();
  const bytes = (process.memoryUsage.rss() - before) / objects;
  everything.push(kept);
  return bytes;
}

const measure = {
  'memory-qp': (objects) => memoryOf(objects, () => createQp(wideCq, {}, wideCq)),
  'memory-cq': (objects) => memoryOf(objects, () => context.createCq(256)),
  'memory-mr': (objects) => memoryOf(objects, () => pd.regMrSync(mr.buffer.subarray(0, 4096), { access: LOCAL_WRITE })),
};

// CPU time and not time of day: other programs of the machine must not count. All threads of Node's do.
function cpuNs() {
  const { user, system } = process.cpuUsage();
  return (user + system) * 1000;
}

for await (const line of createInterface({ input: process.stdin })) {
  const [name, count] = line.split(' ');
  let value;
  if (measure[name]) {
    value = measure[name](Number(count));
  } else {
    const start = cpuNs();
    await run[name](Number(count));
    value = (cpuNs() - start) / Number(count);
  }
  console.log(JSON.stringify({ case: name, value }));
}
