import { integer, oneOf, readOptions, typeError, uint32, valueError } from '../args.ts';
import { flagged, hex, named, printed } from '../inspect.ts';
import { AccessFlags, MigState, Mtu, QpAttrMask, QpState, QpType } from '../native/constants.gen.ts';
import type { QpCap } from '../native/native.ts';
import { type AhAttr, ahAttr, type GlobalRoute } from './address-handle.ts';
import { formatGid } from './gid.ts';

/** Attributes of a queue pair: `struct ibv_qp_attr`. The mask of the C function follows from the keys that are there. */
export interface QpAttr {
  /** The state to go to. */
  qpState?: QpState;
  /** The state it is assumed to be in. */
  curQpState?: QpState;
  /** Path MTU, encoded: `Mtu`. */
  pathMtu?: Mtu;
  /** Q_Key (UD). */
  qkey?: number;
  /** First packet sequence number expected: 24 bits. */
  rqPsn?: number;
  /** First packet sequence number sent: 24 bits. */
  sqPsn?: number;
  /** The peer's queue pair number: 24 bits. */
  destQpNum?: number;
  /** What the peer may do: `AccessFlags` joined with `|` (REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC). */
  qpAccessFlags?: number;
  /** The address of the peer. */
  ahAttr?: AhAttr;
  /** The alternate path's address; goes with the three others. */
  altAhAttr?: AhAttr;
  /** Index of the partition key. */
  pkeyIndex?: number;
  /** Index of the alternate path's partition key. */
  altPkeyIndex?: number;
  /** Tell when the send queue has drained (SQD): 0 or 1. */
  enSqdAsyncNotify?: number;
  /** RDMA reads and atomics outstanding as the initiator. */
  maxRdAtomic?: number;
  /** RDMA reads and atomics outstanding as the responder. */
  maxDestRdAtomic?: number;
  /** What a peer waits after a receiver-not-ready NAK, encoded, 0 to 31: 12 is 0.64 ms, 0 is 655.36 ms. */
  minRnrTimer?: number;
  /** The port, from 1. */
  portNum?: number;
  /** Time to wait for an acknowledgement: 4.096 us * 2^timeout; 14 is 67 ms, 0 is for ever. 0 to 31. */
  timeout?: number;
  /** How often to send again after a timeout: 0 to 7. */
  retryCnt?: number;
  /** How often to send again after receiver not ready: 0 to 6, or 7 for without end. */
  rnrRetry?: number;
  /** The alternate path's port. */
  altPortNum?: number;
  /** The alternate path's timeout. */
  altTimeout?: number;
  /** State of automatic path migration. */
  pathMigState?: MigState;
  /** Packet pacing, in kilobits per second; see `modifyRateLimit()`. A query has what was set here: the kernel does not tell. */
  rateLimit?: number;
  /** New capacities, where the device can resize queues. */
  cap?: QpCap;
}

/** What `qp.query()` finds. All fields are there; which of them mean something depends on the state. */
export interface QpAttrs extends Required<Omit<QpAttr, 'ahAttr' | 'altAhAttr'>> {
  /** The address of the peer. */
  ahAttr: Required<Omit<AhAttr, 'grh'>> & {
    /** Whether `grh` counts. */
    isGlobal: boolean;
    /** Global routing header; zeros when there is none. */
    grh: Required<GlobalRoute>;
  };
  /** The alternate path's address. */
  altAhAttr: Required<Omit<AhAttr, 'grh'>> & {
    /** Whether `grh` counts. */
    isGlobal: boolean;
    /** Global routing header; zeros when there is none. */
    grh: Required<GlobalRoute>;
  };
  /** Whether the send queue is still draining, in SQD: until it has, rdma_rxe lets the queue pair go nowhere but to ERR. */
  sqDraining: boolean;
  /** What it was made with, as far as the kernel keeps it. */
  initAttr: {
    /** Transport service. */
    qpType: QpType;
    /** Whether every send request has a completion. */
    sqSigAll: boolean;
    /** Its capacities. */
    cap: QpCap;
  };
}

/** @internal */
export const printedQpAttrs = printed<QpAttrs>('QpAttrs', {
  qpState: named(QpState),
  curQpState: named(QpState),
  pathMtu: named(Mtu),
  pathMigState: named(MigState),
  qkey: hex,
  rqPsn: hex,
  sqPsn: hex,
  destQpNum: hex,
  qpAccessFlags: flagged(AccessFlags),
  initAttr: ({ qpType, ...rest }) => ({ qpType: named(QpType)(qpType), ...rest }),
});

type Check = (value: unknown, name: string) => number;
const upTo =
  (max: number, min = 0): Check =>
  (value, name) =>
    integer(value, name, min, max);

