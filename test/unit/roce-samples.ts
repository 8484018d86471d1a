/** Packets of every opcode, made by a seeded generator: a failure comes back with the same seed. */

import { type OpcodeInfo, opcodeTable, type PacketInit } from '../../lib/roce/index.ts';

/** A generator of numbers (mulberry32): the same seed, the same numbers. */
export class Random {
  #state: number;
  constructor(seed: number) {
    this.#state = seed;
  }
  /** From 0 up to, not including, `limit`. */
  below(limit: number): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0;
    let t = Math.imul(this.#state ^ (this.#state >>> 15), 1 | this.#state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return Math.floor((((t ^ (t >>> 14)) >>> 0) / 2 ** 32) * limit);
  }
  flag(): boolean {
    return this.below(2) === 1;
  }
  u64(): bigint {
    return (BigInt(this.below(2 ** 32)) << 32n) | BigInt(this.below(2 ** 32));
  }
  bytes(length: number): Buffer {
    return Buffer.from(Array.from({ length }, () => this.below(256)));
  }
  pick<T>(values: readonly T[]): T {
    return values[this.below(values.length)]!;
  }
}

const mac = (random: Random) => random.bytes(6).toString('hex').replace(/..\B/g, '$&:');
const ipv4 = (random: Random) => random.bytes(4).join('.');
const ipv6 = (random: Random) =>
  random.pick(['::', '::1', 'fe80::1:0:0:2', '::ffff:10.1.2.3', '2001:db8::', '1:0:2:0:3:0:4:0', '1:2:3:4:5:6:7:8']);

/** All opcodes that have a meaning. */
export const opcodes = opcodeTable.filter((info): info is OpcodeInfo => info !== undefined);

function network(random: Random): Pick<PacketInit, 'ipv4' | 'ipv6' | 'grh' | 'udp'> {
  const udp = { srcPort: random.below(0x1_0000), checksum: random.below(0x1_0000) };
  const shared = { dscp: random.below(64), ecn: random.pick([0, 1, 2, 3] as const) };
  switch (random.below(3)) {
    case 0:
      return {
        ipv4: {
          ...shared,
          src: ipv4(random),
          dst: ipv4(random),
          ttl: random.below(256),
          id: random.below(0x1_0000),
          dontFragment: random.flag(),
        },
        udp,
      };
    case 1:
      return {
        ipv6: {
          ...shared,
          src: ipv6(random),
          dst: ipv6(random),
          flowLabel: random.below(2 ** 20),
          hopLimit: random.below(256),
        },
        udp,
      };
    default:
      return {
        grh: {
          sgid: ipv6(random),
          dgid: ipv6(random),
          tClass: random.below(256),
          flowLabel: random.below(2 ** 20),
          hopLmt: random.below(256),
        },
      };
  }
}

/** A packet with each field at random. */
export function randomPacket(random: Random, info: OpcodeInfo = random.pick(opcodes)): PacketInit {
  const u24 = () => random.below(2 ** 24);
  const u32 = () => random.below(2 ** 32);
  const headers = {
    xrceth: { xrcSrq: u24() },
    deth: { qkey: u32(), srcQp: u24() },
    feth: { sel: random.below(4), plt: random.below(16) },
    reth: { va: random.u64(), rkey: u32(), dmaLen: u32() },
    atomicEth: { va: random.u64(), rkey: u32(), swapDt: random.u64(), cmpDt: random.u64() },
    aeth: { syndrome: random.below(256), msn: u24() },
    atomicAckEth: { origRemDt: random.u64() },
    immDt: { immDt: u32() },
    ieth: { rkey: u32() },
  };
  const vlan = () => ({
    tpid: random.pick([0x8100, 0x88a8]),
    pcp: random.below(8),
    dei: random.flag(),
    vid: random.below(4096),
  });
  return {
    ethernet: { dst: mac(random), src: mac(random), vlans: Array.from({ length: random.below(3) }, vlan) },
    ...network(random),
    bth: {
      opcode: info.opcode,
      se: random.flag(),
      migReq: random.flag(),
      tver: random.below(16),
      pkey: random.below(0x1_0000),
      fecn: random.flag(),
      becn: random.flag(),
      destQp: u24(),
      ackReq: random.flag(),
      psn: u24(),
    },
    ...Object.fromEntries(Object.entries(headers).filter(([name]) => (info.headers as string[]).includes(name))),
    payload: random.bytes(random.below(100)),
  };
}
