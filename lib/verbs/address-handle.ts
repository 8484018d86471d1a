import { integer, readOptions, typeError } from '../args.ts';
import { internetChecksum } from '../checksum.ts';
import { RdmaError } from '../errors.ts';
import { hex, printed } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import { WcFlags } from '../native/constants.gen.ts';
import type { AhHandle } from '../native/native.ts';
import { formatGid, parseGid } from './gid.ts';
import { explainAddress } from './limits.ts';
import type { ProtectionDomain } from './protection-domain.ts';
import { Resource } from './resource.ts';
import type { WorkCompletion } from './work-completion.ts';

/** Global routing header of an address: `struct ibv_global_route`. Always there on RoCE. */
export interface GlobalRoute {
  /** The destination's GID, in the notation of IPv6. */
  dgid: string;
  /** Index of the source GID in the port's own table. */
  sgidIndex: number;
  /** IPv6 flow label of 20 bits. Default 0. */
  flowLabel?: number;
  /** Routers that a packet may pass. Default 64. */
  hopLimit?: number;
  /** DSCP and ECN bits: the type of service. Default 0. */
  trafficClass?: number;
}

/** An address: `struct ibv_ah_attr`. */
export interface AhAttr {
  /** Global routing header. Without one the address is local to an InfiniBand subnet. */
  grh?: GlobalRoute;
  /** Local identifier of the destination (InfiniBand). Default 0. */
  dlid?: number;
  /** Service level, 0 to 15. Default 0. */
  sl?: number;
  /** Path bits of the source. Default 0. */
  srcPathBits?: number;
  /** Maximum static rate, as `enum ibv_rate`; 0 is the port's own. Default 0. */
  staticRate?: number;
  /** The port to send from, from 1. Default 1. */
  portNum?: number;
}

/** An address as the addon takes and gives it: complete, its GID as bytes. @internal */
export interface CompleteAhAttr extends Required<Omit<AhAttr, 'grh'>> {
  isGlobal: boolean;
  grh: CompleteRoute | undefined;
}

interface CompleteRoute extends Required<Omit<GlobalRoute, 'dgid'>> {
  dgid: Uint8Array;
}

/** A complete address for the addon, defaults filled in. @internal */
export function ahAttr(value: AhAttr, name: string): CompleteAhAttr {
  const known = ['grh', 'dlid', 'sl', 'srcPathBits', 'staticRate', 'portNum'];
  const { grh, dlid = 0, sl = 0, srcPathBits = 0, staticRate = 0, portNum = 1 } = readOptions(value, name, known);
  return {
    isGlobal: grh !== undefined,
    grh: grh === undefined ? undefined : globalRoute(grh, `${name}.grh`),
    dlid: integer(dlid, `${name}.dlid`, 0, 0xffff),
    sl: integer(sl, `${name}.sl`, 0, 15),
    srcPathBits: integer(srcPathBits, `${name}.srcPathBits`, 0, 127),
    staticRate: integer(staticRate, `${name}.staticRate`, 0, 255),
    portNum: integer(portNum, `${name}.portNum`, 1, 255),
  };
}

function globalRoute(value: GlobalRoute, name: string): CompleteRoute {
  const known = ['dgid', 'sgidIndex', 'flowLabel', 'hopLimit', 'trafficClass'];
  const { dgid, sgidIndex, flowLabel = 0, hopLimit = 64, trafficClass = 0 } = readOptions(value, name, known);
  return {
    dgid: parseGid(dgid as string),
    sgidIndex: integer(sgidIndex, `${name}.sgidIndex`, 0, 255),
    flowLabel: integer(flowLabel, `${name}.flowLabel`, 0, 0xf_ffff),
    hopLimit: integer(hopLimit, `${name}.hopLimit`, 0, 255),
    trafficClass: integer(trafficClass, `${name}.trafficClass`, 0, 255),
  };
}

/**
 * An address handle: `struct ibv_ah`: where a datagram goes. Made by `pd.createAh()` or `pd.createAhFromWc()`. Held while
 * a request that uses it is in flight.
 *
 * @see ibv_create_ah(3)
 */
export class AddressHandle extends Resource {
  /** The domain it belongs to. */
  readonly pd: ProtectionDomain;
  readonly #number: number;
  readonly #handle: AhHandle;
  readonly #attr: CompleteAhAttr;

  /** @internal */
  constructor(pd: ProtectionDomain, native: { handle: AhHandle; number: number }, attr: CompleteAhAttr) {
    super([pd]);
    this.pd = pd.root;
    this.#number = native.number;
    this.#handle = native.handle;
    this.#attr = attr;
  }

  /** Whether it is one, and not something that was made to look like one. @internal */
  static is(value: unknown): value is AddressHandle {
    return typeof value === 'object' && value !== null && #number in value;
  }

  /** What the addon knows it by in a work request. @internal */
  static numberOf(ah: AddressHandle): number {
    return ah.#number;
  }

  /** @internal */
  static create(pd: ProtectionDomain, attr: AhAttr): AddressHandle {
    if (attr === undefined) throw typeError('attr', 'an object', attr);
    const complete = ahAttr(attr, 'attr');
    try {
      return new AddressHandle(pd, binding().createAh(pd.handle, { ahAttr: complete }), complete);
    } catch (error) {
      const reasons = error instanceof RdmaError ? explainAddress(pd.context, attr) : [];
      throw error instanceof RdmaError && reasons.length > 0 ? error.explained(reasons.join('; ')) : error;
    }
  }

