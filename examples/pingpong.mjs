// @ts-check
// A ping-pong that also talks with the C program ibv_rc_pingpong (rdma-core), in either role.
//   node examples/pingpong.mjs -d rxe0                 the server
//   node examples/pingpong.mjs -d rxe1 127.0.0.1       the client
import { execFileSync } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { connect as connectSocket, createServer } from 'node:net';
import { parseArgs } from 'node:util';
import { formatGid, LinkLayer, openDevice, parseGid, QpState, WcStatus, WrOpcode, wcStatusStr } from 'node-rdma';

const usage = `Usage: node examples/pingpong.mjs [options] [HOST]
  -p, --port=<port>      TCP port to listen on or to connect to (default 18515)
  -d, --ib-dev=<dev>     RDMA device (default the first active one)
  -i, --ib-port=<port>   its port (default 1)
  -s, --size=<size>      bytes of a message (default 4096)
  -m, --mtu=<size>       path MTU (default 1024)
  -r, --rx-depth=<dep>   receives to post at a time (default 500)
  -n, --iters=<iters>    exchanges (default 1000)
  -l, --sl=<sl>          service level (default 0)
  -e, --events           sleep until there are completions (default poll)
  -g, --gid-idx=<index>  index of the local GID (default the one that openDevice().selectGid() chooses)
  -c, --chk              check the received data`;

const RECV = 1;
const SEND = 2;
// What the C program fills its buffer with, except for the first byte of each page when it checks.
const FILL = 0x7b;

const string = /** @type {const} */ ('string');
const boolean = /** @type {const} */ ('boolean');
const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    port: { type: string, short: 'p', default: '18515' },
    'ib-dev': { type: string, short: 'd' },
    'ib-port': { type: string, short: 'i', default: '1' },
    size: { type: string, short: 's', default: '4096' },
    mtu: { type: string, short: 'm', default: '1024' },
    'rx-depth': { type: string, short: 'r', default: '500' },
    iters: { type: string, short: 'n', default: '1000' },
    sl: { type: string, short: 'l', default: '0' },
    events: { type: boolean, short: 'e' },
    'gid-idx': { type: string, short: 'g' },
    chk: { type: boolean, short: 'c' },
    help: { type: boolean, short: 'h' },
  },
});
if (flags.help || positionals.length > 1) {
  console.log(usage);
  process.exit(flags.help ? 0 : 1);
}
const host = positionals[0];
const port = Number(flags.port);
const portNum = Number(flags['ib-port']);
const size = Number(flags.size);
const rxDepth = Number(flags['rx-depth']);
const iters = Number(flags.iters);
const gidIndex = flags['gid-idx'] === undefined ? undefined : Number(flags['gid-idx']);

/** @typedef {{ lid: number, qpn: number, psn: number, gid: string }} Address */

const hex = (/** @type {number} */ value, /** @type {number} */ digits) => value.toString(16).padStart(digits, '0');

/** As it is printed. */
function show(/** @type {Address} */ { lid, qpn, psn, gid }) {
  return `LID 0x${hex(lid, 4)}, QPN 0x${hex(qpn, 6)}, PSN 0x${hex(psn, 6)}, GID ${gid}`;
}

// As it travels: a C string with its zero.
const ADDRESS_BYTES = 'LLLL:QQQQQQ:PPPPPP:'.length + 32 + 1;

function encode(/** @type {Address} */ { lid, qpn, psn, gid }) {
  return `${hex(lid, 4)}:${hex(qpn, 6)}:${hex(psn, 6)}:${parseGid(gid).toString('hex')}\0`;
}

/** @returns {Address} */
function decode(/** @type {string} */ text) {
  const found = /^([0-9a-f]{4}):([0-9a-f]{6}):([0-9a-f]{6}):([0-9a-f]{32})\0$/.exec(text);
  if (!found) throw new Error(`not the address of a peer: ${JSON.stringify(text)}`);
  const [, lid = '', qpn = '', psn = '', gid = ''] = found;
  const number = (/** @type {string} */ digits) => Number.parseInt(digits, 16);
  return { lid: number(lid), qpn: number(qpn), psn: number(psn), gid: formatGid(Buffer.from(gid, 'hex')) };
}

/** Reads that many bytes of a socket. */
async function read(/** @type {AsyncIterator<Buffer>} */ chunks, /** @type {number} */ length) {
  let data = Buffer.alloc(0);
  while (data.length < length) {
    const { value, done } = await chunks.next();
    if (done) throw new Error('the peer has closed the connection');
    data = Buffer.concat([data, value]);
  }
  return data.toString('latin1');
}

/**
 * Takes the queue pair to RTS. It does not need to be done by anyone but this side.
 *
 * @param {Address} local
 * @param {Address} remote
 */
