/**
 * PCI trees of real machines, and what nvidia-smi said of them: facts that their owners published. Only GPUs, NICs and what could
 * be taken for a GPU are kept.
 */

/** A machine. */
export interface Machine {
  name: string;
  /** Where it was published. */
  from: string;
  linkLayer: 'Ethernet' | 'InfiniBand';
  /** Path below /sys/devices, class and vendor, NUMA node. */
  devices: [path: string, kind: 'nvidia' | 'mellanox' | 'aspeed', numaNode: number][];
  /** RDMA devices. */
  nics: Record<string, string>;
  /** `nvidia-smi topo -m`: the row of each GPU, in the columns of `nics`; not of all GPUs where not all were published. */
  matrix: Record<string, string>;
  /** What is nearest to the GPUs. */
  hca: string;
}

/** Class and vendor in sysfs. */
export const kinds = {
  nvidia: { class: '0x030200', vendor: '0x10de' },
  mellanox: { class: '0x020000', vendor: '0x15b3' },
  aspeed: { class: '0x030000', vendor: '0x1a03' },
};

/** A switch of a DGX-2: two GPUs and, on the bus between theirs, a NIC. */
function dgx2(root: string, port: string, up: string, buses: [gpu: string, nic: string, gpu: string], numa: number) {
  const own = `${root}/${port}/0000:${up}:00.0`;
  const down = (Number.parseInt(up, 16) + 1).toString(16);
  const [first, nic, second] = buses;
  return [
    [`${own}/0000:${down}:00.0/0000:${first}:00.0`, 'nvidia', numa],
    // The record has no NICs, and no ports with nothing else below: that the port is 04.0 is ours, its bus is not.
    [`${own}/0000:${down}:04.0/0000:${nic}:00.0`, 'mellanox', numa],
    [`${own}/0000:${down}:10.0/0000:${second}:00.0`, 'nvidia', numa],
  ] as Machine['devices'];
}

const dgx2Roots = {
  '2b': 'pci0000:2b/0000:2b:00.0/0000:2c:00.0',
  '4e': 'pci0000:4e/0000:4e:00.0/0000:4f:00.0',
  ae: 'pci0000:ae/0000:ae:00.0/0000:af:00.0',
  d7: 'pci0000:d7/0000:d7:00.0/0000:d8:00.0',
};

