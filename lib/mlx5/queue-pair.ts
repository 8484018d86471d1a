import { constants } from 'node:os';
import { instance, integer, oneOf, readOptions, uint32, uint64, valueError } from '../args.ts';
import { RdmaError } from '../errors.ts';
import { mlx5 } from '../native/binding.ts';
import { Mlx5dvDcType, Mlx5dvQpCreateFlags, QpState, QpType, SendOpsFlags } from '../native/constants.gen.ts';
import type { NativeMlx5QpInitAttr } from '../native/native.ts';
import { AnyQueuePair } from '../verbs/any-queue-pair.ts';
import { ProtectionDomain } from '../verbs/protection-domain.ts';
import type { QpInitAttr } from '../verbs/qp-init-attr.ts';
import { QueuePair } from '../verbs/queue-pair.ts';
import { DctQueuePair } from './dct-queue-pair.ts';
import { queryDevice } from './device.ts';

/** What libmlx5 has beyond `QpInitAttr`: `struct mlx5dv_qp_init_attr`. The mask of the C function follows from the keys. */
export interface Mlx5dvQpInitAttr {
  /** `Mlx5dvQpCreateFlags` joined with `|`. Default none. */
  createFlags?: number;
  /** `Mlx5dvDcType.DCI`: an initiator of dynamically connected transport. Default: a queue pair of the type in `attr`. */
  dcType?: typeof Mlx5dvDcType.DCI;
  /** Stream channels of an initiator: `struct mlx5dv_dci_streams`. Default none. Since rdma-core 37. */
  dciStreams?: {
    /** Logarithm of the channels that are served at once. (The C library spells it so.) */
    logNumConcurent: number;
    /** Logarithm of the channels whose failure takes the initiator down. */
    logNumErrored: number;
  };
}

/** What a target of dynamically connected transport is made with. */
export interface Mlx5dvDctInitAttr {
  /** `Mlx5dvQpCreateFlags` joined with `|`. Default none. */
  createFlags?: number;
  /** `Mlx5dvDcType.DCT`. */
  dcType: typeof Mlx5dvDcType.DCT;
  /** What an initiator has to know to send here: 64 bits. */
  dctAccessKey: bigint;
}

// What initiators have: none of the library's releases has more.
const DCI_OPERATIONS =
  SendOpsFlags.SEND |
  SendOpsFlags.SEND_WITH_IMM |
  SendOpsFlags.SEND_WITH_INV |
  SendOpsFlags.RDMA_WRITE |
  SendOpsFlags.RDMA_WRITE_WITH_IMM |
  SendOpsFlags.RDMA_READ |
  SendOpsFlags.ATOMIC_CMP_AND_SWP |
  SendOpsFlags.ATOMIC_FETCH_AND_ADD;

/**
 * Creates a queue pair with what libmlx5 has beyond verbs. With a `dcType` it is one end of dynamically connected
 * transport (DC): an initiator (DCI) is a `QueuePair` each of whose requests names its target by `ah`, `remoteDctn` and
 * `remoteDcKey`; a target (DCT) is a {@link DctQueuePair}.
 *
 * @param pd - the domain
 * @param attr - as of `pd.createQp()`. For DC `qpType` is DRIVER, and may be left out. `sendOpsFlags` of an initiator: by
 *   default all that it can send. A target takes `recvCq` (or `sendCq`) and `srq` only
 * @param mlx5Attr - what is beyond that
 * @throws RdmaError EOPNOTSUPP where the device is another one, or lacks what is asked for: with the release of rdma-core
 *   that has it, where it may be too old; EINVAL when the device cannot grant the capacities
 * @throws RdmaUnavailableError where there is no libmlx5
 * @see mlx5dv_create_qp(3)
 */
export function createQp(pd: ProtectionDomain, attr: QpInitAttr, mlx5Attr: Mlx5dvDctInitAttr): DctQueuePair;
export function createQp(pd: ProtectionDomain, attr: QpInitAttr, mlx5Attr?: Mlx5dvQpInitAttr): QueuePair;
export function createQp(
  pd: ProtectionDomain,
  attr: QpInitAttr,
  mlx5Attr: Mlx5dvQpInitAttr | Mlx5dvDctInitAttr = {},
): QueuePair | DctQueuePair {
  instance(pd, 'pd', ProtectionDomain).requireOpen();
  mlx5();
  const native = nativeAttr(mlx5Attr);
  requireCapabilities(pd, native);
  if (native.dcType === Mlx5dvDcType.DCT) return new DctQueuePair(pd, attr, native);
  if (native.dcType === undefined) return new QueuePair(pd, attr, native);
  const { qpType = QpType.DRIVER, sendOpsFlags = DCI_OPERATIONS, cap, ...rest } = { ...attr };
  if (qpType !== QpType.DRIVER) throw valueError('attr.qpType of an initiator is QpType.DRIVER');
  // An initiator receives nothing.
  const sends = { maxRecvWr: 0, maxRecvSge: 0, ...cap };
  return new QueuePair(pd, { ...rest, cap: sends, qpType, sendOpsFlags }, native);
}

