import { constants as bufferConstants } from 'node:buffer';
import { readFileSync, writeFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import {
  AccessFlags,
  type AllocOptions,
  type Context,
  type MemoryRegion,
  openDevice,
  type ProtectionDomain,
  RemoteRegion,
} from '../../lib/index.ts';
import { binding } from '../../lib/native/binding.ts';
import { runChild } from './children.ts';
import { ALL_ACCESS, collect, deviceA, expectNoLeaks, isRxe, thrown, until } from './fixture.ts';

expectNoLeaks();

/** A protection domain, and what is needed to be rid of it. */
class Domain implements Disposable {
  readonly context: Context = openDevice(deviceA);
  readonly pd: ProtectionDomain = this.context.allocPd();
  [Symbol.dispose](): void {
    this.context.close({ cascade: true });
  }
}

/** The four ways to a region, for what holds of all of them. */
const ways: [
  name: string,
  make: (pd: ProtectionDomain, bytes: number, options?: AllocOptions) => Promise<MemoryRegion>,
][] = [
  ['alloc', (pd, bytes, options) => pd.alloc(bytes, options)],
  ['allocSync', async (pd, bytes, options) => pd.allocSync(bytes, options)],
  ['regMr', (pd, bytes, options) => pd.regMr(new Uint8Array(bytes), options)],
  ['regMrSync', async (pd, bytes, options) => pd.regMrSync(new Uint8Array(bytes), options)],
];

describe.each(ways)('pd.%s', (_name, make) => {
  it('makes a region with keys, and an address that its length lies behind', async () => {
    using domain = new Domain();
    const first = await make(domain.pd, 5000);
    const second = await make(domain.pd, 1);
    expect([first.length, first.buffer.length, second.length]).toEqual([5000, 5000, 1]);
    expect(first.access).toBe(AccessFlags.LOCAL_WRITE);
    expect(first.addr > 0n).toBe(true);
    expect(first.lkey).not.toBe(second.lkey);
    expect(first.rkey).not.toBe(second.rkey);
    for (const key of [first.lkey, first.rkey, second.lkey, second.rkey]) expect(key >>> 0).toBe(key);
  });

  it.each([
    ['REMOTE_WRITE', AccessFlags.REMOTE_WRITE],
    ['REMOTE_ATOMIC', AccessFlags.REMOTE_ATOMIC],
  ])('rejects %s without LOCAL_WRITE with EINVAL from ibv_reg_mr', async (_flag, access) => {
    using domain = new Domain();
    await expect(make(domain.pd, 4096, { access })).rejects.toMatchObject({
      name: 'RdmaError',
      code: 'EINVAL',
      errno: -22,
      syscall: 'ibv_reg_mr',
    });
    using mr = await make(domain.pd, 4096, { access: access | AccessFlags.LOCAL_WRITE });
    expect(mr.access).toBe(access | AccessFlags.LOCAL_WRITE);
  });

  it.each([
    ['ON_DEMAND', AccessFlags.ON_DEMAND],
    ['HUGETLB', AccessFlags.HUGETLB],
  ])('takes %s where the device has it, and EOPNOTSUPP says where not', async (_flag, flag) => {
    using domain = new Domain();
    const access = AccessFlags.LOCAL_WRITE | flag;
    if (isRxe) {
      const expected = { code: 'EOPNOTSUPP', syscall: 'ibv_reg_mr' };
      await expect(make(domain.pd, 4096, { access })).rejects.toMatchObject(expected);
    } else {
      expect((await make(domain.pd, 4096, { access })).access).toBe(access);
    }
  });

  it('takes read-only access and relaxed ordering', async () => {
    using domain = new Domain();
    using readOnly = await make(domain.pd, 64, { access: 0 });
    using relaxed = await make(domain.pd, 64, { access: ALL_ACCESS | AccessFlags.RELAXED_ORDERING });
    expect([readOnly.access, relaxed.access]).toEqual([0, ALL_ACCESS | AccessFlags.RELAXED_ORDERING]);
  });

  it('makes many at once', async () => {
    using domain = new Domain();
    const regions = await Promise.all(Array.from({ length: 16 }, (_, i) => make(domain.pd, 4096 + i)));
    expect(regions.map(({ length }) => length)).toEqual(Array.from({ length: 16 }, (_, i) => 4096 + i));
    expect(new Set(regions.map(({ lkey }) => lkey)).size).toBe(16);
  });
});

describe('pd.alloc and pd.allocSync', () => {
  it('give zeroed memory that begins on a page', async () => {
    using domain = new Domain();
    for (const mr of [await domain.pd.alloc(10_000), domain.pd.allocSync(10_000)]) {
      expect(mr.addr % 4096n).toBe(0n);
      expect(mr.buffer.equals(Buffer.alloc(10_000))).toBe(true);
      mr.buffer.fill(0xab);
      expect(mr.slice(9_999, 1).buffer[0]).toBe(0xab);
    }
  });

  it('does not block the event loop while the pages are pinned', async () => {
    using domain = new Domain();
    // In all long enough to take some turns of the loop, and small enough for the memory of the VM. In pieces, since
    // pinning one may hold a lock of the kernel that the main thread needs now and then.
    const length = isRxe ? 4 << 20 : 64 << 20;
    let turns = 0;
    let going = true;
    const turn = () => {
      turns++;
      if (going) setImmediate(turn);
    };
    setImmediate(turn);
    const regions = await Promise.all(Array.from({ length: 16 }, () => domain.pd.alloc(length)));
    going = false;
    expect(regions.every((mr) => mr.length === length)).toBe(true);
    // One that blocks it leaves no turn, or the last one.
    expect(turns).toBeGreaterThan(1);
  });

  it('gives large memory back too, which a thread unmaps', async () => {
    using domain = new Domain();
    const length = 16 << 20;
    const isMapped = (address: bigint) =>
      [...readFileSync('/proc/self/maps', 'latin1').matchAll(/^(\w+)-(\w+) /gm)].some(
        ([, from, to]) => BigInt(`0x${from}`) <= address && address < BigInt(`0x${to}`),
      );
    // Something else may come to the ends of where it was.
    const middle = (mr: MemoryRegion) => mr.addr + BigInt(length / 2);
    const regions = [domain.pd.allocSync(length), await domain.pd.alloc(length + 4096)];
    const addresses = regions.map(middle);
    expect(addresses.map(isMapped)).toEqual([true, true]);
    for (const mr of regions) mr.close();
    await until(() => !addresses.some(isMapped), 'the memory is gone');
    const leaked = binding().census().leaked;
    const address = await (async () => middle(await domain.pd.alloc(length)))();
    expect(isMapped(address)).toBe(true);
    for (let i = 0; i < 20 && binding().census().leaked === leaked; i++) await collect();
    await until(() => !isMapped(address), 'the memory of a region that was collected is gone');
  });

  it('takes the memory away from JavaScript when the region is closed', () => {
    using domain = new Domain();
    const mr = domain.pd.allocSync(4096);
    const { buffer } = mr;
    const view = new Uint32Array(buffer.buffer);
    mr.close();
    expect([buffer.length, view.length, buffer.buffer.byteLength]).toEqual([0, 0, 0]);
  });

  it('refuses a length that no Buffer can have', async () => {
    using domain = new Domain();
    for (const length of [bufferConstants.MAX_LENGTH + 1, Number.MAX_SAFE_INTEGER]) {
      const expected = { code: 'ERR_OUT_OF_RANGE', message: expect.stringContaining('length') };
      expect(thrown(() => domain.pd.allocSync(length))).toMatchObject(expected);
      await expect(domain.pd.alloc(length)).rejects.toMatchObject(expected);
    }
  });

  it('fails with ENOMEM that names /proc/sys/vm/nr_hugepages when there are no huge pages', async () => {
    using domain = new Domain();
    const setting = '/proc/sys/vm/nr_hugepages';
    if (Number(readFileSync(setting, 'utf8')) !== 0) throw new Error(`${setting} is not 0 here: this test needs that`);
    const expected = { code: 'ENOMEM', syscall: 'mmap', message: expect.stringContaining(setting) };
    expect(thrown(() => domain.pd.allocSync(4096, { hugePages: true }))).toMatchObject(expected);
    await expect(domain.pd.alloc(4096, { hugePages: true })).rejects.toMatchObject(expected);
  });

  // The VM's kernel is ours to set; the host's is not.
  if (isRxe)
    it('use huge pages where there are some, and give them back', async () => {
      using domain = new Domain();
      const setting = '/proc/sys/vm/nr_hugepages';
      const free = () => Number(/HugePages_Free: +(\d+)/.exec(readFileSync('/proc/meminfo', 'utf8'))?.[1]);
      writeFileSync(setting, '2');
      try {
        const mr = await domain.pd.alloc(4096, { hugePages: true });
        expect(mr.addr % (2n << 20n)).toBe(0n);
        expect(mr.length).toBe(4096);
        mr.buffer.fill(1);
        expect(free()).toBe(1);
        mr.close();
        // The Buffer was detached, and lets go of the mapping a turn of the event loop later.
        await until(() => free() === 2, 'the mapping is gone');
      } finally {
        writeFileSync(setting, '0');
      }
    });
});

describe('pd.regMr and pd.regMrSync', () => {
  it.each<[string, () => ArrayBufferView | ArrayBuffer]>([
    ['a Buffer of its own', () => Buffer.alloc(100_000)],
    ['a pooled Buffer', () => Buffer.from('only these bytes')],
    ['a slice of a Buffer', () => Buffer.alloc(9000).subarray(4090, 4106)],
    ['a Uint8Array', () => new Uint8Array(77)],
    ['a Float64Array', () => new Float64Array(16)],
    ['a BigUint64Array in the middle of an ArrayBuffer', () => new BigUint64Array(new ArrayBuffer(256), 64, 4)],
    ['a DataView', () => new DataView(new ArrayBuffer(100), 10, 33)],
    ['an ArrayBuffer', () => new ArrayBuffer(8192)],
  ])('register %s in place, and no more than its bytes', async (_kind, make) => {
    using domain = new Domain();
    const memory = make();
    const [backing, offset] = ArrayBuffer.isView(memory) ? [memory.buffer, memory.byteOffset] : [memory, 0];
    for (const mr of [await domain.pd.regMr(memory), domain.pd.regMrSync(memory)]) {
      expect(mr.buffer.buffer).toBe(backing);
      expect([mr.buffer.byteOffset, mr.length]).toEqual([offset, memory.byteLength]);
      // Its address is that of the first byte: another region of the same ArrayBuffer tells the distance.
      using whole = domain.pd.regMrSync(backing as ArrayBuffer);
      expect(mr.addr - whole.addr).toBe(BigInt(offset));
      const bytes = new Uint8Array(backing as ArrayBuffer, offset, memory.byteLength);
      bytes.set([1, 2, 3]);
      expect([...mr.buffer.subarray(0, 3)]).toEqual([1, 2, 3]);
      mr.buffer[1] = 9;
      expect(bytes[1]).toBe(9);
      mr.close();
      expect(bytes[1], 'the memory stays the caller’s').toBe(9);
    }
  });

  it.each<[string, unknown, string]>([
    ['an empty Buffer', Buffer.alloc(0), 'ERR_OUT_OF_RANGE'],
    ['an empty ArrayBuffer', new ArrayBuffer(0), 'ERR_OUT_OF_RANGE'],
    ['a SharedArrayBuffer', new SharedArrayBuffer(64), 'ERR_INVALID_ARG_TYPE'],
    ['a view of a SharedArrayBuffer', new Uint8Array(new SharedArrayBuffer(64)), 'ERR_INVALID_ARG_TYPE'],
    ['an array', [1, 2, 3], 'ERR_INVALID_ARG_TYPE'],
    ['a string', 'text', 'ERR_INVALID_ARG_TYPE'],
    ['a Blob', new Blob(['text']), 'ERR_INVALID_ARG_TYPE'],
    ['an object with a length', { length: 8, byteLength: 8, byteOffset: 0 }, 'ERR_INVALID_ARG_TYPE'],
    ['null', null, 'ERR_INVALID_ARG_TYPE'],
    ['nothing', undefined, 'ERR_INVALID_ARG_TYPE'],
    ['a number', 4096, 'ERR_INVALID_ARG_TYPE'],
    ['a symbol', Symbol('memory'), 'ERR_INVALID_ARG_TYPE'],
  ])('refuse %s, naming the argument', async (_kind, memory, code) => {
    using domain = new Domain();
    const expected = { code, message: expect.stringContaining('memory') };
    expect(thrown(() => domain.pd.regMrSync(memory as ArrayBuffer))).toMatchObject(expected);
    await expect(domain.pd.regMr(memory as ArrayBuffer)).rejects.toMatchObject(expected);
  });

  it.each<[string, (buffer: ArrayBuffer) => ArrayBufferView | ArrayBuffer]>([
    ['ArrayBuffer', (buffer) => buffer],
    ['Uint8Array', (buffer) => new Uint8Array(buffer)],
    ['DataView', (buffer) => new DataView(buffer)],
  ])('refuse a detached or a resizable %s', async (_kind, view) => {
    using domain = new Domain();
    const detached = new ArrayBuffer(64);
    const viewed = view(detached);
    structuredClone(detached, { transfer: [detached] });
    const Resizable = ArrayBuffer as unknown as new (length: number, options: object) => ArrayBuffer;
    for (const memory of [viewed, view(new Resizable(64, { maxByteLength: 128 }))]) {
      const error = thrown(() => domain.pd.regMrSync(memory));
      expect(['ERR_OUT_OF_RANGE', 'ERR_INVALID_ARG_TYPE']).toContain(error.code);
      expect(error.message).toMatch(memory === viewed ? /memory.*detached/ : /memory.*resizable/);
      await expect(domain.pd.regMr(memory)).rejects.toMatchObject({ code: error.code });
    }
  });

  it('mark the memory as untransferable, so that it stays where the NIC writes', async () => {
    using domain = new Domain();
    const memories = [new ArrayBuffer(64), new ArrayBuffer(64)];
    const regions = [await domain.pd.regMr(memories[0]!), domain.pd.regMrSync(memories[1]!), domain.pd.allocSync(64)];
    for (const mr of regions) {
      const buffer = mr.buffer.buffer as ArrayBuffer;
      mr.buffer[63] = 42;
      // Node 20 copies it instead, later ones throw a DataCloneError.
      try {
        structuredClone(buffer, { transfer: [buffer] });
      } catch (error) {
        expect((error as Error).name).toBe('DataCloneError');
      }
      expect(buffer.byteLength).toBe(64);
      expect(mr.buffer[63]).toBe(42);
    }
  });

  it('register the same memory twice as two regions', () => {
    using domain = new Domain();
    const memory = Buffer.alloc(64);
    const first = domain.pd.regMrSync(memory);
    const second = domain.pd.regMrSync(memory);
    expect(second.addr).toBe(first.addr);
    expect(second.lkey).not.toBe(first.lkey);
    first.close();
    expect(second.slice().length).toBe(64);
  });
});

describe('the limit on locked memory', () => {
  it('is in the message of ENOMEM, with the bytes asked for and how to raise it', async () => {
    // Root is exempt from the limit by this capability.
    const dropped = ['setpriv', '--bounding-set=-ipc_lock', '--inh-caps=-ipc_lock'];
    const through = [...dropped, 'prlimit', '--memlock=1048576:2097152'];
    const { code, signal, stdout, stderr } = await runChild('memlock', [], { through });
    expect({ code, signal, stderr }).toEqual({ code: 0, signal: null, stderr: '' });
    const lines = stdout.trim().split('\n');
    expect(lines.length).toBe(4);
    for (const line of lines) {
      const { name, code, syscall, message } = JSON.parse(line);
      expect({ name, code, syscall }).toEqual({ name: 'RdmaError', code: 'ENOMEM', syscall: 'ibv_reg_mr' });
      expect(message).toContain('registering 4194304 bytes');
      expect(message).toContain('RLIMIT_MEMLOCK is 1048576 bytes (hard limit 2097152)');
      expect(message).toContain('ulimit -l unlimited');
      expect(message).toContain('LimitMEMLOCK=infinity');
    }
  });
});

describe('mr.slice', () => {
  it('is all of the region by default, and the rest behind an offset', () => {
    using domain = new Domain();
    const mr = domain.pd.allocSync(1000);
    const cases = [mr.slice(), mr.slice(400), mr.slice(0, 10), mr.slice(999, 1), mr.slice(1000, 0), mr.slice(1000)];
    expect(cases.map(({ offset, length }) => [offset, length])).toEqual([
      [0, 1000],
      [400, 600],
      [0, 10],
      [999, 1],
      [1000, 0],
      [1000, 0],
    ]);
    expect(cases.every(({ region }) => region === mr)).toBe(true);
  });

  it('shows its bytes in place', () => {
    using domain = new Domain();
    const mr = domain.pd.allocSync(100);
    mr.slice(10, 5).buffer.write('hello');
    expect(mr.buffer.toString('latin1', 10, 15)).toBe('hello');
    expect(mr.slice(10, 5).buffer.length).toBe(5);
  });

  it.each([
    [0, 1001],
    [1000, 1],
    [1001, 0],
    [-1, 1],
    [0, -1],
    [0.5, 1],
    [0, Number.NaN],
    [Number.NaN, 1],
    [2 ** 53, 1],
    [0, 2 ** 32],
    [Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER],
    [Number.POSITIVE_INFINITY, 1],
    [1, Number.NEGATIVE_INFINITY],
  ])('refuses offset %d with length %d', (offset, length) => {
    using domain = new Domain();
    const mr = domain.pd.allocSync(1000);
    const error = thrown(() => mr.slice(offset, length));
    expect(error).toBeInstanceOf(RangeError);
    expect(error.code).toBe('ERR_OUT_OF_RANGE');
    expect(error.message).toMatch(/offset|length/);
  });
});

describe('mr.remote', () => {
  it('gives a token of plain data that makes the same region at the other side', () => {
    using domain = new Domain();
    const mr = domain.pd.allocSync(4096, { access: ALL_ACCESS });
    const token = JSON.parse(JSON.stringify(mr.remote()));
    expect(token).toEqual({ addr: `0x${mr.addr.toString(16)}`, rkey: mr.rkey, length: 4096 });
    const remote = new RemoteRegion(token);
    expect([remote.addr, remote.rkey, remote.length]).toEqual([mr.addr, mr.rkey, 4096]);
    expect(structuredClone(mr.remote())).toEqual(token);
  });

  it('is refused once the region is closed', () => {
    using domain = new Domain();
    const mr = domain.pd.allocSync(64);
    mr.close();
    expect(thrown(() => mr.remote()).code).toBe('ERR_RDMA_CLOSED');
    expect(thrown(() => mr.slice()).code).toBe('ERR_RDMA_CLOSED');
  });
});
