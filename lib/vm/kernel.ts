import { execFile } from 'node:child_process';
import { mkdir, readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { buildOnce, cacheFolder, exists } from './cache.ts';
import { VmError } from './errors.ts';
import { toolEnv } from './packages.ts';

const exec = promisify(execFile);

/** An unpacked kernel: nothing of it is installed on the host. */
export interface Kernel {
  /** As `uname -r` says in the guest. */
  release: string;
  /** The bootable image. */
  image: string;
  /** The folder that holds `lib/modules/RELEASE`. */
  root: string;
}

// The cloud kernels have no rdma_rxe. Ubuntu's name stands last; it is untested.
const metaPackages: Record<string, string[]> = {
  x64: ['linux-image-6.12-amd64', 'linux-image-amd64', 'linux-image-generic'],
  arm64: ['linux-image-6.12-arm64', 'linux-image-arm64', 'linux-image-generic'],
};

/** Fetches a kernel with apt into the cache, or finds it there. Later calls need no network. */
export async function prepareKernel(onProgress: (message: string) => void): Promise<Kernel> {
  const root = await buildOnce(join(cacheFolder(), `kernel-${process.arch}`), async (scratch) => {
    try {
      await mkdir(scratch);
      await fetchKernel(scratch, onProgress);
    } catch (error) {
      throw new VmError('ERR_VM_KERNEL', kernelAdvice(error), { cause: error });
    }
  });
  const release = await findRelease(root);
  return { release, root, image: join(root, 'boot', `vmlinuz-${release}`) };
}

function kernelAdvice(error: unknown): string {
  return `no kernel for the guest: ${error instanceof Error ? error.message : error}
It is fetched with "apt-get download" (nothing is installed). Check that this works: apt-get update && apt-cache depends ${metaPackages[process.arch]?.[1]}`;
}

async function fetchKernel(root: string, onProgress: (message: string) => void): Promise<void> {
  const debs = `${root}.debs`;
  await mkdir(debs);
  onProgress('fetching a kernel with apt-get download');
  // The lists on this machine may be absent (containers) or older than the archive: then fetch lists of our own, which
  // needs no root and changes nothing.
  const ownLists = ['-o', `Dir::State::lists=${join(debs, 'lists')}`, '-o', `Dir::Cache=${join(debs, 'cache')}`];
  try {
    await download(debs, []);
  } catch {
    onProgress('fetching package lists with apt-get update');
    await mkdir(join(debs, 'lists', 'partial'), { recursive: true });
    await mkdir(join(debs, 'cache', 'archives', 'partial'), { recursive: true });
    await exec('apt-get', [...ownLists, 'update'], { env: toolEnv, maxBuffer: 1 << 26 });
    await download(debs, ownLists);
  }
  for (const deb of (await readdir(debs)).filter((name) => name.endsWith('.deb'))) {
    onProgress(`unpacking ${deb}`);
    await exec('dpkg-deb', ['-x', join(debs, deb), root], { env: toolEnv });
  }
  await rm(debs, { recursive: true });
  await exec('depmod', ['-b', root, await findRelease(root)], { env: toolEnv });
}

/** Downloads the packages that hold the kernel and its modules, as the first meta package known to apt names them. */
async function download(folder: string, options: string[]): Promise<void> {
  for (const meta of metaPackages[process.arch] ?? []) {
    const packages = await kernelPackages(meta, options);
    if (packages.length === 0) continue;
    await exec('apt-get', [...options, 'download', ...packages], { cwd: folder, env: toolEnv });
    return;
  }
  throw new Error(`apt knows none of ${metaPackages[process.arch]?.join(', ')}`);
}

/** Debian keeps image and modules in one package, Ubuntu in three that depend on each other. */
async function kernelPackages(meta: string, options: string[]): Promise<string[]> {
  const found = new Set<string>();
  const pending = [meta];
  for (let name = pending.pop(); name !== undefined; name = pending.pop()) {
    const result = await exec('apt-cache', [...options, 'depends', '--important', name], { env: toolEnv }).catch(
      () => null,
    );
    if (result === null) continue;
    for (const dependency of parseDepends(result.stdout)) {
      if (!found.has(dependency)) pending.push(dependency);
      found.add(dependency);
    }
  }
  return [...found];
}

/** The versioned kernel packages in what `apt-cache depends` prints. */
export function parseDepends(text: string): string[] {
  return [...text.matchAll(/^\s*\|?Depends: (linux-(?:image|modules|modules-extra)-\d\S*)$/gm)].map(
    (match) => match[1]!,
  );
}

async function findRelease(root: string): Promise<string> {
  for (const release of await readdir(join(root, 'lib', 'modules'))) {
    if (await exists(join(root, 'boot', `vmlinuz-${release}`))) return release;
  }
  throw new VmError('ERR_VM_KERNEL', `no kernel in ${root}; delete that folder and try again`);
}
