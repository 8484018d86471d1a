// Stages of connections that a program or a worker is at when it ends.
import { randomInt } from 'node:crypto';
import { connect, createEventChannel, getaddrinfo, listen, openDevice } from '../../../dist/index.js';

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

/** Two endpoints on the two devices, with receives under way where they may keep the process alive. */
async function connected(waits) {
  const [pdA, pdB] = ['rxe0', 'rxe1'].map((name) => openDevice(name).allocPd());
  const listener = await listen({ host: addressB, port: 0 });
  const accepted = listener.getRequest().then((request) => request.accept({ pd: pdB, timeoutMs: 60_000 }));
  const to = { pd: pdA, host: addressB, localAddress: addressA, port: listener.port, timeoutMs: 60_000 };
  const endpoints = await Promise.all([connect(to), accepted]);
  if (waits) for (const endpoint of endpoints) quiet(endpoint.recv());
  return [listener, endpoints];
}

export const cmStages = {
  // Steps under way on the pool and in the kernel, a look-up, and a wait for events.
  'cm-resolving': () => {
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
  'cm-connecting': async () => {
    const listener = await listen({ host: addressB, port: 0 });
    const channel = createEventChannel();
    const ids = [await resolved(channel, listener.port), await resolved(channel, listener.port)];
    // Nobody else's: a request with one that the peer knows ends the connection that has it.
    const steps = ids.map((id) => quiet(id.connect({ qpNum: randomInt(0x80_0000, 0x100_0000) })));
    return [listener, await listener.getRequest(), steps, quiet(listener.getRequest())];
  },
  'cm-connected': () => connected(true),
  'cm-idle': () => connected(false),
};
