import { existsSync, readFileSync } from 'node:fs';
import { crc32 } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import {
  decodeHeader,
  decodePacket,
  encodeHeader,
  encodePacket,
  LinkType,
  Opcode,
  opcodeTable,
  PacketError,
  type PacketInit,
  PacketLines,
  PacketView,
  summarizePacket,
} from '../../lib/roce/index.ts';
import { opcodes, Random, randomPacket } from './roce-samples.ts';

const ethernet = { dst: '02:00:00:00:00:02', src: '02:00:00:00:00:01' };
const ipv4 = { src: '10.0.0.1', dst: '10.0.0.2' };
const text = Buffer.from('hello from the NIC');
const hex = (bytes: Uint8Array) => Buffer.from(bytes).toString('hex').replace(/..\B/g, '$& ');

/** The example of the article "A RoCE v2 packet". */
const example = {
  ethernet,
  ipv4,
  bth: { opcode: 0x0a, destQp: 0x11, psn: 1000, ackReq: true },
  reth: { va: 0x7f0012345000n, rkey: 0xabcd, dmaLen: text.length },
  payload: text,
} satisfies PacketInit;

function errorOf(read: () => unknown): PacketError | undefined {
  try {
    read();
    return undefined;
  } catch (error) {
    expect(error).toBeInstanceOf(PacketError);
    return error as PacketError;
  }
}

describe("the article's example", () => {
  it('comes out to the byte: both header lines', () => {
    expect(hex(encodeHeader('bth', example.bth))).toBe('0a 00 ff ff 00 00 00 11 80 00 03 e8');
    expect(hex(encodeHeader('reth', example.reth))).toBe('00 00 7f 00 12 34 50 00 00 00 ab cd 00 00 00 12');
  });

  it('reads back', () => {
    const bytes = Buffer.from('0a00ffff0000001180 0003e8 00007f00123450000000abcd00000012'.replaceAll(' ', ''), 'hex');
    expect(decodeHeader('bth', bytes)).toMatchObject({ opcode: 0x0a, destQp: 0x11, psn: 1000, ackReq: true });
    expect(decodeHeader('reth', bytes, 12)).toEqual(example.reth);
  });

  it('is 98 bytes on the wire, of which 80 are overhead', () => {
    const frameCheckSequence = 4;
    const onTheWire = encodePacket(example).length + frameCheckSequence;
    expect(onTheWire).toBe(98);
    expect(onTheWire - text.length).toBe(80);
  });

  it('as a whole packet says of its two bytes of padding, which the article leaves out, and differs in nothing else', () => {
    const bytes = encodePacket(example);
    expect(hex(bytes.subarray(42, 54))).toBe('0a 20 ff ff 00 00 00 11 80 00 03 e8');
    expect(hex(bytes.subarray(54, 70))).toBe('00 00 7f 00 12 34 50 00 00 00 ab cd 00 00 00 12');
    expect(decodePacket(bytes).payload.toString()).toBe('hello from the NIC');
  });
});

describe('opcodes', () => {
  it('are those of infiniband/opcode.h, where that is installed', ({ skip }) => {
    const header = '/usr/include/infiniband/opcode.h';
    if (!existsSync(header)) skip('libibverbs-dev is not installed');
    const source = readFileSync(header, 'utf8');
    const operation = (name: string) => Number(new RegExp(`IBV_OPCODE_${name}\\s+= (\\w+)`).exec(source)?.[1]);
    const pairs = [...source.matchAll(/^\tIBV_OPCODE\((\w+), (\w+)\)/gm)].filter(([, transport]) => transport !== 'RD');
    expect(pairs.length).toBe(35);
    for (const [, transport, name] of pairs) {
      const value = operation(transport!) + operation(name!);
      expect(Opcode).toHaveProperty(`${transport}_${name}`, value);
      expect(opcodeTable[value]?.name).toBe(`${transport}_${name}`);
    }
  });

  it('have the headers that the specification gives them', () => {
    const headers = (opcode: number) => opcodeTable[opcode]?.headers.join(' ');
    expect(headers(Opcode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE)).toBe('reth immDt');
    expect(headers(Opcode.RC_ATOMIC_ACKNOWLEDGE)).toBe('aeth atomicAckEth');
    expect(headers(Opcode.RC_FLUSH)).toBe('feth reth');
    expect(headers(Opcode.UD_SEND_ONLY_WITH_IMMEDIATE)).toBe('deth immDt');
    expect(headers(Opcode.XRC_RDMA_WRITE_MIDDLE)).toBe('xrceth');
    expect(headers(Opcode.XRC_COMPARE_SWAP)).toBe('xrceth atomicEth');
    expect(headers(Opcode.XRC_RDMA_READ_RESPONSE_LAST)).toBe('aeth');
    expect(headers(0x15)).toBeUndefined();
    expect(headers(0x40)).toBeUndefined();
    expect(opcodeTable[Opcode.CNP]).toMatchObject({ opcode: 0x81, headerLength: 28 });
  });
});

