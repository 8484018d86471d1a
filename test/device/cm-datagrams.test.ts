import { expect, it } from 'vitest';
import {
  type CmError,
  type CmId,
  createEventChannel,
  GRH_BYTES,
  McJoinFlag,
  openDevice,
  PortSpace,
  QpState,
  QpType,
  readDatagram,
  SendFlags,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import {
  addressA,
  addressB,
  type CmSide,
  closeSide,
  cmSide,
  describeCm,
  newPort,
  rejection,
  request,
  soon,
} from './cm.ts';
import { completion, completions, expectNoLeaks, fill, thrown } from './fixture.ts';

const group = '239.1.2.3';

/** Sends 512 bytes to a queue pair, and expects them in the memory of those who listen. */
async function expectDatagram(
  from: CmSide,
  to: CmSide[],
  where: { ahAttr: object; qpNum: number; qkey: number },
): Promise<void> {
  using ah = from.pd.createAh(where.ahAttr);
  const sent = fill(from.mr.buffer, to.length).subarray(0, 512);
  for (const side of to) {
    side.mr.buffer.fill(0);
    side.qp.postRecv({ wrId: 1, sgList: side.mr.slice(0, GRH_BYTES + 512) });
  }
  from.qp.postSend({
    opcode: WrOpcode.SEND,
    sgList: from.mr.slice(0, 512),
    sendFlags: SendFlags.SIGNALED,
    ah,
    remoteQpn: where.qpNum,
    remoteQkey: where.qkey,
  });
  expect(await completion(from.cq)).toMatchObject({ status: WcStatus.SUCCESS });
  for (const side of to) {
    const wc = await completion(side.cq);
    expect(wc).toMatchObject({ status: WcStatus.SUCCESS, byteLen: GRH_BYTES + 512 });
    expect(readDatagram(wc, side.mr.buffer).payload.equals(sent)).toBe(true);
  }
}

async function bound(id: CmId, address: string): Promise<CmSide> {
  await id.bindAddr({ address });
  return cmSide(id);
}

describeCm('datagrams', () => {
  expectNoLeaks();

  it('a look-up gives the address, the queue pair and the key of the peer, and takes data both ways', async () => {
    const channel = createEventChannel();
    const port = newPort();
    const listener = channel.createId(PortSpace.UDP);
    await listener.bindAddr({ address: addressB, port });
    listener.listen();
    const id = channel.createId(PortSpace.UDP);
    await id.resolveAddr({ address: addressB, port }, { src: { address: addressA }, ...soon() });
    await id.resolveRoute(soon());
    const a = await cmSide(id);
    expect([a.qp.qpType, a.qp.state]).toEqual([QpType.UD, QpState.RTS]);
    const answered = id.connect({ privateData: Buffer.alloc(180, 3) }, soon());
    const asked = await request(listener);
    expect(asked.ud?.privateData).toEqual(Buffer.alloc(180, 3));
    const b = await cmSide(asked.id);
    const refused = await rejection(b.id.accept({ privateData: Buffer.alloc(137) }));
    expect(refused.message).toBe('privateData has 137 bytes, and this message has room for 136');
    await b.id.accept({ privateData: Buffer.alloc(136, 4) });
    const answer = await answered;
    expect(answer).toMatchObject({ name: 'ESTABLISHED', ud: { qpNum: b.qp.qpNum } });
    expect(answer.ud?.privateData).toEqual(Buffer.alloc(136, 4));
    await expectDatagram(a, [b], answer.ud!);
    for (const side of [a, b]) closeSide(side);
    channel.close({ cascade: true });
  });

  it('a look-up that is rejected, or that nobody listens for, says so', async () => {
    const channel = createEventChannel();
    const port = newPort();
    const listener = channel.createId(PortSpace.UDP);
    await listener.bindAddr({ address: addressB, port });
    listener.listen();
    const reach = async (to: number) => {
      const id = channel.createId(PortSpace.UDP);
      await id.resolveAddr({ address: addressB, port: to }, { src: { address: addressA }, ...soon() });
      await id.resolveRoute(soon());
      return id;
    };
    const refused = rejection((await reach(port)).connect({}, soon()));
    const asked = await request(listener);
    expect(thrown(() => asked.id.reject(Buffer.alloc(137))).message).toBe(
      'data has 137 bytes, and this message has room for 136',
    );
    asked.id.reject(Buffer.alloc(136, 5));
    const error = (await refused) as CmError;
    expect(error).toMatchObject({ code: 'ECONNREFUSED', eventName: 'UNREACHABLE', status: 2 });
    expect(error.privateData).toEqual(Buffer.alloc(136, 5));
    const nobody = (await rejection((await reach(newPort())).connect({}, soon()))) as CmError;
    expect(nobody).toMatchObject({ code: 'ECONNREFUSED', eventName: 'UNREACHABLE', status: 1 });
    channel.close({ cascade: true });
  });

  it('of a multicast group reach all who have joined it, until they leave', async () => {
    const channel = createEventChannel();
    const a = await bound(channel.createId(PortSpace.UDP), addressA);
    const b = await bound(channel.createId(PortSpace.UDP), addressB);
    const where = await a.id.joinMulticast({ address: group }, soon());
    expect(where).toMatchObject({ qpNum: 0xff_ffff, qkey: 0x0123_4567 });
    expect(where.ahAttr.grh?.dgid).toMatch(/239\.1\.2\.3$/);
    await b.id.joinMulticast({ address: group }, soon());
    await expectDatagram(a, [b], where);
    expect(thrown(() => b.id.leaveMulticast({ address: '239.9.9.9' }))).toMatchObject({
      code: 'EADDRNOTAVAIL',
      syscall: 'rdma_leave_multicast',
    });
    b.id.leaveMulticast({ address: group });
    // Sent to the group first and then to the queue pair itself: only the latter comes, to the first receive.
    fill(a.mr.buffer, 7);
    for (const wrId of [1, 2]) b.qp.postRecv({ wrId, sgList: b.mr.slice(wrId * 1024, GRH_BYTES + 512) });
    const direct = { ...where.ahAttr, grh: { ...where.ahAttr.grh!, dgid: `::ffff:${addressB}` } };
    using toGroup = a.pd.createAh(where.ahAttr);
    using toB = a.pd.createAh(direct);
    const send = { opcode: WrOpcode.SEND, sendFlags: SendFlags.SIGNALED, remoteQkey: where.qkey };
    a.qp.postSend({ ...send, ah: toGroup, remoteQpn: where.qpNum, sgList: a.mr.slice(0, 64) });
    a.qp.postSend({ ...send, ah: toB, remoteQpn: b.qp.qpNum, sgList: a.mr.slice(64, 512) });
    for (const wc of await completions(a.cq, 2)) expect(wc).toMatchObject({ status: WcStatus.SUCCESS });
    expect(await completion(b.cq)).toMatchObject({ wrId: 1, status: WcStatus.SUCCESS, byteLen: GRH_BYTES + 512 });
    expect(b.mr.buffer.subarray(1024 + GRH_BYTES, 1024 + GRH_BYTES + 512)).toEqual(a.mr.buffer.subarray(64, 576));
    expect(b.qp.recvsInFlight).toBe(1);
    // Left and detached, the queue pair can be closed; the other id leaves with its end.
    b.qp.close();
    closeSide(b);
    closeSide(a);
    channel.close({ cascade: true });
  });

  it('are sent only, by who has joined to send', async () => {
    const channel = createEventChannel();
    const a = await bound(channel.createId(PortSpace.UDP), addressA);
    const b = await bound(channel.createId(PortSpace.UDP), addressB);
    await b.id.joinMulticast({ address: group }, { joinFlag: McJoinFlag.FULLMEMBER, ...soon() });
    // RoCE joins by IGMP, which knows no such thing: the kernel refuses where it must.
    const sendOnly = await a.id
      .joinMulticast({ address: group }, { joinFlag: McJoinFlag.SENDONLY_FULLMEMBER, ...soon() })
      .catch((error: Error & { code?: string }) => error);
    if (sendOnly instanceof Error) expect(sendOnly).toMatchObject({ code: 'EOPNOTSUPP' });
    else await expectDatagram(a, [b], sendOnly);
    for (const side of [a, b]) closeSide(side);
    channel.close({ cascade: true });
  });

  it('need a device before a group is joined', async () => {
    const channel = createEventChannel();
    const id = channel.createId(PortSpace.UDP);
    const error = await rejection(id.joinMulticast({ address: group }, soon()));
    expect(error).toMatchObject({ code: 'EINVAL', syscall: 'rdma_join_multicast' });
    const context = openDevice('rxe0');
    context.close();
    channel.close({ cascade: true });
  });
});
