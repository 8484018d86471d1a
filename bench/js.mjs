// The JavaScript side of the comparison: what bench/c/bench.c does, with the package as its users have it. It is told
// what to do on stdin and answers on stdout as the C program does.

import { createInterface } from 'node:readline';
import {
  AccessFlags,
  connectionInfo,
  connectQueuePair,
  Endpoint,
  getDeviceList,
  openDevice,
  RemoteRegion,
  SendFlags,
  WcStatus,
  WrOpcode,
} from 'node-rdma';

const BYTES = 8;
const BATCH = 32;

const context = openDevice(getDeviceList()[0].name);
const pd = context.allocPd();
const sendCq = context.createCq(256);
const recvCq = context.createCq(256);
const [here, there] = await connectedPair(sendCq, recvCq);
// Endpoints poll by themselves.
const endpoint = new Endpoint((await connectedPair(context.createCq(256)))[0]);

const { LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC } = AccessFlags;
const mr = pd.allocSync(8192, { access: LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC });
const local = mr.slice(0, BYTES);
const target = mr.slice(4096, BYTES);
const remote = new RemoteRegion(mr.remote()).slice(4096, BYTES);

async function connectedPair(sendCq, recvCq = sendCq) {
  const cap = { maxSendWr: 128, maxRecvWr: 128, maxSendSge: 1, maxRecvSge: 1, maxInlineData: 64 };
  const pair = [0, 1].map(() => pd.createQp({ sendCq, recvCq, cap }));
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
};

// CPU time and not time of day: other programs of the machine must not count. All threads of Node's do.
function cpuNs() {
  const { user, system } = process.cpuUsage();
  return (user + system) * 1000;
}

for await (const line of createInterface({ input: process.stdin })) {
  const [name, requests] = line.split(' ');
  const start = cpuNs();
  await run[name](Number(requests));
  console.log(JSON.stringify({ case: name, ns: (cpuNs() - start) / Number(requests) }));
}
