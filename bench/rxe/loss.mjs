// Runs in the VM: what a lossy wire costs a connection of Soft-RoCE. Prints JSON: for each load and loss the time that its
// messages took, and what the counters of the driver and of netem have counted. scripts/calibrate.mjs starts it.
//   node loss.mjs '{"messageBytes": 65536, "depths": [1, 16], "losses": [0, 0.001], "seconds": 5}'

import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { AccessFlags, connectionInfo, connectQueuePair, openDevice, RemoteRegion, WcStatus, WrOpcode } from 'node-rdma';

const { messageBytes, depths, losses, seconds, timeout, mtu } = JSON.parse(process.argv[2]);
const [sender, receiver] = ['rxe0', 'rxe1'];
// Where the sender's packets leave; acknowledgements come in here, and are not lost.
const netdev = 'v0';
const TURNS = 6;

const tc = (...args) => execFileSync('tc', args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });

/** One side: a queue pair, and memory that may be written to. */
function side(device) {
  const context = openDevice(device);
  const pd = context.allocPd();
  const cq = context.createCq(512, { channel: context.createCompChannel() });
  const qp = pd.createQp({ sendCq: cq, recvCq: cq, cap: { maxSendWr: 64 } });
  const mr = pd.allocSync(messageBytes, { access: AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE });
  return { context, cq, qp, mr };
}

function counters(device) {
  const folder = `/sys/class/infiniband/${device}/ports/1/hw_counters`;
  return Object.fromEntries(
    readdirSync(folder)
      .filter((name) => name !== 'lifespan')
      .map((name) => [name, Number(readFileSync(`${folder}/${name}`, 'latin1'))]),
  );
}

function netem(loss) {
  // Replaced, so that its counts begin anew.
  tc('qdisc', 'replace', 'dev', netdev, 'root', 'pfifo');
  tc('qdisc', 'replace', 'dev', netdev, 'root', 'netem', 'limit', '100000', 'loss', loss);
}

const change = (before, after) =>
  Object.fromEntries(Object.keys(after).map((name) => [name, after[name] - before[name]]));

const [a, b] = [side(sender), side(receiver)];
const [infoA, infoB] = [connectionInfo(a.qp), connectionInfo(b.qp)];
const options = { timeout, retryCnt: 7, mtu: Math.log2(mtu / 128) };
await Promise.all([connectQueuePair(a.qp, infoA, infoB, options), connectQueuePair(b.qp, infoB, infoA, options)]);
const remote = new RemoteRegion(b.mr.remote());

/** Writes so many messages at once, and waits till all are acknowledged. */
function batchOf(depth, bytes) {
  const write = { opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, bytes), remote: remote.slice(0, bytes) };
  const list = a.qp.prepareSend([...Array(depth - 1).fill({ ...write, sendFlags: 0 }), write]);
  return async () => {
    list.post();
    const found = a.cq.poll() || (await a.cq.wait());
    for (let i = 0; i < found; i++) {
      const { status } = a.cq.at(i);
      if (status !== WcStatus.SUCCESS) throw new Error(`a completion has status ${status}`);
    }
  };
}

/** Repeats a batch for the time. */
async function repeat(batch, time) {
  const begin = performance.now();
  let count = 0;
  while (count === 0 || performance.now() - begin < time * 1000) {
    await batch();
    count++;
  }
  return { count, us: (performance.now() - begin) * 1000 };
}

// What one packet takes there and back, when nothing else is under way.
const short = batchOf(1, 1);
await repeat(short, 0.5);
const { count, us } = await repeat(short, 2);

const points = [];
for (const depth of depths) {
  const batch = batchOf(depth, messageBytes);
  await repeat(batch, 0.5);
  for (const loss of losses) {
    const total = { messages: 0, packets: 0, drops: 0, naks: 0, retries: 0, lossyUs: 0, cleanMessages: 0, cleanUs: 0 };
    // The machine has other work too: with and without loss in turns.
    for (let turn = 0; turn < TURNS; turn++) {
      netem('0%');
      const clean = await repeat(batch, seconds / TURNS / 3);
      netem(`${loss * 100}%`);
      const before = counters(sender);
      const lossy = await repeat(batch, seconds / TURNS);
      const sent = change(before, counters(sender));
      total.drops += JSON.parse(tc('-s', '-j', 'qdisc', 'show', 'dev', netdev, 'root'))[0].drops;
      total.messages += lossy.count * depth;
      total.lossyUs += lossy.us;
      total.cleanMessages += clean.count * depth;
      total.cleanUs += clean.us;
      // The driver's names: a NAK that has come, and a retry for whatever reason.
      total.packets += sent.sent_pkts;
      total.naks += sent.rcvd_seq_err;
      total.retries += sent.completer_retry_err;
    }
    const { messages, packets, drops, naks, retries } = total;
    const each = { cleanUs: total.cleanUs / total.cleanMessages, lossyUs: total.lossyUs / messages };
    points.push({ depth, loss, messages, packets, drops, naks, retries, ...each });
    console.error(`calibrate: depth ${depth}, loss ${loss}: ${messages} messages, ${drops} packets lost`);
  }
}
tc('qdisc', 'del', 'dev', netdev, 'root');
for (const { context } of [a, b]) context.close({ cascade: true });
console.log(JSON.stringify({ roundTripUs: us / count, points }));
