/** topo, doctor and softroce on trees of files in the place of sysfs, and with programs in the place of iproute2's. */
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { afterAll, beforeEach, describe, expect, it } from 'vitest';
import { nearestNics } from '../../lib/gpu/index.ts';
import { command } from './command.ts';
import { kinds, machines } from './pci-trees.ts';

const folder = mkdtempSync(join(tmpdir(), 'node-rdma-machine-'));
afterAll(() => rmSync(folder, { recursive: true }));

let sysfs = '';
let bin = '';
beforeEach(() => {
  const own = mkdtempSync(join(folder, 'case-'));
  sysfs = join(own, 'sys');
  bin = join(own, 'bin');
  mkdirSync(join(sysfs, 'class/infiniband'), { recursive: true });
  mkdirSync(bin);
});

function put(path: string, text: string): void {
  mkdirSync(dirname(join(sysfs, path)), { recursive: true });
  writeFileSync(join(sysfs, path), `${text}\n`);
}

function link(path: string, target: string): void {
  mkdirSync(dirname(join(sysfs, path)), { recursive: true });
  symlinkSync(relative(dirname(join(sysfs, path)), join(sysfs, target)), join(sysfs, path));
}

/** A program of the machine; what it is called with goes to the file `calls`. */
function program(name: string, script: string): void {
  writeFileSync(join(bin, name), `#!/bin/sh\necho "${name} $*" >>'${bin}/calls'\n${script}\n`);
  chmodSync(join(bin, name), 0o755);
}

const calls = () => readFileSync(join(bin, 'calls'), 'utf8').split('\n').filter(Boolean);

const run = (...args: string[]) =>
  command(args, { env: { LD_PRELOAD: undefined, SYSFS_PATH: sysfs, PATH: `${bin}:${process.env.PATH}` } });

/** A PCI device at the end of that chain of addresses. */
function pci(chain: string, files: Record<string, string>): string {
  const path = `devices/${chain}`;
  for (const [name, text] of Object.entries(files)) put(`${path}/${name}`, text);
  link(`bus/pci/devices/${chain.split('/').at(-1)}`, path);
  return path;
}

const gpu = (chain: string, numa: string) => pci(chain, { class: '0x030200', vendor: '0x10de', numa_node: numa });

function port(device: string, more: Record<string, string> = {}): void {
  const files: Record<string, string> = {
    state: '4: ACTIVE',
    link_layer: 'Ethernet',
    'gids/0': 'fe80:0000:0000:0000:0e42:a1ff:fe00:0000',
    'gids/1': '0000:0000:0000:0000:0000:0000:0000:0000',
    'gids/3': '0000:0000:0000:0000:0000:ffff:0a63:0001',
    'gid_attrs/types/0': 'IB/RoCE v1',
    'gid_attrs/types/3': 'RoCE v2',
    'gid_attrs/ndevs/0': 'ens1',
    'gid_attrs/ndevs/3': 'ens1',
    ...more,
  };
  for (const [name, text] of Object.entries(files)) put(`class/infiniband/${device}/ports/1/${name}`, text);
}

function nic(device: string, chain: string, numa: string): void {
  link(`class/infiniband/${device}/device`, pci(chain, { class: '0x020000', vendor: '0x15b3', numa_node: numa }));
  port(device);
}

