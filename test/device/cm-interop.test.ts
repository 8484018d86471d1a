import { type ChildProcess, spawn } from 'node:child_process';
import { resolve } from 'node:path';
import { expect, it } from 'vitest';
import {
  connect,
  createEventChannel,
  GRH_BYTES,
  listen,
  type MemoryRegion,
  openDevice,
  PortSpace,
  readDatagram,
  SendFlags,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import { childPath } from './children.ts';
import { addressA, addressB, closeSide, cmSide, describeCm, deviceA, deviceB, newPort, request, soon } from './cm.ts';
import { completion, completions, DEADLINE_MS, expectNoLeaks, fill, snapshot, within } from './fixture.ts';

const timeoutMs = DEADLINE_MS;
const example = resolve('examples/cm-ping.mjs');

/** A foreign program beside the test; killed with it when it hangs. */
class Peer {
  output = '';
  readonly #child: ChildProcess;
  readonly ended: Promise<number | null>;
  constructor(command: string, ...args: string[]) {
    this.#child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'] });
    for (const stream of [this.#child.stdout, this.#child.stderr]) {
      stream?.setEncoding('utf8').on('data', (text: string) => (this.output += text));
    }
    const timer = setTimeout(() => this.#child.kill('SIGKILL'), 2 * DEADLINE_MS);
    this.ended = new Promise((resolve, reject) => {
      this.#child.on('error', reject);
      this.#child.on('close', (code) => {
        clearTimeout(timer);
        resolve(code);
      });
    });
  }
  /** Waits until it ends well. */
  async succeeds(): Promise<string> {
    const code = await within(this.ended, `the end of ${this.#child.spawnfile}`);
    expect({ code, output: this.output }).toMatchObject({ code: 0 });
    return this.output;
  }
}

/** What a program that does not say when it listens needs: the attempt is made again until somebody does. */
async function once<T>(attempt: () => Promise<T>): Promise<T> {
  const end = performance.now() + DEADLINE_MS;
  for (;;) {
    try {
      return await attempt();
    } catch (error) {
      const isEarly = (error as { code?: string; status?: number }).code === 'ECONNREFUSED';
      if (!isEarly || performance.now() > end) throw error;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

const memoryOn = (device: string, bytes = 4096): MemoryRegion => openDevice(device).allocPd().allocSync(bytes);

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

  // One message of sixteen bytes each way.
  it('rdma_client connects to us, and we to rdma_server', async () => {
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

  it('pyverbs connects to us, and we to it', async () => {
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

  // Ten datagrams each way; the client's carry its queue pair number as immediate data.
  it('udaddy looks us up, and we it', async () => {
    const channel = createEventChannel();
    // It knows no other.
    const port = 7174;
    const listener = channel.createId(PortSpace.UDP);
    await listener.bindAddr({ address: addressB, port });
    listener.listen();
    const client = new Peer('udaddy', '-s', addressB, '-b', addressA);
    const { id } = await request(listener);
    const b = await cmSide(id);
    for (let i = 0; i < 10; i++) b.qp.postRecv({ wrId: 1, sgList: b.mr.slice(256 * i, 256) });
    await id.accept();
    const arrived = await completions(b.cq, 10, 'datagrams of udaddy');
    const [first] = arrived;
    expect(readDatagram(first!, b.mr.buffer).payload.length).toBe(100);
    using ah = b.pd.createAhFromWc(first!, b.mr.buffer.subarray(0, GRH_BYTES));
    const to = { ah, remoteQpn: first!.immData, remoteQkey: 0x0123_4567 };
    for (let i = 0; i < 10; i++) {
      b.qp.postSend({
        opcode: WrOpcode.SEND_WITH_IMM,
        immData: b.qp.qpNum,
        sgList: b.mr.slice(0, 100),
        sendFlags: SendFlags.SIGNALED,
        ...to,
      });
    }
    await completions(b.cq, 10, 'our datagrams');
    expect(await client.succeeds()).toContain('test complete');
    closeSide(b);
    listener.close();

    const server = new Peer('udaddy', '-b', addressB);
    const answered = await once(async () => {
      const ours = channel.createId(PortSpace.UDP);
      try {
        await ours.resolveAddr({ address: addressB, port: port }, { src: { address: addressA }, ...soon() });
        await ours.resolveRoute(soon());
        return { ours, event: await ours.connect({}, soon()) };
      } catch (error) {
        ours.close();
        throw error;
      }
    });
    const a = await cmSide(answered.ours);
    for (let i = 0; i < 10; i++) a.qp.postRecv({ wrId: 1, sgList: a.mr.slice(256 * i, 256) });
    const { ahAttr, qpNum, qkey } = answered.event.ud!;
    using peer = a.pd.createAh(ahAttr);
    fill(a.mr.buffer);
    for (let i = 0; i < 10; i++) {
      a.qp.postSend({
        opcode: WrOpcode.SEND_WITH_IMM,
        immData: a.qp.qpNum,
        sgList: a.mr.slice(0, 100),
        sendFlags: 0,
        ah: peer,
        remoteQpn: qpNum,
        remoteQkey: qkey,
      });
    }
    for (const wc of await completions(a.cq, 10, 'datagrams of udaddy')) {
      expect(wc).toMatchObject({ status: WcStatus.SUCCESS, byteLen: GRH_BYTES + 100 });
    }
    expect(await server.succeeds()).toContain('test complete');
    closeSide(a);
    channel.close({ cascade: true });
  });

  it('mckey sends to our group, and receives from us', async () => {
    const channel = createEventChannel();
    const groups = ['239.7.7.7', '239.7.7.8'] as const;
    const joined = async (address: string) => {
      const id = channel.createId(PortSpace.UDP);
      await id.bindAddr({ address: addressB });
      const side = await cmSide(id);
      return { side, where: await id.joinMulticast({ address }, soon()) };
    };
    const { side: b } = await joined(groups[0]);
    for (let i = 0; i < 10; i++) b.qp.postRecv({ wrId: 1, sgList: b.mr.slice(256 * i, 256) });
    // Both at once: each pauses for three seconds, for a subnet manager.
    const sender = new Peer('mckey', '-m', groups[0], '-b', addressA, '-s', '-C', '500');
    const receiver = new Peer('mckey', '-m', groups[1], '-b', addressA);
    // It destroys its queue pair at once, perhaps before the last have left, and most find no receive here.
    const count = await b.cq.wait(soon());
    for (let i = 0; i < count; i++) {
      expect(snapshot(b.cq.at(i))).toMatchObject({ status: WcStatus.SUCCESS, byteLen: GRH_BYTES + 100 });
    }
    expect(await sender.succeeds()).toContain('test complete');
    closeSide(b);

    const { side: a, where } = await joined(groups[1]);
    using ah = a.pd.createAh(where.ahAttr);
    let isOver = false;
    receiver.ended.finally(() => {
      isOver = true;
    });
    // It does not say when it has joined: it is sent to until it has had enough.
    while (!isOver) {
      a.qp.postSend({
        opcode: WrOpcode.SEND_WITH_IMM,
        immData: a.qp.qpNum,
        sgList: a.mr.slice(0, 100),
        sendFlags: SendFlags.SIGNALED,
        ah,
        remoteQpn: where.qpNum,
        remoteQkey: where.qkey,
      });
      expect((await completion(a.cq)).status).toBe(WcStatus.SUCCESS);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    expect(await receiver.succeeds()).toContain('test complete');
    ah.close();
    closeSide(a);
    channel.close({ cascade: true });
  });
});
