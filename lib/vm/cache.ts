import { access, mkdir, mkdtemp, readdir, rename, rm, stat } from 'node:fs/promises';
import { homedir } from 'node:os';
import { basename, dirname, join } from 'node:path';

/** Where kernels and initrds are kept: `$NODE_RDMA_CACHE`, `$XDG_CACHE_HOME/node-rdma` or `~/.cache/node-rdma`. */
export function cacheFolder(env: NodeJS.ProcessEnv = process.env): string {
  if (env.NODE_RDMA_CACHE) return env.NODE_RDMA_CACHE;
  return join(env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'node-rdma');
}

/** Whether a path exists. */
export async function exists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  );
}

/**
 * Makes `path` (a file or a folder) once: `build` fills a scratch path beside it, which then takes the name. So an
 * interrupted build leaves nothing that looks finished, and of two processes at once the first one wins.
 */
export async function buildOnce(path: string, build: (scratch: string) => Promise<void>): Promise<string> {
  if (await exists(path)) return path;
  await mkdir(dirname(path), { recursive: true });
  await sweep(dirname(path));
  const folder = await mkdtemp(join(dirname(path), `.building-${basename(path)}-`));
  try {
    const scratch = join(folder, basename(path));
    await build(scratch);
    await rename(scratch, path).catch(async (error: unknown) => {
      if (!(await exists(path))) throw error;
    });
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
  return path;
}

/** Removes what interrupted builds and older versions have left. */
async function sweep(folder: string): Promise<void> {
  const weekAgo = Date.now() - 7 * 24 * 3600 * 1000;
  for (const name of await readdir(folder)) {
    if (!/^\.building-|^initrd-/.test(name)) continue;
    const path = join(folder, name);
    const changed = await stat(path).catch(() => undefined);
    if (changed !== undefined && changed.mtimeMs < weekAgo) await rm(path, { recursive: true, force: true });
  }
}
