// @ts-check
// Writes into the memory of another process.
//   node examples/write.mjs         the server offers memory, and shows what was written into it
//   node examples/write.mjs HOST    the client writes
import { AccessFlags, connectTcp, listenTcp, openDevice, RemoteRegion } from 'node-rdma';

const host = process.argv[2];
const port = 18515;
const context = openDevice();
const pd = context.allocPd();

async function server() {
  const mr = await pd.alloc(4096, { access: AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE });
  const listener = await listenTcp({ pd, port, privateData: JSON.stringify(mr.remote()) });
  console.log(`listening on port ${port}`);

  const endpoint = await listener.accept();
  // A write goes unnoticed here, so the client sends an empty message behind it.
  await endpoint.recv();
  console.log(`written into my memory: ${mr.buffer.toString('utf8', 0, mr.buffer.indexOf(0))}`);

  await endpoint.close();
  await listener.close();
}

/** @param {string} host */
async function client(host) {
  const mr = await pd.alloc(4096);
  const endpoint = await connectTcp({ pd, host, port });
  const remote = RemoteRegion.parse(endpoint.privateData);

  const length = mr.buffer.write('Hello from the other side!');
  await endpoint.write(mr.slice(0, length), remote.slice(0, length));
  console.log(`${length} bytes written`);

  await endpoint.send();
  await endpoint.close();
}

await (host === undefined ? server() : client(host));
context.close({ cascade: true });
