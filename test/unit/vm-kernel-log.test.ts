import { describe, expect, it } from 'vitest';
import { findKernelTrouble } from '../../lib/vm/kernel-log.ts';

describe('findKernelTrouble', () => {
  it.each([
    '[    9.1] ------------[ cut here ]------------',
    '[    9.1] WARNING: CPU: 1 PID: 312 at drivers/infiniband/sw/rxe/rxe_pool.c:116 rxe_pool_cleanup+0x3e/0x50 [rdma_rxe]',
    '[    9.1] BUG: kernel NULL pointer dereference, address: 0000000000000010',
    '[    9.1] Oops: Oops: 0002 [#1] PREEMPT SMP NOPTI',
    '[    9.1] Oops: general protection fault, probably for non-canonical address 0xdead000000000100: 0000 [#1]',
    '[    9.1] kernel BUG at mm/slub.c:4013!',
    '[    9.1] Kernel panic - not syncing: sysrq triggered crash',
    '[    9.1] refcount_t: underflow; use-after-free.',
    '[    9.1] INFO: task node:311 blocked for more than 120 seconds.',
    '[    9.1] unregister_netdevice: waiting for v0 to become free. Usage count = 2',
    '[    9.1] Unable to handle kernel paging request at virtual address dfff800000000000',
  ])('finds %s', (line) => {
    expect(findKernelTrouble(`[    0.9] mtrr: fine\n${line}\nmore`)).toBe(`${line}\nmore`);
  });

  it.each([
    '',
    '[    0.9] mtrr: your CPUs had inconsistent fixed MTRR settings',
    '[    0.9] RETBleed: WARNING: Spectre v2 mitigation leaves CPU vulnerable to RETBleed attacks',
    '[    9.1] node[311]: segfault at 10 ip 0000000000401136 sp 00007ffd error 4 in a.out[401000+1000]',
    '[    9.1] traps: a.out[311] general protection fault ip:401136 sp:7ffd error:0 in a.out[401000+1000]',
    '[    9.1] Out of memory: Killed process 311 (node) total-vm:1234kB',
    '[    9.1] DEBUG: this is no bug',
  ])('finds nothing in %j', (line) => {
    expect(findKernelTrouble(line)).toBeUndefined();
  });

  it('gives at most 60 lines', () => {
    expect(findKernelTrouble(`BUG: x\n${'line\n'.repeat(500)}`)?.split('\n')).toHaveLength(60);
  });
});
