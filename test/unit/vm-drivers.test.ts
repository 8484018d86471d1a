/** How the kernel of the VM is fetched, and drivers are built for it: by programs that stand in for those of the machine. */
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';

const RELEASE = '6.12.99+node-amd64';
let folder: string;
let cache: string;
let before: NodeJS.ProcessEnv;
type Prepare = typeof import('../../lib/vm/rxe-dmabuf.ts')['prepareRxeDmabuf'];
let prepareRxeDmabuf: Prepare;
let prepareKernel: typeof import('../../lib/vm/kernel.ts')['prepareKernel'];

/** Each notes what it was called with. The module that is made holds the release that it is for. */
const programs: Record<string, string> = {
  make: `for arg; do case $arg in M=*) work=\${arg#M=};; esac; done
    if grep -q broken "$work/rxe_mr.c"; then echo "$work/rxe_mr.c:1: error: it is broken" >&2; exit 2; fi
    cat "$work/release" > "$work/rdma_rxe.ko"`,
  modinfo: 'printf "%s SMP mod_unload\\n" "$(cat "$3")"',
  strip: ':',
  'gcc-12': 'while [ "$1" != -o ]; do shift; done; echo library > "$2"',
  // What is known is in files: `known`, and `known-fresh` by lists that are fetched.
  'apt-cache': `case $* in *lists=*) known=known-fresh;; *) known=known;; esac
    for name; do :; done
    sed -n "s/^$name \\(.*\\)/  Depends: \\1/p" "$(dirname "$0")/../$known"`,
  'apt-get': 'for name; do :; done; case $* in *download*) echo > "$name.deb";; esac',
  'dpkg-deb': `release=$(basename "$2" .deb); release=\${release#linux-image-}
    mkdir -p "$3/boot" "$3/lib/modules/$release"; echo > "$3/boot/vmlinuz-$release"`,
  depmod: ':',
};

const write = (path: string, text: string) => {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
};
const called = () => readFileSync(join(folder, 'calls'), 'utf8').trim().split('\n');

/** The source of a kernel as it is unpacked in the cache: of its rxe only the places that are changed. */
function unpack(more: Record<string, string> = {}, compiler = 'gcc-12'): void {
  const source = join(cache, `source-${RELEASE}`);
  const files = {
    Makefile: 'rdma_rxe-y := rxe_mr.o\n',
    'rxe_loc.h': 'void rxe_mr_cleanup(struct rxe_pool_elem *elem);\n',
    'rxe_mr.c': '\tib_umem_release(mr->umem);\n',
    'rxe_verbs.c': '\t.reg_user_mr = rxe_reg_user_mr,\n',
    'rxe_verbs.h': '#include "rxe_pool.h"\n\tstruct rxe_mr_page\t*page_info;\n',
    release: RELEASE,
    ...more,
  };
  for (const [name, text] of Object.entries(files)) write(join(source, 'rxe', name), text);
  write(join(source, `usr/src/linux-headers-${RELEASE}/.kernelvariables`), `override CC = ${compiler}\n`);
}

const prepare = () => prepareRxeDmabuf({ release: RELEASE, image: '', root: '/cache/kernel' }, {});

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'vm-drivers-'));
  before = { ...process.env };
  for (const [name, script] of Object.entries(programs)) {
    const path = join(folder, 'bin', name);
    write(path, `#!/bin/sh\necho "${name} $*" >> ${folder}/calls\n${script}\n`);
    chmodSync(path, 0o755);
  }
  cache = join(folder, 'cache');
  process.env.NODE_RDMA_CACHE = cache;
  process.env.PATH = `${folder}/bin:${process.env.PATH}`;
  // The path is looked at once.
  vi.resetModules();
  ({ prepareRxeDmabuf } = await import('../../lib/vm/rxe-dmabuf.ts'));
  ({ prepareKernel } = await import('../../lib/vm/kernel.ts'));
});
afterAll(() => {
  for (const name of ['NODE_RDMA_CACHE', 'PATH']) {
    if (before[name] === undefined) delete process.env[name];
    else process.env[name] = before[name];
  }
  vi.resetModules();
  rmSync(folder, { recursive: true });
});
beforeEach(() => {
  rmSync(cache, { recursive: true, force: true });
  for (const name of ['calls', 'known', 'known-fresh']) writeFileSync(join(folder, name), '');
});

