#!/usr/bin/env node
// What the built addon asks of the machine it is loaded on: how old a C library may be, that it links neither rdma-core
// nor a C++ library, and that it exports the two Node-API entry points and nothing else.
//   node scripts/check-floor.mjs [file.node ...]

import { existsSync } from 'node:fs';
import { CommandError, filesBelow, run, whenMain } from './shell.mjs';

/** glibc of RHEL 8, Debian 10 and Ubuntu 18.10: the oldest that the releases of Node which we support run on. */
const FLOOR = 28;
const MAY_NEED = /^(libc|libgcc_s|libm|libdl|libpthread|ld-linux-x86-64|ld-linux-aarch64|libc\.musl-\w+)\.so/;
const EXPORTS = ['napi_register_module_v1', 'node_api_module_get_api_version_v1'];

function checkFile(file) {
  const faults = [];
  const symbols = run('readelf', ['--dyn-syms', '--wide', file])
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter(([number]) => /^\d+:$/.test(number ?? ''))
    .map(([, , , , binding, , section, name]) => ({ binding, section, name: name ?? '' }));

  const tooYoung = symbols.filter(({ name }) => Number(/@GLIBC_2\.(\d+)/.exec(name)?.[1] ?? 0) > FLOOR);
  if (tooYoung.length > 0)
    faults.push(`needs a glibc above 2.${FLOOR}: ${tooYoung.map(({ name }) => name).join(', ')}`);

  const exported = symbols.filter(({ binding, section }) => section !== 'UND' && binding !== 'LOCAL');
  const others = exported.filter(({ name }) => !EXPORTS.includes(name)).map(({ name }) => name);
  if (others.length > 0 || exported.length !== EXPORTS.length) {
    faults.push(`exports ${others.join(', ') || 'too little'} rather than ${EXPORTS.join(' and ')} alone`);
  }

  const needed = [...run('readelf', ['--dynamic', '--wide', file]).matchAll(/\(NEEDED\).*\[(.*)\]/g)].map(
    ([, name]) => name,
  );
  const foreign = needed.filter((name) => !MAY_NEED.test(name));
  if (foreign.length > 0) faults.push(`links ${foreign.join(', ')}`);

  const floor = Math.max(0, ...symbols.map(({ name }) => Number(/@GLIBC_2\.(\d+)/.exec(name)?.[1] ?? 0)));
  console.log(`${file}: glibc 2.${floor}, links ${needed.join(', ')}`);
  return faults.map((fault) => `${file} ${fault}`);
}

await whenMain(import.meta.url, (named) => {
  const prebuilt = existsSync('prebuilds') ? filesBelow('prebuilds').filter((file) => file.endsWith('.node')) : [];
  const files = named.length > 0 ? named : ['build/Release/node_rdma.node', ...prebuilt];
  const faults = files.flatMap(checkFile);
  if (faults.length > 0) throw new CommandError(faults.join('\n'));
});
