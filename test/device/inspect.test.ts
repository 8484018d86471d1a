/** What util.inspect() shows of each object: names, no insides, and nothing that asks the device. */
import assert from 'node:assert/strict';
import { inspect } from 'node:util';
import { describe, expect, it } from 'vitest';
import {
  AccessFlags,
  CreateCqWcFlags,
  connectTcp,
  EventType,
  eventTypeStr,
  getDeviceList,
  listenTcp,
  Mlx5dvDcType,
  MwType,
  mlx5dv,
  openDevice,
  QpState,
  QpType,
  SendFlags,
  SrqType,
  WcStatus,
  WrOpcode,
  wcStatusName,
  wcStatusStr,
} from '../../lib/index.ts';
import {
  ALL_ACCESS,
  completion,
  connectSides,
  DEADLINE_MS,
  deviceA,
  deviceB,
  expectNoLeaks,
  initAttr,
  isRxe,
  openSide,
  Pair,
} from './fixture.ts';

expectNoLeaks();

/** As a pattern: `N` stands for a number, `X` for a hexadecimal one, and all else for itself. */
function pattern(text: string): RegExp {
  const literal = text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
  return new RegExp(`^${literal.replace(/\bN\b/g, '\\d+').replace(/\bX\b/g, '0x[0-9a-f]+')}$`);
}

