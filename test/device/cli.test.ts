import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { getDeviceList } from '../../lib/index.ts';
import { command, jsonLines, start } from '../unit/command.ts';
import { deviceA, deviceB, isRxe } from './fixture.ts';

// Each start of node takes seconds in an emulated VM: there, only what another driver may do otherwise.
const itFast = it.runIf(!isRxe);

// The others start several programs, on a machine that is emulated and may be busy.
const slow = { timeout: isRxe ? 300_000 : 60_000 };

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
  it('lists what ibv_devices lists', slow, async () => {
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

  it(
    'prints with -v what ibv_devinfo -v takes from ibv_query_device and ibv_query_port, in the same lines',
    slow,
    async () => {
      const lines = await ours('devinfo', '-v', '-d', deviceA);
      const chosen = lines.filter((line) => /^\t+chosen:/.test(line));
      expect(chosen).toHaveLength(1);
      const listed = theirs('ibv_devinfo', '-v', '-d', deviceA);
      // The rest of it is of ibv_query_device_ex.
      const extended = listed.slice(
        listed.findIndex((line) => line.startsWith('\tgeneral_odp_caps')),
        listed.findIndex((line) => line.startsWith('\t\tport:')),
      );
      expect(lines.filter((line) => !chosen.includes(line))).toEqual(listed.filter((line) => !extended.includes(line)));
    },
  );

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

describe('node-rdma gids', () => {
  it('lists what sysfs has, and says which GID would be chosen and why', slow, async () => {
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
    const { stdout } = await command(['gids', deviceA, '--json'], { env: { NODE_RDMA_GID_INDEX: '0' } });
    const [first] = JSON.parse(stdout);
    expect(first).toMatchObject({ index: 0, chosen: true, reason: 'NODE_RDMA_GID_INDEX names it' });
  });

  itFast('says why no GID is chosen', async () => {
    const { code, stdout } = await command(['gids', deviceA], { env: { NODE_RDMA_GID_INDEX: '200' } });
    expect(stdout).toContain(
      `${deviceA} port 1: no GID is chosen: port 1 of ${deviceA} has no usable GID at index 200`,
    );
    expect(code).toBe(0);
  });
});

describe('node-rdma capture', () => {
  // The software device has no wire.
  it.runIf(isRxe)('shows what Soft-RoCE puts on the wire', slow, async () => {
    const capture = start(['capture', 'v0', '--json', '--count', '20']);
    while (!capture.stderr.includes('listening')) await new Promise((resolve) => setTimeout(resolve, 20));
    const server = start([], { shell: `ibv_rc_pingpong -d ${deviceB} -g 1 -n 20 -s 64` });
    const client = start([], {
      shell: `until ibv_rc_pingpong -d ${deviceA} -g 1 -n 20 -s 64 127.0.0.1 2>/dev/null; do sleep 0.2; done`,
    });
    const { code, stdout } = await capture.ended;
    expect([code, (await client.ended).code, (await server.ended).code]).toEqual([0, 0, 0]);
    const packets = jsonLines(stdout).filter(({ type }) => type === 'packet');
    expect(packets).toHaveLength(20);
    for (const { opcode, icrcOk } of packets) {
      expect(opcode).toMatch(/^RC_(SEND_ONLY|ACKNOWLEDGE)$/);
      expect(icrcOk).toBe(true);
    }
  });
});
