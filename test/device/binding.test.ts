import { constants } from 'node:os';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { FlowSpecType, QpType, SrqType } from '../../lib/index.ts';
import { binding } from '../../lib/native/binding.ts';
import { encodeFlow } from '../../lib/verbs/flow-spec.ts';
import { cmFunctions } from './cm.ts';
import { collect, deviceA, expectNoLeaks, isRxe } from './fixture.ts';

/** The addon by name, without its types: what stands between a mistake in lib/ and a crash. */
type Native = (...args: unknown[]) => unknown;
const native = binding() as unknown as Record<string, Native>;
const functions = Object.keys(native).filter((name) => typeof native[name] === 'function');
const call = (name: string, ...args: unknown[]): unknown => native[name]!(...args);

// Those that take nothing.
const takesNothing = [
  'mlx5LoadState',
  'census',
  'loadState',
  'isForkInitialized',
  'getDeviceList',
  'ring',
  'cmLoadState',
  'createEventChannel',
  'openCmDevices',
];
const cap = () => ({ maxSendWr: 4, maxRecvWr: 4, maxSendSge: 1, maxRecvSge: 1, maxInlineData: 0 });
const basic = { srqType: SrqType.BASIC, maxWr: 4, maxSge: 1, maxNumTags: 0, maxOps: 1, id: 1 };
const rc = (more: object = {}) => ({ qpType: QpType.RC, sqSigAll: false, cap: { ...cap(), ...more } });

// One handle of each kind.
const handles: Record<string, unknown> = {};
beforeAll(() => {
  handles.Context = (call('openDevice', deviceA) as { handle: unknown }).handle;
  handles.ProtectionDomain = (call('allocPd', handles.Context) as { handle: unknown }).handle;
  handles.MemoryRegion = (call('allocMrSync', handles.ProtectionDomain, 64, 1, false) as { handle: unknown }).handle;
  handles.CompletionChannel = call('createCompChannel', handles.Context);
  handles.ChannelEvents = call('createChannelEvents', handles.CompletionChannel, () => {});
  handles.CompletionQueue = (call('createCq', handles.Context, 4, null, 0, 1) as { handle: unknown }).handle;
  const { ProtectionDomain: pd, CompletionQueue: cq } = handles;
  handles.SharedReceiveQueue = (call('createSrq', pd, null, null, basic) as { handle: unknown }).handle;
  handles.MemoryWindow = (call('allocMw', pd, 2) as { handle: unknown }).handle;
  const entry = (call('queryGidTable', handles.Context, 64) as { gid: Uint8Array; gidIndex: number }[]).at(-1)!;
  const grh = { dgid: entry.gid, sgidIndex: entry.gidIndex, flowLabel: 0, hopLimit: 64, trafficClass: 0 };
  const ahAttr = { isGlobal: true, grh, dlid: 0, sl: 0, srcPathBits: 0, staticRate: 0, portNum: 1 };
  handles.AddressHandle = (call('createAh', pd, { ahAttr }) as { handle: unknown }).handle;
  handles.AsyncEvents = call('createAsyncEvents', handles.Context, () => {});
  handles.DmaBuf = (call('duplicateDmabuf', 0) as { handle: unknown }).handle;
  handles.FdSocket = call('listenFdSocket', `\0node-rdma-binding-${process.pid}`);
  handles.FdSocketEvents = call('createFdSocketEvents', handles.FdSocket, () => {});
  if (!isRxe) {
    handles.DeviceMemory = (call('allocDm', handles.Context, 64, 0) as { handle: unknown }).handle;
    handles.ThreadDomain = call('allocTd', handles.Context);
  }
  handles.QueuePair = (call('createQp', pd, cq, cq, null, rc()) as { handle: unknown }).handle;
  // Soft-RoCE has none of these.
  if (isRxe) return;
  handles.XrcDomain = call('openXrcd', handles.Context, -1, 0);
  handles.Counters = call('createCounters', handles.Context);
  handles.ReceiveWorkQueue = (call('createWq', pd, cq, 4, 1, 0, 1) as { handle: unknown }).handle;
  const table = call('createRwqIndTable', handles.Context, [handles.ReceiveWorkQueue]) as { handle: unknown };
  handles.RwqIndTable = table.handle;
  const datagrams = { ...rc(), qpType: QpType.UD };
  handles.Datagrams = (call('createQp', pd, cq, cq, null, datagrams) as { handle: unknown }).handle;
  handles.Flow = call('createFlow', handles.Datagrams, encodeFlow({}).bytes, []);
});
afterAll(() => {
  for (const [name, handle] of Object.entries(destroyers)
    .map(([kind, name]) => [name, handles[kind]] as const)
    .reverse()) {
    if (handle !== undefined) call(name, handle);
  }
  expect(binding().census().open).toBe(0);
});

