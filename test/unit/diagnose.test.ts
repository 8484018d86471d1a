import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type DiagnoseOptions, diagnose, type Finding, isAvailable } from '../../lib/diagnose.ts';

const library = '/usr/lib/x86_64-linux-gnu';
const modules = '/lib/modules/6.12.0/modules.dep';
const limits = (bytes: string) =>
  `Max open files     1024      4096      files\nMax locked memory     ${bytes}    ${bytes}    bytes\n`;

/** A machine with Soft-RoCE, all of it in order. */
const machine: Record<string, string> = {
  '/etc/os-release': 'NAME="Debian GNU/Linux"\nID=debian\n',
  '/etc/ld.so.conf': 'include /etc/ld.so.conf.d/*.conf\n',
  '/etc/ld.so.conf.d/x86_64-linux-gnu.conf': `# Multiarch support\n${library}\n`,
  [`${library}/libibverbs.so.1`]: '',
  [`${library}/librdmacm.so.1`]: '',
  [`${library}/libibverbs/librxe-rdmav34.so`]: '',
  [`${library}/libibverbs/libmlx5-rdmav34.so`]: '',
  '/etc/libibverbs.d/rxe.driver': 'driver rxe\n',
  '/etc/libibverbs.d/mlx5.driver': 'driver mlx5\n',
  '/proc/sys/kernel/osrelease': '6.12.0\n',
  [modules]: 'kernel/ib_uverbs.ko.xz:\nkernel/rdma_ucm.ko.xz:\nkernel/rdma_rxe.ko.xz:\nkernel/mlx5_ib.ko.xz:\n',
  '/proc/modules': 'rdma_rxe 1 0 - Live\nrdma_ucm 1 0 - Live\nib_uverbs 1 2 - Live\n',
  '/sys/class/infiniband/rxe0/node_type': '1: CA\n',
  '/sys/class/infiniband_verbs/uverbs0/ibdev': 'rxe0\n',
  '/sys/class/infiniband_verbs/abi_version': '6\n',
  '/sys/class/net/eth0/mtu': '1500\n',
  '/dev/infiniband/uverbs0': '',
  '/proc/self/limits': limits('unlimited'),
};

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'node-rdma-diagnose-'));
});
afterEach(() => rmSync(root, { recursive: true }));

/** Writes the files; `undefined` leaves one out. */
function make(files: Record<string, string | undefined>): void {
  for (const [path, text] of Object.entries(files)) {
    if (text === undefined) continue;
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), text);
  }
}

const options = (more: DiagnoseOptions = {}): DiagnoseOptions => ({
  root,
  env: {},
  platform: 'linux',
  arch: 'x64',
  isRoot: false,
  ...more,
});

function find(name: string, more?: DiagnoseOptions): Finding | undefined {
  return diagnose(options(more)).findings.find((finding) => finding.name === name);
}

