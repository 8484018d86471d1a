// @ts-check
// Receives messages as events: the loop sleeps until completions arrive, and the process does other things meanwhile.
//   node examples/events.mjs [DEVICE]
import { connectionInfo, connectQueuePair, openDevice, WcStatus, WrOpcode, wcStatusStr } from 'node-rdma';

const MESSAGES = 5;

const context = openDevice(process.argv[2]);
const pd = context.allocPd();
const mr = await pd.alloc(4096);

// Two queue pairs of one device, connected with each other. Receives have a completion queue of their own. Each queue has
// room for all that both queue pairs can have in flight.
const [sendCq, recvCq] = [context.createCq(16), context.createCq(16)];
const cap = { maxSendWr: 8, maxRecvWr: 8 };
const [sender, receiver] = [pd.createQp({ sendCq, recvCq, cap }), pd.createQp({ sendCq, recvCq, cap })];
const [senderInfo, receiverInfo] = [connectionInfo(sender), connectionInfo(receiver)];
await connectQueuePair(sender, senderInfo, receiverInfo);
await connectQueuePair(receiver, receiverInfo, senderInfo);

// A place in memory for each message; its number is the wrId.
const place = (/** @type {number} */ i) => mr.slice(64 * (i + 1), 64);
for (let wrId = 0; wrId < MESSAGES; wrId++) receiver.postRecv({ wrId, sgList: place(wrId) });

let sent = 0;
const timer = setInterval(() => {
  const length = mr.buffer.write(`message ${++sent}`);
  sender.postSend({ opcode: WrOpcode.SEND, sgList: mr.slice(0, length) });
  if (sent === MESSAGES) clearInterval(timer);
}, 20);

let received = 0;
for await (const { wrId, status, byteLen } of recvCq) {
  if (status !== WcStatus.SUCCESS) throw new Error(wcStatusStr(status));
  console.log(`receive ${wrId}: ${place(wrId).buffer.toString('utf8', 0, byteLen)}`);
  if (++received === MESSAGES) break;
}

context.close({ cascade: true });
