/** The libraries that stand in for those of GPU drivers (test/gpu-drivers), and what the tests tell them and read of them. */
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

const built = resolve('build/gpu-drivers');
const library = (name: string) => {
  const path = join(built, `lib${name}-stand-in.so`);
  if (!existsSync(path)) throw new Error(`${path} is missing: make -C test/gpu-drivers`);
  return path;
};

const folder = mkdtempSync(join(tmpdir(), 'gpu-drivers-'));
process.once('exit', () => rmSync(folder, { recursive: true, force: true }));

/** What a process of these tests needs in its environment. */
export const driverEnv = {
  NODE_RDMA_LIBCUDA: library('cuda'),
  NODE_RDMA_LIBHSA: library('hsa'),
  STAND_IN_LOG: join(folder, 'log'),
  STAND_IN_CONTROL: join(folder, 'control'),
};

/** Each call that was made since the last time, by either library. */
export function takeLog(): string[] {
  const text = existsSync(driverEnv.STAND_IN_LOG) ? readFileSync(driverEnv.STAND_IN_LOG, 'utf8') : '';
  writeFileSync(driverEnv.STAND_IN_LOG, '');
  return text.split('\n').filter((line) => line !== '');
}

/** What shall go wrong from now on: lines of a function and its status, or of what a device is. */
export function control(...lines: string[]): void {
  writeFileSync(driverEnv.STAND_IN_CONTROL, lines.map((line) => `${line}\n`).join(''));
}
