/** Software iWARP, which is in the source of Debian's kernel, but not in what Debian builds of it. */
import { join } from 'node:path';
import type { Kernel, PrepareOptions } from './kernel.ts';
import { type Driver, prepareDriver } from './kernel-module.ts';

const module = 'siw.ko';
const driver: Driver = { name: 'siw', what: 'siw', folder: 'siw', config: 'CONFIG_RDMA_SIW', module };

/** Builds the module into the cache, or finds it there. Returns its file. */
export async function prepareSiw(kernel: Kernel, options: PrepareOptions): Promise<string> {
  return join(await prepareDriver(kernel, driver, options), module);
}
