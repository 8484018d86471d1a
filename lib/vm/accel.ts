import { access, constants, mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { cacheFolder } from './cache.ts';
import type { Accelerator } from './qemu.ts';

/**
 * Which accelerators to try, in order.
 *
 * @param requested What the caller insists on.
 * @param kvmOpens Whether /dev/kvm can be opened, which does not mean that it works.
 * @param kvmFailed Whether a guest failed to start on it since this machine booted.
 */
export function acceleratorOrder(
  requested: Accelerator | undefined,
  kvmOpens: boolean,
  kvmFailed: boolean,
): Accelerator[] {
  if (requested !== undefined) return [requested];
  return kvmOpens && !kvmFailed ? ['kvm', 'tcg'] : ['tcg'];
}

/** {@link acceleratorOrder} for this machine. */
export async function accelerators(requested: Accelerator | undefined): Promise<Accelerator[]> {
  const kvmOpens = await access('/dev/kvm', constants.R_OK | constants.W_OK).then(
    () => true,
    () => false,
  );
  const failed = await readFile(verdictFile(), 'utf8').catch(() => '');
  return acceleratorOrder(requested, kvmOpens, failed !== '' && failed === (await bootId()));
}

/** Remembers, until this machine boots again, that a guest did not start on KVM. */
export async function rememberKvmFailure(): Promise<void> {
  await mkdir(cacheFolder(), { recursive: true });
  await writeFile(verdictFile(), await bootId());
}

function verdictFile(): string {
  return join(cacheFolder(), 'kvm-failed');
}

async function bootId(): Promise<string> {
  return readFile('/proc/sys/kernel/random/boot_id', 'utf8').catch(() => '');
}
