/**
 * What went wrong, as a {@link VmError} code.
 *
 * - `ERR_VM_PLATFORM`: this machine cannot host the VM (not Linux, or neither x64 nor arm64).
 * - `ERR_VM_PACKAGES`: a program that the VM needs is not installed; the message is the command to type.
 * - `ERR_VM_KERNEL`: the guest's kernel could not be fetched, unpacked or packed into an initrd.
 * - `ERR_VM_BOOT`: QEMU did not start, or the guest did not come up to the point of running the command.
 * - `ERR_VM_KERNEL_OOPS`: the guest's kernel warned, oopsed, panicked or hung, whatever the command said.
 * - `ERR_VM_TIMEOUT`: the command did not end within `timeoutMs`.
 * - `ERR_VM_CRASH`: QEMU ended while the command ran, without a word from the guest's kernel.
 */
export type VmErrorCode =
  | 'ERR_VM_PLATFORM'
  | 'ERR_VM_PACKAGES'
  | 'ERR_VM_KERNEL'
  | 'ERR_VM_BOOT'
  | 'ERR_VM_KERNEL_OOPS'
  | 'ERR_VM_TIMEOUT'
  | 'ERR_VM_CRASH';

/** The VM itself failed (a command that fails inside it is no error: see {@link VmResult}). */
export class VmError extends Error {
  /** Always `'VmError'`. */
  override readonly name = 'VmError';
  /** Which failure it is; stable, unlike the message. */
  readonly code: VmErrorCode;
  /** The guest's kernel log up to the failure; empty when no guest was started. */
  readonly kernelLog: string;

  /**
   * @param code Which failure it is.
   * @param message What happened and what to type.
   * @param options `kernelLog` of the guest (default empty) and the `cause`.
   */
  constructor(code: VmErrorCode, message: string, options: { kernelLog?: string; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.code = code;
    this.kernelLog = options.kernelLog ?? '';
  }
}
