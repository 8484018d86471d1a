/** Measurements whose other side is another program, says nothing, or goes on for ever. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { ANSWER_MS } from '../../lib/perf/control.ts';
import { type PerfClientOptions, type PerfTest, runPerfClient, runPerfServer } from '../../lib/perf/perf.ts';
import { start } from '../unit/command.ts';
import { DEADLINE_MS, deviceA, deviceB, expectNoLeaks, isRxe, within } from './fixture.ts';

// What is told over TCP is the same on any device.
const itFast = it.runIf(!isRxe);
expectNoLeaks();
afterEach(() => void vi.useRealTimers());

const signal = () => AbortSignal.timeout(DEADLINE_MS);
const server = (test: PerfTest = 'write-bw', abort = signal()) => ({
  ...{ test, device: deviceA, port: 0, portNum: 1, gidIndex: undefined, trafficClass: undefined, mtu: undefined },
  ...{ events: false, signal: abort },
});
const client = (port: number, more: Partial<PerfClientOptions> = {}): PerfClientOptions => ({
  ...{ ...server(), device: deviceB, host: '127.0.0.1', port, sizes: [64], iters: 10, seconds: undefined, qps: 1 },
  ...{ txDepth: 32, rxDepth: 64, onResult: () => {}, ...more },
});

/** Calls `work` with a TCP server in the place of ours, and with who has connected. */
async function withPeer(onSocket: (socket: Socket) => void, work: (port: number) => Promise<void>): Promise<void> {
  const peer = createServer((socket) => onSocket(socket.on('error', () => {})));
  peer.listen(0, '127.0.0.1');
  await once(peer, 'listening');
  try {
    await work((peer.address() as AddressInfo).port);
  } finally {
    peer.close();
  }
}

describe('a client of perf', () => {
  itFast('does not wait without end for a server that says nothing, as another program would', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const said = (socket: Socket) => socket.once('data', () => vi.advanceTimersByTime(ANSWER_MS));
    await withPeer(said, async (port) => {
      await expect(runPerfClient(client(port))).rejects.toThrow(
        'the peer says nothing for 60 s: it is no node-rdma perf',
      );
    });
  });

  itFast.each([
    ['lines that are no JSON', '0000:0001:0002\n', 'the peer is no node-rdma perf'],
    ['JSON that is no object', '5\n', 'the peer is no node-rdma perf'],
    ['no end of a line', 'x'.repeat(2 << 20), 'the peer is no node-rdma perf'],
  ])('says what it has met, when that says %s', async (_, text, message) => {
    await withPeer(
      (socket) => socket.end(text),
      (port) => expect(runPerfClient(client(port))).rejects.toThrow(message),
    );
  });

  itFast('gives the reason of its signal, whenever that comes', async () => {
    const reason = new Error('enough');
    await withPeer(
      () => {},
      async (port) => {
        for (const turns of [0, 1, 2, 5, 20, 100]) {
          const abort = new AbortController();
          const running = runPerfClient(client(port, { signal: abort.signal }));
          running.catch(() => {});
          for (let i = 0; i < turns; i++) await new Promise((resolve) => setImmediate(resolve));
          abort.abort(reason);
          await expect(within(running, 'the client')).rejects.toBe(reason);
        }
      },
    );
  });

  itFast('says that the server has left', async () => {
    await withPeer(
      (socket) => socket.end(),
      (port) =>
        expect(runPerfClient(client(port))).rejects.toThrow(
          'the peer has closed the connection without a word: it must be node-rdma perf, too',
        ),
    );
  });
});

