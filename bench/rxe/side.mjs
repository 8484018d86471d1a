// One side of our measurement, a process: node side.mjs '{"role": "server" | "client", ...}'. The server prints its TCP
// port, the client the results, as JSON. Each test does what the program of perftest of that name does.

import {
  AccessFlags,
  connectionInfo,
  connectQueuePair,
  connectTcp,
  GRH_BYTES,
  listenTcp,
  openDevice,
  QpState,
  QpType,
  RemoteRegion,
  WcStatus,
  WrOpcode,
} from 'node-rdma';

const LIST = 16;
const DEPTH = 128;
const WARM_UP = 1024;
// For what the two sides tell each other.
const NOTE = 2048;
const QKEY = 0x1111_1111;

const { role, device, gidIndex, port, latencyBytes, bandwidthBytes, iterations, only } = JSON.parse(process.argv[2]);
const isClient = role === 'client';
const context = openDevice(device);
const pd = context.allocPd();
const size = Math.max(latencyBytes, bandwidthBytes);
const { LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC } = AccessFlags;
const mr = await pd.alloc(2 * size + 2 * NOTE, { access: LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC });
const privateData = JSON.stringify(mr.remote());

const options = { pd, gidIndex, privateData };
// The second connection keeps the two sides in step, so that the first is the tests' alone; the third is of the test that
// leaves polling to the endpoint.
let endpoint;
let control;
let awaited;
if (isClient) {
  endpoint = await connectTcp({ ...options, host: '127.0.0.1', port });
  control = await connectTcp({ ...options, host: '127.0.0.1', port });
  awaited = await connectTcp({ ...options, host: '127.0.0.1', port });
} else {
  const listener = await listenTcp({ ...options, host: '127.0.0.1', port: 0 });
  console.log(String(listener.port));
  endpoint = await listener.accept();
  control = await listener.accept();
  awaited = await listener.accept();
  await listener.close();
}
const { qp } = endpoint;
const cq = qp.sendCq;
const remote = RemoteRegion.parse(endpoint.privateData);

// Sent from the first part, received in the second; the third is for what keeps the sides in step.
const outgoing = (bytes) => mr.slice(0, bytes);
const incoming = (bytes) => mr.slice(size, bytes);
async function inStep(note = '') {
  const length = mr.buffer.write(note, 2 * size);
  const into = mr.slice(2 * size + NOTE, NOTE);
  const [{ byteLen }] = await Promise.all([control.recv(into), control.send(mr.slice(2 * size, length))]);
  return into.buffer.toString('latin1', 0, byteLen);
}

/** What the other side says about the same, as JSON. */
const exchange = async (value) => JSON.parse(await inStep(JSON.stringify(value)));

/** Datagrams: the queue pair, and to whom it sends. */
async function datagrams() {
  const qp = pd.createQp({
    sendCq: context.createCq(2 * DEPTH),
    qpType: QpType.UD,
    cap: { maxSendWr: 16, maxRecvWr: 16 },
  });
  qp.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 1, qkey: QKEY });
  qp.modifySync({ qpState: QpState.RTR });
  qp.modifySync({ qpState: QpState.RTS, sqPsn: 0 });
  const peer = await exchange({ qpNum: qp.qpNum, gid: context.queryGidEx(1, gidIndex).gid });
  const ah = pd.createAh({ grh: { dgid: peer.gid, sgidIndex: gidIndex } });
  return { qp, to: { ah, remoteQpn: peer.qpNum, remoteQkey: QKEY } };
}

/** A reliable connection that receives from a shared queue. */
async function withSharedQueue() {
  const srq = pd.createSrq({ maxWr: 16 });
  const qp = pd.createQp({ sendCq: context.createCq(2 * DEPTH), srq, cap: { maxSendWr: 16 } });
  const info = connectionInfo(qp, { gidIndex });
  await connectQueuePair(qp, info, await exchange(info));
  return { qp, srq };
}

/** Polls until `count` completions were there. */
function drain(count) {
  while (count > 0) {
    const found = cq.poll(count);
    for (let i = 0; i < found; i++) {
      if (cq.at(i).status !== WcStatus.SUCCESS) throw new Error(`a completion has status ${cq.at(i).status}`);
    }
    count -= found;
  }
}

function summary(times) {
  times.sort();
  return { best: times[0], typical: times[times.length >> 1] };
}

/** The client's turn begins; half a round trip, in microseconds. */
function pingPong(send, receive) {
  const times = new Float64Array(iterations);
  for (let i = 0; i < iterations; i++) {
    const start = performance.now();
    if (isClient) send(i);
    receive(i);
    if (!isClient) send(i);
    times[i] = ((performance.now() - start) * 1000) / 2;
  }
  return summary(times);
}