const destroyers: Record<string, string> = {
  Context: 'closeDevice',
  ProtectionDomain: 'deallocPd',
  MemoryRegion: 'deregMr',
  CompletionChannel: 'destroyCompChannel',
  ChannelEvents: 'destroyChannelEvents',
  CompletionQueue: 'destroyCq',
  SharedReceiveQueue: 'destroySrq',
  MemoryWindow: 'deallocMw',
  AddressHandle: 'destroyAh',
  AsyncEvents: 'destroyAsyncEvents',
  DmaBuf: 'closeDmabuf',
  FdSocket: 'closeFdSocket',
  FdSocketEvents: 'closeFdSocketEvents',
  QueuePair: 'destroyQp',
  Counters: 'destroyCounters',
  ReceiveWorkQueue: 'destroyWq',
  RwqIndTable: 'destroyRwqIndTable',
  Datagrams: 'destroyQp',
  Flow: 'destroyFlow',
  XrcDomain: 'closeXrcd',
  // There are none to be had on Soft-RoCE.
  ...(isRxe ? {} : { DeviceMemory: 'freeDm', ThreadDomain: 'deallocTd' }),
};

/** What each function takes first, of those that take a handle. */
const kinds: Record<string, string> = {
  createXrcRecvQp: 'XrcDomain',
  openQp: 'XrcDomain',
  openXrcd: 'Context',
  getSrqNum: 'SharedReceiveQueue',
  freeDm: 'DeviceMemory',
  deallocTd: 'ThreadDomain',
  queryDevice: 'Context',
  queryDeviceEx: 'Context',
  queryRtValues: 'Context',
  queryPort: 'Context',
  queryGid: 'Context',
  queryGidEx: 'Context',
  queryGidTable: 'Context',
  queryPkey: 'Context',
  allocPd: 'Context',
  createCompChannel: 'Context',
  createCq: 'Context',
  createCqEx: 'Context',
  regMr: 'ProtectionDomain',
  regMrSync: 'ProtectionDomain',
  importPd: 'Context',
  allocTd: 'Context',
  allocParentDomain: 'Context',
  allocDm: 'Context',
  importDm: 'Context',
  memcpyToDm: 'DeviceMemory',
  memcpyFromDm: 'DeviceMemory',
  regDmMr: 'ProtectionDomain',
  regDmabufMr: 'ProtectionDomain',
  regDmabufMrSync: 'ProtectionDomain',
  importMr: 'ProtectionDomain',
  regMrAddress: 'ProtectionDomain',
  regMrAddressSync: 'ProtectionDomain',
  allocNullMr: 'ProtectionDomain',
  adviseMr: 'ProtectionDomain',
  reregMr: 'MemoryRegion',
  reregMrSync: 'MemoryRegion',
  allocMr: 'ProtectionDomain',
  allocMrSync: 'ProtectionDomain',
  createQp: 'ProtectionDomain',
  createRssQp: 'ProtectionDomain',
  createAh: 'ProtectionDomain',
  createAhFromWc: 'ProtectionDomain',
  createSrq: 'ProtectionDomain',
  allocMw: 'ProtectionDomain',
  modifySrq: 'SharedReceiveQueue',
  querySrq: 'SharedReceiveQueue',
  createSrqRecvList: 'SharedReceiveQueue',
  createAsyncEvents: 'Context',
  exportGpuMemory: 'GpuBuffer',
  copyToGpu: 'GpuBuffer',
  copyFromGpu: 'GpuBuffer',
  freeGpuMemory: 'GpuBuffer',
  mapDmabuf: 'DmaBuf',
  syncDmabuf: 'DmaBuf',
  acceptFdSocket: 'FdSocket',
  sendFds: 'FdSocket',
  receiveFds: 'FdSocket',
  createFdSocketEvents: 'FdSocket',
  startFdSocketEvents: 'FdSocketEvents',
  stopFdSocketEvents: 'FdSocketEvents',
  startAsyncEvents: 'AsyncEvents',
  stopAsyncEvents: 'AsyncEvents',
  attachMcast: 'QueuePair',
  detachMcast: 'QueuePair',
  bindMw: 'QueuePair',
  createChannelEvents: 'CompletionChannel',
  startChannelEvents: 'ChannelEvents',
  stopChannelEvents: 'ChannelEvents',
  reqNotifyCq: 'CompletionQueue',
  resizeCq: 'CompletionQueue',
  resizeCqSync: 'CompletionQueue',
  modifyCq: 'CompletionQueue',
  createWcRing: 'CompletionQueue',
  createWcRingEx: 'CompletionQueue',
  modifyQp: 'QueuePair',
  modifyQpSync: 'QueuePair',
  queryQp: 'QueuePair',
  queryEce: 'QueuePair',
  setEce: 'QueuePair',
  modifyQpRateLimit: 'QueuePair',
  queryQpDataInOrder: 'QueuePair',
  createSendList: 'QueuePair',
  createRecvList: 'QueuePair',
  createFlow: 'QueuePair',
  createCounters: 'Context',
  attachCounters: 'Counters',
  readCounters: 'Counters',
  createWq: 'ProtectionDomain',
  modifyWq: 'ReceiveWorkQueue',
  createWqRecvList: 'ReceiveWorkQueue',
  createRwqIndTable: 'Context',
  mlx5QueryDevice: 'Context',
  mlx5GetClockInfo: 'Context',
  mlx5CreateCq: 'Context',
  mlx5CreateQp: 'ProtectionDomain',
  mlx5QpNum: 'QueuePair',
  mlx5ModifyQpUdpSport: 'QueuePair',
  mlx5ModifyQpLagPort: 'QueuePair',
  mlx5QueryQpLagPort: 'QueuePair',
  mlx5DciStreamIdReset: 'QueuePair',
  ...Object.fromEntries(Object.entries(destroyers).map(([kind, name]) => [name, kind])),
};

