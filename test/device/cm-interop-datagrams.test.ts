import { expect, it } from 'vitest';
import {
  createEventChannel,
  GRH_BYTES,
  PortSpace,
  readDatagram,
  SendFlags,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import { addressA, addressB, closeSide, cmSide, describeCm, request, soon } from './cm.ts';
import { completion, completions, expectNoLeaks, fill, snapshot } from './fixture.ts';
import { once, Peer } from './peers.ts';

describeCm('the programs of rdma-core that send datagrams', () => {
  expectNoLeaks();

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
    const sender = new Peer('mckey', '-m', groups[0], '-b', addressA, '-s', '-C', '2000');
    const receiver = new Peer('mckey', '-m', groups[1], '-b', addressA);
    expect(await sender.succeeds()).toContain('test complete');
    // It destroys its queue pair at once, perhaps before the last have left, and most find no receive here.
    const count = await b.cq.wait(soon());
    for (let i = 0; i < count; i++) {
      expect(snapshot(b.cq.at(i))).toMatchObject({ status: WcStatus.SUCCESS, byteLen: GRH_BYTES + 100 });
    }
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
