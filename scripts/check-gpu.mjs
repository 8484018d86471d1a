#!/usr/bin/env node
// npm run test:gpu: what test/device/gpu.test.ts asks of libraries that stand in for drivers, asked of the GPUs of this machine, with
// its RDMA devices. Says what was checked and what could not be; fails only where something that is there does not work.

import { randomBytes } from 'node:crypto';
import { whenMain } from './shell.mjs';

const count = { passed: 0, failed: 0, unchecked: 0 };

const unchecked = (what, why) => {
  count.unchecked++;
  console.log(`- not checked: ${what}: ${why}`);
};

async function check(what, work) {
  try {
    const more = await work();
    count.passed++;
    console.log(`✓ ${what}${more ? `: ${more}` : ''}`);
  } catch (error) {
    count.failed++;
    console.log(`✗ ${what}: ${error.stack}`);
  }
}

function same(a, b) {
  if (!a.equals(b)) throw new Error('the bytes differ');
}

const LENGTH = 300_000;

async function withMemory(alloc, work) {
  const buffer = await alloc();
  try {
    return await work(buffer);
  } finally {
    buffer.close({ cascade: true });
  }
}

async function checkMemory(what, alloc) {
  const { adoptGpuMemory } = await import('../dist/gpu/index.js');
  await check(`${what}: copies to and from the host, whole and in part`, () =>
    withMemory(alloc, async (buffer) => {
      const bytes = randomBytes(LENGTH);
      await buffer.copyFrom(bytes);
      await buffer.copyFrom(bytes.subarray(0, 1001), 70_001);
      bytes.copy(bytes, 70_001, 0, 1001);
      const back = Buffer.alloc(LENGTH);
      await buffer.copyTo(back);
      same(back, bytes);
    }),
  );
  await check(`${what}: adopted by its address, and left to its owner`, () =>
    withMemory(alloc, async (buffer) => {
      const bytes = randomBytes(4096);
      const adopted = await adoptGpuMemory(buffer.gpu.vendor, buffer.address + 65_536n, 4096);
      await adopted.copyFrom(bytes);
      adopted.close();
      const back = Buffer.alloc(4096);
      await buffer.copyTo(back, 65_536);
      same(back, bytes);
    }),
  );
}

async function checkExport(what, alloc) {
  await check(`${what}: exported as a DMA-BUF`, () =>
    withMemory(alloc, async (buffer) => {
      const { dmabuf, offset } = buffer.exportDmabuf();
      const { length, exporter, fd } = dmabuf;
      if (offset + LENGTH > length) throw new Error(`${length} bytes, where offset ${offset} and ${LENGTH} need more`);
      dmabuf.close();
      return `fd ${fd} of ${exporter ?? 'an exporter unknown'}, ${length} bytes, offset ${offset}`;
    }),
  );
}

async function checkDevice(what, alloc, device) {
  const { AccessFlags, connectionInfo, connectQueuePair, openDevice, RemoteRegion, WrOpcode } = await import(
    '../dist/index.js'
  );
  const context = openDevice(device);
  const pd = context.allocPd();
  const cq = context.createCq(512);
  await check(`${what}, ${device}: registered, written and read`, () =>
    withMemory(alloc, async (buffer) => {
      const access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ;
      const { mr, via, refused } = await buffer.register(pd, { access });
      const [a, b] = [pd.createQp({ sendCq: cq }), pd.createQp({ sendCq: cq })];
      const [infoA, infoB] = [connectionInfo(a), connectionInfo(b)];
      await connectQueuePair(a, infoA, infoB);
      await connectQueuePair(b, infoB, infoA);
      const host = await pd.alloc(LENGTH);
      const remote = new RemoteRegion(mr.remote());
      const transfer = async (opcode) => {
        a.postSend({ opcode, sgList: host.slice(), remote: remote.slice() });
        await cq.wait({ signal: AbortSignal.timeout(20_000) });
        const { status } = cq.at(0);
        if (status !== 0) throw new Error(`the request ended with status ${status}`);
      };
      const sent = randomBytes(LENGTH);
      host.buffer.set(sent);
      await transfer(WrOpcode.RDMA_WRITE);
      const back = Buffer.alloc(LENGTH);
      await buffer.copyTo(back);
      same(back, sent);
      const written = randomBytes(LENGTH);
      await buffer.copyFrom(written);
      await transfer(WrOpcode.RDMA_READ);
      same(host.buffer, written);
      a.close();
      b.close();
      return `via ${via}${refused.map(({ message }) => ` (refused: ${message})`).join('')}`;
    }),
  );
  context.close({ cascade: true });
}

function deviceNames(getDeviceList) {
  try {
    return getDeviceList().map(({ name }) => name);
  } catch (error) {
    unchecked('RDMA', error.message);
    return [];
  }
}

await whenMain(import.meta.url, async () => {
  const { gpuDrivers, listGpus } = await import('../dist/gpu/index.js');
  const { getDeviceList } = await import('../dist/index.js');
  for (const { vendor, available, detail } of gpuDrivers()) {
    if (!available) unchecked(`GPUs of ${vendor}`, detail);
    else if (!listGpus().some((gpu) => gpu.vendor === vendor)) unchecked(`GPUs of ${vendor}`, 'the driver has none');
  }
  const devices = deviceNames(getDeviceList);
  for (const gpu of listGpus()) {
    const kinds = [['memory', () => gpu.alloc(LENGTH)]];
    if (gpu.virtualMemory) kinds.push(['virtual memory', () => gpu.alloc(LENGTH, { virtualMemory: true })]);
    else unchecked(`${gpu.name} (${gpu.pciAddress}), virtual memory`, 'its driver does not let a NIC at it');
    for (const [kind, alloc] of kinds) {
      const what = `${gpu.name} (${gpu.pciAddress}), ${kind}`;
      await checkMemory(what, alloc);
      if (gpu.dmabuf) await checkExport(what, alloc);
      else unchecked(`${what}: DMA-BUF`, gpu.missing);
      if (devices.length === 0) unchecked(`${what}: registration and transfer`, 'no RDMA device');
      for (const device of devices) await checkDevice(what, alloc, device);
    }
  }
  console.log(`${count.passed} passed, ${count.failed} failed, ${count.unchecked} not checked`);
  if (count.failed > 0) process.exitCode = 1;
});