const garbage = [
  undefined,
  null,
  0,
  -1,
  Number.NaN,
  'text',
  true,
  1n,
  Symbol('x'),
  () => {},
  {},
  [],
  new Proxy({}, {}),
  Buffer.alloc(8),
  new ArrayBuffer(8),
  Object.create(null),
  Promise.resolve(),
];

expectNoLeaks();

/** The error of a call, or undefined where it was taken. */
function failure(name: string, args: unknown[]): (Error & { code?: string }) | undefined {
  try {
    const result = call(name, ...args);
    if (result instanceof Promise) result.catch(() => {});
    return undefined;
  } catch (error) {
    return error as Error;
  }
}

describe('every function of the addon', () => {
  it('is known to this test', () => {
    const ofQueues = ['createWorkQueue', 'resizeWorkQueue', 'clearWorkQueue', 'destroyWorkQueue'];
    const others = [
      ...takesNothing,
      'setErrorClass',
      'openDevice',
      'importDevice',
      'mlx5IsSupported',
      'detach',
      'addressOf',
      ...ofQueues,
      ...[
        'gpuDriverState',
        'listGpus',
        'allocGpuMemory',
        'adoptGpuMemory',
        'createUdmabuf',
        'allocDmaHeap',
        'duplicateDmabuf',
        'dmabufOfProcess',
      ],
      ...['connectFdSocket', 'listenFdSocket', 'duplicateFdSocket'],
    ];
    others.push('getAddrInfo', ...cmFunctions);
    const texts = ['wcStatusStr', 'eventTypeStr', 'nodeTypeStr', 'portStateStr'];
    expect(functions.filter((name) => !(name in kinds) && !others.includes(name) && !texts.includes(name))).toEqual([]);
  });

  it('throws an Error when it is called with nothing', () => {
    for (const name of functions.filter((name) => !takesNothing.includes(name))) {
      expect(failure(name, []), name).toBeInstanceOf(Error);
    }
  });

  it('that takes a handle refuses everything else with ERR_INVALID_ARG_TYPE', () => {
    for (const [name, kind] of Object.entries(kinds)) {
      const wrong = [
        ...garbage,
        ...Object.keys(handles)
          .filter((other) => destroyers[other as keyof typeof destroyers] !== destroyers[kind])
          .map((other) => handles[other]),
      ];
      const own = handles[kind] as object | undefined;
      const like = own === undefined ? [] : [Object.create(own), new Proxy(own, {})];
      for (const value of [...wrong, ...like]) {
        const rest = [value, value, value, value, value];
        const error = failure(name, [value, ...rest]);
        expect(error?.code, `${name}(${typeof value})`).toBe('ERR_INVALID_ARG_TYPE');
      }
    }
  });

  it('throws an Error for garbage behind a good handle', () => {
    const numbers = new Set<unknown>([0, -1, Number.NaN]);
    for (const [name, kind] of Object.entries(kinds)) {
      // Those that take the handle only would do what they are for.
      if (Object.values(destroyers).includes(name) || handles[kind] === undefined) continue;
      if (
        [
          'queryDevice',
          'queryDeviceEx',
          'queryRtValues',
          'allocPd',
          'allocTd',
          'allocNullMr',
          'createCompChannel',
          'createCounters',
          'startChannelEvents',
          'stopChannelEvents',
          'startAsyncEvents',
          'stopAsyncEvents',
          'acceptFdSocket',
          'startFdSocketEvents',
          'stopFdSocketEvents',
          'querySrq',
          'getSrqNum',
          'createXrcRecvQp',
          'queryEce',
          'mlx5QueryDevice',
          'mlx5GetClockInfo',
          'mlx5QpNum',
          'mlx5QueryQpLagPort',
        ].includes(name)
      )
        continue;
      // Anything is true or false.
      if (name === 'reqNotifyCq') continue;
      for (const value of garbage) {
        if (numbers.has(value)) continue;
        // What it takes last is true or false here too, and the callback is a function.
        const takesCallback = ['createChannelEvents', 'createAsyncEvents', 'createFdSocketEvents'].includes(name);
        if (takesCallback && typeof value === 'function') continue;
        expect(
          failure(name, [handles[kind], value, value, value, value, value]),
          `${name}(handle, ${typeof value})`,
        ).toBeInstanceOf(Error);
      }
    }
  });

  it('that takes several handles checks each of them', () => {
    const { Context, ProtectionDomain: pd, CompletionQueue: cq, QueuePair: qp, MemoryRegion: mr } = handles;
    for (const [name, args] of [
      ['createQp', [pd, qp, cq, null, rc()]],
      ['createQp', [pd, cq, pd, null, rc()]],
      ['createQp', [pd, cq, cq, mr, rc()]],
      ['createAhFromWc', [pd, qp, 1, {}, null]],
      ['bindMw', [qp, mr, mr, 0, 8, 1, 2, 0, 0]],
      ['createCq', [Context, 4, cq, 0, 1]],
      ['createCq', [mr, 4, null, 0, 1]],
    ] as const) {
      expect(failure(name, [...args])?.code, name).toBe('ERR_INVALID_ARG_TYPE');
    }
  });

  it('refuses a flow whose bytes are not what they say', () => {
    const { bytes } = encodeFlow({ specs: [{ type: FlowSpecType.UDP, val: { dstPort: 1 } }] });
    const changed = (at: number, value: number) => Buffer.from(bytes).fill(value, at, at + 1);
    // The size of all, the number of specs, the type and the size of the first.
    const wrong = [8, 12, 20, 24].flatMap((at) => [0, 1, 0x7f, 0xff].map((value) => changed(at, value)));
    const count = encodeFlow({ specs: [{ type: FlowSpecType.ACTION_DROP }] }).bytes;
    const others = [bytes.subarray(0, -1), Buffer.concat([bytes, count]), new Uint16Array(32)];
    for (const given of [...wrong.filter((each) => !each.equals(bytes)), ...others]) {
      expect(failure('createFlow', [handles.QueuePair, given, []])?.code).toBe('ERR_INVALID_ARG_TYPE');
    }
    expect(failure('createFlow', [handles.QueuePair, bytes, [handles.QueuePair]])?.code).toBe('ERR_INVALID_ARG_TYPE');
  });

  it('refuses ranges that memory does not have', () => {
    const memory = new ArrayBuffer(64);
    const detached = new ArrayBuffer(64);
    structuredClone(detached, { transfer: [detached] });
    for (const [buffer, offset, length] of [
      [memory, 0, 65],
      [memory, 65, 0],
      [memory, 64, 1],
      [memory, -1, 8],
      [memory, 8, -1],
      [memory, 2 ** 53, 8],
      [memory, 8, 2 ** 53],
      [memory, Number.POSITIVE_INFINITY, 8],
      [detached, 0, 8],
      [new SharedArrayBuffer(64), 0, 8],
    ] as const) {
      for (const name of ['regMr', 'regMrSync']) {
        const error = failure(name, [handles.ProtectionDomain, buffer, offset, length, 1]);
        expect(error?.code, `${name}(${offset}, ${length})`).toBe('ERR_INVALID_ARG_TYPE');
      }
    }
  });

  it('refuses sizes that cannot be right', async () => {
    const { QueuePair: qp, CompletionQueue: cq } = handles;
    const sizes = [2 ** 31, 2 ** 32 - 1];
    for (const size of sizes) {
      expect(failure('createWorkQueue', [size]), 'createWorkQueue').toBeInstanceOf(Error);
      expect(failure('createWcRing', [cq, size]), 'createWcRing').toBeInstanceOf(Error);
      const { id } = call('createWorkQueue', 4) as { id: number };
      for (const name of ['createSendList', 'createRecvList']) {
        expect(failure(name, [qp, size, 1, id]), name).toBeInstanceOf(Error);
        expect(failure(name, [qp, 4, size, id]), name).toBeInstanceOf(Error);
        expect(failure(name, [qp, 4, 1, id + 1]), name).toBeInstanceOf(Error);
      }
      call('destroyWorkQueue', id);
      call('destroyWorkQueue', id);
    }
    for (const length of [-1, 2 ** 53]) {
      for (const name of ['allocMr', 'allocMrSync']) {
        expect(failure(name, [handles.ProtectionDomain, length, 1, false])?.code).toBe('ERR_INVALID_ARG_TYPE');
      }
    }
    const length = Number.MAX_SAFE_INTEGER;
    expect(failure('allocMrSync', [handles.ProtectionDomain, length, 1, false])?.code).toBe('ENOMEM');
    await expect(call('allocMr', handles.ProtectionDomain, length, 1, false)).rejects.toMatchObject({ code: 'ENOMEM' });
  });

  it('gives a shared queue more room and keeps what is in flight, which other memory than the first says', async () => {
    const { memory, id } = call('createWorkQueue', 5, false) as { memory: ArrayBuffer; id: number };
    const list = call('createSrqRecvList', handles.SharedReceiveQueue, 4, 1, id) as { list: number };
    const words = new Int32Array(binding().doorbell as ArrayBuffer);
    const post = (count: number) => {
      words.set([list.list, count, 12345, 12345]);
      call('ring');
      return [words[2], words[3]];
    };
    expect(post(4)).toEqual([0, 4]);
    // There are slots for eight.
    expect([call('resizeWorkQueue', id, 8), call('resizeWorkQueue', id, 4)]).toEqual([null, null]);
    expect(post(1)).toEqual([constants.errno.ENOMEM, 0]);
    const larger = call('resizeWorkQueue', id, 9) as ArrayBuffer;
    const inUse = [memory, larger].map((buffer) => new Uint8Array(buffer, 8).filter((slot) => slot === 1).length);
    expect([...inUse, larger.byteLength]).toEqual([4, 4, 8 + 16]);
    expect(new Int32Array(larger, 0, 2)).toEqual(new Int32Array(memory, 0, 2));
    // The first memory has a finalizer, which is not this queue's end.
    for (let size = 32; size <= 1024; size *= 2) call('resizeWorkQueue', id, size);
    const last = call('resizeWorkQueue', id, 2048) as ArrayBuffer;
    await collect();
    expect(call('resizeWorkQueue', id, 2047)).toBeNull();
    expect(new Uint8Array(last, 8).filter((slot) => slot === 1)).toHaveLength(4);

    expect(failure('resizeWorkQueue', [id, 3])).toBeInstanceOf(RangeError);
    expect(failure('resizeWorkQueue', [id, 2 ** 31])).toBeInstanceOf(Error);
    const inOrder = call('createWorkQueue', 4, true) as { id: number };
    for (const other of [inOrder.id, id + 1000]) {
      expect(failure('resizeWorkQueue', [other, 8])?.code).toBe('ERR_INVALID_ARG_TYPE');
    }
    for (const queue of [id, inOrder.id]) call('destroyWorkQueue', queue);
  });

  it('rings for no list, or for a list with a wrong count, without touching anything', () => {
    const words = new Int32Array(binding().doorbell as ArrayBuffer);
    const ring = call('createWcRing', handles.CompletionQueue, 4) as { list: number; memory: ArrayBuffer };
    for (const list of [-1, 0x7fff_ffff, 0x4000_0000, ring.list]) {
      for (const count of [-1, 0, 5, 0x7fff_ffff, -0x8000_0000]) {
        words.set([list, count, 12345, 12345]);
        call('ring');
        expect(words[2], `list ${list}, count ${count}`).toBeLessThan(0);
      }
    }
    words.set([ring.list, 4, 12345, 0]);
    call('ring');
    expect(words[2]).toBe(0);
    expect(ring.memory.byteLength).toBeGreaterThan(0);
  });

  it('refuses an attribute that is missing or of a wrong type', () => {
    const { QueuePair: qp, ProtectionDomain: pd, CompletionQueue: cq } = handles;
    const bits = Array.from({ length: 26 }, (_, i) => 1 << i);
    const known = bits.filter((bit) => failure('modifyQpSync', [qp, {}, bit])?.code === 'ERR_INVALID_ARG_TYPE');
    // All of struct ibv_qp_attr but those that are objects within, which throw as well.
    expect(known.length).toBeGreaterThanOrEqual(18);
    for (const attr of [
      { ahAttr: 1 },
      { ahAttr: {} },
      { ahAttr: { isGlobal: true } },
      { ahAttr: { isGlobal: true, grh: {} } },
    ]) {
      expect(failure('modifyQpSync', [qp, attr, 1 << 7]), JSON.stringify(attr)).toBeInstanceOf(Error);
    }
    expect(
      failure('modifyQpSync', [qp, { ahAttr: { isGlobal: true, grh: { dgid: Buffer.alloc(15) } } }, 1 << 7]),
    ).toBeInstanceOf(Error);
    for (const name of Object.keys(cap())) {
      expect(failure('createQp', [pd, cq, cq, null, rc({ [name]: 'x' })])?.code).toBe('ERR_INVALID_ARG_TYPE');
    }
  });
});

describe('a handle', () => {
  it('that is closed is refused with ERR_RDMA_CLOSED, and can be closed again', () => {
    const context = (call('openDevice', deviceA) as { handle: unknown }).handle;
    const pd = (call('allocPd', context) as { handle: unknown }).handle;
    call('deallocPd', pd);
    call('deallocPd', pd);
    call('closeDevice', context);
    call('closeDevice', context);
    expect(failure('allocMrSync', [pd, 64, 1, false])?.code).toBe('ERR_RDMA_CLOSED');
    expect(failure('queryDevice', [context])?.code).toBe('ERR_RDMA_CLOSED');
    expect(failure('allocPd', [context])?.code).toBe('ERR_RDMA_CLOSED');
  });

  it('whose children live goes with the last of them', () => {
    const context = (call('openDevice', deviceA) as { handle: unknown }).handle;
    const pd = (call('allocPd', context) as { handle: unknown }).handle;
    const { handle: mr } = call('allocMrSync', pd, 64, 1, false) as { handle: unknown };
    call('closeDevice', context);
    call('deallocPd', pd);
    call('deregMr', mr);
  });
});
