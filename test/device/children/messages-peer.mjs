// Messages on device B: sends and takes without end, until somebody kills it.
import { listenTcp, Messages, messageEndpoint, openDevice } from '../../../dist/index.js';

const pd = openDevice(process.env.DEVICE_B).allocPd();
const how = { host: '127.0.0.1', timeout: 10, retryCnt: 3 };
const listener = await listenTcp({ ...messageEndpoint({ pd, bufferBytes: 1024, buffers: 8 }), ...how, port: 0 });
console.log(listener.port);
const messages = await Messages.open(await listener.accept(), { timeoutMs: 60_000 });
const sizes = [10, 50_000, 1000, 200_000];
const sending = (async () => {
  for (let i = 0; ; i++) await messages.send(Buffer.alloc(sizes[i % 4], i));
})();
for await (const message of messages) message.release();
await sending;
