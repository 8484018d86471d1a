import { randomInt } from 'node:crypto';
import { constants } from 'node:os';
import { environmentNumber, instance, integer, oneOf, readOptions, typeError, uint32, valueError } from '../args.ts';
import { RdmaError } from '../errors.ts';
import { AccessFlags, LinkLayer, Mtu, PortState, QpState } from '../native/constants.gen.ts';
import { formatGid, parseGid } from '../verbs/gid.ts';
import { requireNoIwarp } from '../verbs/iwarp.ts';
import type { QpAttr } from '../verbs/qp-attributes.ts';
import { QueuePair } from '../verbs/queue-pair.ts';

/** What one side of an RC connection tells the other. The GID travels, never its index: that is a matter of each side. */
export interface ConnectionInfo {
  /** Queue pair number: 24 bits. */
  qpNum: number;
  /** First packet sequence number that this side sends: 24 bits. */
  psn: number;
  /** This side's GID, in the notation of IPv6. */
  gid: string;
  /** This side's local identifier; 0 on Ethernet. */
  lid: number;
  /** Link layer: `LinkLayer`. */
  linkLayer: number;
  /** MTU of this side's port, encoded: `Mtu`. */
  mtu: Mtu;
  /** RDMA reads and atomics that this side takes as the responder. */
  maxDestRdAtomic: number;
}

/** How a queue pair is connected. Every one has a default that works. */
export interface ConnectOptions {
  /** The port, from 1. Default 1. */
  portNum?: number;
  /** Index of the GID to use. Default: `context.selectGid()`. */
  gidIndex?: number;
  /** Path MTU, encoded. Default: the smaller of both ports' active MTU. A larger one than that is refused. */
  mtu?: Mtu;
  /** What the peer may do: `AccessFlags`. Default REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC; memory has its own flags. */
  access?: number;
  /** Acknowledgement timeout, 4.096 us * 2^timeout. Default 14: 67 ms. */
  timeout?: number;
  /** Retries after a timeout, 0 to 7. Default 6: Soft-RoCE takes 7 for "without end", and never tells of a dead peer. */
  retryCnt?: number;
  /** Retries after receiver not ready; 7 is without end. Default 7. */
  rnrRetry?: number;
  /** Encoded wait of the peer after a receiver-not-ready NAK. Default 12: 0.64 ms. */
  minRnrTimer?: number;
  /** Routers that a packet may pass. Default 64. */
  hopLimit?: number;
  /** DSCP and ECN bits. Default: the environment variable NODE_RDMA_TC, else 0. */
  trafficClass?: number;
  /** Service level. Default 0. */
  sl?: number;
  /** Partition key's index. Default 0. */
  pkeyIndex?: number;
  /** Reads and atomics outstanding, at most. Default 16, or what the device or the peer can do if that is less. */
  maxRdAtomic?: number;
}

/** Retries after a timeout, by default: see `ConnectOptions.retryCnt`. @internal */
export const RETRIES = 6;

/** @internal */
export const connectOptionNames: readonly string[] = [
  'portNum',
  'gidIndex',
  'mtu',
  'access',
  'timeout',
  'retryCnt',
  'rnrRetry',
  'minRnrTimer',
  'hopLimit',
  'trafficClass',
  'sl',
  'pkeyIndex',
  'maxRdAtomic',
];

// The numbers among them, and the most that the field of the wire or of C takes.
const limits: readonly (readonly [keyof ConnectOptions, number, number])[] = [
  ['portNum', 1, 255],
  ['gidIndex', 0, 255],
  ['timeout', 0, 31],
  ['retryCnt', 0, 7],
  ['rnrRetry', 0, 7],
  ['minRnrTimer', 0, 31],
  ['hopLimit', 0, 255],
  ['trafficClass', 0, 255],
  ['sl', 0, 15],
  ['pkeyIndex', 0, 0xffff],
  ['maxRdAtomic', 0, 255],
];

/** @internal */
export function checkConnectOptions(o: ConnectOptions): void {
  for (const [name, min, max] of limits) if (o[name] !== undefined) integer(o[name], `options.${name}`, min, max);
  if (o.mtu !== undefined) oneOf(o.mtu, 'options.mtu', Mtu, 'Mtu');
  if (o.access !== undefined) uint32(o.access, 'options.access');
}

/**
 * What the peer of a queue pair has to know, with a fresh random PSN. Make it once a connection, send it over, and give
 * it to `connectQueuePair()` together with the peer's.
 *
 * @throws RdmaError ENETDOWN when the port is not active; ENOENT when it has no usable GID; EOPNOTSUPP on iWARP
 */
