import { readdirSync, readFileSync } from 'node:fs';
import { binding } from '../native/binding.ts';
import { GidType } from '../native/constants.gen.ts';
import type { ContextHandle, NativeGidEntry } from '../native/native.ts';

/**
 * The GID table of a port, by its indices, without its empty places: rdma-core before 32 has no `ibv_query_gid_table()`,
 * and the kernel tells the same in sysfs.
 *
 * @param ibdevPath - the device's directory there
 * @internal
 */
export function sysfsGidTable(ibdevPath: string, context: ContextHandle, portNum: number): NativeGidEntry[] {
  const port = `${ibdevPath}/ports/${portNum}`;
  const read = (path: string) => readFileSync(`${port}/${path}`, 'utf8').trim();
  const ethernet = { 'IB/RoCE v1': GidType.ROCE_V1, 'RoCE v2': GidType.ROCE_V2 } as Record<string, number>;
  const entries: NativeGidEntry[] = [];
  for (const place of readdirSync(`${port}/gids`)) {
    const gidIndex = Number(place);
    const gid = binding().queryGid(context, portNum, gidIndex);
    if (gid.every((byte) => byte === 0)) continue;
    let netdev: string | null = null;
    let gidType: number = GidType.IB;
    try {
      netdev = read(`gid_attrs/ndevs/${place}`);
      gidType = ethernet[read(`gid_attrs/types/${place}`)] ?? GidType.IB;
    } catch {
      // InfiniBand: there is no network interface to name.
    }
    entries.push({ gid, gidIndex, portNum, gidType, netdev });
  }
  return entries.sort((a, b) => a.gidIndex - b.gidIndex);
}
