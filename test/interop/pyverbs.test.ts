/**
 * Agreement with pyverbs on the other end of the wire, in both directions: immediate data, atomics, keys of windows,
 * datagrams and their answers. Bytes and values are compared on both sides.
 */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import {
  AccessFlags,
  type GidEntry,
  GidType,
  GRH_BYTES,
  type MemoryRegion,
  type MemoryWindow,
  type Mtu,
  MwType,
  openDevice,
  type ProtectionDomain,
  QpState,
  QpType,
  type QueuePair,
  RemoteRegion,
  readDatagram,
  type SharedReceiveQueue,
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
  initAttr,
} from '../device/fixture.ts';
import { PyverbsPeer } from './peer.ts';

expectNoLeaks();

const PSN = 0xff_fffe;
const QKEY = 0x1111_1111;
const SUCCESS = WcStatus.SUCCESS;

/** Our side, the peer, and each one's memory as the other sees it. */
interface Pair {
  pd: ProtectionDomain;
  qp: QueuePair;
  srq: SharedReceiveQueue | undefined;
  mr: MemoryRegion;
  peer: PyverbsPeer;
  /** The peer's queue pair. */
  qpNum: number;
  /** The peer's memory. */
  remote: RemoteRegion;
  /** Takes completions of ours. */
  done(count?: number, what?: string): Promise<WorkCompletion[]>;
}

/** The GID of a device by which both sides reach each other: of its IPv4 address, or its link-local one. */
function gidOf(device: string, family: 4 | 6): GidEntry {
  using context = openDevice(device);
  const found = context
    .queryGidTable()
    .find(({ gid, gidType }) => gidType === GidType.ROCE_V2 && gid.startsWith('::ffff:') === (family === 4));
  if (!found) throw new Error(`${device} has no GID of IPv${family}`);
  return found;
}

// Python and pyverbs take seconds to start in an emulated VM: once for all.
let peer: PyverbsPeer;
beforeAll(() => {
  peer = new PyverbsPeer();
});
afterAll(() => peer.end());

async function withPair(
  { type = 'RC', family = 4, srq = false }: { type?: 'RC' | 'UD'; family?: 4 | 6; srq?: boolean },
  run: (pair: Pair) => Promise<void>,
): Promise<void> {
  const context = openDevice(deviceA);
  try {
    const pd = context.allocPd();
    const mr = pd.allocSync(16_384, { access: ALL_ACCESS | AccessFlags.MW_BIND });
    const shared = srq ? pd.createSrq({ maxWr: 16 }) : undefined;
    const cq = context.createCq(512);
    const qp = pd.createQp({ sendCq: cq, qpType: QpType[type], ...(shared && { srq: shared }) });
    const { qpNum, ...token } = await peer.open(deviceB, type, srq);
    const [here, there] = [gidOf(deviceA, family), gidOf(deviceB, family)];
    if (type === 'UD') {
      await peer.ready(QKEY, PSN);
      qp.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 1, qkey: QKEY });
      qp.modifySync({ qpState: QpState.RTR });
      qp.modifySync({ qpState: QpState.RTS, sqPsn: PSN });
    } else {
      const pathMtu = context.queryPort(1).activeMtu as Mtu;
      await peer.connect({ qpNum: qp.qpNum, gid: here.gid, gidIndex: there.gidIndex, psn: PSN, mtu: pathMtu });
      qp.modifySync(initAttr());
      const ahAttr = { grh: { dgid: there.gid, sgidIndex: here.gidIndex } };
      const rtr = { pathMtu, destQpNum: qpNum, rqPsn: PSN, maxDestRdAtomic: 4, minRnrTimer: 1, ahAttr };
      await qp.modify({ qpState: QpState.RTR, ...rtr });
      await qp.modify({ qpState: QpState.RTS, sqPsn: PSN, timeout: 14, retryCnt: 7, rnrRetry: 7, maxRdAtomic: 4 });
    }
    const done = (count = 1, what?: string) => completions(cq, count, what);
    await run({ pd, qp, srq: shared, mr, peer, qpNum, remote: new RemoteRegion(token), done });
    qp.close();
  } finally {
    await peer.close();
    context.close({ cascade: true });
  }
}

/** The 8 bytes of a value, as this machine and the peer's keep it. */
function uint64(value: bigint): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(value);
  return bytes;
}

