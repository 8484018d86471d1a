import { boolean, instance, integer, oneOf, readOptions, uint32, valueError } from '../args.ts';
import { RdmaError } from '../errors.ts';
import { QpCreateFlags, QpType, SendOpsFlags } from '../native/constants.gen.ts';
import type { NativeQpInitAttr, QpCap } from '../native/native.ts';
import { CompletionQueue } from './completion-queue.ts';
import { isIwarp } from './iwarp.ts';
import { withinLimits } from './limits.ts';
import type { ProtectionDomain } from './protection-domain.ts';
import { qpCap } from './qp-attributes.ts';
import { SharedReceiveQueue } from './shared-receive-queue.ts';

/**
 * What a queue pair is made with: `struct ibv_qp_init_attr`, and `struct ibv_qp_init_attr_ex` where there is an option that
 * only that one has. The mask of the C function follows from the keys that are there.
 */
export interface QpInitAttr {
  /** Where send requests complete. */
  sendCq: CompletionQueue;
  /** Where receives complete. Default: `sendCq`. */
  recvCq?: CompletionQueue;
  /**
   * Transport service: `QpType.RC` (the default), `UC`, `UD`, `RAW_PACKET` (needs CAP_NET_RAW) or `XRC_SEND`, which has no
   * receives. `XRC_RECV` belongs to no protection domain: `context.createQp()`.
   */
  qpType?: QpType;
  /** Where receives are taken from, in place of a receive queue of its own. */
  srq?: SharedReceiveQueue;
  /** Whether every send request has a completion, whatever its flags. Default false. */
  sqSigAll?: boolean;
  /**
   * Capacities; defaults: 128 requests each way, 1 element each, no inline data. `maxSendWr` and `maxRecvWr` are what may
   * be in flight, and what the completion queues must have room for: a provider's queue may be longer, but that differs
   * from device to device, and is not used. Of the others the device may grant more, which `qp.cap` says.
   */
  cap?: Partial<QpCap>;
  /** `QpCreateFlags` joined with `|`. Default none. */
  createFlags?: number;
  /** The number that it sends under, in place of its own (UD): 24 bits. Goes with `QpCreateFlags.SOURCE_QPN`, which it sets. */
  sourceQpn?: number;
  /** Bytes of the longest header of a `TSO` request (raw packet). Default 0. */
  maxTsoHeader?: number;
  /**
   * What it shall be able to send, as `SendOpsFlags` joined with `|`: selects extended posting (`ibv_wr_*`), and other
   * opcodes are refused then. All else stays the same: requests, lists, errors. Only so there are `ATOMIC_WRITE` and
   * `FLUSH`. Default: posting by `ibv_post_send()`.
   *
   * One difference is in the C functions: what one call posts is taken whole or not at all.
   */
  sendOpsFlags?: number;
}

const KNOWN = [
  'sendCq',
  'recvCq',
  'qpType',
  'srq',
  'sqSigAll',
  'cap',
  'createFlags',
  'sourceQpn',
  'maxTsoHeader',
  'sendOpsFlags',
] as const;

/** The attributes checked, with their defaults, and what the addon takes of them. @internal */
export interface CheckedInitAttr {
  sendCq: CompletionQueue;
  recvCq: CompletionQueue;
  srq: SharedReceiveQueue | null;
  sendOpsFlags: number | undefined;
  native: NativeQpInitAttr;
}

const TYPES: readonly number[] = [QpType.RC, QpType.UC, QpType.UD, QpType.RAW_PACKET, QpType.XRC_SEND];

/**
 * @param types - the types that are made where it is called from
 * @internal
 */
