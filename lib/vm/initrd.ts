import { createHash } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { buildOnce, cacheFolder } from './cache.ts';
import { VmError } from './errors.ts';
import { initScript } from './init.ts';
import type { Kernel } from './kernel.ts';
import { busybox, runTool } from './packages.ts';

/** What the guest speaks through: in some kernels built in, in others these come before its first word. */
const portModules = ['virtio_pci', 'virtio_console'];

/** The kernel modules that the guest loads at boot, with whatever they depend on. */
export const guestModules: readonly string[] = [
  '9pnet_virtio',
  '9p',
  'overlay',
  'rdma_rxe',
  'ib_uverbs',
  'rdma_ucm',
  'ib_umad',
  'veth',
];

/**
 * rxe computes its ICRC through the crypto layer: without a driver "rdma link add" fails. Only x86 has pclmul, and newer
 * kernels have neither of them and need neither.
 */
const optionalModules = ['crc32_generic', 'crc32_pclmul'];

/**
 * Builds the initrd for a kernel into the cache, or finds it there. A changed script or module list makes a new one.
 *
 * @param own Modules that were built for it: in place of the kernel's own of the same name, else beside them.
 */
export async function prepareInitrd(
  kernel: Kernel,
  modules: readonly string[] = guestModules,
  own: readonly string[] = [],
): Promise<string> {
  const busyboxBytes = await readFile(busybox);
  const key = createHash('sha256')
    .update(JSON.stringify([kernel.release, portModules, optionalModules, modules, initScript, own]))
    .update(busyboxBytes)
    .digest('hex');
  return buildOnce(join(cacheFolder(), `initrd-${key.slice(0, 16)}.cpio`), async (scratch) => {
    const needed = await Promise.all(own.map(dependencies));
    const first = await loadOrder(kernel, portModules);
    const order = await loadOrder(kernel, [...modules, ...needed.flat()], optionalModules);
    const replaced = order.map((path) => own.find((file) => moduleName(file) === moduleName(path)) ?? path);
    const later = [...new Set([...replaced, ...own])].filter((path) => !first.includes(path));
    const names = (paths: readonly string[]) => Buffer.from(paths.map((path) => `${moduleName(path)}\n`).join(''));
    const entries: CpioEntry[] = [
      { name: 'bin', mode: 0o040755 },
      { name: 'bin/busybox', mode: 0o100755, data: busyboxBytes },
      { name: 'init', mode: 0o100755, data: Buffer.from(initScript) },
      { name: 'modules', mode: 0o040755 },
      { name: 'modules/first', mode: 0o100644, data: names(first) },
      { name: 'modules/order', mode: 0o100644, data: names(later) },
      ...['dev', 'proc', 'sys'].map((name) => ({ name, mode: 0o040755 })),
      // Linux opens it as the standard streams of init, before there is a devtmpfs.
      { name: 'dev/console', mode: 0o020600, device: [5, 1] },
    ];
    for (const path of [...first, ...later]) {
      entries.push({ name: `modules/${moduleName(path)}`, mode: 0o100644, data: await readModule(path) });
    }
    // Not compressed: the guest would unpack it under emulation.
    await writeFile(scratch, cpio(entries));
  });
}

/** The files to insert, in order. Built-in modules have none. */
async function loadOrder(
  kernel: Kernel,
  modules: readonly string[],
  optional: readonly string[] = [],
): Promise<string[]> {
  const list = (names: readonly string[]) =>
    runTool('modprobe', [
      ...['-C', '/dev/null', '-d', kernel.root, '-S', kernel.release],
      ...['--show-depends', '-a', ...names],
    ]);
  // It lists what it has found, even when it fails since something is missing.
  const found = optional.length === 0 ? '' : await list(optional).catch((error: { stdout: Buffer }) => error.stdout);
  const required = await list(modules).catch((error: Error) => {
    throw new VmError('ERR_VM_KERNEL', `the kernel ${kernel.release} lacks a module: ${error.message}`);
  });
  const lines = `${found}${required}`;
  return [...new Set([...lines.matchAll(/^insmod (\S+)/gm)].map((match) => match[1]!))];
}

/** The modules that one needs which no index of the kernel knows. */
async function dependencies(path: string): Promise<string[]> {
  const names = (await runTool('modinfo', ['-F', 'depends', path])).toString().trim();
  return names === '' ? [] : names.split(',');
}

function moduleName(path: string): string {
  return basename(path).replace(/\.(xz|zst|gz)$/, '');
}

async function readModule(path: string): Promise<Buffer> {
  const program = { xz: 'xz', zst: 'zstd', gz: 'gzip' }[path.split('.').pop()!];
  if (program === undefined) return stripSignature(await readFile(path));
  return stripSignature(await runTool(program, ['-dc', path]));
}

/** Without the signature, which takes the guest half a second to check under emulation. */
function stripSignature(module: Buffer): Buffer {
  // At the very end, from include/linux/module_signature.h: signature, struct module_signature, the magic text. The
  // struct has 12 bytes, the last four of which are the length of the signature, big-endian.
  const magic = '~Module signature appended~\n';
  const struct = module.length - magic.length - 12;
  if (!module.subarray(-magic.length).equals(Buffer.from(magic))) return module;
  return module.subarray(0, struct - module.readUInt32BE(struct + 8));
}

/** One member of a cpio archive; `mode` includes the file type, as in `struct stat`. */
export interface CpioEntry {
  name: string;
  mode: number;
  data?: Buffer;
  device?: [major: number, minor: number];
}

/** Packs an archive in the "newc" format, the one that Linux unpacks as an initramfs. */
export function cpio(entries: CpioEntry[]): Buffer {
  const parts: Buffer[] = [];
  const add = (entry: CpioEntry, inode: number) => {
    const data = entry.data ?? Buffer.alloc(0);
    const [major, minor] = entry.device ?? [0, 0];
    const name = Buffer.from(`${entry.name}\0`);
    // inode, mode, uid, gid, links, mtime, size, device, special device, name size, check
    const fields = [inode, entry.mode, 0, 0, 1, 0, data.length, 0, 0, major, minor, name.length, 0];
    const header = Buffer.from(`070701${fields.map((field) => field.toString(16).padStart(8, '0')).join('')}`);
    parts.push(header, name, padding(header.length + name.length), data, padding(data.length));
  };
  for (const [index, entry] of entries.entries()) add(entry, index + 1);
  add({ name: 'TRAILER!!!', mode: 0 }, 0);
  return Buffer.concat(parts);
}

function padding(length: number): Buffer {
  return Buffer.alloc(-length & 3);
}
