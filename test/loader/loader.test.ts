import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';

// Each in a process of its own, since the addon and the library are loaded once per process.
const index = new URL('../../dist/index.js', import.meta.url);
if (!existsSync(index)) throw new Error('dist/ is missing: node scripts/setup.mjs');
const root = fileURLToPath(new URL('../..', import.meta.url));

interface Thrown {
  name: string;
  code?: string;
  syscall?: string;
  message: string;
}

/** Runs code on the package; it prints what `tried()` gives. `preload` may name the software device. */
function run(
  code: string,
  env: Record<string, string | undefined> = {},
  preload: Record<string, string> = {},
): unknown {
  const program = `
    const tried = (call) => {
      try {
        return { value: call() };
      } catch ({ name, code, syscall, message }) {
        return { name, code, syscall, message };
      }
    };
    const print = (value) => process.stdout.write(JSON.stringify(value));
    ${code}`;
  const all = { ...process.env, ...env };
  for (const key of ['NODE_OPTIONS', 'LD_PRELOAD']) delete all[key as keyof typeof all];
  Object.assign(all, preload);
  const result = spawnSync(process.execPath, ['--input-type=module', '-e', program], {
    cwd: root,
    env: all,
    encoding: 'utf8',
    timeout: 30_000,
  });
  expect({ status: result.status, signal: result.signal, stderr: result.stderr }).toEqual({
    status: 0,
    signal: null,
    stderr: '',
  });
  return JSON.parse(result.stdout);
}

const load = `const rdma = await import('${index.href}');`;
const missing = { NODE_RDMA_LIBIBVERBS: '/nonexistent/libibverbs.so.1' };
// As on a machine where nothing is set.
const present = { NODE_RDMA_LIBIBVERBS: undefined, NODE_RDMA_ADDON: undefined };

describe('a machine without the libraries of GPU drivers', () => {
  it('has no GPUs, and says why', () => {
    const gpu = `const gpu = await import('${new URL('../../dist/gpu/index.js', import.meta.url).href}');`;
    const code = `${gpu}
      const adopted = gpu.adoptGpuMemory('amd', 4096n, 1).catch(({ name, code, message }) => ({ name, code, message }));
      print({ gpus: gpu.listGpus(), drivers: gpu.gpuDrivers(), adopted: await adopted });`;
    expect(run(code)).toEqual({
      gpus: [],
      drivers: [
        { vendor: 'nvidia', available: false, detail: expect.stringMatching(/nonexistent.libcuda/) },
        { vendor: 'amd', available: false, detail: expect.stringMatching(/nonexistent.libhsa/) },
      ],
      adopted: {
        ...{ name: 'RdmaUnavailableError', code: 'ERR_RDMA_UNAVAILABLE' },
        message: expect.stringMatching(/libhsa-runtime64.*NODE_RDMA_LIBHSA names another file/),
      },
    });
  });
});