describe('encodePacket and decodePacket', () => {
  it('agree on every opcode, with each field at random', () => {
    const random = new Random(1);
    for (const info of opcodes) {
      for (let i = 0; i < 4; i++) {
        const packet = randomPacket(random, info);
        const bytes = encodePacket(packet);
        const decoded = decodePacket(bytes);
        expect(decoded).toMatchObject(packet as object);
        expect(decoded.icrcOk).toBe(true);
        expect(encodePacket(decoded)).toEqual(bytes);
      }
    }
  });

  it('give the same JSON by PacketLines as by summarizePacket()', () => {
    const random = new Random(3);
    const view = new PacketView();
    const lines = new PacketLines();
    for (const info of opcodes) {
      for (let i = 0; i < 4; i++) {
        const bytes = encodePacket(randomPacket(random, info));
        // A bad ICRC; cut off.
        if (i === 1) bytes[bytes.length - 1]! ^= 1;
        expect(view.load(bytes, 0, bytes.length - (i === 2 ? 1 : 0), LinkType.ETHERNET, bytes.length)).toBe(true);
        const summary = summarizePacket(view);
        expect(lines.json(view)).toBe(JSON.stringify(summary));
        // What it has kept of the first time.
        expect(lines.json(view, view.icrcOk, '"a":"b"')).toBe(JSON.stringify({ a: 'b', ...summary }));
      }
    }
  });

  it('keep lines of IPv6, of RoCE v1 between the same addresses, and of their ways back apart', () => {
    const lines = new PacketLines();
    const view = new PacketView();
    const [a, b] = ['2001:db8::1', '2001:db8::2'];
    const { bth, reth, payload } = example;
    const networks = [{ ipv6: { src: a, dst: b } }, { grh: { sgid: a, dgid: b } }, { ipv6: { src: b, dst: a } }];
    for (const network of [...networks, ...networks]) {
      const packet = { ethernet, ...network, bth, reth, payload } as PacketInit;
      expect(view.load(encodePacket(packet))).toBe(true);
      expect(lines.json(view)).toBe(JSON.stringify(summarizePacket(view)));
      expect(lines.describe(view)).toMatch(
        `${view.src} > ${view.dst} QP 0x000011 RC_RDMA_WRITE_ONLY psn 1000 len 18 va `,
      );
    }
  });

  it('agree with the fields of a PacketView', () => {
    const random = new Random(2);
    const view = new PacketView();
    for (const info of opcodes) {
      const packet = randomPacket(random, info);
      // Amid other bytes.
      const bytes = Buffer.concat([random.bytes(7), encodePacket(packet), random.bytes(9)]);
      expect(view.load(bytes, 7, bytes.length - 9)).toBe(true);
      const ip = packet.ipv4 ?? packet.ipv6;
      expect(view).toMatchObject({
        info,
        opcode: info.opcode,
        se: packet.bth.se,
        pkey: packet.bth.pkey,
        becn: packet.bth.becn,
        destQp: packet.bth.destQp,
        ackReq: packet.bth.ackReq,
        psn: packet.bth.psn,
        padCnt: -packet.payload!.length & 3,
        va: packet.reth?.va,
        rkey: packet.reth?.rkey,
        dmaLen: packet.reth?.dmaLen,
        syndrome: packet.aeth?.syndrome,
        msn: packet.aeth?.msn,
        srcQp: packet.deth?.srcQp,
        payloadLength: packet.payload!.length,
        src: ip?.src ?? packet.grh!.sgid,
        dst: ip?.dst ?? packet.grh!.dgid,
        srcPort: packet.udp?.srcPort ?? 0,
        dscp: ip?.dscp ?? packet.grh!.tClass! >> 2,
        ecn: ip?.ecn ?? packet.grh!.tClass! & 3,
        isCut: false,
        icrcOk: true,
      });
      expect(Buffer.from(view.payload)).toEqual(packet.payload);
    }
  });

  it('compute anew what follows from the rest', () => {
    const decoded = decodePacket(encodePacket(example));
    decoded.bth.psn++;
    decoded.payload = Buffer.from('longer than that was');
    const again = decodePacket(encodePacket(decoded));
    expect(again.icrcOk).toBe(true);
    expect(again.bth).toEqual({ ...decoded.bth, padCnt: 0 });
  });

  it('read the Linux cooked headers', () => {
    const ip = encodePacket(example).subarray(14);
    const sll = Buffer.from('00040001000602000000000100000800', 'hex');
    const sll2 = Buffer.from('0800000000000003000104060200000000010000', 'hex');
    for (const [header, linkType] of [
      [sll, LinkType.LINUX_SLL],
      [sll2, LinkType.LINUX_SLL2],
    ] as const) {
      const decoded = decodePacket(Buffer.concat([header, ip]), { linkType });
      expect(decoded).toMatchObject({ ipv4, reth: example.reth, icrcOk: true });
      expect(decoded).not.toHaveProperty('ethernet');
    }
  });

  it('take IPv4 options along in the ICRC', () => {
    const plain = encodePacket(example);
    const bytes = Buffer.concat([plain.subarray(0, 34), Buffer.from('01010100', 'hex'), plain.subarray(34)]);
    bytes[14] = 0x46;
    bytes.writeUInt16BE(bytes.readUInt16BE(16) + 4, 16);
    const view = new PacketView();
    expect(view.load(bytes)).toBe(true);
    expect(view.psn).toBe(1000);
    // Computed apart, by the text of the annex.
    const masked = Buffer.from(bytes.subarray(14, -4));
    for (const at of [1, 8, 10, 11, 30, 31, 36]) masked[at] = 0xff;
    const crc = crc32(Buffer.concat([Buffer.alloc(8, 0xff), masked]));
    const onTheWire = Buffer.alloc(4);
    onTheWire.writeUInt32LE(crc);
    expect(view.computeIcrc()).toBe(onTheWire.readUInt32BE());
  });

  it('say when the ICRC is wrong, and pass over what routers change', () => {
    const view = new PacketView();
    const bytes = encodePacket(example);
    const bth = 42;
    const free = [15, 22, 24, 25, 40, 41, bth + 4];
    for (let at = 14; at < bytes.length; at++) {
      const changed = Buffer.from(bytes);
      changed[at]! ^= 0x10;
      if (view.load(changed)) expect([at, view.icrcOk]).toEqual([at, free.includes(at)]);
    }
  });
});