describe('node-rdma topo', () => {
  /** Two sockets; a switch with a GPU and a NIC, a second switch below it, and what hangs on root ports. */
  function machine(): void {
    const [sw, sw2] = [
      'pci0000:10/0000:10:01.0/0000:11:00.0',
      'pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:02.0/0000:20:00.0',
    ];
    gpu(`${sw}/0000:12:00.0/0000:13:00.0`, '0');
    nic('mlx5_0', `${sw}/0000:12:01.0/0000:14:00.0`, '0');
    nic('mlx5_1', `${sw2}/0000:21:00.0/0000:22:00.0`, '0');
    nic('mlx5_2', 'pci0000:10/0000:10:02.0/0000:30:00.0', '0');
    nic('mlx5_3', 'pci0000:40/0000:40:01.0/0000:41:00.0', '0');
    nic('mlx5_10', 'pci0000:80/0000:80:01.0/0000:81:00.0', '1');
    gpu('pci0000:80/0000:80:02.0/0000:82:00.0', '1');
    // A display controller of the board.
    pci('pci0000:00/0000:00:02.0', { class: '0x030000', vendor: '0x1a03', numa_node: '0' });
  }

  it("tells distances in nvidia-smi's terms", async () => {
    machine();
    const { code, stdout } = await run('topo');
    expect(code).toBe(0);
    expect(
      stdout
        .split('\n')
        .slice(0, 3)
        .map((line) => line.split('\t')),
    ).toEqual([
      ['', 'PCI', 'NUMA', 'mlx5_0', 'mlx5_1', 'mlx5_2', 'mlx5_3', 'mlx5_10'],
      ['GPU0', '0000:13:00.0', '0', 'PIX', 'PXB', 'PHB', 'NODE', 'SYS'],
      ['GPU1', '0000:82:00.0', '1', 'SYS', 'SYS', 'SYS', 'SYS', 'PHB'],
    ]);
    expect(stdout).toContain(
      'note: GPU1: no NIC behind its PCIe switch; GPUDirect RDMA goes through the processor (PHB)',
    );
  });

  it.each(machines)('agrees with nvidia-smi on $name', async ({ devices, linkLayer, nics, matrix, hca }) => {
    for (const [chain, kind, numa] of devices) pci(chain, { ...kinds[kind], numa_node: String(numa) });
    for (const [name, address] of Object.entries(nics)) {
      link(`class/infiniband/${name}/device`, `bus/pci/devices/${address}`);
      port(name, { link_layer: linkLayer });
    }
    const { gpus, nccl } = JSON.parse((await run('topo', '--json')).stdout);
    expect(gpus).toHaveLength(devices.filter(([, kind]) => kind === 'nvidia').length);
    for (const [name, row] of Object.entries(matrix)) {
      const { distances } = gpus.find((gpu: { name: string }) => gpu.name === name);
      expect(Object.keys(nics).map((nic) => distances[nic])).toEqual(row.split(' '));
    }
    const variables = Object.fromEntries(nccl.map(({ name, value }: Record<string, string>) => [name, value]));
    const roce = linkLayer === 'Ethernet' ? { NCCL_IB_GID_INDEX: '3' } : {};
    expect(variables).toEqual({ NCCL_IB_HCA: hca, ...roce });
  });

  it('gives the variables of NCCL that follow', async () => {
    machine();
    for (const device of ['mlx5_0', 'mlx5_10'])
      put(`class/infiniband/${device}/tc/1/traffic_class`, 'Global tclass=106');
    const { nccl } = JSON.parse((await run('topo', '--json')).stdout);
    expect(nccl.map(({ name, value }: { name: string; value: string }) => [name, value])).toEqual([
      ['NCCL_IB_HCA', '=mlx5_0:1,mlx5_10:1'],
      ['NCCL_IB_GID_INDEX', '3'],
      ['NCCL_IB_TC', '106'],
    ]);
  });

  it('leaves the GID index to NCCL where ports differ, and out what is down', async () => {
    machine();
    port('mlx5_10', { 'gid_attrs/types/0': 'RoCE v2', 'gids/0': '0000:0000:0000:0000:0000:ffff:0a63:0002' });
    let report = JSON.parse((await run('topo', '--json')).stdout);
    expect(report.nccl.map(({ name }: { name: string }) => name)).toEqual(['NCCL_IB_HCA']);
    expect(report.notes.join()).toContain('leave NCCL_IB_GID_INDEX unset');
    port('mlx5_10', { state: '1: DOWN' });
    report = JSON.parse((await run('topo', '--json')).stdout);
    expect(report.nccl[0].value).toBe('=mlx5_0:1');
  });

  it('names no virtual function beside its NIC, but does where the NIC itself is elsewhere', async () => {
    machine();
    // As in github.com/NVIDIA/nccl/issues/246: on the bus of the NIC, with numbers of their own.
    const below = 'pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0';
    nic('mlx5_4', `${below}/0000:14:03.4`, '0');
    link(`devices/${below}/0000:14:03.4/physfn`, `devices/${below}/0000:14:00.0`);
    let report = JSON.parse((await run('topo', '--json')).stdout);
    expect(report.gpus[0].distances).toMatchObject({ mlx5_0: 'PIX', mlx5_4: 'PIX' });
    expect(report.nccl[0].value).toBe('=mlx5_0:1,mlx5_10:1');
    rmSync(join(sysfs, 'class/infiniband/mlx5_0'), { recursive: true });
    report = JSON.parse((await run('topo', '--json')).stdout);
    expect(report.nccl[0].value).toBe('=mlx5_4:1,mlx5_10:1');
  });

  it('is a function, too: nearestNics()', () => {
    machine();
    const near = (gpu: string) => nearestNics(gpu, { sysfs }).map(({ name, distance }) => `${name} ${distance}`);
    const first = ['mlx5_0 PIX', 'mlx5_1 PXB', 'mlx5_2 PHB', 'mlx5_3 NODE', 'mlx5_10 SYS'];
    expect(near('0000:13:00.0')).toEqual(first);
    expect(near('gpu0')).toEqual(first);
    expect(near('0000:82:00.0')).toEqual(['mlx5_10 PHB', 'mlx5_0 SYS', 'mlx5_1 SYS', 'mlx5_2 SYS', 'mlx5_3 SYS']);
    // Of AMD, which has classes of its own for accelerators.
    pci('pci0000:80/0000:80:01.0/0000:83:00.0', { class: '0x120000', vendor: '0x1002', numa_node: '1' });
    expect(near('0000:83:00.0')[0]).toBe('mlx5_10 PIX');
    expect(() => near('0000:99:00.0')).toThrow(
      "There is no GPU '0000:99:00.0' in the PCI tree; there are: GPU0 (0000:13:00.0), GPU1 (0000:82:00.0), GPU2 (0000:83:00.0)",
    );
    expect(() => nearestNics(0 as never)).toThrow(/gpu must be a string/);
  });

  it('says that there is neither GPU nor NIC', async () => {
    const { code, stdout } = await run('topo');
    expect(stdout).toBe('no GPU was found, and no RDMA device that is a PCI device\n');
    expect(code).toBe(0);
  });
});

