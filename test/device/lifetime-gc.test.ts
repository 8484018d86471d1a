import { execFileSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import {
  createEventChannel,
  openDevice,
  QpType,
  RemoteRegion,
  SendFlags,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import { binding } from '../../lib/native/binding.ts';
import { runChild } from './children.ts';
import { listening, newPort } from './cm.ts';
import {
  ALL_ACCESS,
  collect,
  completion,
  completions,
  connectSides,
  deviceA,
  deviceB,
  fill,
  isRxe,
  isSanitized,
  openSide,
  Pair,
  until,
  within,
} from './fixture.ts';
import { DcPair } from './mlx5-fixture.ts';

/** Collects until nothing is open any more; what was collected open is counted as leaked, and that is expected here. */
async function expectAllCollected(leaks: number): Promise<void> {
  const before = binding().census().leaked;
  for (let i = 0; i < 20 && binding().census().open > 0; i++) await collect();
  const { open, leaked } = binding().census();
  expect(open, 'objects that nothing refers to and that are still open').toBe(0);
  expect(leaked - before, 'objects that were collected open').toBe(leaks);
}

/** All orders of some things. */
function permutations<T>(things: readonly T[]): T[][] {
  if (things.length < 2) return [[...things]];
  return things.flatMap((first, i) =>
    permutations([...things.slice(0, i), ...things.slice(i + 1)]).map((rest) => [first, ...rest]),
  );
}

type Holder = Record<string, unknown>;

/** One of everything, connected to itself in no way, with requests in flight; only the holder refers to it. */
function hold(): Holder {
  const side = openSide(deviceA);
  const channel = side.context.createCompChannel();
  side.qp.modifySync({ qpState: 1, pkeyIndex: 0, portNum: 1, qpAccessFlags: 0 });
  side.qp.postRecv([{ sgList: side.mr.slice() }, { sgList: side.pd.regMrSync(Buffer.alloc(64)).slice() }]);
  return { ...side, channel };
}

describe('garbage collection', () => {
  const names = ['context', 'pd', 'cq', 'qp', 'mr'];
  const all = permutations(names);
  // Each takes several collections, which are slow in an emulated VM.
  const orders = isRxe ? [all[0]!, all[119]!] : all.filter((_, i) => i % 5 === 0);

  it(`destroys children before parents, in any order of dropping them (${orders.length} orders)`, async () => {
    await collect();
    for (const order of orders) {
      const holder = hold();
      delete holder.channel;
      for (const name of order) {
        delete holder[name];
        (globalThis.gc as () => void)();
      }
      // The region of the caller's memory, the shared channel with its events, the context, pd, cq, qp, mr: all open.
      for (let i = 0; i < 20 && binding().census().open > 0; i++) await collect();
      expect(binding().census().open, order.join(', ')).toBe(0);
    }
  });

  it.runIf(!isRxe)('takes both ends of dynamically connected transport, with requests in flight', async () => {
    await collect();
    for (let i = 0; i < 5; i++) {
      (() => {
        const { a, b, target } = new DcPair();
        b.srq.postRecv({ sgList: b.mr.slice(0, 8) });
        a.dci.postSend(
          [1, 2, 3].map((wrId) => ({ wrId, opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 64), ...target })),
        );
      })();
      for (let round = 0; round < 20 && binding().census().open > 0; round++) await collect();
      expect(binding().census().open).toBe(0);
    }
  });

  it('counts what it found open', async () => {
    await collect();
    (() => {
      const context = openDevice(deviceA);
      context.allocPd().allocSync(64);
    })();
    await expectAllCollected(3);
    (() => {
      const context = openDevice(deviceA);
      const mr = context.allocPd().allocSync(64);
      mr.close();
      context.close({ cascade: true });
    })();
    await expectAllCollected(0);
  });

  it('lets parents live for as long as a child does', async () => {
    const qp = (() => openSide(deviceA).qp)();
    await collect();
    qp.modifySync({ qpState: 1, pkeyIndex: 0, portNum: 1, qpAccessFlags: 0 });
    expect(qp.query().qpState).toBe(1);
    expect(qp.pd.context.queryPort(1).state).toBe(4);
    expect(qp.sendCq.poll()).toBe(0);
    qp.close();
    qp.pd.context.close({ cascade: true });
    // The region was collected open: nothing referred to it.
    for (let i = 0; i < 20 && binding().census().open > 0; i++) await collect();
    expect(binding().census().open).toBe(0);
  });

  it.runIf(isRxe)('takes a queue pair out of its multicast groups, in which it cannot be destroyed', async () => {
    const pairs = () => execFileSync('rdma', ['resource', 'show', 'qp'], { encoding: 'utf8' }).split('type UD').length;
    await collect();
    const before = pairs();
    (() => {
      const { pd, cq } = openSide(deviceA);
      const qp = pd.createQp({ sendCq: cq, qpType: QpType.UD, cap: { maxSendWr: 4, maxRecvWr: 4 } });
      for (const group of ['ff0e::77', 'ff0e::78', 'ff0e::78']) qp.attachMcast(group);
      qp.detachMcast('ff0e::77');
    })();
    expect(pairs()).toBe(before + 1);
    for (let i = 0; i < 20 && binding().census().open > 0; i++) await collect();
    expect(binding().census().open).toBe(0);
    expect(pairs()).toBe(before);
  });

  it('forgets a child that was collected, so that its parent can be closed', async () => {
    using context = openDevice(deviceA);
    (() => context.allocPd())();
    await collect();
    await until(() => binding().census().open === 1, 'the domain is collected');
    context.close();
    expect(context.closed).toBe(true);
  });
});

describe('registered memory', () => {
  it('lives for as long as its region, and no longer', async () => {
    using context = openDevice(deviceA);
    const pd = context.allocPd();
    const made = (() => {
      const memory = new ArrayBuffer(1 << 20);
      new Uint8Array(memory).fill(0x5a);
      return { mr: pd.regMrSync(memory), memory: new WeakRef(memory) };
    })();
    await collect();
    expect(made.memory.deref()).toBeDefined();
    expect(made.mr.buffer.every((byte) => byte === 0x5a)).toBe(true);
    made.mr.close();
    (made as { mr: unknown }).mr = null;
    await until(() => {
      (globalThis.gc as () => void)();
      return made.memory.deref() === undefined;
    }, 'the memory is collected');
    context.close({ cascade: true });
  });

  it('is written by the device after nothing but its region refers to it', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    const target = (() => b.pd.regMrSync(new Float64Array(512), { access: ALL_ACCESS }))();
    await collect();
    const sent = fill(a.mr.buffer.subarray(0, 4096), 3);
    const remote = new RemoteRegion(target.remote()).slice();
    a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 4096), remote });
    expect((await completion(a.cq)).status).toBe(WcStatus.SUCCESS);
    expect(target.buffer.equals(sent)).toBe(true);
  });
});

