// @ts-check
// A key-value store whose values clients read out of the server's memory, without the server's program: what RDMA is for.
//   node examples/kv.mjs [DEVICE [OTHER DEVICE]]   a server and some clients of it, in one process
//
// The server has a table of slots in registered memory, and answers two calls: which slot a key has, and to put a value.
//
//   a slot:   0  version (u64)  odd while the value is being changed
//             8  lock (u64)     0, or the client that has it
//            16  length (u32)
//            24  value
//
// To get a value a client reads the slot, twice: when both have the same even version the value in between is whole (a
// sequence lock). To change a value in several steps it first takes the slot's lock, by a compare-and-swap in the server's
// memory, which any number of clients can try at once.
import { setTimeout } from 'node:timers/promises';
import {
  AccessFlags,
  BufferPool,
  Calls,
  connectTcp,
  listenTcp,
  messageEndpoint,
  openDevice,
  RemoteRegion,
} from 'node-rdma';

const SLOTS = 64;
const SLOT_BYTES = 256;
const VERSION = 0;
const LOCK = 8;
const LENGTH = 16;
const VALUE = 24;

/**
 * @typedef {{
 *   slot(params: { key: string }): number;
 *   put(params: { key: string }): void;
 * }} Store
 */

/** The server: one table for all that connect. */
class Server {
  /** @type {Map<string, number>} */
  #slots = new Map();
  /** @type {Set<Calls<{}, Store>>} */
  #clients = new Set();

  /**
   * @param {import('node-rdma').MemoryRegion} table
   * @param {import('node-rdma').TcpListener} listener
   */
  constructor(table, listener) {
    this.table = table;
    this.words = new BigUint64Array(table.buffer.buffer, table.buffer.byteOffset, table.length / 8);
    this.listener = listener;
    this.calls = 0;
    this.serving = this.#serve();
  }

  /** @param {import('node-rdma').ProtectionDomain} pd */
  static async listen(pd) {
    const { LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC } = AccessFlags;
    // A client that has the key may write what it likes into the table: these are clients to be trusted.
    const access = LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC;
    const table = await pd.alloc(SLOTS * SLOT_BYTES, { access });
    const privateData = JSON.stringify(table.remote());
    const endpoint = messageEndpoint({ pd, bufferBytes: 1024, buffers: 8 });
    return new Server(table, await listenTcp({ ...endpoint, host: '127.0.0.1', port: 0, privateData }));
  }

  async #serve() {
    for await (const endpoint of this.listener) {
      const client = await Calls.open(endpoint, {
        handlers: {
          slot: (/** @type {{ key: string }} */ { key }) => this.#slotOf(key),
          put: (/** @type {{ key: string }} */ { key }, /** @type {import('node-rdma').IncomingCall} */ { body }) =>
            this.#put(key, body?.data ?? Buffer.alloc(0)),
        },
      });
      this.#clients.add(client);
      void client.closed.then(() => client.close()).then(() => this.#clients.delete(client));
    }
  }

  /** @param {string} key */
  #slotOf(key) {
    this.calls++;
    let slot = this.#slots.get(key);
    if (slot === undefined) {
      if (this.#slots.size === SLOTS) throw new Error('the table is full');
      slot = this.#slots.size;
      this.#slots.set(key, slot);
    }
    return slot;
  }