describe('messages and immediate data', () => {
  it('of ours reach pyverbs, in host byte order', () =>
    withPair({}, async ({ qp, mr, peer, remote, done }) => {
      const sent = fill(mr.buffer.subarray(0, 3000), 1);
      await peer.recv(11, 0, 4096);
      await peer.recv(12, 4096, 64);
      qp.postSend([
        { wrId: 1, opcode: WrOpcode.SEND_WITH_IMM, sgList: mr.slice(0, 3000), immData: 0x1122_3344 },
        {
          wrId: 2,
          opcode: WrOpcode.RDMA_WRITE_WITH_IMM,
          sgList: mr.slice(100, 2000),
          remote: remote.slice(8192, 2000),
          immData: 0xffff_fffe,
        },
        { wrId: 3, opcode: WrOpcode.RDMA_WRITE, sgList: mr.slice(7, 1), remote: remote.slice(12_000, 1) },
      ]);
      expect(await done(3, 'our requests')).toMatchObject([
        { wrId: 1, status: SUCCESS },
        { wrId: 2, status: SUCCESS },
        { wrId: 3, status: SUCCESS },
      ]);
      expect(await peer.poll(2)).toMatchObject([
        { wrId: 11, status: SUCCESS, opcode: WcOpcode.RECV, byteLen: 3000, imm: 0x1122_3344 },
        { wrId: 12, status: SUCCESS, opcode: WcOpcode.RECV_RDMA_WITH_IMM, byteLen: 2000, imm: 0xffff_fffe },
      ]);
      expect((await peer.read(0, 3000)).equals(sent)).toBe(true);
      expect((await peer.read(8192, 2000)).equals(sent.subarray(100, 2100))).toBe(true);
      expect(await peer.read(12_000, 2)).toEqual(Buffer.of(sent[7]!, 0));
    }));

  it('of pyverbs reach us, in host byte order', () =>
    withPair({}, async ({ qp, mr, peer, done }) => {
      const sent = fill(Buffer.alloc(3000), 2);
      await peer.write(0, sent);
      qp.postRecv([
        { wrId: 21, sgList: mr.slice(0, 4096) },
        { wrId: 22, sgList: mr.slice(4096, 64) },
      ]);
      const at = (offset: number) => ({ addr: `0x${(mr.addr + BigInt(offset)).toString(16)}`, rkey: mr.rkey });
      await peer.send({ opcode: 'SEND_WITH_IMM', wrId: 1, length: 3000, imm: 0x1122_3344 });
      await peer.send({
        opcode: 'RDMA_WRITE_WITH_IMM',
        wrId: 2,
        offset: 100,
        length: 2000,
        imm: 0xffff_fffe,
        remote: at(8192),
      });
      await peer.send({ opcode: 'RDMA_WRITE', wrId: 3, offset: 7, length: 1, remote: at(12_000) });
      expect(await peer.poll(3)).toMatchObject([1, 2, 3].map((wrId) => ({ wrId, status: SUCCESS })));
      expect(await done(2, 'our receives')).toMatchObject([
        { wrId: 21, status: SUCCESS, opcode: WcOpcode.RECV, byteLen: 3000, immData: 0x1122_3344 },
        { wrId: 22, status: SUCCESS, opcode: WcOpcode.RECV_RDMA_WITH_IMM, byteLen: 2000, immData: 0xffff_fffe },
      ]);
      expect(mr.buffer.subarray(0, 3000).equals(sent)).toBe(true);
      expect(mr.buffer.subarray(8192, 10_192).equals(sent.subarray(100, 2100))).toBe(true);
      expect(mr.buffer.subarray(12_000, 12_002)).toEqual(Buffer.of(sent[7]!, 0));
    }));

  it('are read by each out of the memory of the other', () =>
    withPair({}, async ({ qp, mr, peer, remote, done }) => {
      const theirs = fill(Buffer.alloc(5000), 3);
      await peer.write(1000, theirs);
      qp.postSend({ opcode: WrOpcode.RDMA_READ, sgList: mr.slice(0, 5000), remote: remote.slice(1000, 5000) });
      expect(await done(1, 'our read')).toMatchObject([{ status: SUCCESS, opcode: WcOpcode.RDMA_READ, byteLen: 5000 }]);
      expect(mr.buffer.subarray(0, 5000).equals(theirs)).toBe(true);

      const ours = fill(mr.buffer.subarray(8000, 13_000), 4);
      const from = { addr: `0x${(mr.addr + 8000n).toString(16)}`, rkey: mr.rkey };
      await peer.send({ opcode: 'RDMA_READ', offset: 8000, length: 5000, remote: from });
      expect(await peer.poll()).toMatchObject([{ status: SUCCESS, opcode: WcOpcode.RDMA_READ }]);
      expect((await peer.read(8000, 5000)).equals(ours)).toBe(true);
    }));
});

