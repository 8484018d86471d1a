/** That what is asked for reaches the kernel, where nothing else shows it: the software device logs what it was given. */
import { describe, expect, it } from 'vitest';
import { runChild } from './children.ts';
import { isRxe } from './fixture.ts';

describe.runIf(!isRxe)('the kernel', () => {
  it('is given the vectors, access, DMA-BUFs, flags, limits and ports that were asked for', async () => {
    const { code, stdout, stderr } = await runChild('given', [], { env: { MLX5MODEL_LOG: '1' } });
    expect(code, stderr).toBe(0);
    const logged = (pattern: RegExp) => [...stderr.matchAll(pattern)].map(([, ...values]) => values.join(' '));
    // libmlx5 makes a power of two of them.
    expect(logged(/CQ 0x\w+: (\d+) entries, vector (\d+)/g)).toEqual(['1024 0', '128 0', '128 3', '128 7', '64 5']);
    // LOCAL_WRITE | RELAXED_ORDERING, REMOTE_READ | HUGETLB, LOCAL_WRITE | ON_DEMAND (ibv_reg_mr(3), <infiniband/verbs.h>).
    expect(logged(/a region of 8192 bytes, access (0x\w+)/g)).toEqual(['0x100001', '0x84', '0x41']);
    // BLOCK_SELF_MCAST_LB, SOURCE_QPN, SCATTER_FCS: the last two are for queue pairs that the software device does not have.
    expect(logged(/a QP of type 4, create_flags (0x\w+), source_qpn (0x\w+)/g)).toEqual([
      '0x2 0x0',
      '0x400 0x1234',
      '0x100 0x0',
    ]);
    expect(logged(/rate limit (\d+) kbps, bursts of (\d+), packets of (\d+)/g)).toEqual(['5000 0 0', '7000 3000 1500']);
    expect(logged(/UDP source port (\d+), port (\d+) of the bond/g)).toEqual(['55555 1', '55555 2']);
    const { dmabuf, ...found } = JSON.parse(stdout);
    const regions = /a region of file (\d+): offset (0x\w+), (\d+) bytes, iova (0x\w+), access (0x\w+)/g;
    expect(logged(regions)).toEqual([
      `${dmabuf} 0x0 65536 0x0 0x1`,
      `${dmabuf} 0x3039 100 0x7f0000000039 0x5`,
      `${dmabuf} 0x1000 8192 0x10000000000 0x100001`,
    ]);
    expect(found).toEqual({
      made: { BLOCK_SELF_MCAST_LB: 'ok', SOURCE_QPN: 'EOPNOTSUPP', SCATTER_FCS: 'EOPNOTSUPP' },
      // It is for raw packets.
      limits: ['EINVAL', 'EINVAL'],
    });
  });

  it('is given an alternate path, and tells the service level, on InfiniBand', async () => {
    const { code, stdout, stderr } = await runChild('given', [], { env: { MLX5MODEL_LINK: 'ib' } });
    expect(code, stderr).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({
      alternate: {
        altPkeyIndex: 4,
        altPortNum: 1,
        altTimeout: 9,
        altAhAttr: { dlid: 2, sl: 3, srcPathBits: 1, portNum: 1 },
      },
      received: { sl: 6, text: 'level' },
    });
  });
});