  /** @internal */
  static fromWc(pd: ProtectionDomain, wc: WorkCompletion, grh: Uint8Array | undefined, portNum: number): AddressHandle {
    if (typeof wc !== 'object' || wc === null) throw typeError('wc', 'a WorkCompletion', wc);
    integer(portNum, 'portNum', 1, 255);
    if (grh !== undefined && !(grh instanceof Uint8Array && grh.length >= GRH_BYTES)) {
      throw typeError('grh', `a Uint8Array of at least ${GRH_BYTES} bytes`, grh);
    }
    const header = grh === undefined ? null : Buffer.from(grh.subarray(0, GRH_BYTES));
    // libibverbs (44) forgets a carry of the checksum, which it looks at where this might be IPv6.
    if (header && grhVersion(header) === 4) header[0] = 0;
    const native = binding().createAhFromWc(pd.handle, pd.context.handle, portNum, wc, header);
    return new AddressHandle(pd, native, native.attr as CompleteAhAttr);
  }

  /** @internal */
  describe(): string {
    return `AddressHandle ${this.#number}`;
  }

  /** @internal */
  protected override fields(): object {
    const { isGlobal, grh, dlid, sl, portNum } = this.#attr;
    if (!isGlobal || grh === undefined) return { dlid, sl, portNum };
    const { dgid, sgidIndex, hopLimit } = grh;
    return { dgid: formatGid(dgid), sgidIndex, hopLimit, dlid: dlid || undefined, sl: sl || undefined, portNum };
  }

  protected readonly destroyVerb = 'ibv_destroy_ah';

  protected override busyReasons(): string[] {
    const inFlight = this.pd.inFlight(this);
    return inFlight === 0 ? [] : [`${inFlight} work request(s) in flight`];
  }

  protected destroy(): void {
    binding().destroyAh(this.#handle);
    this.pd.closings++;
  }
}

/** Bytes in front of every datagram's data in the receive buffer, whether they mean something or not. */
export const GRH_BYTES = 40;

/** The header that a datagram came with: a global routing header, or the IPv4 header that RoCE v2 has in its place. */
export interface Grh {
  /** 6: a global routing header, or IPv6. 4: IPv4. */
  version: 4 | 6;
  /** The sender's GID, in the notation of IPv6: an IPv4 address is `::ffff:a.b.c.d`. */
  sgid: string;
  /** The receiver's GID. */
  dgid: string;
  /** Traffic class: DSCP and ECN. */
  trafficClass: number;
  /** Flow label; 0 for IPv4. */
  flowLabel: number;
  /** Routers that were left to pass. */
  hopLimit: number;
}

const printedGrh = printed<Grh>('Grh', { trafficClass: hex, flowLabel: hex });

/** A datagram that was received. */
export interface Datagram {
  /** The data, in place, without the header. */
  payload: Buffer;
  /** The header, or undefined when there was none, or one of neither kind. */
  grh: Grh | undefined;
}

/**
 * What a datagram's receive brought: its data and its header.
 *
 * @param wc - the receive's completion
 * @param buffer - the memory that the receive was posted with, from its first byte
 * @throws RangeError `ERR_OUT_OF_RANGE` when the buffer is not that long
 */
export function readDatagram(wc: WorkCompletion, buffer: Uint8Array): Datagram {
  if (typeof wc !== 'object' || wc === null) throw typeError('wc', 'a completion', wc);
  if (!(buffer instanceof Uint8Array)) throw typeError('buffer', 'a Uint8Array', buffer);
  integer(wc.byteLen, 'wc.byteLen', GRH_BYTES, buffer.length);
  const bytes = Buffer.from(buffer.buffer, buffer.byteOffset, wc.byteLen);
  return {
    payload: bytes.subarray(GRH_BYTES),
    grh: (wc.wcFlags & WcFlags.GRH) === 0 ? undefined : readGrh(bytes.subarray(0, GRH_BYTES)),
  };
}

// Where an IPv4 header stands: in the last 20 of the 40 bytes.
const IPV4 = 20;

function readGrh(bytes: Buffer): Grh | undefined {
  const version = grhVersion(bytes);
  if (version === 4) {
    const mapped = (at: number) => `::ffff:${bytes[at]}.${bytes[at + 1]}.${bytes[at + 2]}.${bytes[at + 3]}`;
    return printedGrh({
      version,
      sgid: mapped(IPV4 + 12),
      dgid: mapped(IPV4 + 16),
      trafficClass: bytes.readUInt8(IPV4 + 1),
      flowLabel: 0,
      hopLimit: bytes.readUInt8(IPV4 + 8),
    });
  }
  if (version !== 6) return undefined;
  const first = bytes.readUInt32BE(0);
  return printedGrh({
    version,
    sgid: formatGid(bytes.subarray(8, 24)),
    dgid: formatGid(bytes.subarray(24, 40)),
    trafficClass: (first >>> 20) & 0xff,
    flowLabel: first & 0xf_ffff,
    hopLimit: bytes.readUInt8(7),
  });
}

/**
 * Which header it is, as libibverbs decides when it makes an address handle of it. What is in front of an IPv4 header is not
 * defined, and may look like the beginning of IPv6: then its checksum decides.
 */
function grhVersion(grh: Buffer): number {
  const start = grh.readUInt8(IPV4);
  if (grh.readUInt8(0) >> 4 !== 6) return start >> 4 === 4 ? 4 : 0;
  // In RoCE v2 it has no options: five words.
  return start === 0x45 && internetChecksum(grh, IPV4, GRH_BYTES - IPV4) === 0 ? 4 : 6;
}
