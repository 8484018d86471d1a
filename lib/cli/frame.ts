/** What all subcommands but `vm` share: errors, exit codes, signals. */
import { constants } from 'node:os';
import { Command, InvalidArgumentError } from 'commander';
import { RdmaUnavailableError } from '../errors.ts';

/** Exit codes; 128 + n when signal n ended the command. */
export const Exit = Object.freeze({
  /** It failed, or what was looked at is not as it should be. */
  FAILED: 1,
  /** The command line is wrong. */
  USAGE: 2,
  /** RDMA, or a program that is needed, is not here. */
  UNAVAILABLE: 3,
} as const);

/** An error that is told in one line. */
export class Complaint extends Error {
  readonly exit: number;

  constructor(message: string, exit: number = Exit.FAILED) {
    super(message);
    this.exit = exit;
  }
}

/** There is a way to RDMA, and nothing at its end. */
export const noDevices = () => new Complaint('no RDMA devices: "node-rdma doctor" says why', Exit.UNAVAILABLE);

/** A subcommand, and the exit code of its wrong use. */
export function subcommand(name: string, description: string, wrongUse: number = Exit.USAGE): Command {
  return new Command(name)
    .description(description)
    .showHelpAfterError('(--help tells how it is used)')
    .exitOverride((error) => process.exit(error.exitCode === 0 ? 0 : wrongUse));
}

/** How a subcommand ends. */
export interface Ending {
  /** It goes on until it is ended: SIGINT is its good end. */
  isEndless?: boolean;
  /** It computes, and the event loop gets no turn till it is done: signals do what they do by default. */
  isBusy?: boolean;
}

/**
 * Runs a subcommand: its signal is aborted by SIGINT, SIGTERM and SIGHUP, and by a stdout that takes no more. A
 * second one ends the process at once. What it throws becomes one line on stderr and an exit code.
 */
export async function run(work: (signal: AbortSignal) => Promise<void> | void, ending: Ending = {}): Promise<void> {
  const abort = new AbortController();
  const stop = (name: NodeJS.Signals, code: number) => {
    if (abort.signal.aborted) process.exit();
    process.exitCode = ending.isEndless && name === 'SIGINT' ? 0 : code;
    abort.abort(new Complaint(name));
  };
  const onSignal = (name: NodeJS.Signals) => stop(name, 128 + constants.signals[name]);
  const onError = (error: NodeJS.ErrnoException) => {
    if (abort.signal.aborted) return;
    if (error.code !== 'EPIPE') console.error(`node-rdma: ${error.message}`);
    stop('SIGPIPE', error.code === 'EPIPE' ? 128 + constants.signals.SIGPIPE : Exit.FAILED);
  };
  const names = ending.isBusy ? [] : (['SIGINT', 'SIGTERM', 'SIGHUP'] as const);
  for (const name of names) process.on(name, onSignal);
  process.stdout.on('error', onError);
  try {
    await work(abort.signal);
  } catch (error) {
    if (!abort.signal.aborted) complain(error);
  } finally {
    for (const name of names) process.off(name, onSignal);
  }
}

function complain(error: unknown): void {
  if (!(error instanceof Error)) throw error;
  const { code, syscall } = error as NodeJS.ErrnoException;
  // Without a code it is a mistake in this package, and its stack is wanted.
  if (code === undefined && !(error instanceof Complaint)) throw error;
  const isUnavailable =
    error instanceof RdmaUnavailableError || code === 'ENOSYS' || syscall === 'rdma_create_event_channel';
  const message = isUnavailable
    ? `${error.message.replace(' (see diagnose())', '')}; "node-rdma doctor" says why`
    : error.message;
  console.error(`node-rdma: ${message}`);
  if (error instanceof Complaint) process.exitCode = error.exit;
  else if (isUnavailable) process.exitCode = Exit.UNAVAILABLE;
  else process.exitCode = /^ERR_(INVALID_ARG|OUT_OF_RANGE)/.test(code!) ? Exit.USAGE : Exit.FAILED;
}

/** Reads a number of an option: an integer from `min` to `max`, decimal or with 0x. */
export function whole(min: number, max: number = Number.MAX_SAFE_INTEGER): (text: string) => number {
  return (text) => {
    const value = text.trim() === '' ? Number.NaN : Number(text);
    if (Number.isInteger(value) && value >= min && value <= max) return value;
    throw new InvalidArgumentError(
      max === Number.MAX_SAFE_INTEGER ? `A number from ${min}.` : `From ${min} to ${max}.`,
    );
  };
}

/** Reads a positive number of an option. */
export function positive(text: string): number {
  const value = Number(text);
  if (value > 0 && Number.isFinite(value)) return value;
  throw new InvalidArgumentError('Not a positive number.');
}

/** Reads seconds of an option. @returns milliseconds, such as timers take */
export function seconds(text: string): number {
  const milliseconds = Math.ceil(positive(text) * 1000);
  // A timer of more ends at once.
  if (milliseconds <= 0x7fff_ffff) return milliseconds;
  throw new InvalidArgumentError('Up to 2147483 seconds.');
}

/** Reads a size of an option: bytes, or with K, M or G for powers of 1024. */
export function bytes(text: string): number {
  const [, digits, unit = ''] = /^(\d+)([KMG]?)i?B?$/i.exec(text) ?? [];
  const value = Number(digits) * 1024 ** ['', 'K', 'M', 'G'].indexOf(unit.toUpperCase());
  if (Number.isSafeInteger(value)) return value;
  throw new InvalidArgumentError('Such as 65536, 64K or 1M.');
}
