// Prints what the compiler is given, a path to a line: for binding.gyp and CMakeLists.txt.
//
// That is a file for each room, in build/rooms, which includes all files of the room: most of the time goes into the
// headers of Node-API. What must come before any header, or undefines macros, is given as it is.

import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const isAlone = (source) => /^(addon|core\/glibc_floor|rdma_core\/.*)\.cc$/.test(source);

const sources = readdirSync(join(root, 'native'), { recursive: true })
  .filter((path) => path.endsWith('.cc'))
  .sort();

const rooms = new Map();
for (const source of sources) {
  if (isAlone(source)) continue;
  const room = dirname(source);
  rooms.set(room, `${rooms.get(room) ?? ''}#include "${source}"\n`);
}

mkdirSync(join(root, 'build/rooms'), { recursive: true });
const given = sources.filter(isAlone).map((source) => `native/${source}`);
for (const [room, text] of rooms) {
  const path = `build/rooms/${room}.cc`;
  const file = join(root, path);
  // One that is as it was is not compiled again.
  if (!existsSync(file) || readFileSync(file, 'utf8') !== text) writeFileSync(file, text);
  given.push(path);
}
console.log(given.join('\n'));
