import { CmError } from '../errors.ts';
import type { CmAddress } from './address.ts';
import type { CmId } from './cm-id.ts';

// An answer to ARP that comes at once, as on a virtual wire, is overlooked by the kernel until its time-out, when it looks
// again: so that is short.
const RESOLVE_MS = 250;

/** As `id.resolveAddr()`, again and again until the signal ends it. @internal */
export async function resolveAddrUntil(
  id: CmId,
  dst: CmAddress,
  how: { src?: CmAddress; signal: AbortSignal },
): Promise<void> {
  for (;;) {
    try {
      await id.resolveAddr(dst, { ...how, timeoutMs: RESOLVE_MS });
      return;
    } catch (error) {
      if (!(error instanceof CmError && error.code === 'ETIMEDOUT')) throw error;
    }
  }
}