describe('atomics', () => {
  const MAX = 0xffff_ffff_ffff_ffffn;
  // What there was, what is done, and what there is then: the result is always what there was.
  const cases = [
    { name: 'a sum', before: 0x0102_0304_0506_0708n, add: 1n << 40n, after: 0x0102_0404_0506_0708n },
    { name: 'a sum past 64 bits', before: MAX, add: 3n, after: 2n },
    { name: 'a swap', before: 0x8000_0000_0000_0001n, compare: 0x8000_0000_0000_0001n, swap: MAX, after: MAX },
    { name: 'a swap that is refused', before: 5n, compare: 6n, swap: 7n, after: 5n },
  ];

  it.each(cases)('of ours on the memory of pyverbs: $name', ({ before, add, compare, swap, after }) =>
    withPair({}, async ({ qp, mr, peer, remote, done }) => {
      await peer.write(64, uint64(before));
      const common = { sgList: mr.slice(8, 8), remote: remote.slice(64, 8) };
      qp.postSend(
        add === undefined
          ? { ...common, opcode: WrOpcode.ATOMIC_CMP_AND_SWP, compareAdd: compare!, swap: swap! }
          : { ...common, opcode: WrOpcode.ATOMIC_FETCH_AND_ADD, compareAdd: add },
      );
      expect(await done(1, 'the atomic')).toMatchObject([{ status: SUCCESS }]);
      expect(mr.buffer.readBigUInt64LE(8)).toBe(before);
      expect(await peer.read(64, 8)).toEqual(uint64(after));
    }),
  );

  it.each(cases)('of pyverbs on our memory: $name', ({ before, add, compare, swap, after }) =>
    withPair({}, async ({ mr, peer }) => {
      mr.buffer.writeBigUInt64LE(before, 128);
      const remote = { addr: `0x${(mr.addr + 128n).toString(16)}`, rkey: mr.rkey };
      const operands = add === undefined ? [compare!, swap!] : [add];
      await peer.send({
        opcode: add === undefined ? 'ATOMIC_CMP_AND_SWP' : 'ATOMIC_FETCH_AND_ADD',
        offset: 16,
        length: 8,
        remote,
        atomic: operands.map((operand) => `0x${operand.toString(16)}`),
      });
      expect(await peer.poll()).toMatchObject([{ status: SUCCESS }]);
      expect(await peer.read(16, 8)).toEqual(uint64(before));
      expect(mr.buffer.readBigUInt64LE(128)).toBe(after);
    }),
  );
});

describe.each([MwType.MW_TYPE_1, MwType.MW_TYPE_2])('the key of a window of type %i', (type) => {
  it('of pyverbs is good for our writes and reads, until it is bound anew or invalidated', () =>
    withPair({}, async ({ qp, mr, peer, qpNum, done }) => {
      const window = new RemoteRegion(await peer.bind(type, 1024, 512));
      expect(await peer.poll()).toMatchObject([{ status: SUCCESS, opcode: WcOpcode.BIND_MW }]);
      const sent = fill(mr.buffer.subarray(0, 512), 5);
      qp.postSend([
        { opcode: WrOpcode.RDMA_WRITE, sgList: mr.slice(0, 512), remote: window.slice() },
        { opcode: WrOpcode.RDMA_READ, sgList: mr.slice(1024, 100), remote: window.slice(7, 100) },
      ]);
      expect(await done(2, 'our requests')).toMatchObject([{ status: SUCCESS }, { status: SUCCESS }]);
      expect((await peer.read(1024, 512)).equals(sent)).toBe(true);
      expect(mr.buffer.subarray(1024, 1124).equals(sent.subarray(7, 107))).toBe(true);

      if (type === MwType.MW_TYPE_1) expect((await peer.bind(type, 0, 512)).rkey).not.toBe(window.rkey);
      else await peer.send({ opcode: 'LOCAL_INV', invalidate: window.rkey });
      expect(await peer.poll()).toMatchObject([{ status: SUCCESS }]);
      qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: mr.slice(0, 8), remote: window.slice() });
      expect(await done(1, 'the refused write')).toMatchObject([{ status: WcStatus.REM_ACCESS_ERR }]);
      expect(qpNum).not.toBe(0);
    }));

  it('of ours is good for the writes and reads of pyverbs, until it is bound anew or invalidated', () =>
    withPair({}, async ({ pd, qp, mr, peer, done }) => {
      const mw: MemoryWindow = pd.allocMw(type);
      const access = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ;
      qp.bindMw(mw, { local: mr.slice(2048, 512), access });
      expect(await done(1, 'the binding')).toMatchObject([{ status: SUCCESS, opcode: WcOpcode.BIND_MW }]);
      const token = mw.remote()!;
      const sent = fill(Buffer.alloc(512), 6);
      await peer.write(0, sent);
      await peer.send({ opcode: 'RDMA_WRITE', length: 512, remote: token });
      await peer.send({ opcode: 'RDMA_READ', offset: 4096, length: 512, remote: token });
      expect(await peer.poll(2)).toMatchObject([{ status: SUCCESS }, { status: SUCCESS }]);
      expect(mr.buffer.subarray(2048, 2560).equals(sent)).toBe(true);
      expect((await peer.read(4096, 512)).equals(sent)).toBe(true);

      if (type === MwType.MW_TYPE_1) expect(qp.bindMw(mw, { local: mr.slice(0, 512), access })).not.toBe(token.rkey);
      else qp.postSend({ opcode: WrOpcode.LOCAL_INV, invalidateRkey: token.rkey });
      expect(await done(1, 'what ends the key')).toMatchObject([{ status: SUCCESS }]);
      await peer.send({ opcode: 'RDMA_WRITE', length: 8, remote: token });
      expect(await peer.poll()).toMatchObject([{ status: WcStatus.REM_ACCESS_ERR }]);
      qp.close();
      mw.close();
    }));
});

