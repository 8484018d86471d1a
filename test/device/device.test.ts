import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { isIPv6 } from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import {
  AtomicCap,
  GidType,
  getDeviceList,
  LinkLayer,
  Mtu,
  NodeType,
  openDevice,
  PortState,
  parseGid,
  TransportType,
} from '../../lib/index.ts';
import { backend, deviceA, deviceB, expectNoLeaks, thrown } from './fixture.ts';

expectNoLeaks();

/** What rdma-core's own program prints of a device, by its name for the value; of the first port. */
function devinfo(device: string): Record<string, string> {
  const lines = execFileSync('ibv_devinfo', ['-v', '-d', device], { encoding: 'utf8' }).split('\n');
  const values: Record<string, string> = {};
  for (const line of lines) {
    const [, name, value] = /^\s*([\w .[\]]+?):\s*(.*)$/.exec(line) ?? [];
    if (name !== undefined && value !== undefined) values[name] ??= value.trim();
  }
  return values;
}

/** A file of the device in sysfs. */
function sysfs(device: string, path: string): string {
  const { ibdevPath } = getDeviceList().find(({ name }) => name === device)!;
  return readFileSync(`${ibdevPath}/${path}`, 'utf8').trim();
}

/** A number as ibv_devinfo prints it: decimal, hexadecimal, or with the encoded value in brackets behind a text. */
const number = (text = ''): number => Number(/\((\d+)\)/.exec(text)?.[1] ?? text);

describe('getDeviceList', () => {
  it('lists both devices as ibv_devinfo does', () => {
    const devices = getDeviceList();
    expect(devices.map(({ name }) => name)).toEqual(expect.arrayContaining([deviceA, deviceB]));
    for (const device of devices) {
      expect(device.guid).toBe(devinfo(device.name).node_guid);
      expect(device.nodeType).toBe(NodeType.CA);
      expect(device.transportType).toBe(TransportType.IB);
      expect(device.devName).toMatch(/^uverbs\d+$/);
      expect(readdirSync(device.ibdevPath)).toContain('node_guid');
    }
  });

  it('gives a new list each time, which the caller may change', () => {
    getDeviceList().length = 0;
    expect(getDeviceList().length).toBeGreaterThanOrEqual(2);
  });
});

describe('openDevice', () => {
  afterEach(() => {
    delete process.env.NODE_RDMA_DEVICE;
  });

  it('opens the device of that name', () => {
    using context = openDevice(deviceB);
    expect(context.name).toBe(deviceB);
    expect(context.closed).toBe(false);
    expect(context.numCompVectors).toBeGreaterThanOrEqual(1);
  });

  it('opens the same device as often as wanted', () => {
    using first = openDevice(deviceA);
    using second = openDevice(deviceA);
    first.close();
    expect(second.queryPort(1).state).toBe(PortState.ACTIVE);
  });

  it('takes the name from NODE_RDMA_DEVICE when none is given', () => {
    process.env.NODE_RDMA_DEVICE = deviceB;
    using context = openDevice();
    expect(context.name).toBe(deviceB);
  });

  it.each([undefined, ''])('takes the first active device when NODE_RDMA_DEVICE is %j', (value) => {
    if (value !== undefined) process.env.NODE_RDMA_DEVICE = value;
    using context = openDevice();
    expect(context.name).toBe(getDeviceList()[0]!.name);
  });

  it('fails with ENODEV that names the device and those that there are', () => {
    const error = thrown(() => openDevice('mlx9_9'));
    expect(error).toMatchObject({ name: 'RdmaError', code: 'ENODEV', errno: -19, syscall: 'ibv_open_device' });
    expect(error.message).toContain("no device 'mlx9_9'");
    expect(error.message).toContain(deviceA);
    expect(error.message).toContain(deviceB);
  });

  it.each(['', 'mlx5_0\0', `${deviceA} `, '../mlx5_0', 'x'.repeat(300)])('finds no device for %j', (name) => {
    expect(thrown(() => openDevice(name)).code).toBe('ENODEV');
  });

  it('names the misspelt device of NODE_RDMA_DEVICE', () => {
    process.env.NODE_RDMA_DEVICE = 'mlx5_7';
    expect(thrown(() => openDevice()).message).toContain("no device 'mlx5_7'");
  });
});

