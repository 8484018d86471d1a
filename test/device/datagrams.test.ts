/** UC and UD queue pairs, address handles, multicast. */
import { inspect } from 'node:util';
import { describe, expect, it } from 'vitest';
import {
  AccessFlags,
  type Context,
  type GidEntry,
  GidType,
  GRH_BYTES,
  openDevice,
  type ProtectionDomain,
  parseGid,
  QpState,
  QpType,
  type QueuePair,
  RemoteRegion,
  readDatagram,
  SendFlags,
  WcFlags,
  WcOpcode,
  WcStatus,
  type WorkCompletion,
  WrOpcode,
} from '../../lib/index.ts';
import {
  ALL_ACCESS,
  completion,
  completions,
  deviceA,
  deviceB,
  expectNoLeaks,
  fill,
  isRxe,
  thrown,
} from './fixture.ts';

expectNoLeaks();

const QKEY = 0x1111_1111;
/** The group of all hosts: of another the interface would have to be a member, for which there is the connection manager. */
const GROUP = '::ffff:224.0.0.1';

interface End {
  context: Context;
  pd: ProtectionDomain;
  qp: QueuePair;
}

function open(device: string, qpType: QpType): End {
  const context = openDevice(device);
  const pd = context.allocPd();
  const qp = pd.createQp({ sendCq: context.createCq(256), qpType, cap: { maxSendSge: 2, maxRecvSge: 2 } });
  return { context, pd, qp };
}

function readyUd(end: End): void {
  end.qp.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 1, qkey: QKEY });
  end.qp.modifySync({ qpState: QpState.RTR });
  end.qp.modifySync({ qpState: QpState.RTS, sqPsn: 7 });
}

function addressOf(from: End, to: End) {
  return { grh: { dgid: to.context.selectGid().gid, sgidIndex: from.context.selectGid().gidIndex } };
}

/** The GIDs of RoCE v2 of a device that are of IPv4, or of IPv6. */
function gidOf({ context }: End, version: 4 | 6): GidEntry {
  const is = ({ gid, gidType }: GidEntry) =>
    gidType === GidType.ROCE_V2 && gid.startsWith('::ffff:') === (version === 4);
  return context.queryGidTable().find(is)!;
}

function withUd(run: (a: End, b: End) => Promise<void>): () => Promise<void> {
  return async () => {
    const [a, b] = [open(deviceA, QpType.UD), open(deviceB, QpType.UD)];
    for (const end of [a, b]) readyUd(end);
    try {
      await run(a, b);
    } finally {
      for (const end of [a, b]) end.qp.close();
      for (const end of [a, b]) end.context.close({ cascade: true });
    }
  };
}

