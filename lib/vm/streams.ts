import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import type { Readable, Writable } from 'node:stream';

/**
 * Copies what a stream carries, at the reader's pace, until the end mark or the end of the stream. A mark, because the
 * ports of a virtio serial device have no end of their own that comes after the data.
 */
export async function pump(from: Readable, mark: Buffer, to: Writable): Promise<void> {
  let held: Buffer = Buffer.alloc(0);
  for await (const chunk of from) {
    const data = Buffer.concat([held, chunk]);
    const end = data.indexOf(mark);
    const size = end >= 0 ? end : data.length - overlap(data, mark);
    if (size > 0 && !to.write(data.subarray(0, size))) await once(to, 'drain');
    if (end >= 0) return;
    held = data.subarray(size);
  }
  to.write(held);
}

/** How many bytes at the end of `data` may be the beginning of `mark`. */
function overlap(data: Buffer, mark: Buffer): number {
  for (let size = Math.min(data.length, mark.length - 1); size > 0; size--) {
    if (data.subarray(data.length - size).equals(mark.subarray(0, size))) return size;
  }
  return 0;
}

/**
 * Takes this process's terminal out of the way, for the guest's own tty does all that a terminal does.
 *
 * @returns What puts the terminal back as it was.
 */
export function rawTerminal(): () => void {
  // Not setRawMode: it leaves the translation of output on, and the guest has translated already.
  const stty = (...args: string[]) =>
    execFileSync('stty', args, { stdio: ['inherit', 'pipe', 'inherit'], encoding: 'utf8' }).trim();
  const before = stty('-g');
  stty('raw', '-echo');
  return () => void stty(before);
}