describe('queryDevice', () => {
  it('finds what ibv_devinfo -v finds', () => {
    using context = openDevice(deviceA);
    const attr = context.queryDevice();
    const info = devinfo(deviceA);
    const guid = (value: bigint) =>
      value
        .toString(16)
        .padStart(16, '0')
        .replace(/....(?!$)/g, '$&:');
    expect(attr.fwVer).toBe(info.fw_ver);
    expect(guid(attr.nodeGuid)).toBe(info.node_guid);
    expect(guid(attr.sysImageGuid)).toBe(info.sys_image_guid);
    expect(attr.maxMrSize).toBe(BigInt(info.max_mr_size!));
    expect(attr.pageSizeCap).toBe(BigInt(info.page_size_cap!));
    const { vendorId, vendorPartId, hwVer, maxQp, maxQpWr, deviceCapFlags, maxSge, maxSgeRd, maxCq, maxCqe } = attr;
    const { maxMr, maxPd, maxQpRdAtom, maxEeRdAtom, maxResRdAtom, maxQpInitRdAtom, maxEeInitRdAtom } = attr;
    const { maxEe, maxRdd, maxMw, maxRawIpv6Qp, maxRawEthyQp, maxMcastGrp, maxMcastQpAttach } = attr;
    const { maxTotalMcastQpAttach, maxAh, maxFmr, maxSrq, maxSrqWr, maxSrqSge, maxPkeys } = attr;
    const { localCaAckDelay, physPortCnt } = attr;
    expect({ vendorId, vendorPartId, hwVer, physPortCnt, maxQp, maxQpWr, deviceCapFlags }).toEqual({
      vendorId: number(info.vendor_id),
      vendorPartId: number(info.vendor_part_id),
      hwVer: number(info.hw_ver),
      physPortCnt: number(info.phys_port_cnt),
      maxQp: number(info.max_qp),
      maxQpWr: number(info.max_qp_wr),
      deviceCapFlags: number(info.device_cap_flags),
    });
    expect({ maxSge, maxSgeRd, maxCq, maxCqe, maxMr, maxPd, maxQpRdAtom, maxEeRdAtom, maxResRdAtom }).toEqual({
      maxSge: number(info.max_sge),
      maxSgeRd: number(info.max_sge_rd),
      maxCq: number(info.max_cq),
      maxCqe: number(info.max_cqe),
      maxMr: number(info.max_mr),
      maxPd: number(info.max_pd),
      maxQpRdAtom: number(info.max_qp_rd_atom),
      maxEeRdAtom: number(info.max_ee_rd_atom),
      maxResRdAtom: number(info.max_res_rd_atom),
    });
    expect({ maxQpInitRdAtom, maxEeInitRdAtom, maxEe, maxRdd, maxMw, maxRawIpv6Qp, maxRawEthyQp }).toEqual({
      maxQpInitRdAtom: number(info.max_qp_init_rd_atom),
      maxEeInitRdAtom: number(info.max_ee_init_rd_atom),
      maxEe: number(info.max_ee),
      maxRdd: number(info.max_rdd),
      maxMw: number(info.max_mw),
      maxRawIpv6Qp: number(info.max_raw_ipv6_qp),
      maxRawEthyQp: number(info.max_raw_ethy_qp),
    });
    expect({ maxMcastGrp, maxMcastQpAttach, maxTotalMcastQpAttach, maxAh, maxFmr, maxSrq }).toEqual({
      maxMcastGrp: number(info.max_mcast_grp),
      maxMcastQpAttach: number(info.max_mcast_qp_attach),
      maxTotalMcastQpAttach: number(info.max_total_mcast_qp_attach),
      maxAh: number(info.max_ah),
      maxFmr: number(info.max_fmr),
      maxSrq: number(info.max_srq),
    });
    expect({ maxPkeys, localCaAckDelay }).toEqual({
      maxPkeys: number(info.max_pkeys),
      localCaAckDelay: number(info.local_ca_ack_delay),
    });
    // ibv_devinfo prints these only where there are shared receive queues.
    if (maxSrq > 0) expect([maxSrqWr, maxSrqSge]).toEqual([number(info.max_srq_wr), number(info.max_srq_sge)]);
    expect(attr.atomicCap).toBe(info.atomic_cap === 'ATOMIC_HCA (1)' ? AtomicCap.HCA : number(info.atomic_cap));
  });
});

