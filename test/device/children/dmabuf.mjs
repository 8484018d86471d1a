// A process with a DMA-BUF: hands it to another one and ends, or moves data with it until it is killed.
import { allocDmaHeap, connectFd, createUdmabuf } from '../../../dist/gpu/index.js';
import {
  AccessFlags,
  connectionInfo,
  connectQueuePair,
  openDevice,
  RemoteRegion,
  WrOpcode,
} from '../../../dist/index.js';

const [what, path] = process.argv.slice(2);

if (what === 'export') {
  const dmabufs = [createUdmabuf(65536), allocDmaHeap(65536)];
  for (const dmabuf of dmabufs) dmabuf.cpuAccess('write', (bytes) => bytes.write('of a process that is gone', 5000));
  connectFd(path).send(dmabufs);
} else {
  const access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE;
  const sides = await Promise.all(
    [
      [process.env.DEVICE_A, createUdmabuf(1 << 20)],
      [process.env.DEVICE_B, allocDmaHeap(1 << 20)],
    ].map(async ([device, dmabuf]) => {
      const pd = openDevice(device).allocPd();
      const cq = pd.context.createCq(512);
      const mr = await dmabuf.register(pd, { access });
      return { cq, mr, qp: pd.createQp({ sendCq: cq }) };
    }),
  );
  const [a, b] = sides;
  const [infoA, infoB] = sides.map(({ qp }) => connectionInfo(qp));
  await connectQueuePair(a.qp, infoA, infoB);
  await connectQueuePair(b.qp, infoB, infoA);
  const remote = new RemoteRegion(b.mr.remote());
  for (let i = 0; ; i++) {
    a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(), remote: remote.slice() });
    if (i === 3) console.log('writing');
    if (i >= 3) await a.cq.wait();
  }
}
