import { mkdir, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { PrepareOptions } from './kernel.ts';
import { runTool } from './packages.ts';

/** Runs one of apt's programs in the folder for downloads. */
export type Apt = (program: string, ...args: string[]) => Promise<Buffer>;

/**
 * Has `download` fetch packages into a new folder, with the package lists of this machine; where that fails, once more with
 * lists fetched for it, which `isFresh` tells: what those do not know does not exist.
 *
 * @returns The names of the files.
 */
export async function fetchPackages(
  folder: string,
  download: (apt: Apt, isFresh: boolean) => Promise<void>,
  { onProgress = () => {}, signal }: PrepareOptions,
): Promise<string[]> {
  await mkdir(folder);
  const apt: Apt = (program, ...args) => runTool(program, args, { cwd: folder, signal });
  try {
    await download(apt, false);
  } catch {
    signal?.throwIfAborted();
    // The lists on this machine may be absent (containers), of a part of the archive, or older than it: then fetch lists of
    // our own, which needs no root and changes nothing.
    onProgress('fetching package lists with apt-get update');
    await mkdir(join(folder, 'lists', 'partial'), { recursive: true });
    await mkdir(join(folder, 'cache', 'archives', 'partial'), { recursive: true });
    const own = ['-o', `Dir::State::lists=${join(folder, 'lists')}`, '-o', `Dir::Cache=${join(folder, 'cache')}`];
    const ownApt: Apt = (program, ...args) => apt(program, ...own, ...args);
    await ownApt('apt-get', 'update');
    await download(ownApt, true);
  }
  return (await readdir(folder)).filter((name) => name.endsWith('.deb'));
}
