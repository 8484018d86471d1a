import { describe, expect, it } from 'vitest';
import {
  AccessFlags,
  QpState,
  RemoteRegion,
  SendFlags,
  type SendWr,
  WcStatus,
  type WorkCompletion,
  WrOpcode,
} from '../../lib/index.ts';
import {
  ALL_ACCESS,
  completion,
  completions,
  expectNoLeaks,
  isRxe,
  type Pair,
  postings,
  thrown,
  until,
} from './fixture.ts';

expectNoLeaks();

const { SUCCESS, WR_FLUSH_ERR } = WcStatus;

const statuses = (found: WorkCompletion[]): [number, number][] => found.map(({ wrId, status }) => [wrId, status]);

/** Three requests: one that is good, one that is given, one that must be flushed; and two receives. */
function postAround(pair: Pair, wr: SendWr): void {
  const { a, remote } = pair;
  a.qp.postRecv([{ wrId: 101 }, { wrId: 102 }]);
  a.qp.postSend([
    { wrId: 1, opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: remote.slice(0, 8) },
    { ...wr, wrId: 2 },
    { wrId: 3, opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: remote.slice(64, 8) },
    { wrId: 4, opcode: WrOpcode.RDMA_WRITE, remote: remote.slice(), sendFlags: 0 },
  ]);
}

/** What postAround() ends in: the rest flushed in order, also the unsignalled one, and the receives. */
async function expectFlushed(pair: Pair, status: number): Promise<void> {
  const { a } = pair;
  const found = statuses(await completions(a.cq, 6, 'the failure and what it flushed'));
  expect(found.filter(([wrId]) => wrId < 100)).toEqual([
    [1, SUCCESS],
    [2, status],
    [3, WR_FLUSH_ERR],
    [4, WR_FLUSH_ERR],
  ]);
  expect(found.filter(([wrId]) => wrId > 100)).toEqual([
    [101, WR_FLUSH_ERR],
    [102, WR_FLUSH_ERR],
  ]);
  expect([a.qp.sendsInFlight, a.qp.recvsInFlight]).toEqual([0, 0]);
  expect(a.qp.query().qpState).toBe(QpState.ERR);
}

