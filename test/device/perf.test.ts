/** Ping-pong and measurements between the two devices, both sides in this process; on Soft-RoCE with foreign sides too. */
import { describe, expect, it } from 'vitest';
import { type Bandwidth, type Latency, latencyOf } from '../../lib/perf/measure.ts';
import { type PerfClientOptions, type PerfTest, perfTests, runPerfClient, runPerfServer } from '../../lib/perf/perf.ts';
import { type PingpongOptions, pingpong } from '../../lib/perf/pingpong.ts';
import { command, start } from '../unit/command.ts';
import { DEADLINE_MS, deviceA, deviceB, expectNoLeaks, isRxe } from './fixture.ts';

expectNoLeaks();

// On Soft-RoCE, in an emulated VM, only what another driver may do otherwise.
const itFast = it.runIf(!isRxe);

const signal = () => AbortSignal.timeout(DEADLINE_MS);

describe('pingpong', () => {
  /** A game between both devices; the client starts when the server listens. */
  async function play(more: Partial<PingpongOptions>, port: number, ofClient: Partial<PingpongOptions> = {}) {
    const options: PingpongOptions = {
      ...{ transport: 'rc', host: undefined, device: deviceA, port, portNum: 1, size: 4096, mtu: 1024, rxDepth: 20 },
      ...{ iters: 50, sl: 0, gidIndex: undefined, events: false, check: true, signal: signal(), onLocal: () => {} },
      ...more,
    };
    let client: Promise<unknown> | undefined;
    const server = pingpong({
      ...options,
      onLocal: () => {
        client = pingpong({ ...options, device: deviceB, host: '127.0.0.1', ...ofClient });
        client.catch(() => {});
      },
    });
    try {
      return [await server, await client];
    } finally {
      await client?.catch(() => {});
    }
  }

  itFast.each(['rc', 'uc', 'ud'] as const)(
    'plays over %s, polling and with events, and checks what has come',
    async (transport) => {
      const size = transport === 'ud' ? 512 : 5000;
      for (const [events, rxDepth] of [
        [false, 20],
        [true, 2],
        [true, 1],
      ] as const) {
        const results = await play({ transport, size, events, rxDepth }, 18530);
        expect(results).toMatchObject([
          { iters: 50, bytes: 100 * size },
          { iters: 50, bytes: 100 * size },
        ]);
      }
    },
  );

  itFast('says what is likely behind a message that does not fit, or is not what was to come', async () => {
    await expect(play({ size: 1024 }, 18534, { size: 4096 })).rejects.toThrow(/: do both sides have the same -s\?$/);
    await expect(play({}, 18535, { check: false })).rejects.toThrow(
      'the received data is wrong from byte 0 on, 0x7b in the place of 0x00: both sides need --chk (-c), and the same -s',
    );
  });

  it('refuses a datagram that does not fit the MTU', async () => {
    await expect(play({ transport: 'ud', size: 100_000 }, 18531)).rejects.toMatchObject({ code: 'ERR_OUT_OF_RANGE' });
  });

  it('ends by its signal while it waits for a client', async () => {
    const abort = new AbortController();
    await expect(play({ signal: abort.signal, onLocal: () => abort.abort() } as never, 18532)).rejects.toThrow();
  });

  it.runIf(isRxe).each([
    ['rc', 'server'],
    ['rc', 'client'],
    ['uc', 'server'],
    ['uc', 'client'],
    ['ud', 'server'],
    ['ud', 'client'],
  ] as const)('plays %s with the program of rdma-core as the %s', { timeout: 300_000 }, async (transport, theirs) => {
    const own = {
      ...{ transport, device: deviceA, port: 18533, portNum: 1, size: 1024, mtu: 1024, rxDepth: 100, iters: 30, sl: 0 },
      ...{ gidIndex: undefined, events: false, check: false, signal: AbortSignal.timeout(250_000) },
    };
    const program = `ibv_${transport}_pingpong -d ${deviceB} -g 1 -p 18533 -n 30 -s 1024 -r 100`;
    if (theirs === 'client') {
      let other: Promise<{ code: number | null; stdout: string }> | undefined;
      await pingpong({
        ...own,
        host: undefined,
        onLocal: () => {
          other = start([], { shell: `${program} 127.0.0.1` }).ended;
        },
      });
      expect(await other).toMatchObject({ code: 0, stdout: expect.stringContaining('30 iters in') });
      return;
    }
    const server = start([], { shell: program });
    const deadline = performance.now() + 100_000;
    for (;;) {
      try {
        expect(await pingpong({ ...own, host: '127.0.0.1', onLocal: () => {} })).toMatchObject({ iters: 30 });
        break;
      } catch (error) {
        // It does not listen yet.
        if ((error as NodeJS.ErrnoException).code !== 'ECONNREFUSED' || performance.now() > deadline) throw error;
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
    }
    expect(await server.ended).toMatchObject({ code: 0 });
  });
});

describe('perf', () => {
  async function measure(test: PerfTest, more: Partial<PerfClientOptions> = {}): Promise<(Bandwidth | Latency)[]> {
    const common = {
      ...{ test, portNum: 1, gidIndex: undefined, trafficClass: undefined, mtu: undefined, events: false },
      signal: signal(),
    };
    const seen: object[] = [];
    let connected: object | undefined;
    let client: Promise<(Bandwidth | Latency)[]> | undefined;
    await runPerfServer({ ...common, device: deviceA, port: 0, events: more.events ?? false }, (port) => {
      client = runPerfClient({
        ...{ ...common, device: deviceB, host: '127.0.0.1', port, sizes: [64], iters: 100, seconds: undefined, qps: 1 },
        ...{ txDepth: 32, rxDepth: 64, onResult: (result) => seen.push(result), ...more },
        onConnected: (context) => {
          connected = context;
        },
      });
      client.catch(() => {});
    });
    const results = await client!;
    expect(seen).toEqual(results);
    expect(connected).toMatchObject({
      ...{ host: '127.0.0.1', device: deviceB, portNum: 1, gid: expect.stringContaining(':'), transport: 'RC' },
      // Of latency one message is in flight.
      ...{ txDepth: test.endsWith('-lat') ? 1 : 32, qps: more.qps ?? 1 },
    });
    return results;
  }

  it.each(perfTests)('%s gives figures that fit together, for each size', async (test) => {
    const sizes = test.startsWith('atomic') ? [8] : isRxe ? [4096] : [2, 4096, 1];
    const results = await measure(test, { sizes, iters: 100 });
    expect(results.map(({ size }) => size)).toEqual(sizes);
    for (const result of results) {
      expect(result.iterations).toBe(100);
      if ('typical' in result) {
        expect(result.min).toBeGreaterThan(0);
        expect(result.min).toBeLessThanOrEqual(result.typical);
        expect(result.typical).toBeLessThanOrEqual(result.p99);
        expect(result.p99).toBeLessThanOrEqual(result.p999);
        expect(result.p999).toBeLessThanOrEqual(result.max);
        expect(result.histogram.reduce((sum, { count }) => sum + count, 0)).toBe(100);
      } else {
        expect(result.average).toBeCloseTo((result.mpps * 1e6 * result.size) / 2 ** 20, 6);
        expect(result.peak).toBeGreaterThanOrEqual(result.average);
      }
    }
  });

  it.each(isRxe ? (['send-bw'] as const) : (['write-bw', 'send-bw', 'read-bw'] as const))(
    '%s uses several queue pairs, and a count that no list divides',
    async (test) => {
      const [result] = await measure(test, { qps: 3, iters: 101 });
      expect(result!.iterations).toBe(303);
    },
  );

  it.each(isRxe ? (['send-bw', 'read-lat'] as const) : (['send-bw', 'send-lat', 'read-lat', 'write-bw'] as const))(
    '%s sleeps on events',
    async (test) => {
      const [result] = await measure(test, { events: true, iters: 50 });
      expect(result!.iterations).toBe(50);
    },
  );

  itFast.each(['write-bw', 'send-bw', 'write-lat', 'send-lat', 'read-lat'] as const)(
    '%s goes on for a time',
    async (test) => {
      const begin = performance.now();
      const [result] = await measure(test, { iters: undefined, seconds: 0.3 });
      expect(performance.now() - begin).toBeGreaterThan(300);
      expect(result!.iterations).toBeGreaterThan(0);
    },
  );

  it('says so on both sides when they measure different things', async () => {
    let client: Promise<unknown> | undefined;
    const common = {
      ...{ portNum: 1, gidIndex: undefined, trafficClass: undefined, mtu: undefined, events: false, signal: signal() },
      ...{ device: deviceA },
    };
    const server = runPerfServer({ ...common, test: 'write-bw', port: 0 }, (port) => {
      client = runPerfClient({
        ...{ ...common, test: 'read-bw', host: '127.0.0.1', port, sizes: [64], iters: 1, seconds: undefined, qps: 1 },
        ...{ txDepth: 1, rxDepth: 2, onResult: () => {} },
      });
      client.catch(() => {});
    });
    await expect(server).rejects.toThrow('the client measures read-bw, the server write-bw');
    await expect(client).rejects.toThrow('the peer says: the client measures read-bw, the server write-bw');
  });

  it('needs memory to look at for write-lat, not events', async () => {
    const client = runPerfClient({
      ...{
        test: 'write-lat',
        device: deviceB,
        portNum: 1,
        gidIndex: undefined,
        trafficClass: undefined,
        mtu: undefined,
      },
      ...{
        events: true,
        signal: signal(),
        host: '127.0.0.1',
        port: 1,
        sizes: [2],
        iters: 1,
        seconds: undefined,
        qps: 1,
      },
      ...{ txDepth: 1, rxDepth: 2, onResult: () => {} },
    });
    await expect(client).rejects.toThrow('write-lat looks at memory: there are no events to wait for');
  });
});

describe('latencyOf', () => {
  it('counts as perftest does', () => {
    const times = Array.from({ length: 1000 }, (_, i) => 1000 - i);
    expect(latencyOf(2, times)).toMatchObject({ min: 1, max: 1000, typical: 500, average: 500.5, p99: 990, p999: 999 });
    expect(latencyOf(2, times).stdev).toBeCloseTo(288.67, 1);
  });
});

describe('node-rdma pingpong and perf', () => {
  itFast('end by Ctrl-C while they wait, with exit code 130', async () => {
    const started = start(['pingpong', '-d', deviceA, '-p', '18540']);
    await started.untilOutput('local address');
    started.child.kill('SIGINT');
    expect(await started.ended).toMatchObject({ code: 130, stderr: '' });
  });

  itFast.each([
    ['write-lat', ['-e'], 'write-lat looks at memory'],
    ['send-lat', ['-q', '2'], '--qp is for bandwidth'],
    ['send-bw', ['-H'], '--histogram is of latencies'],
    ['atomic-bw', ['-s', '64'], 'atomics have 8 bytes'],
    ['atomic-lat', ['-a'], 'atomics have 8 bytes'],
    ['read-bw', ['-s', '0'], '--size is 1 at the least'],
    ['read-bw', ['-a', '--max-size', '1'], '--max-size is 2 at the least'],
  ])('refuse what %s does not measure: %j', async (test, flags, message) => {
    const { code, stdout, stderr } = await command(['perf', test, '127.0.0.1', '-p', '1', '-d', deviceA, ...flags]);
    expect([code, stdout, stderr]).toEqual([2, '', expect.stringContaining(message)]);
  });

  itFast('say that a page cannot be written before they measure', async () => {
    const page = ['--html', '/nonexistent/page.html'];
    const { code, stderr } = await command(['perf', 'write-bw', '127.0.0.1', '-p', '1', '-d', deviceA, ...page]);
    expect([code, stderr]).toEqual([1, expect.stringMatching(/^node-rdma: ENOENT: .*'\/nonexistent'/)]);
  });

  itFast('say that nobody listens', async () => {
    const { code, stderr } = await command(['perf', 'write-bw', '127.0.0.1', '-p', '1', '-d', deviceA]);
    expect(stderr).toMatch(/^node-rdma: .*ECONNREFUSED/);
    expect(code).toBe(1);
  });
});
