/** Copies as the command makes them: on Soft-RoCE by the connection manager, elsewhere by the exchange over TCP. */
import { createHash } from 'node:crypto';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type CopyRoute, type ServeOptions, serveCopies, withCopyClient } from '../../lib/copy/connection.ts';
import type { ServedFile } from '../../lib/copy/server.ts';
import { createEventChannel, openDevice } from '../../lib/index.ts';
import { command, jsonLines, type Started, start } from '../unit/command.ts';
import { addressA, addressB, newPort, rejection } from './cm.ts';
import { DEADLINE_MS, deviceA, deviceB, expectNoLeaks, fill, isRxe, until, within } from './fixture.ts';

let root: string;
let served: string;

beforeEach(() => {
  root = fs.mkdtempSync(join(tmpdir(), 'rdma-copy-'));
  served = join(root, 'served');
  fs.mkdirSync(served);
});

afterEach(() => fs.rmSync(root, { recursive: true }));

const host = isRxe ? addressB : '127.0.0.1';
const route = (port: number): CopyRoute => ({
  ...{ port, isTcp: !isRxe, device: deviceA, localAddress: isRxe ? addressA : undefined },
});

/** Serves in this process while something is done. */
async function serving(
  work: (port: number, files: ServedFile[], errors: Error[]) => Promise<void>,
  more: Partial<ServeOptions> = {},
): Promise<void> {
  const abort = new AbortController();
  const [files, errors]: [ServedFile[], Error[]] = [[], []];
  let done: Promise<void> | undefined;
  const server = serveCopies({
    ...{ folder: served, port: isRxe ? newPort() : 0, isTcp: !isRxe, device: deviceB, localAddress: host },
    ...{ isReadOnly: false, maxConnections: 4, signal: abort.signal },
    onFile: (file) => files.push(file),
    onError: (error) => errors.push(error),
    onListening: (port) => {
      done = work(port, files, errors).finally(() => abort.abort());
      done.catch(() => {});
    },
    ...more,
  });
  await within(server, 'the end of the server');
  await done;
}

const soon = () => AbortSignal.timeout(DEADLINE_MS);

describe('copies between connections', () => {
  expectNoLeaks();

  it('are made by one client after another, and more than are allowed are refused', async () => {
    const file = join(root, 'file');
    const data = fill(Buffer.alloc(1_500_000), 3);
    fs.writeFileSync(file, data);
    await serving(
      async (port, files) => {
        await withCopyClient(host, route(port), soon(), async (client) => {
          await client.put(file, '');
          const more = withCopyClient(host, route(port), soon(), async () => {});
          const { code, name } = await rejection(more);
          // By TCP the connection is made and ended: what is sent then finds nobody, or the end is seen before.
          const ends = ['ECONNRESET', 'ETIMEDOUT', 'WorkCompletionError'];
          expect(isRxe ? ['ECONNREFUSED'] : ends).toContain(code ?? name);
        });
        expect(fs.readFileSync(join(served, 'file')).equals(data)).toBe(true);
        // Its place is free when the server has seen that it has gone.
        await until(() => files.length === 1, 'the file');
      },
      { maxConnections: 1 },
    );
  });

  it.runIf(isRxe)('go on when those that are to be refused have gone', async () => {
    const errors: Error[] = [];
    const file = join(root, 'file');
    fs.writeFileSync(file, 'after all that');
    await serving(
      async (port, files) => {
        await withCopyClient(host, route(port), soon(), async (client) => {
          using context = openDevice(deviceA);
          const pd = context.allocPd();
          const sendCq = context.createCq(64);
          const channels = Array.from({ length: 8 }, () => createEventChannel());
          const asking = channels.map(async (channel) => {
            const id = channel.createId();
            await id.resolveAddr({ address: host, port }, { src: { address: addressA }, signal: soon() });
            await id.resolveRoute({ signal: soon() });
            await id.createQp(pd, { sendCq, cap: { maxSendWr: 4, maxRecvWr: 4 } });
            return id;
          });
          for (const id of await within(Promise.all(asking), 'the routes')) {
            id.connect({}).catch(() => {});
            id.channel.close({ cascade: true });
          }
          await until(() => errors.length > 0, 'a refusal that nobody takes');
          for (const error of errors) expect(error).toMatchObject({ code: 'EINVAL', syscall: 'rdma_reject' });
          await client.put(file, '');
          context.close({ cascade: true });
        });
        await until(() => files.length === 1, 'the file');
      },
      { maxConnections: 1, onError: (error) => errors.push(error) },
    );
    expect(fs.readFileSync(join(served, 'file'), 'utf8')).toBe('after all that');
  });

  it('end with the server', async () => {
    const abort = new AbortController();
    await serving(
      async (port) => {
        await withCopyClient(host, route(port), soon(), async (client) => {
          abort.abort();
          expect(await rejection(client.get('x', root))).toMatchObject({ code: 'ECONNRESET' });
          expect(client.ended).toBe(true);
        });
      },
      { signal: abort.signal },
    );
  });

  it('say that nobody serves', async () => {
    const nobody = withCopyClient(host, route(isRxe ? newPort() : 1), soon(), async () => {});
    expect(await rejection(nobody)).toMatchObject({ code: 'ECONNREFUSED' });
  });

  // Only root may mount; in the VM the tests are.
  it.runIf(isRxe)('end with ENOSPC on both sides when the disk is full, and the next file fits', async () => {
    const { execFileSync } = await import('node:child_process');
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=2m', 'tmpfs', served]);
    try {
      const [big, small] = [join(root, 'big'), join(root, 'small')];
      fs.writeFileSync(big, fill(Buffer.alloc(8 << 20)));
      fs.writeFileSync(small, 'small');
      await serving(async (port, files) => {
        await withCopyClient(host, route(port), soon(), async (client) => {
          expect(await rejection(client.put(big, ''))).toMatchObject({ code: 'ENOSPC', isRemote: true });
          // What fits stays, to be gone on with when there is room.
          fs.truncateSync(join(served, '.big.rdma-part'), 1 << 20);
          await client.put(small, '');
        });
        expect(files.map(({ error }) => (error as NodeJS.ErrnoException | undefined)?.code)).toEqual([
          'ENOSPC',
          undefined,
        ]);
        expect(fs.readFileSync(join(served, 'small'), 'utf8')).toBe('small');
        expect(fs.existsSync(join(served, 'big'))).toBe(false);
      });
    } finally {
      execFileSync('umount', [served]);
    }
  });
});

