// npm's install script. On Linux, x64 and arm64, the addon must be there: prebuilt, or else built now. Everywhere else
// there is nothing to build: the package can be imported, and says so when it is used. In a checkout `npm run setup`
// builds, after it has installed what a build needs.

import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';

const isCheckout = existsSync(new URL('setup.mjs', import.meta.url));
if (!isCheckout && process.platform === 'linux' && ['x64', 'arm64'].includes(process.arch)) {
  const nodeGypBuild = createRequire(import.meta.url).resolve('node-gyp-build/bin.js');
  const { status } = spawnSync(process.execPath, [nodeGypBuild], { stdio: 'inherit' });
  if (status !== 0) {
    console.error(`
node-rdma: there is no prebuilt addon for this machine, and it could not be built. A C++ compiler, make, python3 and the
headers of rdma-core are needed:
  Debian, Ubuntu:  apt-get install g++ make python3 libibverbs-dev librdmacm-dev
  Fedora, RHEL:    dnf install gcc-c++ make python3 rdma-core-devel
  SUSE:            zypper install gcc-c++ make python3 rdma-core-devel
  Alpine:          apk add g++ make python3 linux-headers rdma-core-dev
`);
    process.exitCode = 1;
  }
}
