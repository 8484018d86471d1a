/** The blob that two sides exchange: it comes from a peer, so every byte of it is checked. */
import { describe, expect, it } from 'vitest';
import { type ConnectionInfo, decodeConnectionInfo, encodeConnectionInfo } from '../../lib/endpoint/connect.ts';

const info: ConnectionInfo = {
  qpNum: 0x12_3456,
  psn: 0xff_ffff,
  gid: '::ffff:10.78.0.1',
  lid: 0,
  linkLayer: 2,
  mtu: 3,
  maxDestRdAtomic: 16,
};

describe('encodeConnectionInfo', () => {
  it.each([null, undefined, 5, 'x'])('refuses %s', (wrong) => {
    const expected = { code: 'ERR_INVALID_ARG_TYPE', message: expect.stringMatching(/^info must be a ConnectionInfo/) };
    expect(() => encodeConnectionInfo(wrong as never)).toThrow(expect.objectContaining(expected));
  });

  it('gives 36 bytes in network order, with a version and a length', () => {
    expect(encodeConnectionInfo(info).toString('hex')).toBe(
      '6e52444d' +
        '01' +
        '24' +
        '02' +
        '03' +
        '00123456' +
        '00ffffff' +
        '0000' +
        '10' +
        '00' +
        '00000000000000000000ffff0a4e0001',
    );
  });

  it.each([
    ['qpNum', { qpNum: 0x100_0000 }],
    ['psn', { psn: -1 }],
    ['lid', { lid: 0x1_0000 }],
    ['mtu', { mtu: 6 }],
    ['maxDestRdAtomic', { maxDestRdAtomic: 256 }],
    ['gid', { gid: '10.0.0.1' }],
  ])('refuses a wrong %s, naming it', (name, wrong) => {
    expect(() => encodeConnectionInfo({ ...info, ...wrong } as ConnectionInfo)).toThrow(new RegExp(name));
  });
});

describe('decodeConnectionInfo', () => {
  it('gives back what was encoded', () => {
    expect(decodeConnectionInfo(encodeConnectionInfo(info))).toEqual(info);
    const infiniband = { ...info, linkLayer: 1, lid: 0xbfff, gid: 'fe80::1', mtu: 5 as const };
    expect(decodeConnectionInfo(encodeConnectionInfo(infiniband))).toEqual(infiniband);
  });

  it('refuses every length but its own', () => {
    const blob = encodeConnectionInfo(info);
    for (let length = 0; length < blob.length; length++) {
      expect(() => decodeConnectionInfo(blob.subarray(0, length))).toThrow(
        expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE' }),
      );
    }
    expect(() => decodeConnectionInfo(Buffer.concat([blob, Buffer.of(0)]))).toThrow(/37 bytes/);
  });

  it.each([
    [0, 0x4e, /nRDM/],
    [4, 2, /version 2/],
    [5, 35, /says 35/],
    [6, 3, /link layer/],
    [7, 0, /MTU 0/],
    [7, 6, /MTU 6/],
    [8, 1, /24 bits/],
    [12, 1, /24 bits/],
  ])('refuses byte %i as %i', (at, value, message) => {
    const blob = encodeConnectionInfo(info);
    blob[at] = value;
    expect(() => decodeConnectionInfo(blob)).toThrow(message);
  });

  it('refuses an Ethernet peer without a GID, and what is no bytes', () => {
    const blob = encodeConnectionInfo(info);
    blob.fill(0, 20);
    expect(() => decodeConnectionInfo(blob)).toThrow(/no GID/);
    expect(() => decodeConnectionInfo('nRDM' as never)).toThrow(
      expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }),
    );
  });
});
