import { execFile } from 'node:child_process';
import { access, constants, readFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { promisify } from 'node:util';
import { VmError } from './errors.ts';

const qemu = {
  x64: { program: 'qemu-system-x86_64', package: 'qemu-system-x86' },
  arm64: { program: 'qemu-system-aarch64', package: 'qemu-system-arm' },
};

/** QEMU for this machine's own architecture; undefined where no guest is made. */
export const qemuProgram = qemu[process.arch as keyof typeof qemu]?.program;

/**
 * The Debian and Ubuntu packages that the VM needs on the host, which is also what its guest sees: QEMU and what builds
 * the initrd, and the RDMA tools a command in the guest may call.
 */
export const vmPackages: readonly string[] = [
  (qemu[process.arch as keyof typeof qemu] ?? qemu.x64).package,
  'busybox-static',
  'kmod',
  'xz-utils',
  'zstd',
  'iproute2',
  'rdma-core',
  'ibverbs-providers',
  'ibverbs-utils',
  'rdmacm-utils',
  'perftest',
  'tcpdump',
];

/** Where programs are sought: an ordinary user's PATH lacks the sbin folders. */
export const searchPath = [...(process.env.PATH ?? '').split(delimiter), '/usr/sbin', '/sbin', '/usr/bin', '/bin'];

/** The environment of the programs that the host side starts. Their output is parsed, so it must not be translated. */
export const toolEnv: NodeJS.ProcessEnv = { ...process.env, LC_ALL: 'C', PATH: searchPath.join(delimiter) };

/** Runs a program of the host to its end and returns its output. The error of one that fails has it as `stdout`. */
export async function runTool(
  program: string,
  args: readonly string[],
  options: { cwd?: string; signal?: AbortSignal | undefined } = {},
): Promise<Buffer> {
  const all = { ...options, encoding: 'buffer', env: toolEnv, maxBuffer: 1 << 26 } as const;
  return (await promisify(execFile)(program, args, all)).stdout;
}

/** The static busybox, the guest's only program until it sees the host's file system. */
export const busybox = '/bin/busybox';

/** Throws ERR_VM_PLATFORM or ERR_VM_PACKAGES unless everything that a boot needs is there. */
export async function checkHost(): Promise<void> {
  if (process.platform !== 'linux' || qemuProgram === undefined) {
    throw new VmError('ERR_VM_PLATFORM', `the VM needs Linux on x64 or arm64, not ${process.platform} ${process.arch}`);
  }
  const missing: string[] = [];
  for (const program of [qemuProgram, 'modprobe', 'depmod', 'xz', 'ip', 'rdma', 'setpriv', 'dpkg-deb']) {
    if (!(await findProgram(program))) missing.push(program);
  }
  // A dynamically linked busybox names its loader, which the initrd does not have.
  const text = await readFile(busybox, 'latin1').catch(() => '');
  if (text === '' || text.includes('/ld-linux') || text.includes('/ld-musl')) missing.push('a static busybox');
  if (missing.length > 0) {
    throw new VmError(
      'ERR_VM_PACKAGES',
      `the VM needs ${missing.join(', ')}; type: sudo apt-get install -y --no-install-recommends ${vmPackages.join(' ')}`,
    );
  }
}

/** Whether a program is there. */
export async function findProgram(name: string): Promise<boolean> {
  for (const folder of searchPath) {
    const found = await access(join(folder, name), constants.X_OK).then(
      () => true,
      () => false,
    );
    if (found) return true;
  }
  return false;
}