function nativeAttr(value: Mlx5dvQpInitAttr | Mlx5dvDctInitAttr): NativeMlx5QpInitAttr {
  const known = ['createFlags', 'dcType', 'dctAccessKey', 'dciStreams'];
  const given: Partial<Omit<Mlx5dvQpInitAttr, 'dcType'> & Omit<Mlx5dvDctInitAttr, 'dcType'>> & { dcType?: number } =
    readOptions(value, 'mlx5Attr', known);
  const { createFlags, dcType, dctAccessKey, dciStreams } = given;
  const native: NativeMlx5QpInitAttr = {};
  if (createFlags !== undefined) native.createFlags = uint32(createFlags, 'mlx5Attr.createFlags');
  if (dcType !== undefined) native.dcType = oneOf(dcType, 'mlx5Attr.dcType', Mlx5dvDcType, 'Mlx5dvDcType');
  if (dcType === Mlx5dvDcType.DCT) native.dctAccessKey = uint64(dctAccessKey, 'mlx5Attr.dctAccessKey');
  else if (dctAccessKey !== undefined) throw valueError('mlx5Attr.dctAccessKey is for targets (Mlx5dvDcType.DCT) only');
  if (dciStreams !== undefined) {
    if (dcType !== Mlx5dvDcType.DCI) throw valueError('mlx5Attr.dciStreams is for initiators (Mlx5dvDcType.DCI) only');
    const name = 'mlx5Attr.dciStreams';
    const { logNumConcurent, logNumErrored } = readOptions(dciStreams, name, ['logNumConcurent', 'logNumErrored']);
    native.dciStreams = {
      logNumConcurent: integer(logNumConcurent, `${name}.logNumConcurent`, 0, 255),
      logNumErrored: integer(logNumErrored, `${name}.logNumErrored`, 0, 255),
    };
  }
  return native;
}

// A library that does not know what is asked for says EINVAL, as it does to anything else that is wrong.
function requireCapabilities(pd: ProtectionDomain, { createFlags = 0, dciStreams }: NativeMlx5QpInitAttr): void {
  const isOutOfOrder = (createFlags & Mlx5dvQpCreateFlags.OOO_DP) !== 0;
  if (!isOutOfOrder && dciStreams === undefined) return;
  const device = queryDevice(pd.context);
  if (isOutOfOrder && device.oooRecvWrsCaps === undefined) {
    throw unsupported('out-of-order receives (OOO_DP) need rdma-core 55 and a device that has them');
  }
  if (dciStreams !== undefined && !device.dciStreamsCaps?.maxLogNumConcurent) {
    throw unsupported('stream channels need rdma-core 37 and a device that has them');
  }
}

const unsupported = (detail: string) => new RdmaError('mlx5dv_create_qp', constants.errno.EOPNOTSUPP, detail);

/** The port of a bond that a queue pair sends from. */
export interface Mlx5dvLagPort {
  /** The one that was set, from 1. */
  portNum: number;
  /** The one that is used: another one when that is down. */
  activePortNum: number;
}

/** Calls for a queue pair; where it is not supported, the reason may be the state or the type. */
function forQueuePair<T>(qp: AnyQueuePair, types: readonly number[], call: () => T): T {
  instance(qp, 'qp', AnyQueuePair).requireOpen();
  try {
    return call();
  } catch (error) {
    if (!(error instanceof RdmaError) || error.code !== 'EOPNOTSUPP' || error.detail !== undefined) throw error;
    const names = Object.entries(QpType).filter(([, type]) => types.includes(type));
    if (!types.includes(qp.qpType)) throw error.explained(`it is for ${names.map(([name]) => name).join(', ')} only`);
    throw qp.state === QpState.RTS ? error : error.explained('the queue pair must be in RTS');
  }
}

/**
 * Sets the UDP source port of what a connected queue pair sends by RoCE v2: routers choose the path by it.
 *
 * @param qp - of the type RC or UC, in RTS
 * @param udpSport - 16 bits
 * @throws RdmaError EOPNOTSUPP for another type or state, and where the device is another one or cannot
 * @see mlx5dv_modify_qp_udp_sport(3)
 */
export function modifyQpUdpSport(qp: AnyQueuePair, udpSport: number): void {
  integer(udpSport, 'udpSport', 0, 0xffff);
  forQueuePair(qp, [QpType.RC, QpType.UC], () => mlx5().mlx5ModifyQpUdpSport(qp.handle, udpSport));
}

const LAG_TYPES = [QpType.RC, QpType.UD, QpType.UC, QpType.RAW_PACKET, QpType.XRC_SEND, QpType.DRIVER];

/**
 * Sets the port of a bond that a queue pair sends from.
 *
 * @param qp - in RTS
 * @param portNum - from 1 to `numLagPorts` of `queryDevice()`
 * @throws RdmaError EOPNOTSUPP where the device is no bond; EINVAL when it has no such port
 * @see mlx5dv_modify_qp_lag_port(3)
 */
export function modifyQpLagPort(qp: AnyQueuePair, portNum: number): void {
  integer(portNum, 'portNum', 1, 255);
  forQueuePair(qp, LAG_TYPES, () => mlx5().mlx5ModifyQpLagPort(qp.handle, portNum));
}

/**
 * The port of a bond that a queue pair sends from.
 *
 * @throws RdmaError EOPNOTSUPP where the device is no bond
 * @see mlx5dv_query_qp_lag_port(3)
 */
export function queryQpLagPort(qp: AnyQueuePair): Mlx5dvLagPort {
  return forQueuePair(qp, LAG_TYPES, () => mlx5().mlx5QueryQpLagPort(qp.handle));
}

/**
 * Lets a stream channel of an initiator that has failed send again.
 *
 * @param qp - an initiator that was made with `dciStreams`, in RTS
 * @param streamId - the channel: 16 bits
 * @throws RdmaError EINVAL for a channel that has not failed; EOPNOTSUPP where the device has no stream channels
 * @see mlx5dv_dci_stream_id_reset(3)
 */
export function dciStreamIdReset(qp: QueuePair, streamId: number): void {
  integer(streamId, 'streamId', 0, 0xffff);
  forQueuePair(qp, [QpType.DRIVER], () => mlx5().mlx5DciStreamIdReset(qp.handle, streamId));
}
