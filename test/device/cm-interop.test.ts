import { resolve } from 'node:path';
import { expect, it } from 'vitest';
import { connect, listen } from '../../lib/index.ts';
import { childPath } from './children.ts';
import { addressA, addressB, describeCm, deviceA, deviceB, newPort, soon } from './cm.ts';
import { DEADLINE_MS, expectNoLeaks, isSiw, within } from './fixture.ts';
import { memoryOn, once, Peer } from './peers.ts';

const timeoutMs = DEADLINE_MS;
const example = resolve('examples/cm-ping.mjs');

describeCm('the programs of rdma-core', () => {
  expectNoLeaks();

  it('rping -c pings examples/cm-ping.mjs -s, and examples/cm-ping.mjs -c pings rping -s', async () => {
    // All at once: a start of node takes seconds under emulation.
    const ports = [String(newPort()), String(newPort())] as const;
    const theirServer = new Peer('rping', '-s', '-a', addressB, '-p', ports[1], '-v');
    const server = new Peer(process.execPath, example, '-s', '-a', addressB, '-p', ports[0]);
    const output = once(async () => {
      const to = ['-a', addressB, '-I', addressA, '-p', ports[1], '-C', '5'];
      const client = new Peer(process.execPath, example, '-c', ...to);
      const code = await within(client.ended, 'the client');
      if (code !== 0 && client.output.includes('ECONNREFUSED')) {
        throw Object.assign(new Error(client.output), { code: 'ECONNREFUSED' });
      }
      expect({ code, output: client.output }).toMatchObject({ code: 0 });
      return client.output;
    });
    await within(
      (async () => {
        while (!server.output.includes('listening')) await new Promise((resolve) => setTimeout(resolve, 20));
      })(),
      'the server',
    );
    const flags = ['-C', '5', '-S', '1500', '-v', '-V'];
    const theirClient = new Peer('rping', '-c', '-a', addressB, '-I', addressA, '-p', ports[0], ...flags);
    expect(await theirClient.succeeds()).toContain('ping data: rdma-ping-4: ');
    expect(await server.succeeds()).toContain('5 pings answered');
    expect(await output).toContain('5 pings of 64 bytes, echoes checked');
    await within(theirServer.ended, 'the end of rping');
    expect(theirServer.output).toContain('server ping data: rdma-ping-4: ');
  });

  // Both sides send ten messages of a hundred bytes, and receive as many.
  it('ucmatose connects to us, and we to it', async () => {
    const port = newPort();
    const mr = memoryOn(deviceB);
    const listener = await listen({ port, host: addressB });
    const client = new Peer('ucmatose', '-s', addressB, '-b', addressA, '-p', String(port));
    const asked = await listener.getRequest(soon());
    const recvs = () => Array.from({ length: 10 }, (_, i) => mr.slice(128 * i, 100));
    const endpoint = await asked.accept({ pd: mr.pd, recvs, timeoutMs });
    await Promise.all(Array.from({ length: 10 }, () => endpoint.send(mr.slice(2048, 100))));
    for (const received of await Promise.all(endpoint.recvs)) expect(received.byteLen).toBe(100);
    // The client waits for the server to end it.
    await endpoint.close();
    expect(await client.succeeds()).toContain('test complete');
    await listener.close();
    mr.pd.context.close({ cascade: true });

    const other = memoryOn(deviceA);
    const server = new Peer('ucmatose', '-b', addressB, '-p', String(port + 1000));
    const options = { pd: other.pd, host: addressB, port: port + 1000, localAddress: addressA };
    const ours = await once(() =>
      connect({
        ...options,
        recvs: () => Array.from({ length: 10 }, (_, i) => other.slice(128 * i, 100)),
        timeoutMs,
      }),
    );
    await Promise.all(Array.from({ length: 10 }, () => ours.send(other.slice(2048, 100))));
    for (const received of await Promise.all(ours.recvs)) expect(received.byteLen).toBe(100);
    await ours.close();
    expect(await server.succeeds()).toContain('test complete');
    other.pd.context.close({ cascade: true });
  });

  // One message of sixteen bytes each way. On iWARP it goes the way of the two above, and starting programs takes seconds.
  it.skipIf(isSiw)('rdma_client connects to us, and we to rdma_server', async () => {
    const port = newPort();
    const mr = memoryOn(deviceB);
    const listener = await listen({ port, host: addressB });
    const client = new Peer('rdma_client', '-s', addressB, '-p', String(port));
    const asked = await listener.getRequest(soon());
    const endpoint = await asked.accept({ pd: mr.pd, recvs: () => [mr.slice(0, 16)], timeoutMs });
    expect(await endpoint.recvs[0]).toMatchObject({ byteLen: 16 });
    await endpoint.send(mr.slice(64, 16));
    expect(await client.succeeds()).toContain('rdma_client: end 0');
    await endpoint.close();
    await listener.close();
    mr.pd.context.close({ cascade: true });

    const other = memoryOn(deviceA);
    const server = new Peer('rdma_server', '-p', String(port + 1000));
    const ours = await once(() =>
      connect({
        pd: other.pd,
        host: addressB,
        port: port + 1000,
        localAddress: addressA,
        recvs: () => [other.slice(0, 16)],
        timeoutMs,
      }),
    );
    await ours.send(other.slice(64, 16));
    expect(await ours.recvs[0]).toMatchObject({ byteLen: 16 });
    await ours.close();
    expect(await server.succeeds()).toContain('rdma_server: end 0');
    other.pd.context.close({ cascade: true });
  });

  it.skipIf(isSiw)('pyverbs connects to us, and we to it', async () => {
    const port = newPort();
    const [mr, other] = [memoryOn(deviceB), memoryOn(deviceA)];
    const listener = await listen({ port, host: addressB });
    // Once for both: it takes seconds to start under emulation.
    const ports = [String(port), addressA, String(port + 1000)];
    const peer = new Peer('/usr/bin/python3', childPath('cm_peer', 'py'), addressB, ...ports);
    const asked = await listener.getRequest(soon());
    const endpoint = await asked.accept({ pd: mr.pd, recvs: () => [mr.slice(0, 64)], timeoutMs });
    mr.buffer.write('from node...', 64);
    await endpoint.send(mr.slice(64, 64));
    expect(await endpoint.recvs[0]).toMatchObject({ byteLen: 64 });
    expect(mr.buffer.toString('latin1', 0, 6)).toBe('client');
    await endpoint.close();
    await listener.close();

    const to = { pd: other.pd, host: addressB, port: port + 1000, localAddress: addressA };
    const ours = await once(() => connect({ ...to, recvs: () => [other.slice(0, 64)], timeoutMs }));
    other.buffer.write('from node...', 64);
    await ours.send(other.slice(64, 64));
    expect(await ours.recvs[0]).toMatchObject({ byteLen: 64 });
    expect(other.buffer.toString('latin1', 0, 6)).toBe('server');
    await ours.close();
    expect(await peer.succeeds()).toMatch(/client received from node\.\.\.\nserver received from node\.\.\.\n/);
    for (const { pd } of [mr, other]) pd.context.close({ cascade: true });
  });
});