export function connectionInfo(qp: QueuePair, options: ConnectOptions = {}): ConnectionInfo {
  instance(qp, 'qp', QueuePair);
  requireNoIwarp(qp.context);
  const o = readOptions(options, 'options', connectOptionNames);
  checkConnectOptions(o);
  const { portNum = 1, gidIndex, maxRdAtomic = 16 } = o;
  const context = qp.pd.context;
  const port = context.queryPort(portNum);
  if (port.state !== PortState.ACTIVE) {
    throw new RdmaError('ibv_query_port', constants.errno.ENETDOWN, `port ${portNum} of ${context.name} is not active`);
  }
  const ethernet = port.linkLayer === LinkLayer.ETHERNET;
  const gid = context.selectGid(portNum, gidIndex === undefined ? {} : { gidIndex });
  return {
    qpNum: qp.qpNum,
    psn: randomInt(0x100_0000),
    gid: gid.gid,
    lid: ethernet ? 0 : port.lid,
    linkLayer: port.linkLayer,
    mtu: port.activeMtu,
    maxDestRdAtomic: Math.min(maxRdAtomic, context.queryDevice().maxQpRdAtom),
  };
}

/**
 * Takes a queue pair through all transitions, RESET to RTS, on threads of the pool. Receives may be posted between, in
 * `options.beforeRtr`, so that none of the peer's messages finds the queue empty.
 *
 * @param qp - in RESET
 * @param local - what `connectionInfo(qp, options)` gave
 * @param remote - what the peer's gave there
 * @param options - the same as for `connectionInfo()`. `beforeRtr`: called in the state INIT
 * @throws RdmaError EINVAL explained as by `qp.modify()`; EOPNOTSUPP on iWARP; TypeError ERR_INVALID_ARG_VALUE when the two sides do not fit
 */
export async function connectQueuePair(
  qp: QueuePair,
  local: ConnectionInfo,
  remote: ConnectionInfo,
  options: ConnectOptions & { beforeRtr?: (qp: QueuePair) => void } = {},
): Promise<void> {
  const o = readOptions(options, 'options', [...connectOptionNames, 'beforeRtr']);
  instance(qp, 'qp', QueuePair);
  requireNoIwarp(qp.context);
  checkInfo(local, 'local');
  checkInfo(remote, 'remote');
  checkConnectOptions(o);
  const { beforeRtr } = o;
  if (beforeRtr !== undefined && typeof beforeRtr !== 'function') {
    throw typeError('options.beforeRtr', 'a function', beforeRtr);
  }
  const { portNum = 1, access, trafficClass = environmentNumber('NODE_RDMA_TC', 255), maxRdAtomic = 16 } = o;
  if (local.qpNum !== qp.qpNum) throw valueError('local is of another queue pair');
  if (local.linkLayer !== remote.linkLayer) {
    throw valueError('One side is on Ethernet and the other on InfiniBand: they cannot be connected');
  }
  const common = Math.min(local.mtu, remote.mtu) as Mtu;
  const pathMtu = o.mtu ?? common;
  if (pathMtu > common) {
    throw valueError(
      `options.mtu is ${128 << pathMtu} bytes, but the ports have ${128 << local.mtu} here and ${128 << remote.mtu} there`,
    );
  }
  const context = qp.pd.context;
  const sgid = context.selectGid(portNum, o.gidIndex === undefined ? {} : { gidIndex: o.gidIndex });
  if (sgid.gid !== local.gid) throw valueError(`local.gid is ${local.gid}, but the GID to use is now ${sgid.gid}`);

  const grhNeeded = local.linkLayer === LinkLayer.ETHERNET || (context.queryPort(portNum).flags & 1) !== 0;
  const device = context.queryDevice();
  const initAttr: QpAttr = {
    qpState: QpState.INIT,
    pkeyIndex: o.pkeyIndex ?? 0,
    portNum,
    qpAccessFlags: access ?? AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC,
  };
  await qp.modify(initAttr);
  beforeRtr?.(qp);
  await qp.modify({
    qpState: QpState.RTR,
    pathMtu,
    destQpNum: remote.qpNum,
    rqPsn: remote.psn,
    maxDestRdAtomic: local.maxDestRdAtomic,
    minRnrTimer: o.minRnrTimer ?? 12,
    ahAttr: {
      dlid: remote.lid,
      sl: o.sl ?? 0,
      portNum,
      ...(grhNeeded && {
        grh: {
          dgid: remote.gid,
          sgidIndex: sgid.gidIndex,
          hopLimit: o.hopLimit ?? 64,
          trafficClass: trafficClass ?? 0,
        },
      }),
    },
  });
  await qp.modify({
    qpState: QpState.RTS,
    sqPsn: local.psn,
    timeout: o.timeout ?? 14,
    retryCnt: o.retryCnt ?? RETRIES,
    rnrRetry: o.rnrRetry ?? 7,
    maxRdAtomic: Math.min(maxRdAtomic, device.maxQpInitRdAtom, remote.maxDestRdAtomic),
  });
}

