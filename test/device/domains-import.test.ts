/** Thread and parent domains; a device, and what was made on it, imported by descriptor and handle. */
import { closeSync, openSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { importDevice, openDevice, QpState, RemoteRegion, WcStatus, WrOpcode } from '../../lib/index.ts';
import {
  ALL_ACCESS,
  completion,
  completions,
  connectSides,
  deviceA,
  deviceB,
  expectNoLeaks,
  fill,
  initAttr,
  isRxe,
  openSide,
  Pair,
  thrown,
  unsupported,
} from './fixture.ts';

expectNoLeaks();

describe('pd.allocParentDomain', () => {
  it.each([true, false])('makes a domain for everything (with a thread domain: %s)', async (isThreaded) => {
    const a = openSide(deviceA);
    const b = openSide(deviceB);
    if (isRxe) {
      expect(thrown(() => b.context.allocTd())).toMatchObject(unsupported('ibv_alloc_td'));
      expect(thrown(() => b.pd.allocParentDomain())).toMatchObject(unsupported('ibv_alloc_parent_domain'));
    } else {
      const td = isThreaded ? b.context.allocTd() : undefined;
      const parent = b.pd.allocParentDomain(td ? { td } : {});
      expect([parent.pd, parent.td, parent.nativeHandle]).toEqual([b.pd, td, b.pd.nativeHandle]);
      const qp = parent.createQp({ sendCq: b.cq, cap: { maxSendWr: 16, maxRecvWr: 16 } });
      const mr = parent.allocSync(4096, { access: ALL_ACCESS });
      const srq = parent.createSrq();
      expect([qp.pd, mr.pd, srq.pd]).toEqual([b.pd, b.pd, b.pd]);
      await connectSides(a, { ...b, qp });
      // Requests mix regions of both.
      const sent = fill(a.mr.buffer.subarray(0, 64), 8);
      qp.postRecv([{ sgList: mr.slice(0, 64) }, { sgList: b.mr.slice(0, 64) }]);
      expect(thrown(() => mr.close())).toMatchObject({ code: 'EBUSY', message: /1 work request/ });
      for (let i = 0; i < 2; i++) a.qp.postSend({ opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 64) });
      for (const wc of await completions(b.cq, 2)) expect(wc).toMatchObject({ status: WcStatus.SUCCESS, byteLen: 64 });
      expect(mr.buffer.subarray(0, 64).equals(sent)).toBe(true);
      expect(b.mr.buffer.subarray(0, 64).equals(sent)).toBe(true);
      const theirs = new RemoteRegion(mr.remote());
      a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 64), remote: theirs.slice(1000) });
      await completions(a.cq, 3);
      expect(mr.buffer.subarray(1000, 1064).equals(sent)).toBe(true);

      for (const busy of [b.pd, parent, ...(td ? [td] : [])]) expect(thrown(() => busy.close()).code).toBe('EBUSY');
      expect(thrown(() => parent.allocParentDomain())).toMatchObject({ code: 'ERR_INVALID_ARG_VALUE' });
      for (const resource of [srq, qp, mr, parent]) resource.close();
      td?.close();
      expect(thrown(() => parent.allocSync(8)).code).toBe('ERR_RDMA_CLOSED');
    }
    for (const { context } of [a, b]) context.close({ cascade: true });
  });

  it.skipIf(isRxe)('is what an extended completion queue can be made in, which it then outlives', async () => {
    const context = openDevice(deviceA);
    const td = context.allocTd();
    const parentDomain = context.allocPd().allocParentDomain({ td });
    const cq = context.createCqEx(16, { parentDomain });
    expect(cq.parentDomain).toBe(parentDomain);
    expect(thrown(() => parentDomain.close())).toMatchObject({ code: 'EBUSY', children: [cq] });
    const qp = parentDomain.createQp({ sendCq: cq, cap: { maxSendWr: 4, maxRecvWr: 4 } });
    qp.modifySync(initAttr());
    qp.postRecv({ wrId: 5 });
    qp.modifySync({ qpState: QpState.ERR });
    expect(await completion(cq, 'the flushed receive')).toMatchObject({ wrId: 5, status: WcStatus.WR_FLUSH_ERR });
    qp.close();
    cq.close();
    parentDomain.close();
    context.close({ cascade: true });
  });

  it('names what is wrong', () => {
    const context = openDevice(deviceA);
    const pd = context.allocPd();
    for (const [parentDomain, code, text] of [
      [pd, 'ERR_INVALID_ARG_VALUE', 'pd.allocParentDomain() makes one'],
      [{}, 'ERR_INVALID_ARG_TYPE', 'options.parentDomain must be a ProtectionDomain'],
      [null, 'ERR_INVALID_ARG_TYPE', 'options.parentDomain must be a ProtectionDomain'],
    ] as const) {
      const error = thrown(() => context.createCqEx(16, { parentDomain: parentDomain as never }));
      expect(error).toMatchObject({ code, message: expect.stringContaining(text) });
    }
    expect(thrown(() => pd.allocParentDomain({ td: {} as never }))).toMatchObject({
      code: 'ERR_INVALID_ARG_TYPE',
      message: expect.stringContaining('options.td'),
    });
    expect(thrown(() => pd.allocParentDomain({ dt: 1 } as never)).code).toBe('ERR_INVALID_ARG_VALUE');
    if (!isRxe) {
      const other = openDevice(deviceA);
      const td = other.allocTd();
      expect(thrown(() => pd.allocParentDomain({ td })).message).toMatch(/another device/);
      const parentDomain = other.allocPd().allocParentDomain();
      expect(thrown(() => context.createCqEx(16, { parentDomain })).message).toMatch(/another device/);
      other.createCqEx(16, { parentDomain }).close();
      parentDomain.close({ cascade: true });
      td.close();
      expect(thrown(() => pd.allocParentDomain({ td })).code).toBe('ERR_RDMA_CLOSED');
      other.close({ cascade: true });
    }
    context.close({ cascade: true });
    expect(thrown(() => context.allocTd()).code).toBe('ERR_RDMA_CLOSED');
  });
});