describe('queryPort', () => {
  it('finds what ibv_devinfo -v finds', () => {
    using context = openDevice(deviceA);
    const port = context.queryPort(1);
    const info = devinfo(deviceA);
    const { state, maxMtu, activeMtu, smLid, lid, lmc, maxMsgSz, badPkeyCntr, qkeyViolCntr } = port;
    const { portCapFlags, maxVlNum, smSl, pkeyTblLen, gidTblLen, subnetTimeout, initTypeReply } = port;
    expect({ state, maxMtu, activeMtu, smLid, lid, lmc, maxMsgSz, badPkeyCntr, qkeyViolCntr }).toEqual({
      state: number(info.state),
      maxMtu: number(info.max_mtu),
      activeMtu: number(info.active_mtu),
      smLid: number(info.sm_lid),
      lid: number(info.port_lid),
      lmc: number(info.port_lmc),
      maxMsgSz: number(info.max_msg_sz),
      badPkeyCntr: number(info.bad_pkey_cntr),
      qkeyViolCntr: number(info.qkey_viol_cntr),
    });
    expect({ portCapFlags, maxVlNum, smSl, pkeyTblLen, gidTblLen, subnetTimeout, initTypeReply }).toEqual({
      portCapFlags: number(info.port_cap_flags),
      maxVlNum: number(info.max_vl_num?.replace(/^invalid value \((\d+)\)/, '$1')),
      smSl: number(info.sm_sl),
      pkeyTblLen: number(info.pkey_tbl_len),
      gidTblLen: number(info.gid_tbl_len),
      subnetTimeout: number(info.subnet_timeout),
      initTypeReply: number(info.init_type_reply),
    });
    expect(port.activeWidth).toBe(number(info.active_width));
    expect(port.activeSpeed).toBe(number(info.active_speed));
    expect(port.physState).toBe(number(info.phys_state));
    expect(port.linkLayer).toBe(LinkLayer.ETHERNET);
    expect(info.link_layer).toBe('Ethernet');
    expect(port.state).toBe(PortState.ACTIVE);
    expect(Object.values(Mtu)).toContain(port.activeMtu);
  });

  it('refuses a port that is not there with EINVAL', () => {
    using context = openDevice(deviceA);
    for (const portNum of [2, 255]) {
      expect(thrown(() => context.queryPort(portNum))).toMatchObject({ code: 'EINVAL', syscall: 'ibv_query_port' });
    }
  });
});

describe('queryGid and queryGidTable', () => {
  it.each([deviceA, deviceB])('finds the table of %s that sysfs shows', (device) => {
    using context = openDevice(device);
    const table = context.queryGidTable();
    expect(table.length).toBeGreaterThanOrEqual(2);
    for (const entry of table) {
      expect(entry.portNum).toBe(1);
      expect(isIPv6(entry.gid)).toBe(true);
      const hex = parseGid(entry.gid).toString('hex');
      expect(hex).toBe(sysfs(device, `ports/1/gids/${entry.gidIndex}`).replaceAll(':', ''));
      const type = sysfs(device, `ports/1/gid_attrs/types/${entry.gidIndex}`);
      expect(type).toBe(entry.gidType === GidType.ROCE_V2 ? 'RoCE v2' : 'IB/RoCE v1');
      expect(context.queryGid(1, entry.gidIndex)).toBe(entry.gid);
    }
    // Ascending, and each place at most once.
    const places = table.map(({ gidIndex }) => gidIndex);
    expect(places).toEqual([...new Set(places)].sort((x, y) => x - y));
  });

  it('leaves empty places out of the table, and shows them as :: by index', () => {
    using context = openDevice(deviceA);
    const taken = new Set(context.queryGidTable().map(({ gidIndex }) => gidIndex));
    const free = [...Array(context.queryPort(1).gidTblLen).keys()].find((i) => !taken.has(i));
    expect(free).toBeDefined();
    expect(context.queryGid(1, free!)).toBe('::');
  });

  it('refuses an index past the table and a port that is not there', () => {
    using context = openDevice(deviceA);
    for (const [portNum, index] of [
      [1, context.queryPort(1).gidTblLen],
      [1, 0x7fff_ffff],
      [9, 0],
    ] as const) {
      const error = thrown(() => context.queryGid(portNum, index));
      expect(error).toMatchObject({ name: 'RdmaError', syscall: 'ibv_query_gid' });
      expect(['EINVAL', 'ENOENT']).toContain(error.code);
    }
  });
});

