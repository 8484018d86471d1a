/** Memory that is shared with a peer and taken back. */
import { describe, expect, it } from 'vitest';
import {
  AccessFlags,
  RdmaClosedError,
  RemoteRegion,
  WcStatus,
  type WorkCompletionError,
  WrOpcode,
} from '../../lib/index.ts';
import { Ends } from './endpoints.ts';
import { ALL_ACCESS, completion, connectSides, deviceA, expectNoLeaks, fill, openSide, within } from './fixture.ts';

expectNoLeaks();

const bindable = ALL_ACCESS | AccessFlags.MW_BIND;
const access = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ;

const failure = (promise: Promise<unknown>): Promise<WorkCompletionError> =>
  within(
    promise.then(
      () => Promise.reject(new Error('it did not reject')),
      (error) => error,
    ),
    'a rejection',
  );

describe('endpoint.share', () => {
  it('gives the peer a part of a region, until it is revoked: then the key is worth nothing', async () => {
    await using ends = await Ends.connect({ access: bindable });
    const { a, b, mrA, mrB } = ends;
    const pattern = fill(mrA.buffer, 3);
    mrB.buffer.fill(0);
    const shared = await b.share(mrB.slice(8192, 4096), access);
    const remote = RemoteRegion.parse(JSON.stringify(shared));
    expect(remote).toMatchObject({ addr: mrB.addr + 8192n, length: 4096 });
    expect(remote.rkey).not.toBe(mrB.rkey);
    await a.write(mrA.slice(0, 4096), remote.slice());
    expect(mrB.buffer.subarray(8192, 12_288).equals(pattern.subarray(0, 4096))).toBe(true);
    await a.read(mrA.slice(8192, 100), remote.slice(50));
    expect(mrA.buffer.subarray(8192, 8292).equals(pattern.subarray(50, 150))).toBe(true);

    expect(shared.isRevoked).toBe(false);
    const [first, second] = [shared.revoke(), shared.revoke()];
    expect(first).toBe(second);
    await first;
    expect(shared.isRevoked).toBe(true);
    mrB.buffer.fill(0);
    const error = await failure(a.write(mrA.slice(0, 8), remote.slice()));
    expect(error.statusName).toBe('REM_ACCESS_ERR');
    expect(error.message).toContain(`rkey 0x${remote.rkey.toString(16)}`);
    expect(mrB.buffer.equals(Buffer.alloc(mrB.length))).toBe(true);
  });

  it('gives a key that no other connection of the same domain can use', async () => {
    await using ends = await Ends.connect({ access: bindable });
    const { b, pdB, mrB } = ends;
    const shared = await b.share(mrB, access);
    const remote = new RemoteRegion(shared.token);
    // Of b's domain, but of another queue pair.
    const other = openSide(deviceA);
    const cq = pdB.context.createCq(8);
    const qp = pdB.createQp({ sendCq: cq, cap: { maxSendWr: 4, maxRecvWr: 4 } });
    await connectSides(other, { context: pdB.context, pd: pdB, cq, qp, mr: mrB });
    other.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: other.mr.slice(0, 8), remote: remote.slice() });
    expect(await completion(other.cq, 'the write')).toMatchObject({ status: WcStatus.REM_ACCESS_ERR });
    other.context.close({ cascade: true });
  });

  it('ends with the connection, with windows that are bound, and after a failure', async () => {
    await using ends = await Ends.connect({ access: bindable });
    const { a, b, mrA, mrB } = ends;
    const shared = await Promise.all([b.share(mrB, access), b.share(mrB.slice(0, 64), access), a.share(mrA, access)]);
    const wrong = new RemoteRegion({ ...mrB.remote(), rkey: mrB.rkey ^ 0x5500 });
    await failure(a.write(mrA.slice(0, 8), wrong.slice()));
    await within(shared[2].revoke(), 'a revocation after the end');
    expect(shared[2].isRevoked).toBe(true);
    await within(b.close(), 'the close');
    expect(shared.map(({ isRevoked }) => isRevoked)).toEqual([true, true, true]);
    await shared[0].revoke();
    await expect(b.share(mrB, access)).rejects.toBeInstanceOf(RdmaClosedError);
    mrB.close();
  });

  it('is told when the peer gives it back', async () => {
    await using ends = await Ends.connect({ access: bindable });
    const { a, b, mrA, mrB, remoteB } = ends;
    const shared = await b.share(mrB.slice(0, 64), access);
    const received = b.recv(mrB.slice(4096, 64));
    const { SEND_WITH_INV } = WrOpcode;
    await a.batch([{ opcode: SEND_WITH_INV, sgList: mrA.slice(0, 8), invalidateRkey: shared.token.rkey }]);
    await within(received, 'the message');
    expect(shared.isRevoked).toBe(true);
    // To invalidate it again would end the connection.
    await shared.revoke();
    await a.write(mrA.slice(0, 8), remoteB.slice());
  });

  it('refuses what is wrong, naming it', async () => {
    await using ends = await Ends.connect({ access: ALL_ACCESS });
    const { b, mrB } = ends;
    expect((await failure(b.share(mrB, access))).message).toMatch(/MW_BIND/);
    expect((await failure(b.share({} as never, access))).message).toMatch(/memory must be a MemorySlice/);
    expect((await failure(b.share(mrB, -1))).message).toMatch(/access/);
  });

  it('is not revoked where the queue has no room, and can be asked again', async () => {
    await using ends = await Ends.connect({ access: bindable, b: { cap: { maxSendWr: 1 }, maxWaiting: 1 } });
    const { a, b, mrB } = ends;
    const shared = await b.share(mrB, access);
    // Nobody receives them yet: one is under way, one waits.
    const sends = [b.send(), b.send()];
    expect(await failure(shared.revoke())).toMatchObject({ code: 'ERR_RDMA_QUEUE_FULL' });
    expect(shared.isRevoked).toBe(false);
    await within(Promise.all([a.recv(), a.recv(), ...sends]), 'the sends');
    await within(shared.revoke(), 'the revocation');
    expect(shared.isRevoked).toBe(true);
  });
});