// Each attribute: its bit of the mask, and its range.
const attributes: Record<Exclude<keyof QpAttr, 'ahAttr' | 'altAhAttr' | 'cap'>, [bit: number, check: Check]> = {
  qpState: [QpAttrMask.STATE, (value, name) => oneOf(value, name, QpState, 'QpState')],
  curQpState: [QpAttrMask.CUR_STATE, (value, name) => oneOf(value, name, QpState, 'QpState')],
  pathMtu: [QpAttrMask.PATH_MTU, (value, name) => oneOf(value, name, Mtu, 'Mtu')],
  qkey: [QpAttrMask.QKEY, uint32],
  rqPsn: [QpAttrMask.RQ_PSN, upTo(0xff_ffff)],
  sqPsn: [QpAttrMask.SQ_PSN, upTo(0xff_ffff)],
  destQpNum: [QpAttrMask.DEST_QPN, upTo(0xff_ffff)],
  qpAccessFlags: [QpAttrMask.ACCESS_FLAGS, uint32],
  pkeyIndex: [QpAttrMask.PKEY_INDEX, upTo(0xffff)],
  altPkeyIndex: [QpAttrMask.ALT_PATH, upTo(0xffff)],
  enSqdAsyncNotify: [QpAttrMask.EN_SQD_ASYNC_NOTIFY, upTo(1)],
  maxRdAtomic: [QpAttrMask.MAX_QP_RD_ATOMIC, upTo(255)],
  maxDestRdAtomic: [QpAttrMask.MAX_DEST_RD_ATOMIC, upTo(255)],
  minRnrTimer: [QpAttrMask.MIN_RNR_TIMER, upTo(31)],
  portNum: [QpAttrMask.PORT, upTo(255, 1)],
  timeout: [QpAttrMask.TIMEOUT, upTo(31)],
  retryCnt: [QpAttrMask.RETRY_CNT, upTo(7)],
  rnrRetry: [QpAttrMask.RNR_RETRY, upTo(7)],
  altPortNum: [QpAttrMask.ALT_PATH, upTo(255, 1)],
  altTimeout: [QpAttrMask.ALT_PATH, upTo(31)],
  pathMigState: [QpAttrMask.PATH_MIG_STATE, (value, name) => oneOf(value, name, MigState, 'MigState')],
  rateLimit: [QpAttrMask.RATE_LIMIT, uint32],
};
const attributeNames = [...Object.keys(attributes), 'ahAttr', 'altAhAttr', 'cap'];
const CAP_NAMES = ['maxSendWr', 'maxRecvWr', 'maxSendSge', 'maxRecvSge', 'maxInlineData'] as const;

/** Capacities, checked. @internal */
export function qpCap(value: Partial<QpCap> | undefined, name: string, defaults: QpCap): QpCap {
  const cap = { ...defaults, ...readOptions(value, name, CAP_NAMES) };
  for (const key of CAP_NAMES) integer(cap[key], `${name}.${key}`, 0, 0x7fff_ffff);
  return cap;
}

/** Of all attributes, as the addon gives them, those that a mask names. @internal */
export function namedAttributes(all: Record<string, unknown>, mask: number): QpAttr {
  const named: Record<string, unknown> = {};
  for (const [name, [bit]] of Object.entries(attributes)) if ((mask & bit) !== 0) named[name] = all[name];
  for (const [name, bit] of [['ahAttr', QpAttrMask.AV] as const, ['altAhAttr', QpAttrMask.ALT_PATH] as const]) {
    if ((mask & bit) !== 0) named[name] = addressOf(all[name] as NativeAhAttr);
  }
  return named as QpAttr;
}

/** An address as the addon gives it. @internal */
export type NativeAhAttr = Required<Omit<AhAttr, 'grh'>> & {
  isGlobal: boolean;
  grh: Required<Omit<GlobalRoute, 'dgid'>> & { dgid: Uint8Array };
};

/** The same as `pd.createAh()` takes it. @internal */
export function addressOf({ isGlobal, grh, ...rest }: NativeAhAttr): AhAttr {
  return { ...rest, ...(isGlobal && { grh: { ...grh, dgid: formatGid(grh.dgid) } }) };
}

/**
 * Checks attributes, and makes of them what the addon takes: the object, complete, and the mask.
 *
 * @param cap - the queue pair's, for those of a new one that are not named
 * @internal
 */
export function nativeAttributes(
  attr: QpAttr,
  cap: QpCap,
): { native: { qpState?: QpState; rateLimit?: number }; mask: number } {
  if (attr === undefined) throw typeError('attr', 'an object', attr);
  const given = readOptions(attr, 'attr', attributeNames) as Record<string, unknown>;
  const native: Record<string, unknown> & { qpState?: QpState; rateLimit?: number } = {};
  let mask = 0;
  for (const [name, [bit, check]] of Object.entries(attributes)) {
    if (given[name] === undefined) continue;
    native[name] = check(given[name], `attr.${name}`);
    mask |= bit;
  }
  for (const [name, bit] of [['ahAttr', QpAttrMask.AV] as const, ['altAhAttr', QpAttrMask.ALT_PATH] as const]) {
    if (given[name] === undefined) continue;
    native[name] = ahAttr(given[name] as AhAttr, `attr.${name}`);
    mask |= bit;
  }
  if ((mask & QpAttrMask.ALT_PATH) !== 0) {
    for (const name of ['altAhAttr', 'altPkeyIndex', 'altPortNum', 'altTimeout']) {
      if (native[name] === undefined) throw valueError(`attr.${name} is missing: an alternate path takes all four`);
    }
  }
  const { cap: wanted } = attr;
  if (wanted !== undefined) {
    native.cap = qpCap(wanted, 'attr.cap', cap);
    mask |= QpAttrMask.CAP;
  }
  if (mask === 0) throw valueError('attr has no attributes');
  return { native, mask };
}
