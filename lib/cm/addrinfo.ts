import { constants } from 'node:os';
import { instance, integer, oneOf, readOptions, string, uint32, valueError } from '../args.ts';
import { RdmaError } from '../errors.ts';
import { connectionManager } from '../native/binding.ts';
import { AddrInfoFlags, PortSpace, QpType } from '../native/constants.gen.ts';
import type { CmAddressInfo, NativeAddrInfo } from '../native/native-cm.ts';
import { type CmAddress, socketAddress } from './address.ts';

/** What is looked for: `struct rdma_addrinfo` as hints. */
export interface AddrInfoHints {
  /** `AddrInfoFlags` joined with `|`. Default 0: to connect. */
  flags?: number;
  /** 4 or 6: this family only. Default either. */
  family?: 4 | 6;
  /** Type of queue pair; default by the port space. */
  qpType?: QpType;
  /** Port space; default `PortSpace.TCP`. */
  portSpace?: PortSpace;
  /** This side's address. */
  srcAddr?: CmAddress;
}

/** An address and a route that were found: `struct rdma_addrinfo`. */
export interface AddrInfo {
  /** `AddrInfoFlags` joined with `|`. */
  flags: number;
  /** Type of queue pair. */
  qpType: number;
  /** Port space. */
  portSpace: number;
  /** This side's address: where to listen, or from where to connect; null for any. */
  srcAddr: CmAddressInfo | null;
  /** The peer's address, or null. */
  dstAddr: CmAddressInfo | null;
  /** This side's name, or null when it was not looked up. */
  srcCanonname: string | null;
  /** The peer's name, or null. */
  dstCanonname: string | null;
  /** The route, where ibacm knew it: an array of `struct ibv_path_data`; else empty. */
  route: Buffer;
  /** What the transport puts in front of the private data of a connection; most often empty. */
  connect: Buffer;
}

// AF_INET and AF_INET6 of Linux.
const FAMILIES = { 4: 2, 6: 10 } as const;

/**
 * Looks up a name, or an address, and a service for the connection manager. Runs on a thread of the pool.
 *
 * @param node - host name or address; null for a wildcard, to listen
 * @param service - port, or a name of /etc/services; null for any
 * @param hints - what is looked for
 * @returns what was found, for `channel.createEp()`: librdmacm gives one
 * @throws RdmaError ENOENT from `rdma_getaddrinfo` when the name is not known, with the resolver's words
 * @see rdma_getaddrinfo(3)
 */
export async function getaddrinfo(
  node: string | null,
  service: string | number | null,
  hints: AddrInfoHints = {},
): Promise<AddrInfo[]> {
  if (node !== null) string(node, 'node');
  const port = typeof service === 'number' ? String(integer(service, 'service', 0, 65535)) : service;
  if (port !== null) string(port, 'service');
  if (node === null && port === null) throw valueError('node and service are both null: one of them must be there');
  const known = ['flags', 'family', 'qpType', 'portSpace', 'srcAddr'];
  const { flags = 0, family, qpType, portSpace = PortSpace.TCP, srcAddr } = readOptions(hints, 'hints', known);
  if (family !== undefined && family !== 4 && family !== 6) throw valueError('hints.family must be 4 or 6');
  const [address, srcPort] = srcAddr === undefined ? [] : socketAddress(srcAddr, 'hints.srcAddr');
  const found = await connectionManager().getAddrInfo(node, port, {
    flags: uint32(flags, 'hints.flags') | (family === undefined ? 0 : AddrInfoFlags.FAMILY),
    family: family === undefined ? 0 : FAMILIES[family],
    qpType: qpType === undefined ? 0 : oneOf(qpType, 'hints.qpType', QpType, 'QpType'),
    portSpace: oneOf(portSpace, 'hints.portSpace', PortSpace, 'PortSpace'),
    srcAddr: address === undefined ? null : { address, port: srcPort },
  });
  if (typeof found !== 'string') return found;
  throw new RdmaError('rdma_getaddrinfo', constants.errno.ENOENT, `${node ?? '*'}, ${port ?? '*'}: ${found}`);
}

/** One of them, checked, as the addon takes it. @internal */
export function nativeAddrInfo(value: AddrInfo, name: string): object {
  const { flags, qpType, portSpace, srcAddr, dstAddr, route, connect } = value as NativeAddrInfo;
  const pair = (address: CmAddress | null, which: string) => {
    if (address === null) return null;
    const [text, port] = socketAddress(address, `${name}.${which}`);
    return { address: text, port };
  };
  const [src, dst] = [pair(srcAddr, 'srcAddr'), pair(dstAddr, 'dstAddr')];
  // librdmacm reads the address that it needs without looking whether there is one.
  if ((flags & AddrInfoFlags.PASSIVE) !== 0 ? src === null : dst === null) {
    throw valueError(
      `${name} lacks the address ${(flags & AddrInfoFlags.PASSIVE) !== 0 ? 'to listen on' : 'of the peer'}`,
    );
  }
  return {
    flags: uint32(flags, `${name}.flags`),
    family: 0,
    qpType: uint32(qpType, `${name}.qpType`),
    portSpace: uint32(portSpace, `${name}.portSpace`),
    srcAddr: src,
    dstAddr: dst,
    route: instance(route, `${name}.route`, Uint8Array),
    connect: instance(connect, `${name}.connect`, Uint8Array),
  };
}
