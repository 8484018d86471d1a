/** DMA-BUFs whose process ends, on a Soft-RoCE that registers them. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { describe, expect, it } from 'vitest';
import { runPair } from '../../examples/demo/interop.mjs';
import { listenFd } from '../../lib/gpu/index.ts';
import { RemoteRegion, WcStatus, WrOpcode } from '../../lib/index.ts';
import { runChild } from './children.ts';
import { kernelBuffers, registers } from './dmabuf.ts';
import { ALL_ACCESS, completion, expectNoLeaks, isRxe, Pair, until, within } from './fixture.ts';

expectNoLeaks();

describe.runIf(isRxe && registers)('a DMA-BUF of another process', () => {
  it('can be registered when that process is gone', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    const folder = mkdtempSync(join(tmpdir(), 'dmabuf-'));
    const listener = listenFd(join(folder, 'socket'));
    const child = runChild('dmabuf', ['export', listener.path]);
    const channel = await within(listener.accept(), 'the connection');
    const { dmabufs } = (await within(channel.receive(), 'the DMA-BUFs'))!;
    expect(dmabufs.map(({ exporter }) => exporter)).toEqual(['udmabuf', 'system']);
    expect(await child).toMatchObject({ code: 0, stderr: '' });
    const regions = await Promise.all(dmabufs.map((dmabuf) => dmabuf.register(b.pd, { access: ALL_ACCESS })));
    for (const open of [channel, listener, ...dmabufs]) open.close();
    rmSync(folder, { recursive: true });
    for (const mr of regions) {
      a.mr.buffer.fill(0);
      const remote = new RemoteRegion(mr.remote()).slice(5000, 25);
      a.qp.postSend({ opcode: WrOpcode.RDMA_READ, sgList: a.mr.slice(0, 25), remote });
      expect(await completion(a.cq)).toMatchObject({ status: WcStatus.SUCCESS });
      expect(a.mr.buffer.toString('latin1', 0, 25)).toBe('of a process that is gone');
      mr.close();
    }
  });

  it('goes with its process when that is killed in the middle of a transfer', async () => {
    const before = kernelBuffers();
    let during = 0;
    const { signal, stderr } = await runChild('dmabuf', ['transfer'], {
      onOutput: (text, kill) => {
        if (during !== 0 || !text.includes('writing')) return;
        during = kernelBuffers();
        kill('SIGKILL');
      },
    });
    expect([signal, stderr, during]).toEqual(['SIGKILL', '', before + 2]);
    await until(() => kernelBuffers() === before, 'the end of its buffers');
  });

  it('is what examples/gpu-target.mjs offers where there is no GPU, and what its peer writes into', async () => {
    const program = [process.execPath, resolve('examples/gpu-target.mjs')];
    const none = ['NODE_RDMA_LIBCUDA=/nonexistent', 'NODE_RDMA_LIBHSA=/nonexistent'];
    const [service, peer] = await runPair(
      ['env', 'NODE_RDMA_DEVICE=rxe0', ...none, ...program],
      ['env', 'NODE_RDMA_DEVICE=rxe1', ...program, '127.0.0.1'],
      18520,
    );
    expect(service).toContain('memory of udmabuf, registered by dmabuf');
    expect(service).toContain('written into it: Straight into the memory of the device!');
    expect(peer).toContain('39 bytes written');
  });
});

it('needs no such process here', () => {
  expect(process.env.RDMA_TEST_DMABUF === '1').toBe(isRxe && registers);
});
