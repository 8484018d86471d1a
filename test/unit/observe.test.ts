import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import {
  counterMeaning,
  counterRates,
  createExporter,
  formatPrometheus,
  judgeCounters,
  type PortCounters,
  parseEthtool,
  readCounters,
} from '../../lib/observe/index.ts';

const sysfs = mkdtempSync(join(tmpdir(), 'node-rdma-observe-'));
afterAll(() => rmSync(sysfs, { recursive: true }));

/** Writes files of sysfs. */
function put(files: Record<string, string>): void {
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(dirname(join(sysfs, path)), { recursive: true });
    writeFileSync(join(sysfs, path), `${text}\n`);
  }
}

const mlx5 = 'class/infiniband/mlx5_0';
const port = `${mlx5}/ports/1`;

// The names are those of the driver mlx5_ib and of the kernel's port counters; the places too.
beforeAll(() =>
  put({
    [`${mlx5}/device/uevent`]: 'DRIVER=mlx5_core\nPCI_CLASS=20000',
    [`${port}/gid_attrs/ndevs/0`]: 'ens1f0np0',
    [`${port}/hw_counters/lifespan`]: '10',
    [`${port}/hw_counters/np_ecn_marked_roce_packets`]: '1000',
    [`${port}/hw_counters/np_cnp_sent`]: '40',
    [`${port}/hw_counters/out_of_sequence`]: '0',
    [`${port}/counters/port_xmit_data`]: '18446744073709551615',
    [`${port}/counters/VL15_dropped`]: 'N/A (no PMA)',
    'class/infiniband/rxe0/parent': 'eth0',
    'class/infiniband/rxe0/ports/1/hw_counters/rcvd_seq_err': '7',
  }),
);

describe('readCounters', () => {
  it('reads the counters of all ports from sysfs, exact to 64 bits, without settings and what is no number', async () => {
    const [mlx, rxe] = await readCounters({ sysfs });
    expect(mlx).toMatchObject({ device: 'mlx5_0', portNum: 1, netdev: 'ens1f0np0', driver: 'mlx5_core' });
    expect(mlx!.counters.map(({ source, name, value }) => [source, name, value])).toEqual([
      ['hw', 'np_cnp_sent', 40n],
      ['hw', 'np_ecn_marked_roce_packets', 1000n],
      ['hw', 'out_of_sequence', 0n],
      ['port', 'port_xmit_data', 18446744073709551615n],
    ]);
    expect(rxe).toMatchObject({ device: 'rxe0', netdev: 'eth0', driver: undefined });
  });

  it('keeps to one device, and gives nothing where there is none', async () => {
    expect((await readCounters({ sysfs, device: 'rxe0' })).map(({ device }) => device)).toEqual(['rxe0']);
    expect(await readCounters({ sysfs, device: 'nix' })).toEqual([]);
    expect(await readCounters({ sysfs: '/nonexistent' })).toEqual([]);
  });
});

describe('parseEthtool', () => {
  it('reads the port and its priorities, not single rings', () => {
    const text =
      'NIC statistics:\n     rx_packets: 5\n     rx0_packets: 3\n     ch1_poll: 9\n     rx_prio3_pause: 12\n' +
      '     tx_prio3_pause_duration: 18446744073709551615\n     rx_discards_phy: 0\n     rx_queue_0_packets: 4\n';
    expect(parseEthtool(text).map(({ name, value }) => [name, value])).toEqual([
      ['rx_packets', 5n],
      ['rx_prio3_pause', 12n],
      ['tx_prio3_pause_duration', 18446744073709551615n],
      ['rx_discards_phy', 0n],
    ]);
  });
});

describe('counterMeaning', () => {
  it.each([
    ['np_ecn_marked_roce_packets', 'designed'],
    ['np_cnp_sent', 'designed'],
    ['rp_cnp_handled', 'designed'],
    ['rp_cnp_ignored', 'loss'],
    ['out_of_sequence', 'loss'],
    ['packet_seq_err', 'loss'],
    ['local_ack_timeout_err', 'loss'],
    ['roce_adp_retrans', 'loss'],
    ['out_of_buffer', 'software'],
    ['rx_prio3_pause', 'pause'],
    ['tx_prio5_pause_duration', 'pause'],
    ['rx_prio3_buf_discard', 'loss'],
    ['rx_discards_phy', 'loss'],
    ['rx_crc_errors_phy', 'link'],
    ['rx_prio3_discards', 'loss'],
    ['rx_prio3_pause_transition', 'pause'],
    ['rx_global_pause_transition', 'pause'],
    ['port_rcv_constraint_errors', 'loss'],
    ['port_xmit_constraint_errors', 'loss'],
    ['resp_cqe_flush_error', 'traffic'],
    ['resp_cqe_error', 'software'],
    ['rcvd_seq_err', 'loss'],
    ['sent_pkts', 'traffic'],
  ])('knows %s as %s', (name, kind) => expect(counterMeaning(name)?.kind).toBe(kind));

  it('knows nothing of others', () => expect(counterMeaning('rx_vport_rdma_frobs')).toBeUndefined());
});

