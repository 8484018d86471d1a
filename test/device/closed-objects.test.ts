/** Closed objects, and methods that are called on something else: every method of the objects that all programs use. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  AnyQueuePair,
  CompletionChannel,
  CompletionQueue,
  Context,
  DeviceQueries,
  MemoryRegion,
  type MemoryWindow,
  MwType,
  ProtectionDomain,
  QueuePair,
  RecvList,
  SendList,
  WrOpcode,
} from '../../lib/index.ts';
import { deviceA, expectNoLeaks, initAttr, openSide, Pair, type Side, thrown } from './fixture.ts';

// One pair for all: nothing here may change it.
let pair: Pair;
let spare: Side;
let spareMw: MemoryWindow;
beforeAll(async () => {
  pair = await Pair.connect();
  spare = openSide(deviceA);
  spareMw = spare.pd.allocMw(MwType.MW_TYPE_2);
});
afterAll(() => {
  spare.context.close({ cascade: true });
  pair[Symbol.dispose]();
});

expectNoLeaks();

class Impostor {
  closed = false;
  requireOpen(): void {}
}

/** Every method that a user can call, with arguments that are in order. */
const anyQueuePair = {
  modify: (qp: QueuePair) => qp.modify(initAttr()),
  modifySync: (qp: QueuePair) => qp.modifySync(initAttr()),
  query: (qp: QueuePair) => qp.query(),
  queryEce: (qp: QueuePair) => qp.queryEce(),
  setEce: (qp: QueuePair) => qp.setEce({ vendorId: 0, options: 0 }),
  modifyRateLimit: (qp: QueuePair) => qp.modifyRateLimit({ rateLimit: 1 }),
  queryDataInOrder: (qp: QueuePair) => qp.queryDataInOrder(WrOpcode.SEND),
  createFlow: (qp: QueuePair) => qp.createFlow({}),
};

const deviceQueries = {
  queryDevice: (context: Context) => context.queryDevice(),
  queryPort: (context: Context) => context.queryPort(1),
  queryGid: (context: Context) => context.queryGid(1, 0),
  queryGidEx: (context: Context) => context.queryGidEx(1, 0),
  queryGidTable: (context: Context) => context.queryGidTable(),
  selectGid: (context: Context) => context.selectGid(),
  queryPkey: (context: Context) => context.queryPkey(1, 0),
  queryDeviceEx: (context: Context) => context.queryDeviceEx(),
  queryRtValues: (context: Context) => context.queryRtValues(),
};

const methods: Record<string, Record<string, (object: never) => unknown>> = {
  DeviceQueries: deviceQueries,
  Context: {
    ...deviceQueries,
    importPd: (context: Context) => context.importPd(1),
    allocTd: (context: Context) => context.allocTd(),
    allocDm: (context: Context) => context.allocDm({ length: 8 }),
    importDm: (context: Context) => context.importDm(1, 8),
    allocPd: (context: Context) => context.allocPd(),
    createCompChannel: (context: Context) => context.createCompChannel(),
    openXrcd: (context: Context) => context.openXrcd(),
    createQp: (context: Context) => context.createQp({} as never),
    openQp: (context: Context) => context.openQp({} as never),
    createCq: (context: Context) => context.createCq(8),
    createCounters: (context: Context) => context.createCounters(),
    createWq: (context: Context) => context.createWq({ pd: spare.pd, cq: spare.cq }),
    createRwqIndTable: (context: Context) => context.createRwqIndTable([]),
    createCqEx: (context: Context) => context.createCqEx(8),
    getAsyncEvent: (context: Context) => context.getAsyncEvent(),
    asyncEvents: (context: Context) => context.asyncEvents().next(),
  },
  ProtectionDomain: {
    alloc: (pd: ProtectionDomain) => pd.alloc(8),
    allocSync: (pd: ProtectionDomain) => pd.allocSync(8),
    regMr: (pd: ProtectionDomain) => pd.regMr(Buffer.alloc(8)),
    regMrSync: (pd: ProtectionDomain) => pd.regMrSync(Buffer.alloc(8)),
    regMrAddress: (pd: ProtectionDomain) => pd.regMrAddress(4096n, 8),
    regMrAddressSync: (pd: ProtectionDomain) => pd.regMrAddressSync(4096n, 8),
    regImplicitMr: (pd: ProtectionDomain) => pd.regImplicitMr(),
    regDmabufMr: (pd: ProtectionDomain) => pd.regDmabufMr(0, { length: 8 }),
    regDmabufMrSync: (pd: ProtectionDomain) => pd.regDmabufMrSync(0, { length: 8 }),
    regDmMr: (pd: ProtectionDomain) => pd.regDmMr({} as never),
    importMr: (pd: ProtectionDomain) => pd.importMr(1),
    allocParentDomain: (pd: ProtectionDomain) => pd.allocParentDomain(),
    allocNullMr: (pd: ProtectionDomain) => pd.allocNullMr(),
    adviseMr: (pd: ProtectionDomain) => pd.adviseMr(0, 0, spare.mr.slice()),
    createQp: (pd: ProtectionDomain) => pd.createQp({ sendCq: spare.cq }),
    createSrq: (pd: ProtectionDomain) => pd.createSrq(),
    createAh: (pd: ProtectionDomain) => pd.createAh({}),
    createAhFromWc: (pd: ProtectionDomain) => pd.createAhFromWc({} as never),
    allocMw: (pd: ProtectionDomain) => pd.allocMw(1),
  },
  MemoryRegion: {
    slice: (mr: MemoryRegion) => mr.slice(),
    remote: (mr: MemoryRegion) => mr.remote(),
    rereg: (mr: MemoryRegion) => mr.rereg({ access: 0 }),
    reregSync: (mr: MemoryRegion) => mr.reregSync({ access: 0 }),
  },
  CompletionChannel: {},
  CompletionQueue: {
    poll: (cq: CompletionQueue) => cq.poll(),
    pollWc: (cq: CompletionQueue) => cq.pollWc(),
    reqNotify: (cq: CompletionQueue) => cq.reqNotify(),
    wait: (cq: CompletionQueue) => cq.wait(),
    resize: (cq: CompletionQueue) => cq.resize(8),
    resizeSync: (cq: CompletionQueue) => cq.resizeSync(8),
    modify: (cq: CompletionQueue) => cq.modify({ cqCount: 1, cqPeriod: 1 }),
    [Symbol.asyncIterator]: (cq: CompletionQueue) => cq[Symbol.asyncIterator]().next(),
  },
  AnyQueuePair: anyQueuePair,
  QueuePair: {
    ...anyQueuePair,
    postSend: (qp: QueuePair) => qp.postSend({ opcode: WrOpcode.SEND }),
    postRecv: (qp: QueuePair) => qp.postRecv({}),
    prepareSend: (qp: QueuePair) => qp.prepareSend({ opcode: WrOpcode.SEND }),
    prepareRecv: (qp: QueuePair) => qp.prepareRecv({}),
    bindMw: (qp: QueuePair) => qp.bindMw(spareMw, { local: spare.mr.slice(), access: 0 }),
    attachMcast: (qp: QueuePair) => qp.attachMcast('ff0e::1'),
    detachMcast: (qp: QueuePair) => qp.detachMcast('ff0e::1'),
  },
};

