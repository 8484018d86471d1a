// @ts-check
// Datagrams (UD): one socket-like queue pair for any number of peers. One side asks, the other answers to whoever asked.
//   node examples/datagram.mjs [DEVICE [OTHER DEVICE]]
import { randomInt } from 'node:crypto';
import { GRH_BYTES, openDevice, QpState, QpType, readDatagram, WcStatus, WrOpcode, wcStatusStr } from 'node-rdma';

// A datagram is taken only when it brings the Q_Key of the queue pair that it reaches.
const QKEY = 0x1234_5678;

/** Opens a device with a UD queue pair, which is ready at once: it is connected to nobody. */
async function openSide(/** @type {string | undefined} */ device) {
  const context = openDevice(device);
  const pd = context.allocPd();
  const cq = context.createCq(256);
  const qp = pd.createQp({ sendCq: cq, qpType: QpType.UD });
  await qp.modify({ qpState: QpState.INIT, portNum: 1, pkeyIndex: 0, qkey: QKEY });
  await qp.modify({ qpState: QpState.RTR });
  await qp.modify({ qpState: QpState.RTS, sqPsn: randomInt(0x100_0000) });
  return { context, pd, cq, qp, mr: await pd.alloc(4096), address: context.selectGid() };
}

/** Waits for one completion, which must be a good one. */
async function complete(/** @type {import('node-rdma').CompletionQueue} */ cq) {
  for await (const wc of cq) {
    if (wc.status !== WcStatus.SUCCESS) throw new Error(wcStatusStr(wc.status));
    return wc;
  }
  throw new Error('the queue was closed');
}

const [here, there] = [await openSide(process.argv[2]), await openSide(process.argv[3] ?? process.argv[2])];

// The first 40 bytes of what is received are a header.
there.qp.postRecv({ sgList: there.mr.slice(0, GRH_BYTES + 1024) });
here.qp.postRecv({ sgList: here.mr.slice(2048, GRH_BYTES + 1024) });

// Who asks must know the other's GID and queue pair number.
const question = here.mr.buffer.write('What time is it?');
const ah = here.pd.createAh({ grh: { dgid: there.address.gid, sgidIndex: here.address.gidIndex } });
here.qp.postSend({
  opcode: WrOpcode.SEND,
  sgList: here.mr.slice(0, question),
  ah,
  remoteQpn: there.qp.qpNum,
  remoteQkey: QKEY,
});
await complete(here.cq);
ah.close();

// Who answers finds both in the datagram.
const asked = await complete(there.cq);
const { payload, grh } = readDatagram(asked, there.mr.buffer);
console.log(`asked by ${grh?.sgid}, queue pair 0x${asked.srcQp.toString(16)}: ${payload}`);
const back = there.pd.createAhFromWc(asked, there.mr.buffer);
const answer = there.mr.buffer.write(`It is ${new Date().toISOString()}.`, 2048);
there.qp.postSend({
  opcode: WrOpcode.SEND,
  sgList: there.mr.slice(2048, answer),
  ah: back,
  remoteQpn: asked.srcQp,
  remoteQkey: QKEY,
});
await complete(there.cq);

const answered = await complete(here.cq);
console.log(
  `answer of ${answered.byteLen - GRH_BYTES} bytes: ${readDatagram(answered, here.mr.buffer.subarray(2048)).payload}`,
);

for (const { context } of [here, there]) context.close({ cascade: true });