/** A port with these counters, at that second. */
function at(seconds: number, values: Record<string, number | bigint>): PortCounters {
  const counters = Object.entries(values).map(([name, value]) => ({
    ...{ name, source: 'hw' as const, value: BigInt(value), meaning: counterMeaning(name) },
  }));
  return { device: 'mlx5_0', portNum: 1, netdev: 'eth0', driver: 'mlx5_core', time: seconds * 1000, counters };
}

const judged = (change: Record<string, number>, seconds = 1) =>
  judgeCounters(counterRates(at(0, {}), at(seconds, change))).map(({ level, text }) => [level, text.split(/[:.,]/)[0]]);

describe('counterRates', () => {
  it('gives the change and the rate of what has changed', () => {
    const rates = counterRates(at(10, { sent_pkts: 100, rcvd_pkts: 5 }), at(12, { sent_pkts: 300, rcvd_pkts: 5 }));
    expect(rates.map(({ name, change, perSecond }) => [name, change, perSecond])).toEqual([['sent_pkts', 200n, 100]]);
  });

  it('counts from 0 when a counter was reset', () => {
    const [rate] = counterRates(at(0, { sent_pkts: 2n ** 63n }), at(1, { sent_pkts: 3 }));
    expect(rate).toMatchObject({ change: 3n, perSecond: 3 });
  });

  it('is exact at the edge of 64 bits', () => {
    const [rate] = counterRates(at(0, { sent_pkts: 2n ** 64n - 3n }), at(1, { sent_pkts: 2n ** 64n - 1n }));
    expect(rate!.change).toBe(2n);
  });
});

describe('judgeCounters', () => {
  it('finds nothing wrong with traffic', () => expect(judged({ sent_pkts: 1e6, port_xmit_data: 1e9 })).toEqual([]));

  it('takes ECN marks and CNPs for normal', () => {
    expect(judged({ np_ecn_marked_roce_packets: 1e5, rp_cnp_handled: 1e4 })).toEqual([
      ['note', 'congestion control works as designed'],
    ]);
  });

  it('warns of ignored CNPs', () => {
    expect(judged({ rp_cnp_ignored: 1 })).toEqual([['warning', 'CNPs are ignored']]);
  });

  it('tells sustained pauses from bursts', () => {
    expect(judged({ rx_prio3_pause: 9 })).toEqual([['note', 'pauses now and then']]);
    expect(judged({ rx_prio3_pause: 10 })).toEqual([['warning', 'sustained pauses']]);
    expect(judged({ rx_prio3_pause: 10 }, 10)).toEqual([['note', 'pauses now and then']]);
    expect(judged({ rx_prio3_pause: 1, rx_prio3_pause_duration: 10_000 })).toEqual([['warning', 'sustained pauses']]);
  });

  it('takes pauses that this host sends for a host that is too slow, not for congestion control that loses', () => {
    const slow = [['warning', 'this host pauses its switch']];
    expect(judged({ tx_prio3_pause: 9 })).toEqual([['note', 'pauses now and then']]);
    expect(judged({ tx_prio3_pause: 10 })).toEqual(slow);
    expect(judged({ tx_prio3_pause: 1, tx_prio3_pause_duration: 10_000 })).toEqual(slow);
    expect(judged({ tx_global_pause: 10 })).toEqual(slow);
    expect(judged({ tx_pause_storm_warning_events: 1 })).toEqual(slow);
    expect(judged({ rx_prio3_pause: 10, tx_prio3_pause: 10 })).toEqual([['warning', 'sustained pauses'], ...slow]);
  });

  it('makes no pauses of the ticks in which data waited', () => {
    expect(judged({ port_xmit_wait: 1e9 })).toEqual([['note', 'data waited to be sent']]);
    expect(judged({ port_xmit_wait: 1e9, rx_prio3_pause: 1 })).toEqual([
      ['note', 'pauses now and then'],
      ['note', 'data waited to be sent'],
    ]);
  });

  it('takes sequence errors for drops', () => {
    expect(judged({ out_of_sequence: 1 })).toEqual([['warning', 'packets are lost']]);
    expect(judged({ local_ack_timeout_err: 1 })).toEqual([['warning', 'packets are lost']]);
  });

  it('tells programs from the network', () => {
    expect(judged({ out_of_buffer: 1 })).toEqual([['warning', 'a program is at fault']]);
    expect(judged({ send_rnr_err: 1 })).toEqual([['warning', 'a program is at fault']]);
  });

  it.each(['rnr_nak_retry_err', 'rcvd_rnr_err', 'req_rnr_retries_exceeded', 'retry_rnr_exceeded_err'])(
    'takes %s for receives that the peer posts too late',
    (name) => expect(judged({ [name]: 1 })).toEqual([['warning', "the peer's program posts its receives too late"]]),
  );

  it('takes requests that are flushed when a queue pair ends for ordinary, not errors beyond them', () => {
    expect(judged({ resp_cqe_flush_error: 16, req_cqe_flush_error: 1 })).toEqual([]);
    expect(judged({ resp_cqe_flush_error: 16, resp_cqe_error: 16 })).toEqual([]);
    const atFault = [['warning', 'a program is at fault']];
    expect(judged({ resp_cqe_flush_error: 16, resp_cqe_error: 17 })).toEqual(atFault);
    expect(judged({ resp_cqe_flush_error: 16, req_cqe_error: 1 })).toEqual(atFault);
  });
});

