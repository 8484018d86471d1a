/** Input that changes while it is read, and memory that is taken away: what was checked is what is used. */
import { describe, expect, it } from 'vitest';
import {
  MemorySlice,
  type QpAttr,
  QpState,
  type RecvWr,
  type SendWr,
  WcOpcode,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import { ALL_ACCESS, completion, completions, expectNoLeaks, Pair, thrown } from './fixture.ts';

expectNoLeaks();

const send = (sgList: unknown): SendWr => ({ opcode: WrOpcode.SEND, sgList: sgList as MemorySlice });

describe('a list whose elements differ when they are read again', () => {
  it('is read once: a stand-in for a slice gets nowhere', async () => {
    using pair = await Pair.connect({ cap: { maxSendSge: 2, maxRecvSge: 2 } });
    const { a, b } = pair;
    const genuine = a.mr.slice(0, 8);
    let reads = 0;
    let encoded = 0;
    const standIn = { region: a.mr, offset: 0, length: 8, encode: () => encoded++ };
    const list: unknown[] = [];
    Object.defineProperty(list, 0, { enumerable: true, get: () => (reads++ === 0 ? genuine : standIn) });
    b.qp.postRecv({ sgList: b.mr.slice(0, 8) });
    a.qp.postSend(send(list));
    expect(reads).toBe(1);
    expect(encoded).toBe(0);
    expect(await completion(a.cq)).toMatchObject({ status: WcStatus.SUCCESS });
    await completion(b.cq);
    expect(thrown(() => new MemorySlice(a.mr, 2 ** 46, 8, undefined as never)).code).toBe('ERR_INVALID_STATE');
    for (const wrong of [standIn, [standIn], Object.create(Object.getPrototypeOf(genuine))]) {
      expect(thrown(() => a.qp.postSend(send(wrong)))).toMatchObject({ code: 'ERR_INVALID_ARG_TYPE' });
    }
    const endless = new Proxy([genuine], { get: (target, key) => (key === 'length' ? 200 : Reflect.get(target, key)) });
    expect(thrown(() => a.qp.postSend(send(endless))).code).toMatch(/^ERR_/);
    expect(a.qp.sendsInFlight).toBe(0);
  });

  it('is prepared as long as it was at first, and by no methods of its own', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    const remote = pair.remote.slice(0, 8);
    const wrs = [send(a.mr.slice(0, 8)), { ...send(a.mr.slice(0, 8)), opcode: WrOpcode.RDMA_WRITE, remote }];
    let reads = 0;
    const growing = new Proxy(wrs, {
      get: (target, key) => (key === 'length' ? Math.min(++reads, 2) : Reflect.get(target, key)),
    });
    expect(a.qp.prepareSend(growing).length).toBe(1);
    class Own extends Array<SendWr> {
      override forEach(callback: (wr: SendWr, i: number, all: SendWr[]) => void): void {
        for (const i of [0, 1, -1, 1e9]) callback(wrs[1]!, i, this);
      }
    }
    const own = Own.from([wrs[0]!]);
    for (const list of [a.qp.prepareSend(own), a.qp.prepareRecv(own.map(({ sgList }) => ({ sgList })) as RecvWr[])])
      expect(list.length).toBe(1);
    const list = a.qp.prepareSend(own);
    b.qp.postRecv({ sgList: b.mr.slice(64, 64) });
    list.post();
    expect(await completion(a.cq)).toMatchObject({ status: WcStatus.SUCCESS, opcode: WcOpcode.SEND });
    expect(await completion(b.cq)).toMatchObject({ status: WcStatus.SUCCESS, byteLen: 8 });
  });

  it('holds the region even where the list has methods of its own', async () => {
    using pair = await Pair.connect({ cap: { maxSendSge: 2 } });
    const { a } = pair;
    class Odd extends Array<MemorySlice> {
      override map(): never[] {
        return [];
      }
    }
    const mr = a.pd.allocSync(64, { access: ALL_ACCESS });
    a.qp.postRecv({ sgList: Odd.from([mr.slice(0, 8)]) });
    expect(thrown(() => mr.close())).toMatchObject({ code: 'EBUSY' });
  });
});

describe('a getter of a request', () => {
  it('that posts is refused, and nothing is lost or sent twice', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    for (let i = 0; i < 3; i++) b.qp.postRecv({ wrId: i, sgList: b.mr.slice(i * 64, 64) });
    const evil = send(a.mr.slice(64, 64));
    Object.defineProperty(evil, 'wrId', {
      enumerable: true,
      get: () => a.qp.postSend({ wrId: 3, ...send(a.mr.slice(128, 64)) }),
    });
    const list = [{ wrId: 1, ...send(a.mr.slice(0, 64)) }, evil];
    expect(thrown(() => a.qp.postSend(list)).code).toBe('ERR_INVALID_STATE');
    expect(a.qp.sendsInFlight).toBe(0);
    a.qp.postSend({ wrId: 7, ...send(a.mr.slice(0, 8)) });
    expect(await completions(a.cq, 1)).toMatchObject([{ wrId: 7, status: WcStatus.SUCCESS }]);
    expect(await completion(b.cq)).toMatchObject({ wrId: 0, byteLen: 8 });
  });

  it('that closes the region of an earlier one ends the post before C sees it', async () => {
    using pair = await Pair.connect();
    const { a } = pair;
    const mr = a.pd.allocSync(64, { access: ALL_ACCESS });
    const closer = { opcode: WrOpcode.SEND } as SendWr;
    const get = () => {
      mr.close();
      return 2;
    };
    Object.defineProperty(closer, 'wrId', { enumerable: true, get });
    expect(thrown(() => a.qp.postSend([send(mr.slice(0, 8)), closer])).code).toBe('ERR_RDMA_CLOSED');
    expect(a.qp.sendsInFlight).toBe(0);
  });
});

describe('qp.modify', () => {
  it('goes by the attributes as they were when it was called', async () => {
    using pair = await Pair.connect();
    const { qp } = pair.a;
    const attr: QpAttr = { qpState: QpState.RTS, minRnrTimer: 1 };
    const done = qp.modify(attr);
    attr.qpState = 'banana' as never;
    await done;
    expect(qp.state).toBe(QpState.RTS);
  });
});

describe("the caller's memory", () => {
  it('is not posted any more once it was detached by a byte stream', async () => {
    using pair = await Pair.connect();
    const { a } = pair;
    const mr = a.pd.regMrSync(new Uint8Array(16_384), { access: ALL_ACCESS });
    const slice = mr.slice(0, 64);
    const prepared = a.qp.prepareSend(send(slice));
    new ReadableStream({ type: 'bytes', start: (controller) => controller.enqueue(mr.buffer) });
    expect(mr.buffer.length).toBe(0);
    for (const use of [
      () => mr.slice(),
      () => a.qp.postSend(send(slice)),
      () => a.qp.postRecv({ sgList: slice }),
      () => prepared.post(),
    ]) {
      expect(thrown(use)).toMatchObject({ code: 'ERR_INVALID_STATE', message: expect.stringContaining('detached') });
    }
    expect(a.qp.sendsInFlight).toBe(0);
    mr.close();
  });
});