async function connect(local, remote) {
  const global = !parseGid(remote.gid).subarray(8).equals(Buffer.alloc(8));
  await qp.modify({
    qpState: QpState.RTR,
    pathMtu: /** @type {import('node-rdma').Mtu} */ (Math.log2(Number(flags.mtu) / 128)),
    destQpNum: remote.qpn,
    rqPsn: remote.psn,
    maxDestRdAtomic: 1,
    minRnrTimer: 12,
    ahAttr: {
      dlid: remote.lid,
      sl: Number(flags.sl),
      portNum,
      ...(global && { grh: { dgid: remote.gid, sgidIndex } }),
    },
  });
  await qp.modify({ qpState: QpState.RTS, sqPsn: local.psn, timeout: 14, retryCnt: 7, rnrRetry: 7, maxRdAtomic: 1 });
}

/** Exchanges the addresses: the client begins, the server answers when it is ready to receive. */
async function serve(/** @type {Address} */ local) {
  const server = createServer();
  server.listen(port);
  await once(server, 'listening');
  console.log(`  local address:  ${show(local)}`);
  const [socket] = await once(server, 'connection');
  server.close();
  const chunks = socket[Symbol.asyncIterator]();
  const remote = decode(await read(chunks, ADDRESS_BYTES));
  await connect(local, remote);
  socket.write(encode(local));
  await read(chunks, 'done\0'.length);
  socket.end();
  return remote;
}

/**
 * @param {Address} local
 * @param {string} host
 */
async function call(local, host) {
  console.log(`  local address:  ${show(local)}`);
  const socket = connectSocket({ host, port });
  await once(socket, 'connect');
  socket.write(encode(local));
  const remote = decode(await read(socket[Symbol.asyncIterator](), ADDRESS_BYTES));
  socket.end('done\0');
  await connect(local, remote);
  return remote;
}

/** Ping and pong, until both have come `iters` times. */
async function play() {
  let posted = rxDepth;
  let sent = 0;
  let received = 0;
  // What has to complete before the next send.
  let pending = host === undefined ? RECV : RECV | SEND;
  if (host !== undefined) send.post();
  while (sent < iters || received < iters) {
    let found = 0;
    if (flags.events) found = await cq.wait();
    else while (found === 0) found = cq.poll();
    for (let i = 0; i < found; i++) {
      const { wrId, status } = cq.at(i);
      if (status !== WcStatus.SUCCESS) throw new Error(`${wrId === SEND ? 'send' : 'receive'}: ${wcStatusStr(status)}`);
      if (wrId === SEND) sent++;
      else received++;
      if (wrId === RECV && --posted === rxDepth - refill.length) {
        refill.post();
        posted = rxDepth;
      }
      pending &= ~wrId;
      if (pending === 0 && sent < iters) {
        send.post();
        pending = RECV | SEND;
      }
    }
  }
}

/** The message that a checking client sends, in both programs. */
function expected() {
  const message = Buffer.alloc(size, FILL);
  const pageSize = Number(execFileSync('getconf', ['PAGESIZE'], { encoding: 'utf8' }));
  for (let i = 0; i < size; i += pageSize) message[i] = 0;
  return message;
}

const context = openDevice(flags['ib-dev']);
const pd = context.allocPd();
const cq = context.createCq(rxDepth + 1);
const qp = pd.createQp({ sendCq: cq, cap: { maxSendWr: 1, maxRecvWr: rxDepth } });
await qp.modify({ qpState: QpState.INIT, pkeyIndex: 0, portNum, qpAccessFlags: 0 });

// The server answers from where it received; the client receives elsewhere, so that it can check what has come back.
const outgoing = pd.allocSync(size);
const incoming = host === undefined ? outgoing : pd.allocSync(size);
outgoing.buffer.fill(FILL);
if (flags.chk) {
  incoming.buffer.fill(~FILL);
  if (host !== undefined) expected().copy(outgoing.buffer);
}
const send = qp.prepareSend({ wrId: SEND, opcode: WrOpcode.SEND, sgList: outgoing.slice() });
const recv = { wrId: RECV, sgList: incoming.slice() };
// When one receive is left, all others are posted again, by one call.
const refill = qp.prepareRecv(new Array(Math.max(rxDepth - 1, 1)).fill(recv));
refill.post();
if (rxDepth > 1) qp.postRecv(recv);

const portAttr = context.queryPort(portNum);
const isRoce = portAttr.linkLayer === LinkLayer.ETHERNET;
const entry =
  isRoce || gidIndex !== undefined ? context.selectGid(portNum, gidIndex === undefined ? {} : { gidIndex }) : undefined;
const sgidIndex = entry?.gidIndex ?? 0;
const local = { lid: portAttr.lid, qpn: qp.qpNum, psn: randomInt(0x100_0000), gid: entry?.gid ?? '::' };
const remote = await (host === undefined ? serve(local) : call(local, host));
console.log(`  remote address: ${show(remote)}`);

const start = performance.now();
await play();
const seconds = (performance.now() - start) / 1000;
const bytes = size * iters * 2;
console.log(`${bytes} bytes in ${seconds.toFixed(2)} seconds = ${((bytes * 8) / seconds / 1e6).toFixed(2)} Mbit/sec`);
console.log(`${iters} iters in ${seconds.toFixed(2)} seconds = ${((seconds * 1e6) / iters).toFixed(2)} usec/iter`);
if (flags.chk) {
  if (!incoming.buffer.equals(expected())) throw new Error('the received data is wrong');
  console.log(`${size} bytes checked`);
}
context.close({ cascade: true });