describe('formatPrometheus', () => {
  it('gives a metric for each counter, and the priority as a label', () => {
    const ethtool = parseEthtool('     rx_prio3_pause: 12\n     rx_prio4_pause: 2\n');
    const port = at(0, { np_cnp_sent: 18446744073709551615n });
    const text = formatPrometheus([{ ...port, counters: [...port.counters, ...ethtool] }]);
    expect(text).toBe(
      `# HELP rdma_port_info A port of an RDMA device.
# TYPE rdma_port_info gauge
rdma_port_info{device="mlx5_0",port="1",netdev="eth0",driver="mlx5_core"} 1
# HELP rdma_hw_np_cnp_sent_total CNPs sent: senders were asked to slow down (packets)
# TYPE rdma_hw_np_cnp_sent_total counter
rdma_hw_np_cnp_sent_total{device="mlx5_0",port="1",netdev="eth0"} 18446744073709551615
# HELP rdma_ethtool_rx_prio_pause_total ${help('rx_prio3_pause')}
# TYPE rdma_ethtool_rx_prio_pause_total counter
rdma_ethtool_rx_prio_pause_total{device="mlx5_0",port="1",netdev="eth0",priority="3"} 12
rdma_ethtool_rx_prio_pause_total{device="mlx5_0",port="1",netdev="eth0",priority="4"} 2
`,
    );
  });

  it('leaves out numbers of ethtool whose meaning is not known, which may be no counters', () => {
    const port = at(0, { vendor_secret: 8 });
    const text = formatPrometheus([
      { ...port, counters: [...port.counters, ...parseEthtool('     peer_ifindex: 2\n     tx_discards_phy: 0\n')] },
    ]);
    expect(text).toContain('rdma_hw_vendor_secret_total{device="mlx5_0",port="1",netdev="eth0"} 8\n');
    expect(text).toContain('rdma_ethtool_tx_discards_phy_total{device="mlx5_0",port="1",netdev="eth0"} 0\n');
    expect(text).not.toContain('peer_ifindex');
  });

  const help = (name: string) => {
    const { text, unit } = counterMeaning(name)!;
    return `${text[0]!.toUpperCase()}${text.slice(1)} (${unit})`;
  };
});

describe('createExporter', () => {
  const server = createExporter({ sysfs });
  afterEach(() => server.close());

  it('gives the counters at /metrics, and says where they are elsewhere', async () => {
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const metrics = await fetch(`${base}/metrics`);
    expect(metrics.headers.get('content-type')).toBe('text/plain; version=0.0.4; charset=utf-8');
    expect(await metrics.text()).toContain(
      'rdma_hw_np_ecn_marked_roce_packets_total{device="mlx5_0",port="1",netdev="ens1f0np0"} 1000\n',
    );
    expect((await fetch(base)).status).toBe(200);
    expect((await fetch(`${base}/other`)).status).toBe(404);
    expect((await fetch(`${base}/metrics`, { method: 'POST' })).status).toBe(405);
  });
});