describe('what cannot be read', () => {
  it('gives ERR_ROCE_TRUNCATED with the offset at each length of a valid packet', () => {
    const random = new Random(3);
    for (const info of opcodes.slice(0, 80)) {
      const bytes = encodePacket(randomPacket(random, info));
      for (let length = 0; length < bytes.length; length++) {
        const error = errorOf(() => decodePacket(bytes.subarray(0, length)));
        expect(error).toMatchObject({ code: 'ERR_ROCE_TRUNCATED', offset: length });
      }
    }
  });

  it('gives no error where the capture has cut the payload, and has the rest', () => {
    const bytes = encodePacket(example);
    const view = new PacketView();
    for (let length = 70; length < bytes.length; length++) {
      expect(view.load(bytes, 0, length, LinkType.ETHERNET, bytes.length)).toBe(true);
      expect(view).toMatchObject({ isCut: true, icrc: undefined, icrcOk: undefined, payloadLength: 18, psn: 1000 });
      expect(Buffer.from(view.payload)).toEqual(text.subarray(0, length - 70));
    }
    expect(view.load(bytes, 0, 69, LinkType.ETHERNET, bytes.length)).toBe(false);
    expect(view.error()).toMatchObject({ code: 'ERR_ROCE_TRUNCATED', offset: 69 });
  });

  const broken: [what: string, at: number, value: number, code: string, offset: number][] = [
    ['another EtherType', 13, 6, 'ERR_ROCE_NOT_ROCE', 12],
    ['another IP version', 14, 0x65, 'ERR_ROCE_MALFORMED', 14],
    ['a short IPv4 header', 14, 0x44, 'ERR_ROCE_MALFORMED', 14],
    ['a short total length', 17, 27, 'ERR_ROCE_MALFORMED', 16],
    ['a first fragment', 20, 0x20, 'ERR_ROCE_MALFORMED', 20],
    ['a later fragment', 21, 1, 'ERR_ROCE_NOT_ROCE', 20],
    ['another protocol', 23, 6, 'ERR_ROCE_NOT_ROCE', 23],
    ['another port', 37, 0xb6, 'ERR_ROCE_NOT_ROCE', 36],
    ['a UDP length beyond that of IP', 39, 255, 'ERR_ROCE_MALFORMED', 38],
    ['a UDP length below its header', 39, 7, 'ERR_ROCE_MALFORMED', 38],
    ['no room for a BTH', 39, 23, 'ERR_ROCE_MALFORMED', 38],
    ['no room for the RETH', 39, 39, 'ERR_ROCE_MALFORMED', 38],
    ['an opcode that is reserved', 42, 0x15, 'ERR_ROCE_MALFORMED', 42],
  ];
  it.each(broken)('names the place of %s', (_what, at, value, code, offset) => {
    const bytes = encodePacket(example);
    bytes[at] = value;
    expect(errorOf(() => decodePacket(bytes))).toMatchObject({ code, offset, name: 'PacketError' });
  });

  it('names the place of padding without payload', () => {
    const bytes = encodePacket({ ...example, payload: Buffer.alloc(0) });
    bytes[43] = 0x10;
    expect(errorOf(() => decodePacket(bytes))).toMatchObject({ code: 'ERR_ROCE_MALFORMED', offset: 43 });
  });

  it('names the place in a GRH', () => {
    const grh = { sgid: 'fe80::1', dgid: 'fe80::2' };
    const { ipv4: _, ...rest } = example;
    for (const [at, value, code, offset] of [
      [14, 0x40, 'ERR_ROCE_MALFORMED', 14],
      [20, 17, 'ERR_ROCE_NOT_ROCE', 20],
      [19, 15, 'ERR_ROCE_MALFORMED', 18],
    ] as const) {
      const bytes = encodePacket({ ...rest, grh });
      bytes[at] = value;
      expect(errorOf(() => decodePacket(bytes))).toMatchObject({ code, offset });
    }
  });

  it('gives ERR_ROCE_NOT_ROCE for another link type', () => {
    const view = new PacketView();
    expect(view.load(encodePacket(example), 0, undefined, 147)).toBe(false);
    expect(view.error()).toMatchObject({ code: 'ERR_ROCE_NOT_ROCE', offset: 0 });
  });

  it('gives ERR_ROCE_TRUNCATED for a header by itself', () => {
    expect(errorOf(() => decodeHeader('reth', Buffer.alloc(17), 2))).toMatchObject({ offset: 17 });
  });
});

