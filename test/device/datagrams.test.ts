/** UC and UD queue pairs, address handles, multicast. */
import { describe, expect, it } from 'vitest';
import {
  AccessFlags,
  type Context,
  GRH_BYTES,
  openDevice,
  type ProtectionDomain,
  QpState,
  QpType,
  type QueuePair,
  RemoteRegion,
  readDatagram,
  SendFlags,
  WcFlags,
  WcOpcode,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import {
  ALL_ACCESS,
  backend,
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

  it('takes part in multicast groups, or says EOPNOTSUPP', async () => {
    const end = open(deviceA, QpType.UD);
    readyUd(end);
    try {
      if (isRxe) {
        end.qp.attachMcast('ff0e::ffff:e001:203');
        end.qp.detachMcast('ff0e::ffff:e001:203');
      } else {
        expect(
          thrown(() => end.qp.attachMcast('ff0e::1')),
          backend,
        ).toMatchObject({ syscall: 'ibv_attach_mcast' });
      }
    } finally {
      end.context.close({ cascade: true });
    }
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
