import { describe, expect, it } from 'vitest';
import { RemoteRegion, type RemoteRegionToken, RemoteSlice } from '../../lib/index.ts';
import { checkRange } from '../../lib/verbs/memory-region.ts';

const region = (addr: string, length: number, rkey = 1): RemoteRegion => new RemoteRegion({ addr, rkey, length });

/** What a request would carry: the address and the key. */
function encoded(slice: ReturnType<RemoteRegion['slice']>): { addr: bigint; rkey: number } {
  const words = new Int32Array(3);
  RemoteSlice.encode(slice, words, 0, 2);
  const view = new DataView(words.buffer);
  return { addr: view.getBigUint64(0, true), rkey: view.getUint32(8, true) };
}

describe('new RemoteRegion', () => {
  it('takes what mr.remote() gives', () => {
    const remote = region('0x7fffdeadb000', 4096, 0xffff_ffff);
    expect([remote.addr, remote.rkey, remote.length]).toEqual([0x7fffdeadb000n, 0xffff_ffff, 4096]);
  });

  it.each<[string, unknown, string]>([
    ['a number as address', { addr: 4096, rkey: 1, length: 1 }, 'ERR_INVALID_ARG_TYPE'],
    ['a bigint as address', { addr: 4096n, rkey: 1, length: 1 }, 'ERR_INVALID_ARG_TYPE'],
    ['a decimal address', { addr: '4096', rkey: 1, length: 1 }, 'ERR_INVALID_ARG_VALUE'],
    ['an empty address', { addr: '0x', rkey: 1, length: 1 }, 'ERR_INVALID_ARG_VALUE'],
    ['a negative address', { addr: '-0x1', rkey: 1, length: 1 }, 'ERR_INVALID_ARG_VALUE'],
    ['an address of 17 digits', { addr: '0x10000000000000000', rkey: 1, length: 1 }, 'ERR_INVALID_ARG_VALUE'],
    ['an address with more behind it', { addr: '0x10\n', rkey: 1, length: 1 }, 'ERR_INVALID_ARG_VALUE'],
    ['a range past 2^64', { addr: '0xffffffffffffffff', rkey: 1, length: 2 }, 'ERR_INVALID_ARG_VALUE'],
    ['a key of 33 bits', { addr: '0x0', rkey: 2 ** 32, length: 1 }, 'ERR_OUT_OF_RANGE'],
    ['a negative key', { addr: '0x0', rkey: -1, length: 1 }, 'ERR_OUT_OF_RANGE'],
    ['a key as text', { addr: '0x0', rkey: '1', length: 1 }, 'ERR_INVALID_ARG_TYPE'],
    ['no key', { addr: '0x0', length: 1 }, 'ERR_INVALID_ARG_TYPE'],
    ['a negative length', { addr: '0x0', rkey: 1, length: -1 }, 'ERR_OUT_OF_RANGE'],
    ['a length that is no integer', { addr: '0x0', rkey: 1, length: 1.5 }, 'ERR_OUT_OF_RANGE'],
    ['a length of 2^53', { addr: '0x0', rkey: 1, length: 2 ** 53 }, 'ERR_OUT_OF_RANGE'],
    ['no length', { addr: '0x0', rkey: 1 }, 'ERR_INVALID_ARG_TYPE'],
    ['text', '{}', 'ERR_INVALID_ARG_TYPE'],
    ['null', null, 'ERR_INVALID_ARG_TYPE'],
  ])('refuses %s, since a token comes from a peer', (_what, token, code) => {
    expect(() => new RemoteRegion(token as RemoteRegionToken)).toThrow(
      expect.objectContaining({ code, message: expect.stringContaining('token') }),
    );
  });

  it('takes the last byte of the address space', () => {
    expect(region('0xffffffffffffffff', 1).slice().length).toBe(1);
    expect(region('0xFFFFFFFFFFFFFFFF', 0).addr).toBe(2n ** 64n - 1n);
  });
});

describe('RemoteRegion.slice', () => {
  it('adds offsets beyond 32 bits to addresses beyond 53, exactly', () => {
    const length = 2 ** 45;
    for (const addr of [0n, 0x7fff_ffff_f000n, 0xffff_ffffn, 0x1234_5678_9abc_def1n, 2n ** 64n - 2n ** 45n]) {
      const remote = region(`0x${addr.toString(16)}`, length, 0x8000_0001);
      for (const offset of [0, 1, 2 ** 31, 2 ** 32 - 1, 2 ** 32, 2 ** 32 + 4097, 2 ** 40 + 3, length - 8]) {
        expect(encoded(remote.slice(offset, 8))).toEqual({ addr: addr + BigInt(offset), rkey: 0x8000_0001 });
      }
    }
  });

  it('is the rest by default, but no more than a request can touch', () => {
    const remote = region('0x1000', 2 ** 33);
    expect(remote.slice().length).toBe(2 ** 32 - 1);
    expect(remote.slice(2 ** 33 - 10).length).toBe(10);
    expect(remote.slice(2 ** 33).length).toBe(0);
  });

  it('tells whether an atomic could be there', () => {
    expect(RemoteSlice.isAligned(region('0x1000', 64).slice(8, 8))).toBe(true);
    expect(RemoteSlice.isAligned(region('0x1000', 64).slice(12, 8))).toBe(false);
    expect(RemoteSlice.isAligned(region('0x1004', 64).slice(4, 8))).toBe(true);
  });
});

describe('checkRange', () => {
  it('takes what lies inside, to the last byte', () => {
    for (const [offset, length, available] of [
      [0, 0, 0],
      [0, 10, 10],
      [10, 0, 10],
      [2 ** 40, 2 ** 32 - 1, 2 ** 40 + 2 ** 32],
    ] as const) {
      expect(() => checkRange(offset, length, available, 'region')).not.toThrow();
    }
  });

  it.each([
    [0, 11, 10],
    [1, 10, 10],
    [11, 0, 10],
    [2 ** 53 - 1, 2 ** 32 - 1, 2 ** 53 - 1],
    [0, 2 ** 32, 2 ** 40],
    [-1, 1, 10],
    [0, -1, 10],
    [0.5, 1, 10],
  ])('refuses offset %d with length %d of %d bytes', (offset, length, available) => {
    expect(() => checkRange(offset, length, available, 'region')).toThrow(
      expect.objectContaining({ code: 'ERR_OUT_OF_RANGE' }),
    );
  });
});

describe('RemoteRegion.parse', () => {
  it('reads what JSON.stringify(mr.remote()) gave, as text or bytes', () => {
    const json = '{"addr":"0x7f0012345000","rkey":43981,"length":64}';
    for (const given of [json, Buffer.from(json)]) {
      expect(RemoteRegion.parse(given)).toMatchObject({ addr: 0x7f0012345000n, rkey: 0xabcd, length: 64 });
    }
  });

  it('refuses what is no token, with a typed error', () => {
    for (const wrong of ['', '{', 'null', '[]', '{"addr":"7","rkey":1,"length":1}', Buffer.of(0xff), 7, undefined]) {
      const error = (() => {
        try {
          return RemoteRegion.parse(wrong as never);
        } catch (reason) {
          return reason;
        }
      })();
      expect((error as { code?: string }).code, String(wrong)).toMatch(/^ERR_/);
    }
  });
});