describe('a request in flight', () => {
  it('keeps its memory, whatever becomes of the region that it was given', async () => {
    using pair = await Pair.connect({ cap: { maxSendSge: 2 } });
    const { a, b } = pair;
    const bytes = 8192;
    const regions = (() => {
      const [alone, first, second] = [
        a.pd.allocSync(bytes),
        a.pd.allocSync(bytes),
        a.pd.regMrSync(Buffer.alloc(bytes)),
      ];
      fill(alone.buffer, 1);
      fill(first.buffer, 2);
      fill(second.buffer, 3);
      // Nobody is ready to receive, so these wait; unsignalled ones are held as well.
      a.qp.postSend([
        { opcode: WrOpcode.SEND, sgList: alone.slice(), sendFlags: 0 },
        { opcode: WrOpcode.SEND, sgList: [first.slice(0, 4096), second.slice(0, 4096)], sendFlags: SendFlags.SIGNALED },
      ]);
      return [alone, first, second].map((mr) => new WeakRef(mr));
    })();
    await collect();
    expect(regions.every((region) => region.deref() !== undefined)).toBe(true);
    const [whole, halves] = [fill(Buffer.alloc(bytes), 1), fill(Buffer.alloc(bytes), 2).subarray(0, 4096)];
    b.qp.postRecv([{ sgList: b.mr.slice(0, 8192) }, { sgList: b.mr.slice(8192, 8192) }]);
    expect((await completions(b.cq, 2)).every(({ status }) => status === WcStatus.SUCCESS)).toBe(true);
    await completion(a.cq);
    expect(b.mr.buffer.subarray(0, 8192).equals(whole)).toBe(true);
    expect(b.mr.buffer.subarray(8192, 8192 + 4096).equals(halves)).toBe(true);
    for (const region of regions) region.deref()?.close();
  });

  it('keeps its queue pair, for as long as its completion queue is there', async () => {
    const a = openSide(deviceA);
    const b = openSide(deviceB);
    await connectSides(a, b);
    const { context, cq } = b;
    const made = (() => {
      b.mr.buffer.write('x');
      b.qp.postRecv({ wrId: 77, sgList: b.mr.slice(64, 8) });
      const refs = { qp: new WeakRef(b.qp), mr: new WeakRef(b.mr) };
      // All that is left of this side is its completion queue.
      for (const key of ['qp', 'mr', 'pd'] as const) delete (b as Partial<typeof b>)[key];
      return refs;
    })();
    await collect();
    expect(made.qp.deref()).toBeDefined();
    a.mr.buffer.write('survived');
    a.qp.postSend({ opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 8) });
    expect(await completion(cq)).toMatchObject({ wrId: 77, status: WcStatus.SUCCESS, byteLen: 8 });
    expect(made.mr.deref()?.buffer.toString('latin1', 64, 72)).toBe('survived');
    await completion(a.cq);
    for (const each of [a.context, context]) each.close({ cascade: true });
  });
});

