/** Flow steering rules and counters. Soft-RoCE has neither; the software device has them as objects, and steers nothing. */
import { describe, expect, it } from 'vitest';
import {
  CounterDescription,
  type FlowAttr,
  FlowAttrType,
  type FlowSpec,
  FlowSpecType,
  openDevice,
  QpType,
  type QueuePair,
  RdmaError,
} from '../../lib/index.ts';
import { encodeFlow } from '../../lib/verbs/flow-spec.ts';
import { runChild } from './children.ts';
import { deviceA, deviceB, expectNoLeaks, isRxe, thrown } from './fixture.ts';

expectNoLeaks();

const { ETH, IPV4, IPV4_EXT, IPV6, ESP, TCP, UDP, GRE, MPLS, VXLAN_TUNNEL, ACTION_TAG, ACTION_DROP, ACTION_COUNT } =
  FlowSpecType;

function withDatagrams(test: (qp: QueuePair) => void): void {
  const context = openDevice(deviceA);
  try {
    const pd = context.allocPd();
    test(pd.createQp({ sendCq: context.createCq(512), qpType: QpType.UD }));
  } finally {
    context.close({ cascade: true });
  }
}

const udp: FlowSpec = { type: UDP, val: { dstPort: 4791 } };

// Each specification, and its value and mask as the kernel gets them: bytes in network order.
const specs: [spec: Exclude<FlowSpec, { type: typeof ACTION_COUNT }>, text: string][] = [
  [
    { type: ETH, val: { dstMac: '02:00:00:00:00:01', etherType: 0x0800, vlanTag: 0x2123 }, mask: { vlanTag: 0x0fff } },
    '0x20: 020000000001 000000000000 0800 2123 ffffffffffff 000000000000 ffff 0fff',
  ],
  [
    { type: ETH, inner: true, val: { srcMac: 'AA:bb:cc:dd:ee:ff' } },
    '0x120: 000000000000 aabbccddeeff 0000 0000 000000000000 ffffffffffff 0000 0000',
  ],
  [{ type: IPV4, val: { srcIp: '11.134.200.6' } }, '0x30: 0b86c806 00000000 ffffffff 00000000'],
  [
    { type: IPV4, val: { dstIp: '10.1.2.3' }, mask: { dstIp: '255.255.0.0', srcIp: '128.0.0.0' } },
    '0x30: 00000000 0a010203 80000000 ffff0000',
  ],
  [
    { type: IPV4_EXT, val: { dstIp: '10.0.0.1', proto: 17, tos: 0x68, ttl: 64, flags: 2 } },
    '0x30: 00000000 0a000001 11 68 40 02 00000000 ffffffff ff ff ff ff',
  ],
  [
    {
      type: IPV6,
      val: { srcIp: 'fe80::1', dstIp: '2001:db8::ffff', flowLabel: 0x12345, nextHdr: 17 },
      mask: { hopLimit: 255 },
    },
    '0x31: fe800000000000000000000000000001 20010db800000000000000000000ffff 00012345 11 00 00 00' +
      ' ffffffffffffffffffffffffffffffff ffffffffffffffffffffffffffffffff 000fffff ff 00 ff 00',
  ],
  [{ type: ESP, val: { spi: 0x01020304 } }, '0x34: 01020304 00000000 ffffffff 00000000'],
  [{ type: TCP, val: { srcPort: 80 } }, '0x40: 0000 0050 0000 ffff'],
  [{ type: UDP, val: { dstPort: 4791 }, mask: { dstPort: 0xff00 } }, '0x41: 12b7 0000 ff00 0000'],
  [{ type: VXLAN_TUNNEL, val: { tunnelId: 0xabcdef } }, '0x50: 00abcdef 00ffffff'],
  [{ type: GRE, val: { cKsRes0Ver: 0x2000, protocol: 0x6558, key: 7 } }, '0x51: 2000 6558 00000007 ffff ffff ffffffff'],
  [{ type: MPLS, val: { label: 0x000641ff } }, '0x60: 000641ff ffffffff'],
  [{ type: ACTION_TAG, tagId: 0x00abcdef }, '0x1000: efcdab00 00000000'],
  [{ type: ACTION_DROP }, '0x1001: '],
];

