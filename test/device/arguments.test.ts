import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  openDevice,
  type QpAttr,
  QpState,
  QpType,
  RemoteRegion,
  type SendWr,
  WrOpcode,
  wcStatusStr,
} from '../../lib/index.ts';
import { deviceA, expectNoLeaks, openSide, Pair, type Side, thrown } from './fixture.ts';

// One pair for all: nothing here may change it.
let pair: Pair;
let spare: Side;
beforeAll(async () => {
  pair = await Pair.connect({ cap: { maxSendSge: 2, maxRecvSge: 2, maxInlineData: 16 } });
  spare = openSide(deviceA);
});
afterAll(() => {
  spare.context.close({ cascade: true });
  pair[Symbol.dispose]();
});

expectNoLeaks();

class Impostor {
  closed = false;
  requireOpen(): void {}
}

const notNumbers = [null, '1', '', true, {}, [], [1], 1n, Symbol('number'), () => 1, new Date()];
const notIntegers = [Number.NaN, -1, 0.5, 2 ** 53, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
const notBooleans = [null, 0, 1, 'true', {}, [], Symbol('boolean'), 1n];
const notStrings = [null, 1, true, {}, ['mlx5_0'], Symbol('string'), 1n, Buffer.from('mlx5_0')];
const notObjects = [null, 1, 'text', true, Symbol('object'), 1n, []];
const notBigints = [undefined, null, 1, '1', {}, -1n, 2n ** 64n, Symbol('bigint')];
const notInstances = [null, {}, [], 1, 'text', Symbol('instance'), new Impostor(), Object.create(Object.prototype)];
const number = [...notNumbers, ...notIntegers];

/** What is called with each bad value in turn, the words that its message must have, and the values. */
type Case = [what: string, call: (value: never) => unknown, name: string, values: readonly unknown[]];

const send = (more: object) => pair.a.qp.postSend({ opcode: WrOpcode.SEND, ...more } as SendWr);
const write = (more: object) => send({ opcode: WrOpcode.RDMA_WRITE, remote: pair.remote.slice(), ...more });
const atomic = (more: object) => {
  const wr = { opcode: WrOpcode.ATOMIC_CMP_AND_SWP, sgList: pair.a.mr.slice(0, 8), remote: pair.remote.slice(0, 8) };
  return send({ ...wr, compareAdd: 1n, swap: 2n, ...more });
};
const modify = (attr: object) => spare.qp.modifySync(attr as QpAttr);
const grh = { dgid: '::1', sgidIndex: 0 };
const cap = (name: string) => (value: never) => spare.pd.createQp({ sendCq: spare.cq, cap: { [name]: value } });

const cases: Case[] = [
  ['openDevice', (value) => openDevice(value), 'device', notStrings],
  ['queryPort', (value) => pair.a.context.queryPort(value), 'portNum', [undefined, 0, 256, ...number]],
  ['queryGidEx', (value) => pair.a.context.queryGidEx(value, 0), 'portNum', [undefined, 0, 256, ...number]],
  ['queryGidEx', (value) => pair.a.context.queryGidEx(1, value), 'gidIndex', [undefined, 2 ** 31, ...number]],
  ['queryGid', (value) => pair.a.context.queryGid(value, 0), 'portNum', [undefined, 0, 256, ...number]],
  ['queryGid', (value) => pair.a.context.queryGid(1, value), 'gidIndex', [undefined, 2 ** 31, ...number]],
  ['queryPkey', (value) => pair.a.context.queryPkey(value, 0), 'portNum', [undefined, 0, 256, ...number]],
  ['queryPkey', (value) => pair.a.context.queryPkey(1, value), 'index', [undefined, 65536, ...number]],
  ['selectGid', (value) => pair.a.context.selectGid(value), 'portNum', [0, 256, ...number]],
  ['selectGid', (value) => pair.a.context.selectGid(1, value), 'options', notObjects],
  ['selectGid', (value) => pair.a.context.selectGid(1, { gidIndex: value }), 'options.gidIndex', [256, ...number]],
  ['selectGid', (value) => pair.a.context.selectGid(1, { netdev: value }), 'options.netdev', notStrings],
  ['createCq', (value) => pair.a.context.createCq(value), 'cqe', [undefined, 0, 2 ** 31, ...number]],
  ['createCq', (value) => pair.a.context.createCq(8, value), 'options', notObjects],
  [
    'createCq',
    (value) => pair.a.context.createCq(8, { channel: value }),
    'options.channel',
    notInstances.filter((value) => value !== null),
  ],
  [
    'createCq',
    (value) => pair.a.context.createCq(8, { compVector: value }),
    'options.compVector',
    [100_000, ...number],
  ],
  ['poll', (value) => pair.a.cq.poll(value), 'max', [0, ...number]],
  ['pollWc', (value) => pair.a.cq.pollWc(value), 'max', [0, ...number]],
  ['at', (value) => pair.a.cq.at(value), 'index', [undefined, 0, ...number]],
  ['reqNotify', (value) => pair.a.cq.reqNotify(value), 'solicitedOnly', notBooleans],
  ['wait', (value) => pair.a.cq.wait(value), 'options', notObjects],
  ['wait', (value) => pair.a.cq.wait({ signal: value }), 'options.signal', [...notInstances, new AbortController()]],
  ['alloc', (value) => pair.a.pd.alloc(value), 'length', [undefined, 0, ...number]],
  ['allocSync', (value) => pair.a.pd.allocSync(value), 'length', [undefined, 0, ...number]],
  ['alloc', (value) => pair.a.pd.alloc(8, value), 'options', notObjects],
  ['allocSync', (value) => pair.a.pd.allocSync(8, { access: value }), 'options.access', [2 ** 32, ...number]],
  ['allocSync', (value) => pair.a.pd.allocSync(8, { hugePages: value }), 'options.hugePages', notBooleans],
  ['regMr', (value) => pair.a.pd.regMr(Buffer.alloc(8), value), 'options', notObjects],
  [
    'regMrSync',
    (value) => pair.a.pd.regMrSync(Buffer.alloc(8), { access: value }),
    'options.access',
    [2 ** 32, ...number],
  ],
  ['slice', (value) => pair.a.mr.slice(value, 1), 'offset', number],
  ['slice', (value) => pair.a.mr.slice(value), 'offset', number],
  ['slice', (value) => pair.a.mr.slice(0, value), 'length', [2 ** 32, ...number]],
  ['RemoteRegion.slice', (value) => pair.remote.slice(value, 1), 'offset', number],
  ['RemoteRegion.slice', (value) => pair.remote.slice(value), 'offset', number],
  ['RemoteRegion.slice', (value) => pair.remote.slice(0, value), 'length', [2 ** 32, ...number]],
  ['new RemoteRegion', (value) => new RemoteRegion(value), 'token', [undefined, ...notObjects]],
  ['createQp', (value) => spare.pd.createQp(value), 'attr', [undefined, ...notObjects, {}]],
  ['createQp', (value) => spare.pd.createQp({ sendCq: value }), 'attr.sendCq', [undefined, ...notInstances]],
  ['createQp', (value) => spare.pd.createQp({ sendCq: spare.cq, recvCq: value }), 'attr.recvCq', notInstances],
  ['createQp', (value) => spare.pd.createQp({ sendCq: spare.cq, qpType: value }), 'attr.qpType', [0, 99, ...number]],
  [
    'createQp',
    (value) => spare.pd.createQp({ sendCq: spare.cq, qpType: value }),
    'attr.qpType',
    [QpType.XRC_RECV, QpType.DRIVER],
  ],
  ['createQp', (value) => spare.pd.createQp({ sendCq: spare.cq, srq: value }), 'attr.srq', notInstances],
  ['createSrq', (value) => spare.pd.createSrq(value), 'attr', notObjects],
  ['createSrq', (value) => spare.pd.createSrq({ maxWr: value }), 'attr.maxWr', [0, 2 ** 31, ...number]],
  ['createSrq', (value) => spare.pd.createSrq({ maxSge: value }), 'attr.maxSge', [2 ** 31, ...number]],
  ['createAhFromWc', (value) => spare.pd.createAhFromWc(value), 'wc', [undefined, null, 1]],
  ['allocMw', (value) => spare.pd.allocMw(value), 'type', [undefined, 0, 3, ...number]],
  ['getAsyncEvent', (value) => spare.context.getAsyncEvent({ signal: value }), 'options.signal', [1, {}]],
  ['createQp', (value) => spare.pd.createQp({ sendCq: spare.cq, sqSigAll: value }), 'attr.sqSigAll', notBooleans],
  ['createQp', (value) => spare.pd.createQp({ sendCq: spare.cq, cap: value }), 'attr.cap', notObjects],
  ...['maxSendWr', 'maxRecvWr', 'maxSendSge', 'maxRecvSge', 'maxInlineData'].map(
    (name): Case => ['createQp', cap(name), `attr.cap.${name}`, [2 ** 31, ...number]],
  ),
  ['modify', (value) => spare.qp.modify(value), 'attr', [undefined, ...notObjects, {}]],
  ['modifySync', (value) => modify(value), 'attr', [undefined, ...notObjects, {}]],
  ...(['qpState', 'curQpState', 'pathMtu', 'pathMigState'] as const).map(
    (name): Case => ['modifySync', (value) => modify({ [name]: value }), `attr.${name}`, [99, ...number]],
  ),
  ...(
    [
      ['qkey', 2 ** 32],
      ['rqPsn', 2 ** 24],
      ['sqPsn', 2 ** 24],
      ['destQpNum', 2 ** 24],
      ['qpAccessFlags', 2 ** 32],
      ['pkeyIndex', 65536],
      ['altPkeyIndex', 65536],
      ['enSqdAsyncNotify', 2],
      ['maxRdAtomic', 256],
      ['maxDestRdAtomic', 256],
      ['minRnrTimer', 32],
      ['portNum', 256],
      ['portNum', 0],
      ['timeout', 32],
      ['retryCnt', 8],
      ['rnrRetry', 8],
      ['altPortNum', 0],
      ['altTimeout', 32],
      ['rateLimit', 2 ** 32],
    ] as const
  ).map(
    ([name, past]): Case => ['modifySync', (value) => modify({ [name]: value }), `attr.${name}`, [past, ...number]],
  ),
  ['modifySync', (value) => modify({ cap: value }), 'attr.cap', notObjects],
  ['modifySync', (value) => modify({ cap: { maxSendWr: value } }), 'attr.cap.maxSendWr', number],
  ['modifySync', (value) => modify({ ahAttr: value }), 'attr.ahAttr', notObjects],
  ...(
    [
      ['dlid', 65536],
      ['sl', 16],
      ['srcPathBits', 128],
      ['staticRate', 256],
      ['portNum', 0],
    ] as const
  ).map(
    ([name, past]): Case => [
      'modifySync',
      (value) => modify({ ahAttr: { [name]: value } }),
      `attr.ahAttr.${name}`,
      [past, ...number],
    ],
  ),
  ['modifySync', (value) => modify({ ahAttr: { grh: value } }), 'attr.ahAttr.grh', notObjects],
  ...(
    [
      ['sgidIndex', 256],
      ['flowLabel', 2 ** 20],
      ['hopLimit', 256],
      ['trafficClass', 256],
    ] as const
  ).map(
    ([name, past]): Case => [
      'modifySync',
      (value) => modify({ ahAttr: { grh: { ...grh, [name]: value } } }),
      `attr.ahAttr.grh.${name}`,
      [past, ...number],
    ],
  ),
  [
    'modifySync',
    (value) => modify({ ahAttr: { grh: { ...grh, dgid: value } } }),
    'gid',
    [undefined, ...notStrings, '', '10.0.0.1', 'fe80::1%eth0', '::g', '1:2:3', `::${'1:'.repeat(8)}`],
  ],
  ['postSend', (value) => pair.a.qp.postSend(value), 'wr', [undefined, null, 1, 'text', true, Symbol('wr'), 1n]],
  ['postSend', (value) => pair.a.qp.postSend([value]), 'wrs[0]', [undefined, null, 1, 'text', Symbol('wr')]],
  [
    'postSend',
    (value) => send({ opcode: value }),
    'wr.opcode',
    [undefined, 16, 99, ...number, 'length', 'push', 'SEND', Symbol.iterator],
  ],
  ['postSend', (value) => send({ opcode: value }), 'wr.opcode', [WrOpcode.BIND_MW, WrOpcode.TSO]],
  ['postSend', (value) => send({ wrId: value }), 'wr.wrId', number],
  ['postSend', (value) => send({ sendFlags: value }), 'wr.sendFlags', [32, 2 ** 31, 2 ** 32, ...number]],
  ['postSend', (value) => send({ sgList: value }), 'wr.sgList', notInstances.filter((value) => !Array.isArray(value))],
  ['postSend', (value) => send({ sgList: [value] }), 'wr.sgList[0]', [undefined, ...notInstances]],
  ['postSend', (value) => send({ sgList: new Array(3).fill(value) }), 'wr.sgList', [0].map(() => null)],
  ['postSend', (value) => send({ immData: value }), 'wr.immData', [1, null, ...number]],
  ['postSend', (value) => send({ invalidateRkey: value }), 'wr.invalidateRkey', [1, null, ...number]],
  ['postSend', (value) => send({ remote: value }), 'wr.remote', [null, {}, 1]],
  ['postSend', (value) => send({ compareAdd: value }), 'compareAdd', [1n, 1, null]],
  [
    'postSend',
    (value) => send({ opcode: WrOpcode.SEND_WITH_IMM, immData: value }),
    'wr.immData',
    [undefined, 2 ** 32, ...number],
  ],
  [
    'postSend',
    (value) => send({ opcode: WrOpcode.SEND_WITH_INV, invalidateRkey: value }),
    'wr.invalidateRkey',
    [undefined, 2 ** 32, ...number],
  ],
  ['postSend', (value) => write({ remote: value }), 'wr.remote', [undefined, ...notInstances]],
  ['postSend', (value) => write({ opcode: WrOpcode.RDMA_READ, sendFlags: value }), 'wr.sendFlags', [8, 10]],
  ['postSend', (value) => atomic({ compareAdd: value }), 'wr.compareAdd', notBigints],
  ['postSend', (value) => atomic({ swap: value }), 'wr.swap', notBigints],
  ['postSend', (value) => atomic({ sgList: value }), 'wr.sgList', [undefined, []]],
  ['postRecv', (value) => pair.a.qp.postRecv(value), 'wr', [undefined, null, 1, 'text', true, Symbol('wr'), 1n]],
  ['postRecv', (value) => pair.a.qp.postRecv([value]), 'wrs[0]', [undefined, null, 1, 'text', Symbol('wr')]],
  ['postRecv', (value) => pair.a.qp.postRecv({ wrId: value }), 'wrId', number],
  [
    'postRecv',
    (value) => pair.a.qp.postRecv({ sgList: value }),
    'sgList',
    notInstances.filter((value) => !Array.isArray(value)),
  ],
  ['postRecv', (value) => pair.a.qp.postRecv({ sgList: [value] }), 'sgList', [undefined, ...notInstances]],
  ['prepareSend', (value) => pair.a.qp.prepareSend(value), 'wrs', [undefined, null, 1, 'text', Symbol('wr'), []]],
  ['prepareRecv', (value) => pair.a.qp.prepareRecv(value), 'wrs', [undefined, null, 1, 'text', Symbol('wr'), []]],
  ['close', (value) => spare.mr.close(value), 'options', notObjects],
  ['close', (value) => spare.mr.close({ cascade: value }), 'options.cascade', notBooleans],
  ['wcStatusStr', (value) => wcStatusStr(value), 'status', [undefined, 2 ** 32, ...number]],
];

describe.each(cases)('%s', (_what, call, name, values) => {
  it(`refuses what is no ${name}, naming it`, async () => {
    for (const value of values) {
      const shown = `${typeof value} ${String(value)}`;
      let error: Error & { code?: string } = new Error('it was accepted');
      try {
        await call(value as never);
      } catch (reason) {
        error = reason as Error;
      }
      expect(`${error.code}: ${error.message}`, shown).toMatch(
        /^ERR_(INVALID_ARG_TYPE|INVALID_ARG_VALUE|OUT_OF_RANGE|RDMA_CLOSED): /,
      );
      expect(error.message, shown).toContain(name.split('.').at(-1)!);
      if (name.includes('.')) expect(error.message, shown).toContain(name.split('.')[0]!);
    }
    expect([pair.a.qp.sendsInFlight, pair.a.qp.recvsInFlight, spare.qp.state]).toEqual([0, 0, QpState.RESET]);
    expect(spare.mr.closed).toBe(false);
  });
});

describe('a misspelt option', () => {
  it.each<[string, () => unknown, RegExp]>([
    ['createCq', () => pair.a.context.createCq(8, { comp_vector: 0 } as never), /comp_vector.*'compVector'/],
    ['selectGid', () => pair.a.context.selectGid(1, { gidindex: 0 } as never), /gidindex.*'gidIndex'/],
    ['createQp', () => spare.pd.createQp({ sendCQ: spare.cq } as never), /sendCQ.*'sendCq'/],
    [
      'createQp',
      () => spare.pd.createQp({ sendCq: spare.cq, cap: { max_send_wr: 4 } as never }),
      /max_send_wr.*'maxSendWr'/,
    ],
    ['allocSync', () => spare.pd.allocSync(8, { hugepages: true } as never), /hugepages.*'hugePages'/],
    ['regMrSync', () => spare.pd.regMrSync(Buffer.alloc(8), { flags: 1 } as never), /flags.*known are access/],
    ['modifySync', () => modify({ qp_state: 1 }), /qp_state.*'qpState'/],
    ['modifySync', () => modify({ ahAttr: { is_global: 1 } }), /is_global.*known are grh/],
    ['modifySync', () => modify({ ahAttr: { grh: { ...grh, hoplimit: 1 } } }), /hoplimit.*'hopLimit'/],
    ['postSend', () => send({ wr_id: 1 }), /wr_id.*'wrId'/],
    ['postRecv', () => pair.a.qp.postRecv({ sg_list: [] } as never), /sg_list.*'sgList'/],
    ['close', () => spare.mr.close({ cascading: true } as never), /cascading.*did you mean .cascade./],
  ])('of %s is refused, with the one that was meant', (_what, call, message) => {
    const error = thrown(call);
    expect(error.code).toBe('ERR_INVALID_ARG_VALUE');
    expect(error.message).toMatch(message);
  });

  it('of a promise is refused by its rejection', async () => {
    await expect(pair.a.cq.wait({ timeout: 5 } as never)).rejects.toMatchObject({ code: 'ERR_INVALID_ARG_VALUE' });
    await expect(spare.pd.alloc(8, { Access: 1 } as never)).rejects.toThrow("'access'");
    await expect(spare.qp.modify({ QPState: 1 } as never)).rejects.toThrow("'qpState'");
  });
});

describe('an object of another device', () => {
  it('is refused where one of this device is needed', () => {
    const other = { code: 'ERR_INVALID_ARG_VALUE', message: expect.stringContaining('another device') };
    expect(thrown(() => pair.a.pd.createQp({ sendCq: pair.b.cq }))).toMatchObject(other);
    expect(thrown(() => pair.a.pd.createQp({ sendCq: pair.a.cq, recvCq: pair.b.cq }))).toMatchObject(other);
    // The same device opened twice is not the same context.
    expect(thrown(() => pair.a.pd.createQp({ sendCq: spare.cq }))).toMatchObject(other);
    const { channel } = pair.b.cq;
    expect(thrown(() => pair.a.context.createCq(8, { channel: channel! }))).toMatchObject(other);
  });
});

describe('too many scatter/gather elements', () => {
  it('are refused with both numbers', () => {
    const { a, remote } = pair;
    const many = (count: number) => Array.from({ length: count }, () => a.mr.slice(0, 1));
    const [sends, recvs] = [a.qp.cap.maxSendSge, a.qp.cap.maxRecvSge];
    expect(thrown(() => write({ sgList: many(sends + 1), remote: remote.slice() }))).toMatchObject({
      code: 'ERR_OUT_OF_RANGE',
      message: expect.stringContaining(`wr.sgList has ${sends + 1} element(s), more than maxSendSge (${sends})`),
    });
    expect(thrown(() => a.qp.postRecv({ sgList: many(recvs + 1) }))).toMatchObject({
      code: 'ERR_OUT_OF_RANGE',
      message: expect.stringContaining(`sgList has ${recvs + 1} element(s), more than maxRecvSge (${recvs})`),
    });
  });
});
