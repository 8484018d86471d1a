/** The header in front of a datagram: which of the two it is. */
import { inspect } from 'node:util';
import { describe, expect, it } from 'vitest';
import { GRH_BYTES, type Grh, parseGid, readDatagram, WcFlags, type WorkCompletion } from '../../lib/index.ts';

const DATA = Buffer.from('data');

/** What readDatagram() makes of a header of 40 bytes. */
function read(header: Uint8Array, wcFlags: number = WcFlags.GRH): Grh | undefined {
  const wc = { byteLen: GRH_BYTES + DATA.length, wcFlags } as WorkCompletion;
  const { payload, grh } = readDatagram(wc, Buffer.concat([header, DATA]));
  expect(payload.equals(DATA)).toBe(true);
  return grh;
}

/** A header of IPv4 from 10.0.0.1 to 10.0.0.2, whose checksum was reckoned by hand, behind 20 bytes of `front`. */
function v4(front: number): Buffer {
  const header = '45680040 00004000 21114543 0a000001 0a000002';
  return Buffer.concat([Buffer.alloc(20, front), Buffer.from(header.replaceAll(' ', ''), 'hex')]);
}

function v6(sgid: string): Buffer {
  const first = Buffer.from('668abcde00081140', 'hex');
  return Buffer.concat([first, parseGid(sgid), parseGid('fe80::2')]);
}

const isV4 = {
  version: 4,
  sgid: '::ffff:10.0.0.1',
  dgid: '::ffff:10.0.0.2',
  trafficClass: 0x68,
  flowLabel: 0,
  hopLimit: 0x21,
};

describe('readDatagram', () => {
  it('reads IPv4 in the last 20 bytes, whatever is in front of it', () => {
    // 0x60: a header of IPv6 was there before.
    for (const front of [0, 0x45, 0x60, 0x6f, 0xff]) expect(read(v4(front)), `${front}`).toEqual(isV4);
  });

  it('reads a global routing header', () => {
    const expected = { version: 6, dgid: 'fe80::2', trafficClass: 0x68, flowLabel: 0xabcde, hopLimit: 0x40 };
    expect(read(v6('fe80::1'))).toEqual({ ...expected, sgid: 'fe80::1' });
    // A GID whose bytes look like the beginning of IPv4: without its checksum they are none.
    const sgid = 'fe80::4568:40';
    expect(v6(sgid).readUInt8(20)).toBe(0x45);
    expect(read(v6(sgid))).toEqual({ ...expected, sgid });
  });

  it('takes IPv4 behind the beginning of IPv6 for it by each bit of its checksum', () => {
    for (let bit = 0; bit < 160; bit++) {
      const header = v4(0x60);
      header[20 + (bit >> 3)]! ^= 1 << (bit & 7);
      expect(read(header)?.version, `bit ${bit}`).toBe(6);
    }
  });

  it('carries in the checksum until nothing is left to carry', () => {
    // Its words sum to 0x1ffff without the checksum: folded once that is 0x10000, and then 1.
    const header = Buffer.concat([Buffer.alloc(20, 0x60), Buffer.alloc(20)]);
    header.writeUInt16BE(0x4500, 20);
    header.writeUInt16BE(0xffff, 32);
    header.writeUInt16BE(0xbb00, 34);
    header.writeUInt16BE(0xfffe, 30);
    expect(read(header)).toMatchObject({ version: 4, sgid: '::ffff:255.255.187.0' });
  });

  it('has no header where there is none, and none where it is of neither kind', () => {
    expect(read(v4(0), 0)).toBeUndefined();
    expect(read(Buffer.alloc(GRH_BYTES))).toBeUndefined();
    expect(read(Buffer.alloc(GRH_BYTES, 0xff))).toBeUndefined();
  });

  it('is printed on one line', () => {
    expect(inspect(read(v6('fe80::1')))).toBe(
      "Grh { version: 6, sgid: 'fe80::1', dgid: 'fe80::2', trafficClass: 0x68, flowLabel: 0xabcde, hopLimit: 64 }",
    );
    expect(structuredClone(read(v4(0)))).toStrictEqual(isV4);
  });
});