describe('node-rdma doctor', () => {
  const quiet = () => {
    for (const name of ['dcb', 'nft', 'iptables', 'ip6tables']) program(name, 'exit 1');
  };

  async function findings(): Promise<Record<string, { level: string; detail: string; fix?: string }>> {
    const { stdout } = await run('doctor', '--json');
    const { findings } = JSON.parse(stdout) as {
      findings: { name: string; level: string; detail: string; fix?: string }[];
    };
    return Object.fromEntries(findings.map((finding) => [finding.name, finding]));
  }

  it('finds nothing wrong with a good port', async () => {
    port('mlx5_0');
    put('class/net/ens1/mtu', '4200');
    put('class/net/ens1/ecn/roce_rp/enable/3', '1');
    put('class/net/ens1/ecn/roce_np/enable/3', '1');
    put('module/ib_core/parameters/netns_mode', 'Y');
    program(
      'dcb',
      'echo "pfc-cap 8 macsec-bypass off delay 0"; echo "prio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off"',
    );
    program('nft', `echo '{"nftables": [{"metainfo": {"version": "1.0.6", "json_schema_version": 1}}]}'`);
    program('iptables', 'exit 1');
    const found = await findings();
    expect(found['mlx5_0/1 link']).toMatchObject({ level: 'ok' });
    expect(found['mlx5_0/1 GIDs']).toMatchObject({
      level: 'ok',
      detail: '2; index 3 (::ffff:10.99.0.1) would be chosen: RoCE v2 of an IPv4 address',
    });
    expect(found['mlx5_0/1 MTU']).toMatchObject({
      level: 'ok',
      detail: 'ens1 has 4200, so packets of RDMA carry 4096 bytes by reckoning: the port could not be asked',
    });
    expect(found['mlx5_0/1 PFC']).toMatchObject({
      level: 'ok',
      detail: 'on for priority 3; the switch must have the same',
    });
    expect(found['mlx5_0/1 ECN']).toMatchObject({ level: 'ok' });
    expect(found['network namespaces']).toMatchObject({ level: 'ok' });
    expect(found.firewall).toMatchObject({ level: 'ok', detail: 'nothing that drops UDP port 4791 was found' });
    expect(calls()).toEqual(['dcb pfc show dev ens1', 'nft -j list ruleset', 'iptables -S']);
  });

  it('has no advice of RoCE for iWARP', async () => {
    port('siw0');
    put('class/infiniband/siw0/node_type', '4: RNIC');
    put('class/net/ens1/mtu', '1500');
    quiet();
    const found = await findings();
    expect(found['siw0/1 addresses']).toMatchObject({ level: 'ok', detail: expect.stringContaining('iWARP') });
    expect(Object.keys(found).filter((name) => /^siw0.*(GIDs|MTU)|firewall/.test(name))).toEqual([]);
  });

  it('names what is wrong, each with the line to type', async () => {
    port('mlx5_0', { state: '1: DOWN', 'gid_attrs/types/3': '' });
    rmSync(join(sysfs, 'class/infiniband/mlx5_0/ports/1/gid_attrs/types/3'));
    put('class/net/ens1/mtu', '1500');
    put('class/net/ens1/ecn/roce_rp/enable/3', '0');
    program('dcb', 'echo "prio-pfc 0:off 1:off 2:off 3:off 4:off 5:off 6:off 7:off"');
    program('nft', 'exit 1');
    program('iptables', 'echo "-P INPUT DROP"');
    const found = await findings();
    expect(found['mlx5_0/1 link']).toMatchObject({ level: 'warning', fix: 'ip link set ens1 up' });
    expect(found['mlx5_0/1 GIDs']).toMatchObject({ level: 'warning', fix: 'ip address add ADDRESS/PREFIX dev ens1' });
    expect(found['mlx5_0/1 MTU']).toMatchObject({ level: 'warning', fix: 'ip link set ens1 mtu 4200' });
    expect(found['mlx5_0/1 MTU']!.detail).toContain('packets of RDMA carry 1024 bytes');
    expect(found['mlx5_0/1 PFC']).toMatchObject({ level: 'warning', fix: 'dcb pfc set dev ens1 prio-pfc 3:on' });
    expect(found['mlx5_0/1 ECN']!.detail).toContain('off for the sender');
    expect(found.firewall).toMatchObject({ level: 'warning', fix: 'iptables -I INPUT -p udp --dport 4791 -j ACCEPT' });
  });

  it('takes a rule for the port of RoCE for good, and one that drops it not', async () => {
    port('mlx5_0');
    quiet();
    expect((await findings()).firewall).toMatchObject({ level: 'ok', detail: expect.stringContaining('run as root') });
    program('iptables', 'echo "-P INPUT DROP"; echo "-A INPUT -p udp -m udp --dport 4791 -j ACCEPT"');
    expect((await findings()).firewall).toMatchObject({ level: 'ok' });
    program('iptables', 'echo "-P INPUT ACCEPT"; echo "-A INPUT -p udp -m udp --dport 4791 -j DROP"');
    expect((await findings()).firewall).toMatchObject({ level: 'warning' });
  });

  it('says with its exit code that RDMA cannot be used, and shows the lines', async () => {
    quiet();
    const { code, stdout } = await run('doctor');
    expect(stdout).toMatch(/^error {3}devices: none in .*\n {8}\S/m);
    expect(code).toBe(1);
  });
});

