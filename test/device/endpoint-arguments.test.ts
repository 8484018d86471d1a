/** Wrong arguments of endpoints: each is named as the caller knows it, before anything is done. */
import { describe, expect, it } from 'vitest';
import {
  AccessFlags,
  type ConnectionInfo,
  connectionInfo,
  connectQueuePair,
  connectTcp,
  Endpoint,
  listenTcp,
  type MemorySlice,
  type SendWr,
  WrOpcode,
} from '../../lib/index.ts';
import { Ends } from './endpoints.ts';
import { ALL_ACCESS, deviceA, expectNoLeaks, openSide, thrown, within } from './fixture.ts';

expectNoLeaks();

const TYPE = 'ERR_INVALID_ARG_TYPE';
const VALUE = 'ERR_INVALID_ARG_VALUE';
const RANGE = 'ERR_OUT_OF_RANGE';
type Wrong = [name: string, call: () => Promise<unknown>, code: string, message: RegExp];

async function refused(wrongs: readonly Wrong[]): Promise<void> {
  for (const [name, call, code, message] of wrongs) {
    const outcome = within(call(), name).then(
      () => 'it was accepted',
      (error) => error,
    );
    expect(await outcome, name).toMatchObject({ code, message: expect.stringMatching(message) });
  }
}

describe('an operation', () => {
  it('names its own arguments, and is not executed', async () => {
    await using ends = await Ends.connect();
    const { a, mrA, mrB, remoteB } = ends;
    const [eight, remote] = [mrA.slice(0, 8), remoteB.slice(0, 8)];
    mrB.buffer.fill(0);
    mrB.buffer.writeBigUInt64LE(7n);
    const list = [eight] as never;
    const closed = ends.pdA.allocSync(64, { access: ALL_ACCESS });
    const closedSlice = closed.slice(0, 8);
    closed.close();
    await refused([
      ['fetchAdd list', () => a.fetchAdd(list, remote, 1n), TYPE, /^local must be a MemorySlice/],
      ['compareAndSwap list', () => a.compareAndSwap(list, remote, 7n, 1n), TYPE, /^local must be a MemorySlice/],
      ['fetchAdd no slice', () => a.fetchAdd({ length: 8 } as never, remote, 1n), TYPE, /^local must be/],
      ['fetchAdd closed', () => a.fetchAdd(closedSlice, remote, 1n), 'ERR_RDMA_CLOSED', /./],
      ['fetchAdd length', () => a.fetchAdd(mrA.slice(0, 4), remote, 1n), RANGE, /^local must be the 8 bytes/],
      ['fetchAdd add', () => a.fetchAdd(eight, remote, 1 as never), TYPE, /^add must be a bigint/],
      ['compareAndSwap', () => a.compareAndSwap(eight, remote, 1 as never, 1n), TYPE, /^compare must be/],
      ['compareAndSwap', () => a.compareAndSwap(eight, remote, 1n, 1 as never), TYPE, /^swap must be/],
      ['send', () => a.send(5 as never), TYPE, /^local must be a MemorySlice/],
      ['send later', () => a.send('x' as never, { signaled: false }), TYPE, /^local must be a MemorySlice/],
      ['send imm', () => a.send(eight, { immData: -1 }), RANGE, /^options\.immData must be/],
      ['recv', () => a.recv({} as never), TYPE, /^local must be a MemorySlice/],
      ['write', () => a.write(null as never, remote), TYPE, /^local must be a MemorySlice/],
      ['write remote', () => a.write(eight, 5 as never), TYPE, /^remote must be a RemoteSlice/],
      ['writeWithImm', () => a.writeWithImm(eight, remote, 'x' as never), TYPE, /^immData must be/],
      ['share', () => a.share(mrA, 0xffff_ffff), RANGE, /^access must be of REMOTE_WRITE/],
      ['share', () => a.share(mrB, AccessFlags.REMOTE_READ), VALUE, /^memory is of another protection domain/],
      ['share', () => a.share(mrA, AccessFlags.LOCAL_WRITE), RANGE, /^access must be of REMOTE_WRITE/],
    ]);
    // By the stack too, which is what is printed.
    const error = await a.send(5 as never).catch((reason: Error) => reason);
    expect((error as Error).stack).toMatch(/^TypeError.*: local must be/);
    expect(mrB.buffer.readBigUInt64LE()).toBe(7n);
    expect(await a.fetchAdd(eight, remote, 1n)).toBe(7n);
    expect(mrB.buffer.readBigUInt64LE()).toBe(8n);
  });

  it('of a batch is named by its position, alone, among others, and when it has to wait', async () => {
    await using ends = await Ends.connect({ a: { cap: { maxSendWr: 2 } } });
    const { a, mrA, mrB, remoteB } = ends;
    mrB.buffer.fill(0);
    mrA.buffer.fill(1);
    const good: SendWr = { opcode: WrOpcode.RDMA_WRITE, sgList: mrA.slice(0, 8), remote: remoteB.slice(0, 8) };
    const wrongs: Wrong[] = [];
    const add = (wr: unknown, code: string, message: string) => {
      for (const before of [0, 1, 4]) {
        const wrs = [...new Array(before).fill(good), wr] as never;
        wrongs.push([String(wr), () => a.batch(wrs), code, new RegExp(`^wrs\\[${before}\\]${message}`)]);
      }
    };
    for (const sendFlags of ['x', null, [2], true, 1n, Symbol('flags')]) {
      wrongs.push(['flags', () => a.batch([{ ...good, sendFlags } as never]), TYPE, /^wrs\[0\]\.sendFlags must be/]);
    }
    for (const sendFlags of [NaN, 1.5, 2 ** 40 + 1, -1, 0x8000_0000, 0x100])
      add({ ...good, sendFlags }, RANGE, '\\.sendFlags must be');
    for (const wr of [null, undefined, 5, 'abc']) add(wr, TYPE, ' must be an object');
    add({ opcode: 99 }, RANGE, '\\.opcode must be');
    for (const length of [1n, Symbol('length')])
      add({ ...good, sgList: [{ length }] }, TYPE, '\\.sgList\\[0\\] must be');
    add({ ...good, sgList: 'abc' }, TYPE, '\\.sgList must be');
    add({ ...good, remote: 5 }, TYPE, '\\.remote must be');
    // biome-ignore lint/suspicious/noSparseArray: that is the point
    wrongs.push(['sparse', () => a.batch([,] as never), TYPE, /^wrs\[0\] must be an object/]);
    wrongs.push(['empty places', () => a.batch(new Array(3)), TYPE, /^wrs\[0\] must be an object/]);
    await refused(wrongs);
    expect(mrB.buffer.equals(Buffer.alloc(mrB.length))).toBe(true);
    await a.batch([{ ...good, sendFlags: 0 }]);
    expect(mrB.buffer.subarray(0, 9)).toEqual(Buffer.of(1, 1, 1, 1, 1, 1, 1, 1, 0));
  });
});

