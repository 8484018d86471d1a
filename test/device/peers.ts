/** Programs that no one here wrote, as peers of a test. */
import { type ChildProcess, spawn } from 'node:child_process';
import { expect } from 'vitest';
import { type MemoryRegion, openDevice } from '../../lib/index.ts';
import { DEADLINE_MS, within } from './fixture.ts';

/** A foreign program beside the test; killed with it when it hangs. */
export class Peer {
  output = '';
  readonly #child: ChildProcess;
  readonly ended: Promise<number | null>;
  constructor(command: string, ...args: string[]) {
    this.#child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'] });
    for (const stream of [this.#child.stdout, this.#child.stderr]) {
      stream?.setEncoding('utf8').on('data', (text: string) => (this.output += text));
    }
    const timer = setTimeout(() => this.#child.kill('SIGKILL'), 2 * DEADLINE_MS);
    this.ended = new Promise((resolve, reject) => {
      this.#child.on('error', reject);
      this.#child.on('close', (code) => {
        clearTimeout(timer);
        resolve(code);
      });
    });
  }
  /** Waits until it ends well. */
  async succeeds(): Promise<string> {
    const code = await within(this.ended, `the end of ${this.#child.spawnfile}`);
    expect({ code, output: this.output }).toMatchObject({ code: 0 });
    return this.output;
  }
}

/** What a program that does not say when it listens needs: the attempt is made again until somebody does. */
export async function once<T>(attempt: () => Promise<T>): Promise<T> {
  const end = performance.now() + DEADLINE_MS;
  for (;;) {
    try {
      return await attempt();
    } catch (error) {
      const isEarly = (error as { code?: string; status?: number }).code === 'ECONNREFUSED';
      if (!isEarly || performance.now() > end) throw error;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

/** Memory on a device, of a domain of its own. */
export const memoryOn = (device: string, bytes = 4096): MemoryRegion => openDevice(device).allocPd().allocSync(bytes);
