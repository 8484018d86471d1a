// Loses its device in the middle of traffic, and ends as it is told: node lost.mjs <fatal|removed> <exit|nothing|close>.
import { closeSync, openSync } from 'node:fs';
import {
  AccessFlags,
  connectionInfo,
  connectQueuePair,
  Endpoint,
  openDevice,
  RemoteRegion,
  WrOpcode,
} from '../../../dist/index.js';
import { binding } from '../../../dist/native/binding.js';

const [how, end] = process.argv.slice(2);
const access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE;

function open(device) {
  const context = openDevice(device);
  const pd = context.allocPd();
  const cq = context.createCq(256);
  return { context, pd, cq, qp: pd.createQp({ sendCq: cq }), mr: pd.allocSync(1 << 16, { access }) };
}

const [a, b] = [open(process.env.DEVICE_A), open(process.env.DEVICE_B)];
const [infoA, infoB] = [connectionInfo(a.qp), connectionInfo(b.qp)];
await connectQueuePair(a.qp, infoA, infoB);
await connectQueuePair(b.qp, infoB, infoA);
const endpoint = new Endpoint(a.qp);
const outcomes = [endpoint.recv(a.mr.slice(0, 64)), endpoint.recv()].map((recv) => recv.catch(({ code }) => code));
const remote = new RemoteRegion(b.mr.remote()).slice(0, 64);
for (let i = 0; i < 8; i++) b.qp.postRecv({});
await endpoint.write(a.mr.slice(0, 64), remote);
b.qp.postSend({
  opcode: WrOpcode.RDMA_WRITE,
  sgList: b.mr.slice(0, 64),
  remote: new RemoteRegion(a.mr.remote()).slice(),
});

closeSync(openSync(`/dev/mlx5model/0/${how}`));
console.log((await Promise.all(outcomes)).join(' '));
if (end === 'exit') process.exit(7);
if (end === 'close') {
  await endpoint.close();
  a.context.close({ cascade: true });
  b.context.close({ cascade: true });
  console.log(JSON.stringify(binding().census()));
}
