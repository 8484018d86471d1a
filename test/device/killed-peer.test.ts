/** A peer in another process that is killed, with all that may be under way to it: one process, since each takes seconds to start. */
import { describe, expect, it } from 'vitest';
import {
  connect,
  connectTcp,
  Messages,
  messageEndpoint,
  openDevice,
  type ProtectionDomain,
  WorkCompletionError,
} from '../../lib/index.ts';
import { runChild } from './children.ts';
import { addressA, addressB, newPort, rejection } from './cm.ts';
import { Ends, outcomes } from './endpoints.ts';
import {
  ALL_ACCESS,
  collect,
  DEADLINE_MS,
  descriptors,
  deviceA,
  expectNoLeaks,
  fill,
  isRxe,
  within,
} from './fixture.ts';

expectNoLeaks();

/** Sends and takes messages until the peer is gone. */
async function talk(pd: ProtectionDomain, port: number) {
  const how = { host: '127.0.0.1', timeout: 15, retryCnt: 6, port };
  const endpoint = await connectTcp({ ...messageEndpoint({ pd, bufferBytes: 1024, buffers: 8 }), ...how });
  const messages = await Messages.open(endpoint, { timeoutMs: DEADLINE_MS, keepAliveMs: 200 });
  const sends = Array.from({ length: 100 }, (_, i) => messages.send(fill(Buffer.alloc(i % 3 ? 500 : 100_000), i)));
  const sent = outcomes(sends, 'all sends');
  const seen = { taken: 0 };
  let inTheMiddle = () => {};
  const middle = new Promise<void>((resolve) => {
    inTheMiddle = resolve;
  });
  const taken = (async () => {
    try {
      for await (const message of messages) {
        message.release();
        if (++seen.taken === 5) inTheMiddle();
      }
    } catch {
      // The reason is what `closed` says.
    }
    return seen.taken;
  })();
  return { messages, sent, middle, taken };
}

/** The same in this process, so that the allocators have what they keep. */
async function flushed(): Promise<void> {
  await using ends = await Ends.connect({ a: { timeout: 10, retryCnt: 1 } });
  const { a, b, mrA } = ends;
  const work = Array.from({ length: 1000 }, () => a.send(mrA.slice(0, 64)));
  const ended = outcomes(work, 'all of them');
  await new Promise((resolve) => setImmediate(resolve));
  b.qp.close();
  b.qp.sendCq.close();
  expect((await ended)[0]).toBe('RETRY_EXC_ERR');
  await collect();
}

describe.runIf(isRxe)('a peer that is killed', () => {
  const what =
    'settles each of a thousand requests, by the connection manager and over TCP, and messages; nothing is left';
  it(what, { timeout: 200_000 }, async () => {
    using pd = openDevice(deviceA).allocPd();
    const context = pd.context;
    using mr = pd.allocSync(4096, { access: ALL_ACCESS });
    // What librdmacm opens, the channel of the connections, and the one of completions, are made once.
    const to = { pd, host: addressB, localAddress: addressA, timeoutMs: DEADLINE_MS };
    expect(await rejection(connect({ ...to, port: newPort() }))).toMatchObject({ code: 'ECONNREFUSED' });
    await flushed();
    const before = { descriptors: descriptors(), rss: process.memoryUsage().rss };
    const begin = async ([byCm, byTcp, forMessages]: number[], kill: (signal: NodeJS.Signals) => void) => {
      const tcp = { pd, host: '127.0.0.1', port: byTcp!, timeout: 14, retryCnt: 1, timeoutMs: DEADLINE_MS };
      const endpoints = [await connect({ ...to, port: byCm! }), await connectTcp(tcp)];
      // It has accepted those when it accepts this one.
      const talking = await talk(pd, forMessages!);
      await within(talking.middle, 'the middle of the messages');
      const work = endpoints.flatMap((endpoint) => [
        ...Array.from({ length: 1000 }, () => endpoint.send(mr.slice(0, 64))),
        ...Array.from({ length: 100 }, () => endpoint.recv(mr.slice(0, 64))),
      ]);
      setImmediate(kill, 'SIGKILL');
      return { endpoints, words: outcomes(work, 'all of them'), ...talking };
    };
    let begun: ReturnType<typeof begin> | undefined;
    const ended = await runChild('peer', [], {
      onOutput: (text, kill) => {
        if (text.endsWith('\n')) begun ??= begin(text.split(' ').map(Number), kill);
      },
    });
    expect(ended, ended.stderr).toMatchObject({ signal: 'SIGKILL', stderr: '' });

    const { endpoints, words, messages, sent, taken } = (await begun)!;
    const settled = await words;
    expect(settled.length).toBe(2200);
    expect(new Set(settled.slice(0, 1100))).toEqual(new Set(['WR_FLUSH_ERR']));
    expect(settled[1100]).toBe('RETRY_EXC_ERR');
    expect(new Set(settled.slice(1101))).toEqual(new Set(['WR_FLUSH_ERR']));
    expect(await endpoints[0]!.closed).toMatchObject({ code: 'ERR_RDMA_PEER_LEFT' });

    // The first that failed, or, where that is told of a moment later, one that was flushed for it.
    const reason = (await within(messages.closed, 'the end of the messages')) as Error;
    expect([reason, reason.cause]).toContainEqual(expect.any(WorkCompletionError));
    expect(await sent).toHaveLength(100);
    expect(await within(taken, 'the end')).toBeGreaterThanOrEqual(5);
    await within(messages.close(), 'the close of the messages');
    for (const endpoint of endpoints) await within(endpoint.close(), 'the close');
    mr.close();
    pd.close();
    await collect();
    expect(descriptors()).toBeLessThanOrEqual(before.descriptors);
    expect(process.memoryUsage().rss - before.rss).toBeLessThan(16 * 2 ** 20);
    context.close();
  });
});
