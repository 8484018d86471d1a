import { constants } from 'node:os';
import { type Command, InvalidArgumentError, Option } from 'commander';
import { type Accelerator, prepareVm, runInVm, VmError, type VmErrorCode } from '../vm/index.ts';
import { positive, seconds, subcommand } from './frame.ts';

interface Flags {
  prepare?: true;
  rxeDmabuf?: true;
  siw?: true;
  out?: string;
  env?: NodeJS.ProcessEnv;
  /** Milliseconds. */
  timeout?: number;
  accel?: Accelerator;
  memory?: string;
  cpus?: number;
}

const exitCodes: Partial<Record<VmErrorCode, number>> = { ERR_VM_KERNEL_OOPS: 70, ERR_VM_TIMEOUT: 124 };
const otherFailure = 125;

/** The subcommand `vm`. */
export function vmCommand(): Command {
  const description =
    'Run a command in a VM with Soft-RoCE: devices rxe0 (10.78.0.1 on v0) and rxe1 (10.78.0.2 on v1), joined by a wire.';
  // Not the command's own 1 or 2.
  return subcommand('vm', description, otherFailure)
    .argument('[command]', 'a program of this machine, whose files the VM sees (default: a shell)')
    .argument('[args...]', 'its arguments')
    .option('--out <dir>', 'a directory that the VM may write to; all else it writes is gone at the end')
    .option('--env <name[=value]>', 'set a variable, beside the whole environment, which is passed on', addVariable)
    .option('--timeout <seconds>', 'end the command after that time, with exit code 124', seconds)
    .option('--memory <size>', "the VM's memory, such as 512M or 4G (default: 2G)", memorySize)
    .option('--cpus <count>', "the VM's processors (default: 2)", positive)
    .addOption(new Option('--accel <name>', 'default: kvm where it works, else tcg').choices(['kvm', 'tcg']))
    .option('--rxe-dmabuf', 'a test vehicle: with an rxe that registers DMA-BUFs, built for it at the first time')
    .option(
      '--siw',
      'with software iWARP too: siw0 (10.79.0.1 on w0) and siw1 (10.79.0.2 on w1), built at the first time',
    )
    .option('--prepare', 'only fetch and build what the VM needs')
    .passThroughOptions()
    .addHelpText('after', help)
    .action(run);
}

const help = `
The exit code is the command's own, or 128 + n when signal n killed it, or:
  70   the VM's kernel warned or crashed, whatever the command said
  124  --timeout
  125  the command line is wrong, or the VM did not start, or broke
`;

async function run(command: string | undefined, args: string[], flags: Flags): Promise<void> {
  const onProgress = (message: string) => console.error(`node-rdma: ${message}`);
  const abort = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    process.once(signal, () => {
      process.exitCode = 128 + constants.signals[signal];
      abort.abort();
    });
  }
  const drivers = { rxeDmabuf: flags.rxeDmabuf === true, siw: flags.siw === true };
  try {
    if (flags.prepare) {
      await prepareVm({ onProgress, signal: abort.signal, ...drivers });
      return;
    }
    const tty = process.stdin.isTTY && process.stdout.isTTY;
    if (process.stderr.isTTY) onProgress('starting the VM');
    const { code, kernelLog } = await runInVm({
      command: command ?? process.env.SHELL ?? '/bin/sh',
      args,
      env: { ...process.env, ...flags.env },
      stdin: process.stdin,
      tty,
      signal: abort.signal,
      onProgress,
      ...drivers,
      ...(flags.out !== undefined && { out: flags.out }),
      ...(flags.timeout !== undefined && { timeoutMs: flags.timeout }),
      ...(flags.accel !== undefined && { accel: flags.accel }),
      ...(flags.memory !== undefined && { memory: flags.memory }),
      ...(flags.cpus !== undefined && { cpus: flags.cpus }),
    });
    process.exitCode = code;
    if (/Out of memory: Killed process/.test(kernelLog)) onProgress('the VM ran out of memory: see --memory');
  } catch (error) {
    if (abort.signal.aborted) return;
    if ((error as NodeJS.ErrnoException).code === 'EPIPE') {
      process.exitCode = 128 + constants.signals.SIGPIPE;
      return;
    }
    if (!(error instanceof VmError)) throw error;
    console.error(`node-rdma: ${error.code}: ${error.message}`);
    process.exitCode = exitCodes[error.code] ?? otherFailure;
  }
}

function addVariable(text: string, variables: NodeJS.ProcessEnv = {}): NodeJS.ProcessEnv {
  const [name = '', ...value] = text.split('=');
  return { ...variables, [name]: text.includes('=') ? value.join('=') : process.env[name] };
}

function memorySize(text: string): string {
  if (!/^\d+[MG]$/.test(text)) throw new InvalidArgumentError('Such as 512M or 4G.');
  return text;
}
