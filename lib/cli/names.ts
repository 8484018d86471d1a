/** Names that rdma-core's programs print for numbers. */
import {
  AtomicCap,
  DeviceCapFlags,
  GidType,
  LinkLayer,
  type Mtu,
  PortState,
  TransportType,
} from '../native/constants.gen.ts';
import type { PortAttr } from '../verbs/device-attributes.ts';

function nameIn(object: Readonly<Record<string, number>>, value: number): string | undefined {
  return Object.entries(object).find(([, number]) => number === value)?.[0];
}

/** `'ACTIVE'`. */
export const stateName = (state: number): string => nameIn(PortState, state) ?? String(state);

/** `'Ethernet'`. */
export const linkLayerName = (layer: number): string => (layer === LinkLayer.ETHERNET ? 'Ethernet' : 'InfiniBand');

/** `'ATOMIC_HCA'`. */
export const atomicCapName = (cap: number): string => `ATOMIC_${nameIn(AtomicCap, cap) ?? cap}`;

/** `'InfiniBand'`. */
export function transportName(type: number): string {
  if (type === TransportType.IB) return 'InfiniBand';
  if (type === TransportType.IWARP) return 'iWARP';
  return nameIn(TransportType, type) ?? 'unknown transport';
}

/** Bytes of an encoded MTU. */
export const mtuBytes = (mtu: Mtu): number => 128 << mtu;

const widths: Record<number, number> = { 1: 1, 2: 4, 4: 8, 8: 12, 16: 2 };
// Gigabits per second of a lane.
const speeds: Record<number, number> = { 1: 2.5, 2: 5, 4: 10, 8: 10, 16: 14, 32: 25, 64: 50, 128: 100 };

/** `'4X'`. */
export const widthName = (width: number): string => `${widths[width] ?? 'invalid width'}X`;

/** `'25.0 Gbps'`. */
export const speedName = (speed: number): string =>
  speeds[speed] === undefined ? 'invalid speed' : `${speeds[speed].toFixed(1)} Gbps`;

/** `'100 Gb/s'`, of all lanes. */
export function portRate({ activeWidth, activeSpeed }: PortAttr): string {
  const [lanes, speed] = [widths[activeWidth], speeds[activeSpeed]];
  return lanes === undefined || speed === undefined ? '' : `${lanes * speed} Gb/s`;
}

/** `'8'`, of virtual lanes. */
export const virtualLanes = (encoded: number): string =>
  String([undefined, 1, 2, 4, 8, 15][encoded] ?? 'invalid value');

const physicalStates = [
  ...['', 'SLEEP', 'POLLING', 'DISABLED'],
  // Spelt as ibv_devinfo spells it.
  'PORT_CONFIGURATION TRAINNING',
  ...['LINK_UP', 'LINK_ERROR_RECOVERY', 'PHY TEST'],
];

/** `'LINK_UP'`. */
export const physicalStateName = (state: number): string => physicalStates[state] || 'invalid physical state';

/** `'v2'`, as show_gids has it. */
export function gidVersion(type: number): string {
  if (type === GidType.ROCE_V2) return 'v2';
  return type === GidType.ROCE_V1 ? 'v1' : 'IB';
}

/** `'RoCE v2'`; empty for InfiniBand, where ibv_devinfo says nothing. */
export const gidTypeName = (type: number): string => (type === GidType.IB ? '' : `RoCE ${gidVersion(type)}`);

/** The names of the flags that are set, and what is left. */
export function capFlagNames(flags: number): { names: string[]; unknown: number } {
  const names: string[] = [];
  let unknown = flags;
  for (const [name, flag] of Object.entries(DeviceCapFlags)) {
    if ((flags & flag) === 0) continue;
    names.push(name);
    unknown &= ~flag;
  }
  return { names, unknown: unknown >>> 0 };
}
