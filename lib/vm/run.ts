import { randomBytes } from 'node:crypto';
import { mkdir, realpath } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join, resolve } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { accelerators, rememberKvmFailure } from './accel.ts';
import { VmError, type VmErrorCode } from './errors.ts';
import { Guest } from './guest.ts';
import { guestModules, prepareInitrd } from './initrd.ts';
import { type Kernel, type PrepareOptions, prepareKernel } from './kernel.ts';
import { findKernelTrouble } from './kernel-log.ts';
import { checkHost } from './packages.ts';
import type { Accelerator, portFds } from './qemu.ts';
import { type Request, requestScript } from './request.ts';
import { prepareRxeDmabuf } from './rxe-dmabuf.ts';
import { prepareSiw } from './siw.ts';
import { pump, rawTerminal } from './streams.ts';

/** What a VM has beside Soft-RoCE. */
export interface VmDrivers {
  /**
   * Gives the guest an rxe that registers DMA-BUFs, and sets NODE_RDMA_LIBIBVERBS to a library that asks it to. A test
   * vehicle: no kernel has such an rxe. It is built once, which takes a minute or two, 170 MB of downloads, make and the
   * compiler that made the kernel. Default false.
   */
  rxeDmabuf?: boolean;
  /**
   * Gives the guest software iWARP too: two devices, siw0 (10.79.0.1 on w0) and siw1 (10.79.0.2 on w1), joined by a veth pair
   * of their own. Debian's kernels come without the driver: it is built once, unchanged, as with `rxeDmabuf` and by the same
   * downloads. Default false.
   */
  siw?: boolean;
}

/** What to run in the VM, and how. */
export interface VmOptions extends PrepareOptions, VmDrivers {
  /** A program of the host: the guest sees the host's file system. It runs as root. */
  command: string;
  /** Its arguments, handed over unharmed. Default none. */
  args?: readonly string[];
  /** The directory to run in. Default: the current one. */
  cwd?: string;
  /** The command's whole environment. Default: that of this process. `NODE_RDMA_VM=1` is added. */
  env?: NodeJS.ProcessEnv;
  /** What the command reads. Default: nothing, it reads the end at once. */
  stdin?: Readable;
  /** Where its output goes; not ended. Default: this process's stdout. */
  stdout?: Writable;
  /** Where its error output goes; not ended. Default: this process's stderr. */
  stderr?: Writable;
  /** Runs the command on this process's terminal (stdin and stdout, which must be ttys); the three streams are unused. */
  tty?: boolean;
  /**
   * A directory of the host that the guest may write to, under the same path; made if missing. Everything else that the
   * command writes goes to memory and is gone with the VM.
   */
  out?: string;
  /** Ends the VM when the command has run for this many milliseconds. Default: never. */
  timeoutMs?: number;
  /** Default: KVM where a guest boots on it (a failure is remembered until the host boots again), else TCG. */
  accel?: Accelerator;
  /** The guest's memory in QEMU's notation. Default `2G`. Half of it bounds what the command may write to memory. */
  memory?: string;
  /** The guest's processors. Default 2. */
  cpus?: number;
}

/** How a command in the VM ended. */
export interface VmResult {
  /** The exit code; 128 + n when signal n killed the command. */
  code: number;
  /** What the guest's kernel said, from warnings up. */
  kernelLog: string;
  /** What ran the guest. */
  accel: Accelerator;
  /** Milliseconds from the start of QEMU to the start of the command. */
  bootMs: number;
}

// Some twenty times what a boot takes under emulation on an idle machine.
const bootMs = 180_000;
// A guest on a working KVM says hello within a second.
const trialMs = 15_000;

/** What a boot needs, in the cache. */
export interface PreparedVm {
  /** The unpacked kernel. */
  kernel: Kernel;
  /** The initrd's file. */
  initrd: string;
  /** The library that was built with `rxeDmabuf`, for NODE_RDMA_LIBIBVERBS. */
  libibverbs?: string;
}

/**
 * Fetches and builds what a boot needs, or finds it in the cache: kernel, modules, initrd.
 *
 * @returns The paths, for the curious; {@link runInVm} calls this itself.
 * @throws {@link VmError} ERR_VM_PLATFORM, ERR_VM_PACKAGES or ERR_VM_KERNEL, whose message says what to type.
 */
export async function prepareVm(options: PrepareOptions & VmDrivers = {}): Promise<PreparedVm> {
  await checkHost();
  const kernel = await prepareKernel(options);
  const dmabuf = options.rxeDmabuf ? await prepareRxeDmabuf(kernel, options) : undefined;
  const siw = options.siw ? await prepareSiw(kernel, options) : undefined;
  const own = [dmabuf?.module, siw].filter((file) => file !== undefined);
  return {
    kernel,
    initrd: await prepareInitrd(kernel, guestModules, own),
    ...(dmabuf && { libibverbs: dmabuf.library }),
  };
}

/**
 * Runs a command in a VM whose kernel has Soft-RoCE: two RDMA devices, rxe0 (10.78.0.1 on v0) and rxe1 (10.78.0.2 on
 * v1), joined by a veth pair. The guest is the host's file system, readable as it is and writable in memory.
 *
 * @returns How the command ended, whatever its exit code.
 * @throws {@link VmError} when the VM failed, also when its kernel warned and the command was content.
 * @example
 * const { code } = await runInVm({ command: 'ibv_devinfo' });
 */
