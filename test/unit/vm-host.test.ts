import { execFileSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough, Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { acceleratorOrder } from '../../lib/vm/accel.ts';
import { buildOnce, cacheFolder } from '../../lib/vm/cache.ts';
import { cpio } from '../../lib/vm/initrd.ts';
import { parseDepends } from '../../lib/vm/kernel.ts';
import { qemuCommand } from '../../lib/vm/qemu.ts';
import { pump } from '../../lib/vm/streams.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'node-rdma-test-'));
});
afterEach(() => rmSync(folder, { recursive: true }));

describe('acceleratorOrder', () => {
  it('takes what is asked for, and nothing in its place', () => {
    expect(acceleratorOrder('kvm', false, true)).toEqual(['kvm']);
    expect(acceleratorOrder('tcg', true, false)).toEqual(['tcg']);
  });

  it('tries KVM where it opens and has not failed before', () => {
    expect(acceleratorOrder(undefined, true, false)).toEqual(['kvm', 'tcg']);
    expect(acceleratorOrder(undefined, true, true)).toEqual(['tcg']);
    expect(acceleratorOrder(undefined, false, false)).toEqual(['tcg']);
  });
});

describe('cacheFolder', () => {
  it('follows NODE_RDMA_CACHE, then XDG_CACHE_HOME', () => {
    expect(cacheFolder({ NODE_RDMA_CACHE: '/n', XDG_CACHE_HOME: '/x' })).toBe('/n');
    expect(cacheFolder({ XDG_CACHE_HOME: '/x' })).toBe('/x/node-rdma');
    expect(cacheFolder({})).toMatch(/\/\.cache\/node-rdma$/);
  });
});

describe('buildOnce', () => {
  it('builds once, and leaves nothing beside the result', async () => {
    const path = join(folder, 'a', 'b');
    let builds = 0;
    const build = (scratch: string) => writeFile(scratch, String(++builds));
    await buildOnce(path, build);
    await buildOnce(path, build);
    expect(readFileSync(path, 'utf8')).toBe('1');
    expect(readdirSync(join(folder, 'a'))).toEqual(['b']);
  });

  it('leaves nothing when the build fails', async () => {
    const build = async (scratch: string) => {
      writeFileSync(scratch, 'half');
      throw new Error('no network');
    };
    await expect(buildOnce(join(folder, 'b'), build)).rejects.toThrow('no network');
    expect(readdirSync(folder)).toEqual([]);
  });

  it('lets two build at once', async () => {
    const path = join(folder, 'b');
    const build = async (scratch: string) => void (await mkdir(join(scratch, 'full'), { recursive: true }));
    expect(await Promise.all([buildOnce(path, build), buildOnce(path, build)])).toEqual([path, path]);
    expect(readdirSync(folder)).toEqual(['b']);
  });
});

describe('parseDepends', () => {
  it("follows Debian's package to the one with kernel and modules", () => {
    expect(parseDepends('linux-image-6.12-amd64\n  Depends: linux-image-6.12.117+deb12-amd64\n')).toEqual([
      'linux-image-6.12.117+deb12-amd64',
    ]);
    expect(parseDepends('linux-image-6.12.117+deb12-amd64\n  Depends: kmod\n  Depends: linux-base\n')).toEqual([]);
  });

  it("follows Ubuntu's to image, modules and extra modules", () => {
    const text = `linux-image-generic
  Depends: linux-image-6.8.0-60-generic
  Depends: linux-modules-extra-6.8.0-60-generic
  Depends: linux-firmware
  Depends: intel-microcode
`;
    expect(parseDepends(text)).toEqual(['linux-image-6.8.0-60-generic', 'linux-modules-extra-6.8.0-60-generic']);
    expect(parseDepends('x\n |Depends: linux-modules-6.8.0-60-generic\n')).toEqual(['linux-modules-6.8.0-60-generic']);
  });
});

describe('cpio', () => {
  it('packs what cpio unpacks', () => {
    const entries = [
      { name: 'd', mode: 0o040755 },
      { name: 'd/odd', mode: 0o100755, data: Buffer.from('12345') },
      { name: 'd/empty', mode: 0o100644 },
      { name: 'binary', mode: 0o100600, data: Buffer.from([0, 255, 128, 10]) },
    ];
    execFileSync('busybox', ['cpio', '-i'], { cwd: folder, input: cpio(entries), stdio: ['pipe', 'pipe', 'pipe'] });
    expect(readdirSync(folder, { recursive: true }).sort()).toEqual(['binary', 'd', 'd/empty', 'd/odd']);
    expect(readFileSync(join(folder, 'd/odd'), 'utf8')).toBe('12345');
    expect(readFileSync(join(folder, 'binary'))).toEqual(Buffer.from([0, 255, 128, 10]));
  });
});

describe('qemuCommand', () => {
  it('doubles the commas of a path, as QEMU wants', () => {
    const machine = { accel: 'tcg', image: '/i', initrd: '/r', memory: '2G', cpus: 2, out: '/a,b' } as const;
    expect(qemuCommand(machine).some((argument) => argument.endsWith('readonly=off,path=/a,,b'))).toBe(true);
  });
});

describe('pump', () => {
  const mark = Buffer.from('\x1eabab');

  it.each([1, 2, 3, 7])('ends at the mark in chunks of %i bytes', async (size) => {
    const data = Buffer.from('one\x1eab\x1eaba\xff\x1eabab', 'latin1');
    const chunks = Array.from({ length: Math.ceil(data.length / size) }, (_, i) =>
      data.subarray(i * size, (i + 1) * size),
    );
    const to = new PassThrough();
    await pump(Readable.from(chunks), mark, to);
    expect(await buffer(to.end())).toEqual(Buffer.from('one\x1eab\x1eaba\xff', 'latin1'));
  });

  it('passes on everything when the mark never comes', async () => {
    const to = new PassThrough();
    await pump(Readable.from([Buffer.from('cut \x1eab')]), mark, to);
    expect((await buffer(to.end())).toString()).toBe('cut \x1eab');
  });

  it('waits for a slow reader', async () => {
    const to = new PassThrough({ highWaterMark: 1 });
    let taken = 0;
    const from = Readable.from(
      (function* () {
        for (; taken < 100; taken++) yield Buffer.alloc(1000);
      })(),
      { highWaterMark: 1 },
    );
    const done = pump(from, mark, to);
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(taken).toBeLessThan(5);
    to.resume();
    await done;
    expect(taken).toBe(100);
  });
});
