// @ts-check
// Pings by the connection manager as rdma-core's own rping does, and with it: either side may be rping.
//   node examples/cm-ping.mjs -s -a ADDRESS            serves one client, as `rping -s` does
//   node examples/cm-ping.mjs -c -a ADDRESS            pings a server
// Options: -p PORT (7174), -C COUNT (10), -S SIZE (64), -I ADDRESS (the client's own)
import { isIPv6 } from 'node:net';
import { parseArgs } from 'node:util';
import { AccessFlags, connect, createEventChannel, listen, openDevice, RemoteRegion } from 'node-rdma';

const { values } = parseArgs({
  options: {
    server: { type: 'boolean', short: 's' },
    client: { type: 'boolean', short: 'c' },
    address: { type: 'string', short: 'a', default: '::' },
    port: { type: 'string', short: 'p', default: '7174' },
    count: { type: 'string', short: 'C', default: '10' },
    size: { type: 'string', short: 'S', default: '64' },
    local: { type: 'string', short: 'I' },
  },
});
const port = Number(values.port);
const access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ;

// A message names a region: address (8 bytes), key (4), size (4), in network byte order.
const MESSAGE = 16;
const LARGEST = 64 * 1024;

/** The messages of one connection: two receives are always posted, each with its own place in memory. */
class Messages {
  /** @type {import('node-rdma').Endpoint} */ endpoint;
  /** @type {import('node-rdma').MemoryRegion} */ memory;
  /** @type {Promise<unknown>[]} */ waiting;
  taken = 0;

  /** @param {import('node-rdma').MemoryRegion} memory @returns {import('node-rdma').MemorySlice[]} */
  static places(memory) {
    return [memory.slice(0, MESSAGE), memory.slice(MESSAGE, MESSAGE)];
  }

  /** @param {import('node-rdma').Endpoint} endpoint @param {import('node-rdma').MemoryRegion} memory */
  constructor(endpoint, memory) {
    this.endpoint = endpoint;
    this.memory = memory;
    this.waiting = [...endpoint.recvs];
  }

  async next() {
    await this.waiting.shift();
    const at = (this.taken++ % 2) * MESSAGE;
    const { buffer } = this.memory;
    const token = {
      addr: `0x${buffer.readBigUInt64BE(at).toString(16)}`,
      rkey: buffer.readUInt32BE(at + 8),
      length: buffer.readUInt32BE(at + 12),
    };
    const again = this.endpoint.recv(this.memory.slice(at, MESSAGE));
    again.catch(() => {}); // The end of the connection shows in the next await.
    this.waiting.push(again);
    return token;
  }

  /** @param {import('node-rdma').RemoteRegionToken} region */
  async send({ addr, rkey, length }) {
    const { buffer } = this.memory;
    buffer.writeBigUInt64BE(BigInt(addr), 2 * MESSAGE);
    buffer.writeUInt32BE(rkey, 2 * MESSAGE + 8);
    buffer.writeUInt32BE(length, 2 * MESSAGE + 12);
    await this.endpoint.send(this.memory.slice(2 * MESSAGE, MESSAGE));
  }
}

async function server() {
  const listener = await listen({ host: values.address, port });
  console.log(`listening on port ${listener.port}`);
  const request = await listener.getRequest();
  const context = openDevice(request.device);
  const pd = context.allocPd();
  const [control, data] = [await pd.alloc(3 * MESSAGE), await pd.alloc(LARGEST)];
  const endpoint = await request.accept({ pd, recvs: () => Messages.places(control) });
  const messages = new Messages(endpoint, control);
  let pings = 0;
  try {
    for (;;) {
      const source = new RemoteRegion(await messages.next());
      await endpoint.read(data.slice(0, source.length), source.slice());
      await messages.send(data.remote());
      const sink = new RemoteRegion(await messages.next());
      await endpoint.write(data.slice(0, source.length), sink.slice(0, source.length));
      await messages.send(data.remote());
      pings++;
    }
  } catch (error) {
    // The client has left.
    if (/** @type {{ statusName?: string }} */ (error).statusName !== 'WR_FLUSH_ERR') throw error;
  }
  console.log(`${pings} pings answered`);
  await endpoint.close();
  await listener.close();
  context.close({ cascade: true });
}

async function client() {
  const [count, size] = [Number(values.count), Number(values.size)];
  const { device, local } = await route();
  const context = openDevice(device);
  const pd = context.allocPd();
  const control = await pd.alloc(3 * MESSAGE);
  const [start, echo] = [await pd.alloc(size, { access }), await pd.alloc(size, { access })];
  const endpoint = await connect({
    pd,
    host: values.address,
    port,
    localAddress: local,
    recvs: () => Messages.places(control),
  });
  const messages = new Messages(endpoint, control);
  for (let i = 0; i < count; i++) {
    start.buffer.fill(0x41 + (i % 26)).fill(0, size - 1);
    start.buffer.write(`rdma-ping-${i}: `);
    await messages.send(start.remote());
    await messages.next();
    await messages.send(echo.remote());
    await messages.next();
    if (!echo.buffer.equals(start.buffer)) throw new Error(`ping ${i}: another echo than what was sent`);
  }
  console.log(`${count} pings of ${size} bytes, echoes checked`);
  await endpoint.close();
  context.close({ cascade: true });
}

/** The device by which the server is reached, and this side's address there. */
async function route() {
  const channel = createEventChannel();
  const id = channel.createId();
  const src = values.local === undefined ? {} : { src: { address: values.local } };
  await id.resolveAddr({ address: values.address, port }, src);
  const found = {
    device: /** @type {string} */ (id.device),
    local: /** @type {string} */ (id.getLocalAddr()?.address),
  };
  channel.close({ cascade: true });
  return found;
}

if (values.client && isIPv6(values.address) && values.address === '::') throw new Error('-c needs -a ADDRESS');
await (values.client ? client() : server());