describe('an object of verbs', () => {
  it('is printed on one line, under the names of its properties; and says that it is closed', () => {
    const context = openDevice(deviceA);
    const pd = context.allocPd();
    const channel = context.createCompChannel();
    const cq = context.createCq(64, { channel });
    const polled = context.createCq(256, { channel: null });
    const srq = pd.createSrq({ maxWr: 8 });
    const qp = pd.createQp({ sendCq: cq, cap: { maxSendWr: 32, maxRecvWr: 16 } });
    const ud = pd.createQp({ sendCq: polled, qpType: QpType.UD, srq });
    const mr = pd.allocSync(8192, { access: ALL_ACCESS | AccessFlags.MW_BIND });
    const mw = pd.allocMw(MwType.MW_TYPE_2);
    const { gid, gidIndex } = context.selectGid();
    const ah = pd.createAh({ grh: { dgid: gid, sgidIndex: gidIndex, hopLimit: 3 } });
    qp.modifySync(initAttr());
    qp.postRecv([{ wrId: 1 }, { wrId: 2, sgList: mr.slice(0, 64) }]);
    srq.postRecv({ sgList: mr.slice(64, 64) });

    const inFlight = `sendsInFlight: 0 of ${qp.cap.maxSendWr}, recvsInFlight: 2 of ${qp.cap.maxRecvWr}`;
    const access = 'LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | MW_BIND';
    const texts = new Map<object, string>([
      [context, `Context { name: '${deviceA}', numCompVectors: N }`],
      [pd, `ProtectionDomain { context: Context of ${deviceA} }`],
      [channel, `CompletionChannel { context: Context of ${deviceA}, waits: 0 }`],
      [cq, `CompletionQueue { cqe: N, context: Context of ${deviceA}, channel: CompletionChannel, queuePairs: 1 }`],
      [polled, `CompletionQueue { cqe: N, context: Context of ${deviceA}, channel: null, queuePairs: 1 }`],
      [srq, 'SharedReceiveQueue { srqType: BASIC, maxWr: N, maxSge: N, recvsInFlight: 1 }'],
      [qp, `QueuePair { qpNum: X, qpType: RC, state: INIT, ${inFlight} }`],
      [
        ud,
        `QueuePair { qpNum: X, qpType: UD, state: RESET, sendsInFlight: 0 of N, srq: SharedReceiveQueue (N receives) }`,
      ],
      [mr, `MemoryRegion { addr: X, length: 8192, lkey: X, rkey: X, access: ${access} }`],
      [mr.slice(16, 64), 'MemorySlice { offset: 16, length: 64, addr: X, lkey: X }'],
      [mw, 'MemoryWindow { type: MW_TYPE_2, rkey: X }'],
      [ah, `AddressHandle { dgid: '${gid}', sgidIndex: ${gidIndex}, hopLimit: 3, portNum: 1 }`],
    ]);
    for (const [object, text] of texts) {
      expect(inspect(object)).toMatch(pattern(text));
      expect(inspect([object], { depth: 0 })).toMatch(/^\[ \[\w+\] \]$/);
      expect(inspect(object, { showHidden: true, getters: true })).toMatch(pattern(text));
    }
    expect(inspect(mr)).toContain(`addr: 0x${mr.addr.toString(16)},`);
    expect(inspect(mr.slice(16, 64))).toContain(`addr: 0x${(mr.addr + 16n).toString(16)},`);

    // A copy of what is printed while it is open shows no number that has changed by closing it.
    srq.close({ cascade: true });
    qp.close();
    context.close({ cascade: true });
    for (const [object] of texts) {
      expect(inspect(object)).toMatch(/^\w+ \[closed\] \{ /);
      expect(inspect(object, { depth: -1 })).toMatch(/^\[\w+ \[closed\]\]$/);
    }
  });

  it.skipIf(isRxe)('is printed so whatever its kind', () => {
    const context = openDevice(deviceA);
    const pd = context.allocPd();
    const cq = context.createCq(1024);
    const cqEx = context.createCqEx(16, { wcFlags: CreateCqWcFlags.WITH_QP_NUM });
    const wq = context.createWq({ pd, cq, maxWr: 16 });
    const rwqIndTbl = context.createRwqIndTable([wq, wq]);
    const rss = pd.createQp({ rwqIndTbl, rxHashConf: { rxHashKey: Buffer.alloc(40), rxHashFieldsMask: 0 } });
    const td = context.allocTd();
    const xrcd = context.openXrcd();
    const srq = pd.createSrq({ maxWr: 8 });
    const { wqNum, qpNum } = { wqNum: wq.wqNum.toString(16), qpNum: rss.qpNum.toString(16) };
    const where = `context: Context of ${deviceA}`;
    const texts = new Map<object, string>([
      [
        cqEx,
        `CompletionQueueEx { cqe: N, ${where}, channel: CompletionChannel, queuePairs: 0, wcFlags: WITH_QP_NUM, flags: 0 }`,
      ],
      [wq, 'ReceiveWorkQueue { wqNum: X, state: RESET, maxSge: 1, recvsInFlight: 0 of 16 }'],
      [rwqIndTbl, `RwqIndTable { indTblNum: X, wqs: [ ReceiveWorkQueue 0x${wqNum}, ReceiveWorkQueue 0x${wqNum} ] }`],
      [rss, 'RssQueuePair { qpNum: X, qpType: RAW_PACKET, state: RESET, rwqIndTbl: RwqIndTable of 2 }'],
      [rss.createFlow({}), `Flow { qp: RssQueuePair 0x${qpNum} }`],
      [context.createCounters(), `Counters { ${where} }`],
      [td, `ThreadDomain { ${where} }`],
      [pd.allocParentDomain({ td }), `ProtectionDomain { ${where}, pd: ProtectionDomain, td: ThreadDomain }`],
      [xrcd, `XrcDomain { ${where} }`],
      [
        context.createQp({ qpType: QpType.XRC_RECV, xrcd }),
        'XrcRecvQueuePair { qpNum: X, qpType: XRC_RECV, state: RESET }',
      ],
      [
        pd.createSrq({ srqType: SrqType.XRC, xrcd, cq, maxWr: 8 }),
        'SharedReceiveQueue { srqType: XRC, maxWr: 8, maxSge: 1, recvsInFlight: 0 }',
      ],
      [context.allocDm({ length: 64 }), `DeviceMemory { ${where}, length: 64 }`],
      [pd.regImplicitMr(), 'ImplicitRegion { lkey: X, access: LOCAL_WRITE | ON_DEMAND }'],
      [
        mlx5dv.createQp(pd, { sendCq: cq, cap: { maxSendWr: 8 } }, { dcType: Mlx5dvDcType.DCI }),
        'QueuePair { qpNum: X, qpType: DRIVER, state: RESET, sendsInFlight: 0 of 8, recvsInFlight: 0 of 0 }',
      ],
      [
        mlx5dv.createQp(pd, { sendCq: cq, srq }, { dcType: Mlx5dvDcType.DCT, dctAccessKey: 1n }),
        'DctQueuePair { qpNum: X, qpType: DRIVER, state: RESET, srq: SharedReceiveQueue (N receives), recvCq: CompletionQueue (N entries) }',
      ],
      [pd.allocNullMr(), 'NullRegion { addr: 0x0, length: N, lkey: X, rkey: 0x0, access: LOCAL_WRITE }'],
    ]);
    for (const [object, text] of texts) expect(inspect(object)).toMatch(pattern(text));
    context.close({ cascade: true });
    for (const [object] of texts) expect(inspect(object)).toMatch(/^\w+ \[closed\] \{ /);
  });

  it('is found by name in the list of who needs a parent', () => {
    using side = openDevice(deviceA);
    using pd = side.allocPd();
    using mr = pd.allocSync(4096);
    let error: unknown;
    try {
      pd.close();
    } catch (caught) {
      error = caught;
    }
    expect(inspect(error)).toContain(`children: [\n    ${inspect(mr)}\n  ]`);
  });
});

describe('a prepared list', () => {
  it('is printed with its requests', () => {
    const { context, qp, mr } = openSide(deviceA, { cap: { maxSendSge: 2, maxRecvSge: 2 } });
    const sends = qp.prepareSend([
      { wrId: 5, opcode: WrOpcode.SEND, sgList: [mr.slice(0, 3), mr.slice(8, 4)], sendFlags: 0 },
      { opcode: WrOpcode.SEND_WITH_IMM, immData: 1, sendFlags: SendFlags.SIGNALED | SendFlags.SOLICITED },
    ]);
    expect(inspect(sends)).toBe(
      'SendList { length: 2, requests: [ { wrId: 5, opcode: SEND, bytes: 7, sendFlags: 0 }, ' +
        '{ wrId: 0, opcode: SEND_WITH_IMM, bytes: 0, sendFlags: SIGNALED | SOLICITED } ] }',
    );
    const recvs = qp.prepareRecv({ wrId: 7, sgList: [mr.slice(0, 3), mr.slice(8, 40)] });
    expect(inspect(recvs)).toBe('RecvList { length: 1, requests: [ { wrId: 7, bytes: 43 } ] }');
    context.close({ cascade: true });
  });
});

describe('a completion', () => {
  it('is printed with what means something in it, as a cursor and to keep; kept, it is data', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    b.qp.postRecv({ wrId: 1, sgList: b.mr.slice(0, 64) });
    a.qp.postSend({ wrId: 2, opcode: WrOpcode.SEND_WITH_IMM, sgList: a.mr.slice(0, 5), immData: 0xcafe });
    await a.cq.wait({ signal: AbortSignal.timeout(DEADLINE_MS) });
    // Both devices set the flag here, too.
    const sent = 'WorkCompletion { wrId: 2, status: SUCCESS, opcode: SEND, qpNum: X, wcFlags: WITH_IMM }';
    expect(inspect(a.cq.at(0))).toMatch(pattern(sent));
    expect(inspect(a.cq.at(0), { depth: -1 })).toBe('[WorkCompletion]');

    expect(await b.cq.wait({ signal: AbortSignal.timeout(DEADLINE_MS) })).toBe(1);
    // rdma_rxe says of every receive that it has a header.
    expect(inspect(b.cq.at(0))).toMatch(
      /^WorkCompletion \{ wrId: 1, status: SUCCESS, opcode: RECV, byteLen: 5, immData: 0xcafe, qpNum: 0x[0-9a-f]+, wcFlags: (GRH \| )?WITH_IMM \}$/,
    );
    b.qp.postRecv({ wrId: 3, sgList: b.mr.slice(0, 64) });
    a.qp.postSend({ opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 65) });
    for await (const wc of a.cq) {
      // What the peer answers depends on the device.
      expect([WcStatus.REM_INV_REQ_ERR, WcStatus.REM_OP_ERR]).toContain(wc.status);
      const status = `${wcStatusName(wc.status)} (${wcStatusStr(wc.status)})`;
      expect(inspect(wc)).toMatch(pattern(`WorkCompletion { wrId: 0, status: ${status}, vendorErr: X, qpNum: X }`));
      expect(Object.keys(wc)).toHaveLength(14);
      expect(wc).toEqual(JSON.parse(JSON.stringify(wc)));
      assert.deepEqual(structuredClone(wc), { ...wc });
      break;
    }
    const failed = await completion(b.cq, 'the receive');
    expect(failed).toMatchObject({ wrId: 3 });
  });
});

