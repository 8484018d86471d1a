import { describe, expect, it } from 'vitest';
import { PostError, type QpState, SendFlags, type SendWr, WcStatus, WrOpcode } from '../../lib/index.ts';
import { completion, completions, expectNoLeaks, type Pair, postings, thrown, until } from './fixture.ts';

expectNoLeaks();

const { SUCCESS } = WcStatus;

/** Empty writes: they complete at the sender, and the receiver notices nothing. */
const writes = (pair: Pair, count: number, sendFlags: number = SendFlags.SIGNALED): SendWr[] =>
  Array.from({ length: count }, (_, i) => ({
    wrId: i,
    opcode: WrOpcode.RDMA_WRITE,
    remote: pair.remote.slice(0, 0),
    sendFlags,
  }));

const upTo = (count: number): number[] => Array.from({ length: count }, (_, i) => i);

describe.each(postings)('by $verb', ({ verb, connect }) => {
  describe('in-flight counts', () => {
    it('count unsignalled requests until a later signalled one completes', async () => {
      using pair = await connect();
      const { a } = pair;
      a.qp.postSend(writes(pair, 5, 0));
      expect(a.qp.sendsInFlight).toBe(5);
      a.qp.postSend({ ...writes(pair, 1)[0]!, wrId: 99 });
      expect(a.qp.sendsInFlight).toBe(6);
      a.qp.postSend(writes(pair, 2, 0));
      expect(a.qp.sendsInFlight).toBe(8);
      expect(await completion(a.cq)).toMatchObject({ wrId: 99, status: SUCCESS });
      expect(a.qp.sendsInFlight).toBe(2);
      expect(a.cq.poll()).toBe(0);
      a.qp.postSend(writes(pair, 1));
      await completion(a.cq);
      expect(a.qp.sendsInFlight).toBe(0);
    });

    it('count each receive until its completion was polled', async () => {
      using pair = await connect();
      const { a, b } = pair;
      b.qp.postRecv([{ wrId: 1 }, { wrId: 2 }, { wrId: 3 }]);
      expect(b.qp.recvsInFlight).toBe(3);
      a.qp.postSend([{ opcode: WrOpcode.SEND }, { opcode: WrOpcode.SEND }]);
      await completions(a.cq, 2);
      expect(b.qp.recvsInFlight).toBe(3);
      await completions(b.cq, 2);
      expect(b.qp.recvsInFlight).toBe(1);
    });

    it('has a completion for every request with sqSigAll, whatever its flags', async () => {
      using pair = await connect({ sqSigAll: true });
      const { a } = pair;
      a.qp.postSend(writes(pair, 4, 0));
      expect((await completions(a.cq, 4)).map(({ wrId }) => wrId)).toEqual([0, 1, 2, 3]);
      expect(a.qp.sendsInFlight).toBe(0);
    });

    it('hold a region until then: closing it fails with EBUSY and the number of requests', async () => {
      using pair = await connect({ cap: { maxSendSge: 2 } });
      const { a, b, remote } = pair;
      const mr = a.pd.allocSync(4096);
      const wr = { opcode: WrOpcode.RDMA_WRITE, remote: remote.slice(), sendFlags: 0 };
      a.qp.postSend([
        { ...wr, sgList: mr.slice(0, 8) },
        { ...wr, sgList: [a.mr.slice(0, 8), mr.slice(0, 8)] },
        { ...wr, sgList: a.mr.slice(0, 8) },
      ]);
      a.qp.postRecv({ sgList: mr.slice() });
      const busy = (count: number) => {
        const error = thrown(() => mr.close());
        expect(error).toMatchObject({ name: 'BusyError', code: 'EBUSY', syscall: 'ibv_dereg_mr' });
        expect(error.message).toContain(`${count} work request(s) in flight`);
        expect(mr.closed).toBe(false);
      };
      busy(3);
      a.qp.postSend(writes(pair, 1));
      busy(3);
      await completion(a.cq);
      busy(1);
      b.qp.postSend({ opcode: WrOpcode.SEND });
      await completion(a.cq, 'the receive');
      mr.close();
      expect(mr.closed).toBe(true);
      await completion(b.cq);
    });
  });

  describe('a list', () => {
    it('is posted in order, also when it is longer than what is posted at a time', async () => {
      using pair = await connect({ cap: { maxSendWr: 200, maxRecvWr: 200 } });
      const { a, b } = pair;
      const count = 150;
      b.qp.postRecv(upTo(count).map((i) => ({ wrId: i, sgList: b.mr.slice(4 * i, 4) })));
      for (const i of upTo(count)) a.mr.buffer.writeUInt32LE(i ^ 0x5555, 4 * i);
      a.qp.postSend(upTo(count).map((i) => ({ wrId: i, opcode: WrOpcode.SEND, sgList: a.mr.slice(4 * i, 4) })));
      expect([a.qp.sendsInFlight, b.qp.recvsInFlight]).toEqual([count, count]);
      expect((await completions(a.cq, count)).map(({ wrId }) => wrId)).toEqual(upTo(count));
      expect((await completions(b.cq, count)).map(({ wrId }) => wrId)).toEqual(upTo(count));
      expect(upTo(count).map((i) => b.mr.buffer.readUInt32LE(4 * i))).toEqual(upTo(count).map((i) => i ^ 0x5555));
    });

    it.each([3, 100])('with a mistake is refused whole, naming request %d', async (index) => {
      using pair = await connect({ cap: { maxSendWr: 200, maxRecvWr: 200 } });
      const { a } = pair;
      const sends = writes(pair, 120);
      sends[index] = { ...sends[index]!, wrId: -1 };
      expect(thrown(() => a.qp.postSend(sends))).toMatchObject({
        code: 'ERR_OUT_OF_RANGE',
        message: expect.stringContaining(`wrs[${index}].wrId`),
      });
      const recvs: object[] = upTo(120).map((wrId) => ({ wrId }));
      recvs[index] = { wrId: 1, sglist: [] };
      expect(thrown(() => a.qp.postRecv(recvs))).toMatchObject({
        code: 'ERR_INVALID_ARG_VALUE',
        message: expect.stringMatching(new RegExp(`wrs\\[${index}\\].*did you mean 'sgList'`)),
      });
      expect([a.qp.sendsInFlight, a.qp.recvsInFlight]).toEqual([0, 0]);
      a.qp.postSend(writes(pair, 1));
      await completion(a.cq);
    });

    it('of no requests does nothing', async () => {
      using pair = await connect();
      pair.a.qp.postSend([]);
      pair.a.qp.postRecv([]);
      expect([pair.a.qp.sendsInFlight, pair.a.qp.recvsInFlight]).toEqual([0, 0]);
    });
  });

  describe('a full queue', () => {
    it.each([
      ['in one list', (pair: Pair, count: number) => pair.a.qp.postSend(writes(pair, count))],
      ['by a prepared list', (pair: Pair) => pair.a.qp.prepareSend(writes(pair, pair.a.qp.cap.maxSendWr)).post()],
    ])('takes what fits %s: ENOMEM with the index of the first that did not', async (_how, post) => {
      using pair = await connect({ cap: { maxSendWr: 20 }, cqe: 1024 });
      const { a } = pair;
      const { maxSendWr } = a.qp.cap;
      a.qp.postSend(writes(pair, 5));
      const error = thrown(() => post(pair, maxSendWr)) as PostError;
      expect(error).toBeInstanceOf(PostError);
      expect(error).toMatchObject({ name: 'PostError', code: 'ENOMEM', errno: -12, syscall: verb });
      expect(error.index).toBe(maxSendWr - 5);
      expect(error.message).toContain(`the queue is full: ${maxSendWr} of ${maxSendWr} requests are in flight`);
      expect(a.qp.sendsInFlight).toBe(maxSendWr);
      // Now nothing at all fits.
      expect(thrown(() => a.qp.postSend(writes(pair, 1)))).toMatchObject({ code: 'ENOMEM', index: 0 });
      expect(a.qp.sendsInFlight).toBe(maxSendWr);
      const done = await completions(a.cq, maxSendWr);
      expect(done.map(({ wrId }) => wrId)).toEqual([...upTo(5), ...upTo(maxSendWr - 5)]);
      a.qp.postSend(writes(pair, maxSendWr));
      await completions(a.cq, maxSendWr);
    });

    it('is found across the pieces of a long list', async () => {
      using pair = await connect({ cap: { maxSendWr: 100, maxRecvWr: 100 }, cqe: 1024 });
      const { a } = pair;
      const { maxSendWr, maxRecvWr } = a.qp.cap;
      expect(thrown(() => a.qp.postSend(writes(pair, maxSendWr + 7)))).toMatchObject({
        code: 'ENOMEM',
        index: maxSendWr,
      });
      expect(thrown(() => a.qp.postRecv(upTo(maxRecvWr + 7).map((wrId) => ({ wrId }))))).toMatchObject({
        name: 'PostError',
        code: 'ENOMEM',
        syscall: 'ibv_post_recv',
        index: maxRecvWr,
      });
      expect([a.qp.sendsInFlight, a.qp.recvsInFlight]).toEqual([maxSendWr, maxRecvWr]);
      expect((await completions(a.cq, maxSendWr)).map(({ wrId }) => wrId)).toEqual(upTo(maxSendWr));
    });

    it('goes on for as long as it is polled: ten times around', async () => {
      using pair = await connect({ cap: { maxSendWr: 16 } });
      const { a } = pair;
      const { maxSendWr } = a.qp.cap;
      const seen: number[] = [];
      for (let next = 0; next < 10 * maxSendWr; ) {
        const room = maxSendWr - a.qp.sendsInFlight;
        a.qp.postSend(upTo(room).map((i) => ({ ...writes(pair, 1)[0]!, wrId: next + i })));
        next += room;
        expect(a.qp.sendsInFlight).toBe(maxSendWr);
        await until(() => {
          const count = a.cq.poll();
          for (let i = 0; i < count; i++) seen.push(a.cq.at(i).wrId);
          return count > 0;
        }, 'a completion');
      }
      seen.push(...(await completions(a.cq, a.qp.sendsInFlight)).map(({ wrId }) => wrId));
      expect(seen).toEqual(upTo(seen.length));
    });
  });

  describe('qp.prepareSend', () => {
    it('posts the same requests again and again', async () => {
      using pair = await connect();
      const { a, b, remote } = pair;
      const list = a.qp.prepareSend({
        wrId: 3,
        opcode: WrOpcode.RDMA_WRITE,
        sgList: a.mr.slice(0, 4),
        remote: remote.slice(0, 4),
      });
      expect(list.length).toBe(1);
      for (let i = 1; i <= 10; i++) {
        a.mr.buffer.writeUInt32LE(i * 1000, 0);
        list.post();
        expect(await completion(a.cq)).toMatchObject({ wrId: 3, status: SUCCESS });
        expect(b.mr.buffer.readUInt32LE(0)).toBe(i * 1000);
      }
    });

    it('changes in place what its setters say, and nothing else', async () => {
      using pair = await connect({ cap: { maxSendSge: 2 } });
      const { a, b, remote } = pair;
      a.mr.buffer.write('abcdefgh');
      b.qp.postRecv([{ wrId: 1 }, { wrId: 2 }]);
      const list = a.qp.prepareSend([
        {
          wrId: 10,
          opcode: WrOpcode.RDMA_WRITE_WITH_IMM,
          sgList: [a.mr.slice(0, 1), a.mr.slice(1, 1)],
          remote: remote.slice(0, 8),
          immData: 1,
        },
        { wrId: 20, opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(4, 4), remote: remote.slice(100, 8) },
      ]);
      list.post();
      expect((await completions(a.cq, 2)).map(({ wrId }) => wrId)).toEqual([10, 20]);
      expect(b.mr.buffer.toString('latin1', 0, 3)).toBe('ab\0');
      expect(b.mr.buffer.toString('latin1', 100, 104)).toBe('efgh');

      list.setWrId(0, Number.MAX_SAFE_INTEGER);
      list.setRemote(0, remote.slice(200, 8));
      list.setLocal(0, a.mr.slice(2, 3));
      list.setImmData(0, 0xffff_ffff);
      list.post();
      expect((await completions(a.cq, 2)).map(({ wrId }) => wrId)).toEqual([Number.MAX_SAFE_INTEGER, 20]);
      expect(b.mr.buffer.toString('latin1', 200, 204)).toBe('cde\0');
      const received = await completions(b.cq, 2);
      expect(received.map(({ immData, byteLen }) => [immData, byteLen])).toEqual([
        [1, 2],
        [0xffff_ffff, 3],
      ]);

      list.set(1, { opcode: WrOpcode.RDMA_READ, sgList: a.mr.slice(1000, 4), remote: remote.slice(100, 4) });
      b.qp.postRecv({});
      list.post();
      expect((await completions(a.cq, 2)).map(({ wrId }) => wrId)).toEqual([Number.MAX_SAFE_INTEGER, 0]);
      expect(a.mr.buffer.toString('latin1', 1000, 1004)).toBe('efgh');
      await completion(b.cq);
    });

    it('may be changed and posted again while it is in flight: each completion has the wrId of its post', async () => {
      using pair = await connect();
      const { a } = pair;
      const one = a.qp.prepareSend(writes(pair, 1));
      const three = a.qp.prepareSend(writes(pair, 3));
      const expected: number[] = [];
      for (let i = 0; i < 8; i++) {
        one.setWrId(0, 1000 + i);
        three.setWrId(1, 2000 + i);
        one.post();
        three.post();
        expected.push(1000 + i, 0, 2000 + i, 2);
      }
      expect((await completions(a.cq, expected.length)).map(({ wrId }) => wrId)).toEqual(expected);
    });

    it('holds the memory that each of its posts used, also when it has been given other since', async () => {
      using pair = await connect();
      const { a, remote } = pair;
      const [first, second] = [a.pd.allocSync(64), a.pd.allocSync(64)];
      const wrs = [0, 1].map((wrId) => ({
        wrId,
        opcode: WrOpcode.RDMA_WRITE,
        sgList: first.slice(),
        remote: remote.slice(),
        sendFlags: 0,
      }));
      const list = a.qp.prepareSend(wrs);
      list.post();
      list.setLocal(0, second.slice());
      list.setLocal(1, second.slice());
      expect(thrown(() => first.close()).message).toContain('2 work request(s) in flight');
      list.post();
      expect(thrown(() => first.close()).message).toContain('2 work request(s) in flight');
      expect(thrown(() => second.close()).message).toContain('2 work request(s) in flight');
      a.qp.postSend(writes(pair, 1));
      await completion(a.cq);
      first.close();
      // A prepared list does not hold what it would use: it is refused when it is posted.
      second.close();
      expect(thrown(() => list.post())).toMatchObject({ code: 'ERR_RDMA_CLOSED' });
      expect(a.qp.sendsInFlight).toBe(0);
    });

    it('refuses what does not fit a request, and leaves the list as it was', async () => {
      using pair = await connect({ cap: { maxInlineData: 16 } });
      const { a, remote } = pair;
      const { maxInlineData } = a.qp.cap;
      const list = a.qp.prepareSend([
        { wrId: 1, opcode: WrOpcode.SEND },
        {
          wrId: 2,
          opcode: WrOpcode.RDMA_WRITE,
          sgList: a.mr.slice(0, 8),
          remote: remote.slice(0, 8),
          sendFlags: SendFlags.INLINE | SendFlags.SIGNALED,
        },
        {
          wrId: 3,
          opcode: WrOpcode.ATOMIC_FETCH_AND_ADD,
          sgList: a.mr.slice(0, 8),
          remote: remote.slice(0, 8),
          compareAdd: 1n,
        },
      ]);
      const refused: [() => void, RegExp][] = [
        [() => list.setImmData(0, 1), /no immediate data/],
        [() => list.setRemote(0, remote.slice(0, 8)), /remote.*no remote memory/],
        [() => list.setRemote(1, remote.slice(0, 7)), /remote: 8 bytes do not fit the 7/],
        [() => list.setRemote(2, remote.slice(4, 8)), /remote.*multiple of 8/],
        [() => list.setRemote(2, remote.slice(0, 4)), /remote.*8 bytes/],
        [() => list.setLocal(1, a.mr.slice(0, 9)), /slice: 9 bytes do not fit the 8/],
        [() => list.setLocal(2, a.mr.slice(0, 7)), /8 bytes of an atomic/],
        [() => list.setLocal(1, a.mr.slice(0, maxInlineData + 1)), /\d+ bytes, more than maxInlineData/],
        [() => list.setWrId(3, 1), /index/],
        [() => list.setWrId(-1, 1), /index/],
        [() => list.set(0.5, { opcode: WrOpcode.SEND }), /index/],
        [() => list.set(0, { opcode: WrOpcode.SEND, immData: 1 }), /immData/],
        [() => list.set(1, { opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8) }), /remote/],
        [() => list.setWrId(0, 2 ** 53), /wrId/],
      ];
      for (const [call, message] of refused) {
        const error = thrown(call);
        expect(error.code).toMatch(/^ERR_/);
        expect(error.message).toMatch(message);
      }
      list.set(0, { wrId: 4, opcode: WrOpcode.RDMA_WRITE, remote: remote.slice() });
      pair.b.mr.buffer.writeBigUInt64LE(5n, 0);
      a.mr.buffer.writeBigUInt64LE(41n, 0);
      list.post();
      expect((await completions(a.cq, 3)).map(({ wrId, status }) => [wrId, status])).toEqual([
        [4, SUCCESS],
        [2, SUCCESS],
        [3, SUCCESS],
      ]);
      expect(pair.b.mr.buffer.readBigUInt64LE(0)).toBe(42n);
    });

    it('takes from 1 to maxSendWr requests', async () => {
      using pair = await connect();
      const { a } = pair;
      for (const count of [0, a.qp.cap.maxSendWr + 1]) {
        expect(thrown(() => a.qp.prepareSend(writes(pair, count)))).toMatchObject({
          code: 'ERR_OUT_OF_RANGE',
          message: expect.stringContaining('maxSendWr'),
        });
      }
    });

    it('can be prepared in RESET, and posted in RTS only', async () => {
      using pair = await connect();
      const { a } = pair;
      const list = a.qp.prepareSend(writes(pair, 1));
      a.qp.modifySync({ qpState: 0 as QpState });
      expect(thrown(() => list.post())).toMatchObject({ code: 'EINVAL', syscall: verb });
      a.qp.close();
      expect(thrown(() => list.post())).toMatchObject({ code: 'ERR_RDMA_CLOSED' });
      expect(thrown(() => a.qp.prepareSend(writes(pair, 1)))).toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    });
  });

  describe('qp.prepareRecv', () => {
    it('posts the same receives again and again, changed in place', async () => {
      using pair = await connect({ cap: { maxRecvSge: 2 } });
      const { a, b } = pair;
      const list = b.qp.prepareRecv([
        { wrId: 1, sgList: b.mr.slice(0, 8) },
        { wrId: 2, sgList: [b.mr.slice(8, 4), b.mr.slice(16, 4)] },
      ]);
      a.mr.buffer.write('12345678');
      for (let round = 0; round < 3; round++) {
        b.mr.buffer.fill(0);
        list.post();
        expect(b.qp.recvsInFlight).toBe(2);
        a.qp.postSend([0, 1].map(() => ({ opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 8) })));
        expect((await completions(b.cq, 2)).map(({ wrId }) => wrId)).toEqual([1, 2 + round]);
        await completions(a.cq, 2);
        expect(b.mr.buffer.toString('latin1', 0, 20)).toBe('123456781234\0\0\0\x005678');
        list.setWrId(1, 3 + round);
      }
      list.set(0, { wrId: 9, sgList: b.mr.slice(4000, 8) });
      list.post();
      a.qp.postSend({ opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 8) });
      expect((await completion(b.cq)).wrId).toBe(9);
      await completion(a.cq);
      expect(b.mr.buffer.toString('latin1', 4000, 4008)).toBe('12345678');
    });

    it('takes from 1 to maxRecvWr requests, and no index past its end', async () => {
      using pair = await connect();
      const { qp } = pair.a;
      for (const count of [0, qp.cap.maxRecvWr + 1]) {
        expect(thrown(() => qp.prepareRecv(upTo(count).map((wrId) => ({ wrId }))))).toMatchObject({
          code: 'ERR_OUT_OF_RANGE',
          message: expect.stringContaining('maxRecvWr'),
        });
      }
      const list = qp.prepareRecv({});
      expect(thrown(() => list.set(1, {})).message).toContain('index');
      expect(thrown(() => list.setWrId(0, -1)).message).toContain('wrId');
    });
  });
});
