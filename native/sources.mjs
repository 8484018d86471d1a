// Prints what the compiler is given, a path to a line: for binding.gyp and CMakeLists.txt.
//
// That is two files in build/units, one for each of two processors, which include all files of some rooms: most of the time
// goes into the headers of Node-API. What must come before any header, or undefines macros, is given as it is.

import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const isAlone = (source) => /^(core\/glibc_floor|rdma_core\/.*)\.cc$/.test(source);
const unitOf = (source) => (/^(core|datapath|handles|verbs)\//.test(source) ? 'verbs' : 'others');

const sources = readdirSync(join(root, 'native'), { recursive: true })
  .filter((path) => path.endsWith('.cc'))
  .sort();

const units = new Map();
for (const source of sources) {
  if (isAlone(source)) continue;
  const unit = unitOf(source);
  units.set(unit, `${units.get(unit) ?? ''}#include "${source}"\n`);
}

mkdirSync(join(root, 'build/units'), { recursive: true });
const given = sources.filter(isAlone).map((source) => `native/${source}`);
for (const [unit, text] of units) {
  const path = `build/units/${unit}.cc`;
  const file = join(root, path);
  // One that is as it was is not compiled again.
  if (!existsSync(file) || readFileSync(file, 'utf8') !== text) writeFileSync(file, text);
  given.push(path);
}
console.log(given.join('\n'));
