// Has memory of a GPU, and regions of it, and ends without closing any; or says what came of what it tried.
import { closeSync, openSync, readdirSync, readFileSync } from 'node:fs';
import * as gpu from '../../../dist/gpu/index.js';
import { openDevice } from '../../../dist/index.js';

const { adoptGpuMemory, listGpus } = gpu;

const [end] = process.argv.slice(2);

async function open() {
  const pd = openDevice(process.env.DEVICE_A).allocPd();
  for (const gpu of listGpus()) {
    const buffer = await gpu.alloc(100_000);
    await buffer.register(pd);
    await (await adoptGpuMemory(gpu.vendor, buffer.address, 4096)).register(pd);
  }
}

/** What a call gives, or the code of its error. */
async function outcome(call) {
  try {
    return (await call()) ?? 'ok';
  } catch (error) {
    return error.code;
  }
}

/** What is there of drivers, and what can be done with each GPU. */
async function drivers() {
  const gpus = [];
  for (const each of listGpus()) {
    const buffer = await each.alloc(4096);
    const { mr, via } = await buffer.register(openDevice(process.env.DEVICE_A).allocPd());
    const virtual = await outcome(() => each.alloc(4096, { virtualMemory: true }));
    gpus.push({ missing: each.missing, virtual, via });
    mr.close();
    buffer.close();
  }
  return { drivers: gpu.gpuDrivers(), gpus };
}

/** What all say that take a descriptor where none is left, and then again. */
async function descriptors() {
  const pd = openDevice(process.env.DEVICE_A).allocPd();
  const [first] = listGpus();
  const buffer = await first.alloc(4096);
  const { dmabuf } = buffer.exportDmabuf();
  const { fd } = dmabuf;
  const name = `\0node-rdma-${process.pid}`;
  const listener = gpu.listenFd(name);
  const here = gpu.connectFd(name);
  const there = await listener.accept();
  const waiting = gpu.connectFd(name);
  here.send([fd]);
  const soon = () => ({ signal: AbortSignal.timeout(10_000) });
  const close = (open) => void open.close();
  const register = async () => (await dmabuf.register(pd)).close();
  const accept = async () => (await listener.accept(soon())).close();
  const gpuRegister = async () => {
    const { mr, via } = await buffer.register(pd);
    mr.close();
    return via;
  };
  await register();
  const before = readdirSync('/proc/self/fd').length;
  const all = [];
  while ((await outcome(() => void all.push(openSync('/dev/null')))) === 'ok');
  const calls = {
    ...{ register, accept, gpuRegister },
    openDmabuf: () => close(gpu.openDmabuf(fd)),
    createUdmabuf: () => close(gpu.createUdmabuf(4096)),
    getDmabuf: () => close(gpu.getDmabuf(process.pid, fd)),
    importDmabuf: async () => close(await gpu.importDmabuf(pd, fd)),
    connectFd: () => close(gpu.connectFd(name)),
    listenFd: () => close(gpu.listenFd(`${name}-2`)),
    receive: () => there.receive(soon()),
    exportDmabuf: () => close(buffer.exportDmabuf().dmabuf),
    alloc: async () => close(await first.alloc(4096)),
  };
  const without = {};
  for (const [name, call] of Object.entries(calls)) without[name] = await outcome(call);
  for (const each of all) closeSync(each);
  const again = {};
  for (const [name, call] of Object.entries({ register, accept, gpuRegister })) again[name] = await outcome(call);
  const left = readdirSync('/proc/self/fd').length - before;
  for (const open of [listener, here, there, waiting]) open.close();
  return { without, again, left };
}

if (end === 'drivers' || end === 'descriptors') {
  console.log(JSON.stringify(await (end === 'drivers' ? drivers() : descriptors())));
  process.exit(0);
}
await open();
if (end === 'throw') throw new Error('deliberate');
if (end === 'exit') process.exit(7);
if (end === 'collect') {
  for (let i = 0; i < 6; i++) {
    globalThis.gc();
    await new Promise((resolve) => setImmediate(resolve));
  }
  const log = readFileSync(process.env.STAND_IN_LOG, 'utf8');
  console.log(`collected, ${log.match(/^(cuMemFree|hsa_amd_memory_pool_free)/gm)?.length} freed`);
}
