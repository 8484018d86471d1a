/** Loads the addon: the only door to C++. */
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import { isDeepStrictEqual } from 'node:util';
import { GpuError, RdmaError, RdmaUnavailableError } from '../errors.ts';
import { Layout } from './layout.gen.ts';
import type { Binding } from './native.ts';

let loaded: Binding | undefined;

/**
 * The addon, loaded at first use so that `import` works anywhere. It does not need rdma-core to load.
 *
 * @throws RdmaUnavailableError where there is no addon for this platform
 */
export function binding(): Binding {
  loaded ??= load();
  return loaded;
}

let bell: Int32Array | undefined;

/** The words of the doorbell: one view for all, so that the code that uses it stays monomorphic. */
export function doorbell(): Int32Array {
  bell ??= new Int32Array(binding().doorbell);
  return bell;
}

/**
 * The addon, when libibverbs is there too: what everything that begins with a device asks for.
 *
 * @throws RdmaUnavailableError naming the package to install
 */
export function verbs(): Binding {
  const addon = binding();
  const state = addon.loadState();
  if (state.available) return addon;
  throw new RdmaUnavailableError(
    `${state.path} cannot be loaded (${state.error}). Install it with "apt-get install libibverbs1 ibverbs-providers" ` +
      '(Debian, Ubuntu), "dnf install libibverbs" (Fedora, RHEL), or name another file in NODE_RDMA_LIBIBVERBS. ' +
      'diagnose() tells what else is missing.',
  );
}

/**
 * The addon, when libmlx5 is there too: what everything of `mlx5dv` asks for.
 *
 * @throws RdmaUnavailableError naming the package to install
 */
export function mlx5(): Binding {
  const addon = verbs();
  const state = addon.mlx5LoadState();
  if (state.available) return addon;
  throw new RdmaUnavailableError(
    `${state.path} cannot be loaded (${state.error}). Install it with "apt-get install ibverbs-providers" (Debian, ` +
      'Ubuntu), "dnf install libibverbs" (Fedora, RHEL), or name another file in NODE_RDMA_LIBMLX5.',
  );
}

/**
 * The addon, when librdmacm is there too.
 *
 * @throws RdmaUnavailableError naming the package to install
 */
export function connectionManager(): Binding {
  const addon = verbs();
  const state = addon.cmLoadState();
  if (state.available) return addon;
  throw new RdmaUnavailableError(
    `${state.path} cannot be loaded (${state.error}). Install it with "apt-get install librdmacm1" (Debian, Ubuntu), ` +
      '"dnf install librdmacm" (Fedora, RHEL), or name another file in NODE_RDMA_LIBRDMACM. Connections over TCP ' +
      '(listenTcp, connectTcp) do not need it.',
  );
}

function load(): Binding {
  if (process.platform !== 'linux') {
    throw new RdmaUnavailableError(`RDMA verbs exist on Linux only, and this is ${process.platform}`);
  }
  const require = createRequire(import.meta.url);
  let addon: Binding;
  try {
    const named = process.env.NODE_RDMA_ADDON;
    const root = fileURLToPath(new URL('../..', import.meta.url));
    addon = named ? require(named) : require('node-gyp-build')(root);
  } catch (cause) {
    throw new RdmaUnavailableError(
      `The addon of node-rdma cannot be loaded on ${process.platform}-${process.arch}: ` +
        `${cause instanceof Error ? cause.message.split('\n')[0] : cause}. In a checkout type "npm run setup". As a ` +
        'dependency it is compiled at installation where there is no prebuilt one: "apt-get install g++ make python3 ' +
        'libibverbs-dev librdmacm-dev" (Debian, Ubuntu), then "npm rebuild node-rdma".',
      { cause },
    );
  }
  // TypeScript writes C structs in place, at offsets that were generated from a header: another ABI must not go unseen.
  if (!isDeepStrictEqual(addon.layout, Layout)) {
    throw new RdmaUnavailableError('The addon was built for another layout of the verbs structs; run npm run gen');
  }
  addon.setErrorClass(RdmaError, GpuError);
  return addon;
}
