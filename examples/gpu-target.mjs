// @ts-check
// A service whose memory on a GPU is written by a peer, one-sided: no copy through the host, and no work for the service. Where
// there is no GPU the memory is ordinary memory, exported as a GPU's would be.
//   node examples/gpu-target.mjs         the service offers memory, and shows what was written into it
//   node examples/gpu-target.mjs HOST    the peer writes
import { AccessFlags, connectTcp, listenTcp, openDevice, RemoteRegion } from 'node-rdma';
import { createUdmabuf, listGpus } from 'node-rdma/gpu';

const host = process.argv[2];
const port = 18520;
const length = 1 << 20;
const access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE;

/** @typedef {{ name: string, via: string, mr: import('node-rdma').MemoryRegion, read: () => Promise<Buffer>, close: () => void }} Target */

/**
 * Memory of the first GPU, and the way that the NIC has to it.
 *
 * @param {import('node-rdma').ProtectionDomain} pd
 * @param {import('node-rdma/gpu').Gpu} gpu
 * @returns {Promise<Target>}
 */
async function onGpu(pd, gpu) {
  const buffer = await gpu.alloc(length);
  const { mr, via } = await buffer.register(pd, { access });
  const read = async () => {
    const bytes = Buffer.alloc(length);
    await buffer.copyTo(bytes);
    return bytes;
  };
  return { name: gpu.name, via, mr, read, close: () => buffer.close({ cascade: true }) };
}

/**
 * @param {import('node-rdma').ProtectionDomain} pd
 * @returns {Promise<Target>}
 */
async function onHost(pd) {
  const dmabuf = createUdmabuf(length);
  const mr = await dmabuf.register(pd, { access });
  const read = async () => dmabuf.cpuAccess('read', (bytes) => Buffer.from(bytes));
  return { name: 'udmabuf', via: 'dmabuf', mr, read, close: () => dmabuf.close() };
}

async function service() {
  const [gpu] = listGpus();
  // The NIC that is nearest to the GPU, unless NODE_RDMA_DEVICE names another.
  const nic = process.env.NODE_RDMA_DEVICE ?? gpu?.nearestNics()[0]?.name;
  const context = openDevice(nic);
  const pd = context.allocPd();
  const target = await (gpu ? onGpu(pd, gpu) : onHost(pd));
  console.log(`memory of ${target.name}, registered by ${target.via}`);
  const listener = await listenTcp({ pd, port, privateData: JSON.stringify(target.mr.remote()) });

  const endpoint = await listener.accept();
  // A write goes unnoticed here, so the peer sends an empty message behind it.
  await endpoint.recv();
  const bytes = await target.read();
  console.log(`written into it: ${bytes.toString('utf8', 0, bytes.indexOf(0))}`);

  await endpoint.close();
  await listener.close();
  target.mr.close();
  target.close();
  context.close({ cascade: true });
}

/** @param {string} host */
async function peer(host) {
  const context = openDevice();
  const pd = context.allocPd();
  const mr = await pd.alloc(4096);
  const endpoint = await connectTcp({ pd, host, port });
  const remote = RemoteRegion.parse(endpoint.privateData);

  const count = mr.buffer.write('Straight into the memory of the device!');
  await endpoint.write(mr.slice(0, count), remote.slice(0, count));
  console.log(`${count} bytes written`);

  await endpoint.send();
  await endpoint.close();
  context.close({ cascade: true });
}

await (host === undefined ? service() : peer(host));