describe('a server of perf', () => {
  itFast('does not wait without end for a client that says nothing', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    let running: Promise<void> | undefined;
    const port = await new Promise<number>((resolve) => {
      running = runPerfServer(server(), resolve);
      running.catch(() => {});
    });
    const socket = connect(port, '127.0.0.1').on('error', () => {});
    socket.write('0000:0001:0002');
    await vi.waitFor(() => {
      vi.advanceTimersByTime(ANSWER_MS);
      expect(socket.closed).toBe(true);
    });
    await expect(running!).rejects.toThrow('the peer says nothing for 60 s');
  });

  itFast('ends by Ctrl-C while it waits, with exit code 130', async () => {
    const started = start(['perf', 'write-bw', '-d', deviceA, '-p', '0'], { input: '' });
    const until = async () => {
      while (!started.stderr.includes('waiting for a client')) await new Promise((resolve) => setTimeout(resolve, 5));
    };
    await within(until(), 'the server');
    started.child.kill('SIGINT');
    expect(await started.ended).toMatchObject({
      ...{ code: 130, stdout: '' },
      stderr: expect.stringMatching(/^node-rdma: write-bw: waiting for a client on port \d+\n$/),
    });
  });

  itFast.each([{ infos: undefined }, { qps: 0 }, { qps: 1e9 }, { txDepth: 0 }, { rxDepth: 1 }, { maxSize: null }])(
    'refuses a setup that is none, and ends although its client stays: %j',
    async (wrong) => {
      let running: Promise<void> | undefined;
      const port = await new Promise<number>((resolve) => {
        running = runPerfServer(server(), resolve);
        running.catch(() => {});
      });
      const hello = {
        protocol: 'node-rdma perf 1',
        test: 'write-bw',
        qps: 1,
        txDepth: 1,
        rxDepth: 2,
        maxSize: 8,
        inline: 0,
      };
      const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true }).on('error', () => {});
      socket.resume().write(`${JSON.stringify({ ...hello, infos: [], ...wrong })}\n`);
      await expect(within(running!, 'the server')).rejects.toThrow('the peer is no node-rdma perf: its setup is none');
      socket.destroy();
    },
  );

  itFast.each([
    [{ device: 'nix' }, { code: 'ENODEV' }],
    [{ portNum: 9 }, { code: 'EINVAL', message: expect.stringContaining('there is no port 9') }],
    [{ gidIndex: 200 }, { message: expect.stringContaining('200') }],
  ])('that has no such device, port or GID says so before anybody connects: %j', async (wrong, error) => {
    const running = runPerfServer({ ...server(), ...wrong }, () => expect.unreachable());
    await expect(running).rejects.toMatchObject(error);
    // A client says so, too, and connects to nobody.
    await expect(runPerfClient(client(1, wrong))).rejects.toMatchObject(error);
  });
});

describe('a side that leaves in the middle of a measurement', () => {
  const tests = ['write-bw', 'send-bw', 'read-bw', 'write-lat', 'send-lat', 'read-lat', 'atomic-lat'] as const;
  const cases = tests.flatMap((test) =>
    // Where memory is looked at there are no events.
    (test === 'write-lat' ? [false] : [false, true]).flatMap((events) =>
      (['client', 'server'] as const).map((leaver) => ({ test, events, leaver })),
    ),
  );

  // The other waits for messages that do not come any more, or its requests fail, before or after it hears of it.
  itFast.each(cases)('is told by both sides: $leaver, $test, events: $events', async ({ test, events, leaver }) => {
    const abort = new AbortController();
    const endless = new AbortController().signal;
    const signals = { client: endless, server: endless, [leaver]: abort.signal };
    let measured: Promise<unknown> | undefined;
    const running = runPerfServer({ ...server(test, signals.server), events }, (port) => {
      const options = { test, events, sizes: [8], iters: undefined, seconds: 1000, signal: signals.client };
      const onConnected = () => setTimeout(() => abort.abort(new Error('enough')), 100);
      measured = runPerfClient(client(port, { ...options, onConnected }));
      measured.catch(() => {});
    });
    const left = 'the peer has closed the connection';
    const message = { client: left, server: left, [leaver]: 'enough' };
    await expect(within(running, 'the end of the server')).rejects.toThrow(message.server);
    await expect(within(measured!, 'the end of the client')).rejects.toThrow(message.client);
  });
});
