/**
 * A pool of vitest whose only worker is a process in the VM. Vitest itself and vite stay outside: in an emulated VM they
 * would take half a minute to start.
 */
import { EventEmitter } from 'node:events';
import { resolve } from 'node:path';
import { PassThrough, Writable } from 'node:stream';
import { pathToFileURL } from 'node:url';
import type { PoolOptions, PoolRunnerInitializer, PoolWorker, WorkerRequest, WorkerResponse } from 'vitest/node';
import type { VmDrivers } from '../lib/vm/index.ts';
import { frame, unframe } from './vm-frames.ts';

const worker = resolve('build/vm-tests/test/vm-worker.ts.js');

class VmWorker extends EventEmitter implements PoolWorker {
  readonly name = 'vm';
  readonly #options: PoolOptions;
  readonly #env: Record<string, string>;
  readonly #drivers: VmDrivers;
  readonly #input = new PassThrough();
  readonly #abort = new AbortController();
  #ended: Promise<void> = Promise.resolve();
  #isStopping = false;
  // What waits for the worker to have started.
  #waiting: WorkerRequest[] | undefined = [];

  constructor(options: PoolOptions, env: Record<string, string>, drivers: VmDrivers) {
    super();
    this.#options = options;
    this.#env = env;
    this.#drivers = drivers;
  }

  async start(): Promise<void> {
    const { runInVm }: typeof import('../lib/vm/index.ts') = await import(
      pathToFileURL(resolve('dist/vm/index.js')).href
    );
    const take = unframe((message) => this.#take(message as WorkerResponse));
    const running = runInVm({
      command: 'sh',
      // What tests and their programs print goes to where errors go, and nobody but the worker reads.
      args: [
        ...['-c', 'exec "$@" 3<&0 4>&1 0</dev/null 1>&2', 'sh'],
        ...[process.execPath, ...this.#options.execArgv, worker],
      ],
      env: { ...this.#options.env, ...this.#env },
      stdin: this.#input,
      stdout: new Writable({ write: (piece, _, done) => done(void take(piece)) }),
      signal: this.#abort.signal,
      ...this.#drivers,
    });
    this.#ended = running.then(
      ({ code }) => this.#end(code === 0 ? undefined : new Error(`the worker in the VM ended with ${code}`)),
      (error: Error) => this.#end(error),
    );
  }

  #end(error: Error | undefined): void {
    if (this.#isStopping) {
      if (error === undefined) return;
      // After the last test, of the kernel above all. Vitest only tells of it.
      process.exitCode = 1;
      this.#options.project.vitest.logger.error(error);
    } else {
      this.emit('error', error ?? new Error('the worker in the VM ended before its tests'));
    }
  }

  #take(message: WorkerResponse): void {
    if (message.type !== 'started') {
      this.emit('message', message);
    } else if (message.error) {
      // Of another process, so no longer an Error.
      this.emit('error', new Error('the worker in the VM cannot start', { cause: message.error }));
    } else {
      for (const waiting of this.#waiting ?? []) this.#input.write(frame(waiting));
      this.#waiting = undefined;
    }
  }

  /**
   * Vitest waits for a minute until a worker has started, in which a busy machine may not boot: it is told at once, and the VM
   * knows how long that may take.
   */
  send(message: WorkerRequest): void {
    const answer = (type: 'started' | 'stopped') => this.emit('message', { __vitest_worker_response__: true, type });
    if (message.type === 'start') {
      this.#input.write(frame(message));
      answer('started');
    } else if (this.#waiting === undefined) {
      if (message.type === 'stop') this.#isStopping = true;
      this.#input.write(frame(message));
    } else if (message.type === 'stop') {
      answer('stopped');
    } else {
      this.#waiting.push(message);
    }
  }

  async stop(): Promise<void> {
    // Without an orderly stop before it, this one is at once.
    if (!this.#isStopping) this.#abort.abort();
    this.#isStopping = true;
    this.#input.end();
    await this.#ended;
  }

  deserialize(message: unknown): unknown {
    return message;
  }
}

/** Runs the tests in the VM, with more variables and drivers there. */
export const vmPool = (env: Record<string, string>, drivers: VmDrivers = {}): PoolRunnerInitializer => ({
  name: 'vm',
  createPoolWorker: (options) => new VmWorker(options, env, drivers),
});