describe('a closed object', () => {
  it('refuses each of its methods with ERR_RDMA_CLOSED, and can be closed again', async () => {
    const side = openSide(deviceA);
    const channel = side.context.createCompChannel();
    const closed = [side.qp, side.mr, side.cq, channel, side.pd];
    for (const resource of closed) {
      resource.close();
      resource.close();
      resource[Symbol.dispose]();
    }
    side.context.close({ cascade: true });
    side.context.close();
    for (const resource of [...closed, side.context]) {
      expect(resource.closed).toBe(true);
      const name = resource.constructor.name;
      const calls = methods[name]!;
      for (const key of Reflect.ownKeys(calls)) {
        let error: Error & { code?: string } = new Error('it was accepted');
        try {
          await calls[key as string]!(resource as never);
        } catch (reason) {
          error = reason as Error;
        }
        expect(error.code, `${name}.${String(key)}: ${error.message}`).toBe('ERR_RDMA_CLOSED');
        expect(error.message).toContain(name);
      }
    }
    expect([side.qp.sendsInFlight, side.qp.recvsInFlight]).toEqual([0, 0]);
  });

  it('is refused as an argument', () => {
    const side = openSide(deviceA);
    const channel = side.context.createCompChannel();
    side.qp.close();
    for (const resource of [channel, side.cq]) resource.close();
    const closed = { code: 'ERR_RDMA_CLOSED' };
    expect(thrown(() => side.context.createCq(8, { channel }))).toMatchObject(closed);
    expect(thrown(() => side.pd.createQp({ sendCq: side.cq }))).toMatchObject(closed);
    const sendCq = side.context.createCq(8);
    expect(thrown(() => side.pd.createQp({ sendCq, recvCq: side.cq }))).toMatchObject(closed);
    side.context.close({ cascade: true });
  });
});

describe('a method', () => {
  it('refuses to be called on anything else than its own kind of object', async () => {
    const classes = { Context, ProtectionDomain, MemoryRegion, CompletionChannel, CompletionQueue, QueuePair };
    const lists = { SendList, RecvList };
    const strangers = [{}, new Impostor(), pair.a.mr, pair.a.cq, pair.a.qp, pair.a.context];
    for (const [name, type] of Object.entries({ ...classes, ...lists })) {
      for (const key of Reflect.ownKeys(type.prototype)) {
        const { value } = Object.getOwnPropertyDescriptor(type.prototype, key)!;
        if (typeof value !== 'function' || key === 'constructor' || key === 'describe') continue;
        for (const stranger of strangers) {
          if (stranger.constructor === type) continue;
          let error: unknown;
          try {
            await value.call(stranger);
          } catch (reason) {
            error = reason;
          }
          // Some of them only read public properties before they call another method.
          if (error !== undefined) expect(error, `${name}.${String(key)}`).toBeInstanceOf(Error);
        }
      }
    }
    expect(pair.a.qp.sendsInFlight).toBe(0);
  });

  it('is in the tables above, every one of them', () => {
    const internal = [
      'constructor',
      'describe',
      'fields',
      'destroy',
      'close',
      'busyReasons',
      'nextId',
      'attach',
      'detach',
      'onEvent',
      'nextEvent',
      'spin',
      'requireRoom',
      'inFlight',
      'changesHere',
      'entered',
      'renumber',
      'makeCq',
      'refuse',
      'requireOpen',
      'requireMemory',
      'onLost',
      'onCascade',
      'failed',
      // Checked in a table of its own.
      'at',
    ];
    for (const [name, type] of Object.entries({
      DeviceQueries,
      Context,
      ProtectionDomain,
      MemoryRegion,
      CompletionQueue,
      AnyQueuePair,
      QueuePair,
    })) {
      const all = Reflect.ownKeys(type.prototype).filter(
        (key) => typeof Object.getOwnPropertyDescriptor(type.prototype, key)!.value === 'function',
      );
      const known = [...Reflect.ownKeys(methods[name]!), ...internal];
      expect(all.filter((key) => !known.includes(key))).toEqual([]);
    }
  });
});
