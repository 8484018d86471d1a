// Two ends of a connection, an id and a listener on a device that is removed meanwhile: node removed.mjs <device> <address>.
// Says "ready"; and when all could be closed, as JSON, what the ends and the id were told.
import { connect, createEventChannel, listen, openDevice } from '../../../dist/index.js';

const [device, host] = process.argv.slice(2);
const pd = openDevice(device).allocPd();
const mr = pd.allocSync(4096);
const listener = await listen({ host, port: 0 });
const accepted = listener.getRequest().then((request) => request.accept({ pd, timeoutMs: 60_000 }));
const to = { pd, host, localAddress: host, port: listener.port, timeoutMs: 60_000 };
const ends = await Promise.all([connect(to), accepted]);
const received = ends[1].recv(mr.slice(0, 64)).then(
  () => 'a message',
  (error) => error.name,
);
// One step by step, whose events nobody has asked for.
const channel = createEventChannel();
const id = channel.createId();
await id.resolveAddr({ address: host, port: 9 }, { src: { address: host } });
const event = channel.getEvent();
console.log('ready');

const reasons = await Promise.all(ends.map(({ closed }) => closed));
const { type } = await event;
const told = { reasons: reasons.map(({ code }) => code), received: await received, event: type };
for (const end of ends) await end.close();
await listener.close();
id.close();
channel.close();
mr.close();
pd.close();
pd.context.close();
console.log(JSON.stringify(told));
// librdmacm keeps the device open for as long as the process lives, and the kernel waits for that.