describe('a pending operation', () => {
  it('keeps the queue that it waits for, when nothing else does', async () => {
    const a = openSide(deviceA);
    const waiting = await (async () => {
      const b = openSide(deviceB);
      await connectSides(a, b);
      b.qp.postRecv({ wrId: 5 });
      const { cq, context } = b;
      return {
        end: (async () => {
          await cq.wait();
          const { wrId } = cq.at(0);
          // Not before the peer has its acknowledgement: rdma_rxe asks for it without end where retryCnt is 7.
          return { wrId, close: () => context.close({ cascade: true }) };
        })(),
      };
    })();
    await collect();
    await collect();
    a.qp.postSend({ opcode: WrOpcode.SEND });
    await completion(a.cq);
    const { wrId, close } = await within(waiting.end, 'the wait that nothing but its promise refers to');
    expect(wrId).toBe(5);
    close();
    a.context.close({ cascade: true });
    await collect();
  });

  it('keeps the domain that memory is registered in', async () => {
    await (async () => {
      const pending = (() => {
        const pd = openDevice(deviceA).allocPd();
        return [pd.alloc(1 << 20), pd.regMr(Buffer.alloc(1 << 20))];
      })();
      await collect();
      const regions = await within(Promise.all(pending), 'the registration');
      for (const mr of regions) {
        mr.buffer.fill(1);
        expect(mr.slice(0, 4).length).toBe(4);
        mr.close();
      }
    })();
    for (let i = 0; i < 20 && binding().census().open > 0; i++) await collect();
    expect(binding().census().open).toBe(0);
  });
});

describe('a forgotten object', () => {
  it(`does not cost memory for good, however many there are`, async () => {
    const context = openDevice(deviceA);
    const before = binding().census();
    const drop = () => {
      for (let i = 0; i < (isRxe ? 50 : 1000); i++) context.allocPd().allocSync(64);
    };
    drop();
    await collect();
    const rss = process.memoryUsage.rss();
    for (let i = 0; i < 3; i++) {
      drop();
      await collect();
    }
    for (let i = 0; i < 20 && binding().census().open > before.open; i++) await collect();
    expect(binding().census().open).toBe(before.open);
    expect(binding().census().leaked - before.leaked).toBe(isRxe ? 400 : 8000);
    if (!isSanitized) expect(process.memoryUsage.rss() - rss).toBeLessThan(8 << 20);
    context.close();
  });

  it.runIf(isRxe)('of the connection manager goes as well: a channel with its ids', async () => {
    await collect();
    const before = binding().census();
    await (async () => {
      const channel = createEventChannel();
      await listening(channel, newPort());
    })();
    await collect();
    await until(() => binding().census().open <= before.open, 'the channel is collected');
    // The channel, its watcher, and the id.
    expect(binding().census().leaked - before.leaked).toBe(3);
  });

  // On the software device only: a process takes seconds in an emulated VM, and says the same there.
  it.runIf(!isRxe).each([undefined, '1'])('is named on stderr when NODE_RDMA_TRACE_LEAKS is %s', async (value) => {
    const { code, stderr } = await runChild('forget', [], { env: { NODE_RDMA_TRACE_LEAKS: value } });
    expect(code).toBe(0);
    if (value === undefined) expect(stderr).toBe('');
    else expect(stderr).toMatch(/^[^\n]*MemoryRegion[^\n]*\n$/);
  });
});