describe('importDevice', () => {
  it('finds what was made elsewhere: domain, region and device memory', async () => {
    using pair = await Pair.connect();
    const { a, b, remote } = pair;
    if (isRxe) {
      expect(thrown(() => importDevice(b.context.cmdFd))).toMatchObject(unsupported('ibv_import_device'));
      return;
    }
    const context = importDevice(b.context.cmdFd);
    expect([context.name, context.numCompVectors]).toEqual([b.context.name, b.context.numCompVectors]);
    expect(context.cmdFd).not.toBe(b.context.cmdFd);
    expect(context.queryDevice().nodeGuid).toBe(b.context.queryDevice().nodeGuid);
    const pd = context.importPd(b.pd.nativeHandle);
    const { nativeHandle, addr, access } = b.mr;
    const mr = pd.importMr(nativeHandle, { addr, access });
    expect([mr.lkey, mr.rkey, mr.length, mr.addr, mr.access, mr.nativeHandle]).toEqual([
      b.mr.lkey,
      b.mr.rkey,
      b.mr.length,
      addr,
      access,
      nativeHandle,
    ]);
    expect(mr.remote()).toEqual(b.mr.remote());
    expect(thrown(() => mr.buffer).code).toBe('ERR_INVALID_STATE');
    const sent = fill(a.mr.buffer, 12);
    const theirs = new RemoteRegion(mr.remote());
    a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(), remote: theirs.slice() });
    expect(await completion(a.cq)).toMatchObject({ status: WcStatus.SUCCESS });
    expect(b.mr.buffer.equals(sent)).toBe(true);

    // What is registered in the imported domain is of the same domain to the device.
    using made = await pd.alloc(4096, { access: ALL_ACCESS });
    a.qp.postSend({
      opcode: WrOpcode.RDMA_WRITE,
      sgList: a.mr.slice(0, 100),
      remote: new RemoteRegion(made.remote()).slice(),
    });
    expect(await completion(a.cq)).toMatchObject({ status: WcStatus.SUCCESS });
    expect(made.buffer.subarray(0, 100).equals(sent.subarray(0, 100))).toBe(true);

    const dm = b.context.allocDm({ length: 4096 });
    const imported = context.importDm(dm.nativeHandle, dm.length);
    dm.memcpyTo(128, Buffer.from('twelve bytes'));
    const copy = Buffer.alloc(12);
    imported.memcpyFrom(copy, 128);
    expect(copy.toString()).toBe('twelve bytes');
    const inDevice = pd.regDmMr(imported, { access: ALL_ACCESS });
    a.qp.postSend({
      opcode: WrOpcode.RDMA_WRITE,
      sgList: a.mr.slice(0, 64),
      remote: new RemoteRegion(inDevice.remote()).slice(),
    });
    expect(await completion(a.cq)).toMatchObject({ status: WcStatus.SUCCESS });
    const back = Buffer.alloc(64);
    dm.memcpyFrom(back, 0);
    expect(back.equals(sent.subarray(0, 64))).toBe(true);

    expect(thrown(() => imported.close())).toMatchObject({ code: 'EBUSY', syscall: 'ibv_unimport_dm' });
    expect(thrown(() => pd.close())).toMatchObject({ code: 'EBUSY', syscall: 'ibv_unimport_pd' });
    made.close();
    context.close({ cascade: true });
    expect([imported.closed, mr.closed, pd.closed]).toEqual([true, true, true]);

    // Letting go of it there has changed nothing here.
    dm.memcpyFrom(back, 0);
    dm.close();
    a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: remote.slice() });
    expect(await completion(a.cq)).toMatchObject({ status: WcStatus.SUCCESS });
    expect(b.mr.slice().length).toBe(b.mr.length);
  });

  it.skipIf(isRxe)('has queues of its own, which use what was imported', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    const context = importDevice(b.context.cmdFd);
    const pd = context.importPd(b.pd.nativeHandle);
    const { nativeHandle, addr, access } = b.mr;
    const mr = pd.importMr(nativeHandle, { addr, access });
    const peer = openSide(deviceA);
    const attr = { cap: { maxSendWr: 8, maxRecvWr: 8 } };
    for (const srq of [undefined, pd.createSrq({ maxWr: 8 })]) {
      const cq = srq ? context.createCqEx(64) : context.createCq(64);
      const qp = pd.createQp({ sendCq: cq, ...attr, ...(srq && { srq }) });
      const other = peer.pd.createQp({ sendCq: peer.cq, ...attr });
      await connectSides({ ...peer, qp: other }, { context, pd, cq: cq as typeof b.cq, qp, mr });
      const receiver = srq ?? qp;
      receiver.postRecv({ wrId: 6, sgList: mr.slice(0, 500) });
      const sent = fill(peer.mr.buffer.subarray(0, 500), srq ? 21 : 22);
      other.postSend({ opcode: WrOpcode.SEND_WITH_IMM, sgList: peer.mr.slice(0, 500), immData: 9 });
      expect(await completion(cq as typeof b.cq, 'the receive')).toMatchObject({ wrId: 6, byteLen: 500, immData: 9 });
      // It is the memory of the context that it was imported from.
      expect(b.mr.buffer.subarray(0, 500).equals(sent)).toBe(true);
      qp.postSend({
        opcode: WrOpcode.RDMA_WRITE,
        sgList: mr.slice(0, 500),
        remote: new RemoteRegion(peer.mr.remote()).slice(1000),
      });
      expect(await completion(cq as typeof b.cq, 'the write')).toMatchObject({ status: WcStatus.SUCCESS });
      expect(peer.mr.buffer.subarray(1000, 1500).equals(sent)).toBe(true);
      for (const each of [other, qp]) each.close();
    }
    for (const each of [context, peer.context]) each.close({ cascade: true });
    a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: pair.remote.slice() });
    expect(await completion(a.cq)).toMatchObject({ status: WcStatus.SUCCESS });
  });

  it('says what is wrong with it', () => {
    const context = openDevice(deviceB);
    const file = openSync('/proc/self/cmdline', 'r');
    const other = openSync('/dev/zero', 'r');
    const wrong: [unknown, string][] = [
      ['3', 'ERR_INVALID_ARG_TYPE'],
      [-1, 'ERR_OUT_OF_RANGE'],
      [1_000_000, 'EBADF'],
      [file, 'EINVAL'],
      [other, 'ENODEV'],
    ];
    for (const [fd, code] of wrong) expect(thrown(() => importDevice(fd as never)).code, `${fd}`).toBe(code);
    for (const fd of [file, other]) closeSync(fd);
    const pd = context.allocPd();
    const calls: [() => unknown, string, string][] = [
      [() => context.importPd(0x3fff_ffff), 'ENOENT', 'ibv_import_pd'],
      [() => pd.importMr(0x3fff_ffff), 'ENOENT', 'ibv_import_mr'],
      [() => context.importDm(0x3fff_ffff, 8), 'ENOENT', 'ibv_import_dm'],
    ];
    for (const [call, code, syscall] of calls) {
      expect(thrown(call)).toMatchObject(isRxe ? unsupported(syscall) : { code, syscall });
    }
    for (const call of [
      () => context.importPd(-1),
      () => context.importPd('1' as never),
      () => pd.importMr(2 ** 32),
      () => pd.importMr(1, { addr: 4 as never }),
      () => pd.importMr(1, { adr: 4n } as never),
      () => context.importDm(1, 0),
    ]) {
      expect(thrown(call).code).toMatch(/^ERR_/);
    }
    context.close({ cascade: true });
    expect(thrown(() => context.importPd(1)).code).toBe('ERR_RDMA_CLOSED');
  });
});
