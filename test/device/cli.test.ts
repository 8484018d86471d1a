import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { getDeviceList } from '../../lib/index.ts';
import { jsonLines, start } from '../unit/command.ts';
import { command, run } from './command.ts';
import { deviceA, deviceB, isRxe } from './fixture.ts';

// In an emulated VM only what another driver may do otherwise.
const itFast = it.runIf(!isRxe);

const theirs = (program: string, ...args: string[]) =>
  execFileSync(program, args, { encoding: 'utf8' })
    .split('\n')
    .filter((line) => line.trim() !== '');

async function ours(...args: string[]): Promise<string[]> {
  const { code, stdout, stderr } = await command(args);
  expect([code, stderr]).toEqual([0, '']);
  return stdout.split('\n').filter((line) => line.trim() !== '');
}

describe('node-rdma devices', () => {
  it('lists what ibv_devices lists', async () => {
    const rows = (await ours('devices')).slice(1).map((line) => line.split('\t'));
    const listed = theirs('ibv_devices')
      .slice(2)
      .map((line) => line.trim().split(/\s+/));
    expect(rows.map(([name, guid]) => [name, guid!.replaceAll(':', '')])).toEqual(listed);
    for (const [, , port, state, link] of rows) expect([port, state, link]).toEqual(['1', 'ACTIVE', 'Ethernet']);
  });
});

describe('node-rdma devinfo', () => {
  itFast('prints what ibv_devinfo prints', async () => {
    expect(await ours('devinfo')).toEqual(theirs('ibv_devinfo'));
  });

  it('prints with -v what ibv_devinfo -v prints, and which GID would be chosen', async () => {
    const lines = await ours('devinfo', '-v', '-d', deviceA);
    const chosen = lines.filter((line) => /^\t+chosen:/.test(line));
    expect(chosen).toHaveLength(1);
    const listed = theirs('ibv_devinfo', '-v', '-d', deviceA);
    expect(lines.filter((line) => !chosen.includes(line))).toEqual(listed);
  });

  itFast('gives everything with --json', async () => {
    const { stdout } = await command(['devinfo', '--json', '-d', deviceB]);
    const [device] = JSON.parse(stdout);
    expect(device).toMatchObject({ name: deviceB, ports: [{ portNum: 1, attr: { state: 4 } }] });
    // 64 bits do not fit a number.
    expect(device.attr.maxMrSize).toMatch(/^\d{15,20}$/);
  });

  itFast('names the devices that there are when there is none of that name', async () => {
    const { code, stderr } = await command(['devinfo', '-d', 'nix']);
    expect(stderr).toMatch(new RegExp(`^node-rdma: .* ENODEV: .*no device 'nix'; there is ${deviceA}, ${deviceB}\n$`));
    expect(code).toBe(1);
  });
});

// The script show_gids is in no package of Debian. That of mlnx-tools was run beside it by hand, on Soft-RoCE: the same columns, and
// the same in them.
describe('node-rdma gids', () => {
  it('lists what sysfs has, and says which GID would be chosen and why', async () => {
    const { ibdevPath } = getDeviceList().find(({ name }) => name === deviceA)!;
    const read = (path: string) => readFileSync(`${ibdevPath}/ports/1/${path}`, 'utf8').trim();
    const known = readdirSync(`${ibdevPath}/ports/1/gids`)
      .filter((index) => !/^[0:]*$/.test(read(`gids/${index}`)))
      .sort((a, b) => Number(a) - Number(b))
      .map((index) => [deviceA, '1', index, read(`gids/${index}`)]);
    const rows = (await ours('gids', deviceA)).slice(1).map((line) => line.split('\t'));
    expect(rows.map((row) => row.slice(0, 4))).toEqual(known);
    const [chosen, ...others] = rows.filter((row) => row[7] !== '');
    expect(others).toEqual([]);
    expect(chosen![5]).toBe('v2');
    expect(chosen![4]).toMatch(/^\d+\.\d+\.\d+\.\d+$/);
    expect(chosen![7]).toBe('<- RoCE v2 of an IPv4 address');
  });

  itFast('says that the environment has chosen', async () => {
    const { stdout } = await start(['gids', deviceA, '--json'], { env: { NODE_RDMA_GID_INDEX: '0' } }).ended;
    const [first] = JSON.parse(stdout);
    expect(first).toMatchObject({ index: 0, chosen: true, reason: 'NODE_RDMA_GID_INDEX names it' });
  });

  itFast('says why no GID is chosen', async () => {
    const { code, stdout } = await start(['gids', deviceA], { env: { NODE_RDMA_GID_INDEX: '200' } }).ended;
    expect(stdout).toContain(
      `${deviceA} port 1: no GID is chosen: port 1 of ${deviceA} has no usable GID at index 200`,
    );
    expect(code).toBe(0);
  });
});

