import { readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { type Apt, fetchPackages } from './apt.ts';
import { buildOnce, cacheFolder, exists } from './cache.ts';
import { VmError } from './errors.ts';
import { runTool } from './packages.ts';

/** An unpacked kernel: nothing of it is installed on the host. */
export interface Kernel {
  /** As `uname -r` says in the guest. */
  release: string;
  /** The bootable image. */
  image: string;
  /** The folder that holds `lib/modules/RELEASE`. */
  root: string;
}

// By preference: the first is what the drivers that are built for the guest are made for. The cloud kernels have no
// rdma_rxe. Ubuntu's name stands last. Untested: Ubuntu, and arm64.
const metaPackages: Record<string, string[]> = {
  x64: ['linux-image-6.12-amd64', 'linux-image-amd64', 'linux-image-generic'],
  arm64: ['linux-image-6.12-arm64', 'linux-image-arm64', 'linux-image-generic'],
};

/** How the fetching of a kernel is watched and ended. */
export interface PrepareOptions {
  /** Called with what takes time. */
  onProgress?: (message: string) => void;
  /** Ends the work; the promise then rejects with the signal's reason. */
  signal?: AbortSignal;
}

/** Fetches a kernel with apt into the cache, or finds it there. Later calls need no network. */
export async function prepareKernel(options: PrepareOptions): Promise<Kernel> {
  const root = await buildOnce(join(cacheFolder(), `kernel-${process.arch}`), async (scratch) => {
    try {
      await fetchKernel(scratch, options);
    } catch (error) {
      options.signal?.throwIfAborted();
      throw new VmError('ERR_VM_KERNEL', kernelAdvice(error), { cause: error });
    }
  });
  const release = await findRelease(root);
  return { release, root, image: join(root, 'boot', `vmlinuz-${release}`) };
}

function kernelAdvice(error: unknown): string {
  return `no kernel for the guest: ${error instanceof Error ? error.message : error}
It is fetched with "apt-get download" (nothing is installed). See that this works: apt-get update && apt-get download ${metaPackages[process.arch]?.[1]}`;
}

async function fetchKernel(root: string, options: PrepareOptions): Promise<void> {
  const { onProgress = () => {}, signal } = options;
  const debs = `${root}.debs`;
  onProgress('fetching a kernel with apt-get download');
  for (const deb of await fetchPackages(debs, download, options)) {
    onProgress(`unpacking ${deb}`);
    await runTool('dpkg-deb', ['-x', join(debs, deb), root], { signal });
  }
  await rm(debs, { recursive: true });
  await runTool('depmod', ['-b', root, await findRelease(root)], { signal });
}

/**
 * Downloads the packages that hold the kernel and its modules, as the first meta package known to apt names them. Lists that
 * do not have the best one may be of a part of the archive only, so another one is taken by fresh lists alone.
 */
async function download(apt: Apt, isFresh: boolean): Promise<void> {
  const metas = metaPackages[process.arch] ?? [];
  const allowed = isFresh ? metas : metas.slice(0, 1);
  for (const meta of allowed) {
    const packages = await kernelPackages(meta, apt);
    if (packages.length === 0) continue;
    await apt('apt-get', 'download', ...packages);
    return;
  }
  throw new Error(`apt knows none of ${allowed.join(', ')}`);
}

/** Debian keeps image and modules in one package, Ubuntu in three that depend on each other. */
async function kernelPackages(meta: string, apt: Apt): Promise<string[]> {
  const found = new Set<string>();
  const pending = [meta];
  for (let name = pending.pop(); name !== undefined; name = pending.pop()) {
    // It fails for a package that apt does not know.
    const text = await apt('apt-cache', 'depends', '--important', name).catch(() => '');
    for (const dependency of parseDepends(text.toString())) {
      if (!found.has(dependency)) pending.push(dependency);
      found.add(dependency);
    }
  }
  return [...found];
}

/** The versioned kernel packages in what `apt-cache depends` prints. */
export function parseDepends(text: string): string[] {
  const pattern = /^\s*\|?Depends: (linux-(?:image|modules|modules-extra)-\d\S*)$/gm;
  return [...text.matchAll(pattern)].map((match) => match[1]!);
}

async function findRelease(root: string): Promise<string> {
  for (const release of await readdir(join(root, 'lib', 'modules'))) {
    if (await exists(join(root, 'boot', `vmlinuz-${release}`))) return release;
  }
  throw new VmError('ERR_VM_KERNEL', `no kernel in ${root}; delete that folder and try again`);
}
