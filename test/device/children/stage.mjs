// Goes to stages of life, one after another, then ends in the way it is told: node stage.mjs <stage,stage> <end>.
import { AccessFlags, connectionInfo, connectQueuePair, openDevice, WrOpcode } from '../../../dist/index.js';
import { cmStages } from './cm-stages.mjs';

const [names, end] = process.argv.slice(2);
const access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ;

function open(device) {
  const context = openDevice(device);
  const pd = context.allocPd();
  const cq = context.createCq(256);
  return { context, pd, cq, qp: pd.createQp({ sendCq: cq }), mr: pd.allocSync(1 << 20, { access }) };
}

async function connected() {
  const [a, b] = [open(process.env.DEVICE_A), open(process.env.DEVICE_B)];
  const [infoA, infoB] = [connectionInfo(a.qp), connectionInfo(b.qp)];
  await connectQueuePair(a.qp, infoA, infoB);
  await connectQueuePair(b.qp, infoB, infoA);
  return [a, b];
}

const stages = {
  ...cmStages,
  opened: () => openDevice(process.env.DEVICE_A),
  pd: () => openDevice(process.env.DEVICE_A).allocPd(),
  'mr-pending': () => {
    const pd = openDevice(process.env.DEVICE_A).allocPd();
    return [pd.alloc(64 << 20), pd.regMr(Buffer.alloc(1 << 20)), pd.alloc(4096)];
  },
  mr: () =>
    openDevice(process.env.DEVICE_A)
      .allocPd()
      .allocSync(1 << 20),
  cq: () => openDevice(process.env.DEVICE_A).createCq(64),
  waiting: () => {
    const { cq } = open(process.env.DEVICE_A);
    const waits = [cq.wait(), cq[Symbol.asyncIterator]().next()];
    for (const wait of waits) wait.catch(() => {});
    return cq;
  },
  connected,
  // Sends that nobody is ready for, receives that nothing comes for, and completions that nobody has polled.
  'in-flight': async () => {
    const [a, b] = await connected();
    a.qp.postRecv({ sgList: a.mr.slice() });
    b.qp.postRecv({ sgList: b.mr.slice(0, 64) });
    a.qp.postSend([1, 2, 3].map((wrId) => ({ wrId, opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 64) })));
    const wait = b.cq.wait();
    wait.catch(() => {});
    await wait;
    b.cq.wait().catch(() => {});
    return [a, b];
  },
};

globalThis.kept = [];
for (const name of names.split(',')) globalThis.kept.push(await stages[name]());
process.stdout.write(`at ${names}\n`);
if (end === 'exit') process.exit(7);
if (end === 'throw') {
  setImmediate(() => {
    throw new Error('deliberate');
  });
}
// The test ends it.
if (end === 'signal') setInterval(() => {}, 1000);