describe('a UD queue pair', () => {
  it(
    'sends a datagram, whose payload and sender the receiver finds, and which it can answer',
    withUd(async (a, b) => {
      const mrA = a.pd.allocSync(4096, { access: ALL_ACCESS });
      const mrB = b.pd.allocSync(4096, { access: ALL_ACCESS });
      const sent = fill(mrA.buffer.subarray(0, 300), 4);
      b.qp.postRecv({ wrId: 1, sgList: mrB.slice(0, GRH_BYTES + 300) });
      a.qp.postRecv({ wrId: 2, sgList: mrA.slice(1024, GRH_BYTES + 300) });

      using ah = a.pd.createAh(addressOf(a, b));
      a.qp.postSend({
        wrId: 3,
        opcode: WrOpcode.SEND_WITH_IMM,
        sgList: mrA.slice(0, 300),
        immData: 0xffff_fffe,
        ah,
        remoteQpn: b.qp.qpNum,
        remoteQkey: QKEY,
      });
      expect(thrown(() => ah.close())).toMatchObject({ code: 'EBUSY' });
      expect(await completion(a.qp.sendCq, 'the send')).toMatchObject({ wrId: 3, status: WcStatus.SUCCESS });

      const wc = await completion(b.qp.recvCq, 'the datagram');
      expect(wc).toMatchObject({
        wrId: 1,
        status: WcStatus.SUCCESS,
        opcode: WcOpcode.RECV,
        byteLen: 340,
        immData: 0xffff_fffe,
        srcQp: a.qp.qpNum,
      });
      expect(wc.wcFlags & WcFlags.GRH).toBe(WcFlags.GRH);
      const { payload, grh } = readDatagram(wc, mrB.buffer);
      expect(payload.equals(sent)).toBe(true);
      expect(grh?.sgid).toBe(a.context.selectGid().gid);
      expect(grh?.dgid).toBe(b.context.selectGid().gid);

      // The answer goes to where the datagram came from.
      using back = b.pd.createAhFromWc(wc, mrB.buffer);
      b.qp.postSend({
        opcode: WrOpcode.SEND,
        sgList: mrB.slice(GRH_BYTES, 5),
        ah: back,
        remoteQpn: wc.srcQp,
        remoteQkey: QKEY,
      });
      await completion(b.qp.sendCq, 'the answer is sent');
      const answer = await completion(a.qp.recvCq, 'the answer');
      expect(readDatagram(answer, mrA.buffer.subarray(1024)).payload.equals(sent.subarray(0, 5))).toBe(true);
    }),
  );

  it.each([4, 6] as const)('reads the header of IPv%i, and so does libibverbs', async (version) => {
    await withUd(async (a, b) => {
      const mrA = a.pd.allocSync(4096, { access: ALL_ACCESS });
      const mrB = b.pd.allocSync(4096, { access: ALL_ACCESS });
      const [from, to] = [gidOf(a, version), gidOf(b, version)];
      const sent = fill(mrA.buffer.subarray(0, 20), 9);
      // As if a datagram of IPv6 had been there before.
      mrB.buffer.fill(0x60, 0, GRH_BYTES);
      b.qp.postRecv({ sgList: mrB.slice(0, GRH_BYTES + 20) });
      a.qp.postRecv({ sgList: mrA.slice(1024, GRH_BYTES + 20) });
      // The kernel replaces the hop limit by that of the route when it resolves the neighbour, for Soft-RoCE.
      const hopLimit = isRxe ? 64 : 33;
      const grh = { dgid: to.gid, sgidIndex: from.gidIndex, hopLimit, trafficClass: 0x68, flowLabel: 0xabcde };
      using ah = a.pd.createAh({ grh });
      const remote = { remoteQpn: b.qp.qpNum, remoteQkey: QKEY };
      a.qp.postSend({ opcode: WrOpcode.SEND, sgList: mrA.slice(0, 20), ah, ...remote });
      await completion(a.qp.sendCq, 'the send');
      const wc = await completion(b.qp.recvCq, 'the datagram');
      const got = readDatagram(wc, mrB.buffer);
      expect(got.payload.equals(sent)).toBe(true);
      expect(got.grh).toEqual({
        version,
        sgid: from.gid,
        dgid: to.gid,
        trafficClass: 0x68,
        // Soft-RoCE sends none.
        flowLabel: version === 4 || isRxe ? 0 : 0xabcde,
        hopLimit,
      });
      // The handle that C makes of the header leads back.
      using back = b.pd.createAhFromWc(wc, mrB.buffer);
      expect(inspect(back)).toContain(`dgid: '${from.gid}', sgidIndex: ${to.gidIndex},`);
      const answer = { remoteQpn: wc.srcQp, remoteQkey: QKEY };
      b.qp.postSend({ opcode: WrOpcode.SEND, sgList: mrB.slice(GRH_BYTES, 5), ah: back, ...answer });
      await completion(b.qp.sendCq, 'the answer is sent');
      const answered = readDatagram(await completion(a.qp.recvCq, 'the answer'), mrA.buffer.subarray(1024));
      expect(answered.payload.equals(sent.subarray(0, 5))).toBe(true);
      expect(answered.grh).toMatchObject({ version, sgid: to.gid, dgid: from.gid });
    })();
  });

  it(
    'can be posted to by a prepared list, to several peers',
    withUd(async (a, b) => {
      const mrA = a.pd.allocSync(4096, { access: ALL_ACCESS });
      const mrB = b.pd.allocSync(8192, { access: ALL_ACCESS });
      using ah = a.pd.createAh(addressOf(a, b));
      for (let i = 0; i < 6; i++) b.qp.postRecv({ wrId: i, sgList: mrB.slice(i * 128, 128) });
      fill(mrA.buffer, 5);
      const to = { ah, remoteQpn: b.qp.qpNum, remoteQkey: QKEY };
      const list = a.qp.prepareSend([
        { opcode: WrOpcode.SEND, sgList: [mrA.slice(0, 10), mrA.slice(100, 20)], sendFlags: 0, ...to },
        { wrId: 9, opcode: WrOpcode.SEND, sgList: mrA.slice(50, 8), ...to },
      ]);
      for (let round = 0; round < 3; round++) {
        list.post();
        expect(await completion(a.qp.sendCq, 'the sends')).toMatchObject({ wrId: 9 });
      }
      const received = await completions(b.qp.recvCq, 6, 'the datagrams');
      expect(received.map(({ byteLen }) => byteLen - GRH_BYTES)).toEqual([30, 8, 30, 8, 30, 8]);
      const first = mrB.buffer.subarray(GRH_BYTES, GRH_BYTES + 30);
      expect(first.equals(Buffer.concat([mrA.buffer.subarray(0, 10), mrA.buffer.subarray(100, 120)]))).toBe(true);
    }),
  );

  it(
    'refuses what a datagram cannot be, before C sees it',
    withUd(async (a, b) => {
      const mr = a.pd.allocSync(4096, { access: ALL_ACCESS });
      const ah = a.pd.createAh(addressOf(a, b));
      const to = { ah, remoteQpn: b.qp.qpNum, remoteQkey: QKEY };
      const send = { opcode: WrOpcode.SEND, sgList: mr.slice(0, 8) } as const;
      expect(() => a.qp.postSend(send)).toThrow(/wr\.ah must be an AddressHandle/);
      expect(() => a.qp.postSend({ ...send, ...to, remoteQpn: 2 ** 24 })).toThrow(/wr\.remoteQpn/);
      expect(() => a.qp.postSend({ ...send, ...to, remoteQkey: -1 })).toThrow(/wr\.remoteQkey/);
      expect(() => a.qp.postSend({ ...send, ...to, opcode: WrOpcode.RDMA_WRITE })).toThrow(/wr\.opcode/);
      expect(() => a.qp.postRecv({ sgList: mr.slice(0, GRH_BYTES - 1) })).toThrow(/39 bytes.*header of 40/);
      const foreign = b.pd.createAh(addressOf(b, a));
      expect(() => a.qp.postSend({ ...send, ...to, ah: foreign })).toThrow(/another protection domain/);
      const list = a.qp.prepareSend({ ...send, ...to });
      ah.close();
      expect(thrown(() => a.qp.postSend({ ...send, ...to })).code).toBe('ERR_RDMA_CLOSED');
      expect(thrown(() => list.post()).code).toBe('ERR_RDMA_CLOSED');
      expect(a.qp.sendsInFlight).toBe(0);
    }),
  );

  it.runIf(!isRxe)('takes part in no multicast groups where the device has none: EOPNOTSUPP', () => {
    const end = open(deviceA, QpType.UD);
    readyUd(end);
    for (const [verb, call] of [
      ['ibv_attach_mcast', () => end.qp.attachMcast(GROUP)],
      ['ibv_detach_mcast', () => end.qp.detachMcast(GROUP)],
    ] as const) {
      expect(thrown(call)).toMatchObject({ name: 'RdmaError', code: 'EOPNOTSUPP', syscall: verb });
    }
    end.context.close({ cascade: true });
  });

  it.runIf(isRxe)(
    'takes part in multicast groups: all that are attached receive, until they are detached',
    async () => {
      const a = open(deviceA, QpType.UD);
      const b = open(deviceB, QpType.UD);
      const second = { ...b, qp: b.pd.createQp({ sendCq: b.context.createCq(256), qpType: QpType.UD }) };
      for (const end of [a, b, second]) readyUd(end);
      const mrA = a.pd.allocSync(4096, { access: ALL_ACCESS });
      const mrB = b.pd.allocSync(4096, { access: ALL_ACCESS });
      const sgidIndex = a.context.selectGid().gidIndex;
      using ah = a.pd.createAh({ grh: { dgid: GROUP, sgidIndex, hopLimit: 1 } });
      const group = { ah, remoteQpn: 0xff_ffff, remoteQkey: QKEY };
      const send = async (seed: number, to: typeof group): Promise<Buffer> => {
        const bytes = fill(mrA.buffer.subarray(0, 100), seed);
        a.qp.postSend({ opcode: WrOpcode.SEND, sgList: mrA.slice(0, 100), ...to });
        expect((await completion(a.qp.sendCq, 'the send')).status).toBe(WcStatus.SUCCESS);
        return bytes;
      };
      const receive = async ({ qp }: End, place: number, what: string) => {
        const wc = await completion(qp.recvCq, what);
        expect(wc).toMatchObject({ wrId: place, status: WcStatus.SUCCESS, srcQp: a.qp.qpNum, qpNum: qp.qpNum });
        return readDatagram(wc, mrB.buffer.subarray(place * 256));
      };
      const post = ({ qp }: End, place: number) => qp.postRecv({ wrId: place, sgList: mrB.slice(place * 256, 256) });

      for (const { qp } of [b, second]) qp.attachMcast(GROUP);
      for (const [i, end] of [b, second].entries()) for (const place of [i, i + 2, i + 4]) post(end, place);
      const sent = await send(1, group);
      for (const [i, end] of [b, second].entries()) {
        const { payload, grh } = await receive(end, i, 'what was sent to the group');
        expect(payload.equals(sent)).toBe(true);
        expect(grh).toMatchObject({ sgid: a.context.selectGid().gid, dgid: GROUP });
      }

      // Not attached any more: what is sent to the queue pair itself afterwards comes first.
      b.qp.detachMcast(GROUP);
      const toGroup = await send(2, group);
      using direct = a.pd.createAh(addressOf(a, b));
      const toOne = await send(3, { ah: direct, remoteQpn: b.qp.qpNum, remoteQkey: QKEY });
      expect((await receive(b, 2, 'what was sent to it')).payload.equals(toOne)).toBe(true);
      expect((await receive(second, 3, 'what was sent to the group')).payload.equals(toGroup)).toBe(true);
      expect(b.qp.recvsInFlight).toBe(1);
      expect(thrown(() => b.qp.detachMcast(GROUP))).toMatchObject({ code: 'EINVAL', syscall: 'ibv_detach_mcast' });

      // The kernel keeps a queue pair that is in a group.
      expect(thrown(() => second.qp.close())).toMatchObject({
        ...{ name: 'BusyError', code: 'EBUSY', syscall: 'ibv_destroy_qp' },
        message: expect.stringContaining(`multicast group ${GROUP}`),
      });
      expect([second.qp.closed, second.qp.query().qpState]).toEqual([false, QpState.RTS]);
      second.qp.close({ cascade: true });
      expect(second.qp.closed).toBe(true);
      b.qp.attachMcast(GROUP);
      b.qp.attachMcast(GROUP);
      const last = await send(4, group);
      expect((await receive(b, 4, 'what was sent to the group at last')).payload.equals(last)).toBe(true);
      for (const { context } of [a, b]) context.close({ cascade: true });
    },
  );
});

