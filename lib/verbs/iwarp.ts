/** What iWARP (RFC 5040 and those around it) lacks of what InfiniBand and RoCE have, and what software iWARP does its own way. */
import { constants } from 'node:os';
import { RdmaError } from '../errors.ts';
import { AccessFlags, TransportType } from '../native/constants.gen.ts';
import type { DeviceQueries } from './device-queries.ts';

/** Whether a device speaks iWARP. @internal */
export function isIwarp({ transportType }: { readonly transportType: number }): boolean {
  return transportType === TransportType.IWARP;
}

// "bmt": drivers/infiniband/sw/siw of the kernel.
const SIW_VENDOR = 0x626d74;

/** Whether a device is software iWARP. @internal */
export function isSiw(context: DeviceQueries): boolean {
  return isIwarp(context) && context.queryDevice().vendorId === SIW_VENDOR;
}

/**
 * What memory is registered with that is to be read into: what comes is a write with the region's key to an adapter of
 * iWARP (siw looks at LOCAL_WRITE alone).
 *
 * @internal
 */
export function sinkAccess(context: DeviceQueries): number {
  const { LOCAL_WRITE, REMOTE_WRITE } = AccessFlags;
  return isIwarp(context) ? LOCAL_WRITE | REMOTE_WRITE : LOCAL_WRITE;
}

/**
 * The error for what a device cannot do since it speaks iWARP.
 *
 * @param what - the end of a sentence that begins with iWARP
 * @internal
 */
export function iwarpLacks(verb: string, what: string): RdmaError {
  return new RdmaError(verb, constants.errno.EOPNOTSUPP, `iWARP ${what}`);
}

/** Throws EOPNOTSUPP where queue pairs are connected by the connection manager only. @internal */
export function requireNoIwarp(context: DeviceQueries): void {
  if (isIwarp(context))
    throw iwarpLacks('ibv_modify_qp', 'connects by the connection manager only: listen(), connect()');
}
