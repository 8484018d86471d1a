/**
 * A test vehicle: an rxe that registers DMA-BUFs, which the kernel's own does not, and a library in front of libibverbs that
 * asks it to.
 */
import { readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Kernel, PrepareOptions } from './kernel.ts';
import { type Driver, prepareDriver } from './kernel-module.ts';
import { runTool } from './packages.ts';
import { type Edit, edits, kernelSource, librarySource } from './rxe-dmabuf-sources.ts';

/** The files that were built. */
export interface RxeDmabuf {
  /** In place of the kernel's own `rdma_rxe.ko`. */
  module: string;
  /** For NODE_RDMA_LIBIBVERBS. */
  library: string;
}

const module = 'rdma_rxe.ko';
const library = 'libibverbs-dmabuf.so';

const driver: Driver = {
  ...{
    name: 'rxe-dmabuf',
    what: 'rxe with DMA-BUF (a test vehicle)',
    folder: 'rxe',
    config: 'CONFIG_RDMA_RXE',
    module,
  },
  own: JSON.stringify([edits.map((edit) => ({ ...edit, at: edit.at.source })), kernelSource, librarySource]),
  change: async (folder) => {
    for (const edit of edits) {
      const file = join(folder, edit.file);
      await writeFile(file, edited(await readFile(file, 'utf8'), edit));
    }
    await writeFile(join(folder, 'rxe_dmabuf.c'), kernelSource);
  },
  more: async (target, compiler) => {
    const source = join(target, 'library.c');
    await writeFile(source, librarySource);
    // What it does not define is found in the library that it needs.
    const link = ['-Wl,--no-as-needed', '-l:libibverbs.so.1', '-ldl'];
    await runTool(compiler, ['-O2', '-fPIC', '-shared', '-o', join(target, library), source, ...link]);
    await rm(source);
  },
};

/** Builds both into the cache, or finds them there. A changed source makes new ones. */
export async function prepareRxeDmabuf(kernel: Kernel, options: PrepareOptions): Promise<RxeDmabuf> {
  const folder = await prepareDriver(kernel, driver, options);
  return { module: join(folder, module), library: join(folder, library) };
}

/**
 * The text of a file with a change.
 *
 * @throws Error unless the place is there, and once only.
 */
export function edited(before: string, { file, at, place, text }: Edit): string {
  const found = [...before.matchAll(new RegExp(at.source, `g${at.flags}`))];
  const [match] = found;
  if (match === undefined || found.length !== 1) {
    throw new Error(`its rxe is another one: ${file} has ${found.length} places like ${at}, not one`);
  }
  const index = place === 'before' ? match.index : match.index + match[0].length;
  return before.slice(0, index) + text + before.slice(index);
}