describe('pd.createAhFromWc', () => {
  // Soft-RoCE looks for the way to the address at once.
  it.skipIf(isRxe)('takes for IPv4 what readDatagram() does, also where libibverbs by itself would not', () => {
    const end = open(deviceA, QpType.UD);
    const { gid, gidIndex } = gidOf(end, 4);
    const numbers = { slid: 0, sl: 0, dlidPathBits: 0, srcQp: 0 };
    const wc = { ...numbers, byteLen: GRH_BYTES, wcFlags: WcFlags.GRH } as WorkCompletion;
    // Behind what looks like the beginning of IPv6. The words of some sum to 0x?ffff, or a little less.
    const header = Buffer.alloc(GRH_BYTES, 0x60);
    header.fill(0, 20).writeUInt16LE(0x0045, 20);
    parseGid(gid).copy(header, 36, 12);
    const words = Array.from({ length: 10 }, (_, i) => header.readUInt16LE(20 + 2 * i));
    const rest = words.reduce((sum, word) => sum + word);
    for (const least of [0x1_fffe, 0x1_ffff, 0x2_0000]) {
      header.writeUInt16LE(0xffff, 32);
      header.writeUInt16LE(least - 0xffff - rest, 34);
      const folded = (least & 0xffff) + (least >> 16);
      header.writeUInt16LE(0xffff - ((folded & 0xffff) + (folded >> 16)), 30);
      const { grh } = readDatagram(wc, header);
      expect(grh, `${least}`).toMatchObject({ version: 4, dgid: gid });
      using ah = end.pd.createAhFromWc(wc, header);
      expect(inspect(ah), `${least}`).toContain(`dgid: '${grh?.sgid}', sgidIndex: ${gidIndex},`);
    }
    end.context.close({ cascade: true });
  });
});

