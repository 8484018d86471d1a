import { isIPv6 } from 'node:net';
import { describe, expect, it } from 'vitest';
import { chooseGid, formatGid, type GidEntry, GidType, parseGid } from '../../lib/index.ts';

/** The same numbers each time, so that a failure can be repeated. */
function* random(seed = 1): Generator<number, never> {
  for (let state = seed; ; ) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    yield state >>> 8;
  }
}

/** An address in the one form that WHATWG URLs have, by a parser that is not ours. */
const normal = (address: string): string => new URL(`http://[${address}]/`).hostname.slice(1, -1);

const numbers = random();
const below = (n: number): number => numbers.next().value % n;

/** 16 bytes with the runs of zeros that addresses are made of. */
const bytes = (): Buffer => Buffer.from(Array.from({ length: 16 }, () => (below(3) === 0 ? below(256) : 0)));

/** One of the ways in which the same address may be written. */
function spelling(gid: Buffer): string {
  const groups = Array.from({ length: 8 }, (_, i) => gid.readUInt16BE(2 * i));
  const text = groups.map((group) => {
    const digits = group.toString(16).padStart(below(5), '0');
    return below(2) === 0 ? digits.toUpperCase() : digits;
  });
  if (below(2) === 0) text.splice(6, 2, [...gid.subarray(12)].join('.'));
  // Any run of zero groups may be left out, also one of a single group, which is not the usual form.
  const start = below(text.length);
  let end = start;
  while (end < text.length && /^0+$/.test(text[end]!)) end++;
  if (end === start || below(3) === 0) return text.join(':');
  return `${text.slice(0, start).join(':')}::${text.slice(end).join(':')}`;
}

describe('formatGid and parseGid', () => {
  it('agree with each other and with another parser, for 5000 addresses', () => {
    for (let i = 0; i < 5000; i++) {
      const gid = bytes();
      const text = formatGid(gid);
      expect(isIPv6(text), text).toBe(true);
      expect(normal(text)).toBe(normal(gid.toString('hex').replace(/....(?!$)/g, '$&:')));
      expect(parseGid(text)).toEqual(gid);
    }
  });

  it('take every spelling of an address, 5000 of them', () => {
    for (let i = 0; i < 5000; i++) {
      const gid = bytes();
      const text = spelling(gid);
      if (!isIPv6(text)) throw new Error(`the test made ${text}`);
      expect(parseGid(text), text).toEqual(gid);
    }
  });

  it('write what people know', () => {
    const hex = (text: string) => Buffer.from(text, 'hex');
    expect(formatGid(hex('00000000000000000000ffff0a630001'))).toBe('::ffff:10.99.0.1');
    expect(formatGid(hex('fe800000000000000e42a1fffe000000'))).toBe('fe80::e42:a1ff:fe00:0');
    expect(formatGid(Buffer.alloc(16))).toBe('::');
    expect(formatGid(new Uint8Array(16).fill(255))).toBe('ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff');
    expect(formatGid(new Uint8Array(20).fill(1).subarray(4))).toBe('101:101:101:101:101:101:101:101');
    expect(parseGid('::').equals(Buffer.alloc(16))).toBe(true);
    expect(parseGid('::1.2.3.4').toString('hex')).toBe(`${'0'.repeat(24)}01020304`);
  });

  it.each([
    '',
    ':',
    ':::',
    '1::2::3',
    '1:2:3:4:5:6:7',
    '1:2:3:4:5:6:7:8:9',
    '12345::',
    '::1.2.3',
    '::1.2.3.400',
    ' ::1',
    '::1%lo',
    '10.0.0.1',
    'mlx5_0',
  ])('refuse %j', (text) => {
    expect(() => parseGid(text)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE' }));
  });

  it('refuse what is no address at all', () => {
    for (const value of [undefined, null, 1, {}, Buffer.alloc(16)]) {
      expect(() => parseGid(value as string)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }));
    }
    for (const value of [undefined, null, '::1', new Uint8Array(15), new Uint8Array(17), new Array(16).fill(0)]) {
      expect(() => formatGid(value as Uint8Array)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }));
    }
  });
});

describe('chooseGid', () => {
  const entry = (gid: string, gidType: number, gidIndex: number): GidEntry => ({
    gid,
    gidType,
    gidIndex,
    portNum: 1,
    netdev: null,
  });
  // In the order in which they are preferred.
  const ranked = [
    entry('::ffff:10.0.0.1', GidType.ROCE_V2, 7),
    entry('::ffff:192.168.1.1', GidType.ROCE_V2, 9),
    entry('2001:db8::1', GidType.ROCE_V2, 5),
    entry('fd00::1', GidType.ROCE_V2, 6),
    entry('fe80::1', GidType.ROCE_V2, 1),
    entry('febf::1', GidType.ROCE_V2, 3),
    entry('::ffff:10.0.0.1', GidType.ROCE_V1, 0),
    entry('fe80::1', GidType.ROCE_V1, 2),
    entry('fe80::2:c903:0:1', GidType.IB, 4),
  ];

  it('takes the best that is there, whatever the order of the table', () => {
    for (let first = 0; first < ranked.length; first++) {
      const table = ranked.slice(first);
      for (let i = 0; i < 20; i++) {
        const shuffled = [...table].map((value) => ({ value, key: below(1000) })).sort((a, b) => a.key - b.key);
        expect(chooseGid(shuffled.map(({ value }) => value))).toBe(table[0]);
      }
    }
  });

  it('finds none in an empty table', () => {
    expect(chooseGid([])).toBeUndefined();
  });
});