export async function runInVm(options: VmOptions): Promise<VmResult> {
  options.signal?.throwIfAborted();
  const { kernel, initrd, libibverbs } = await prepareVm(options);
  const { memory = '2G', cpus = 2, args = [] } = options;
  const env = { ...(options.env ?? process.env), ...(libibverbs && { NODE_RDMA_LIBIBVERBS: libibverbs }) };
  if (options.out !== undefined) await mkdir(options.out, { recursive: true });
  const out = options.out === undefined ? undefined : await realpath(options.out);
  const token = randomBytes(16).toString('hex');
  const modules = join(kernel.root, 'lib', 'modules', kernel.release);
  const request = {
    ...{ command: options.command, args, env, cwd: resolve(options.cwd ?? '.') },
    ...{ hostname: hostname(), modules, token, out },
  };

  const order = await accelerators(options.accel);
  let kvmFailed = false;
  let bootCrashes = 0;
  for (;;) {
    const accel = order.shift()!;
    const guest = new Guest({ accel, image: kernel.image, initrd, memory, cpus, out });
    const abort = () => guest.stop(options.signal?.reason);
    options.signal?.addEventListener('abort', abort, { once: true });
    if (options.signal?.aborted) abort();
    try {
      return {
        accel,
        ...(await converse(guest, request, options, accel === 'kvm' && order.length > 0 ? trialMs : bootMs)),
      };
    } catch (error) {
      const hasBegun = guest.progress !== '' && guest.progress !== 'hello';
      if (hasBegun || options.signal?.aborted) throw error;
      if (order.length > 0 && guest.progress === '') {
        kvmFailed = true;
      } else {
        // Emulated processors now and then trip over a kernel that patches its own code while it boots. The command has
        // not begun, so it can be tried again, and whoever asked is told.
        const crashed = error instanceof VmError && error.code === 'ERR_VM_KERNEL_OOPS';
        if (accel !== 'tcg' || !crashed || ++bootCrashes > 2) throw error;
        options.onProgress?.('the guest crashed while it booted; starting it again');
        order.push(accel);
      }
    } finally {
      options.signal?.removeEventListener('abort', abort);
      await guest.close();
      // Only a guest that does start without KVM proves that KVM was to blame.
      if (kvmFailed && guest.progress !== '') await rememberKvmFailure();
    }
  }
}

/** The whole talk with a guest, from its first word to the end of its output. */
async function converse(
  guest: Guest,
  request: Omit<Request, 'tty'>,
  options: VmOptions,
  helloMs: number,
): Promise<Omit<VmResult, 'accel'>> {
  const limit = (ms: number, code: VmErrorCode, what: string) =>
    setTimeout(() => {
      const message = `${what} within ${ms / 1000} s`;
      const trouble = findKernelTrouble(guest.kernelLog);
      guest.stop(
        trouble === undefined
          ? new VmError(code, message, guest)
          : new VmError('ERR_VM_KERNEL_OOPS', `${message}, and the kernel complained:\n${trouble}`, guest),
      );
    }, ms);
  const start = performance.now();
  let timer = limit(helloMs, 'ERR_VM_BOOT', 'the guest did not start');
  try {
    await guest.word();
    clearTimeout(timer);
    timer = limit(bootMs, 'ERR_VM_BOOT', 'the guest did not come up');
    const { rows, columns } = process.stdout;
    guest.port('request').end(requestScript({ ...request, tty: options.tty ? { rows, columns } : undefined }));
    await guest.word();
    clearTimeout(timer);
    const ready = performance.now();
    if (options.timeoutMs !== undefined) timer = limit(options.timeoutMs, 'ERR_VM_TIMEOUT', 'the command did not end');
    const code = await runCommand(guest, request.token, options);
    const { kernelLog } = guest;
    const trouble = findKernelTrouble(kernelLog);
    if (trouble === undefined) return { code, kernelLog, bootMs: Math.round(ready - start) };
    throw new VmError(
      'ERR_VM_KERNEL_OOPS',
      `the command ended with ${code}, but the kernel complained:\n${trouble}`,
      guest,
    );
  } finally {
    clearTimeout(timer);
  }
}

async function runCommand(guest: Guest, token: string, options: VmOptions): Promise<number> {
  const { stdout, stderr, stdin } = process;
  const mark = Buffer.from(`\x1e${token}`);
  const streams: [keyof typeof portFds, Writable][] = options.tty
    ? [['tty', stdout]]
    : [
        ['stdout', options.stdout ?? stdout],
        ['stderr', options.stderr ?? stderr],
      ];
  const fail = (error: Error) => guest.stop(error);
  for (const [, to] of streams) to.on('error', fail);
  const input = options.tty ? stdin : options.stdin;
  const inputPort = guest.port(options.tty ? 'tty' : 'stdin');
  const resize = () => guest.port('control').write(`size ${stdout.rows} ${stdout.columns}\n`);
  const restoreTerminal = options.tty ? rawTerminal() : () => {};
  if (options.tty) stdout.on('resize', resize);
  if (input === undefined) inputPort.end();
  else input.pipe(inputPort);

  const output = Promise.all(streams.map(([name, to]) => pump(guest.port(name), mark, to)));
  // A reader that fails stops the guest, and failure() below tells of it.
  output.catch(() => {});
  const end = async () => {
    const code = Number((await guest.word()).slice('exit '.length));
    // The console of a guest may lose output to a terminal that is slow, and so the mark.
    await (options.tty ? Promise.race([output, sleep(1000)]) : output);
    await guest.logged(token);
    return code;
  };
  try {
    return await Promise.race([end(), guest.failure()]);
  } catch (error) {
    // What the command said before a crash helps to find its cause.
    await Promise.race([Promise.allSettled([output]), sleep(1000)]);
    throw error;
  } finally {
    for (const [, to] of streams) to.off('error', fail);
    input?.unpipe(inputPort);
    input?.pause();
    stdout.off('resize', resize);
    restoreTerminal();
  }
}
