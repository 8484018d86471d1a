// Has memory of a GPU, and regions of it, and ends without closing any.
import { adoptGpuMemory, listGpus } from '../../../dist/gpu/index.js';
import { openDevice } from '../../../dist/index.js';

const [end] = process.argv.slice(2);

async function open() {
  const pd = openDevice(process.env.DEVICE_A).allocPd();
  for (const gpu of listGpus()) {
    const buffer = await gpu.alloc(100_000);
    await buffer.register(pd);
    await (await adoptGpuMemory(gpu.vendor, buffer.address, 4096)).register(pd);
  }
}

await open();
if (end === 'throw') throw new Error('deliberate');
if (end === 'exit') process.exit(7);
if (end === 'collect') {
  for (let i = 0; i < 6; i++) {
    globalThis.gc();
    await new Promise((resolve) => setImmediate(resolve));
  }
  console.log('collected');
}
