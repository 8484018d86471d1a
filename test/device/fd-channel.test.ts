/** DMA-BUFs from process to process. The kernel carries any descriptor: these are of shared memory. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, existsSync, fstatSync, mkdtempSync, rmSync } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { Worker } from 'node:worker_threads';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  adoptFdChannel,
  connectFd,
  createUdmabuf,
  DmaBuf,
  getDmabuf,
  listenFd,
  openDmabuf,
} from '../../lib/gpu/index.ts';
import { childPath } from './children.ts';
import { sharedMemory } from './dmabuf.ts';
import { collect, expectNoLeaks, isRxe, thrown, within } from './fixture.ts';

expectNoLeaks();

// No device is in it: in an emulated VM only what is quick, and what another kernel may do otherwise.
const itFast = it.runIf(!isRxe);

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'fd-channel-'));
});
afterAll(() => rmSync(folder, { recursive: true }));
const path = (name: string) => join(folder, name);

function shared(bytes: number): DmaBuf {
  const fd = sharedMemory(bytes);
  try {
    return openDmabuf(fd);
  } finally {
    closeSync(fd);
  }
}

async function pairOf(name: string) {
  const listener = listenFd(path(name));
  const here = connectFd(path(name));
  const there = await within(listener.accept(), 'accept');
  return { listener, here, there };
}

describe('FdChannel', () => {
  it('carries descriptors with bytes, in order', async () => {
    const { listener, here, there } = await pairOf('order');
    const first = shared(4096);
    using second = shared(8192);
    first.map().write('the first');
    here.send([first, second.fd, first], Buffer.from('three'));
    here.send([], Buffer.from('none'));
    first.close();
    const message = (await within(there.receive(), 'three'))!;
    expect(message.data.toString()).toBe('three');
    expect(message.dmabufs.map(({ length }) => length)).toEqual([4096, 8192, 4096]);
    expect(message.dmabufs[0]!.map().toString('latin1', 0, 9)).toBe('the first');
    message.dmabufs[2]!.map().write('by another descriptor');
    expect(message.dmabufs[0]!.map().toString('latin1', 0, 21)).toBe('by another descriptor');
    expect((await within(there.receive(), 'none'))!).toMatchObject({ dmabufs: [], data: Buffer.from('none') });
    for (const dmabuf of message.dmabufs) dmabuf.close();
    there.send([]);
    expect((await here.receive())!.data).toEqual(Buffer.alloc(1));
    here.close();
    expect(await within(there.receive(), 'the end')).toBeUndefined();
    expect(thrown(() => there.send([]))).toMatchObject({ code: 'EPIPE', syscall: 'sendmsg' });
    there.close();
    listener.close();
    expect(existsSync(listener.path)).toBe(false);
  });

  it('keeps messages apart, each whole and with its own descriptors', async () => {
    const { listener, here, there } = await pairOf('apart');
    using first = shared(4096);
    using second = shared(8192);
    const sent = [
      ...[
        { dmabufs: [], bytes: 40_000 },
        { dmabufs: [first], bytes: 65_536 },
      ],
      ...[
        { dmabufs: [], bytes: 1 },
        { dmabufs: [second, first], bytes: 36_545 },
        { dmabufs: [], bytes: 3 },
      ],
    ];
    sent.forEach(({ dmabufs, bytes }, i) => void here.send(dmabufs, Buffer.alloc(bytes, i)));
    for (const [i, { dmabufs, bytes }] of sent.entries()) {
      const message = (await within(there.receive(), `message ${i}`))!;
      expect(message.data.equals(Buffer.alloc(bytes, i))).toBe(true);
      expect(message.dmabufs.map(({ length }) => length)).toEqual(dmabufs.map(({ length }) => length));
      for (const dmabuf of message.dmabufs) dmabuf.close();
    }
    expect(thrown(() => here.send([], Buffer.alloc(65_537)))).toMatchObject({ code: 'ERR_OUT_OF_RANGE' });
    for (const open of [here, there, listener]) open.close();
  });

  it('sends by the stream socket of another program what fits into one piece', async () => {
    const server = createServer().listen(path('stream'));
    await once(server, 'listening');
    const here = connectFd(path('stream'));
    const [socket] = (await within(once(server, 'connection'), 'the connection')) as [Socket];
    expect(thrown(() => here.send([], Buffer.alloc(32_769)))).toMatchObject({ code: 'EMSGSIZE', syscall: 'sendmsg' });
    here.send([], Buffer.alloc(32_768, 5));
    here.close();
    const chunks = await within(socket.toArray(), 'the bytes');
    expect(Buffer.concat(chunks).equals(Buffer.alloc(32_768, 5))).toBe(true);
    await within(new Promise((resolve) => server.close(resolve)), 'the end');
  });

  it('leaves the file of a listener that has taken the place of another', async () => {
    const old = listenFd(path('place'));
    rmSync(old.path);
    const young = listenFd(old.path);
    old.close();
    const here = connectFd(young.path);
    const there = await within(young.accept(), 'accept');
    for (const open of [here, there, young]) open.close();
    expect(existsSync(young.path)).toBe(false);
  });

  it('waits with a signal, once at a time, and until it is closed', async () => {
    const { listener, here, there } = await pairOf('waits');
    const abort = new AbortController();
    const waiting = there.receive({ signal: abort.signal });
    await expect(there.receive()).rejects.toMatchObject({ code: 'ERR_INVALID_STATE' });
    abort.abort(new Error('enough'));
    await expect(waiting).rejects.toThrow('enough');
    await expect(there.receive({ signal: abort.signal })).rejects.toThrow('enough');
    await expect(there.receive({ signal: 1 } as never)).rejects.toMatchObject({ code: 'ERR_INVALID_ARG_TYPE' });
    const again = there.receive();
    here.send([], Buffer.from('late'));
    expect((await within(again, 'late'))!.data.toString()).toBe('late');
    const [receive, accept] = [there.receive(), listener.accept()];
    there.close();
    listener.close();
    await expect(within(receive, 'the close')).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    await expect(within(accept, 'the close')).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    here.close();
    await expect(here.receive()).rejects.toMatchObject({ code: 'ERR_RDMA_CLOSED' });
  });

  itFast('is not collected while somebody waits', async () => {
    const listener = listenFd(path('collected'));
    const here = connectFd(listener.path);
    const received = (async () => {
      const there = await listener.accept();
      const message = await there.receive();
      there.close();
      return message;
    })();
    await collect();
    await collect();
    here.send([], Buffer.from('still there'));
    expect((await within(received, 'the message'))!.data.toString()).toBe('still there');
    here.close();
    listener.close();
  });

  it('names what is wrong', async () => {
    const { listener, here, there } = await pairOf('wrong');
    const wrong: [() => unknown, string, RegExp][] = [
      [() => here.send(1 as never), 'ERR_INVALID_ARG_TYPE', /dmabufs/],
      [() => here.send([-1]), 'ERR_OUT_OF_RANGE', /dmabufs\[0\]/],
      [() => here.send([{} as never]), 'ERR_INVALID_ARG_TYPE', /dmabufs\[0\]/],
      [() => here.send(new Array(2)), 'ERR_INVALID_ARG_TYPE', /dmabufs\[0\]/],
      [() => here.send([1_000_000]), 'EBADF', /sendmsg/],
      [() => here.send([], Buffer.alloc(0)), 'ERR_OUT_OF_RANGE', /data/],
      [() => here.send([], 'x' as never), 'ERR_INVALID_ARG_TYPE', /data/],
      [() => here.send(new Array(254).fill(1)), 'ERR_OUT_OF_RANGE', /253/],
      [() => listenFd(''), 'ERR_INVALID_ARG_VALUE', /path/],
      [() => listenFd(listener.path), 'EADDRINUSE', /bind/],
      [() => listenFd(join(folder, 'x'.repeat(110))), 'ENAMETOOLONG', /bind/],
      [() => connectFd(path('nobody')), 'ENOENT', /connect/],
      [() => adoptFdChannel(1_000_000), 'EBADF', /getsockname/],
    ];
    for (const [call, code, message] of wrong) {
      expect(thrown(call)).toMatchObject({ code, message: expect.stringMatching(message) });
    }
    const file = sharedMemory(1);
    expect(thrown(() => adoptFdChannel(file)).code).toBe('ENOTSOCK');
    closeSync(file);
    for (const open of [here, there, listener]) open.close();
  });

  it('takes names that no file system knows', async () => {
    const name = `\0node-rdma-${process.pid}`;
    const listener = listenFd(name);
    const here = connectFd(name);
    const there = await within(listener.accept(), 'accept');
    there.send([], Buffer.from('abstract'));
    expect((await here.receive())!.data.toString()).toBe('abstract');
    for (const open of [here, there, listener]) open.close();
  });

  itFast('ends with the worker that waits for it', async () => {
    // The compiled package: a worker knows no TypeScript.
    const source = `
      import(${JSON.stringify(resolve('dist/gpu/index.js'))}).then(({ listenFd, connectFd }) => {
        const { workerData, parentPort } = require('node:worker_threads');
        const listener = listenFd(workerData);
        const here = connectFd(workerData);
        listener.accept().then((there) => { parentPort.postMessage('waits'); return Promise.all([there.receive(), listener.accept(), here.receive()]); });
      });`;
    const worker = new Worker(source, { eval: true, workerData: path('worker') });
    await within(new Promise((resolve) => worker.once('message', resolve)), 'the worker');
    expect(await within(worker.terminate(), 'its end')).toBe(1);
    // What it had open is closed: nobody listens there any more.
    expect(thrown(() => connectFd(path('worker'))).code).toBe('ECONNREFUSED');
    rmSync(path('worker'));
  });
});

/** A program of Python beside this one. */
function python(...args: string[]) {
  const child = spawn('/usr/bin/python3', ['-I', '-S', childPath('fd_peer', 'py'), ...args], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const ended = new Promise<number | null>((resolve) => child.once('close', resolve));
  return { child, line: async () => (await within(lines.next(), 'python')).value as string, ended };
}

// Each start of Python takes seconds in an emulated VM, and the kernel does the same there: the last of these is enough.
describe.runIf(!isRxe)('another process', () => {
  it('that speaks SCM_RIGHTS is given a descriptor, and gives some', async () => {
    const listener = listenFd(path('python'));
    const { ended } = python('exchange', listener.path);
    const channel = await within(listener.accept(), 'accept');
    using dmabuf = shared(4096);
    channel.send([dmabuf], Buffer.from('12345'));
    const { dmabufs, data } = (await within(channel.receive(), 'the answer'))!;
    expect(data.toString()).toBe('two');
    expect(dmabuf.map().toString('latin1', 0, 5)).toBe('54321');
    expect(dmabufs.map(({ length }) => length)).toEqual([4096, 8192]);
    expect(await within(ended, 'its end')).toBe(0);
    // It is gone; its memory is not.
    expect(dmabufs[1]!.map().toString('latin1', 100, 114)).toBe('made by python');
    expect(await within(channel.receive(), 'the end')).toBeUndefined();
    for (const open of [...dmabufs, channel, listener]) open.close();
  });

  it('has descriptors that can be taken', async () => {
    const { child, line, ended } = python('hold', 'plain');
    const fd = Number(await line());
    using dmabuf = getDmabuf(child.pid!, fd);
    expect(dmabuf.map().toString('latin1', 0, 15)).toBe('held by another');
    expect(thrown(() => getDmabuf(child.pid!, 1000))).toMatchObject({ code: 'EBADF', syscall: 'pidfd_getfd' });
    expect(thrown(() => getDmabuf(0, 1)).code).toBe('ERR_OUT_OF_RANGE');
    child.stdin.end();
    expect(await within(ended, 'its end')).toBe(0);
    expect(thrown(() => getDmabuf(child.pid!, fd))).toMatchObject({ code: 'ESRCH', syscall: 'pidfd_open' });
    expect(dmabuf.map().toString('latin1', 0, 4)).toBe('held');
  });

  it('whose memory is of huge pages is refused as the source of a udmabuf', async () => {
    const { child, line, ended } = python('hold', 'huge');
    using huge = getDmabuf(child.pid!, Number(await line()));
    expect(thrown(() => createUdmabuf(2 ** 21, { memfd: huge.fd }))).toMatchObject({
      ...{ name: 'TypeError', code: 'ERR_INVALID_ARG_VALUE' },
      message: expect.stringMatching(/huge pages/),
    });
    child.stdin.end();
    await within(ended, 'its end');
    expect(huge).toBeInstanceOf(DmaBuf);
  });
});

it.runIf(isRxe)('a memfd of the caller becomes a udmabuf, as far as its seals allow', async () => {
  const { child, line, ended } = python('hold', 'plain');
  using memfd = getDmabuf(child.pid!, Number(await line()));
  using dmabuf = createUdmabuf(4096, { memfd: memfd.fd, offset: 4096 });
  dmabuf.cpuAccess('write', (bytes) => bytes.write('by the DMA-BUF'));
  expect(memfd.map().toString('latin1', 4096, 4110)).toBe('by the DMA-BUF');
  expect(fstatSync(memfd.fd).size).toBe(2 ** 21);
  child.stdin.end();
  await within(ended, 'its end');
});
