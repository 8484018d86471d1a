// @ts-check
// The verbs one by one, as a C program calls them: two queue pairs of one process are connected, and one writes into the
// memory of the other.
//   node examples/raw-verbs.mjs [DEVICE [OTHER DEVICE]]
import { randomInt } from 'node:crypto';
import {
  AccessFlags,
  openDevice,
  QpState,
  RemoteRegion,
  SendFlags,
  WcStatus,
  WrOpcode,
  wcStatusName,
  wcStatusStr,
} from 'node-rdma';

const PORT = 1;

/** Opens a device and creates one of everything. */
function openSide(/** @type {string | undefined} */ device) {
  const context = openDevice(device);
  const pd = context.allocPd();
  // Without a channel it has no events: it is polled.
  const cq = context.createCq(64, { channel: null });
  const qp = pd.createQp({ sendCq: cq, cap: { maxSendWr: 32, maxRecvWr: 32, maxInlineData: 32 } });
  const mr = pd.allocSync(4096, { access: AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE });
  return { context, cq, qp, mr, gid: context.selectGid(PORT), psn: randomInt(0x100_0000) };
}

/** @typedef {ReturnType<typeof openSide>} Side */

/** Takes a queue pair from RESET to RTS. Of the peer it takes its number, its PSN and its GID. */
async function connect(/** @type {Side} */ side, /** @type {Side} */ peer) {
  const { qp, context, gid, psn } = side;
  await qp.modify({
    qpState: QpState.INIT,
    portNum: PORT,
    pkeyIndex: 0,
    qpAccessFlags: AccessFlags.REMOTE_WRITE,
  });
  const [local, remote] = [context.queryPort(PORT), peer.context.queryPort(PORT)];
  await qp.modify({
    qpState: QpState.RTR,
    pathMtu: /** @type {import('node-rdma').Mtu} */ (Math.min(local.activeMtu, remote.activeMtu)),
    destQpNum: peer.qp.qpNum,
    rqPsn: peer.psn,
    maxDestRdAtomic: 1,
    minRnrTimer: 12,
    ahAttr: { portNum: PORT, dlid: remote.lid, grh: { dgid: peer.gid.gid, sgidIndex: gid.gidIndex } },
  });
  await qp.modify({ qpState: QpState.RTS, sqPsn: psn, timeout: 14, retryCnt: 7, rnrRetry: 7, maxRdAtomic: 1 });
}

/** Polls for one completion, which must be a good one. */
function complete(/** @type {Side} */ { cq }) {
  while (cq.poll(1) === 0);
  // The cursor shows the completion in place; it is moved by the next at(), and the next poll() overwrites it.
  const wc = cq.at(0);
  if (wc.status !== WcStatus.SUCCESS) throw new Error(`${wcStatusName(wc.status)}: ${wcStatusStr(wc.status)}`);
  return wc;
}

const [first, second] = process.argv.slice(2);
const here = openSide(first);
const there = openSide(second ?? first);
await connect(here, there);
await connect(there, here);
console.log(`QP 0x${here.qp.qpNum.toString(16)} on ${here.context.name} is connected with`);
console.log(`QP 0x${there.qp.qpNum.toString(16)} on ${there.context.name}`);

// One call posts a list. The first request has no completion of its own; the second one carries immediate data, for
// which the other side needs a receive. Its data is copied into the request: the buffer is free at once.
const remote = new RemoteRegion(there.mr.remote());
here.mr.buffer.write('one two');
there.qp.postRecv({ wrId: 7 });
here.qp.postSend([
  { opcode: WrOpcode.RDMA_WRITE, sgList: here.mr.slice(0, 4), remote: remote.slice(0, 4), sendFlags: 0 },
  {
    wrId: 1,
    opcode: WrOpcode.RDMA_WRITE_WITH_IMM,
    sgList: here.mr.slice(4, 3),
    remote: remote.slice(4, 3),
    immData: 0xcafe,
    sendFlags: SendFlags.SIGNALED | SendFlags.INLINE,
  },
]);
console.log(`write completed: wrId ${complete(here).wrId}`);
const { wrId, byteLen, immData } = complete(there);
console.log(`receive completed: wrId ${wrId}, ${byteLen} bytes, immediate data 0x${immData.toString(16)}`);
console.log(`the other side's memory: ${there.mr.buffer.toString('utf8', 0, 7)}`);

// What is posted again and again is prepared once, and changed in place.
const list = here.qp.prepareSend({ opcode: WrOpcode.RDMA_WRITE, sgList: here.mr.slice(0, 8), remote: remote.slice() });
for (let i = 1; i <= 1000; i++) {
  here.mr.buffer.writeBigUInt64LE(BigInt(i));
  list.setWrId(0, i);
  list.post();
  complete(here);
}
console.log(`after 1000 writes the other side has ${there.mr.buffer.readBigUInt64LE()}`);

// Children first: a parent that is still needed refuses.
for (const { qp, cq, mr, context } of [here, there]) {
  qp.close();
  cq.close();
  mr.close();
  context.close({ cascade: true });
}
