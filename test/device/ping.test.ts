/** Reachability by the connection manager: what answers, what does not, and the command. */
import { describe, expect, it } from 'vitest';
import { type CmListener, listen, openDevice } from '../../lib/index.ts';
import { type PingOptions, type PingResult, ping, summarizePings } from '../../lib/perf/ping.ts';
import { jsonLines, start } from '../unit/command.ts';
import { addressA, addressB, describeCm, deviceA, deviceB, newPort, rejection } from './cm.ts';
import { command } from './command.ts';
import { DEADLINE_MS, expectNoLeaks, isRxe, within } from './fixture.ts';

/** Some requests from A to B. */
async function pinged(more: Partial<PingOptions> & { port: number }): Promise<PingResult[]> {
  const options: PingOptions = {
    ...{ host: addressB, localAddress: addressA, count: 3, intervalMs: 10, timeoutMs: DEADLINE_MS },
    ...{ signal: AbortSignal.timeout(DEADLINE_MS), onBegin: () => {}, ...more },
  };
  const results: PingResult[] = [];
  for await (const result of ping(options)) results.push(result);
  return results;
}

const answers = (results: PingResult[]) =>
  results.map(({ seq, answer, device, reason }) => [seq, answer, device, reason]);

describeCm('ping()', () => {
  expectNoLeaks();

  it('is answered by the kernel where nobody listens, and tells the address first', async () => {
    const seen: string[] = [];
    const results = await pinged({ port: newPort(), onBegin: (address) => seen.push(address) });
    expect(seen).toEqual([addressB]);
    expect(answers(results)).toEqual([1, 2, 3].map((seq) => [seq, 'no listener', deviceA, undefined]));
    for (const { ms } of results) expect(ms).toBeGreaterThan(0);
    const { sent, received, lossPercent, min, avg, max } = summarizePings(results);
    expect([sent, received, lossPercent]).toEqual([3, 3, 0]);
    expect(min).toBeLessThanOrEqual(avg!);
    expect(avg).toBeLessThanOrEqual(max!);
  });

  it('gives a listener a connection that is ended at once, and says when one rejects', async () => {
    await using listener: CmListener = await listen({ port: 0, host: addressB });
    const pd = openDevice(deviceB).allocPd();
    const serving = (async () => {
      for (let i = 0; i < 2; i++) {
        const endpoint = await (await listener.getRequest()).accept({ pd, timeoutMs: DEADLINE_MS });
        expect(await within(endpoint.closed, 'the end')).toMatchObject({ code: 'ERR_RDMA_PEER_LEFT' });
        await endpoint.close();
      }
      (await listener.getRequest()).reject();
    })();
    const results = await pinged({ port: listener.port });
    await within(serving, 'the listener');
    expect(answers(results)).toEqual([
      [1, 'connected', deviceA, undefined],
      [2, 'connected', deviceA, undefined],
      [3, 'rejected', deviceA, '28'],
    ]);
    pd.context.close({ cascade: true });
  });

  it('counts what a listener does not answer as lost, and ends by its signal in the middle of a wait', async () => {
    await using listener = await listen({ port: 0, host: addressB });
    const results = await pinged({ port: listener.port, count: 2, timeoutMs: 2000 });
    expect(answers(results)).toEqual([1, 2].map((seq) => [seq, 'none', deviceA, 'no answer within 2000 ms']));
    expect(summarizePings(results)).toMatchObject({ sent: 2, received: 0, lossPercent: 100, min: undefined });
    const abort = new AbortController();
    const ended = pinged({ port: listener.port, count: undefined, signal: abort.signal });
    await listener.getRequest();
    abort.abort();
    expect(await within(ended, 'the end')).toEqual([]);
  });

  it('rejects when no RDMA device is on the way', async () => {
    const lost = { host: '127.0.0.1', localAddress: undefined, port: newPort() };
    expect(await rejection(pinged(lost))).toMatchObject({ code: expect.stringMatching(/^(ENODEV|EADDRNOTAVAIL)$/) });
  });
});

describe('summarizePings()', () => {
  it('reckons as ping(8) does', () => {
    const summary = summarizePings([2, undefined, 4, 9].map((ms) => ({ ms })));
    expect(summary).toMatchObject({ sent: 4, received: 3, lossPercent: 25, min: 2, avg: 5, max: 9 });
    expect(summary.mdev).toBeCloseTo(Math.sqrt((4 + 16 + 81) / 3 - 25), 9);
    expect(summarizePings([])).toMatchObject({ sent: 0, received: 0, lossPercent: 0, avg: undefined });
  });
});

describe('node-rdma ping', () => {
  const slow = { timeout: 300_000 };

  it.runIf(isRxe)('pings rping -s, and goes on when that has left', slow, async () => {
    const port = String(newPort());
    const server = start([], { shell: `exec rping -s -a ${addressB} -p ${port}` });
    // It does not say when it listens, and ends after one connection: until then, and from then on, the kernel answers; and
    // rping rejects who comes while it ends.
    const pinging = start(['ping', addressB, '-I', addressA, '-p', port, '-i', '0.05', '--json']);
    await pinging.untilOutput(/"connected".*"no listener"/s);
    pinging.child.kill('SIGINT');
    const { code, stdout, stderr } = await pinging.ended;
    expect([code, stderr]).toEqual([0, '']);
    const lines = jsonLines(stdout);
    const count = lines.length - 1;
    expect(lines.at(-1)).toMatchObject({ type: 'summary', host: addressB, received: count, lossPercent: 0 });
    const seen = lines.slice(0, -1).map(({ answer }) => answer);
    expect(seen.filter((answer) => answer === 'connected')).toHaveLength(1);
    for (const answer of seen) expect(['no listener', 'connected', 'rejected']).toContain(answer);
    await within(server.ended, 'the end of rping');
  });

  it.runIf(isRxe)('ends by Ctrl-C with its summary and exit code 0', slow, async () => {
    const started = start(['ping', addressB, '-I', addressA, '-p', String(newPort())]);
    await started.untilOutput('seq=2');
    started.child.kill('SIGINT');
    const { code, stdout } = await started.ended;
    expect(stdout).toMatch(/^PING 10\.78\.0\.2 \(10\.78\.0\.2\) port \d+: requests to connect\n/);
    expect(stdout).toContain(`${addressB} by ${deviceA}: seq=1 time=`);
    expect(stdout).toMatch(/\n--- 10\.78\.0\.2 ping statistics ---\n\d+ requests, \d+ answers, 0% lost\nrtt min/);
    expect(code).toBe(0);
  });

  it.runIf(!isRxe)('says with exit code 2, as ping does, that there is no such host', async () => {
    const { code, stderr } = await command(['ping', 'nobody.invalid', '-c', '1']);
    expect(stderr).toMatch(/^node-rdma: getaddrinfo (ENOTFOUND|EAI_AGAIN) nobody\.invalid\n$/);
    expect(code).toBe(2);
  });

  it.runIf(!isRxe)('says with exit code 3 that the kernel has no connection manager', async () => {
    const { code, stderr } = await command(['ping', '127.0.0.1', '-c', '1']);
    expect(stderr).toMatch(/^node-rdma: rdma_create_event_channel ENOENT: .*modprobe rdma_ucm/);
    expect(code).toBe(3);
  });
});
