import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { command, jsonLines, start } from './command.ts';

const folder = mkdtempSync(join(tmpdir(), 'node-rdma-counters-'));
afterAll(() => rmSync(folder, { recursive: true }));

const port = join(folder, 'sys/class/infiniband/mlx5_0/ports/1');

function put(path: string, text: string): void {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, `${text}\n`);
}

beforeAll(() => {
  put(join(port, 'gid_attrs/ndevs/0'), 'ens1');
  put(join(port, 'hw_counters/np_ecn_marked_roce_packets'), '5');
  put(join(port, 'hw_counters/out_of_sequence'), '0');
  put(join(port, 'hw_counters/vendor_secret'), '8');
  const ethtool = join(folder, 'bin/ethtool');
  put(ethtool, '#!/bin/sh\n[ "$*" = "-S ens1" ] || exit 1\nprintf "NIC statistics:\\n     rx_prio3_pause: 12\\n"');
  chmodSync(ethtool, 0o755);
});

// A preloaded model would set SYSFS_PATH to its own.
const env = {
  LD_PRELOAD: undefined,
  SYSFS_PATH: join(folder, 'sys'),
  PATH: `${join(folder, 'bin')}:${process.env.PATH}`,
};

describe('node-rdma counters', () => {
  it('shows what is not 0 and has a meaning, from sysfs and ethtool', async () => {
    const { code, stdout } = await command(['counters'], { env });
    expect(code).toBe(0);
    expect(stdout.split('\n').map((line) => line.split('\t').slice(0, 5))).toEqual([
      ['PORT', 'SOURCE', 'COUNTER', 'VALUE', 'KIND'],
      ['mlx5_0/1', 'hw', 'np_ecn_marked_roce_packets', '5', 'designed'],
      ['mlx5_0/1', 'ens1', 'rx_prio3_pause', '12', 'pause'],
      [''],
    ]);
  });

  it('shows everything with --all, and as JSON', async () => {
    const { stdout } = await command(['counters', 'mlx5_0', '--all'], { env });
    expect(stdout).toMatch(/\tout_of_sequence\t0\t/);
    expect(stdout).toMatch(/\tvendor_secret\t8\t\t\n/);
    const [object] = JSON.parse((await command(['counters', '--json'], { env })).stdout);
    expect(object).toMatchObject({ device: 'mlx5_0', portNum: 1, netdev: 'ens1' });
    expect(object.counters).toHaveLength(4);
    expect(object.counters[0]).toMatchObject({ name: 'np_ecn_marked_roce_packets', value: '5' });
  });

  it('says that all are 0 in the place of a table', async () => {
    const own = join(folder, 'idle');
    put(join(own, 'class/infiniband/rxe0/ports/1/hw_counters/sent_pkts'), '0');
    const idle = { ...env, SYSFS_PATH: own };
    const { code, stdout } = await command(['counters'], { env: idle });
    expect([code, stdout]).toEqual([0, 'rxe0/1: all counters that have a known meaning are 0; --all shows them\n']);
    expect((await command(['counters', '--all'], { env: idle })).stdout).toMatch(
      /\tsent_pkts\t0\t.*RoCE packets sent\n$/,
    );
  });

  it('watches rates and says what they mean, until Ctrl-C, which is its ordinary end', async () => {
    const started = start(['counters', '--watch', '0.05', '--json'], { env });
    await started.untilOutput('\n');
    put(join(port, 'hw_counters/out_of_sequence'), '300');
    await started.untilOutput('packets are lost');
    started.child.kill('SIGINT');
    const { code, stdout, stderr } = await started.ended;
    expect([code, stderr]).toEqual([0, '']);
    const found = jsonLines(stdout).find(({ findings }) => (findings as unknown[]).length > 0)!;
    expect(found.rates).toMatchObject([{ name: 'out_of_sequence', change: '300' }]);
    expect((found.rates as { perSecond: number }[])[0]!.perSecond).toBeGreaterThan(100);
    expect(found.findings).toMatchObject([{ level: 'warning', counters: ['out_of_sequence'] }]);
  });

  it('says that there is no device at all, with exit code 3, or none of that name, with 1', async () => {
    const none = await command(['counters'], { env: { ...env, SYSFS_PATH: '/nonexistent' } });
    expect(none).toMatchObject({
      code: 3,
      stdout: '',
      stderr: 'node-rdma: no RDMA devices: "node-rdma doctor" says why\n',
    });
    const other = await command(['counters', 'nix', '--watch'], { env });
    expect(other).toMatchObject({ code: 1, stderr: "node-rdma: no RDMA device 'nix'\n" });
  });
});

describe('node-rdma export', () => {
  const sample = 'rdma_hw_np_ecn_marked_roce_packets_total{device="mlx5_0",port="1",netdev="ens1"} 5\n';

  it('serves the counters until Ctrl-C, and frees its port', async () => {
    const started = start(['export', '--port', '0'], { env });
    while (!started.stderr.includes('\n')) await new Promise((resolve) => setTimeout(resolve, 5));
    const [url] = /http:\/\/127\.0\.0\.1:\d+\/metrics/.exec(started.stderr)!;
    expect(await (await fetch(url)).text()).toContain(sample);
    started.child.kill('SIGINT');
    expect(await started.ended).toMatchObject({ code: 0, stdout: '' });
    await expect(fetch(url)).rejects.toThrow();
  });

  it('prints them once', async () => {
    const { code, stdout } = await command(['export', '--once'], { env });
    expect(stdout).toContain(sample);
    expect(stdout).toContain(
      'rdma_ethtool_rx_prio_pause_total{device="mlx5_0",port="1",netdev="ens1",priority="3"} 12\n',
    );
    expect(code).toBe(0);
  });

  it('says that there is no device to print them of, with exit code 3', async () => {
    const { code, stdout, stderr } = await command(['export', '--once'], {
      env: { ...env, SYSFS_PATH: '/nonexistent' },
    });
    expect([code, stdout, stderr]).toEqual([3, '', 'node-rdma: no RDMA devices: "node-rdma doctor" says why\n']);
  });

  it('says that the port is taken, with exit code 1', async () => {
    const started = start(['export', '--port', '0'], { env });
    while (!started.stderr.includes('\n')) await new Promise((resolve) => setTimeout(resolve, 5));
    const taken = /:(\d+)\/metrics/.exec(started.stderr)![1]!;
    const { code, stderr } = await command(['export', '--port', taken], { env });
    expect(stderr).toMatch(/^node-rdma: .*EADDRINUSE/);
    expect(code).toBe(1);
    started.child.kill('SIGTERM');
    expect(await started.ended).toMatchObject({ code: 143 });
  });
});
