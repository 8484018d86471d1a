// One side of the measurement of messages and streams, a process: node message_side.mjs '{"role": "server" | "client", ...}'.
// The server prints its port, the client the results, as JSON: units of 2^20 bytes a second, one way.

import { once } from 'node:events';
import net from 'node:net';
import { AccessFlags, connectTcp, listenTcp, Messages, messageEndpoint, openDevice, RdmaSocket } from 'node-rdma';

const { role, device, gidIndex, port, bandwidthBytes: bytes, iterations } = JSON.parse(process.argv[2]);
const isClient = role === 'client';
// Messages under way, so that the wire is never idle.
const WINDOW = 4;
const WARM_UP = 32;

const context = openDevice(device);
const pd = context.allocPd();
const ours = addressOf(context);
const options = { ...messageEndpoint({ pd, bufferBytes: 262_144, buffers: 16 }), gidIndex };

/** An RDMA device's address, for TCP over the same interface. */
function addressOf(context) {
  return context.selectGid().gid.replace('::ffff:', '');
}

const mebibytes = (count, ms) => (count * bytes) / 2 ** 20 / (ms / 1000);

async function sendMessages(messages, count) {
  const mr = await pd.alloc(bytes, { access: AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ });
  const window = [];
  for (let i = 0; i < count; i++) {
    if (window.length === WINDOW) await window.shift();
    window.push(messages.send(mr.slice()));
  }
  await Promise.all(window);
}

async function takeMessages(messages, count) {
  while (count-- > 0) {
    const message = await messages.receive();
    if (message.byteLength !== bytes) throw new Error(`a message of ${message.byteLength} bytes`);
    message.release();
  }
}

/** Writes as a program does that heeds the push back. */
async function write(stream, count) {
  const chunk = Buffer.alloc(bytes);
  for (let i = 0; i < count; i++) if (!stream.write(chunk)) await once(stream, 'drain');
}

/** Reads all, and says one byte when so many have come. */
function take(stream, marks) {
  let read = 0;
  stream.on('data', (chunk) => {
    read += chunk.length;
    while (marks.length > 0 && read >= marks[0] * bytes) {
      marks.shift();
      stream.write('.');
    }
  });
  stream.on('end', () => stream.end());
}

async function measure(stream) {
  let said = once(stream, 'data');
  await write(stream, WARM_UP);
  await said;
  said = once(stream, 'data');
  const start = performance.now();
  await write(stream, iterations);
  await said;
  const rate = mebibytes(iterations, performance.now() - start);
  stream.resume().end();
  await once(stream, 'close');
  return rate;
}

if (isClient) {
  const results = {};
  const report = (name, rate) => {
    results[name] = { best: rate, typical: rate };
  };
  const to = { ...options, host: '127.0.0.1', port };
  const messages = await Messages.open(await connectTcp(to));
  const peer = messages.endpoint.privateData.toString().split(' ');
  await sendMessages(messages, WARM_UP);
  const start = performance.now();
  await sendMessages(messages, iterations);
  report('messageBw', mebibytes(iterations, performance.now() - start));
  await messages.close();

  report('streamBw', await measure(await RdmaSocket.open(await connectTcp(to))));

  const socket = net.connect({ host: peer[0], port: Number(peer[1]), localAddress: ours });
  await once(socket, 'connect');
  report('tcpBw', await measure(socket));
  console.log(JSON.stringify(results));
} else {
  const server = net.createServer((socket) => take(socket, [WARM_UP, WARM_UP + iterations]));
  const connected = once(server, 'connection');
  server.listen(0, ours);
  await once(server, 'listening');
  const privateData = `${ours} ${server.address().port}`;
  const listener = await listenTcp({ ...options, host: '127.0.0.1', port: 0, privateData });
  console.log(String(listener.port));

  const messages = await Messages.open(await listener.accept());
  await takeMessages(messages, WARM_UP + iterations);
  await messages.close();

  const stream = await RdmaSocket.open(await listener.accept());
  take(stream, [WARM_UP, WARM_UP + iterations]);
  await once(stream, 'close');

  const [socket] = await connected;
  if (!socket.closed) await once(socket, 'close');
  server.close();
  await listener.close();
}
context.close({ cascade: true });