function writeLat() {
  const bytes = latencyBytes;
  const list = qp.prepareSend({
    opcode: WrOpcode.RDMA_WRITE,
    sgList: outgoing(bytes),
    remote: remote.slice(size, bytes),
  });
  // The last byte arrives last.
  const out = outgoing(bytes).buffer;
  const arrived = incoming(bytes).buffer;
  return pingPong(
    (i) => {
      out[bytes - 1] = i + 1;
      list.post();
      drain(1);
    },
    (i) => {
      while (Atomics.load(arrived, bytes - 1) !== ((i + 1) & 0xff));
    },
  );
}

/** Messages by a queue pair, from `receiver` on the other side. */
async function messageLat(qp, receiver, to = {}, headerBytes = 0) {
  const cq = qp.sendCq;
  const send = qp.prepareSend({ opcode: WrOpcode.SEND, sgList: outgoing(latencyBytes), ...to });
  const recv = receiver.prepareRecv({ sgList: incoming(headerBytes + latencyBytes) });
  // One receive is always waiting, so a message never finds none.
  recv.post();
  await inStep();
  let received = 0;
  let sent = 0;
  const poll = () => {
    const found = cq.poll();
    for (let i = 0; i < found; i++) {
      const { status, wrId } = cq.at(i);
      if (status !== WcStatus.SUCCESS) throw new Error(`a completion has status ${status}`);
      if (wrId === 1) sent++;
      else received++;
    }
  };
  send.setWrId(0, 1);
  return pingPong(
    (i) => {
      send.post();
      while (sent <= i) poll();
    },
    (i) => {
      while (received <= i) poll();
      recv.post();
    },
  );
}

const sendLat = () => messageLat(qp, qp);

async function udLat() {
  const { qp, to } = await datagrams();
  return messageLat(qp, qp, to, GRH_BYTES);
}

async function srqLat() {
  const { qp, srq } = await withSharedQueue();
  return messageLat(qp, srq);
}

const readLat = () => requestLat({ opcode: WrOpcode.RDMA_READ, sgList: incoming(latencyBytes) }, latencyBytes);

const atomicLat = () => requestLat({ opcode: WrOpcode.ATOMIC_FETCH_AND_ADD, sgList: incoming(8), compareAdd: 1n }, 8);

/** A request of the client's that the other side's device answers; a whole round trip. */
function requestLat(wr, bytes) {
  if (!isClient) return undefined;
  const list = qp.prepareSend({ ...wr, remote: remote.slice(0, bytes) });
  const times = new Float64Array(iterations);
  for (let i = 0; i < iterations; i++) {
    const start = performance.now();
    list.post();
    drain(1);
    times[i] = (performance.now() - start) * 1000;
  }
  return summary(times);
}

/** With await, as ibv_rc_pingpong -e: each side sleeps until the message is there and its own has gone. */
async function awaitedLat() {
  const [out, into] = [outgoing(latencyBytes), incoming(latencyBytes)];
  let received = awaited.recv(into);
  await inStep();
  // Much more is to be compiled than of the others, and what was compiled is to be translated by the emulator.
  const warmUp = Math.min(20 * iterations, 8 * WARM_UP);
  let start = 0;
  for (let i = 1 - warmUp; i <= iterations; i++) {
    if (i === 1) start = performance.now();
    const sent = isClient ? awaited.send(out) : undefined;
    await received;
    // Before the other side's next message, which answers the one of this side.
    if (i < iterations) received = awaited.recv(into);
    await (sent ?? awaited.send(out));
  }
  const mean = ((performance.now() - start) * 1000) / iterations / 2;
  return { best: mean, typical: mean };
}

/** In units of 2^20 bytes a second. */
function writeBw() {
  if (!isClient) return undefined;
  const rate = stream(bandwidthBytes, iterations);
  return { best: rate, typical: rate };
}

function stream(bytes, count) {
  const wr = { opcode: WrOpcode.RDMA_WRITE, sgList: outgoing(bytes), remote: remote.slice(size, bytes) };
  const list = qp.prepareSend(Array.from({ length: LIST }, (_, i) => (i === LIST - 1 ? wr : { ...wr, sendFlags: 0 })));
  const lists = Math.ceil(count / LIST);
  const start = performance.now();
  let inFlight = 0;
  for (let i = 0; i < lists; i++) {
    if (inFlight === DEPTH / LIST) {
      drain(1);
      inFlight--;
    }
    list.post();
    inFlight++;
  }
  drain(inFlight);
  return (lists * LIST * bytes) / 2 ** 20 / ((performance.now() - start) / 1000);
}

// So that what is measured is compiled code, as it is in a program that has run for a while.
await inStep();
if (isClient) stream(latencyBytes, WARM_UP);
await inStep();
if (!isClient) stream(latencyBytes, WARM_UP);

const tests = { writeLat, sendLat, udLat, srqLat, readLat, atomicLat, writeBw, awaitedLat };
const results = {};
for (const name of only) {
  await inStep();
  results[name] = await tests[name]();
}
await inStep();
if (isClient) console.log(JSON.stringify(results));
await Promise.all([endpoint.close(), control.close(), awaited.close()]);
