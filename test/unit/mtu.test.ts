/** The MTU of a port against that of its network interface. */
import { describe, expect, it } from 'vitest';
import { mtuFinding } from '../../lib/observe/mtu.ts';

describe('the MTU of a port', () => {
  const of = (mtu: number, active: number | undefined, { isIpv4 = true, max = 4096 } = {}) =>
    mtuFinding('rxe0/1', { name: 'v0', mtu }, isIpv4, active === undefined ? undefined : { active, max });

  it.each([
    // As Soft-RoCE does it, which leaves 80 bytes for headers.
    [4180, 4096],
    [4176, 4096],
    [9000, 4096],
  ])('is what the port says: of an interface with %i, %i', (mtu, active) => {
    expect(of(mtu, active)).toEqual({
      ...{ name: 'rxe0/1 MTU', ok: true, level: 'ok' },
      detail: `v0 has ${mtu}, so packets of RDMA carry ${active} bytes`,
    });
  });

  it.each([
    [4175, 2048],
    [1500, 1024],
    [1280, 1024],
  ])('could be larger: of an interface with %i, %i', (mtu, active) => {
    expect(of(mtu, active)).toMatchObject({
      ...{ level: 'warning', fix: 'ip link set v0 mtu 4200' },
      detail: `v0 has ${mtu}, so packets of RDMA carry ${active} bytes; 4096 need 4200 on all hosts and switches`,
    });
  });

  it('does not fit its interface with all headers, of which IPv6 has 20 bytes more', () => {
    expect(of(4160, 4096)).toMatchObject({ level: 'ok' });
    expect(of(4159, 4096)).toMatchObject({
      ...{ ok: false, level: 'warning', fix: 'ip link set v0 mtu 4200' },
      detail:
        'v0 has 4159, but packets of RDMA carry 4096 bytes, up to 4160 with headers: large ones may be dropped, or fragmented',
    });
    expect(of(4180, 4096, { isIpv4: false })).toMatchObject({ level: 'ok' });
    expect(of(4179, 4096, { isIpv4: false })).toMatchObject({
      level: 'warning',
      detail: expect.stringContaining('up to 4180 with headers'),
    });
    expect(of(1000, 1024)).toMatchObject({ level: 'warning', fix: 'ip link set v0 mtu 1128' });
  });

  it('is no matter where the port can no more', () => {
    expect(of(1500, 1024, { max: 1024 })).toMatchObject({
      ...{ level: 'ok', detail: 'v0 has 1500, so packets of RDMA carry 1024 bytes, the most that the port can' },
    });
  });

  it('has no line to type where the interface has room', () => {
    const { level, detail, fix } = of(9000, 1024);
    expect([level, fix]).toEqual(['warning', undefined]);
    expect(detail).toBe('v0 has 9000, which has room for 4096, yet packets of RDMA carry 1024 bytes');
  });

  it('is reckoned as most drivers do where the port cannot be asked, and says so', () => {
    const reckoned = 'bytes by reckoning: the port could not be asked';
    expect(of(4192, undefined)).toMatchObject({
      level: 'ok',
      detail: `v0 has 4192, so packets of RDMA carry 4096 ${reckoned}`,
    });
    expect(of(4191, undefined)).toMatchObject({
      level: 'warning',
      detail: `v0 has 4191, so packets of RDMA carry 2048 ${reckoned}; 4096 need 4200 on all hosts and switches`,
    });
    expect(of(300, undefined).detail).toContain('carry 256');
  });
});