describe('SEND_WITH_INV', () => {
  it('of ours ends a window of pyverbs, which learns its key', () =>
    withPair({}, async ({ qp, mr, peer, done }) => {
      const window = new RemoteRegion(await peer.bind(MwType.MW_TYPE_2, 0, 512));
      await peer.poll();
      await peer.recv(5, 1024, 64);
      qp.postSend({ opcode: WrOpcode.SEND_WITH_INV, sgList: mr.slice(0, 8), invalidateRkey: window.rkey });
      expect(await done(1, 'the send')).toMatchObject([{ status: SUCCESS }]);
      expect(await peer.poll()).toMatchObject([{ wrId: 5, status: SUCCESS, byteLen: 8, invalidated: window.rkey }]);
      qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: mr.slice(0, 8), remote: window.slice() });
      expect(await done(1, 'the refused write')).toMatchObject([{ status: WcStatus.REM_ACCESS_ERR }]);
    }));

  it('of pyverbs ends a window of ours, and we learn its key', () =>
    withPair({}, async ({ pd, qp, mr, peer, done }) => {
      const mw = pd.allocMw(MwType.MW_TYPE_2);
      const access = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ;
      const rkey = qp.bindMw(mw, { local: mr.slice(0, 512), access });
      await done(1, 'the binding');
      const token = mw.remote()!;
      qp.postRecv({ wrId: 6, sgList: mr.slice(1024, 64) });
      await peer.send({ opcode: 'SEND_WITH_INV', length: 8, invalidate: rkey });
      expect(await peer.poll()).toMatchObject([{ status: SUCCESS }]);
      // Without a look at the flags: rdma_rxe sets the kernel's bit, which is another one than WITH_INV.
      expect(await done(1, 'the receive')).toMatchObject([
        { wrId: 6, status: SUCCESS, byteLen: 8, invalidatedRkey: rkey },
      ]);
      await peer.send({ opcode: 'RDMA_WRITE', length: 8, remote: token });
      expect(await peer.poll()).toMatchObject([{ status: WcStatus.REM_ACCESS_ERR }]);
      qp.close();
      mw.close();
    }));
});

describe('a shared receive queue', () => {
  it('on each side takes what the other sends', () =>
    withPair({ srq: true }, async ({ qp, srq, mr, peer, done }) => {
      const sent = fill(mr.buffer.subarray(0, 300), 7);
      for (const i of [0, 1, 2]) await peer.recv(30 + i, 4096 + i * 128, 128);
      for (const i of [0, 1, 2]) qp.postSend({ opcode: WrOpcode.SEND, sgList: mr.slice(i * 100, 100) });
      await done(3, 'our sends');
      expect(await peer.poll(3)).toMatchObject([30, 31, 32].map((wrId) => ({ wrId, status: SUCCESS, byteLen: 100 })));
      for (const i of [0, 1, 2]) {
        expect((await peer.read(4096 + i * 128, 100)).equals(sent.subarray(i * 100, i * 100 + 100))).toBe(true);
      }

      for (const i of [0, 1, 2]) srq!.postRecv({ wrId: 40 + i, sgList: mr.slice(4096 + i * 128, 128) });
      for (const i of [0, 1, 2]) await peer.send({ opcode: 'SEND', offset: 4096 + i * 128, length: 100 });
      await peer.poll(3);
      const received = await done(3, 'our receives');
      expect(received).toMatchObject([40, 41, 42].map((wrId) => ({ wrId, status: SUCCESS, byteLen: 100 })));
      for (const i of [0, 1, 2]) {
        expect(
          mr.buffer
            .subarray(4096 + i * 128)
            .subarray(0, 100)
            .equals(sent.subarray(i * 100, i * 100 + 100)),
        ).toBe(true);
      }
      expect(srq!.recvsInFlight).toBe(0);
    }));
});

