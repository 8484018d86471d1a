// A peer that is killed: listens by the connection manager, over TCP, and for messages, and tells the three ports. Accepts a
// connection by each, in this order; receives nothing on the first two, and sends and takes messages without end on the third.
import { listen, listenTcp, Messages, messageEndpoint, openDevice } from '../../../dist/index.js';

const pd = openDevice(process.env.DEVICE_B).allocPd();
const host = '127.0.0.1';
const byCm = await listen({ host: '10.78.0.2', port: 0 });
const byTcp = await listenTcp({ pd, host, port: 0, minRnrTimer: 1 });
const how = { host, port: 0, timeout: 15, retryCnt: 6 };
const forMessages = await listenTcp({ ...messageEndpoint({ pd, bufferBytes: 1024, buffers: 8 }), ...how });
process.stdout.write(`${byCm.port} ${byTcp.port} ${forMessages.port}\n`);
const request = await byCm.getRequest();
globalThis.kept = await Promise.all([request.accept({ pd, timeoutMs: 60_000 }), byTcp.accept()]);
const messages = await Messages.open(await forMessages.accept(), { timeoutMs: 60_000 });
const sizes = [10, 50_000, 1000, 200_000];
const sending = (async () => {
  for (let i = 0; ; i++) await messages.send(Buffer.alloc(sizes[i % 4], i));
})();
for await (const message of messages) message.release();
await sending;
