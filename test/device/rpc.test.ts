/** Calls over an endpoint: parameters and results, bytes along with them, many at once, and those that are given up. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openMessages } from '../../lib/endpoint/messages.ts';
import { CallError, type CallHandlers, Calls, type MemorySlice, RdmaClosedError } from '../../lib/index.ts';
import { ALL_ACCESS, DEADLINE_MS, expectNoLeaks, fill, isRxe, until, within } from './fixture.ts';
import { Ends } from './messages.ts';

let ends: Ends;

beforeAll(() => {
  ends = new Ends();
});

afterAll(() => ends.close());

expectNoLeaks();

// A type and not an interface, which has no index.
type Store = {
  add(params: { a: number; b: number }): number;
  put(params: { key: string }): { bytes: number };
  get(params: { key: string }): { found: boolean };
  wait(params: null): string;
  fail(params: { code?: string }): never;
  odd(params: string): unknown;
};

const open = { timeoutMs: DEADLINE_MS };
// What is spoken over the messages, as docs/messages.md has it.
const CALLS = 2;

function storeOf(values: Map<string, Buffer>, waits: ((text: string) => void)[] = []): CallHandlers<Store> {
  return {
    add: ({ a, b }) => a + b,
    put: ({ key }, { body }) => {
      values.set(key, Buffer.from(body?.data ?? []));
      return { bytes: body?.byteLength ?? 0 };
    },
    get: ({ key }, call) => {
      call.answer = values.get(key);
      return { found: values.has(key) };
    },
    wait: (_params, { signal }) =>
      new Promise((resolve) => {
        waits.push(resolve);
        signal.addEventListener('abort', () => resolve(`aborted: ${signal.reason.code}`));
      }),
    fail: ({ code }) => {
      throw Object.assign(new Error('it cannot'), code && { code });
    },
    odd: (what) => (what === 'bigint' ? 1n : what === 'long' ? 'x'.repeat(100_000) : undefined),
  };
}

async function opened(handlers: CallHandlers<Store>, limits = {}) {
  const [a, b] = await ends.connect({ bufferBytes: 1024, buffers: 8, ...limits });
  return within(
    Promise.all([Calls.open<Store>(a, open), Calls.open<Record<never, never>, Store>(b, { ...open, handlers })]),
    'both sides',
  );
}

const closeBoth = (a: { close(): Promise<void> }, b: { close(): Promise<void> }) =>
  within(Promise.all([a.close(), b.close()]), 'close');

describe('calls', () => {
  it('answer with results and with bytes, short and long, registered and not', async () => {
    const values = new Map<string, Buffer>();
    const [a, b] = await opened(storeOf(values));
    expect(await a.call('add', { a: 2, b: 40 })).toEqual({ result: 42, body: undefined });
    const region = await ends.pdA.alloc(100_000, { access: ALL_ACCESS });
    fill(region.buffer, 7);
    for (const [key, body] of Object.entries({
      none: Buffer.alloc(0),
      short: fill(Buffer.alloc(900)),
      long: fill(Buffer.alloc(200_000), 3),
      slice: region.slice(5, 90_000),
    })) {
      const { result } = await within(a.call('put', { key }, { body }), 'put');
      expect(result).toEqual({ bytes: body.length });
      const answer = await within(a.call('get', { key }), 'get');
      expect(answer.result).toEqual({ found: true });
      const expected = body instanceof Buffer ? body : (body as MemorySlice).buffer;
      expect(answer.body!.data.equals(expected)).toBe(true);
      answer.body!.release();
    }
    expect((await a.call('get', { key: 'nothing' })).result).toEqual({ found: false });
    region.close();
    await closeBoth(a, b);
    expect(await a.closed).toBeUndefined();
  });

  it('go on at once, in any order, as many as the peer takes; the others wait', async () => {
    const waits: ((text: string) => void)[] = [];
    const [a, b] = await opened(storeOf(new Map(), waits));
    const order: number[] = [];
    const calls = Array.from({ length: 10 }, async (_, i) => {
      const { result } = await a.call('wait', null);
      order.push(i);
      return result;
    });
    await until(() => waits.length === 4, 'four calls');
    expect(a.pending).toBe(10);
    waits[2]!('third');
    await until(() => waits.length === 5, 'the fifth');
    waits[0]!('first');
    await until(() => order.length === 2, 'two answers');
    expect(order).toEqual([2, 0]);
    for (let i = 0; i < 10; i++) {
      await until(() => waits.length > i, `call ${i}`);
      waits[i]!('later');
    }
    expect((await within(Promise.all(calls), 'all'))[2]).toBe('third');

    const sums = Array.from({ length: isRxe ? 30 : 500 }, (_, i) => a.call('add', { a: i, b: i }));
    expect((await within(Promise.all(sums), 'sums')).map(({ result }) => result)).toEqual(sums.map((_, i) => 2 * i));
    expect(a.pending).toBe(0);
    await closeBoth(a, b);
  });

  it('reject with what the handler threw, and for what there is no handler', async () => {
    const [a, b] = await opened(storeOf(new Map()));
    await expect(a.call('fail', { code: 'ENOSPC' })).rejects.toMatchObject({ name: 'CallError', code: 'ENOSPC' });
    await expect(a.call('fail', {})).rejects.toThrow('fail: it cannot');
    for (const name of ['nothing', 'toString', '__proto__']) {
      await expect(a.call(name as never, null as never)).rejects.toMatchObject({ code: 'ERR_RDMA_NO_METHOD' });
    }
    await expect(b.call('add' as never, null as never)).rejects.toBeInstanceOf(CallError);
    await expect(a.call('odd', 'bigint')).rejects.toThrow(/BigInt/);
    const unspeakable = { code: 'ERR_INVALID_ARG_VALUE', message: expect.stringContaining('params has no JSON: ') };
    await expect(a.call('odd', 1n as never)).rejects.toMatchObject(unspeakable);
    await expect(a.call('odd', 'long')).rejects.toMatchObject({ code: 'ERR_OUT_OF_RANGE' });
    expect((await a.call('odd', '')).result).toBeNull();
    await expect(a.call('odd', 'x'.repeat(2000))).rejects.toMatchObject({ code: 'ERR_OUT_OF_RANGE' });
    const body = Buffer.alloc((1 << 24) + 1);
    await expect(a.call('put', { key: 'k' }, { body })).rejects.toMatchObject({ code: 'ERR_OUT_OF_RANGE' });
    await expect(a.call('add', { a: 1, b: 1 }, { timeout: 1 } as never)).rejects.toThrow(/timeoutMs/);
    expect((await a.call('add', { a: 1, b: 1 })).result).toBe(2);
    await closeBoth(a, b);
  });

  it('are answered whatever the handler throws, or leaves behind; and its place is free again', async () => {
    type Odd = { [name: string]: (params: null) => unknown };
    const throwing = (value: unknown) => () => {
      throw value;
    };
    const error = (more: object) => Object.assign(new Error('it cannot'), more);
    const evil = new Proxy(new Error('x'), {
      get: () => {
        throw new Error('do not look');
      },
    });
    const handlers: CallHandlers<Odd> = {
      plain: throwing(Object.create(null)),
      nothing: throwing(undefined),
      symbol: throwing(Symbol('s')),
      unsaid: throwing(error({ message: undefined })),
      object: throwing(error({ message: { a: 1 } })),
      evil: throwing(evil),
      getter: throwing(Object.defineProperty(new Error('x'), 'message', { get: throwing(1) })),
      long: throwing(error({ message: '\ud800'.repeat(5000), code: 'E'.repeat(100) })),
      codes: throwing(error({ code: '\u0000"\ud800' })),
      answer: (_, call) => {
        call.answer = 5 as never;
      },
      answerGetter: (_, call) => {
        Object.defineProperty(call, 'answer', { get: throwing(new Error('no answer')) });
      },
      sent: (_, call) => {
        call.sent = 5 as never;
      },
      frozen: (_, call) => void Object.freeze(call),
      sentThrows: (_, call) => {
        call.sent = throwing(Object.create(null)) as never;
        return 'sent';
      },
    };
    const [a, b] = await ends.connect({ bufferBytes: 256, buffers: 8 });
    const [calls, peer] = await within(
      Promise.all([Calls.open<Odd>(a, open), Calls.open<Record<never, never>, Odd>(b, { ...open, handlers })]),
      'both sides',
    );
    const warnings: string[] = [];
    const warned = ({ message }: Error) => warnings.push(message);
    process.on('warning', warned);
    const none = 'no reason given';
    const expected: Record<string, [message: RegExp | string, code?: string]> = {
      ...{ plain: [none], nothing: ['undefined'], symbol: ['Symbol(s)'], unsaid: [none], object: [none] },
      ...{ evil: [none], getter: [none], long: [/^long: \ud800{20,}$/, 'E'.repeat(40)], codes: ['it cannot'] },
      ...{ answer: [/must be a Uint8Array/, 'ERR_INVALID_ARG_TYPE'], answerGetter: ['no answer'] },
      ...{ sent: ['call.sent must be a function', 'ERR_INVALID_ARG_TYPE'] },
    };
    // More often than there are places for.
    for (let round = 0; round < 2; round++) {
      for (const [name, [message, code]] of Object.entries(expected)) {
        const failed = await within(
          calls.call(name, null).then(
            () => undefined,
            (reason) => reason,
          ),
          name,
        );
        expect(failed, name).toBeInstanceOf(CallError);
        expect(failed.code, name).toBe(code);
        if (typeof message === 'string') expect(failed.message).toBe(`${name}: ${message}`);
        else expect(failed.message).toMatch(message);
      }
    }
    expect((await within(calls.call('frozen', null), 'frozen')).result).toBeNull();
    expect((await within(calls.call('sentThrows', null), 'sentThrows')).result).toBe('sent');
    await until(() => warnings.length > 0, 'the warning');
    process.off('warning', warned);
    expect(warnings[0]).toMatch(/call\.sent of the method "sentThrows" has failed/);
    expect(calls.pending).toBe(0);
    await closeBoth(calls, peer);
    expect(await peer.closed).toBeUndefined();
  });

  it('carry all bytes, whatever a subclass says, and do not begin without their memory', async () => {
    class Lying extends Uint8Array {
      override get length(): number {
        return 2000;
      }
    }
    const values = new Map<string, Buffer>();
    const [a, b] = await opened(storeOf(values), { buffers: 2 });
    const bodies = [5, 900, 5000].map((length) => new Lying(length).fill(7));
    const puts = bodies.map((body, i) => a.call('put', { key: String(i) }, { body }));
    // One at a time: this one waits for its turn.
    const late = Buffer.from(new Uint8Array(100).buffer);
    const lost = a.call('put', { key: 'late' }, { body: late }).catch((error) => error);
    structuredClone(late.buffer, { transfer: [late.buffer] });
    await within(Promise.all(puts), 'the calls');
    expect(await within(lost, 'the late one')).toMatchObject({ code: 'ERR_INVALID_STATE' });
    expect(values.has('late')).toBe(false);
    for (const [i, length] of [5, 900, 5000].entries()) {
      expect(values.get(String(i))!.equals(Buffer.alloc(length, 7))).toBe(true);
    }
    await closeBoth(a, b);
    expect(await a.closed).toBeUndefined();
  });

  it('can be given up: the handler is told, and what it answers is dropped', async () => {
    const waits: ((text: string) => void)[] = [];
    const [a, b] = await opened(storeOf(new Map(), waits));
    await expect(within(a.call('wait', null, { timeoutMs: 30 }), 'the deadline')).rejects.toMatchObject({
      code: 'ETIMEDOUT',
    });
    const reason = new Error('enough');
    await expect(a.call('wait', null, { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
    const controller = new AbortController();
    const calls = Array.from({ length: 6 }, () => a.call('wait', null, { signal: controller.signal }));
    controller.abort(reason);
    for (const call of calls) await expect(call).rejects.toBe(reason);
    await until(() => a.pending === 0, 'the answers');
    expect((await a.call('add', { a: 1, b: 2 })).result).toBe(3);
    await closeBoth(a, b);
  });

  it('may call back from a handler, with bytes both ways, and do not come to a stand', async () => {
    type Echo = { echo(params: { depth: number }): number };
    const [endpointA, endpointB] = await ends.connect({ bufferBytes: 256, buffers: 4 });
    const sides: Calls<Echo, Echo>[] = [];
    const handlersOf = (own: number): CallHandlers<Echo> => ({
      echo: async ({ depth }, call) => {
        const bytes = Buffer.from(call.body!.data);
        call.body!.release();
        call.answer = bytes;
        if (depth === 0) return 0;
        const { result, body } = await sides[own]!.call('echo', { depth: depth - 1 }, { body: bytes });
        expect(body!.data.equals(bytes)).toBe(true);
        body!.release();
        return result + 1;
      },
    });
    sides.push(
      ...(await Promise.all(
        [endpointA, endpointB].map((endpoint, i) =>
          Calls.open<Echo, Echo>(endpoint, { ...open, handlers: handlersOf(i) }),
        ),
      )),
    );
    const body = fill(Buffer.alloc(5000));
    const calls = sides.map((side) => side.call('echo', { depth: 1 }, { body }));
    const answers = await within(Promise.all(calls), 'both');
    for (const answer of answers) {
      expect(answer.result).toBe(1);
      answer.body!.release();
    }
    await closeBoth(sides[0]!, sides[1]!);
  });

  it('reject when the connection ends, whatever they were waiting for', async () => {
    const waits: ((text: string) => void)[] = [];
    const [a, b] = await opened(storeOf(new Map(), waits));
    const calls = Array.from({ length: 6 }, () => a.call('wait', null).catch((error) => error.code));
    await until(() => waits.length === 4, 'four calls');
    b.destroy();
    expect(await within(Promise.all(calls), 'all')).toEqual(Array(6).fill('ECONNRESET'));
    await expect(a.call('add', { a: 1, b: 1 })).rejects.toMatchObject({ code: 'ECONNRESET' });
    await closeBoth(a, b);
    await expect(b.call('add' as never, null as never)).rejects.toBeInstanceOf(RdmaClosedError);
  });

  it('reject when the peer closes in order, those that wait for their turn and those that come later, too', async () => {
    const waits: ((text: string) => void)[] = [];
    const [a, b] = await opened(storeOf(new Map(), waits));
    const codes = (count: number) =>
      Promise.all(Array.from({ length: count }, () => a.call('wait', null).catch((error) => error.code)));
    // Four of them are begun.
    const calls = codes(6);
    await until(() => waits.length === 4, 'four calls');
    const closing = b.close();
    expect(await within(calls, 'all')).toEqual(Array(6).fill('ERR_RDMA_CLOSED'));
    expect(await within(codes(1), 'a later one')).toEqual(['ERR_RDMA_CLOSED']);
    expect(a.pending).toBe(0);
    // This side has nothing to say any more, so that the other need not wait for it.
    await within(closing, 'the close of the peer');
    expect(await within(a.closed, 'the end')).toBeUndefined();
    await closeBoth(a, b);
  });

  it('end with a peer that does not keep to the protocol', { timeout: 200_000 }, async () => {
    const head = (type: number, id: number, json = '', flag = 0) => {
      const bytes = Buffer.concat([Buffer.of(type, flag, 0, 0, 0, 0, 0, 0), Buffer.from(json)]);
      bytes.writeUInt32BE(id, 4);
      return bytes;
    };
    const limit = head(0, 4);
    const cases = [
      [Buffer.alloc(3)],
      [limit, limit],
      [head(0, 0)],
      [limit, head(9, 1)],
      [limit, head(1, 1, '["add"')],
      [limit, head(1, 1, '{}')],
      [limit, head(1, 1, '["add",1]', 2)],
      [limit, head(2, 7, '[1]')],
      [limit, head(1, 1, '["wait",null]'), head(1, 1, '["wait",null]')],
      [limit, ...[1, 2, 3].map((id) => head(1, id, '["wait",null]'))],
    ];
    for (const frames of cases) {
      const [a, b] = await ends.connect({ bufferBytes: 1024, buffers: 4 });
      // Of the same kind, but not ours: what is called is none of it.
      const [calls, peer] = await within(
        Promise.all([Calls.open(a, { ...open, handlers: storeOf(new Map()) }), openMessages(b, open, CALLS)]),
        'both sides',
      );
      const sends = frames.map((bytes) => peer.send(bytes).catch(() => {}));
      const what = JSON.stringify(frames.map(String));
      expect(await within(calls.closed, what), what).toMatchObject({ code: 'ERR_RDMA_PROTOCOL' });
      expect(await within(peer.closed, what)).toMatchObject({ code: 'ECONNRESET' });
      await Promise.all(sends);
      await closeBoth(calls, peer);
    }
  });
});
