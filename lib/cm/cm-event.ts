import { CmError } from '../errors.ts';
import { CmEventType } from '../native/constants.gen.ts';
import type { AhAttr } from '../verbs/address-handle.ts';
import { formatGid } from '../verbs/gid.ts';
import type { CmId } from './cm-id.ts';

/** What a peer said about a connection: `struct rdma_conn_param`, as it arrives. */
export interface ConnEvent {
  /** What the peer sent along, with the zeros that the message was filled up with. */
  privateData: Buffer;
  /** RDMA reads and atomics of the peer that this side may be asked to answer at once. */
  responderResources: number;
  /** RDMA reads and atomics that this side may have under way. */
  initiatorDepth: number;
  /** Whether the peer's device has end-to-end flow control. */
  flowControl: boolean;
  /** How often the peer wants requests to be sent again. Only in a request. */
  retryCount: number;
  /** How often after receiver not ready. */
  rnrRetryCount: number;
  /** Whether the peer's queue pair takes its receives from a shared queue. */
  srq: boolean;
  /** The peer's queue pair number. */
  qpNum: number;
}

/** What a peer said about a datagram service, or where a multicast group is: `struct rdma_ud_param`, as it arrives. */
export interface UdEvent {
  /** What the peer sent along, with the zeros that the message was filled up with. */
  privateData: Buffer;
  /** Where to send to: for `pd.createAh()`. */
  ahAttr: AhAttr;
  /** The queue pair number to send to. */
  qpNum: number;
  /** The Q_Key to send with. */
  qkey: number;
}

/** An event of the connection manager: `struct rdma_cm_event`, copied and acknowledged. */
export interface CmEvent {
  /** What happened: one of `CmEventType`, or a number that is younger than this package. */
  type: number;
  /** The C name without its prefix, such as `'CONNECT_REQUEST'`, or the number. */
  name: string;
  /** 0, a negative errno, or for REJECTED and UNREACHABLE the peer's reason. */
  status: number;
  /** What is wrong, or undefined when `status` is 0 and the event is none of an error. */
  error?: CmError;
  /** The id that it is about; for CONNECT_REQUEST a new one, which is to be accepted, rejected or closed. */
  id: CmId;
  /** CONNECT_REQUEST: the id that listens. */
  listenId?: CmId;
  /** The parameters of a connection. */
  conn?: ConnEvent;
  /** The parameters of a datagram service or a multicast group. */
  ud?: UdEvent;
  /** MULTICAST_JOIN and MULTICAST_ERROR: the group, as it was joined. */
  group?: string;
}

/** An event as the addon lays it out, with numbers in place of ids. @internal */
export interface RawEvent extends Omit<CmEvent, 'id' | 'listenId'> {
  /** The number of the id that it is about; for CONNECT_REQUEST the one that listens. */
  about: number;
  /** CONNECT_REQUEST: the number of the new id. Multicast: the number of the join. Else 0. */
  other: number;
}

// As in native/cm/event_channel.cc.
const CONN = 1;
const UD = 2;
const MULTICAST = 3;

const names = new Map<number, string>(Object.entries(CmEventType).map(([name, value]) => [value, name]));

