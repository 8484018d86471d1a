import { inspect } from 'node:util';
import { flagged, hex, type Inspecting, named, shown } from '../inspect.ts';
import { WcFlags, WcOpcode, WcStatus } from '../native/constants.gen.ts';
import type { WorkCompletionEx } from './completion-queue-ex.ts';
import { wcStatusStr } from './text.ts';

/** A work completion: `struct ibv_wc`. When `status` is not SUCCESS only `wrId`, `status`, `qpNum`, `vendorErr` are valid. */
export interface WorkCompletion {
  /** The `wrId` of the request. */
  readonly wrId: number;
  /** How it ended: one of `WcStatus`. */
  readonly status: number;
  /** What it did: one of `WcOpcode`. */
  readonly opcode: number;
  /** The provider's own error code; 0 where it has none. */
  readonly vendorErr: number;
  /** Bytes received, or read; not set for a write. */
  readonly byteLen: number;
  /** Immediate data in host byte order, where `wcFlags` has `WITH_IMM`. */
  readonly immData: number;
  /** The key that the peer invalidated, where `wcFlags` has `WITH_INV`. */
  readonly invalidatedRkey: number;
  /** Number of the local queue pair. */
  readonly qpNum: number;
  /** Number of the sending queue pair (UD). */
  readonly srcQp: number;
  /** `WcFlags`, joined with `|`. */
  readonly wcFlags: number;
  /** Index of the partition key (UD, GSI). */
  readonly pkeyIndex: number;
  /** Local identifier of the sender (UD on InfiniBand). */
  readonly slid: number;
  /** Service level (UD). */
  readonly sl: number;
  /** Path bits of the destination (UD on InfiniBand). */
  readonly dlidPathBits: number;
}

/** A completion to keep: data alone, its class is there for printing only. @internal */
export class Completion implements WorkCompletion {
  readonly wrId: number;
  readonly status: number;
  readonly opcode: number;
  readonly vendorErr: number;
  readonly byteLen: number;
  readonly immData: number;
  readonly invalidatedRkey: number;
  readonly qpNum: number;
  readonly srcQp: number;
  readonly wcFlags: number;
  readonly pkeyIndex: number;
  readonly slid: number;
  readonly sl: number;
  readonly dlidPathBits: number;

  constructor(wc: WorkCompletion) {
    this.wrId = wc.wrId;
    this.status = wc.status;
    this.opcode = wc.opcode;
    this.vendorErr = wc.vendorErr;
    this.byteLen = wc.byteLen;
    this.immData = wc.immData;
    this.invalidatedRkey = wc.invalidatedRkey;
    this.qpNum = wc.qpNum;
    this.srcQp = wc.srcQp;
    this.wcFlags = wc.wcFlags;
    this.pkeyIndex = wc.pkeyIndex;
    this.slid = wc.slid;
    this.sl = wc.sl;
    this.dlidPathBits = wc.dlidPathBits;
  }

  [inspect.custom](...how: Inspecting): object | string {
    return shownCompletion(this, ...how);
  }
}

/**
 * What is printed of a completion: what means something in one of its kind. Not the index of the partition key, which
 * only those of queue pair 1 have, and where libmlx5 leaves a part of the immediate data.
 *
 * @internal
 */
export function shownCompletion(wc: WorkCompletion & Partial<WorkCompletionEx>, ...how: Inspecting): object | string {
  const fields = () => {
    const { wrId, status, opcode, vendorErr, qpNum, wcFlags } = wc;
    const result = { wrId, status: named(WcStatus, wcStatusStr)(status) };
    if (status !== WcStatus.SUCCESS) return { ...result, vendorErr: hex(vendorErr), qpNum: hex(qpNum) };
    // A send may have WITH_IMM too, and no immediate data to tell.
    const has = (flag: number) => (wcFlags & flag) !== 0 && (opcode & WcOpcode.RECV) !== 0;
    return {
      ...result,
      opcode: named(WcOpcode)(opcode),
      byteLen: noLength.includes(opcode) ? undefined : wc.byteLen,
      immData: has(WcFlags.WITH_IMM) ? hex(wc.immData) : undefined,
      invalidatedRkey: has(WcFlags.WITH_INV) ? hex(wc.invalidatedRkey) : undefined,
      qpNum: hex(qpNum),
      srcQp: wc.srcQp === 0 ? undefined : hex(wc.srcQp),
      wcFlags: wcFlags === 0 ? undefined : flagged(WcFlags)(wcFlags),
      slid: wc.slid || undefined,
      sl: wc.sl || undefined,
      dlidPathBits: wc.dlidPathBits || undefined,
      completionTs: wc.completionTs,
      completionWallclockNs: wc.completionWallclockNs,
      cvlan: wc.cvlan,
      flowTag: wc.flowTag,
      tmInfo: wc.tmInfo,
    };
  };
  return shown('WorkCompletion', undefined, fields, ...how);
}

// What moves no bytes into local memory.
const noLength: readonly number[] = [WcOpcode.SEND, WcOpcode.RDMA_WRITE, WcOpcode.BIND_MW, WcOpcode.LOCAL_INV];
