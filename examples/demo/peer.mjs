// @ts-check
// One end of a connection, a process of its own: it does what its parent says, and looks after its own memory.
//   fork('peer.mjs', [DEVICE])
import { createHash } from 'node:crypto';
import { AccessFlags, connectTcp, listenTcp, openDevice, RemoteRegion } from 'node-rdma';

/**
 * What a message consists of: pseudo-random bytes, or one 64-bit number.
 *
 * @typedef {{ seed: string, length: number } | { number: bigint }} Content
 */

// Whatever an operation leaves alone keeps this value.
const UNTOUCHED = 0xee;
// The operations use memory from here on: beside a page boundary, and a multiple of 8 as atomics need.
const START = 4096 - 8;
const LONGEST = 128 * 1024;

const { LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC } = AccessFlags;
const context = openDevice(process.argv[2]);
const pd = context.allocPd();
const access = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
const mr = await pd.alloc(START + LONGEST + 4096, { access });
// Where an atomic puts what it found.
const found = (await pd.alloc(8)).slice();

/** @type {import('node-rdma').Endpoint} */
let endpoint;
/** @type {RemoteRegion} */
let remote;
/** @type {Promise<import('node-rdma').Endpoint>} */
let accepted;
/** @type {Promise<import('node-rdma').Received>} */
let received;

const options = { pd, privateData: JSON.stringify(mr.remote()) };
const local = (/** @type {number} */ length) => mr.slice(START, length);
const there = (/** @type {number} */ length) => remote.slice(START, length);

function use(/** @type {import('node-rdma').Endpoint} */ connected) {
  endpoint = connected;
  remote = RemoteRegion.parse(endpoint.privateData);
}

function bytesOf(/** @type {Content} */ content) {
  if ('seed' in content) return createHash('shake256', { outputLength: content.length }).update(content.seed).digest();
  return Buffer.from(BigUint64Array.of(content.number).buffer);
}

const methods = {
  async listen() {
    const listener = await listenTcp({ ...options, host: '127.0.0.1', port: 0 });
    accepted = listener.accept();
    accepted.then(() => listener.close());
    return listener.port;
  },
  async accept() {
    use(await accepted);
    return endpoint.qp.qpNum;
  },
  async connect(/** @type {number} */ port) {
    use(await connectTcp({ ...options, host: '127.0.0.1', port }));
    return endpoint.qp.qpNum;
  },

  /** Fills all memory: with the content, if any, and untouched around it. */
  fill(/** @type {Content | undefined} */ content) {
    mr.buffer.fill(UNTOUCHED);
    if (content) bytesOf(content).copy(mr.buffer, START);
  },
  /** Compares all memory, byte for byte. */
  check(/** @type {Content} */ content) {
    const expected = Buffer.alloc(mr.length, UNTOUCHED);
    const bytes = bytesOf(content);
    bytes.copy(expected, START);
    if (!mr.buffer.equals(expected)) {
      const at = mr.buffer.findIndex((byte, i) => byte !== expected[i]);
      throw new Error(`byte ${at - START} is ${mr.buffer[at]}, not ${expected[at]}`);
    }
    return createHash('sha256').update(local(bytes.length).buffer).digest('hex');
  },

  /** Posts a receive. */
  receive(/** @type {number} */ length) {
    received = endpoint.recv(local(length));
  },
  /** What has come. */
  received: () => received,
  send: (/** @type {number} */ length) => endpoint.send(local(length)),
  write: (/** @type {number} */ length) => endpoint.write(local(length), there(length)),
  writeWithImm: (/** @type {number} */ length, /** @type {number} */ immData) =>
    endpoint.writeWithImm(local(length), there(length), immData),
  read: (/** @type {number} */ length) => endpoint.read(local(length), there(length)),
  compareAndSwap: (/** @type {bigint} */ compare, /** @type {bigint} */ swap) =>
    endpoint.compareAndSwap(found, there(8), compare, swap),
  fetchAdd: (/** @type {bigint} */ add) => endpoint.fetchAdd(found, there(8), add),

  async close() {
    await endpoint.close();
    context.close({ cascade: true });
    // This process ends when its parent no longer listens; the answer goes first.
    setImmediate(() => process.disconnect());
  },
};

process.on('message', async (/** @type {{ id: number, method: keyof typeof methods, args: [] }} */ message) => {
  const { id, method, args } = message;
  try {
    // A method's own parameters are not known here.
    const call = /** @type {(...args: unknown[]) => unknown} */ (methods[method]);
    process.send?.({ id, result: await call(...args) });
  } catch (error) {
    process.send?.({ id, error: /** @type {Error} */ (error).message });
  }
});

/** @typedef {typeof methods} Methods */