describe('a completion of an extended queue', () => {
  it.skipIf(isRxe)('is printed with what else it tells; one in error without', async () => {
    const { WITH_COMPLETION_TIMESTAMP, WITH_BYTE_LEN, WITH_QP_NUM } = CreateCqWcFlags;
    const wcFlags = WITH_COMPLETION_TIMESTAMP | WITH_BYTE_LEN | WITH_QP_NUM;
    const context = openDevice(deviceA);
    const cq = context.createCqEx(64, { wcFlags });
    const pd = context.allocPd();
    const a = {
      ...{ context, pd, cq },
      qp: pd.createQp({ sendCq: cq, cap: { maxSendWr: 4, maxRecvWr: 4 } }),
      mr: pd.allocSync(64),
    };
    const b = openSide(deviceB);
    await connectSides(a, b);
    a.qp.postRecv([1, 2, 3].map((wrId) => ({ wrId, sgList: a.mr.slice(0, 8) })));
    const text = 'WorkCompletion { wrId: N, status: SUCCESS, opcode: RECV, byteLen: 5, qpNum: X, completionTs: Tn }';
    const good = new RegExp(pattern(text).source.replace('Tn', '\\d+n'));
    b.qp.postSend({ opcode: WrOpcode.SEND, sgList: b.mr.slice(0, 5) });
    for await (const wc of cq) {
      expect(inspect(wc)).toMatch(good);
      break;
    }
    b.qp.postSend({ opcode: WrOpcode.SEND, sgList: b.mr.slice(0, 5) });
    expect(await cq.wait({ signal: AbortSignal.timeout(DEADLINE_MS) })).toBe(1);
    expect(inspect(cq.at(0))).toMatch(good);
    a.qp.modifySync({ qpState: QpState.ERR });
    expect(await cq.wait({ signal: AbortSignal.timeout(DEADLINE_MS) })).toBe(1);
    const flushed = `WR_FLUSH_ERR (${wcStatusStr(WcStatus.WR_FLUSH_ERR)})`;
    expect(inspect(cq.at(0))).toMatch(
      pattern(`WorkCompletion { wrId: 3, status: ${flushed}, vendorErr: 0xf9, qpNum: X }`),
    );
    for (const each of [context, b.context]) each.close({ cascade: true });
  });
});

