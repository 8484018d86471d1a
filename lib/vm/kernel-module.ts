/**
 * Drivers that the guest's kernel comes without, or without something of theirs: built for it, from its own source, with the
 * compiler that made it. Nothing is installed.
 */
import { createHash } from 'node:crypto';
import { copyFile, cp, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { type Apt, fetchPackages } from './apt.ts';
import { buildOnce, cacheFolder } from './cache.ts';
import { VmError } from './errors.ts';
import type { Kernel, PrepareOptions } from './kernel.ts';
import { findProgram, runTool } from './packages.ts';

/** A driver to build. */
export interface Driver {
  /** What is built, in the cache. */
  name: string;
  /** The same in messages. */
  what: string;
  /** Its folder in the kernel's source. */
  folder: (typeof folders)[number];
  /** What the kernel's configuration would say to have it. */
  config: string;
  /** The module's file. */
  module: string;
  /** What goes into it beside the kernel's source: another text makes another one. */
  own?: string;
  /** Changes its source, which is in this folder. */
  change?: (folder: string) => Promise<void>;
  /** Makes more in the folder of what is built. */
  more?: (target: string, compiler: string) => Promise<void>;
}

/** The drivers whose source is unpacked: the whole source of a kernel has 1.5 GB. */
const folders = ['rxe', 'siw'] as const;

/** Builds a driver into the cache, or finds it there. Returns the folder that has its module, and what `more` has made. */
export async function prepareDriver(kernel: Kernel, driver: Driver, options: PrepareOptions): Promise<string> {
  const { name, what, own } = driver;
  const key = own === undefined ? '' : `-${createHash('sha256').update(own).digest('hex').slice(0, 16)}`;
  return buildOnce(join(cacheFolder(), `${name}-${kernel.release}${key}`), async (scratch) => {
    try {
      await build(kernel, driver, scratch, options);
    } catch (error) {
      options.signal?.throwIfAborted();
      if (error instanceof VmError) throw error;
      const { message, stderr = '' } = error as Error & { stderr?: Buffer | string };
      const complaint = String(stderr).replaceAll(`${scratch}.work/`, '').split('\n').slice(0, 20).join('\n').trim();
      const why = `no ${what} for the kernel ${kernel.release}: ${complaint || message}`;
      throw new VmError('ERR_VM_KERNEL', why, { cause: error });
    }
  });
}

async function build(kernel: Kernel, driver: Driver, target: string, options: PrepareOptions): Promise<void> {
  const { what, folder, config, change, more } = driver;
  const { onProgress = () => {}, signal } = options;
  const source = await prepareSource(kernel, options);
  const headers = headersIn(source, kernel);
  const compiler = await compilerOf(headers);
  await checkPrograms(what, [compiler, 'make', 'strip', 'modinfo']);

  const work = `${target}.work`;
  await cp(join(source, folder), work, { recursive: true });
  await change?.(work);
  onProgress(`building ${what}`);
  // Type information for tracers takes a program more, and nobody traces this.
  const settings = [`M=${work}`, `${config}=m`, 'CONFIG_DEBUG_INFO_BTF_MODULES='];
  await runTool('make', ['-s', '-j', String(availableParallelism()), '-C', headers, ...settings, 'modules'], {
    signal,
  });
  const module = join(work, driver.module);
  const magic = (await runTool('modinfo', ['-F', 'vermagic', module])).toString();
  if (!magic.startsWith(`${kernel.release} `)) throw new Error(`the module was made for ${magic.trim()}`);
  // Without what debuggers read, which is nine tenths of it.
  await runTool('strip', ['--strip-debug', module]);
  await mkdir(target);
  await copyFile(module, join(target, driver.module));
  await more?.(target, compiler);
  await rm(work, { recursive: true });
}

/** Fetches the kernel's headers and the source of its drivers into the cache, or finds them there. */
async function prepareSource(kernel: Kernel, options: PrepareOptions): Promise<string> {
  const path = join(cacheFolder(), `source-${kernel.release}`);
  return buildOnce(path, async (scratch) => {
    const { onProgress = () => {}, signal } = options;
    await checkPrograms('drivers', ['tar', 'xz']);
    await mkdir(scratch);
    onProgress('fetching headers and source of the kernel with apt-get download');
    const debs = `${scratch}.debs`;
    const files = await fetchPackages(debs, (apt) => download(kernel, apt), options);
    const source = files.find((deb) => deb.startsWith('linux-source-'));
    if (source === undefined) throw new Error('apt fetched no source');
    for (const deb of files.filter((deb) => deb !== source)) {
      await runTool('dpkg-deb', ['-x', join(debs, deb), scratch], { signal });
    }
    // It names where it would be if it was installed.
    const makefile = join(headersIn(scratch, kernel), 'Makefile');
    await writeFile(makefile, (await readFile(makefile, 'utf8')).replaceAll(' /usr/src/', ` ${path}/usr/src/`));
    onProgress(`unpacking drivers from ${source}`);
    const pipe =
      'set -o pipefail; deb=$1 to=$2; shift 2; ' +
      'dpkg-deb --fsys-tarfile "$deb" | tar -xO --wildcards "./usr/src/linux-source-*.tar.xz" | ' +
      'tar -xJ -C "$to" --strip-components=4 --wildcards "$@"';
    const wanted = folders.map((folder) => `*/drivers/infiniband/sw/${folder}/*`);
    await runTool('bash', ['--norc', '-c', pipe, 'bash', join(debs, source), scratch, ...wanted], { signal });
    await rm(debs, { recursive: true });
  });
}

function headersIn(source: string, kernel: Kernel): string {
  return join(source, 'usr/src', `linux-headers-${kernel.release}`);
}

/** Everything in the version that the kernel's own headers have: another one may not fit. */
async function download(kernel: Kernel, apt: Apt): Promise<void> {
  const name = `linux-headers-${kernel.release}`;
  const shown = await apt('apt-cache', 'show', '--no-all-versions', name).catch(() => '');
  const version = /^Version: (.*)$/m.exec(shown.toString())?.[1];
  if (version === undefined) {
    throw new Error(
      `apt knows no package ${name}. The archive has moved on: delete ${kernel.root}, and a newer kernel is fetched`,
    );
  }
  const depends = (await apt('apt-cache', 'depends', name)).toString();
  const needed = [...depends.matchAll(/^\s*\|?Depends: (linux-(?:headers|kbuild)-\S+)$/gm)].map((match) => match[1]!);
  const series = /^\d+\.\d+/.exec(kernel.release)?.[0];
  await apt('apt-get', 'download', ...[name, ...needed, `linux-source-${series}`].map((each) => `${each}=${version}`));
}

/** The compiler that made the kernel, as its headers name it. */
async function compilerOf(headers: string): Promise<string> {
  const variables = await readFile(join(headers, '.kernelvariables'), 'utf8').catch(() => '');
  const compiler = /\bgcc-\d+/.exec(variables)?.[0];
  if (compiler === undefined) throw new Error('its headers are not as those of Debian: they name no compiler');
  return compiler;
}

async function checkPrograms(what: string, programs: readonly string[]): Promise<void> {
  const missing: string[] = [];
  for (const program of programs) if (!(await findProgram(program))) missing.push(program);
  if (missing.length === 0) return;
  const compiler = programs.find((program) => program.startsWith('gcc-')) ?? 'gcc';
  throw new VmError(
    'ERR_VM_PACKAGES',
    `to build ${what} takes ${missing.join(', ')}; type: sudo apt-get install -y --no-install-recommends ` +
      `${compiler} make binutils xz-utils kmod`,
  );
}