describe('qp.createFlow', () => {
  it.runIf(isRxe)('answers EOPNOTSUPP on a device without flow steering', () => {
    withDatagrams((qp) => {
      const error = thrown(() => qp.createFlow({ specs: [udp] }));
      expect(error).toBeInstanceOf(RdmaError);
      expect(error).toMatchObject({ code: 'EOPNOTSUPP', syscall: 'ibv_create_flow' });
    });
  });

  it.runIf(!isRxe)('gives the kernel each specification as it was meant', async () => {
    // A rule has ten specifications at the most.
    for (const some of [specs.slice(0, 7), specs.slice(7)]) {
      const given = JSON.stringify(some.map(([spec]) => spec));
      const { code, stderr } = await runChild('flow', [given], { env: { MLX5MODEL_LOG: '1' } });
      const seen = [...stderr.matchAll(/flow spec (0x[0-9a-f]+: [0-9a-f]*)/g)].map(([, text]) => text);
      expect(seen, stderr).toEqual(some.map(([, text]) => text.replace(/(?<!:) /g, '')));
      expect(code).toBe(0);
    }
  });

  it.runIf(!isRxe)('keeps its queue pair and its counters open until it is closed', () => {
    withDatagrams((qp) => {
      const { context } = qp.pd;
      const counters = context.createCounters();
      counters.attach({ counterDesc: CounterDescription.PACKETS, index: 0 });
      const flow = qp.createFlow({ priority: 3, specs: [udp, { type: ACTION_COUNT, counters }] });
      expect(flow.qp).toBe(qp);
      for (const parent of [qp, counters]) {
        expect(thrown(() => parent.close())).toMatchObject({ code: 'EBUSY', children: [flow] });
        expect(parent.closed).toBe(false);
      }
      flow.close();
      flow.close();
      counters.close();
      const others = [0, 1, 2].map(() => qp.createFlow({ type: FlowAttrType.SNIFFER }));
      qp.close({ cascade: true });
      expect(others.every(({ closed }) => closed)).toBe(true);
    });
  });

  it.runIf(!isRxe)('passes on what the kernel refuses', () => {
    withDatagrams((qp) => {
      const rc = qp.pd.createQp({ sendCq: qp.sendCq });
      for (const refused of [
        () => qp.createFlow({ port: 2, specs: [udp] }),
        () => qp.createFlow({ priority: 8, specs: [udp] }),
        () => qp.createFlow({ specs: Array(11).fill(udp) }),
        () => rc.createFlow({ specs: [udp] }),
      ]) {
        expect(thrown(refused)).toMatchObject({ code: 'EINVAL', syscall: 'ibv_create_flow' });
      }
    });
  });

  it('names what is wrong with a rule, before C sees it', () => {
    withDatagrams((qp) => {
      const spec = (value: unknown) => ({ specs: [value] }) as FlowAttr;
      const type = 'ERR_INVALID_ARG_TYPE';
      const value = 'ERR_INVALID_ARG_VALUE';
      const range = 'ERR_OUT_OF_RANGE';
      const cases: [attr: unknown, code: string, text: string][] = [
        [undefined, type, 'attr '],
        [1, type, 'attr '],
        [{ priority: 65536 }, range, 'attr.priority'],
        [{ port: 0 }, range, 'attr.port'],
        [{ port: 256 }, range, 'attr.port'],
        [{ flags: -1 }, range, 'attr.flags'],
        [{ type: 9 }, range, 'attr.type'],
        [{ specs: {} }, type, 'attr.specs'],
        [{ spec: [] }, value, "did you mean 'specs'?"],
        [{ specs: Array(256).fill(udp) }, range, 'attr.specs has 256'],
        [spec(null), type, 'attr.specs[0]'],
        [spec({}), type, 'attr.specs[0].type'],
        [spec({ type: 0x77 }), range, 'attr.specs[0].type'],
        [spec({ type: FlowSpecType.INNER }), value, 'attr.specs[0].type'],
        [spec({ type: FlowSpecType.ACTION_HANDLE }), value, 'attr.specs[0].type'],
        [spec({ type: UDP }), type, 'attr.specs[0].val'],
        [spec({ type: UDP, val: { dstPort: 65536 } }), range, 'attr.specs[0].val.dstPort'],
        [spec({ type: UDP, val: { port: 1 } }), value, "Unknown option 'port' in attr.specs[0].val"],
        [spec({ type: UDP, val: {}, mask: { srcPort: '1' } }), type, 'attr.specs[0].mask.srcPort'],
        [spec({ type: UDP, val: {}, inner: 1 }), type, 'attr.specs[0].inner'],
        [spec({ type: ETH, val: { dstMac: '1:2:3:4:5:6' } }), value, 'attr.specs[0].val.dstMac'],
        [spec({ type: ETH, val: { dstMac: Buffer.alloc(6) } }), type, 'attr.specs[0].val.dstMac'],
        [spec({ type: IPV4, val: { srcIp: '::1' } }), value, 'attr.specs[0].val.srcIp'],
        [spec({ type: IPV4, val: { srcIp: 1 } }), type, 'attr.specs[0].val.srcIp'],
        [spec({ type: IPV6, val: { dstIp: '10.0.0.1' } }), value, 'attr.specs[0].val.dstIp'],
        [spec({ type: IPV6, val: { flowLabel: 2 ** 20 } }), range, 'attr.specs[0].val.flowLabel'],
        [spec({ type: VXLAN_TUNNEL, val: { tunnelId: 2 ** 24 } }), range, 'attr.specs[0].val.tunnelId'],
        [spec({ type: MPLS, val: { label: 2 ** 32 } }), range, 'attr.specs[0].val.label'],
        [spec({ type: ACTION_TAG }), type, 'attr.specs[0].tagId'],
        [spec({ type: ACTION_DROP, tagId: 1 }), value, "Unknown option 'tagId' in attr.specs[0]"],
        [spec({ type: ACTION_COUNT, counters: {} }), type, 'attr.specs[0].counters'],
      ];
      for (const [attr, code, text] of cases) {
        const error = thrown(() => qp.createFlow(attr as FlowAttr));
        expect(error, text).toMatchObject({ code });
        expect(error.message).toContain(text);
      }
      qp.close();
      expect(thrown(() => qp.createFlow({ specs: [udp] }))).toMatchObject({ code: 'ERR_RDMA_CLOSED' });
    });
  });

  it('writes the rule of the man page as its C program does', () => {
    const { bytes, counters } = encodeFlow({
      specs: [
        { type: ETH, val: { dstMac: '66:11:22:33:44:55' } },
        { type: IPV4, val: { srcIp: '11.134.200.6' } },
      ],
    });
    // struct ibv_flow_attr, ibv_flow_spec_eth and ibv_flow_spec_ipv4, packed: 20, 40 and 24 bytes.
    const hex = [
      '00000000 00000000 5400 0000 02 01 0000 00000000',
      '20000000 2800 661122334455 000000000000 0000 0000 ffffffffffff 000000000000 0000 0000 0000',
      '30000000 1800 0000 0b86c806 00000000 ffffffff 00000000',
    ];
    expect(Buffer.from(bytes).toString('hex')).toBe(hex.join('').replaceAll(' ', ''));
    expect(counters).toEqual([]);
  });
});