describe('attributes', () => {
  it('of devices, ports, GIDs and queue pairs are printed with names, and stay plain data', () => {
    const { context, qp } = openSide(deviceA);
    const [device] = getDeviceList().filter(({ name }) => name === deviceA);
    expect(inspect(device)).toMatch(/^Device \{\s+name: '\w+',.*nodeType: CA \(InfiniBand channel adapter\),\s/s);
    expect(inspect(context.queryDevice())).toMatch(/deviceCapFlags: .*SYS_IMAGE_GUID \| .*\s+atomicCap: HCA,/s);
    expect(inspect(context.queryDevice())).toMatch(/^DeviceAttr \{.*nodeGuid: 0x[0-9a-f]{16},/s);
    const port =
      /^PortAttr \{\s+state: ACTIVE,.*activeMtu: MTU_\d+,.*physState: LINK_UP,.*ETHERNET,\s+flags: (0|GRH_REQUIRED),/s;
    expect(inspect(context.queryPort(1))).toMatch(port);
    const gid = context.selectGid();
    const netdev = inspect(gid.netdev);
    expect(inspect(gid)).toBe(
      `GidEntry { gid: '${gid.gid}', gidIndex: ${gid.gidIndex}, portNum: 1, gidType: ROCE_V2, netdev: ${netdev} }`,
    );
    expect(inspect(context.queryGidEx(1, gid.gidIndex))).toBe(inspect(gid));
    qp.modifySync(initAttr());
    const attrs = qp.query();
    expect(attrs.qpState).toBe(QpState.INIT);
    expect(inspect(attrs)).toMatch(/^QpAttrs \{\s+qpState: INIT,.*destQpNum: 0x0,/s);
    expect(inspect(attrs)).toContain('qpAccessFlags: REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC,');
    for (const object of [device, context.queryDevice(), context.queryPort(1), gid, attrs]) {
      expect(Object.getPrototypeOf(object)).toBe(Object.prototype);
      assert.deepStrictEqual(object, { ...object });
      expect(structuredClone(object)).toStrictEqual({ ...object });
    }
    context.close({ cascade: true });
  });
});

describe('what queries tell', () => {
  it('is printed with names, also deep within, and stays plain data', () => {
    const { context, pd } = openSide(deviceA);
    const srq = pd.createSrq({ maxWr: 8 });
    const attr = context.queryDeviceEx();
    const text = inspect(attr).replaceAll(/\s+/g, ' ');
    expect(text).toMatch(/^DeviceAttrEx \{ origAttr: DeviceAttr \{ fwVer: .* nodeGuid: 0x[0-9a-f]{16}, /);
    expect(text).toMatch(/ deviceCapFlags: .*SYS_IMAGE_GUID \| .* atomicCap: HCA, /);
    expect(text).toMatch(/ deviceCapFlagsEx: .*SYS_IMAGE_GUID \| /);
    const all = (name: string) => (isRxe ? `${name}: 0` : `${name}: SEND \\| RECV \\| WRITE \\| READ \\| ATOMIC`);
    const transports = ['rcOdpCaps', 'ucOdpCaps', 'udOdpCaps'].map(all).join(', ');
    expect(text).toMatch(
      new RegExp(
        ` odpCaps: \\{ generalCaps: ${isRxe ? 0 : 'SUPPORT.*'}, perTransportCaps: \\{ ${transports} \\} \\}, `,
      ),
    );
    expect(text).toContain(`completionTimestampMask: ${isRxe ? '0x0' : '0xffffffffffffffff'}, hcaCoreClock: `);
    expect(text).toContain(' pciAtomicCaps: { fetchAdd: 0, swap: 0, compareSwap: 0 }, xrcOdpCaps: ');
    expect(inspect(srq.query())).toMatch(pattern('SrqAttr { maxWr: N, maxSge: N, srqLimit: 0 }'));
    for (const object of [attr, attr.origAttr, srq.query()]) {
      expect(Object.getPrototypeOf(object)).toBe(Object.prototype);
      expect(structuredClone(object)).toStrictEqual({ ...object });
    }
    // What neither device has.
    Object.assign(attr, {
      deviceCapFlagsEx: 2n ** 34n + 2n ** 40n,
      tsoCaps: { maxTso: 1, supportedQpts: 2 ** QpType.RAW_PACKET },
      rssCaps: { supportedQpts: 4, rxHashFieldsMask: 0x8000_0001n, rxHashFunction: 1 },
      rawPacketCaps: 5,
      tmCaps: { maxNumTags: 3, flags: 1 },
      pciAtomicCaps: { fetchAdd: 0, swap: 2, compareSwap: 6 },
    });
    const more = inspect(attr).replaceAll(/\s+/g, ' ');
    for (const part of [
      'deviceCapFlagsEx: RAW_SCATTER_FCS | 0x10000000000, tsoCaps: { maxTso: 1, supportedQpts: RAW_PACKET }, ',
      'rssCaps: { supportedQpts: RC, rxHashFieldsMask: SRC_IPV4 | INNER, rxHashFunction: TOEPLITZ }, ',
      'rawPacketCaps: CVLAN_STRIPPING | IP_CSUM, tmCaps: { maxNumTags: 3, flags: RC }, ',
      'swap: OPERATION_8_BYTE_SIZE_SUP, compareSwap: OPERATION_8_BYTE_SIZE_SUP | OPERATION_16_BYTE_SIZE_SUP }, ',
    ]) {
      expect(more).toContain(part);
    }
    context.close({ cascade: true });
  });

  it.skipIf(isRxe)('is printed so where only one device tells it', () => {
    const { context, qp } = openSide(deviceA);
    const [ece, clock, now] = [qp.queryEce(), mlx5dv.getClockInfo(context), context.queryRtValues()];
    expect(inspect(ece)).toBe(`Ece { vendorId: 0x15b3, options: 0x${ece.options.toString(16)} }`);
    const cycles = 'nsec: \\d+n, lastCycles: \\d+n, frac: \\d+n, mult: \\d+, shift: \\d+, mask: 0x1?f+';
    expect(inspect(clock)).toMatch(new RegExp(`^Mlx5dvClockInfo \\{ ${cycles} \\}$`));
    expect(inspect(now)).toBe(`RtValues { rawClock: ${now.rawClock}n }`);
    expect(inspect(mlx5dv.queryDevice(context))).toMatch(/dcOdpCaps: (SEND|0)/);
    for (const object of [ece, clock, now]) expect(structuredClone(object)).toStrictEqual({ ...object });
    context.close({ cascade: true });
  });
});

describe('an asynchronous event', () => {
  it('is printed with what happened, in words of libibverbs, and to which object', async () => {
    using pair = await Pair.connect();
    const { a } = pair;
    const next = a.context.getAsyncEvent({ signal: AbortSignal.timeout(DEADLINE_MS) });
    await a.qp.modify({ qpState: QpState.SQD, enSqdAsyncNotify: 1 });
    const event = await next;
    expect({ ...event }).toStrictEqual({ type: EventType.SQ_DRAINED, name: 'SQ_DRAINED', qp: a.qp });
    const text = eventTypeStr(EventType.SQ_DRAINED);
    expect(inspect(event)).toBe(`AsyncEvent { type: SQ_DRAINED (${text}), qp: ${inspect(a.qp)} }`);
  });
});

describe('an endpoint and a listener', () => {
  it('are printed with their queue pair and port', async () => {
    const [contextA, contextB] = [openDevice(deviceA), openDevice(deviceB)];
    const listener = await listenTcp({ pd: contextA.allocPd(), host: '127.0.0.1', port: 0 });
    expect(inspect(listener)).toBe(`TcpListener { port: ${listener.port}, unaccepted: 0 }`);
    const options = { pd: contextB.allocPd(), host: '127.0.0.1', port: listener.port, privateData: 'twelve bytes' };
    const [there, here] = await Promise.all([listener.accept(), connectTcp(options)]);
    expect(inspect(here)).toBe(`Endpoint { qp: ${inspect(here.qp)} }`);
    expect(inspect(there)).toBe(`Endpoint { qp: ${inspect(there.qp)}, privateData: 12 bytes }`);
    expect(inspect(here, { depth: 0 })).toBe('Endpoint { qp: [QueuePair] }');
    const closing = here.close();
    expect(inspect(here)).toMatch(/^Endpoint \[clos(ing|ed)\] \{ qp: QueuePair/);
    await Promise.all([closing, there.close(), listener.close()]);
    expect(inspect(here)).toMatch(/^Endpoint \[closed\] \{ qp: QueuePair \[closed\]/);
    expect(inspect(listener)).toBe('TcpListener [closed] { port: 0, unaccepted: 0 }');
    for (const context of [contextA, contextB]) context.close({ cascade: true });
  });
});