describe('what cannot be encoded', () => {
  const cases: [what: string, packet: object, message: RegExp, code: string][] = [
    ['a field that is too large', { bth: { ...example.bth, psn: 1 << 24 } }, /bth\.psn/, 'ERR_OUT_OF_RANGE'],
    ['a field that is missing', { reth: { va: 1n, rkey: 1 } }, /reth\.dmaLen/, 'ERR_INVALID_ARG_TYPE'],
    ['a number for a bigint', { reth: { ...example.reth, va: 1 } }, /reth\.va/, 'ERR_INVALID_ARG_TYPE'],
    ['a number for a flag', { bth: { ...example.bth, se: 1 } }, /bth\.se/, 'ERR_INVALID_ARG_TYPE'],
    ['a header too many', { aeth: { syndrome: 0, msn: 0 } }, /has no aeth/, 'ERR_INVALID_ARG_VALUE'],
    ['a header too few', { reth: undefined }, /needs reth/, 'ERR_INVALID_ARG_VALUE'],
    ['two network headers', { grh: { sgid: '::', dgid: '::' } }, /exactly one/, 'ERR_INVALID_ARG_VALUE'],
    ['no Ethernet header', { ethernet: undefined }, /needs ethernet/, 'ERR_INVALID_ARG_VALUE'],
    ['no network header', { ipv4: undefined }, /exactly one/, 'ERR_INVALID_ARG_VALUE'],
    ['a reserved opcode', { bth: { ...example.bth, opcode: 0x40 } }, /0x40/, 'ERR_INVALID_ARG_VALUE'],
    ['a bad IPv4 address', { ipv4: { ...ipv4, src: '10.0.0.256' } }, /ipv4\.src/, 'ERR_INVALID_ARG_TYPE'],
    ['a bad MAC address', { ethernet: { ...ethernet, dst: '2:0:0:0:0:1' } }, /ethernet\.dst/, 'ERR_INVALID_ARG_TYPE'],
    ['too much payload', { payload: Buffer.alloc(65_536) }, /payload\.length/, 'ERR_OUT_OF_RANGE'],
  ];
  it.each(cases)('is named: %s', (_what, change, message, code) => {
    const encode = () => encodePacket({ ...example, ...change } as PacketInit);
    expect(encode).toThrow(message);
    expect(encode).toThrow(expect.objectContaining({ code }));
  });
});
