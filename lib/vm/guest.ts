import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import type { Socket } from 'node:net';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { VmError } from './errors.ts';
import { findKernelTrouble } from './kernel-log.ts';
import { toolEnv } from './packages.ts';
import { type Machine, portFds, qemuCommand } from './qemu.ts';

/** A running QEMU and the ports it shares with the guest's init. */
export class Guest {
  /** Everything the guest's kernel has said so far, from warnings up. */
  kernelLog = '';
  /** How far init has come: nothing, hello, ready (the command runs), exit CODE. */
  progress = '';
  #complaint = '';
  #qemuErrors = '';
  #cause: Error | undefined;
  readonly #qemu: ChildProcess;
  readonly #lines: AsyncIterator<string>;
  readonly #gone: Promise<unknown>;

  constructor(machine: Machine) {
    const [program, ...args] = qemuCommand(machine);
    this.#qemu = spawn(program!, args, {
      stdio: ['ignore', 'pipe', 'pipe', ...Object.values(portFds).map(() => 'pipe' as const)],
      env: toolEnv,
      // A group of its own: a Ctrl-C is for this process to handle, not for QEMU.
      detached: true,
    });
    const text = (stream: Readable, add: (chunk: string) => void) => {
      stream.setEncoding('utf8').on('data', add);
      return once(stream, 'close');
    };
    const exited = new Promise<void>((resolve) => {
      this.#qemu.once('exit', () => resolve());
      this.#qemu.once('error', (error) => {
        this.#qemuErrors += `${error.message}\n`;
        resolve();
      });
    });
    this.#gone = Promise.all([
      exited,
      text(this.#qemu.stdout!, (chunk) => {
        this.kernelLog += chunk;
      }),
      text(this.#qemu.stderr!, (chunk) => {
        this.#qemuErrors += chunk;
      }),
    ]);
    // When QEMU dies, a write fails with EPIPE; the end of the process tells more.
    for (const name of Object.keys(portFds)) this.port(name as keyof typeof portFds).on('error', () => {});
    this.#lines = createInterface({ input: this.port('control') })[Symbol.asyncIterator]();
  }

  /** This side of a port. */
  port(name: keyof typeof portFds): Socket {
    return this.#qemu.stdio[portFds[name]] as Socket;
  }

  /** Waits for the next word of the guest's init. */
  async word(): Promise<string> {
    const line = await this.#lines.next();
    if (line.done) return this.failure();
    if (line.value.startsWith('fail ')) {
      this.#complaint = line.value.slice('fail '.length);
      this.stop();
      return this.failure();
    }
    this.progress = line.value;
    return line.value;
  }

  /** Waits until the kernel log contains a text. */
  async logged(text: string): Promise<void> {
    while (!this.kernelLog.includes(text)) await once(this.#qemu.stdout!, 'data');
  }

  /** Ends QEMU. A cause is what {@link failure} then reports; the first one counts. */
  stop(cause?: Error): void {
    this.#cause ??= cause;
    this.#qemu.kill('SIGKILL');
  }

  /** Ends QEMU and waits for its end. */
  async close(): Promise<void> {
    this.stop();
    await this.#gone;
  }

  /** Waits for the end of QEMU, which comes by itself only when something is wrong, and throws what it was. */
  async failure(): Promise<never> {
    await this.#gone;
    if (this.#cause !== undefined) throw this.#cause;
    const { kernelLog } = this;
    const trouble = findKernelTrouble(kernelLog);
    const running = this.progress === 'ready';
    const details = [this.#complaint, trouble ?? `${this.#qemuErrors}${lastLines(kernelLog)}`].join('\n').trim();
    if (trouble !== undefined || (running && this.#complaint !== '')) {
      throw new VmError('ERR_VM_KERNEL_OOPS', `the guest's kernel failed:\n${details}`, { kernelLog });
    }
    if (running) throw new VmError('ERR_VM_CRASH', `QEMU ended while the command ran\n${details}`, { kernelLog });
    throw new VmError('ERR_VM_BOOT', `the guest did not come up\n${details}`, { kernelLog });
  }
}

function lastLines(text: string): string {
  return text.split('\n').slice(-40).join('\n');
}