describe.each([4, 6] as const)('datagrams over IPv%i', (family) => {
  let here: GidEntry;
  let there: GidEntry;
  beforeEach(() => {
    [here, there] = [gidOf(deviceA, family), gidOf(deviceB, family)];
  });
  afterEach(() => {
    expect(here.gid).not.toBe(there.gid);
  });

  it('of ours are answered by pyverbs, to the address that they came from', () =>
    withPair({ type: 'UD', family }, async ({ pd, qp, mr, peer, qpNum, done }) => {
      const sent = fill(mr.buffer.subarray(0, 600), 8);
      await peer.recv(51, 0, GRH_BYTES + 600);
      qp.postRecv({ wrId: 52, sgList: mr.slice(4096, GRH_BYTES + 600) });
      using ah = pd.createAh({ grh: { dgid: there.gid, sgidIndex: here.gidIndex, trafficClass: 0x20 } });
      const to = { ah, remoteQpn: qpNum, remoteQkey: QKEY };
      qp.postSend({ opcode: WrOpcode.SEND_WITH_IMM, sgList: mr.slice(0, 600), immData: 0x0a0b_0c0d, ...to });
      expect(await done(1, 'our datagram')).toMatchObject([{ status: SUCCESS }]);
      expect(await peer.poll()).toMatchObject([
        { wrId: 51, status: SUCCESS, byteLen: GRH_BYTES + 600, srcQp: qp.qpNum, imm: 0x0a0b_0c0d },
      ]);
      expect((await peer.read(GRH_BYTES, 600)).equals(sent)).toBe(true);

      await peer.answerTo(0);
      await peer.send({ opcode: 'SEND', offset: GRH_BYTES, length: 77, to: { qpNum: qp.qpNum, qkey: QKEY } });
      expect(await peer.poll()).toMatchObject([{ status: SUCCESS }]);
      const answer = await completion(qp.recvCq, 'the answer');
      expect(answer).toMatchObject({ wrId: 52, status: SUCCESS, srcQp: qpNum });
      const { payload, grh } = readDatagram(answer, mr.buffer.subarray(4096));
      expect(payload.equals(sent.subarray(0, 77))).toBe(true);
      expect(grh).toMatchObject({ version: family, sgid: there.gid, dgid: here.gid });
    }));

  it('of pyverbs are answered by us, to the address that they came from', () =>
    withPair({ type: 'UD', family }, async ({ pd, qp, mr, peer, qpNum }) => {
      const sent = fill(Buffer.alloc(600), 9);
      await peer.write(0, sent);
      qp.postRecv({ wrId: 61, sgList: mr.slice(0, GRH_BYTES + 600) });
      await peer.recv(62, 4096, GRH_BYTES + 600);
      await peer.addressTo(here.gid, there.gidIndex);
      const to = { qpNum: qp.qpNum, qkey: QKEY };
      await peer.send({ opcode: 'SEND_WITH_IMM', length: 600, imm: 0x8000_0001, to });
      expect(await peer.poll()).toMatchObject([{ status: SUCCESS }]);
      const wc = await completion(qp.recvCq, 'the datagram');
      expect(wc).toMatchObject({ wrId: 61, status: SUCCESS, srcQp: qpNum, immData: 0x8000_0001 });
      const { payload, grh } = readDatagram(wc, mr.buffer);
      expect(payload.equals(sent)).toBe(true);
      expect(grh).toMatchObject({ version: family, sgid: there.gid, dgid: here.gid, hopLimit: 64 });

      using ah = pd.createAhFromWc(wc, mr.buffer);
      qp.postSend({
        opcode: WrOpcode.SEND,
        sgList: mr.slice(GRH_BYTES, 77),
        ah,
        remoteQpn: wc.srcQp,
        remoteQkey: QKEY,
      });
      expect(await completion(qp.sendCq, 'the answer is sent')).toMatchObject({ status: SUCCESS });
      expect(await peer.poll()).toMatchObject([
        { wrId: 62, status: SUCCESS, byteLen: GRH_BYTES + 77, srcQp: qp.qpNum },
      ]);
      expect((await peer.read(4096 + GRH_BYTES, 77)).equals(sent.subarray(0, 77))).toBe(true);
    }));
});
