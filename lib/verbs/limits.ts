/**
 * What EINVAL and ENOMEM of a create verb are about: the kernel never says which number was too large, and the device's
 * limits do. Looked at after the kernel has said it, never to forbid.
 */
import { RdmaError } from '../errors.ts';
import { LinkLayer } from '../native/constants.gen.ts';
import type { AhAttr } from './address-handle.ts';
import type { DeviceAttr } from './device-attributes.ts';
import type { DeviceQueries } from './device-queries.ts';

/** A number that was asked for: its name, its value, and the attribute of the device that limits it. */
export type Wanted = readonly [name: string, value: number, limit: keyof DeviceAttr];

/**
 * Calls a create verb, and explains its EINVAL or ENOMEM.
 *
 * @param wanted - the numbers that it was given
 * @param count - the attribute of the device that says how many of these objects it has
 * @internal
 */
export function withinLimits<T>(
  context: DeviceQueries,
  wanted: readonly Wanted[],
  count: keyof DeviceAttr,
  create: () => T,
): T {
  try {
    return create();
  } catch (error) {
    if (!(error instanceof RdmaError && (error.code === 'EINVAL' || error.code === 'ENOMEM'))) throw error;
    throw error.explained(explainLimits(context.queryDevice(), wanted, count));
  }
}

function explainLimits(device: DeviceAttr, wanted: readonly Wanted[], count: keyof DeviceAttr): string {
  const tooLarge = wanted.filter(([, value, limit]) => value > Number(device[limit]));
  if (tooLarge.length > 0) {
    const texts = tooLarge.map(
      ([name, value, limit]) => `${name} is ${value}, ${limit} of the device ${device[limit]}`,
    );
    return texts.join('; ');
  }
  const limits = [...new Set([...wanted.map(([, , limit]) => limit), count])].map(
    (limit) => `${limit} ${device[limit]}`,
  );
  const together = wanted.length > 1 ? 'all together may still be too much, or' : '';
  return `nothing is beyond the limits of the device (${limits.join(', ')}), but ${together} it may have no more`;
}

/**
 * What is wrong with an address, in words, after the kernel has refused it.
 *
 * @internal
 */
export function explainAddress(context: DeviceQueries, { grh, portNum = 1 }: AhAttr): string[] {
  const missing = explainPort(context, portNum);
  if (missing !== undefined) return [missing];
  const reasons: string[] = [];
  if (context.queryPort(portNum).linkLayer === LinkLayer.ETHERNET && !grh) {
    reasons.push('ahAttr.grh is missing, which Ethernet needs');
  }
  if (grh && !context.queryGidTable().some((e) => e.gidIndex === grh.sgidIndex && e.portNum === portNum)) {
    reasons.push(`GID index ${grh.sgidIndex} of the port is empty`);
  }
  return reasons;
}

/** That there is no such port, in words; undefined when there is. @internal */
export function explainPort(context: DeviceQueries, portNum: number): string | undefined {
  const { physPortCnt } = context.queryDevice();
  if (portNum <= physPortCnt) return undefined;
  return `there is no port ${portNum}: ${context.name} has ${physPortCnt === 1 ? 'one' : physPortCnt}`;
}