export function checkInitAttr(pd: ProtectionDomain, attr: QpInitAttr, types = TYPES): CheckedInitAttr {
  const given = readOptions(attr, 'attr', KNOWN, { rxHashConf: 'it goes with rwqIndTbl' });
  const { sendCq: send, recvCq: recv = send, qpType = QpType.RC, srq, sqSigAll = false, cap } = given;
  const { createFlags = 0, sourceQpn, maxTsoHeader, sendOpsFlags } = given;
  const sendCq = instance(send, 'attr.sendCq', CompletionQueue);
  const recvCq = instance(recv, 'attr.recvCq', CompletionQueue);
  for (const [cq, name] of [[sendCq, 'sendCq'] as const, [recvCq, 'recvCq'] as const]) {
    cq.requireOpen();
    if (cq.context !== pd.context) throw valueError(`attr.${name} is of another device than the protection domain`);
  }
  oneOf(qpType, 'attr.qpType', QpType, 'QpType');
  if (!types.includes(qpType)) {
    throw valueError(
      'attr.qpType: RC, UC, UD, RAW_PACKET and XRC_SEND are made here, XRC_RECV by context.createQp(), DC by mlx5dv',
    );
  }
  if (srq !== undefined) {
    instance(srq, 'attr.srq', SharedReceiveQueue).requireOpen();
    if (srq.pd !== pd) throw valueError('attr.srq is of another protection domain');
  }
  const receives = srq === undefined && qpType !== QpType.XRC_SEND ? 128 : 0;
  const defaults = {
    maxSendWr: 128,
    maxRecvWr: receives,
    maxSendSge: 1,
    maxRecvSge: receives && 1,
    maxInlineData: 0,
  };
  const native: NativeQpInitAttr = {
    qpType,
    sqSigAll: boolean(sqSigAll, 'attr.sqSigAll'),
    cap: qpCap(cap, 'attr.cap', defaults),
  };
  if (srq) Object.assign(native.cap, { maxRecvWr: 0, maxRecvSge: 0 });
  uint32(createFlags, 'attr.createFlags');
  if (sourceQpn !== undefined) native.sourceQpn = integer(sourceQpn, 'attr.sourceQpn', 0, 0xff_ffff);
  const flags = sourceQpn === undefined ? createFlags : (createFlags | QpCreateFlags.SOURCE_QPN) >>> 0;
  if (flags !== 0) native.createFlags = flags;
  if (maxTsoHeader !== undefined) native.maxTsoHeader = integer(maxTsoHeader, 'attr.maxTsoHeader', 0, 0xffff);
  if (sendOpsFlags !== undefined) native.sendOpsFlags = uint32(sendOpsFlags, 'attr.sendOpsFlags');
  return { sendCq, recvCq, srq: srq ?? null, sendOpsFlags, native };
}

/** Creates one, and says of an error what it may be about. @internal */
export function explained<T>(pd: ProtectionDomain, attr: NativeQpInitAttr, create: () => T): T {
  const { cap, qpType, sendOpsFlags = 0 } = attr;
  const wanted = [
    ['attr.cap.maxSendWr', cap.maxSendWr, 'maxQpWr'],
    ['attr.cap.maxRecvWr', cap.maxRecvWr, 'maxQpWr'],
    ['attr.cap.maxSendSge', cap.maxSendSge, 'maxSge'],
    ['attr.cap.maxRecvSge', cap.maxRecvSge, 'maxSge'],
  ] as const;
  const young = YOUNG.filter(([flag]) => (sendOpsFlags & flag) !== 0).map(([, text]) => text);
  try {
    return withinLimits(pd.context, wanted, 'maxQp', create);
  } catch (error) {
    if (!(error instanceof RdmaError) || error.code !== 'EOPNOTSUPP') throw error;
    if (isIwarp(pd.context) && qpType !== QpType.RC) throw error.explained('iWARP has reliable connections (RC) only');
    if (young.length === 0) throw error;
    throw error.explained(`of sendOpsFlags, ${young.join(', and ')}; not every device has it`);
  }
}

// The younger ones of the send operations.
const YOUNG = [
  [SendOpsFlags.FLUSH, 'FLUSH came with rdma-core 45'],
  [SendOpsFlags.ATOMIC_WRITE, 'ATOMIC_WRITE came with rdma-core 44'],
] as const;
