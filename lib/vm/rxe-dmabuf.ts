/**
 * A test vehicle: an rxe that registers DMA-BUFs, which the kernel's own does not, and a library in front of libibverbs that
 * asks it to. Built for the guest's kernel, from that kernel's own source, with the compiler that made it; nothing is installed.
 */
import { createHash } from 'node:crypto';
import { copyFile, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { type Apt, fetchPackages } from './apt.ts';
import { buildOnce, cacheFolder } from './cache.ts';
import { VmError } from './errors.ts';
import type { Kernel, PrepareOptions } from './kernel.ts';
import { findProgram, runTool } from './packages.ts';
import { type Edit, edits, kernelSource, librarySource } from './rxe-dmabuf-sources.ts';

/** The files that were built. */
export interface RxeDmabuf {
  /** In place of the kernel's own `rdma_rxe.ko`. */
  module: string;
  /** For NODE_RDMA_LIBIBVERBS. */
  library: string;
}

/** Builds both into the cache, or finds them there. A changed source makes new ones. */
export async function prepareRxeDmabuf(kernel: Kernel, options: PrepareOptions): Promise<RxeDmabuf> {
  const sources = JSON.stringify([edits.map((edit) => ({ ...edit, at: edit.at.source })), kernelSource, librarySource]);
  const key = createHash('sha256').update(sources).digest('hex').slice(0, 16);
  const name = `rxe-dmabuf-${kernel.release}-${key}`;
  const folder = await buildOnce(join(cacheFolder(), name), async (scratch) => {
    await mkdir(scratch);
    try {
      await build(kernel, scratch, options);
    } catch (error) {
      options.signal?.throwIfAborted();
      if (error instanceof VmError) throw error;
      const { message, stderr = '' } = error as Error & { stderr?: Buffer | string };
      const complaint = String(stderr).replaceAll(`${scratch}.work/`, '').split('\n').slice(0, 20).join('\n').trim();
      throw failure(kernel, complaint || message, error);
    }
  });
  return { module: join(folder, 'rdma_rxe.ko'), library: join(folder, 'libibverbs-dmabuf.so') };
}

const failure = (kernel: Kernel, why: string, cause?: unknown) =>
  new VmError('ERR_VM_KERNEL', `no rxe with DMA-BUF for the kernel ${kernel.release}: ${why}`, { cause });

async function build(kernel: Kernel, target: string, options: PrepareOptions): Promise<void> {
  const { onProgress = () => {}, signal } = options;
  const work = `${target}.work`;
  const root = join(work, 'root');
  await mkdir(root, { recursive: true });
  onProgress('fetching headers and source of the kernel with apt-get download');
  const debs = await fetchPackages(join(work, 'debs'), (apt) => download(kernel, apt), options);
  const source = debs.find((deb) => deb.startsWith('linux-source-'));
  if (source === undefined) throw failure(kernel, 'apt fetched no source');
  for (const deb of debs.filter((deb) => deb !== source)) {
    await runTool('dpkg-deb', ['-x', join(work, 'debs', deb), root], { signal });
  }
  const headers = join(root, 'usr/src', `linux-headers-${kernel.release}`);
  const compiler = await compilerOf(kernel, headers);
  await checkPrograms(compiler);

  onProgress(`unpacking the source of rxe from ${source}`);
  const rxe = join(work, 'rxe');
  await mkdir(rxe);
  await unpackRxe(join(work, 'debs', source), rxe, signal);
  for (const edit of edits) {
    const file = join(rxe, edit.file);
    await writeFile(file, edited(await readFile(file, 'utf8'), edit));
  }
  await writeFile(join(rxe, 'rxe_dmabuf.c'), kernelSource);

  onProgress('building rxe with DMA-BUF, a test vehicle');
  // It names where it would be if it was installed.
  const makefile = join(headers, 'Makefile');
  await writeFile(makefile, (await readFile(makefile, 'utf8')).replaceAll(' /usr/src/', ` ${join(root, 'usr/src')}/`));
  await runTool(
    'make',
    // Type information for tracers takes a program more, and nobody traces this.
    [
      '-s',
      '-j',
      String(availableParallelism()),
      '-C',
      headers,
      `M=${rxe}`,
      'CONFIG_RDMA_RXE=m',
      'CONFIG_DEBUG_INFO_BTF_MODULES=',
      'modules',
    ],
    { signal },
  );
  const module = join(rxe, 'rdma_rxe.ko');
  const magic = (await runTool('modinfo', ['-F', 'vermagic', module])).toString();
  if (!magic.startsWith(`${kernel.release} `)) throw failure(kernel, `the module was made for ${magic.trim()}`);
  // Without what debuggers read, which is nine tenths of it.
  await runTool('strip', ['--strip-debug', module]);
  await copyFile(module, join(target, 'rdma_rxe.ko'));

  const shim = join(work, 'library.c');
  await writeFile(shim, librarySource);
  const library = join(target, 'libibverbs-dmabuf.so');
  // What it does not define is found in the library that it needs.
  const link = ['-Wl,--no-as-needed', '-l:libibverbs.so.1', '-ldl'];
  await runTool(compiler, ['-O2', '-fPIC', '-shared', '-o', library, shim, ...link], { signal });
  await rm(work, { recursive: true });
}

/** Everything in the version that the kernel's own headers have: another one may not fit. */
async function download(kernel: Kernel, apt: Apt): Promise<void> {
  const name = `linux-headers-${kernel.release}`;
  const shown = await apt('apt-cache', 'show', '--no-all-versions', name).catch(() => '');
  const version = /^Version: (.*)$/m.exec(shown.toString())?.[1];
  if (version === undefined) {
    throw failure(
      kernel,
      `apt knows no package ${name}. The archive has moved on: delete ${kernel.root}, and a newer kernel is fetched`,
    );
  }
  const depends = (await apt('apt-cache', 'depends', name)).toString();
  const needed = [...depends.matchAll(/^\s*\|?Depends: (linux-(?:headers|kbuild)-\S+)$/gm)].map((match) => match[1]!);
  const series = /^\d+\.\d+/.exec(kernel.release)?.[0];
  await apt('apt-get', 'download', ...[name, ...needed, `linux-source-${series}`].map((each) => `${each}=${version}`));
}

/** The compiler that made the kernel, as its headers name it. */
async function compilerOf(kernel: Kernel, headers: string): Promise<string> {
  const variables = await readFile(join(headers, '.kernelvariables'), 'utf8').catch(() => '');
  const compiler = /\bgcc-\d+/.exec(variables)?.[0];
  if (compiler === undefined) throw failure(kernel, 'its headers are not as those of Debian: they name no compiler');
  return compiler;
}

async function checkPrograms(compiler: string): Promise<void> {
  const missing: string[] = [];
  for (const program of [compiler, 'make', 'tar', 'xz', 'strip', 'modinfo']) {
    if (!(await findProgram(program))) missing.push(program);
  }
  if (missing.length === 0) return;
  throw new VmError(
    'ERR_VM_PACKAGES',
    `to build an rxe with DMA-BUF takes ${missing.join(', ')}; type: sudo apt-get install -y --no-install-recommends ` +
      `${compiler} make binutils xz-utils kmod`,
  );
}

/** The folder of rxe alone: the whole source of a kernel has 1.5 GB. */
async function unpackRxe(deb: string, rxe: string, signal: AbortSignal | undefined): Promise<void> {
  const pipe =
    'set -o pipefail; dpkg-deb --fsys-tarfile "$1" | tar -xO --wildcards "./usr/src/linux-source-*.tar.xz" | ' +
    'tar -xJ -C "$2" --strip-components=5 --wildcards "*/drivers/infiniband/sw/rxe/*"';
  await runTool('bash', ['-c', pipe, 'bash', deb, rxe], { signal });
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