export const machines: Machine[] = [
  {
    name: 'ASUS ESC8000A-E12: two processors, a host bridge for each slot, NICs of two functions',
    from: 'lspci -tv, lspci -vvv and nvidia-smi topo -m in github.com/luigifcruz/stelline, hardware/asus-esc8000a-e12.md',
    linkLayer: 'Ethernet',
    devices: [
      ['pci0000:00/0000:00:01.1/0000:01:00.0', 'nvidia', 0],
      ['pci0000:40/0000:40:01.1/0000:41:00.0', 'nvidia', 0],
      ['pci0000:c0/0000:c0:01.1/0000:c1:00.0', 'nvidia', 1],
      ['pci0000:e0/0000:e0:01.1/0000:e1:00.0', 'nvidia', 1],
      ['pci0000:20/0000:20:03.1/0000:21:00.0', 'mellanox', 0],
      ['pci0000:20/0000:20:03.1/0000:21:00.1', 'mellanox', 0],
      ['pci0000:80/0000:80:01.1/0000:81:00.0', 'mellanox', 1],
      ['pci0000:80/0000:80:01.1/0000:81:00.1', 'mellanox', 1],
      ['pci0000:60/0000:60:05.2/0000:74:00.0/0000:75:00.0', 'aspeed', 0],
    ],
    nics: { mlx5_0: '0000:21:00.0', mlx5_1: '0000:21:00.1', mlx5_2: '0000:81:00.0', mlx5_3: '0000:81:00.1' },
    matrix: {
      GPU0: 'NODE NODE SYS SYS',
      GPU1: 'NODE NODE SYS SYS',
      GPU2: 'SYS SYS NODE NODE',
      GPU3: 'SYS SYS NODE NODE',
    },
    hca: '=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1',
  },
  {
    name: 'Puget Threadripper PRO WRX90: one processor, whose devices have no NUMA node',
    from: 'lspci -tv, lspci -vvv and nvidia-smi topo -m in github.com/luigifcruz/stelline, hardware/puget-threadripper-pro-wrx90.md',
    linkLayer: 'Ethernet',
    devices: [
      ['pci0000:c0/0000:c0:01.1/0000:c1:00.0', 'nvidia', -1],
      ['pci0000:c0/0000:c0:03.1/0000:c2:00.0', 'nvidia', -1],
      ['pci0000:20/0000:20:01.1/0000:21:00.0', 'mellanox', -1],
      ['pci0000:20/0000:20:01.1/0000:21:00.1', 'mellanox', -1],
      ['pci0000:e0/0000:e0:05.2/0000:e1:00.0/0000:e2:00.0', 'aspeed', -1],
    ],
    nics: { mlx5_0: '0000:21:00.0', mlx5_1: '0000:21:00.1' },
    matrix: { GPU0: 'NODE NODE', GPU1: 'NODE NODE' },
    hca: '=mlx5_0:1,mlx5_1:1',
  },
  {
    name: 'IGX Orin: a NIC at one switch, the GPU behind a second one, and a PCI domain of their own',
    from: 'lspci -tv and nvidia-smi topo -mp in github.com/nvidia-holoscan/holohub, tutorials/high_performance_networking',
    linkLayer: 'Ethernet',
    devices: [
      ['pci0005:00/0005:00:00.0/0005:01:00.0/0005:02:02.0/0005:07:00.0/0005:08:00.0/0005:09:00.0', 'nvidia', 0],
      ['pci0005:00/0005:00:00.0/0005:01:00.0/0005:02:00.0/0005:03:00.0', 'mellanox', 0],
      ['pci0005:00/0005:00:00.0/0005:01:00.0/0005:02:00.0/0005:03:00.1', 'mellanox', 0],
      ['pci0001:00/0001:00:00.0/0001:01:00.0/0001:02:04.0/0001:99:00.0/0001:9a:00.0', 'aspeed', 0],
    ],
    nics: { mlx5_0: '0005:03:00.0', mlx5_1: '0005:03:00.1' },
    matrix: { GPU0: 'PXB PXB' },
    hca: '=mlx5_0:1,mlx5_1:1',
  },
  {
    name: 'DGX-2: switches below switches, two host bridges for each processor',
    from: 'the tree: hwloc, tests/hwloc/xml/nvidiaDGX2.xml; nvidia-smi topo -m of another DGX-2: github.com/NVIDIA/nccl-tests/issues/78',
    linkLayer: 'InfiniBand',
    devices: [
      ...dgx2(dgx2Roots['2b'], '0000:2d:04.0', '32', ['34', '35', '36'], 0),
      ...dgx2(dgx2Roots['2b'], '0000:2d:0c.0', '37', ['39', '3a', '3b'], 0),
      ...dgx2(dgx2Roots['4e'], '0000:50:04.0', '55', ['57', '58', '59'], 0),
      ...dgx2(dgx2Roots['4e'], '0000:50:0c.0', '5a', ['5c', '5d', '5e'], 0),
      ...dgx2(dgx2Roots.ae, '0000:b0:04.0', 'b5', ['b7', 'b8', 'b9'], 1),
      ...dgx2(dgx2Roots.ae, '0000:b0:0c.0', 'ba', ['bc', 'bd', 'be'], 1),
      ...dgx2(dgx2Roots.d7, '0000:d9:04.0', 'de', ['e0', 'e1', 'e2'], 1),
      ...dgx2(dgx2Roots.d7, '0000:d9:0c.0', 'e3', ['e5', 'e6', 'e7'], 1),
    ],
    nics: {
      ...{ mlx5_0: '0000:35:00.0', mlx5_1: '0000:3a:00.0', mlx5_2: '0000:58:00.0', mlx5_3: '0000:5d:00.0' },
      ...{ mlx5_4: '0000:b8:00.0', mlx5_5: '0000:bd:00.0', mlx5_6: '0000:e1:00.0', mlx5_7: '0000:e6:00.0' },
    },
    matrix: {
      GPU0: 'PIX PXB NODE NODE SYS SYS SYS SYS',
      GPU1: 'PIX PXB NODE NODE SYS SYS SYS SYS',
      GPU2: 'PXB PIX NODE NODE SYS SYS SYS SYS',
      GPU3: 'PXB PIX NODE NODE SYS SYS SYS SYS',
      GPU4: 'NODE NODE PIX PXB SYS SYS SYS SYS',
    },
    hca: '=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1',
  },
];