// The blob, in network byte order:
//   0  4 bytes  magic "nRDM"
//   4  u8       version
//   5  u8       length of the whole
//   6  u8       link layer
//   7  u8       MTU, encoded
//   8  u32      queue pair number
//  12  u32      PSN
//  16  u16      LID
//  18  u8       reads and atomics as the responder
//  19  u8       zero
//  20  16 bytes GID
const MAGIC = 'nRDM';
const VERSION = 1;
const BLOB_LENGTH = 36;

// Checks each field, and returns the GID.
function checkInfo(info: ConnectionInfo, name: string): Buffer {
  if (typeof info !== 'object' || info === null) throw typeError(name, 'a ConnectionInfo', info);
  integer(info.linkLayer, `${name}.linkLayer`, 0, 255);
  integer(info.mtu, `${name}.mtu`, 1, 5);
  integer(info.qpNum, `${name}.qpNum`, 0, 0xff_ffff);
  integer(info.psn, `${name}.psn`, 0, 0xff_ffff);
  integer(info.lid, `${name}.lid`, 0, 0xffff);
  integer(info.maxDestRdAtomic, `${name}.maxDestRdAtomic`, 0, 255);
  return parseGid(info.gid, `${name}.gid`);
}

/**
 * Encodes a `ConnectionInfo` as 36 bytes in network byte order, with a version and a length.
 *
 * @throws TypeError or RangeError naming the field
 */
export function encodeConnectionInfo(info: ConnectionInfo): Buffer {
  const gid = checkInfo(info, 'info');
  const blob = Buffer.alloc(BLOB_LENGTH);
  blob.write(MAGIC, 0, 'latin1');
  blob.writeUInt8(VERSION, 4);
  blob.writeUInt8(BLOB_LENGTH, 5);
  blob.writeUInt8(info.linkLayer, 6);
  blob.writeUInt8(info.mtu, 7);
  blob.writeUInt32BE(info.qpNum, 8);
  blob.writeUInt32BE(info.psn, 12);
  blob.writeUInt16BE(info.lid, 16);
  blob.writeUInt8(info.maxDestRdAtomic, 18);
  gid.copy(blob, 20);
  return blob;
}

/**
 * Decodes what `encodeConnectionInfo()` made. It comes from a peer, so everything is checked.
 *
 * @throws TypeError ERR_INVALID_ARG_VALUE saying what is wrong with it
 */
export function decodeConnectionInfo(blob: Uint8Array): ConnectionInfo {
  if (!(blob instanceof Uint8Array)) throw typeError('blob', 'a Uint8Array', blob);
  const b = Buffer.from(blob.buffer, blob.byteOffset, blob.byteLength);
  const bad = (reason: string) => valueError(`The peer's connection info is refused: ${reason}`);
  if (b.length < 6 || b.toString('latin1', 0, 4) !== MAGIC) throw bad('it does not begin with "nRDM"');
  if (b.readUInt8(4) !== VERSION) throw bad(`it is of version ${b.readUInt8(4)}, and this is version ${VERSION}`);
  if (b.length !== BLOB_LENGTH || b.readUInt8(5) !== BLOB_LENGTH) {
    throw bad(`it has ${b.length} bytes and says ${b.readUInt8(5)}, where version ${VERSION} has ${BLOB_LENGTH}`);
  }
  const info: ConnectionInfo = {
    linkLayer: b.readUInt8(6),
    mtu: b.readUInt8(7) as Mtu,
    qpNum: b.readUInt32BE(8),
    psn: b.readUInt32BE(12),
    lid: b.readUInt16BE(16),
    maxDestRdAtomic: b.readUInt8(18),
    gid: formatGid(b.subarray(20, 36)),
  };
  if (info.linkLayer !== LinkLayer.INFINIBAND && info.linkLayer !== LinkLayer.ETHERNET) throw bad('unknown link layer');
  if (info.mtu < Mtu.MTU_256 || info.mtu > Mtu.MTU_4096) throw bad(`there is no MTU ${info.mtu}`);
  if (info.qpNum > 0xff_ffff || info.psn > 0xff_ffff) throw bad('a queue pair number or PSN is beyond 24 bits');
  if (info.linkLayer === LinkLayer.ETHERNET && info.gid === '::') throw bad('it has no GID');
  return info;
}
