// What the kernel prints when something is wrong with the kernel. What user space can cause by itself (a segfault, an
// out-of-memory kill) is not in here: the command's exit code tells of it.
const trouble = [
  /-+\[ cut here \]-+/,
  /\bWARNING: .*CPU[:#]/,
  /\bBUG: /,
  /\bkernel BUG at /,
  /\bOops\b/,
  /\bgeneral protection fault[,:]/,
  /\bUnable to handle kernel /,
  /\bInternal error: /,
  /\bKernel panic\b/,
  /\brefcount_t: /,
  /\b(UBSAN|KASAN|KCSAN|KFENCE): /,
  /\bINFO: task .* blocked for more than /,
  /\bunregister_netdevice: waiting for /,
];

/**
 * Looks for a warning, an oops or a panic in a kernel log.
 *
 * @param log What the guest's kernel printed.
 * @returns Up to 60 lines from the first sign of trouble on, or undefined when there is none.
 */
export function findKernelTrouble(log: string): string | undefined {
  const lines = log.split(/\r?\n/);
  const first = lines.findIndex((line) => trouble.some((pattern) => pattern.test(line)));
  return first < 0
    ? undefined
    : lines
        .slice(first, first + 60)
        .join('\n')
        .trimEnd();
}
