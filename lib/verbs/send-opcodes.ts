/** What each opcode of a send request takes, and which of them a queue pair has. */
import { QpType, SendOpsFlags, WrOpcode } from '../native/constants.gen.ts';

/** It is about remote memory. @internal */
export const NEEDS_REMOTE = 1;
/** It carries immediate data. @internal */
export const NEEDS_IMM = 2;
/** It names a key to invalidate. @internal */
export const NEEDS_INVALIDATE = 4;
/** It returns what was in the 8 remote bytes. @internal */
export const ATOMIC = 8;
/** It takes the flag INLINE. @internal */
export const MAY_INLINE = 16;
/** It takes no local memory. @internal */
export const NO_DATA = 32;
/** It writes 8 bytes, all at once. @internal */
export const ATOMIC_WRITE = 64;
/** It waits for the reads in front of it, whatever its flags: a shift to the right makes `SendFlags.FENCE` of it. @internal */
export const FENCED = 128;
/** @internal */
export const FENCED_SHIFT = 7;
/** It has a placement type and a selectivity level. @internal */
export const FLUSH = 256;
/** It has a header and a segment size. @internal */
export const TSO = 512;

// The kernel driver of Soft-RoCE uses the opcode from the ring without a check, so one that is not here does not get
// there. ibv_post_send() has neither atomic writes, whose address the provider of rdma_rxe drops, nor flushes.
const traits = new Map<number, { trait: number; op: number; extendedOnly?: true }>([
  [WrOpcode.SEND, { trait: MAY_INLINE, op: SendOpsFlags.SEND }],
  [WrOpcode.SEND_WITH_IMM, { trait: MAY_INLINE | NEEDS_IMM, op: SendOpsFlags.SEND_WITH_IMM }],
  [WrOpcode.SEND_WITH_INV, { trait: MAY_INLINE | NEEDS_INVALIDATE, op: SendOpsFlags.SEND_WITH_INV }],
  [WrOpcode.RDMA_WRITE, { trait: MAY_INLINE | NEEDS_REMOTE, op: SendOpsFlags.RDMA_WRITE }],
  [
    WrOpcode.RDMA_WRITE_WITH_IMM,
    { trait: MAY_INLINE | NEEDS_REMOTE | NEEDS_IMM, op: SendOpsFlags.RDMA_WRITE_WITH_IMM },
  ],
  [WrOpcode.RDMA_READ, { trait: NEEDS_REMOTE, op: SendOpsFlags.RDMA_READ }],
  [WrOpcode.ATOMIC_CMP_AND_SWP, { trait: NEEDS_REMOTE | ATOMIC, op: SendOpsFlags.ATOMIC_CMP_AND_SWP }],
  [WrOpcode.ATOMIC_FETCH_AND_ADD, { trait: NEEDS_REMOTE | ATOMIC, op: SendOpsFlags.ATOMIC_FETCH_AND_ADD }],
  [WrOpcode.LOCAL_INV, { trait: NEEDS_INVALIDATE | NO_DATA, op: SendOpsFlags.LOCAL_INV }],
  [WrOpcode.TSO, { trait: TSO, op: SendOpsFlags.TSO }],
  [WrOpcode.FLUSH, { trait: NEEDS_REMOTE | NO_DATA | FLUSH, op: SendOpsFlags.FLUSH, extendedOnly: true }],
  [WrOpcode.ATOMIC_WRITE, { trait: NEEDS_REMOTE | ATOMIC_WRITE, op: SendOpsFlags.ATOMIC_WRITE, extendedOnly: true }],
]);

// What the transport has: InfiniBand specification, volume 1, table 64.
const { SEND, SEND_WITH_IMM, RDMA_WRITE, RDMA_WRITE_WITH_IMM } = WrOpcode;
const connected = [...traits.keys()].filter((opcode) => opcode !== WrOpcode.TSO);
const opcodesOf: Partial<Record<number, readonly number[]>> = {
  [QpType.RC]: connected,
  [QpType.XRC_SEND]: connected,
  [QpType.UC]: [SEND, SEND_WITH_IMM, RDMA_WRITE, RDMA_WRITE_WITH_IMM],
  [QpType.UD]: [SEND, SEND_WITH_IMM, WrOpcode.TSO],
  [QpType.RAW_PACKET]: [SEND, WrOpcode.TSO],
  // DC initiators of mlx5, the only kind there is.
  [QpType.DRIVER]: connected.filter((opcode) => opcode !== WrOpcode.LOCAL_INV),
};

// RFC 5040. What RFC 7306 adds to it no provider has.
const opcodesOfIwarp: readonly number[] = [
  SEND,
  WrOpcode.SEND_WITH_INV,
  RDMA_WRITE,
  WrOpcode.RDMA_READ,
  WrOpcode.LOCAL_INV,
];

const nameOfOpcode = (opcode: number) => Object.entries(WrOpcode).find(([, value]) => value === opcode)?.[0];

/** What iWARP lacks for an opcode, to be said behind "iWARP"; undefined when it has it. @internal */
export function lackedByIwarp(opcode: number): string | undefined {
  if (opcodesOfIwarp.includes(opcode)) return undefined;
  const { trait = 0 } = traits.get(opcode) ?? {};
  if ((trait & NEEDS_IMM) !== 0) return `carries no immediate data (${nameOfOpcode(opcode)})`;
  if ((trait & (ATOMIC | ATOMIC_WRITE)) !== 0) return `has no atomics (${nameOfOpcode(opcode)})`;
  return `has no ${nameOfOpcode(opcode)}`;
}

/** What is said of an opcode that a queue pair lacks. @internal */
export function explainOpcode(opcode: number, qpType: number, sendOpsFlags: number | undefined): string {
  const known = traits.get(opcode);
  const name = nameOfOpcode(opcode);
  if (known === undefined || !opcodesOf[qpType]?.includes(opcode))
    return `${name} is not for postSend() on this queue pair`;
  if (sendOpsFlags === undefined) return `${name} needs extended posting: create the queue pair with sendOpsFlags`;
  return `the queue pair was created with sendOpsFlags without ${name}`;
}

const tables = new Map<string, readonly number[]>();

/**
 * The traits of each opcode of a queue pair, by its number; -1 for one that it lacks. An array, for speed.
 *
 * @param sendOpsFlags - what it was created with, for extended posting
 * @param iwarp - whether it is one of iWARP, and of which
 * @internal
 */
export function traitsOf(
  qpType: number,
  sendOpsFlags: number | undefined,
  iwarp: 'iwarp' | 'siw' | undefined,
): readonly number[] {
  const key = `${qpType}/${sendOpsFlags}/${iwarp}`;
  let table = tables.get(key);
  if (table === undefined) {
    table = Array.from({ length: 16 }, (_, opcode) => {
      const known = traits.get(opcode);
      if (known === undefined || !opcodesOf[qpType]?.includes(opcode)) return -1;
      const has = sendOpsFlags === undefined ? !known.extendedOnly : (sendOpsFlags & known.op) !== 0;
      if (!has || (iwarp && lackedByIwarp(opcode))) return -1;
      // siw says that what is behind a read has completed when the read has not, and takes no fence for a read itself.
      return iwarp === 'siw' && opcode !== WrOpcode.RDMA_READ ? known.trait | FENCED : known.trait;
    });
    tables.set(key, table);
  }
  return table;
}