/** Reads the events of one call of the addon. @internal */
export function* readEvents(numbers: readonly number[]): Generator<RawEvent, void, void> {
  let at = 0;
  const next = () => numbers[at++] as number;
  const bytes = (length: number) => {
    const words = (length + 3) >> 2;
    const data = Buffer.from(Uint32Array.from(numbers.slice(at, at + words)).buffer, 0, length);
    at += words;
    return data;
  };
  const readConn = (): ConnEvent => {
    const [responderResources, initiatorDepth, flowControl, retryCount] = [next(), next(), next() !== 0, next()];
    const [rnrRetryCount, srq, qpNum] = [next(), next() !== 0, next()];
    const privateData = bytes(next());
    return { privateData, responderResources, initiatorDepth, flowControl, retryCount, rnrRetryCount, srq, qpNum };
  };
  const readUd = (): UdEvent => {
    const [qpNum, qkey, isGlobal] = [next(), next(), next() !== 0];
    const [flowLabel, sgidIndex, hopLimit, trafficClass] = [next(), next(), next(), next()];
    const ahAttr: AhAttr = { dlid: next(), sl: next(), srcPathBits: next(), staticRate: next(), portNum: next() };
    const dgid = formatGid(bytes(16));
    if (isGlobal) ahAttr.grh = { dgid, sgidIndex, flowLabel, hopLimit, trafficClass };
    return { privateData: bytes(next()), ahAttr, qpNum, qkey };
  };
  while (at < numbers.length) {
    const type = next();
    const event: RawEvent = {
      type,
      name: names.get(type) ?? String(type),
      status: next() | 0,
      about: next(),
      other: next(),
    };
    const kind = next();
    if (kind === CONN) event.conn = readConn();
    else if (kind === UD || kind === MULTICAST) event.ud = readUd();
    yield event;
  }
}

/** The error that an event stands for, when it is awaited as the outcome of that C function. @internal */
export function errorOf(operation: string, event: Omit<CmEvent, 'id'>): CmError {
  const privateData = event.conn?.privateData ?? event.ud?.privateData;
  const detail = { ...event, ...(privateData && { privateData }) };
  const { type, status } = event;
  if (type === CmEventType.REJECTED) {
    return new CmError(operation, detail, 'ECONNREFUSED', status >= 0 ? rejection(status) : undefined);
  }
  if (type === CmEventType.UNREACHABLE && status > 0) {
    return new CmError(operation, detail, 'ECONNREFUSED', sidrStatus[status] ?? `SIDR status ${status}`);
  }
  if (type === CmEventType.DEVICE_REMOVAL) {
    return new CmError(operation, detail, 'ENODEV', 'the device was removed');
  }
  if (type === CmEventType.DISCONNECTED) {
    return new CmError(operation, detail, 'ECONNRESET', 'the peer has ended the connection');
  }
  return new CmError(operation, detail, undefined, undefined);
}

/** Whether an event says by its type alone that something failed. @internal */
export function isFailure(type: number): boolean {
  return failures.has(type);
}

const failures = new Set<number>([
  CmEventType.ADDR_ERROR,
  CmEventType.ROUTE_ERROR,
  CmEventType.CONNECT_ERROR,
  CmEventType.UNREACHABLE,
  CmEventType.REJECTED,
  CmEventType.MULTICAST_ERROR,
  CmEventType.DEVICE_REMOVAL,
]);

// InfiniBand specification, volume 1, section 12.6.7.2: the reasons that anyone has seen in practice.
const reasons: Record<number, string> = {
  1: 'the peer has no queue pair left',
  3: 'the peer has no resources left',
  4: 'the peer gave up waiting',
  5: 'the peer does not support the request',
  6: 'the peer does not know the connection',
  8: 'nobody listens there',
  10: 'the peer holds an older connection of this queue pair',
  12: "the GID is not one of the peer's port",
  15: 'the peer refuses the traffic class',
  16: 'the peer refuses the hop limit',
  26: 'the peer refuses the MTU',
  27: 'the peer cannot answer as many reads and atomics at once',
  28: "the peer's program refused",
  29: 'the peer refuses the RNR retry count',
  35: 'the peer refuses the extended connection attributes',
};

function rejection(status: number): string {
  const words = reasons[status];
  return words === undefined ? `reason ${status}` : `${words} (reason ${status})`;
}

// The same, section 12.11.2.4.
const sidrStatus: Record<number, string> = {
  1: 'nobody listens there (SIDR status 1)',
  2: "the peer's program refused (SIDR status 2)",
  3: 'the peer has no queue pair (SIDR status 3)',
  4: 'the peer names another host (SIDR status 4)',
  5: 'the peer does not know the protocol version (SIDR status 5)',
};