describe.each(postings)('by $verb', ({ verb, connect }) => {
  describe('a request that the peer refuses', () => {
    it.each<[string, (pair: Pair) => SendWr]>([
      [
        'a wrong rkey',
        ({ a, b }) => {
          const remote = new RemoteRegion({ ...b.mr.remote(), rkey: (b.mr.rkey ^ 0x5500) >>> 0 }).slice(0, 8);
          return { opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote };
        },
      ],
      [
        'a range past the region, which only the peer can know',
        ({ a, b }) => {
          const remote = new RemoteRegion({ ...b.mr.remote(), length: b.mr.length + 8 }).slice(b.mr.length - 4, 8);
          return { opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote };
        },
      ],
      [
        'a read of a region that is closed by now',
        ({ a, b }) => {
          const mr = b.pd.allocSync(64, { access: ALL_ACCESS });
          const remote = new RemoteRegion(mr.remote()).slice(0, 8);
          mr.close();
          return { opcode: WrOpcode.RDMA_READ, sgList: a.mr.slice(0, 8), remote };
        },
      ],
      [
        'a write to a region without REMOTE_WRITE',
        ({ a, b }) => {
          const mr = b.pd.allocSync(64, { access: AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ });
          return {
            opcode: WrOpcode.RDMA_WRITE,
            sgList: a.mr.slice(0, 8),
            remote: new RemoteRegion(mr.remote()).slice(),
          };
        },
      ],
      [
        'a read from a region without REMOTE_READ',
        ({ a, b }) => {
          const mr = b.pd.allocSync(64, { access: AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE });
          return {
            opcode: WrOpcode.RDMA_READ,
            sgList: a.mr.slice(0, 8),
            remote: new RemoteRegion(mr.remote()).slice(),
          };
        },
      ],
    ])('for %s ends in REM_ACCESS_ERR, and flushes the rest in order', async (_what, make) => {
      using pair = await connect();
      const { b } = pair;
      b.mr.buffer.fill(7);
      postAround(pair, make(pair));
      await expectFlushed(pair, WcStatus.REM_ACCESS_ERR);
      // What came behind it was not carried out.
      expect(b.mr.buffer.subarray(64).every((byte) => byte === 7)).toBe(true);
      expect(b.qp.query().qpState).toBe(QpState.ERR);
    });

    it('because the queue pair allows no writes ends in REM_ACCESS_ERR', async () => {
      using pair = await connect({ connect: { access: AccessFlags.REMOTE_READ } });
      const { a, b, remote } = pair;
      a.qp.postSend({ wrId: 1, opcode: WrOpcode.RDMA_READ, sgList: a.mr.slice(0, 8), remote: remote.slice() });
      a.mr.buffer.fill(1);
      expect((await completion(a.cq)).status).toBe(SUCCESS);
      a.qp.postSend({ wrId: 2, opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: remote.slice() });
      // rdma_rxe answers "invalid request" here, others "access".
      expect([WcStatus.REM_ACCESS_ERR, WcStatus.REM_INV_REQ_ERR]).toContain((await completion(a.cq)).status);
      expect(b.mr.buffer[0]).toBe(0);
    });
  });

  describe('a request that this side gets wrong', () => {
    it('ends in LOC_PROT_ERR when it reads into memory that the device may only read', async () => {
      using pair = await connect();
      const readOnly = pair.a.pd.regMrSync(Buffer.alloc(64, 5), { access: 0 });
      postAround(pair, { opcode: WrOpcode.RDMA_READ, sgList: readOnly.slice(0, 8), remote: pair.remote.slice() });
      const found = statuses(await completions(pair.a.cq, 6)).filter(([wrId]) => wrId < 100);
      expect(found[0]).toEqual([1, SUCCESS]);
      expect([WcStatus.LOC_PROT_ERR, WcStatus.LOC_ACCESS_ERR]).toContain(found[1]?.[1]);
      expect(found.slice(2)).toEqual([
        [3, WR_FLUSH_ERR],
        [4, WR_FLUSH_ERR],
      ]);
      expect(readOnly.buffer.every((byte) => byte === 5)).toBe(true);
    });

    it('is refused before it is posted when its region is closed', async () => {
      using pair = await connect({ cap: { maxSendSge: 2, maxRecvSge: 2 } });
      const { a, remote } = pair;
      const mr = a.pd.allocSync(64);
      const slice = mr.slice();
      mr.close();
      const wr = { opcode: WrOpcode.RDMA_WRITE, remote: remote.slice() };
      for (const sgList of [slice, [slice], [a.mr.slice(0, 1), slice]]) {
        expect(thrown(() => a.qp.postSend({ ...wr, sgList }))).toMatchObject({ code: 'ERR_RDMA_CLOSED' });
        expect(thrown(() => a.qp.postSend([{ ...wr }, { ...wr, sgList }]))).toMatchObject({ code: 'ERR_RDMA_CLOSED' });
        expect(thrown(() => a.qp.postRecv({ sgList }))).toMatchObject({ code: 'ERR_RDMA_CLOSED' });
        expect(thrown(() => a.qp.prepareSend({ ...wr, sgList }))).toMatchObject({ code: 'ERR_RDMA_CLOSED' });
        expect(thrown(() => a.qp.prepareRecv({ sgList }))).toMatchObject({ code: 'ERR_RDMA_CLOSED' });
      }
      expect([a.qp.sendsInFlight, a.qp.recvsInFlight]).toEqual([0, 0]);
    });

    it('is refused before it is posted when its region is of another protection domain', async () => {
      using pair = await connect();
      const { a, b, remote } = pair;
      const foreign = a.context.allocPd().allocSync(64);
      for (const sgList of [foreign.slice(), b.mr.slice(0, 8)]) {
        const expected = {
          code: 'ERR_INVALID_ARG_VALUE',
          message: expect.stringContaining('another protection domain'),
        };
        const wr = { opcode: WrOpcode.RDMA_WRITE, remote: remote.slice(), sgList };
        expect(thrown(() => a.qp.postSend(wr))).toMatchObject(expected);
        expect(thrown(() => a.qp.postSend([wr]))).toMatchObject(expected);
        expect(thrown(() => a.qp.postRecv({ sgList }))).toMatchObject(expected);
      }
    });
  });

  describe('a receiver that is not ready', () => {
    it('ends the send in RNR_RETRY_EXC_ERR when the retries are used up', async () => {
      using pair = await connect({ connect: { rnrRetry: 1 } });
      postAround(pair, { opcode: WrOpcode.SEND, sgList: pair.a.mr.slice(0, 8) });
      await expectFlushed(pair, WcStatus.RNR_RETRY_EXC_ERR);
      // The receiver has done nothing wrong.
      expect(pair.b.qp.query().qpState).toBe(QpState.RTS);
      expect(pair.b.cq.poll()).toBe(0);
    });

    it('is waited for with rnrRetry 7, for as long as it takes', async () => {
      using pair = await connect();
      const { a, b } = pair;
      a.mr.buffer.write('patience');
      a.qp.postSend({ opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 8) });
      for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve));
      expect(a.cq.poll()).toBe(0);
      b.qp.postRecv({ sgList: b.mr.slice() });
      expect((await completion(a.cq)).status).toBe(SUCCESS);
      await completion(b.cq);
      expect(b.mr.buffer.toString('latin1', 0, 8)).toBe('patience');
    });
  });

  describe('a receive that is too small', () => {
    it('ends in an error there, and in an error of the peer’s here', async () => {
      using pair = await connect();
      const { a, b } = pair;
      b.qp.postRecv([{ wrId: 11, sgList: b.mr.slice(0, 16) }, { wrId: 12 }]);
      postAround(pair, { opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 17) });
      // The specification says "invalid request"; Soft-RoCE answers "remote operational error".
      await expectFlushed(pair, isRxe ? WcStatus.REM_OP_ERR : WcStatus.REM_INV_REQ_ERR);
      expect(statuses(await completions(b.cq, 2, 'the receives'))).toEqual([
        [11, isRxe ? WcStatus.LOC_QP_OP_ERR : WcStatus.LOC_LEN_ERR],
        [12, WR_FLUSH_ERR],
      ]);
      expect(b.mr.buffer.subarray(16).every((byte) => byte === 0)).toBe(true);
    });
  });

  describe('a peer that is gone', () => {
    it('ends a request in RETRY_EXC_ERR after its timeouts', async () => {
      // 4.096 us * 2^8 = 1 ms, once more.
      using pair = await connect({ connect: { timeout: 8, retryCnt: 1 } });
      pair.b.qp.close();
      pair.a.qp.postRecv([{ wrId: 101 }, { wrId: 102 }]);
      pair.a.qp.postSend([
        { wrId: 1, opcode: WrOpcode.RDMA_WRITE, sgList: pair.a.mr.slice(0, 8), remote: pair.remote.slice() },
        { wrId: 2, opcode: WrOpcode.RDMA_WRITE, sgList: pair.a.mr.slice(0, 8), remote: pair.remote.slice() },
      ]);
      const found = statuses(await completions(pair.a.cq, 4));
      expect(found.filter(([wrId]) => wrId < 100)).toEqual([
        [1, WcStatus.RETRY_EXC_ERR],
        [2, WR_FLUSH_ERR],
      ]);
    });
  });

  describe('modify to ERR', () => {
    it('flushes what is in flight, in order and with its wrIds', async () => {
      using pair = await connect({ connect: { timeout: 0 } });
      const { a, b } = pair;
      // Nobody answers, so all of it stays in flight.
      b.qp.close();
      a.qp.postRecv(Array.from({ length: 5 }, (_, i) => ({ wrId: 100 + i, sgList: a.mr.slice(i, 1) })));
      a.qp.postSend(
        Array.from({ length: 8 }, (_, i) => ({
          wrId: i,
          opcode: WrOpcode.SEND,
          sendFlags: i % 2 === 0 ? SendFlags.SIGNALED : 0,
        })),
      );
      expect([a.qp.sendsInFlight, a.qp.recvsInFlight]).toEqual([8, 5]);
      await a.qp.modify({ qpState: QpState.ERR });
      const found = statuses(await completions(a.cq, 13, 'the flushed requests'));
      expect(found.filter(([wrId]) => wrId < 100)).toEqual(Array.from({ length: 8 }, (_, i) => [i, WR_FLUSH_ERR]));
      expect(found.filter(([wrId]) => wrId >= 100)).toEqual(
        Array.from({ length: 5 }, (_, i) => [100 + i, WR_FLUSH_ERR]),
      );
      expect([a.qp.sendsInFlight, a.qp.recvsInFlight]).toEqual([0, 0]);
      a.mr.close();
    });

    it('flushes at once what is posted later', async () => {
      using pair = await connect();
      const { a } = pair;
      a.qp.modifySync({ qpState: QpState.ERR });
      a.qp.postSend({ wrId: 5, opcode: WrOpcode.SEND });
      expect(statuses([await completion(a.cq)])).toEqual([[5, WR_FLUSH_ERR]]);
      // rdma_rxe learns of receives without a system call, and does not look for them in ERR any more.
      if (isRxe) return;
      a.qp.postRecv({ wrId: 6 });
      expect(statuses([await completion(a.cq)])).toEqual([[6, WR_FLUSH_ERR]]);
    });
  });

  describe('closing a queue pair with requests in flight', () => {
    it('drops their completions, and lets go of their memory', async () => {
      using pair = await connect({ connect: { timeout: 0 } });
      const { a, b } = pair;
      b.qp.close();
      const mr = a.pd.allocSync(64);
      a.qp.postRecv([{ sgList: mr.slice() }, { sgList: mr.slice() }]);
      a.qp.postSend([
        { opcode: WrOpcode.SEND, sgList: mr.slice() },
        { opcode: WrOpcode.SEND, sgList: mr.slice(), sendFlags: 0 },
      ]);
      expect(thrown(() => mr.close()).message).toContain('4 work request(s) in flight');
      a.qp.close();
      expect([a.qp.sendsInFlight, a.qp.recvsInFlight]).toEqual([0, 0]);
      mr.close();
      expect(a.cq.poll()).toBe(0);
    });

    it('drops completions that were there and nobody has polled', async () => {
      using pair = await connect();
      const { a, remote } = pair;
      const qp = a.pd.createQp({ sendCq: a.cq });
      a.qp.postSend({ wrId: 1, opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: remote.slice() });
      await until(() => pair.b.mr.buffer[0] === 0 && a.qp.sendsInFlight === 1, 'the post');
      // Flushed receives of another queue pair of the same queue stay.
      qp.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 1, qpAccessFlags: 0 });
      qp.postRecv([{ wrId: 7 }, { wrId: 8 }]);
      qp.modifySync({ qpState: QpState.ERR });
      const event = a.cq.wait();
      await event;
      a.qp.close();
      expect(statuses(a.cq.pollWc()).every(([wrId]) => wrId >= 7)).toBe(true);
      await until(() => a.cq.poll() >= 0 && qp.recvsInFlight === 0, 'the flushed receives');
      qp.close();
    });

    it('does not take a completion of the old one for one of the next', async () => {
      using pair = await connect();
      const { a } = pair;
      for (let round = 0; round < 6; round++) {
        const qp = a.pd.createQp({ sendCq: a.cq });
        qp.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 1, qpAccessFlags: 0 });
        qp.postRecv([{ wrId: 10 * round + 1 }, { wrId: 10 * round + 2 }]);
        qp.modifySync({ qpState: QpState.ERR });
        // Odd rounds leave their completions in the queue.
        if (round % 2 === 0) {
          expect((await completions(a.cq, 2)).map(({ wrId }) => wrId)).toEqual([10 * round + 1, 10 * round + 2]);
        }
        qp.close();
      }
      expect(a.cq.poll()).toBe(0);
    });

    it('by cascade takes the whole device down in one call', async () => {
      using pair = await connect();
      const { a } = pair;
      a.qp.postRecv([{ sgList: a.mr.slice() }, { sgList: a.mr.slice() }]);
      a.context.close({ cascade: true });
      for (const resource of [a.qp, a.mr, a.cq, a.pd, a.context]) expect(resource.closed).toBe(true);
    });
  });

  describe('an operation beyond what the device was given', () => {
    it('posts more reads than the peer takes at once: they wait, and all complete', async () => {
      using pair = await connect({ connect: { maxRdAtomic: 1 } });
      const { a, b, remote } = pair;
      for (let i = 0; i < 12; i++) b.mr.buffer.writeUInt32LE(i + 1, 4 * i);
      a.qp.postSend(
        Array.from({ length: 12 }, (_, i) => ({
          wrId: i,
          opcode: WrOpcode.RDMA_READ,
          sgList: a.mr.slice(4 * i, 4),
          remote: remote.slice(4 * i, 4),
        })),
      );
      expect(statuses(await completions(a.cq, 12))).toEqual(Array.from({ length: 12 }, (_, i) => [i, SUCCESS]));
      expect(Array.from({ length: 12 }, (_, i) => a.mr.buffer.readUInt32LE(4 * i))).toEqual(
        Array.from({ length: 12 }, (_, i) => i + 1),
      );
    });

    it('LOCAL_INV of a region that cannot be invalidated fails, at the post or by its completion', async () => {
      using pair = await connect();
      const { a } = pair;
      const wr = { wrId: 1, opcode: WrOpcode.LOCAL_INV, invalidateRkey: a.mr.rkey };
      try {
        a.qp.postSend(wr);
      } catch (error) {
        expect(error).toMatchObject({ name: 'PostError', syscall: verb, index: 0 });
        expect(a.qp.sendsInFlight).toBe(0);
        return;
      }
      expect((await completion(a.cq)).status).not.toBe(SUCCESS);
      expect(isRxe || a.qp.query().qpState === QpState.ERR).toBe(true);
    });
  });
});