describe('the kernel', () => {
  const first = 'linux-image-6.12-amd64 linux-image-6.12.99+node-amd64\n';
  const second = 'linux-image-amd64 linux-image-6.1.0-50-amd64\n';
  const known = (lists: string, fresh: string) => {
    writeFileSync(join(folder, 'known'), lists);
    writeFileSync(join(folder, 'known-fresh'), fresh);
  };

  it.skipIf(process.arch !== 'x64')('is the best one that the lists of this machine have', async () => {
    known(second + first, '');
    expect(await prepareKernel({})).toMatchObject({ release: RELEASE });
    expect(called().filter((line) => line.includes('update'))).toEqual([]);
  });

  // Those of the archive's security updates may be missing.
  it.skipIf(process.arch !== 'x64')('is not another one since the lists of this machine are a part only', async () => {
    known(second, second + first);
    expect(await prepareKernel({})).toMatchObject({ release: RELEASE });
  });

  it.skipIf(process.arch !== 'x64')('is another one where there is no better', async () => {
    known(second, second);
    expect(await prepareKernel({})).toMatchObject({ release: '6.1.0-50-amd64' });
  });

  it('is none where apt knows none, which is said with what to type', async () => {
    await expect(prepareKernel({})).rejects.toMatchObject({
      ...{ name: 'VmError', code: 'ERR_VM_KERNEL' },
      message: expect.stringMatching(/apt knows none of linux-image-6\.12-.*apt-get update && apt-get download/s),
    });
    expect(readdirSync(cache)).toEqual([]);
  });
});

describe('a driver for the kernel at hand', () => {
  it('is built from its source, changed, with its headers and their compiler; and once', async () => {
    unpack();
    const { module, library } = await prepare();
    expect(dirname(module)).toMatch(new RegExp(`/rxe-dmabuf-${RELEASE.replace('+', '\\+')}-[0-9a-f]{16}$`));
    expect([readFileSync(module, 'utf8'), readFileSync(library, 'utf8')]).toEqual([RELEASE, 'library\n']);
    const [make, ...others] = called();
    expect(make).toContain(`-C ${cache}/source-${RELEASE}/usr/src/linux-headers-${RELEASE} M=`);
    expect(make).toContain('CONFIG_RDMA_RXE=m');
    expect(others.map((line) => line.split(' ')[0])).toEqual(['modinfo', 'strip', 'gcc-12']);
    writeFileSync(join(folder, 'calls'), '');
    expect(await prepare()).toEqual({ module, library });
    expect(called()).toEqual(['']);
    // Nothing is left beside it, and the source is as it was.
    expect(readdirSync(cache).sort()).toEqual([dirname(module).split('/').at(-1), `source-${RELEASE}`]);
    expect(existsSync(join(cache, `source-${RELEASE}/rxe/rxe_dmabuf.c`))).toBe(false);
  });

  const wrong: [what: string, make: () => void, code: string, message: RegExp][] = [
    [
      'is another rxe',
      () => unpack({ Makefile: '' }),
      'ERR_VM_KERNEL',
      /its rxe is another one: Makefile has 0 places like/,
    ],
    [
      'does not compile',
      () => unpack({ 'rxe_mr.c': '\tib_umem_release(mr->umem);\nbroken' }),
      'ERR_VM_KERNEL',
      /rxe_mr\.c:1: error: it is broken/,
    ],
    [
      'is made for another kernel',
      () => unpack({ release: '6.12.1' }),
      'ERR_VM_KERNEL',
      /the module was made for 6\.12\.1 SMP/,
    ],
    [
      'has no compiler here',
      () => unpack({}, 'gcc-99'),
      'ERR_VM_PACKAGES',
      /takes gcc-99; type: sudo apt-get install .* gcc-99 make/,
    ],
    ['has headers that name no compiler', () => unpack({}, 'clang'), 'ERR_VM_KERNEL', /they name no compiler/],
    [
      'is no longer in the archive',
      () => {},
      'ERR_VM_KERNEL',
      /apt knows no package linux-headers-6\.12\.99.*delete \/cache\/kernel/,
    ],
  ];
  it.each(wrong)('says why there is none when it %s, and leaves nothing', async (_what, make, code, message) => {
    make();
    const error = await prepare().then(
      () => undefined,
      (reason) => reason,
    );
    expect(error).toMatchObject({ name: 'VmError', code });
    expect(error.message).toMatch(message);
    expect(readdirSync(cache).filter((name) => !name.startsWith('source-'))).toEqual([]);
  });
});
