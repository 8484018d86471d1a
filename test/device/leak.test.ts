import { closeSync, ftruncateSync, openSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import {
  AccessFlags,
  importDevice,
  Mlx5dvDcType,
  MwType,
  mlx5dv,
  openDevice,
  type QpAttr,
  QpState,
  WrOpcode,
} from '../../lib/index.ts';
import {
  collect,
  completion,
  descriptors,
  deviceA,
  expectNoLeaks,
  initAttr,
  isRxe,
  isSanitized,
  openSide,
  Pair,
  thrown,
} from './fixture.ts';

expectNoLeaks();

// The sanitizers find at once what is wrong with a single one.
const CYCLES = isRxe ? 16 : isSanitized ? 100 : 10_000;
// Of what takes many times as long.
const FEWER = Math.max(CYCLES / 10, 8);
// What the allocators wander by.
const SLACK = 8 << 20;
// After a collection: a hundred bytes for each of 5,000 cycles would be as much.
const HEAP_SLACK = 1 << 19;

// A file without a name: stands for a DMA-BUF. node:fs has no constant for O_TMPFILE.
const O_TMPFILE_RDWR = 0o20200002;

const middle = (values: number[]): number => values.sort((x, y) => x - y)[values.length >> 1]!;

/** Runs a cycle many times; fails when more memory or descriptors are taken at the end than after the first quarter. */
async function expectFlat(cycles: number, cycle: (i: number) => void | Promise<void>): Promise<void> {
  // Collecting takes as long as many cycles in an emulated VM.
  const every = Math.max(Math.floor(cycles / (isRxe ? 4 : 20)), 1);
  const samples: { rss: number; heapUsed: number; fds: number }[] = [];
  for (let i = 0; i < cycles; i++) {
    await cycle(i);
    if ((i + 1) % every !== 0) continue;
    // Finalizers run on the event loop.
    await collect();
    samples.push({ ...process.memoryUsage(), fds: descriptors() });
  }
  const quarter = samples.length >> 2;
  const growth = (name: 'rss' | 'heapUsed' | 'fds'): number => {
    const values = samples.map((sample) => sample[name]);
    return middle(values.slice(-quarter)) - middle(values.slice(quarter, 2 * quarter));
  };
  expect(growth('fds'), 'growth of the number of descriptors').toBeLessThanOrEqual(0);
  expect(growth('heapUsed'), 'growth of the heap of JavaScript').toBeLessThan(HEAP_SLACK);
  if (!isSanitized) expect(growth('rss'), 'growth of the resident memory').toBeLessThan(SLACK);
}

describe(`${CYCLES} times`, { timeout: 240_000 }, () => {
  it('an object of every kind is made and closed', async () => {
    const context = openDevice(deviceA);
    const cq = context.createCq(16);
    const { gid, gidIndex } = context.selectGid();
    await expectFlat(CYCLES, () => {
      const domain = context.allocPd();
      const channel = context.createCompChannel();
      const queue = context.createCq(16, { channel });
      const extended = context.createCqEx(16, { channel });
      extended.resizeSync(600);
      extended.poll();
      const mr = domain.allocSync(4096);
      const qp = domain.createQp({ sendCq: queue, recvCq: cq, cap: { maxSendWr: 4, maxRecvWr: 4 } });
      qp.modifySync(initAttr());
      qp.postRecv({ sgList: mr.slice() });
      const srq = domain.createSrq({ maxWr: 4 });
      srq.postRecv({ sgList: mr.slice() });
      const ah = domain.createAh({ grh: { dgid: gid, sgidIndex: gidIndex } });
      const mw = domain.allocMw(MwType.MW_TYPE_2);
      for (const resource of [mw, ah, srq, qp, mr, queue, extended, channel, domain]) resource.close();
    });
    context.close({ cascade: true });
  });

  it('a queue pair and a completion queue of each kind of libmlx5 is made and closed', async () => {
    const context = openDevice(deviceA);
    const pd = context.allocPd();
    const cq = context.createCq(64);
    const srq = pd.createSrq({ maxWr: 4 });
    const { gid, gidIndex } = context.selectGid();
    const { DCI, DCT } = Mlx5dvDcType;
    const cap = { maxSendWr: 4 };
    await expectFlat(CYCLES / 4, () => {
      // Where there are none it costs nothing to be told so.
      if (isRxe) {
        thrown(() => mlx5dv.createQp(pd, { sendCq: cq, cap }, { dcType: DCI }));
        thrown(() => mlx5dv.createCq(context, 16));
        return;
      }
      const dct = mlx5dv.createQp(pd, { sendCq: cq, srq }, { dcType: DCT, dctAccessKey: 1n });
      dct.modifySync(initAttr());
      const ahAttr = { grh: { dgid: gid, sgidIndex: gidIndex } };
      dct.modifySync({ qpState: QpState.RTR, pathMtu: 3, minRnrTimer: 12, ahAttr });
      const dci = mlx5dv.createQp(pd, { sendCq: cq, cap }, { dcType: DCI });
      dci.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 1 });
      const queue = mlx5dv.createCq(context, 16, {}, { cqeSize: 128 });
      thrown(() => mlx5dv.createQp(pd, { sendCq: cq, cap }, { createFlags: 0x40 }));
      for (const resource of [queue, dci, dct]) resource.close();
    });
    context.close({ cascade: true });
  });

  it('memory of the caller is registered and deregistered', async () => {
    const context = openDevice(deviceA);
    const pd = context.allocPd();
    const memory = Buffer.alloc(4096);
    await expectFlat(CYCLES, (i) => {
      pd.regMrSync(i % 2 === 0 ? memory : new Uint8Array(2048)).close();
    });
    await expectFlat(FEWER, async () => {
      const [registered, allocated] = await Promise.all([pd.regMr(memory), pd.alloc(4096)]);
      registered.close();
      allocated.close();
    });
    context.close({ cascade: true });
  });

  // The provider of Soft-RoCE has none of them.
  if (!isRxe)
    it('a region of every other kind is made, registered anew and closed', async () => {
      const context = openDevice(deviceA);
      const pd = context.allocPd();
      const other = context.allocPd();
      const fd = openSync('/dev/shm', O_TMPFILE_RDWR);
      ftruncateSync(fd, 4096);
      const all = pd.regImplicitMr();
      const imported = importDevice(context.cmdFd);
      const memory = Buffer.alloc(4096);
      await expectFlat(CYCLES, (i) => {
        const first = pd.allocSync(4096);
        const second = first.reregSync({ memory: i % 2 === 0 ? memory : new Uint8Array(100) });
        const third = second.reregSync({ pd: other, access: 0 });
        const covered = all.cover(memory);
        const nothing = pd.allocNullMr();
        const byAddress = pd.regMrAddressSync(covered.addr, 4096);
        for (const resource of [third, covered, nothing, byAddress]) resource.close();
        const dm = context.allocDm({ length: 64 });
        const inDevice = pd.regDmMr(dm);
        const td = context.allocTd();
        const parent = pd.allocParentDomain({ td });
        const byFd = pd.regDmabufMrSync(fd, { length: 4096 });
        const theirPd = imported.importPd(pd.nativeHandle);
        const theirMr = theirPd.importMr(byFd.nativeHandle);
        const theirDm = imported.importDm(dm.nativeHandle, dm.length);
        for (const r of [theirDm, theirMr, theirPd, byFd, parent, td, inDevice, dm]) r.close();
      });
      await expectFlat(CYCLES / 20, () => importDevice(context.cmdFd).close());
      await expectFlat(FEWER, async () => {
        const first = await pd.alloc(4096);
        const second = await first.rereg({ memory });
        second.close();
        (await pd.regDmabufMr(fd, { length: 4096 })).close();
      });
      closeSync(fd);
      imported.close();
      context.close({ cascade: true });
    });

  it('objects cannot be made', async () => {
    const { context, pd, cq, qp, mr } = openSide(deviceA);
    const wide = context.createCq(16, { channel: null, allowOverrun: true });
    const access = AccessFlags.REMOTE_WRITE;
    const failures: (() => unknown)[] = [
      () => openDevice('none0'),
      () => context.createCq(0x7fff_ffff, { channel: null }),
      () => pd.allocSync(4096, { access }),
      () => pd.regMrSync(Buffer.alloc(64), { access }),
      () => pd.createQp({ sendCq: wide, cap: { maxSendWr: 1 << 24 } }),
      () => pd.createQp({ sendCq: cq, cap: { maxSendWr: 1024 } }),
      () => pd.createQp({ sendCq: cq, cap: { maxSendWr: -1 } }),
      () => qp.modifySync({ qpState: QpState.RTS } as QpAttr),
      () => qp.postSend({ opcode: WrOpcode.SEND }),
      () => pd.close(),
    ];
    await expectFlat(CYCLES / 2, () => {
      for (const failure of failures) thrown(failure);
    });
    expect(mr.closed).toBe(false);
    context.close({ cascade: true });
  });

  it('a device is opened, used and closed', async () => {
    // Opening takes longer than all else, so it is done less often.
    await expectFlat(Math.max(CYCLES / 20, 4), () => {
      const { context, mr, qp } = openSide(deviceA);
      qp.modifySync(initAttr());
      qp.postRecv({ sgList: mr.slice() });
      context.close({ cascade: true });
    });
  });

  it('a message is sent by each way of posting', async () => {
    using pair = await Pair.connect();
    const { a, b, remote } = pair;
    const wr = { opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: remote.slice() };
    const prepared = a.qp.prepareSend(wr);
    await expectFlat(CYCLES, async (i) => {
      if (i % 3 === 0) a.qp.postSend(wr);
      else if (i % 3 === 1) a.qp.postSend([{ ...wr, sgList: a.mr.slice(8, 8) }]);
      else prepared.post();
      await completion(a.cq);
    });
    await expectFlat(FEWER, async () => {
      a.qp.prepareSend([wr, wr]).set(1, wr);
      b.qp.prepareRecv({}).setWrId(0, 1);
    });
  });
});