describe('what a connection is made of', () => {
  it('is checked before there is a socket', async () => {
    const side = openSide(deviceA);
    const { pd, context } = side;
    const options: [object, string, RegExp][] = [
      [{ recvs: 5 }, TYPE, /^options\.recvs must be a function/],
      [{ cap: 5 }, TYPE, /^options\.cap must be an object/],
      [{ cap: { maxSendWr: NaN } }, RANGE, /^options\.cap\.maxSendWr must be/],
      [{ mtu: 99 }, RANGE, /^options\.mtu must be a Mtu/],
      [{ timeout: 'x' }, TYPE, /^options\.timeout must be/],
      [{ rnrRetry: 8 }, RANGE, /^options\.rnrRetry must be/],
    ];
    await refused([
      ...options.map(([o, ...rest]): Wrong => ['listen', () => listenTcp({ pd, port: 0, ...o }), ...rest]),
      ...options.map(
        ([o, ...rest]): Wrong => ['connect', () => connectTcp({ pd, host: '127.0.0.1', port: 1, ...o }), ...rest],
      ),
      ['onError', () => listenTcp({ pd, port: 0, onError: 5 as never }), TYPE, /^options\.onError must be a function/],
    ]);
    const info = connectionInfo(side.qp);
    const join = (local: unknown, remote: unknown) =>
      connectQueuePair(side.qp, local as ConnectionInfo, remote as ConnectionInfo);
    await refused([
      ['no local', () => join(null, null), TYPE, /^local must be a ConnectionInfo/],
      ['no remote', () => join(info, undefined), TYPE, /^remote must be a ConnectionInfo/],
      ['remote', () => join(info, { ...info, mtu: 9 }), RANGE, /^remote\.mtu must be/],
      ['gid', () => join(info, { ...info, gid: 5 }), TYPE, /^remote\.gid must be a string/],
      ['qp', () => connectQueuePair({} as never, info, info), TYPE, /^qp must be a QueuePair/],
      ['mtu', () => connectQueuePair(side.qp, info, info, { mtu: 99 as never }), RANGE, /^options\.mtu must be/],
    ]);
    expect(thrown(() => new Endpoint(side.qp, 5 as never))).toMatchObject({
      ...{ code: TYPE, message: expect.stringMatching(/^privateData must be a Buffer/) },
    });
    context.close({ cascade: true });
  });

  it('fails for receives that cannot be posted', async () => {
    const side = openSide(deviceA);
    const { pd, mr, context } = side;
    const closed = pd.allocSync(64);
    const slice = closed.slice();
    closed.close();
    const wrong: [() => unknown, string, RegExp][] = [
      [() => 5, TYPE, /options\.recvs\(\) returns must be an array/],
      [() => Promise.resolve([]), TYPE, /options\.recvs\(\) returns must be an array/],
      [() => [mr.slice(0, 8), 1], TYPE, /^options\.recvs\(\)\[1\] must be a MemorySlice/],
      [() => [slice], 'ERR_RDMA_CLOSED', /closed/],
    ];
    for (const [recvs, code, message] of wrong) {
      const errors: Error[] = [];
      const listener = await listenTcp({ pd, port: 0, host: '127.0.0.1', onError: (error) => errors.push(error) });
      const to = { pd, host: '127.0.0.1', port: listener.port, recvs: recvs as () => MemorySlice[] };
      await refused([['connect', () => connectTcp(to), code, message]]);
      await within(listener.close(), 'the end of the listener');
      expect(errors).toHaveLength(1);
    }
    context.close({ cascade: true });
  });

  it('listens until each close() is done', async () => {
    const side = openSide(deviceA);
    const listener = await listenTcp({ pd: side.pd, port: 0, host: '127.0.0.1' });
    const [first, second] = [listener.close(), listener.close()];
    expect(first).toBe(second);
    await within(second, 'the end of the listener');
    await expect(listener.accept()).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    side.context.close({ cascade: true });
  });
});