describe('pd.createAh', () => {
  it('is refused by Ethernet without a global route, with EINVAL', () => {
    using context = openDevice(deviceA);
    using pd = context.allocPd();
    expect(thrown(() => pd.createAh({}))).toMatchObject({ code: 'EINVAL', syscall: 'ibv_create_ah' });
    expect(() => pd.createAh({ grh: { dgid: 'x', sgidIndex: 0 } })).toThrow(/dgid|gid/);
  });
});

describe('a UC queue pair', () => {
  it('sends and writes, and has neither reads nor atomics', async () => {
    const [a, b] = [open(deviceA, QpType.UC), open(deviceB, QpType.UC)];
    const mrA = a.pd.allocSync(4096, { access: ALL_ACCESS });
    const mrB = b.pd.allocSync(4096, { access: ALL_ACCESS });
    for (const [from, to] of [
      [a, b],
      [b, a],
    ] as const) {
      const access = AccessFlags.REMOTE_WRITE;
      from.qp.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 1, qpAccessFlags: access });
      const pathMtu = from.context.queryPort(1).activeMtu as 3;
      const rtr = { destQpNum: to.qp.qpNum, rqPsn: 1, ahAttr: addressOf(from, to) };
      from.qp.modifySync({ qpState: QpState.RTR, pathMtu, ...rtr });
      from.qp.modifySync({ qpState: QpState.RTS, sqPsn: 1 });
    }
    const pattern = fill(mrA.buffer, 6);
    const remote = new RemoteRegion(mrB.remote());
    b.qp.postRecv({ wrId: 1, sgList: mrB.slice(2048, 64) });
    b.qp.postRecv({ wrId: 2 });
    a.qp.postSend([
      { wrId: 1, opcode: WrOpcode.SEND, sgList: mrA.slice(0, 64) },
      {
        wrId: 2,
        opcode: WrOpcode.RDMA_WRITE_WITH_IMM,
        sgList: mrA.slice(64, 1000),
        remote: remote.slice(),
        immData: 5,
      },
    ]);
    await completions(a.qp.sendCq, 2, 'the sends');
    expect(await completions(b.qp.recvCq, 2, 'the receives')).toMatchObject([
      { wrId: 1, byteLen: 64 },
      { wrId: 2, immData: 5 },
    ]);
    expect(mrB.buffer.subarray(2048, 2112).equals(pattern.subarray(0, 64))).toBe(true);
    expect(mrB.buffer.subarray(0, 1000).equals(pattern.subarray(64, 1064))).toBe(true);
    const read = { opcode: WrOpcode.RDMA_READ, sgList: mrA.slice(0, 8), remote: remote.slice() };
    expect(thrown(() => a.qp.postSend({ ...read, sendFlags: SendFlags.SIGNALED })).code).toBe('ERR_INVALID_ARG_VALUE');
    for (const end of [a, b]) end.context.close({ cascade: true });
  });
});