describe('diagnose', () => {
  it('finds nothing to mend on a complete machine', () => {
    make(machine);
    const { ok, findings } = diagnose(options());
    expect(findings.filter((finding) => !finding.ok)).toEqual([]);
    expect(ok).toBe(true);
    expect(isAvailable(options())).toBe(true);
    expect(find('library libibverbs')?.detail).toBe(`${library}/libibverbs.so.1`);
    expect(find('devices')?.detail).toBe('rxe0 (rxe)');
    expect(find('device rxe0')?.detail).toBe('/dev/infiniband/uverbs0');
  });

  it('names each missing thing on a machine that has nothing, and throws nothing', () => {
    const { ok, findings } = diagnose(options());
    expect(ok).toBe(false);
    expect(findings.filter(({ level }) => level === 'error').map(({ name }) => name)).toEqual([
      'library libibverbs',
      'module ib_uverbs',
      'devices',
    ]);
    expect(isAvailable(options())).toBe(false);
  });

  it('stops at an unsupported platform', () => {
    expect(diagnose(options({ platform: 'darwin', arch: 'arm64' })).findings).toEqual([
      expect.objectContaining({ name: 'platform', level: 'error' }),
    ]);
  });

  it.each([
    ['ID=ubuntu\nID_LIKE=debian', 'sudo apt-get install -y libibverbs1 librdmacm1 ibverbs-providers'],
    ['ID="rocky"\nID_LIKE="rhel centos fedora"', 'sudo dnf install -y libibverbs librdmacm'],
    ['ID="opensuse-leap"\nID_LIKE="suse opensuse"', 'sudo zypper install -y libibverbs1 librdmacm1'],
    ['ID=alpine', 'sudo apk add rdma-core'],
    ['ID=arch', 'sudo pacman -S --noconfirm rdma-core'],
    ['ID=plan9', undefined],
  ])('says how to install the library where os-release has %j', (release, fix) => {
    make({ '/etc/os-release': `${release}\n` });
    expect(find('library libibverbs')?.fix).toBe(fix);
  });

  it('says no sudo to root', () => {
    make({ '/etc/os-release': 'ID=alpine\n' });
    expect(find('library libibverbs', { isRoot: true })?.fix).toBe('apk add rdma-core');
  });

  it('takes a library named by NODE_RDMA_LIBIBVERBS, and says when it does not exist', () => {
    make({ ...machine, '/opt/libibverbs.so': '' });
    const named = (path: string) => find('library libibverbs', { env: { NODE_RDMA_LIBIBVERBS: path } });
    expect(named('/opt/libibverbs.so')).toMatchObject({ ok: true });
    expect(named('/opt/other.so')).toMatchObject({ level: 'error', fix: 'unset NODE_RDMA_LIBIBVERBS' });
  });

  it('finds the library through LD_LIBRARY_PATH', () => {
    make({ ...machine, [`${library}/libibverbs.so.1`]: undefined, '/opt/rdma/lib/libibverbs.so.1': '' });
    expect(find('library libibverbs')?.ok).toBe(false);
    expect(find('library libibverbs', { env: { LD_LIBRARY_PATH: '/opt/rdma/lib' } })?.ok).toBe(true);
  });

  it('names the provider that a device lacks', () => {
    make({ ...machine, [`${library}/libibverbs/librxe-rdmav34.so`]: undefined });
    expect(find('providers')).toMatchObject({ level: 'warning', detail: expect.stringContaining('rxe for rxe0') });
  });

  it('tells a Mellanox device by its PCI id', () => {
    make({
      ...machine,
      '/sys/class/infiniband/ibp3s0/device/modalias': 'pci:v000015B3d00001017sv000015B3sd00000007\n',
    });
    expect(find('devices')?.detail).toBe('ibp3s0 (mlx5), rxe0 (rxe)');
  });

  it('says modprobe for a module that is installed, and which package brings one that is not', () => {
    make({ ...machine, '/proc/modules': '', [modules]: 'kernel/ib_uverbs.ko.xz:\n' });
    expect(find('module ib_uverbs')).toMatchObject({ level: 'error', fix: 'sudo modprobe ib_uverbs' });
    expect(find('module rdma_ucm')).toMatchObject({
      level: 'warning',
      fix: 'sudo apt-get install -y linux-image-$(dpkg --print-architecture)',
    });
  });

  it('knows a module that is built into the kernel', () => {
    make({ ...machine, '/proc/modules': '', '/sys/module/ib_uverbs/initstate': 'live\n' });
    expect(find('module ib_uverbs')?.ok).toBe(true);
  });

  it('proposes Soft-RoCE on the first network interface where there is no device', () => {
    make({ ...machine, '/sys/class/infiniband/rxe0/node_type': undefined, '/sys/class/net/lo/mtu': '65536\n' });
    expect(find('devices')).toMatchObject({
      level: 'error',
      fix: "sudo sh -c 'modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0'",
    });
  });

  it('sees hardware whose RDMA module is not loaded', () => {
    make({
      ...machine,
      '/sys/class/infiniband/rxe0/node_type': undefined,
      '/proc/modules': 'ib_uverbs 1 0 - Live\nmlx5_core 1 0 - Live\n',
    });
    expect(find('devices')).toMatchObject({ level: 'error', fix: 'sudo modprobe mlx5_ib' });
  });

  it('honours SYSFS_PATH as libibverbs does', () => {
    make({ ...machine, '/fake/class/infiniband/mlx5_0/node_type': '1: CA\n' });
    expect(find('devices', { env: { SYSFS_PATH: '/fake/' } })?.detail).toBe('mlx5_0');
  });

  it('says when the device node is missing', () => {
    make({ ...machine, '/dev/infiniband/uverbs0': undefined });
    expect(find('device rxe0')).toMatchObject({ level: 'error', fix: 'sudo udevadm trigger' });
  });

  it('asks for the device node to be passed into a container', () => {
    make({ ...machine, '/dev/infiniband/uverbs0': undefined, '/.dockerenv': '' });
    expect(find('device rxe0')?.fix).toBe('docker run --device=/dev/infiniband/uverbs0 ...');
    expect(find('container')?.ok).toBe(true);
  });

  it('says when the process may not open the device node', () => {
    make(machine);
    const access = () => {
      throw Object.assign(new Error(), { code: 'EACCES' });
    };
    expect(find('device rxe0', { access })).toMatchObject({
      level: 'error',
      detail: expect.stringContaining('EACCES'),
      fix: 'sudo chmod a+rw /dev/infiniband/uverbs0',
    });
  });

  it('warns of a low limit on locked memory, unless CAP_IPC_LOCK lifts it', () => {
    make({ ...machine, '/proc/self/limits': limits('8388608') });
    expect(find('memlock')).toMatchObject({ level: 'warning', detail: expect.stringContaining('8192 KiB') });
    expect(diagnose(options()).ok).toBe(true);
    make({ '/proc/self/status': 'Name:\tnode\nCapEff:\t0000000000004000\n' });
    expect(find('memlock')?.ok).toBe(true);
  });

  describe('with the addon', () => {
    const addon =
      (available: boolean, ...names: string[]) =>
      () => ({
        loadState: () => ({
          available,
          path: 'libibverbs.so.1',
          error: available ? '' : 'libnl-3.so.200: cannot open',
        }),
        getDeviceList: () => names.map((name) => ({ name })),
      });

    it('repeats what the dynamic loader said', () => {
      make(machine);
      expect(find('library libibverbs', { addon: addon(false) })).toMatchObject({
        level: 'error',
        detail: expect.stringContaining('libnl-3.so.200'),
      });
    });

    it('says when the kernel has devices that libibverbs does not list', () => {
      make(machine);
      expect(find('devices', { addon: addon(true) })).toMatchObject({ level: 'error' });
    });

    it('is content with devices that only libibverbs knows', () => {
      expect(isAvailable(options({ addon: addon(true, 'mlx5_0') }))).toBe(true);
    });

    it('passes on why there is no addon', () => {
      const missing = () => {
        throw new Error('no addon for this machine');
      };
      expect(find('library libibverbs', { addon: missing })?.detail).toContain('no addon for this machine');
    });
  });
});
