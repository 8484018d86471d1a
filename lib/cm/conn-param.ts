import { boolean, integer, readOptions, typeError, valueError } from '../args.ts';
import { PortSpace } from '../native/constants.gen.ts';
import type { NativeCmId, NativeConnParam } from '../native/native-cm.ts';
import { isIwarp } from '../verbs/iwarp.ts';
import type { QueuePair } from '../verbs/queue-pair.ts';

/** The parameters of a connection: `struct rdma_conn_param`. */
export interface ConnParam {
  /**
   * Sent along to the peer, who gets it filled up with zeros to the length of the message: use `encodePrivateData()` where
   * the length matters. How long it may be depends on the message: {@link privateDataLimit}.
   */
  privateData?: Uint8Array | string;
  /** RDMA reads and atomics of the peer to be answered at once. Default: as many as the device can (and the peer asks for). */
  responderResources?: number;
  /** RDMA reads and atomics to have under way at once. Default: likewise. */
  initiatorDepth?: number;
  /** Whether the device has end-to-end flow control. Default false. */
  flowControl?: boolean;
  /** How often to send again after a timeout, 0 to 7. Default 7. Not looked at when accepting. */
  retryCount?: number;
  /** How often to send again after receiver not ready; 7 is without end. Default 7. */
  rnrRetryCount?: number;
  /** Number of a queue pair of your own, of an id without one. */
  qpNum?: number;
  /** Whether that one takes its receives from a shared queue. Default false. */
  srq?: boolean;
}

/** The messages that carry private data. */
export type PrivateDataMessage = 'connect' | 'accept' | 'reject';

const limits = {
  connected: { connect: 56, accept: 196, reject: 148 },
  datagrams: { connect: 180, accept: 136, reject: 136 },
} as const;

// librdmacm takes 255, of which four are for the depths of both sides (RFC 6581): siw counts in one byte, and would wrap around.
const IWARP_LIMIT = 251;

/**
 * How many bytes of private data a message of the InfiniBand connection manager has room for, which is the one of RoCE
 * too. (iWARP has room for 251.)
 *
 * @param message - `'connect'`: 56, or 180 with datagrams. `'accept'`: 196, or 136. `'reject'`: 148, or 136
 * @param portSpace - `PortSpace.TCP` (the default) and `IB` are connected, `UDP` and `IPOIB` are datagrams
 */
export function privateDataLimit(message: PrivateDataMessage, portSpace: PortSpace = PortSpace.TCP): number {
  const limit = limits[isDatagram(portSpace) ? 'datagrams' : 'connected'][message];
  if (limit === undefined) throw typeError('message', "'connect', 'accept' or 'reject'", message);
  return limit;
}

/** @internal */
export function isDatagram(portSpace: number): boolean {
  return portSpace === PortSpace.UDP || portSpace === PortSpace.IPOIB;
}

/**
 * Puts the length in front of private data, in one byte, so that the peer can tell it from the zeros behind it.
 *
 * @param data - up to 255 bytes; a string is UTF-8
 */
export function encodePrivateData(data: Uint8Array | string): Buffer {
  const bytes = typeof data === 'string' ? Buffer.from(data) : data;
  if (!(bytes instanceof Uint8Array)) throw typeError('data', 'a Uint8Array or a string', data);
  if (bytes.length > 255) throw valueError(`data has ${bytes.length} bytes, more than 255`);
  return Buffer.concat([Buffer.of(bytes.length), bytes]);
}

/**
 * What `encodePrivateData()` of the peer was given. It comes from a peer, so it is checked. One that has sent nothing has
 * given nothing: zeros arrive, or on iWARP no byte.
 *
 * @param data - as it arrived
 * @throws TypeError ERR_INVALID_ARG_VALUE when it is shorter than it says
 */
export function decodePrivateData(data: Uint8Array): Buffer {
  if (!(data instanceof Uint8Array)) throw typeError('data', 'a Uint8Array', data);
  const length = data[0] ?? 0;
  if (length >= Math.max(data.length, 1))
    throw valueError(`The private data has ${data.length} bytes, and says ${length}`);
  return Buffer.from(data.subarray(1, 1 + length));
}

/** Private data, checked against what the message has room for. @internal */
export function privateData(
  value: unknown,
  name: string,
  message: PrivateDataMessage,
  id: NativeCmId,
): Uint8Array | null {
  if (value === undefined) return null;
  const data = typeof value === 'string' ? Buffer.from(value) : value;
  if (!(data instanceof Uint8Array)) throw typeError(name, 'a Uint8Array or a string', data);
  const limit = isIwarp(id) ? IWARP_LIMIT : privateDataLimit(message, id.portSpace as PortSpace);
  if (data.length > limit) {
    throw valueError(`${name} has ${data.length} bytes, and this message has room for ${limit}`);
  }
  return data;
}

// librdmacm puts in its place what the device can.
const AS_MANY_AS_CAN_BE = 255;
const paramNames = [
  'privateData',
  'responderResources',
  'initiatorDepth',
  'flowControl',
  'retryCount',
  'rnrRetryCount',
  'qpNum',
  'srq',
];

/** A complete `struct rdma_conn_param`, checked. @internal */
export function connParam(
  value: ConnParam | undefined,
  message: 'connect' | 'accept',
  id: NativeCmId,
  qp: QueuePair | undefined,
): NativeConnParam {
  const o = readOptions(value, 'param', paramNames);
  if (qp && (o.qpNum !== undefined || o.srq !== undefined)) {
    throw valueError('param.qpNum and param.srq are for an id without a queue pair, and this one has one');
  }
  return {
    privateData: privateData(o.privateData, 'privateData', message, id),
    responderResources: integer(o.responderResources ?? AS_MANY_AS_CAN_BE, 'param.responderResources', 0, 255),
    initiatorDepth: integer(o.initiatorDepth ?? AS_MANY_AS_CAN_BE, 'param.initiatorDepth', 0, 255),
    flowControl: boolean(o.flowControl ?? false, 'param.flowControl'),
    retryCount: integer(o.retryCount ?? 7, 'param.retryCount', 0, 7),
    rnrRetryCount: integer(o.rnrRetryCount ?? 7, 'param.rnrRetryCount', 0, 7),
    srq: qp ? qp.srq !== null : boolean(o.srq ?? false, 'param.srq'),
    qpNum: qp ? qp.qpNum : integer(o.qpNum ?? 0, 'param.qpNum', 0, 0xff_ffff),
  };
}

/** What was left to librdmacm, as it chooses: as many as the device can and the peer asked for. @internal */
export function granted(wanted: number, device: number, peer = 255): number {
  return wanted === AS_MANY_AS_CAN_BE ? Math.min(device, peer, AS_MANY_AS_CAN_BE) : wanted;
}
