import { describe, expect, it } from 'vitest';
import { BusyError, openDevice, QpState, type Resource } from '../../lib/index.ts';
import { binding } from '../../lib/native/binding.ts';
import { descriptors, deviceA, expectNoLeaks, initAttr, openSide, thrown } from './fixture.ts';

expectNoLeaks();

describe('close', () => {
  it('of a parent with children fails with EBUSY and their list, and leaves all of it usable', () => {
    const { context, pd, cq, qp, mr } = openSide(deviceA);
    const cases: [Resource, string, Resource[], RegExp][] = [
      [context, 'ibv_close_device', [pd, cq.channel!, cq], /Context of .* is needed by .*ProtectionDomain/],
      [pd, 'ibv_dealloc_pd', [qp, mr], /QueuePair 0x.*, MemoryRegion \(lkey 0x[0-9a-f]+, 16384 bytes\)/],
      [cq, 'ibv_destroy_cq', [qp], /CompletionQueue .* is needed by QueuePair/],
      [cq.channel!, 'ibv_destroy_comp_channel', [cq], /CompletionChannel is needed by CompletionQueue/],
    ];
    for (const [resource, syscall, children, message] of cases) {
      const error = thrown(() => resource.close()) as BusyError;
      expect(error).toBeInstanceOf(BusyError);
      expect(error).toMatchObject({ name: 'BusyError', code: 'EBUSY', errno: -16, syscall });
      expect(new Set(error.children)).toEqual(new Set(children));
      expect(error.message).toMatch(message);
      expect(error.message).toContain('{ cascade: true }');
      expect(resource.closed).toBe(false);
    }
    qp.modifySync(initAttr());
    qp.postRecv({ sgList: mr.slice() });
    qp.close();
    for (const resource of [mr, cq, pd, context]) resource.close();
    expect([context, pd, cq, qp, mr].every(({ closed }) => closed)).toBe(true);
  });

  it('names at most eight children, and the number of the others', () => {
    using context = openDevice(deviceA);
    const pd = context.allocPd();
    const regions = Array.from({ length: 11 }, () => pd.allocSync(64));
    const error = thrown(() => pd.close()) as BusyError;
    expect(error.children.length).toBe(11);
    expect(error.message.match(/MemoryRegion/g)?.length).toBe(8);
    expect(error.message).toContain('3 more');
    for (const mr of regions) mr.close();
    pd.close();
  });

  it('is idempotent, and the same as Symbol.dispose', () => {
    const context = openDevice(deviceA);
    context.close();
    context.close();
    context[Symbol.dispose]();
    context.close({ cascade: true });
    expect(context.closed).toBe(true);
  });

  it('gives the C object back at once', () => {
    const [open, fds] = [binding().census().open, descriptors()];
    const side = openSide(deviceA);
    const channel = side.context.createCompChannel();
    expect(descriptors()).toBeGreaterThan(fds + 2);
    const opened = descriptors();
    channel.close();
    expect(descriptors()).toBeLessThan(opened);
    for (const resource of [side.qp, side.mr, side.cq, side.pd, side.context]) resource.close();
    expect(binding().census().open).toBe(open);
    // Nothing waits for garbage collection, the device neither.
    expect(descriptors()).toBe(fds);
  });
});

describe('close with cascade', () => {
  it('closes all that needs the object, newest first', () => {
    const { context, pd, cq, qp, mr } = openSide(deviceA);
    const second = context.allocPd();
    const own = context.createCompChannel();
    const other = context.createCq(128, { channel: own });
    const bridge = second.createQp({ sendCq: other, recvCq: cq });
    const all = [context, pd, cq, qp, mr, second, own, other, bridge, cq.channel!];
    context.close({ cascade: true });
    expect(all.map(({ closed }) => closed)).toEqual(all.map(() => true));
  });

  it('of a queue takes its queue pairs along, and leaves the rest', () => {
    const { context, pd, cq, qp, mr } = openSide(deviceA);
    cq.close({ cascade: true });
    expect([cq.closed, qp.closed, pd.closed, mr.closed]).toEqual([true, true, false, false]);
    pd.close({ cascade: true });
    expect(mr.closed).toBe(true);
    context.close();
  });

  it('closes queue pairs before the regions that their requests hold', () => {
    const { context, pd, qp, mr } = openSide(deviceA);
    qp.modifySync(initAttr());
    qp.postRecv([{ sgList: mr.slice() }, { sgList: mr.slice() }]);
    // The region is the newer of the two.
    expect(thrown(() => mr.close({ cascade: true })).message).toContain('2 work request(s) in flight');
    pd.close({ cascade: true });
    expect([qp.closed, mr.closed, pd.closed]).toEqual([true, true, true]);
    context.close({ cascade: true });
  });
});

describe('using', () => {
  it('closes in reverse order at the end of the block, also when the block throws', () => {
    const seen: Resource[] = [];
    const block = () => {
      using context = openDevice(deviceA);
      using pd = context.allocPd();
      using cq = context.createCq(256);
      using mr = pd.allocSync(64);
      using qp = pd.createQp({ sendCq: cq });
      seen.push(context, pd, cq, mr, qp);
      qp.modifySync({ qpState: QpState.INIT });
    };
    expect(block).toThrow('ibv_modify_qp EINVAL');
    expect(seen.length).toBe(5);
    expect(seen.every(({ closed }) => closed)).toBe(true);
  });
});