describe('node-rdma serve and cp', () => {
  const slow = { timeout: 600_000 };

  const serve = (port: string): Started => start(['serve', served, '-I', addressB, '-p', port, '--json']);
  const sizeOf = (path: string) => fs.statSync(path, { throwIfNoEntry: false })?.size ?? 0;

  /** Waits until something has arrived of a file, beyond what was there. */
  async function untilMore(path: string, than = 0): Promise<number> {
    const end = performance.now() + DEADLINE_MS;
    while (sizeOf(path) <= than) {
      if (performance.now() > end) throw new Error(`${path} does not grow`);
      // The processor is theirs meanwhile.
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    return sizeOf(path);
  }

  it.runIf(isRxe)('go on after kill -9 of either side, and make no file of a part', slow, async () => {
    const [file, small] = [join(root, 'file'), join(root, 'small')];
    const data = fill(Buffer.alloc(8 << 20), 5);
    fs.writeFileSync(file, data);
    fs.writeFileSync(small, 'small', { mode: 0o640 });
    const port = String(newPort());
    const part = join(served, '.file.rdma-part');
    const args = ['cp', '-p', port, '-I', addressA, '--json'];

    const server = serve(port);
    await server.untilOutput('listening');
    const killed = start([...args, file, `${addressB}:`]);
    const first = await untilMore(part);
    killed.child.kill('SIGKILL');
    expect(await killed.ended).toMatchObject({ signal: 'SIGKILL' });
    await server.untilOutput('"error"');

    const orphaned = start([...args, file, `${addressB}:`]);
    await untilMore(part, Math.max(first, sizeOf(part)));
    server.child.kill('SIGKILL');
    const { code, stderr } = await orphaned.ended;
    expect(stderr).toMatch(/^node-rdma: .+\n$/);
    expect(code).toBe(1);
    expect(fs.readdirSync(served)).toEqual(['.file.rdma-part']);
    const second = sizeOf(part);
    expect(second).toBeGreaterThan(first);

    const again = serve(port);
    await again.untilOutput('listening');
    const done = await command([...args, file, small, `${addressB}:`]);
    expect([done.code, done.stderr]).toEqual([0, '']);
    const sha256 = createHash('sha256').update(data).digest('hex');
    expect(jsonLines(done.stdout)).toMatchObject([
      { type: 'file', direction: 'put', source: file, bytes: data.length, resumedAt: second, sha256 },
      { source: small, bytes: 5, resumedAt: 0 },
    ]);
    expect(fs.readFileSync(join(served, 'file')).equals(data)).toBe(true);
    expect(fs.statSync(join(served, 'small')).mode & 0o777).toBe(0o640);
    expect(fs.readdirSync(served).sort()).toEqual(['file', 'small']);
    again.child.kill('SIGINT');
    expect(await again.ended).toMatchObject({ code: 0, stderr: '' });
  });

  it.runIf(!isRxe)('serve ends by Ctrl-C with exit code 0, and says where it cannot', async () => {
    const started = start(['serve', served, '--tcp', '-p', '0', '-d', deviceA]);
    await started.untilOutput(`serving ${served} on port `);
    started.child.kill('SIGINT');
    expect(await started.ended).toMatchObject({ code: 0, stderr: '' });
    const nowhere = await command(['serve', join(served, 'nix'), '--tcp']);
    expect(nowhere).toMatchObject({ code: 1, stderr: `node-rdma: ${served}/nix: no such file or directory\n` });
    const none = await command(['serve', served]);
    expect(none.stderr).toMatch(/^node-rdma: rdma_create_event_channel ENOENT: .*modprobe rdma_ucm/);
    expect(none.code).toBe(3);
  });
});
