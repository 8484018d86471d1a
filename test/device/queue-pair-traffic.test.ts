import { describe, expect, it } from 'vitest';
import { AccessFlags, SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode } from '../../lib/index.ts';
import { ALL_ACCESS, completion, completions, expectNoLeaks, fill, isRxe, postings } from './fixture.ts';

expectNoLeaks();

const SUCCESS = WcStatus.SUCCESS;

describe.each(postings)('by $verb', ({ connect }) => {
  describe('SEND', () => {
    it('puts the bytes into the receive, and tells both sides', async () => {
      using pair = await connect();
      const { a, b } = pair;
      const sent = fill(a.mr.buffer.subarray(0, 3000), 1);
      b.qp.postRecv({ wrId: 7, sgList: b.mr.slice(100, 4000) });
      a.qp.postSend({ wrId: 8, opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 3000) });
      const received = await completion(b.cq, 'the receive');
      expect(received).toMatchObject({
        wrId: 7,
        status: SUCCESS,
        opcode: WcOpcode.RECV,
        byteLen: 3000,
        qpNum: b.qp.qpNum,
      });
      expect(received.wcFlags & (WcFlags.WITH_IMM | WcFlags.WITH_INV)).toBe(0);
      expect(await completion(a.cq, 'the send')).toMatchObject({
        wrId: 8,
        status: SUCCESS,
        opcode: WcOpcode.SEND,
        qpNum: a.qp.qpNum,
      });
      expect(b.mr.buffer.subarray(100, 3100).equals(sent)).toBe(true);
      expect(b.mr.buffer.subarray(0, 100).every((byte) => byte === 0)).toBe(true);
      expect(b.mr.buffer.subarray(3100).every((byte) => byte === 0)).toBe(true);
    });

    it('goes both ways at once', async () => {
      using pair = await connect();
      for (const { qp, mr } of [pair.a, pair.b]) qp.postRecv({ sgList: mr.slice(8192, 64) });
      for (const [side, text] of [[pair.a, 'from a'] as const, [pair.b, 'from b'] as const]) {
        side.mr.buffer.write(text);
        side.qp.postSend({ opcode: WrOpcode.SEND, sgList: side.mr.slice(0, 6) });
      }
      for (const { cq } of [pair.a, pair.b]) await completions(cq, 2, 'a send and a receive');
      expect(pair.a.mr.buffer.toString('latin1', 8192, 8198)).toBe('from b');
      expect(pair.b.mr.buffer.toString('latin1', 8192, 8198)).toBe('from a');
    });

    it('takes a message of 0 bytes, with and without local memory', async () => {
      using pair = await connect();
      const { a, b } = pair;
      b.qp.postRecv([{ wrId: 1 }, { wrId: 2, sgList: b.mr.slice() }, { wrId: 3, sgList: [] }]);
      a.qp.postSend([
        { opcode: WrOpcode.SEND },
        { opcode: WrOpcode.SEND, sgList: a.mr.slice(16, 0) },
        { opcode: WrOpcode.SEND, sgList: [] },
      ]);
      const received = await completions(b.cq, 3, 'the empty messages');
      expect(received.map(({ wrId, status, byteLen }) => [wrId, status, byteLen])).toEqual([
        [1, SUCCESS, 0],
        [2, SUCCESS, 0],
        [3, SUCCESS, 0],
      ]);
      await completions(a.cq, 3, 'the sends');
      expect(b.mr.buffer.every((byte) => byte === 0)).toBe(true);
    });

    it('gathers from several elements and scatters into several, of several regions', async () => {
      using pair = await connect({ cap: { maxSendSge: 4, maxRecvSge: 4 } });
      const { a, b } = pair;
      const second = a.pd.allocSync(4096);
      a.mr.buffer.write('one', 0);
      second.buffer.write('three', 100);
      a.mr.buffer.write('two', 5000);
      b.qp.postRecv({ sgList: [b.mr.slice(10, 2), b.mr.slice(100, 7), b.mr.slice(50, 0), b.mr.slice(20, 20)] });
      const pieces = [a.mr.slice(0, 3), a.mr.slice(5000, 3), second.slice(100, 5), second.slice(0, 0)];
      a.qp.postSend({ opcode: WrOpcode.SEND, sgList: pieces });
      expect((await completion(b.cq)).byteLen).toBe(11);
      await completion(a.cq);
      const text = (from: number, length: number) => b.mr.buffer.toString('latin1', from, from + length);
      expect([text(10, 2), text(100, 7), text(20, 2)]).toEqual(['on', 'etwothr', 'ee']);
      expect(b.mr.buffer[22]).toBe(0);
    });

    it('goes through more packets than one', async () => {
      using pair = await connect({ bytes: 64 * 1024 });
      const { a, b } = pair;
      const sent = fill(a.mr.buffer, 5);
      b.qp.postRecv({ sgList: b.mr.slice() });
      a.qp.postSend({ opcode: WrOpcode.SEND, sgList: a.mr.slice() });
      expect(await completion(b.cq)).toMatchObject({ status: SUCCESS, byteLen: 64 * 1024 });
      await completion(a.cq);
      expect(b.mr.buffer.equals(sent)).toBe(true);
    });

    it('keeps the order of messages', async () => {
      using pair = await connect();
      const { a, b } = pair;
      const count = 60;
      b.qp.postRecv(Array.from({ length: count }, (_, i) => ({ wrId: i, sgList: b.mr.slice(i * 4, 4) })));
      for (let i = 0; i < count; i++) a.mr.buffer.writeUInt32LE(1000 + i, i * 4);
      a.qp.postSend(
        Array.from({ length: count }, (_, i) => ({ wrId: i, opcode: WrOpcode.SEND, sgList: a.mr.slice(i * 4, 4) })),
      );
      const order = Array.from({ length: count }, (_, i) => i);
      expect((await completions(b.cq, count)).map(({ wrId }) => wrId)).toEqual(order);
      expect((await completions(a.cq, count)).map(({ wrId }) => wrId)).toEqual(order);
      expect(order.map((i) => b.mr.buffer.readUInt32LE(i * 4))).toEqual(order.map((i) => 1000 + i));
    });
  });

  describe('SEND_WITH_IMM', () => {
    it.each([0, 1, 0x0102_0304, 0x8000_0000, 0xffff_ffff])('carries 0x%s in host byte order', async (immData) => {
      using pair = await connect();
      const { a, b } = pair;
      b.qp.postRecv({ sgList: b.mr.slice(0, 64) });
      a.mr.buffer.write('data');
      a.qp.postSend({ opcode: WrOpcode.SEND_WITH_IMM, sgList: a.mr.slice(0, 4), immData });
      const received = await completion(b.cq);
      expect(received).toMatchObject({ status: SUCCESS, opcode: WcOpcode.RECV, byteLen: 4, immData });
      expect(received.wcFlags & WcFlags.WITH_IMM).toBe(WcFlags.WITH_IMM);
      expect(await completion(a.cq)).toMatchObject({ opcode: WcOpcode.SEND, status: SUCCESS });
      // On the wire it is in network order: the same 32 bits, as they stand in struct ibv_wc.
      const raw = Buffer.alloc(4);
      raw.writeUInt32LE(received.invalidatedRkey);
      expect(raw.readUInt32BE()).toBe(immData);
      expect(b.mr.buffer.toString('latin1', 0, 4)).toBe('data');
    });
  });

  describe('SEND_WITH_INV', () => {
    // Only a memory window or a fast-registered region can be invalidated, and this package makes neither yet.
    it('of a key that cannot be invalidated', async () => {
      using pair = await connect();
      const { a, b } = pair;
      b.qp.postRecv({ wrId: 4, sgList: b.mr.slice() });
      const invalidateRkey = b.mr.rkey;
      a.qp.postSend({ wrId: 5, opcode: WrOpcode.SEND_WITH_INV, sgList: a.mr.slice(0, 8), invalidateRkey });
      const sent = await completion(a.cq, 'the send');
      expect(sent.wrId).toBe(5);
      const received = await completion(b.cq, 'the receive');
      expect(received.wrId).toBe(4);
      if (isRxe) {
        expect(received.status).not.toBe(SUCCESS);
      } else {
        expect(received).toMatchObject({ status: SUCCESS, byteLen: 8, invalidatedRkey: invalidateRkey });
        expect(received.wcFlags & WcFlags.WITH_INV).toBe(WcFlags.WITH_INV);
      }
    });
  });

  describe('RDMA_WRITE', () => {
    it('puts the bytes into remote memory, and only there', async () => {
      using pair = await connect();
      const { a, b, remote } = pair;
      const sent = fill(a.mr.buffer.subarray(0, 5000), 2);
      a.qp.postSend({
        wrId: 1,
        opcode: WrOpcode.RDMA_WRITE,
        sgList: a.mr.slice(0, 5000),
        remote: remote.slice(1001, 5000),
      });
      expect(await completion(a.cq)).toMatchObject({ wrId: 1, status: SUCCESS, opcode: WcOpcode.RDMA_WRITE });
      expect(b.mr.buffer.subarray(1001, 6001).equals(sent)).toBe(true);
      expect(b.mr.buffer.subarray(0, 1001).every((byte) => byte === 0)).toBe(true);
      expect(b.mr.buffer.subarray(6001).every((byte) => byte === 0)).toBe(true);
      expect(b.cq.poll()).toBe(0);
    });

    it('writes 0 bytes', async () => {
      using pair = await connect();
      const { a, b, remote } = pair;
      a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, remote: remote.slice() });
      expect(await completion(a.cq)).toMatchObject({ status: SUCCESS });
      expect(b.mr.buffer.every((byte) => byte === 0)).toBe(true);
    });

    it('gathers from several elements', async () => {
      using pair = await connect({ cap: { maxSendSge: 3 } });
      const { a, b, remote } = pair;
      a.mr.buffer.write('abcdefghi');
      const pieces = [a.mr.slice(6, 3), a.mr.slice(0, 1), a.mr.slice(3, 2)];
      a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: pieces, remote: remote.slice(8) });
      await completion(a.cq);
      expect(b.mr.buffer.toString('latin1', 8, 14)).toBe('ghiade');
    });

    it('refuses to touch more than the remote slice has, before anything is posted', async () => {
      using pair = await connect({ cap: { maxSendSge: 2 } });
      const { a, remote } = pair;
      const wr = { opcode: WrOpcode.RDMA_WRITE, remote: remote.slice(0, 10) };
      expect(() => a.qp.postSend({ ...wr, sgList: a.mr.slice(0, 11) })).toThrow(RangeError);
      expect(() => a.qp.postSend({ ...wr, sgList: [a.mr.slice(0, 6), a.mr.slice(0, 5)] })).toThrow(/remote/);
      expect(a.qp.sendsInFlight).toBe(0);
      a.qp.postSend({ ...wr, sgList: a.mr.slice(0, 10) });
      expect((await completion(a.cq)).status).toBe(SUCCESS);
    });
  });

  describe('RDMA_WRITE_WITH_IMM', () => {
    it('puts the bytes into remote memory and takes a receive for the immediate data', async () => {
      using pair = await connect();
      const { a, b, remote } = pair;
      b.qp.postRecv({ wrId: 9, sgList: b.mr.slice(8000, 100) });
      a.mr.buffer.write('written');
      a.qp.postSend({
        opcode: WrOpcode.RDMA_WRITE_WITH_IMM,
        sgList: a.mr.slice(0, 7),
        remote: remote.slice(64),
        immData: 0xdead_beef,
      });
      const received = await completion(b.cq);
      expect(received).toMatchObject({ wrId: 9, status: SUCCESS, opcode: WcOpcode.RECV_RDMA_WITH_IMM, byteLen: 7 });
      expect(received.immData).toBe(0xdead_beef);
      expect(received.wcFlags & WcFlags.WITH_IMM).toBe(WcFlags.WITH_IMM);
      await completion(a.cq);
      expect(b.mr.buffer.toString('latin1', 64, 71)).toBe('written');
      expect(b.mr.buffer.subarray(8000, 8100).every((byte) => byte === 0)).toBe(true);
      expect(b.qp.recvsInFlight).toBe(0);
    });

    it('needs no memory at all: a doorbell', async () => {
      using pair = await connect();
      const { a, b, remote } = pair;
      b.qp.postRecv({});
      a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE_WITH_IMM, remote: remote.slice(0, 0), immData: 3 });
      expect(await completion(b.cq)).toMatchObject({ byteLen: 0, immData: 3 });
      await completion(a.cq);
    });
  });

  describe('RDMA_READ', () => {
    it('fetches the bytes from remote memory', async () => {
      using pair = await connect();
      const { a, b, remote } = pair;
      const there = fill(b.mr.buffer.subarray(500, 8500), 3);
      a.qp.postSend({
        wrId: 2,
        opcode: WrOpcode.RDMA_READ,
        sgList: a.mr.slice(0, 8000),
        remote: remote.slice(500, 8000),
      });
      expect(await completion(a.cq)).toMatchObject({ wrId: 2, status: SUCCESS, opcode: WcOpcode.RDMA_READ });
      expect(a.mr.buffer.subarray(0, 8000).equals(there)).toBe(true);
      expect(a.mr.buffer.subarray(8000).every((byte) => byte === 0)).toBe(true);
    });

    it('scatters into several elements', async () => {
      using pair = await connect({ cap: { maxSendSge: 3 } });
      const { a, b, remote } = pair;
      b.mr.buffer.write('0123456789');
      const pieces = [a.mr.slice(100, 4), a.mr.slice(0, 1), a.mr.slice(50, 5)];
      a.qp.postSend({ opcode: WrOpcode.RDMA_READ, sgList: pieces, remote: remote.slice(0, 10) });
      await completion(a.cq);
      const text = (from: number, length: number) => a.mr.buffer.toString('latin1', from, from + length);
      expect([text(100, 4), text(0, 1), text(50, 5)]).toEqual(['0123', '4', '56789']);
    });

    it('reads into memory of the caller’s, such as a Float64Array', async () => {
      using pair = await connect();
      const { a, b, remote } = pair;
      const numbers = new Float64Array(4);
      const mr = await a.pd.regMr(numbers.subarray(1, 3));
      new Float64Array(b.mr.buffer.buffer, 0, 2).set([Math.PI, -0.5]);
      a.qp.postSend({ opcode: WrOpcode.RDMA_READ, sgList: mr.slice(), remote: remote.slice(0, 16) });
      await completion(a.cq);
      expect([...numbers]).toEqual([0, Math.PI, -0.5, 0]);
    });

    it('reads what a write in front of it has written', async () => {
      using pair = await connect();
      const { a, remote } = pair;
      const sent = fill(a.mr.buffer.subarray(0, 4096), 9);
      a.qp.postSend([
        { opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 4096), remote: remote.slice(), sendFlags: 0 },
        { opcode: WrOpcode.RDMA_READ, sgList: a.mr.slice(8192, 4096), remote: remote.slice() },
      ]);
      await completion(a.cq);
      expect(a.mr.buffer.subarray(8192, 12288).equals(sent)).toBe(true);
    });

    it('refuses to fetch more than the remote slice has', async () => {
      using pair = await connect();
      const { a, remote } = pair;
      const wr = { opcode: WrOpcode.RDMA_READ, sgList: a.mr.slice(0, 9), remote: remote.slice(0, 8) };
      expect(() => a.qp.postSend(wr)).toThrow(/remote/);
      expect(a.qp.sendsInFlight).toBe(0);
    });
  });

  const edges = [0n, 1n, 2n ** 32n, 2n ** 63n - 1n, 2n ** 63n, 2n ** 64n - 1n];

  describe('ATOMIC_FETCH_AND_ADD', () => {
    it('adds in 64 bits and gives back what was there', async () => {
      using pair = await connect();
      const { a, b, remote } = pair;
      for (const start of edges) {
        for (const compareAdd of [1n, 2n ** 63n, 2n ** 64n - 1n]) {
          b.mr.buffer.writeBigUInt64LE(start, 64);
          const sgList = a.mr.slice(8, 8);
          a.qp.postSend({ opcode: WrOpcode.ATOMIC_FETCH_AND_ADD, sgList, remote: remote.slice(64, 8), compareAdd });
          expect(await completion(a.cq)).toMatchObject({ status: SUCCESS, opcode: WcOpcode.FETCH_ADD });
          expect(a.mr.buffer.readBigUInt64LE(8)).toBe(start);
          expect(b.mr.buffer.readBigUInt64LE(64)).toBe(BigInt.asUintN(64, start + compareAdd));
        }
      }
    });
  });

  describe('ATOMIC_CMP_AND_SWP', () => {
    it('swaps when all 64 bits are equal', async () => {
      using pair = await connect();
      const { a, b, remote } = pair;
      for (const value of edges) {
        const swap = value ^ 0x8000_0001_0000_0002n;
        b.mr.buffer.writeBigUInt64LE(value, 0);
        const wr = { opcode: WrOpcode.ATOMIC_CMP_AND_SWP, sgList: a.mr.slice(0, 8), remote: remote.slice(0, 8) };
        a.qp.postSend({ ...wr, compareAdd: value, swap });
        expect(await completion(a.cq)).toMatchObject({ status: SUCCESS, opcode: WcOpcode.COMP_SWAP });
        expect(a.mr.buffer.readBigUInt64LE(0)).toBe(value);
        expect(b.mr.buffer.readBigUInt64LE(0)).toBe(swap);
      }
    });

    it('leaves it alone when one bit differs, high or low', async () => {
      using pair = await connect();
      const { a, b, remote } = pair;
      const value = 0x0123_4567_89ab_cdefn;
      for (const bit of [1n, 2n ** 31n, 2n ** 32n, 2n ** 63n]) {
        b.mr.buffer.writeBigUInt64LE(value, 0);
        const wr = { opcode: WrOpcode.ATOMIC_CMP_AND_SWP, sgList: a.mr.slice(0, 8), remote: remote.slice(0, 8) };
        a.qp.postSend({ ...wr, compareAdd: value ^ bit, swap: 0n });
        await completion(a.cq);
        expect(a.mr.buffer.readBigUInt64LE(0)).toBe(value);
        expect(b.mr.buffer.readBigUInt64LE(0)).toBe(value);
      }
    });
  });

  describe('INLINE', () => {
    it('copies the bytes at the post: the memory may change at once, and needs no rights', async () => {
      using pair = await connect({ cap: { maxInlineData: 64, maxSendSge: 2 } });
      const { a, b, remote } = pair;
      expect(a.qp.cap.maxInlineData).toBeGreaterThanOrEqual(64);
      b.qp.postRecv({ sgList: b.mr.slice(0, 64) });
      const sendFlags = SendFlags.INLINE | SendFlags.SIGNALED;
      a.mr.buffer.write('at the post');
      a.qp.postSend({ opcode: WrOpcode.SEND, sgList: [a.mr.slice(0, 6), a.mr.slice(6, 5)], sendFlags });
      a.mr.buffer.write('much later!');
      a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 11), remote: remote.slice(128), sendFlags });
      a.mr.buffer.fill(0);
      await completions(a.cq, 2);
      await completion(b.cq);
      expect(b.mr.buffer.toString('latin1', 0, 11)).toBe('at the post');
      expect(b.mr.buffer.toString('latin1', 128, 139)).toBe('much later!');
    });

    it('takes just as much as was granted, and says both numbers when it is more', async () => {
      using pair = await connect({ cap: { maxInlineData: 64 } });
      const { a, b, remote } = pair;
      const { maxInlineData } = a.qp.cap;
      const wr = {
        opcode: WrOpcode.RDMA_WRITE,
        remote: remote.slice(),
        sendFlags: SendFlags.INLINE | SendFlags.SIGNALED,
      };
      const sent = fill(a.mr.buffer.subarray(0, maxInlineData), 4);
      a.qp.postSend({ ...wr, sgList: a.mr.slice(0, maxInlineData) });
      expect((await completion(a.cq)).status).toBe(SUCCESS);
      expect(b.mr.buffer.subarray(0, maxInlineData).equals(sent)).toBe(true);
      const tooMuch = { ...wr, sgList: a.mr.slice(0, maxInlineData + 1) };
      expect(() => a.qp.postSend(tooMuch)).toThrow(
        `${maxInlineData + 1} bytes, more than maxInlineData (${maxInlineData})`,
      );
    });
  });

  describe('FENCE and SOLICITED', () => {
    it('fenced, a send waits for the read in front of it', async () => {
      using pair = await connect();
      const { a, b, remote } = pair;
      // The read brings the bytes that the fenced write then carries on: without the fence it might send older ones.
      for (let i = 1; i <= 5; i++) {
        b.mr.buffer.fill(i, 0, 2048);
        a.qp.postSend([
          { opcode: WrOpcode.RDMA_READ, sgList: a.mr.slice(0, 2048), remote: remote.slice(0, 2048), sendFlags: 0 },
          {
            opcode: WrOpcode.RDMA_WRITE,
            sgList: a.mr.slice(0, 2048),
            remote: remote.slice(4096, 2048),
            sendFlags: SendFlags.FENCE | SendFlags.SIGNALED,
          },
        ]);
        expect((await completion(a.cq)).status).toBe(SUCCESS);
        expect(b.mr.buffer.subarray(4096, 6144).every((byte) => byte === i)).toBe(true);
      }
    });

    it('solicited is passed on with every kind of send', async () => {
      using pair = await connect();
      const { a, b, remote } = pair;
      const sendFlags = SendFlags.SOLICITED | SendFlags.SIGNALED;
      b.qp.postRecv([{}, {}, {}]);
      b.cq.reqNotify(true);
      a.qp.postSend([
        { opcode: WrOpcode.SEND, sendFlags },
        { opcode: WrOpcode.SEND_WITH_IMM, immData: 1, sendFlags },
        { opcode: WrOpcode.RDMA_WRITE_WITH_IMM, immData: 2, remote: remote.slice(), sendFlags },
      ]);
      expect((await completions(b.cq, 3)).map(({ status }) => status)).toEqual([SUCCESS, SUCCESS, SUCCESS]);
      await completions(a.cq, 3);
    });
  });

  describe('access flags', () => {
    it('sends from memory that the device may only read', async () => {
      using pair = await connect();
      const { a, b } = pair;
      const text = Buffer.from('read only');
      const mr = a.pd.regMrSync(text, { access: 0 });
      b.qp.postRecv({ sgList: b.mr.slice() });
      a.qp.postSend({ opcode: WrOpcode.SEND, sgList: mr.slice() });
      expect((await completion(b.cq)).byteLen).toBe(text.length);
      await completion(a.cq);
      expect(b.mr.buffer.toString('latin1', 0, text.length)).toBe('read only');
    });

    it('lets a peer do what the region allows, and no more', async () => {
      using pair = await connect({ b: { access: ALL_ACCESS & ~AccessFlags.REMOTE_ATOMIC } });
      const { a, remote } = pair;
      a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: remote.slice() });
      a.qp.postSend({ opcode: WrOpcode.RDMA_READ, sgList: a.mr.slice(0, 8), remote: remote.slice() });
      const atomic = { opcode: WrOpcode.ATOMIC_FETCH_AND_ADD, sgList: a.mr.slice(0, 8), remote: remote.slice(0, 8) };
      a.qp.postSend({ ...atomic, compareAdd: 1n });
      const found = await completions(a.cq, 3);
      expect(found.map(({ status }) => status)).toEqual([SUCCESS, SUCCESS, WcStatus.REM_ACCESS_ERR]);
    });
  });
});
