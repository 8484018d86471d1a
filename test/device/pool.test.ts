/** Buffer pools: many buffers over few registrations, back-pressure, what is out. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { BufferPool, type Context, openDevice, type PoolBuffer, type ProtectionDomain } from '../../lib/index.ts';
import { binding } from '../../lib/native/binding.ts';
import { ALL_ACCESS, collect, deviceA, expectNoLeaks, thrown, until, within } from './fixture.ts';

let context: Context;
let pd: ProtectionDomain;

beforeAll(() => {
  context = openDevice(deviceA);
  pd = context.allocPd();
});

afterAll(() => context.close({ cascade: true }));

expectNoLeaks();

describe('a buffer pool', () => {
  it('gives out buffers of one size that do not overlap, over few registrations', async () => {
    const before = binding().census().open;
    using pool = new BufferPool(pd, { bufferBytes: 96, maxBuffers: 250, slabBuffers: 100, access: ALL_ACCESS });
    expect(binding().census().open).toBe(before);
    const buffers = await Promise.all(Array.from({ length: 250 }, () => pool.acquire()));
    expect(binding().census().open).toBe(before + 3);
    expect([pool.registered, pool.inUse, pool.waiting]).toEqual([250, 250, 0]);
    for (const [i, buffer] of buffers.entries()) buffer.buffer.fill(i);
    for (const [i, buffer] of buffers.entries()) {
      expect(buffer.length).toBe(96);
      expect(buffer.buffer.every((byte) => byte === i)).toBe(true);
      expect(buffer.slice().region.access).toBe(ALL_ACCESS);
    }
    for (const buffer of buffers) buffer.release();
    expect(pool.inUse).toBe(0);
    // Nothing is registered for what is there already.
    const again = await pool.acquire();
    expect(binding().census().open).toBe(before + 3);
    again.release();
  });

  it('lets who asks wait when all are out, first come, first served', async () => {
    using pool = new BufferPool(pd, { bufferBytes: 64, maxBuffers: 2, maxWaiting: 3 });
    const [one, two] = await Promise.all([pool.acquire(), pool.acquire()]);
    expect(pool.tryAcquire()).toBeUndefined();
    const order: string[] = [];
    const take = async (name: string, options = {}) => {
      const buffer = await pool.acquire(options);
      order.push(name);
      return buffer;
    };
    const controller = new AbortController();
    const waiting = [take('third'), take('aborted', { signal: controller.signal }), take('fourth')];
    await expect(pool.acquire()).rejects.toMatchObject({ code: 'ERR_OUT_OF_RANGE' });
    const reason = new Error('enough');
    controller.abort(reason);
    await expect(waiting[1]).rejects.toBe(reason);
    expect(pool.waiting).toBe(2);
    one!.release();
    two!.release();
    for (const buffer of [await waiting[0], await waiting[2]]) (buffer as PoolBuffer).release();
    expect(order).toEqual(['third', 'fourth']);
    await expect(pool.acquire({ signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
  });

  it('refuses a second release, and use after release; a part of a buffer is checked', async () => {
    using pool = new BufferPool(pd, { bufferBytes: 64, maxBuffers: 1 });
    const buffer = await pool.acquire();
    expect(buffer.slice(16, 8)).toMatchObject({ offset: 16, length: 8 });
    expect(buffer.slice(60).length).toBe(4);
    expect(() => buffer.slice(60, 5)).toThrow(RangeError);
    buffer.release();
    expect(thrown(() => buffer.release())).toMatchObject({ code: 'ERR_INVALID_STATE' });
    expect(thrown(() => buffer.buffer)).toMatchObject({ code: 'ERR_INVALID_STATE' });
    buffer[Symbol.dispose]();
    {
      using other = await pool.acquire();
      expect(pool.inUse).toBe(1);
      expect(other.released).toBe(false);
    }
    expect(pool.inUse).toBe(0);
  });

  it('says what is out, since when and from where, and which of it nobody has any more', async () => {
    const pool = new BufferPool(pd, { bufferBytes: 64, maxBuffers: 4, traced: true });
    const kept = await pool.acquire();
    await (async () => void (await pool.acquire()))();
    await until(() => {
      (globalThis.gc as () => void)();
      return pool.outstanding().some(({ lost }) => lost);
    }, 'the loss of a buffer');
    await collect();
    const out = pool.outstanding();
    expect(out.map(({ lost }) => lost)).toEqual([false, true]);
    expect(out[0]!.ageMs).toBeGreaterThan(0);
    const busy = thrown(() => pool.close());
    expect(busy).toMatchObject({ name: 'BusyError', code: 'EBUSY' });
    expect(busy.message).toMatch(/2 buffer\(s\) out, the oldest for \d+ ms/);
    expect(pool.closed).toBe(false);
    pool.close({ cascade: true });
    kept.release();
    expect(pool.inUse).toBe(0);
  });

  it('closed: rejects who waits, gives nothing, takes buffers back in silence; its domain can be closed', async () => {
    const own = context.allocPd();
    const pool = new BufferPool(own, { bufferBytes: 4096, maxBuffers: 1 });
    const one = await pool.acquire();
    const waiting = pool.acquire();
    pool.close({ cascade: true });
    pool.close();
    await expect(within(waiting, 'the end of a wait')).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    await expect(pool.acquire()).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    one.release();
    own.close();

    // Closed while memory is being registered.
    const other = context.allocPd();
    const early = new BufferPool(other, { bufferBytes: 4096, maxBuffers: 1 });
    const late = early.acquire();
    early.close();
    await expect(late).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    await until(() => {
      try {
        other.close();
      } catch {}
      return other.closed;
    }, 'the end of the registration');
  });

  it('rejects who waits when the memory cannot be registered, and can go on', async () => {
    using pool = new BufferPool(pd, { bufferBytes: 64, maxBuffers: 1, access: 2 });
    // REMOTE_WRITE without LOCAL_WRITE.
    await expect(pool.acquire()).rejects.toMatchObject({ code: 'EINVAL', syscall: 'ibv_reg_mr' });
    expect([pool.waiting, pool.registered]).toEqual([0, 0]);
    await expect(pool.acquire()).rejects.toMatchObject({ code: 'EINVAL' });
  });

  it('refuses wrong options, naming them', () => {
    const wrong: [object, RegExp][] = [
      [{ maxBuffers: 1 }, /options\.bufferBytes/],
      [{ bufferBytes: 0, maxBuffers: 1 }, /options\.bufferBytes/],
      [{ bufferBytes: 1 }, /options\.maxBuffers/],
      [{ bufferBytes: 1, maxBuffers: 4, slabBuffers: 5 }, /options\.slabBuffers/],
      [{ bufferBytes: 1, maxBuffers: 4, traced: 1 }, /options\.traced/],
      [{ bufferBytes: 1, maxBuffer: 4 }, /did you mean 'maxBuffers'/],
    ];
    for (const [options, message] of wrong) expect(() => new BufferPool(pd, options as never)).toThrow(message);
    expect(() => new BufferPool({} as never, { bufferBytes: 1, maxBuffers: 1 })).toThrow(/pd must be/);
  });
});
