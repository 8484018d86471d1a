import { describe, expect, it } from 'vitest';
import { decodePrivateData, encodePrivateData, PortSpace, privateDataLimit } from '../../lib/index.ts';

/** As it arrives: with zeros behind it. */
function arrived(data: Uint8Array, length: number): Buffer {
  const message = Buffer.alloc(length);
  message.set(data);
  return message;
}

describe('private data with its length in front', () => {
  it.each([0, 1, 55, 195, 255])('%i bytes come out as they went in, whatever is behind them', (length) => {
    const data = Buffer.from(Array.from({ length }, (_, i) => i));
    const encoded = encodePrivateData(data);
    expect(encoded).toEqual(Buffer.concat([Buffer.of(length), data]));
    expect(decodePrivateData(encoded)).toEqual(data);
    expect(decodePrivateData(arrived(encoded, 300))).toEqual(data);
  });

  it('zeros at its end are its own', () => {
    expect(decodePrivateData(arrived(encodePrivateData(Buffer.alloc(3)), 56))).toEqual(Buffer.alloc(3));
  });

  it('text is UTF-8, counted in bytes', () => {
    expect(encodePrivateData('ä')).toEqual(Buffer.of(2, 0xc3, 0xa4));
    expect(decodePrivateData(encodePrivateData('größe')).toString()).toBe('größe');
    expect(encodePrivateData('ä'.repeat(127))).toHaveLength(255);
    expect(() => encodePrivateData('ä'.repeat(128))).toThrow('data has 256 bytes, more than 255');
  });

  it('more than a byte can count is refused, and what is no bytes', () => {
    expect(() => encodePrivateData(Buffer.alloc(256))).toThrow('data has 256 bytes, more than 255');
    for (const data of [undefined, 7, [1, 2], new ArrayBuffer(4)]) {
      expect(() => encodePrivateData(data as never)).toThrow(/data must be a Uint8Array or a string/);
      expect(() => decodePrivateData(data as never)).toThrow(/data must be a Uint8Array/);
    }
  });

  it('a peer that has sent nothing has sent nothing; one that lies about the length is found out', () => {
    for (const data of [Buffer.alloc(0), Buffer.alloc(56)]) expect(decodePrivateData(data)).toEqual(Buffer.alloc(0));
    for (const [data, bytes, says] of [
      [Buffer.of(1), 1, 1],
      [Buffer.of(3, 1, 2), 3, 3],
      [Buffer.alloc(56, 255), 56, 255],
      [Buffer.of(56, ...Array(55).fill(1)), 56, 56],
    ] as const) {
      const text = `The private data has ${bytes} bytes, and says ${says}`;
      expect(() => decodePrivateData(data)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE' }));
      expect(() => decodePrivateData(data)).toThrow(text);
    }
  });

  it('what comes out is a copy', () => {
    const message = encodePrivateData('abc');
    const data = decodePrivateData(message);
    message.fill(0);
    expect(data.toString()).toBe('abc');
  });
});

describe('privateDataLimit()', () => {
  it('says what each message has room for', () => {
    const messages = ['connect', 'accept', 'reject'] as const;
    const limits = (space?: PortSpace) => messages.map((message) => privateDataLimit(message, space));
    for (const space of [undefined, PortSpace.TCP, PortSpace.IB]) expect(limits(space)).toEqual([56, 196, 148]);
    for (const space of [PortSpace.UDP, PortSpace.IPOIB]) expect(limits(space)).toEqual([180, 136, 136]);
    expect(() => privateDataLimit('hello' as never)).toThrow("message must be 'connect', 'accept' or 'reject'");
  });
});
