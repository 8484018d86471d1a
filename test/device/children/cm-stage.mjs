// Goes to a stage of a connection, then ends in the way it is told, as a program or as a worker: cm-stage.mjs <stage> <end>.
import { randomInt } from 'node:crypto';
import { isMainThread, parentPort } from 'node:worker_threads';
import { connect, createEventChannel, getaddrinfo, listen, openDevice } from '../../../dist/index.js';

const [stage, end] = process.argv.slice(2);
const [addressA, addressB] = ['10.78.0.1', '10.78.0.2'];
const quiet = (promise) => {
  promise.catch(() => {});
  return promise;
};

async function resolved(channel, port) {
  const id = channel.createId();
  await id.resolveAddr({ address: addressB, port }, { src: { address: addressA } });
  await id.resolveRoute();
  return id;
}

const stages = {
  // Steps under way on the pool and in the kernel, a look-up, and a wait for events.
  resolving: () => {
    const channel = createEventChannel();
    const [first, second] = [channel.createId(), channel.createId()];
    return [
      quiet(first.resolveAddr({ address: addressB, port: 9 })),
      quiet(resolved(channel, 9)),
      quiet(second.bindAddr({ address: addressA })),
      quiet(getaddrinfo(addressB, 9)),
      quiet(channel.getEvent()),
    ];
  },
  // A request that was taken, one that waits in the kernel, and their clients.
  connecting: async () => {
    const listener = await listen({ host: addressB, port: 0 });
    const channel = createEventChannel();
    const ids = [await resolved(channel, listener.port), await resolved(channel, listener.port)];
    // Nobody else's: a request with one that the peer knows ends the connection that has it.
    const steps = ids.map((id) => quiet(id.connect({ qpNum: randomInt(0x80_0000, 0x100_0000) })));
    return [listener, await listener.getRequest(), steps, quiet(listener.getRequest())];
  },
  // Two endpoints with receives under way.
  connected: async () => {
    const [pdA, pdB] = [process.env.DEVICE_A ?? 'rxe0', process.env.DEVICE_B ?? 'rxe1'].map((name) =>
      openDevice(name).allocPd(),
    );
    const listener = await listen({ host: addressB, port: 0 });
    const accepted = listener.getRequest().then((request) => request.accept({ pd: pdB, timeoutMs: 60_000 }));
    const to = { pd: pdA, host: addressB, localAddress: addressA, port: listener.port, timeoutMs: 60_000 };
    const endpoints = await Promise.all([connect(to), accepted]);
    if (end !== 'nothing') for (const endpoint of endpoints) quiet(endpoint.recv());
    return [listener, endpoints];
  },
};

globalThis.kept = await stages[stage]();
if (isMainThread) process.stdout.write(`at ${stage}\n`);
else parentPort.postMessage(stage);
if (end === 'exit') process.exit(7);
if (end === 'throw') {
  setImmediate(() => {
    throw new Error('deliberate');
  });
}
// The test ends it.
if (end === 'signal') setInterval(() => {}, 1000);