describe('a machine without libibverbs', () => {
  it('imports the package, and says at the first use of a device what to install', () => {
    for (const call of ['getDeviceList()', 'openDevice()', `openDevice('mlx5_0')`]) {
      const error = run(`${load} print(tried(() => rdma.${call}));`, missing) as Thrown;
      expect(error).toMatchObject({ name: 'RdmaUnavailableError', code: 'ERR_RDMA_UNAVAILABLE' });
      expect(error.message).toContain('/nonexistent/libibverbs.so.1 cannot be loaded');
      expect(error.message).toContain('apt-get install libibverbs1');
      expect(error.message).toContain('NODE_RDMA_LIBIBVERBS');
    }
  });

  it('has all that needs no device', () => {
    const code = `print([
      rdma.formatGid(rdma.parseGid('::ffff:10.0.0.1')),
      rdma.chooseGid([]) === undefined,
      new rdma.RemoteRegion({ addr: '0x10', rkey: 1, length: 8 }).slice().length,
      rdma.WcStatus.SUCCESS,
      typeof rdma.wcStatusStr(0),
      new rdma.RdmaError('ibv_reg_mr', 12).code,
    ]);`;
    expect(run(`${load} ${code}`, missing)).toEqual(['::ffff:10.0.0.1', true, 8, 0, 'string', 'ENOMEM']);
  });

  it('says at the first use of the connection manager that librdmacm is missing, and nothing else is disturbed', () => {
    const env = { ...present, NODE_RDMA_LIBRDMACM: '/nonexistent/librdmacm.so.1' };
    const code = `print([tried(() => rdma.createEventChannel()), typeof rdma.wcStatusStr(0)]);`;
    const [error, text] = run(`${load} ${code}`, env) as [Thrown, string];
    expect(error).toMatchObject({ name: 'RdmaUnavailableError', code: 'ERR_RDMA_UNAVAILABLE' });
    expect(error.message).toContain('/nonexistent/librdmacm.so.1 cannot be loaded');
    expect(error.message).toContain('apt-get install librdmacm1');
    expect(error.message).toContain('NODE_RDMA_LIBRDMACM');
    expect(text).toBe('string');
  });

  it('says the same again at the second try', () => {
    const code = `const call = () => rdma.getDeviceList(); print([tried(call), tried(call)]);`;
    const [first, second] = run(`${load} ${code}`, missing) as Thrown[];
    expect(first?.code).toBe('ERR_RDMA_UNAVAILABLE');
    expect(second).toEqual(first);
  });
});

describe('a machine without libmlx5', () => {
  const hidden = { ...present, NODE_RDMA_LIBMLX5: '/nonexistent/libmlx5.so.1' };
  const model = { LD_PRELOAD: fileURLToPath(new URL('../../build/model/libmlx5model.so', import.meta.url)) };

  it('has all of verbs; no device is supported, and each function of mlx5dv says what to install', () => {
    const code = `
      const context = rdma.openDevice('mlx5_0');
      const pd = context.allocPd();
      const cq = context.createCq(16);
      const qp = pd.createQp({ sendCq: cq, cap: { maxSendWr: 4, maxRecvWr: 4 } });
      const { mlx5dv } = rdma;
      print([
        mlx5dv.isSupported('mlx5_0'),
        ...[
          () => mlx5dv.queryDevice(context),
          () => mlx5dv.getClockInfo(context),
          () => mlx5dv.createCq(context, 16),
          () => mlx5dv.createQp(pd, { sendCq: cq }),
          () => mlx5dv.modifyQpUdpSport(qp, 5),
          () => mlx5dv.queryQpLagPort(qp),
          () => mlx5dv.dciStreamIdReset(qp, 5),
        ].map(tried),
      ]);
      context.close({ cascade: true });`;
    const [supported, ...errors] = run(`${load} ${code}`, hidden, model) as [boolean, ...Thrown[]];
    expect(supported).toBe(false);
    expect(errors).toHaveLength(7);
    for (const error of errors) {
      expect(error).toMatchObject({ name: 'RdmaUnavailableError', code: 'ERR_RDMA_UNAVAILABLE' });
      expect(error.message).toContain('/nonexistent/libmlx5.so.1 cannot be loaded');
      expect(error.message).toContain('apt-get install ibverbs-providers');
      expect(error.message).toContain('NODE_RDMA_LIBMLX5');
    }
  });

  it('but with one that is too old fails a function alone, with the release that has it', () => {
    const code = `print([rdma.mlx5dv.isSupported('mlx5_0'), tried(() => rdma.mlx5dv.queryDevice(rdma.openDevice('mlx5_0')))]);`;
    // A library that is there, and has nothing of what is wanted.
    const old = { ...present, NODE_RDMA_LIBMLX5: 'libm.so.6' };
    const [supported, error] = run(`${load} ${code}`, old, model) as [boolean, Thrown];
    expect(supported).toBe(false);
    expect(error).toMatchObject({ name: 'RdmaError', code: 'EOPNOTSUPP', syscall: 'mlx5dv_query_device' });
    expect(error.message).toMatch(/this library has no mlx5dv_is_supported, which came with rdma-core 22/);
  });
});