describe('node-rdma softroce', () => {
  /** As the kernel does it. */
  const rdma = () =>
    program(
      'rdma',
      `cd '${sysfs}/class/infiniband' || exit 1
case "$1 $2" in
"link add") mkdir -p "$3/ports/1" && echo "$7" >"$3/parent" && echo "4: ACTIVE" >"$3/ports/1/state" ;;
"link delete") rm -r "$3" ;;
esac`,
    );
  const netdev = (name: string, uevent = `INTERFACE=${name}`) => put(`class/net/${name}/uevent`, uevent);

  it('adds, lists and removes a device', async () => {
    rdma();
    program('modprobe', ':');
    netdev('eth0');
    netdev('eth1');
    expect(await run('softroce', 'add', 'eth0')).toMatchObject({ code: 0, stdout: 'added rxe0 on eth0, ACTIVE\n' });
    expect(await run('softroce', 'add', 'eth1', 'soft')).toMatchObject({
      code: 0,
      stdout: 'added soft on eth1, ACTIVE\n',
    });
    expect((await run('softroce', 'list')).stdout).toBe(
      'DEVICE\tNETDEV\tSTATE\nrxe0\teth0\tACTIVE\nsoft\teth1\tACTIVE\n',
    );
    expect(await run('softroce', 'remove', 'eth0', '--json')).toMatchObject({ code: 0 });
    expect(JSON.parse((await run('softroce', 'list', '--json')).stdout)).toEqual([
      { name: 'soft', netdev: 'eth1', state: 'ACTIVE' },
    ]);
    expect(calls()).toEqual([
      'modprobe rdma_rxe',
      'rdma link add rxe0 type rxe netdev eth0',
      'modprobe rdma_rxe',
      'rdma link add soft type rxe netdev eth1',
      'rdma link delete rxe0',
    ]);
  });

  it.each([
    [['add', 'nix'], 'no network interface nix: see "ip link"'],
    [['add', '../x'], 'no network interface ../x: see "ip link"'],
    [['add', 'vlan5'], 'vlan5 is a VLAN interface, which Soft-RoCE refuses: add it to the interface below'],
    [['add', 'eth0'], 'eth0 has rxe0 already'],
    [['add', 'eth1', 'rxe0'], 'there is a device rxe0 already'],
    [['remove', 'mlx5_0'], 'mlx5_0 is no Soft-RoCE'],
    [['remove', 'rxe5'], 'no Soft-RoCE rxe5: see "node-rdma softroce list"'],
  ])('%j says what is in the way, before anything is done', async (args, message) => {
    rdma();
    netdev('eth0');
    netdev('eth1');
    netdev('vlan5', 'DEVTYPE=vlan\nINTERFACE=vlan5');
    put('class/infiniband/rxe0/parent', 'eth0');
    put('class/infiniband/mlx5_0/ports/1/state', '4: ACTIVE');
    expect(await run('softroce', ...args)).toMatchObject({ code: 1, stdout: '', stderr: `node-rdma: ${message}\n` });
    expect(calls).toThrow('ENOENT');
  });

  it("gives the program's words when the kernel refuses, and says that it takes root", async () => {
    program('rdma', 'echo "error: Operation not permitted" >&2; exit 1');
    netdev('eth0');
    put('module/rdma_rxe/refcnt', '0');
    const { code, stderr } = await run('softroce', 'add', 'eth0');
    expect(stderr).toBe(
      'node-rdma: rdma link add rxe0 type rxe netdev eth0: error: Operation not permitted; it takes root\n',
    );
    expect(code).toBe(1);
  });

  it('says what to do with a kernel that has no Soft-RoCE, with exit code 3', async () => {
    program('modprobe', 'echo "modprobe: FATAL: Module rdma_rxe not found" >&2; exit 1');
    netdev('eth0');
    const { code, stderr } = await run('softroce', 'add', 'eth0');
    expect(stderr).toContain('try "node-rdma vm"');
    expect(code).toBe(3);
  });
});