describe('selectGid', () => {
  afterEach(() => {
    delete process.env.NODE_RDMA_GID_INDEX;
  });

  it('prefers the RoCE v2 GID of an IPv4 address, wherever it stands', () => {
    using a = openDevice(deviceA);
    using b = openDevice(deviceB);
    const expected =
      backend === 'rxe' ? ['::ffff:10.78.0.1', '::ffff:10.78.0.2'] : ['::ffff:10.99.0.1', '::ffff:10.99.0.2'];
    expect([a.selectGid().gid, b.selectGid().gid]).toEqual(expected);
    expect(a.selectGid()).toMatchObject({ gidType: GidType.ROCE_V2, portNum: 1 });
    expect(a.selectGid()).toEqual(
      a.queryGidTable().find(({ gid, gidType }) => gid === expected[0] && gidType === GidType.ROCE_V2),
    );
  });

  it('takes the index that is asked for, by option or by NODE_RDMA_GID_INDEX', () => {
    using context = openDevice(deviceA);
    const other = context.queryGidTable().find(({ gidIndex }) => gidIndex !== context.selectGid().gidIndex)!;
    expect(context.selectGid(1, { gidIndex: other.gidIndex })).toEqual(other);
    process.env.NODE_RDMA_GID_INDEX = String(other.gidIndex);
    expect(context.selectGid()).toEqual(other);
    process.env.NODE_RDMA_GID_INDEX = '';
    expect(context.selectGid()).not.toEqual(other);
  });

  it('refuses a NODE_RDMA_GID_INDEX that is no number, naming it', () => {
    using context = openDevice(deviceA);
    process.env.NODE_RDMA_GID_INDEX = 'three';
    const error = thrown(() => context.selectGid());
    expect(error.code).toBe('ERR_OUT_OF_RANGE');
    expect(error.message).toContain('NODE_RDMA_GID_INDEX');
  });

  it('takes those of one network interface only', () => {
    using context = openDevice(deviceA);
    const { netdev } = context.selectGid();
    if (netdev !== null) expect(context.selectGid(1, { netdev }).netdev).toBe(netdev);
    const error = thrown(() => context.selectGid(1, { netdev: 'none0' }));
    expect(error.code).toBe('ENOENT');
    expect(error.message).toContain('of none0');
  });

  it('says with ENOENT which place is empty and what to check', () => {
    using context = openDevice(deviceA);
    const error = thrown(() => context.selectGid(1, { gidIndex: 200 }));
    expect(error).toMatchObject({ code: 'ENOENT', syscall: 'ibv_query_gid_table' });
    expect(error.message).toContain(`port 1 of ${deviceA} has no usable GID at index 200`);
    expect(error.message).toContain('ip address show');
  });
});

describe('queryPkey', () => {
  it('finds the default partition', () => {
    using context = openDevice(deviceA);
    expect(context.queryPkey(1, 0)).toBe(Number(sysfs(deviceA, 'ports/1/pkeys/0')));
  });

  it('refuses an index past the table', () => {
    using context = openDevice(deviceA);
    const error = thrown(() => context.queryPkey(1, context.queryPort(1).pkeyTblLen));
    expect(error).toMatchObject({ name: 'RdmaError', syscall: 'ibv_query_pkey' });
  });
});
