import { execFileSync } from 'node:child_process';
import { expect, it } from 'vitest';
import {
  AddrInfoFlags,
  type CmIdOptions,
  createEventChannel,
  decodePrivateData,
  encodePrivateData,
  getaddrinfo,
  PortSpace,
  QpType,
} from '../../lib/index.ts';
import {
  addressA,
  addressB,
  CmPair,
  closeSide,
  cmSide,
  describeCm,
  deviceA,
  deviceB,
  interfaceA,
  interfaceB,
  linkLocal,
  newPort,
  newQpNum,
  rejection,
  request,
  resolved,
  soon,
} from './cm.ts';
import { expectNoLeaks, isSiw, thrown } from './fixture.ts';

describeCm('addresses', () => {
  expectNoLeaks();

  it('of IPv6, link-local with their interface, lead to a connection', async () => {
    const channel = createEventChannel();
    const address = linkLocal(interfaceB);
    const listener = channel.createId();
    await listener.bindAddr({ address, port: newPort() });
    listener.listen();
    const port = listener.getLocalAddr()?.port as number;
    expect(listener.getLocalAddr()).toEqual({ address, family: 'IPv6', port });
    expect(listener.device).toBe(deviceB);
    const id = channel.createId();
    // From the interface of the address itself: the two ends of the wire are different links to IPv6.
    const peer = address.replace(interfaceB, interfaceA);
    const outcome = await id
      .resolveAddr({ address: peer, port }, { src: { address: linkLocal(interfaceA) }, ...soon() })
      .then(() => id.resolveRoute(soon()));
    expect(outcome.name).toBe('ROUTE_RESOLVED');
    expect(id.getPeerAddr()).toEqual({ address: peer, family: 'IPv6', port });
    const a = await cmSide(id);
    const answered = id.connect({}, soon());
    const b = await cmSide((await request(listener)).id);
    await b.id.accept({}, soon());
    expect(await answered).toMatchObject({ name: 'ESTABLISHED' });
    for (const side of [a, b]) closeSide(side);
    channel.close({ cascade: true });
  });

  it('of IPv6 that are good everywhere lead to a connection', async () => {
    const ip = (what: string) => execFileSync('ip', ['-6', 'address', what, 'fd78::2/64', 'dev', interfaceB, 'nodad']);
    ip('add');
    try {
      const channel = createEventChannel();
      const listener = channel.createId();
      const address = 'fd78::2';
      await listener.bindAddr({ address, port: newPort() });
      listener.listen();
      expect(listener.device).toBe(deviceB);
      const port = listener.getLocalAddr()?.port as number;
      // The kernel takes the way of its own addresses: both ends are of one device.
      const id = channel.createId();
      await id.resolveAddr({ address, port }, soon());
      await id.resolveRoute(soon());
      expect([id.device, id.getPeerAddr()]).toEqual([deviceB, { address, family: 'IPv6', port }]);
      const a = await cmSide(id);
      const answered = id.connect({}, soon());
      const b = await cmSide((await request(listener)).id);
      expect(b.id.getPeerAddr()).toMatchObject({ address, family: 'IPv6' });
      await b.id.accept({}, soon());
      expect(await answered).toMatchObject({ name: 'ESTABLISHED' });
      for (const side of [a, b]) closeSide(side);
      channel.close({ cascade: true });
    } finally {
      ip('del');
    }
  });

  it('are refused when they are none, or their interface does not exist', async () => {
    const channel = createEventChannel();
    const id = channel.createId();
    for (const [address, code] of [
      ['localhost', 'ERR_INVALID_ARG_VALUE'],
      ['10.78.0.1.1', 'ERR_INVALID_ARG_VALUE'],
      ['fe80::1%nosuchif', 'ENODEV'],
    ] as const) {
      expect(await rejection(id.bindAddr({ address })), address).toMatchObject({ code });
    }
    expect(await rejection(id.bindAddr({ address: addressA, port: 65536 }))).toMatchObject({
      code: 'ERR_OUT_OF_RANGE',
    });
    expect(await rejection(id.bindAddr('::' as never))).toMatchObject({ code: 'ERR_INVALID_ARG_TYPE' });
    channel.close({ cascade: true });
  });

  it('wildcards are all devices; the port is chosen', async () => {
    const channel = createEventChannel();
    const [address, family] = isSiw ? ['0.0.0.0', 'IPv4'] : ['::', 'IPv6'];
    const id = channel.createId();
    await id.bindAddr({ address });
    id.listen();
    expect(id.device).toBeNull();
    const local = id.getLocalAddr();
    expect(local).toMatchObject({ address, family });
    const client = await cmSide(await resolved(channel, local?.port as number));
    const refused = rejection(client.id.connect({}, soon()));
    const asked = await request(id);
    expect(asked.id.device).toBe(deviceB);
    asked.id.close();
    await refused;
    closeSide(client);
    channel.close({ cascade: true });
  });

  it.runIf(isSiw)('the wildcard of IPv6 is none of IPv4 on siw', async () => {
    const channel = createEventChannel();
    const id = channel.createId();
    await id.bindAddr({ address: '::' });
    id.listen();
    const client = await cmSide(await resolved(channel, id.getLocalAddr()?.port as number));
    expect(await rejection(client.id.connect({}, soon()))).toMatchObject({ code: 'ECONNREFUSED' });
    closeSide(client);
    channel.close({ cascade: true });
  });

  // TCP has no such timeout, and siw asks nobody for a queue pair that does not exist.
  it.skipIf(isSiw)('setOption() reaches the connection: type of service and acknowledgement timeout', async () => {
    const channel = createEventChannel();
    const port = newPort();
    const listener = channel.createId();
    await listener.bindAddr({ address: addressB, port });
    listener.listen();
    const id = channel.createId();
    id.setOption({ tos: 0x68, ackTimeout: 12 });
    await id.resolveAddr({ address: addressB, port }, { src: { address: addressA }, ...soon() });
    await id.resolveRoute(soon());
    const a = await cmSide(id);
    const answered = id.connect({}, soon());
    const b = await cmSide((await request(listener)).id);
    await b.id.accept({}, soon());
    await answered;
    const attrs = a.qp.query();
    expect(attrs.timeout).toBe(12);
    expect(attrs.ahAttr.grh.trafficClass).toBe(0x68);
    expect(thrown(() => id.setOption({ tos: 256 }))).toMatchObject({ code: 'ERR_OUT_OF_RANGE' });
    expect(thrown(() => id.setOption({ toss: 1 } as never))).toMatchObject({ code: 'ERR_INVALID_ARG_VALUE' });
    for (const side of [a, b]) closeSide(side);
    channel.close({ cascade: true });
  });

  it.skipIf(isSiw)('setOption() reaches the address: reuse, and wildcards of IPv6 that are not of IPv4', async () => {
    const channel = createEventChannel();
    const bound = async (address: string, port: number, options: CmIdOptions) => {
      const id = channel.createId();
      id.setOption(options);
      await id.bindAddr({ address, port });
      return id;
    };
    const port = newPort();
    const first = await bound(addressB, port, { reuseAddr: true });
    expect(await rejection(bound(addressB, port, { reuseAddr: false }))).toMatchObject({ code: 'EADDRINUSE' });
    const second = await bound(addressB, port, { reuseAddr: true });
    // To listen there one must be the only one.
    expect(thrown(() => first.listen())).toMatchObject({ code: 'EADDRINUSE', syscall: 'rdma_listen' });
    first.close();
    second.listen();

    for (const afOnly of [true, false]) {
      const wildcard = newPort();
      (await bound('::', wildcard, { afOnly })).listen();
      const id = await resolved(channel, wildcard);
      const refused = rejection(id.connect({ qpNum: newQpNum() }, soon()));
      if (!afOnly) (await channel.getEvent(soon())).id.reject(Buffer.of(7));
      // Else it is the kernel that refuses.
      expect(await refused).toMatchObject({
        code: 'ECONNREFUSED',
        privateData: Buffer.alloc(148).fill(afOnly ? 0 : 7, 0, 1),
      });
    }
    channel.close({ cascade: true });
  });

  it('getaddrinfo() and createEp() make both ends of a connection', async () => {
    const channel = createEventChannel();
    const port = newPort();
    const [passive] = await getaddrinfo(addressB, port, { flags: AddrInfoFlags.PASSIVE });
    expect(passive).toMatchObject({
      srcAddr: { address: addressB, port },
      dstAddr: null,
      qpType: QpType.RC,
      portSpace: PortSpace.TCP,
    });
    const listener = await channel.createEp(passive!);
    listener.listen();
    const hints = { srcAddr: { address: addressA }, family: 4 } as const;
    const [active] = await getaddrinfo(addressB, String(port), hints);
    expect(active).toMatchObject({ dstAddr: { address: addressB, port, family: 'IPv4' } });
    const id = await channel.createEp(active!);
    expect(id.device).toBe(deviceA);
    const a = await cmSide(id);
    const answered = id.connect({}, soon());
    const b = await cmSide((await request(listener)).id);
    await b.id.accept({}, soon());
    expect(await answered).toMatchObject({ name: 'ESTABLISHED' });
    for (const side of [a, b]) closeSide(side);

    expect(await rejection(getaddrinfo('no.such.name.invalid', 1))).toMatchObject({ syscall: 'rdma_getaddrinfo' });
    expect(await rejection(getaddrinfo(null, null))).toMatchObject({ code: 'ERR_INVALID_ARG_VALUE' });
    expect(await rejection(channel.createEp({ ...active!, dstAddr: null }))).toMatchObject({
      code: 'ERR_INVALID_ARG_VALUE',
    });
    expect(await rejection(channel.createEp(passive!))).toMatchObject({
      syscall: 'rdma_create_ep',
      code: 'EADDRINUSE',
    });
    channel.close({ cascade: true });
  });

  it('private data with its length in front comes out as it went in', async () => {
    using pair = await CmPair.connect({
      connect: { privateData: encodePrivateData('grüße') },
      accept: { privateData: encodePrivateData(Buffer.of(0, 0, 1, 0)) },
    });
    expect(decodePrivateData(pair.asked.conn!.privateData).toString()).toBe('grüße');
    expect(decodePrivateData(pair.answered.conn!.privateData)).toEqual(Buffer.of(0, 0, 1, 0));
  });
});
