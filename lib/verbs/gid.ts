import { isIPv4, isIPv6, SocketAddress } from 'node:net';
import { typeError, valueError } from '../args.ts';
import { named, printed } from '../inspect.ts';
import { GidType } from '../native/constants.gen.ts';

/** An entry of a port's GID table: `struct ibv_gid_entry`. */
export interface GidEntry {
  /** The GID in the notation of IPv6, such as `'::ffff:10.0.0.1'` or `'fe80::1'`. */
  gid: string;
  /** Its index in the table: a property of this side, never sent to a peer. */
  gidIndex: number;
  /** The port, from 1. */
  portNum: number;
  /** What it stands for: `GidType.IB`, `ROCE_V1` or `ROCE_V2`. */
  gidType: number;
  /** The network interface it belongs to, or null (InfiniBand, or one in another network namespace). */
  netdev: string | null;
}

/** @internal */
export const printedGidEntry = printed<GidEntry>('GidEntry', { gidType: named(GidType) });

/**
 * Formats a GID as an IPv6 address.
 *
 * @param bytes - 16, in network order
 * @returns such as `'::ffff:10.0.0.1'` or `'fe80::1'`
 * @throws TypeError `ERR_INVALID_ARG_TYPE`
 */
export function formatGid(bytes: Uint8Array): string {
  if (!(bytes instanceof Uint8Array) || bytes.length !== 16)
    throw typeError('bytes', 'a Uint8Array of 16 bytes', bytes);
  const hex = Buffer.from(bytes).toString('hex');
  const address = hex.replace(/....(?!$)/g, '$&:');
  return new SocketAddress({ family: 'ipv6', address }).address;
}

/**
 * Parses a GID.
 *
 * @param gid - in any notation of IPv6, without a zone
 * @param name - what errors call it
 * @returns its 16 bytes, in network order
 * @throws TypeError `ERR_INVALID_ARG_TYPE`, `ERR_INVALID_ARG_VALUE`
 */
export function parseGid(gid: string, name = 'gid'): Buffer {
  if (typeof gid !== 'string') throw typeError(name, 'a string', gid);
  if (!isIPv6(gid) || gid.includes('%')) throw valueError(`${name} must be written as an IPv6 address, not '${gid}'`);
  // An IPv4 tail is two groups.
  const tail = gid.slice(gid.lastIndexOf(':') + 1);
  let text = gid;
  if (isIPv4(tail)) {
    const [a = 0, b = 0, c = 0, d = 0] = tail.split('.').map(Number);
    text = `${gid.slice(0, -tail.length)}${((a << 8) | b).toString(16)}:${((c << 8) | d).toString(16)}`;
  }
  const [front = '', back] = text.split('::');
  const groups = (part: string) => (part === '' ? [] : part.split(':'));
  const before = groups(front);
  const after = back === undefined ? [] : groups(back);
  const zeros = back === undefined ? [] : new Array<string>(8 - before.length - after.length).fill('0');
  const bytes = Buffer.alloc(16);
  [...before, ...zeros, ...after].forEach((group, i) => bytes.writeUInt16BE(Number.parseInt(group, 16), 2 * i));
  return bytes;
}

/**
 * Chooses a GID: the first of the lowest class that is there, in the order
 *
 * 1. RoCE v2 of an IPv4 address,
 * 2. RoCE v2 of a global IPv6 address,
 * 3. RoCE v2 of a link-local IPv6 address,
 * 4. RoCE v1,
 * 5. InfiniBand.
 *
 * Index 0 is not special. Empty entries are not in the table.
 *
 * @param table - as `context.queryGidTable()` gives it, in any order; the entries of one port
 * @returns one of them, or undefined when there are none
 */
export function chooseGid(table: readonly GidEntry[]): GidEntry | undefined {
  if (!Array.isArray(table)) throw typeError('table', 'what context.queryGidTable() gives', table);
  return [...table].sort((a, b) => rank(a) - rank(b) || a.gidIndex - b.gidIndex)[0];
}

// In the order of preference.
const classes = [
  'RoCE v2 of an IPv4 address',
  'RoCE v2 of a global IPv6 address',
  'RoCE v2 of a link-local IPv6 address',
  'RoCE v1',
  'InfiniBand',
];

/** Place of an entry's class in the order. */
function rank({ gid, gidType }: GidEntry): number {
  if (gidType === GidType.ROCE_V2) {
    if (gid.startsWith('::ffff:')) return 0;
    return /^fe[89ab]/.test(gid) ? 2 : 1;
  }
  return gidType === GidType.ROCE_V1 ? 3 : 4;
}

/** Why {@link chooseGid} has chosen this one of the table, in words. */
export function gidReason(table: readonly GidEntry[], chosen: GidEntry): string {
  const best = rank(chosen);
  const alike = table.filter((entry) => rank(entry) === best).length;
  const first = alike === 1 ? '' : `, the first of ${alike}`;
  const none = best === 0 ? '' : `; there is no ${classes.slice(0, best).join(', no ')}`;
  return `${classes[best]}${first}${none}`;
}