describe('context.createCounters', () => {
  it.runIf(isRxe)('answers EOPNOTSUPP on a device without counters', () => {
    using context = openDevice(deviceA);
    const error = thrown(() => context.createCounters());
    expect(error).toBeInstanceOf(RdmaError);
    expect(error).toMatchObject({ code: 'EOPNOTSUPP', syscall: 'ibv_create_counters' });
  });

  it.runIf(!isRxe)('makes counters that a rule counts into, read as 64 bits each', () => {
    withDatagrams((qp) => {
      const { context } = qp.pd;
      const counters = context.createCounters();
      counters.attach({ counterDesc: CounterDescription.PACKETS, index: 0 });
      counters.attach({ counterDesc: CounterDescription.BYTES, index: 1 });
      // Nothing counts into them yet.
      expect(thrown(() => counters.read(2))).toMatchObject({ code: 'EINVAL', syscall: 'ibv_read_counters' });
      const flow = qp.createFlow({ specs: [udp, { type: ACTION_COUNT, counters }] });
      expect(counters.read(2)).toEqual([0xfedc_ba98_7654_3210n, 0xfedc_ba98_7654_3211n]);
      expect(counters.read(1, 1)).toEqual([0xfedc_ba98_7654_3210n]);
      // libmlx5 takes what is counted only before the rule is made.
      const late = thrown(() => counters.attach({ counterDesc: CounterDescription.BYTES, index: 2 }, flow));
      expect(late).toMatchObject({ syscall: 'ibv_attach_counters_point_flow', code: 'EOPNOTSUPP' });
      flow.close();
    });
  });

  it.runIf(!isRxe)('refuses what is wrong, and counters that are closed or of another device', () => {
    withDatagrams((qp) => {
      const { context } = qp.pd;
      const counters = context.createCounters();
      for (const [call, code] of [
        [() => counters.attach(undefined as never), 'ERR_INVALID_ARG_TYPE'],
        [() => counters.attach({ counterDesc: 9, index: 0 } as never), 'ERR_OUT_OF_RANGE'],
        [() => counters.attach({ counterDesc: 0, index: -1 }), 'ERR_OUT_OF_RANGE'],
        [() => counters.attach({ counterDesc: 0, index: 0 }, {} as never), 'ERR_INVALID_ARG_TYPE'],
        [() => counters.read(0), 'ERR_OUT_OF_RANGE'],
        [() => counters.read(65536), 'ERR_OUT_OF_RANGE'],
        [() => counters.read(1n as never), 'ERR_INVALID_ARG_TYPE'],
        [() => counters.read(1, '' as never), 'ERR_INVALID_ARG_TYPE'],
      ] as const) {
        expect(thrown(call)).toMatchObject({ code });
      }
      using other = openDevice(deviceB);
      using foreign = other.createCounters();
      const count = (some: typeof counters) => () =>
        qp.createFlow({ specs: [udp, { type: ACTION_COUNT, counters: some }] });
      expect(thrown(count(foreign))).toMatchObject({ code: 'ERR_INVALID_ARG_VALUE' });
      counters.close();
      expect(thrown(count(counters))).toMatchObject({ code: 'ERR_RDMA_CLOSED' });
      for (const call of [() => counters.read(1), () => counters.attach({ counterDesc: 0, index: 0 })]) {
        expect(thrown(call)).toMatchObject({ code: 'ERR_RDMA_CLOSED' });
      }
    });
  });
});