describe('the files for Prometheus and Grafana', () => {
  const read = (name: string) => readFileSync(new URL(`../../docs/${name}`, import.meta.url), 'utf8');

  // What mlx5_ib, rdma_rxe, the kernel for a port, and mlx5_core for its interface have.
  const names = {
    hw: `duplicate_request implied_nak_seq_err local_ack_timeout_err np_cnp_sent np_ecn_marked_roce_packets out_of_buffer
      out_of_sequence packet_seq_err req_cqe_error req_cqe_flush_error req_remote_access_errors req_remote_invalid_request
      req_rnr_retries_exceeded req_transport_retries_exceeded resp_cqe_error resp_cqe_flush_error resp_local_length_error
      resp_remote_access_errors rnr_nak_retry_err roce_adp_retrans roce_adp_retrans_to roce_slow_restart
      roce_slow_restart_cnps roce_slow_restart_trans rp_cnp_handled rp_cnp_ignored rx_atomic_requests rx_dct_connect
      rx_icrc_encapsulated rx_read_requests rx_write_requests
      ack_deferred completer_retry_err link_downed out_of_seq_request rcvd_pkts rcvd_rnr_err rcvd_seq_err rdma_recvs
      rdma_sends retry_exceeded_err retry_rnr_exceeded_err send_err send_rnr_err sent_pkts`,
    port: `VL15_dropped excessive_buffer_overrun_errors link_downed link_error_recovery local_link_integrity_errors
      multicast_rcv_packets multicast_xmit_packets port_rcv_constraint_errors port_rcv_data port_rcv_errors
      port_rcv_packets port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_constraint_errors
      port_xmit_data port_xmit_discards port_xmit_packets port_xmit_wait symbol_error unicast_rcv_packets
      unicast_xmit_packets`,
    ethtool: `link_down_events_phy rx_crc_errors_phy rx_discards_phy rx_out_of_buffer rx_pause_ctrl_phy rx_symbol_err_phy
      tx_discards_phy tx_pause_ctrl_phy tx_pause_storm_error_events tx_pause_storm_warning_events rx_global_pause
      rx_global_pause_duration rx_global_pause_transition tx_global_pause tx_global_pause_duration rx_prio3_buf_discard
      rx_prio3_bytes rx_prio3_cong_discard rx_prio3_discards rx_prio3_marked rx_prio3_packets rx_prio3_pause
      rx_prio3_pause_duration rx_prio3_pause_transition tx_prio3_bytes tx_prio3_packets tx_prio3_pause
      tx_prio3_pause_duration`,
  };
  const counters = Object.entries(names).flatMap(([source, text]) =>
    text.split(/\s+/).map((name) => ({
      ...{ name, source: source as keyof typeof names, value: 0n },
      meaning: counterMeaning(name),
    })),
  );

  it('all counters of the drivers have a meaning', () => {
    expect(counters.filter(({ meaning }) => meaning === undefined).map(({ name }) => name)).toEqual([]);
  });

  it.each(['alerts.yml', 'alerts.test.yml', 'grafana-dashboard.json'])('%s asks for metrics that there are', (name) => {
    const given = new Set(formatPrometheus([{ ...at(0, {}), counters }]).match(/^rdma_\w+/gm));
    const metrics = read(`prometheus/${name}`).match(/\brdma_[a-z0-9_]+/g) ?? [];
    expect(metrics.length).toBeGreaterThan(8);
    expect(metrics.filter((metric) => !given.has(metric))).toEqual([]);
  });

  it('each alert has tests of firing and of silence', () => {
    const alerts = [...read('prometheus/alerts.yml').matchAll(/- alert: (\w+)/g)].map(([, alert]) => alert!);
    const tests = read('prometheus/alerts.test.yml').split('\n');
    expect(alerts.length).toBeGreaterThan(8);
    for (const alert of alerts) {
      expect(tests).toContainEqual(expect.stringMatching(`- name: ${alert} fires`));
      expect(tests).toContainEqual(expect.stringMatching(`- name: ${alert} is silent`));
    }
  });

  it('the dashboard is JSON with a panel for each concern', () => {
    const { panels, title } = JSON.parse(read('prometheus/grafana-dashboard.json'));
    expect(title).toBe('RDMA and RoCE');
    expect(panels.length).toBeGreaterThanOrEqual(6);
  });
});
