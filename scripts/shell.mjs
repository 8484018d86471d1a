// What the other scripts share: running commands, and doing work only when its inputs have changed.
// Plain Node without dependencies: it runs in a clean clone.

import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

export const root = fileURLToPath(new URL('..', import.meta.url)).replace(/\/$/, '');

/** Progress goes to stderr, so that stdout holds results only. */
export function say(text) {
  process.stderr.write(`${text}\n`);
}

/** A command that failed: its output says why, and a stack trace would say nothing. */
export class CommandError extends Error {}

/** Runs a command in the checkout and returns its output. Throws, with all that it printed, when it fails. */
export function run(command, args, options = {}) {
  const result = spawnSync(command, args, { cwd: root, encoding: 'utf8', maxBuffer: 1 << 28, ...options });
  if (result.status !== 0) {
    const reason = result.error?.message ?? `${result.stdout}${result.stderr}`.trim();
    throw new CommandError(`${[command, ...args].join(' ')}\nfailed (${result.signal ?? result.status}):\n${reason}`);
  }
  return result.stdout;
}

/** All files below a folder of the checkout, as sorted paths relative to the checkout. */
export function filesBelow(folder) {
  return readdirSync(join(root, folder), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(root.length + 1))
    .sort();
}

/** One hash over the contents of files and over anything else that decides the result. */
export function contentHash(paths, ...others) {
  const hash = createHash('sha256').update(JSON.stringify(others));
  for (const path of paths) hash.update(`\0${path}\0`).update(readFileSync(join(root, path)));
  return hash.digest('hex');
}

/** Does the work unless the stamp says that it was last done for this very hash. */
export async function whenChanged(stamp, hash, work) {
  const path = join(root, stamp);
  try {
    if (readFileSync(path, 'utf8') === hash) return false;
  } catch {}
  await work();
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, hash);
  return true;
}

/** Runs `main` if the module was started as a program rather than imported. */
export async function whenMain(url, main) {
  if (url !== pathToFileURL(process.argv[1] ?? '').href) return;
  try {
    await main(process.argv.slice(2));
  } catch (error) {
    say(error instanceof CommandError ? error.message : error.stack);
    process.exitCode = 1;
  }
}