// The software device has no wire, and counts nothing.
describe.runIf(isRxe)('node-rdma on a wire', () => {
  it('captures what Soft-RoCE sends, and shows the counters of rdma statistic', { timeout: 300_000 }, async () => {
    const { ibdevPath } = getDeviceList().find(({ name }) => name === deviceA)!;
    const read = (name: string) => Number(readFileSync(`${ibdevPath}/ports/1/hw_counters/${name}`, 'utf8'));
    const before = { sends: read('rdma_sends'), packets: read('sent_pkts') };
    const capture = run(['capture', 'v0', '--json', '--count', '20']);
    while (!capture.stderr.includes('listening')) await new Promise((resolve) => setTimeout(resolve, 20));
    const server = start([], { shell: `ibv_rc_pingpong -d ${deviceB} -g 1 -n 20 -s 64` });
    // It is refused until the server listens.
    const client = start([], {
      shell: `for i in $(seq 100); do ibv_rc_pingpong -d ${deviceA} -g 1 -n 20 -s 64 127.0.0.1 && exit; sleep 0.2; done; exit 9`,
    });
    expect([(await client.ended).code, (await server.ended).code]).toEqual([0, 0]);

    const { code, stdout } = await capture.ended;
    expect(code).toBe(0);
    const packets = jsonLines(stdout).filter(({ type }) => type === 'packet');
    expect(packets).toHaveLength(20);
    for (const { opcode, icrcOk } of packets) {
      expect(opcode).toMatch(/^RC_(SEND_ONLY|ACKNOWLEDGE)$/);
      expect(icrcOk).toBe(true);
    }

    const [{ counters }] = JSON.parse((await command(['counters', deviceA, '--json'])).stdout);
    const own = (counters as { source: string; name: string; value: string }[]).filter(({ source }) => source === 'hw');
    const values = Object.fromEntries(own.map(({ name, value }) => [name, Number(value)]));
    const shown = execFileSync('rdma', ['-j', 'statistic', 'show', 'link', `${deviceA}/1`], { encoding: 'utf8' });
    const [{ ifname, port, ...listed }] = JSON.parse(shown);
    expect([ifname, port]).toEqual([deviceA, 1]);
    expect(values).toEqual(listed);
    expect(values.rdma_sends! - before.sends).toBeGreaterThanOrEqual(20);
    expect(values.sent_pkts! - before.packets).toBeGreaterThanOrEqual(40);
  });

  it('adds a device to an interface, finds nothing wrong, and removes it', { timeout: 300_000 }, async () => {
    const ip = (...args: string[]) => execFileSync('ip', args, { encoding: 'utf8' });
    const links = () => JSON.parse(execFileSync('rdma', ['-j', 'link'], { encoding: 'utf8' })) as { ifname: string }[];
    ip('link', 'add', 'soft0', 'type', 'dummy');
    try {
      ip('address', 'add', '10.79.0.1/24', 'dev', 'soft0');
      ip('link', 'set', 'soft0', 'mtu', '4180', 'up');
      const { code, stdout } = await command(['softroce', 'add', 'soft0', '--json']);
      expect([code, JSON.parse(stdout)]).toEqual([0, { name: 'rxe2', netdev: 'soft0', state: 'ACTIVE' }]);
      expect(links().map(({ ifname }) => ifname)).toEqual(['rxe0', 'rxe1', 'rxe2']);
      const doctor = await command(['doctor', '--json']);
      expect(doctor.code).toBe(0);
      const { findings } = JSON.parse(doctor.stdout) as { findings: { name: string; level: string; detail: string }[] };
      const of = (name: string) => findings.find((finding) => finding.name === name);
      expect(of('rxe2/1 link')).toMatchObject({ level: 'ok', detail: 'ACTIVE, Ethernet' });
      expect(of('rxe2/1 GIDs')).toMatchObject({ level: 'ok', detail: expect.stringContaining('::ffff:10.79.0.1') });
      expect(of('rxe0/1 GIDs')).toMatchObject({ level: 'ok' });
      // Other drivers would make 2048 of it.
      const detail = 'soft0 has 4180, so packets of RDMA carry 4096 bytes';
      expect(of('rxe2/1 MTU')).toMatchObject({ level: 'ok', detail });
      expect(await command(['softroce', 'remove', 'soft0'])).toMatchObject({ code: 0 });
      expect(links().map(({ ifname }) => ifname)).toEqual(['rxe0', 'rxe1']);
    } finally {
      ip('link', 'del', 'soft0');
    }
  });
});