describe('a library without a function', () => {
  it('fails that function alone, with EOPNOTSUPP and the release that has it', () => {
    // A library that is there, and has nothing of what is wanted.
    const error = run(`${load} print(tried(() => rdma.getDeviceList()));`, {
      NODE_RDMA_LIBIBVERBS: 'libm.so.6',
    }) as Thrown;
    expect(error).toMatchObject({ name: 'RdmaError', code: 'EOPNOTSUPP', syscall: 'ibv_get_device_list' });
    expect(error.message).toMatch(/this library has no ibv_get_device_list, which came with rdma-core \d+/);
  });
});

describe('a machine with libibverbs and without a device', () => {
  it('lists none, or says that the kernel has no RDMA', () => {
    const [list, opened] = run(
      `${load} print([tried(() => rdma.getDeviceList()), tried(() => rdma.openDevice())]);`,
      present,
    ) as (Thrown & { value?: unknown[] })[];
    if (list?.value !== undefined) {
      // Where there is a device after all, it is opened.
      if (list.value.length > 0) return;
      expect(opened).toMatchObject({ name: 'RdmaError', code: 'ENODEV', syscall: 'ibv_open_device' });
      expect(opened?.message).toContain('diagnose()');
    } else {
      expect(list).toMatchObject({ name: 'RdmaError', code: 'ENOSYS', syscall: 'ibv_get_device_list' });
      expect(list?.message).toContain('modprobe ib_uverbs');
      expect(opened?.code).toBe('ENOSYS');
    }
  });
});

describe('another platform', () => {
  it.each(['darwin', 'win32'])('%s imports the package, and says that verbs are for Linux', (platform) => {
    const set = `Object.defineProperty(process, 'platform', { value: '${platform}' });`;
    const code = `print([tried(() => rdma.getDeviceList()), rdma.formatGid(rdma.parseGid('::1'))]);`;
    const [error, gid] = run(`${set} ${load} ${code}`) as [Thrown, string];
    expect(error).toMatchObject({ name: 'RdmaUnavailableError', code: 'ERR_RDMA_UNAVAILABLE' });
    expect(error.message).toContain(`Linux only, and this is ${platform}`);
    expect(gid).toBe('::1');
  });
});

describe('NODE_RDMA_ADDON', () => {
  it.each([
    ['a file that is not there', '/nonexistent/node_rdma.node'],
    ['a file that is no addon', fileURLToPath(import.meta.url)],
  ])('that names %s is an error that names it, not a crash', (_what, path) => {
    const error = run(`${load} print(tried(() => rdma.getDeviceList()));`, { NODE_RDMA_ADDON: path }) as Thrown;
    expect(error).toMatchObject({ name: 'RdmaUnavailableError', code: 'ERR_RDMA_UNAVAILABLE' });
    expect(error.message).toContain('cannot be loaded on linux');
  });
});

describe('the addon by itself', () => {
  it('throws where it was not told the error class, and does not crash', () => {
    const code = `
      import { createRequire } from 'node:module';
      const addon = createRequire('${index.href}')('node-gyp-build')('${root}');
      print([tried(() => addon.openDevice('none')), tried(() => addon.setErrorClass(5)), addon.census()]);`;
    const [opened, set, census] = run(code, missing) as [Thrown, Thrown, object];
    expect(opened.message).toBeTypeOf('string');
    expect(set.code).toBe('ERR_INVALID_ARG_TYPE');
    expect(census).toEqual({ open: 0, leaked: 0 });
  });

  it('can be loaded twice', () => {
    const again = `${load} const again = await import('${index.href}?again');`;
    expect(run(`${again} print([again !== rdma, typeof again.getDeviceList]);`)).toEqual([true, 'function']);
  });
});