  /**
   * @param {string} key
   * @param {Buffer} value
   */
  #put(key, value) {
    if (value.length > SLOT_BYTES - VALUE) throw new RangeError('the value is too long');
    const at = this.#slotOf(key) * SLOT_BYTES;
    // Odd: whoever reads now, reads again. The program changes the slot in one go, but the NIC reads at any time; an atomic
    // is what no other store passes.
    Atomics.add(this.words, (at + VERSION) / 8, 1n);
    this.table.buffer.writeUInt32LE(value.length, at + LENGTH);
    value.copy(this.table.buffer, at + VALUE);
    Atomics.add(this.words, (at + VERSION) / 8, 1n);
  }

  async close() {
    await this.listener.close();
    await this.serving;
    await Promise.all([...this.#clients].map((client) => client.close()));
    this.table.close();
  }
}

class Client {
  /** @type {Map<string, Promise<number>>} */
  #slots = new Map();

  /**
   * @param {Calls<Store, {}>} calls
   * @param {RemoteRegion} table
   * @param {BufferPool} pool
   * @param {bigint} id
   */
  constructor(calls, table, pool, id) {
    this.calls = calls;
    this.table = table;
    this.pool = pool;
    this.id = id;
    this.retries = 0;
  }

  /**
   * @param {import('node-rdma').ProtectionDomain} pd
   * @param {number} port
   * @param {bigint} id not 0
   */
  static async connect(pd, port, id) {
    const endpoint = await connectTcp({
      ...messageEndpoint({ pd, bufferBytes: 1024, buffers: 8 }),
      host: '127.0.0.1',
      port,
    });
    const table = RemoteRegion.parse(endpoint.privateData);
    const calls = /** @type {Calls<Store, {}>} */ (await Calls.open(endpoint));
    return new Client(calls, table, new BufferPool(pd, { bufferBytes: 2 * SLOT_BYTES, maxBuffers: 16 }), id);
  }

  /** Where a key's slot is: asked for once. @param {string} key */
  async #slotOf(key) {
    let slot = this.#slots.get(key);
    if (slot === undefined) {
      slot = this.calls.call('slot', { key }).then(({ result }) => result);
      this.#slots.set(key, slot);
    }
    return (await slot) * SLOT_BYTES;
  }

  /**
   * A value, by reading the server's memory: its program does nothing.
   *
   * @param {string} key
   */
  async get(key) {
    const at = await this.#slotOf(key);
    const { endpoint } = this.calls;
    const buffer = await this.pool.acquire();
    try {
      for (;;) {
        // In the order in which they are posted: the slot, then its version once more.
        await Promise.all([
          endpoint.read(buffer.slice(0, SLOT_BYTES), this.table.slice(at, SLOT_BYTES)),
          endpoint.read(buffer.slice(SLOT_BYTES, 8), this.table.slice(at + VERSION, 8)),
        ]);
        const before = buffer.buffer.readBigUInt64LE(VERSION);
        const after = buffer.buffer.readBigUInt64LE(SLOT_BYTES);
        const length = buffer.buffer.readUInt32LE(LENGTH);
        if (before === after && before % 2n === 0n && length <= SLOT_BYTES - VALUE) {
          return Buffer.from(buffer.buffer.subarray(VALUE, VALUE + length));
        }
        this.retries++;
      }
    } finally {
      buffer.release();
    }
  }

  /**
   * @param {string} key
   * @param {string | Buffer} value
   */
  async put(key, value) {
    await this.calls.call('put', { key }, { body: Buffer.from(value) });
  }

  /**
   * Changes a value that nobody else changes meanwhile.
   *
   * @param {string} key
   * @param {(value: Buffer) => string} change
   */
  async update(key, change) {
    const lock = this.table.slice((await this.#slotOf(key)) + LOCK, 8);
    const { endpoint } = this.calls;
    const buffer = await this.pool.acquire();
    try {
      while ((await endpoint.compareAndSwap(buffer.slice(0, 8), lock, 0n, this.id)) !== 0n) await setTimeout(1);
      try {
        await this.put(key, change(await this.get(key)));
      } finally {
        await endpoint.compareAndSwap(buffer.slice(0, 8), lock, this.id, 0n);
      }
    } finally {
      buffer.release();
    }
  }

  async close() {
    await this.calls.close();
    this.pool.close();
  }
}

const [ours, theirs] = [openDevice(process.argv[2]), openDevice(process.argv[3] ?? process.argv[2])];
const server = await Server.listen(ours.allocPd());
const pd = theirs.allocPd();
const ids = [1n, 2n, 3n];
const clients = await Promise.all(ids.map((id) => Client.connect(pd, server.listener.port, id)));
const [first, second] = /** @type {[Client, Client, Client]} */ (clients);

await first.put('colour', 'green');
console.log(`colour is ${await second.get('colour')}`);

// Reads do not disturb the server's program, and never see half of a value, however often it changes.
const calls = server.calls;
for (let i = 0; i < 50; i++) await second.get('colour');
console.log(`50 more reads, ${server.calls - calls} calls of the server`);
const values = ['a'.repeat(200), 'b'.repeat(200)];
await first.put('wild', 'a'.repeat(200));
let seen = 0;
const writing = (async () => {
  for (let i = 0; i < 40; i++) await first.put('wild', values[i % 2] ?? '');
})();
const reading = (async () => {
  for (let i = 0; i < 40; i++) {
    if (!values.includes((await second.get('wild')).toString())) throw new Error('half of a value');
    seen++;
  }
})();
await Promise.all([writing, reading]);
console.log(`${seen} values read while they changed, all of them whole`);

// Each adds one, ten times: without the lock some would be lost.
await first.put('count', '0');
await Promise.all(
  clients.map(async (client) => {
    for (let i = 0; i < 10; i++) await client.update('count', (value) => String(Number(value) + 1));
  }),
);
console.log(`${clients.length} clients have counted to ${await first.get('count')}`);

await Promise.all(clients.map((client) => client.close()));
await server.close();
for (const context of new Set([ours, theirs])) context.close({ cascade: true });
