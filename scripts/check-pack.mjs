#!/usr/bin/env node
// Packs what would be published, installs it in an empty folder, and uses it there: imports every entry point that
// package.json names, without the addon, which must be no error, and with it; and starts the command.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { root, run, whenMain } from './shell.mjs';

await whenMain(import.meta.url, () => {
  const { name, exports, bin } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  const folder = mkdtempSync(join(tmpdir(), 'node-rdma-pack-'));
  try {
    const packed = JSON.parse(run('npm', ['pack', '--ignore-scripts', '--json', '--pack-destination', folder]));
    writeFileSync(join(folder, 'package.json'), '{ "private": true, "type": "module" }');
    run(
      'npm',
      ['install', '--ignore-scripts', '--no-audit', '--no-fund', '--prefer-offline', `./${packed[0].filename}`],
      {
        cwd: folder,
      },
    );

    const entries = Object.keys(exports).filter((entry) => entry !== './package.json');
    const imports = entries.map((entry) => `import ${JSON.stringify(name + entry.slice(1))};`).join('\n');
    writeFileSync(join(folder, 'use.mjs'), `${imports}\n`);
    run(process.execPath, ['use.mjs'], { cwd: folder });
    run(process.execPath, ['use.mjs'], {
      cwd: folder,
      env: { ...process.env, NODE_RDMA_ADDON: join(root, 'build/Release/node_rdma.node') },
    });
    for (const command of Object.keys(bin))
      run(join(folder, 'node_modules/.bin', command), ['--help'], { cwd: folder });
    console.log(
      `${packed[0].filename}: ${packed[0].entryCount} files, ${Math.round(packed[0].size / 1024)} KiB, ${entries.join(' ')}`,
    );
  } finally {
    rmSync(folder, { recursive: true });
  }
});
