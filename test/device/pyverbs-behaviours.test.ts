/** Behaviours that pyverbs' own tests pass on Soft-RoCE, as far as no other test here shows them: see docs/pyverbs.md. */
import { describe, expect, it } from 'vitest';
import {
  AccessFlags,
  type CompletionQueue,
  CreateCqAttrFlags,
  CreateCqWcFlags,
  ForkStatus,
  GRH_BYTES,
  isForkInitialized,
  MwType,
  openDevice,
  QpState,
  QpType,
  type QueuePair,
  RemoteRegion,
  readDatagram,
  SendOpsFlags,
  type SendWr,
  WcStatus,
  WrOpcode,
} from '../../lib/index.ts';
import {
  ALL_ACCESS,
  completion,
  deviceA,
  deviceB,
  expectNoLeaks,
  fill,
  initAttr,
  isRxe,
  openSide,
  Pair,
  postings,
  rtrAttr,
  type Side,
  thrown,
} from './fixture.ts';

expectNoLeaks();

const QKEY = 0x1111_1111;
const SUCCESS = WcStatus.SUCCESS;

describe('a device', () => {
  it('has as many ports by both counts, up to 255', () => {
    using context = openDevice(deviceA);
    const { origAttr, physPortCntEx } = context.queryDeviceEx();
    expect(physPortCntEx).toBeGreaterThan(0);
    expect(origAttr.physPortCnt).toBe(Math.min(physPortCntEx, 255));
  });

  it('is open, and the memory of its regions safe from a fork', () => {
    using _context = openDevice(deviceA);
    expect([ForkStatus.ENABLED, ForkStatus.UNNEEDED]).toContain(isForkInitialized());
  });
});

describe('an extended completion queue', () => {
  it('is made with each field and each flag, or says that the device has none of it', () => {
    using context = openDevice(deviceA);
    const options = [
      ...Object.values(CreateCqWcFlags).map((wcFlags) => ({ wcFlags })),
      ...Object.values(CreateCqAttrFlags).map((flags) => ({ wcFlags: 0, flags })),
    ];
    const made = options.filter((each) => {
      try {
        context.createCqEx(10, each).close();
        return true;
      } catch (error) {
        expect(error).toMatchObject({ name: 'RdmaError', code: 'EOPNOTSUPP', syscall: 'ibv_create_cq_ex' });
        return false;
      }
    });
    expect(made).toContainEqual({ wcFlags: CreateCqWcFlags.WITH_BYTE_LEN });
  });

  it('is refused with too many entries, and with a wrong vector', () => {
    using context = openDevice(deviceA);
    const { maxCqe } = context.queryDevice();
    expect(thrown(() => context.createCqEx(maxCqe + 1))).toMatchObject({
      code: 'EINVAL',
      syscall: 'ibv_create_cq_ex',
      message: expect.stringContaining(`cqe is ${maxCqe + 1}, maxCqe of the device ${maxCqe}`),
    });
    const compVector = context.numCompVectors + 1;
    expect(thrown(() => context.createCqEx(10, { compVector })).code).toBe('ERR_OUT_OF_RANGE');
    // The shared channel was made for the first.
    context.close({ cascade: true });
  });

  it('tells of datagrams', async () => {
    const extended = (side: Side) => side.context.createCqEx(512);
    await withDatagrams(
      ALL_ACCESS,
      async ({ a, b, to }) => {
        const sent = fill(a.mr.buffer.subarray(0, 300), 13);
        b.qp.postRecv({ wrId: 3, sgList: b.mr.slice(0, GRH_BYTES + 300) });
        a.qp.postSend({ wrId: 2, opcode: WrOpcode.SEND_WITH_IMM, sgList: a.mr.slice(0, 300), immData: 7, ...to });
        expect(await completion(a.qp.sendCq, 'the send')).toMatchObject({ wrId: 2, status: SUCCESS });
        const wc = await completion(b.qp.recvCq, 'the datagram');
        expect(wc).toMatchObject({ wrId: 3, status: SUCCESS, byteLen: GRH_BYTES + 300, immData: 7, srcQp: a.qp.qpNum });
        expect(readDatagram(wc, b.mr.buffer).payload.equals(sent)).toBe(true);
      },
      extended,
    );
  });
});

describe('an atomic', () => {
  const add = (a: Side, remote: RemoteRegion): SendWr => ({
    opcode: WrOpcode.ATOMIC_FETCH_AND_ADD,
    sgList: a.mr.slice(0, 8),
    remote: remote.slice(0, 8),
    compareAdd: 1n,
  });

  it('is refused by memory without REMOTE_ATOMIC, and under a wrong key', async () => {
    for (const isKey of [false, true]) {
      using pair = await Pair.connect();
      const { a, b } = pair;
      const access = isKey ? ALL_ACCESS : ALL_ACCESS & ~AccessFlags.REMOTE_ATOMIC;
      const mr = b.pd.allocSync(64, { access });
      const token = mr.remote();
      const remote = new RemoteRegion(isKey ? { ...token, rkey: token.rkey ^ 0x5500 } : token);
      a.qp.postSend(add(a, remote));
      expect(await completion(a.cq, 'the atomic')).toMatchObject({ status: WcStatus.REM_ACCESS_ERR });
      expect(mr.buffer.readBigUInt64LE()).toBe(0n);
    }
  });

  it('is refused by a queue pair without REMOTE_ATOMIC', async () => {
    using pair = await Pair.connect({ connect: { access: AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ } });
    const { a, b, remote } = pair;
    a.qp.postSend(add(a, remote));
    const { status } = await completion(a.cq, 'the atomic');
    expect([WcStatus.REM_ACCESS_ERR, WcStatus.REM_INV_REQ_ERR]).toContain(status);
    expect(b.mr.buffer.readBigUInt64LE()).toBe(0n);
  });
});

// By ibv_create_qp, and by ibv_create_qp_ex.
describe.each([{}, { sendOpsFlags: SendOpsFlags.SEND }])('createQp with %o', (more) => {
  it.each(['RC', 'UC', 'UD'] as const)(
    'makes a queue pair of type %s, whose attributes can be set and queried',
    (type) => {
      const side = openSide(deviceA);
      const cap = { maxSendWr: 20, maxRecvWr: 30, maxSendSge: 2, maxRecvSge: 2 };
      const qp = side.pd.createQp({ sendCq: side.cq, qpType: QpType[type], cap, ...more });
      expect(qp.query()).toMatchObject({ qpState: QpState.RESET, initAttr: { qpType: QpType[type] } });
      const granted = qp.query().initAttr.cap;
      for (const name of Object.keys(cap) as (keyof typeof cap)[]) {
        expect(qp.cap[name]).toBeGreaterThanOrEqual(cap[name]);
        expect(granted[name]).toBeGreaterThanOrEqual(qp.cap[name]);
      }
      if (type === 'UD') {
        readyUd(qp);
        expect(qp.query()).toMatchObject({ qpState: QpState.RTS, qkey: QKEY, sqPsn: 0x45, portNum: 1 });
      } else {
        qp.modifySync(initAttr({ qpAccessFlags: AccessFlags.REMOTE_WRITE }));
        const { qpState, qpAccessFlags, portNum } = qp.query();
        expect({ qpState, portNum }).toEqual({ qpState: QpState.INIT, portNum: 1 });
        expect(qpAccessFlags & AccessFlags.REMOTE_WRITE).toBe(AccessFlags.REMOTE_WRITE);
      }
      qp.modifySync({ qpState: QpState.RESET });
      expect(qp.query().qpState).toBe(QpState.RESET);
      side.context.close({ cascade: true });
    },
  );
});

describe('a raw packet queue pair', () => {
  it.each(['maxSendWr', 'maxRecvWr', 'maxSendSge', 'maxRecvSge'] as const)(
    'is refused with %s beyond the device',
    (name) => {
      const { context, pd } = openSide(deviceA);
      const cq = context.createCq(16, { allowOverrun: true });
      const limit = context.queryDevice()[name.endsWith('Wr') ? 'maxQpWr' : 'maxSge'];
      const refused = thrown(() => pd.createQp({ sendCq: cq, qpType: QpType.RAW_PACKET, cap: { [name]: limit + 1 } }));
      expect(refused).toMatchObject({
        name: 'RdmaError',
        // libmlx5 compares the lengths of queues before it asks the kernel, which here has no raw packets.
        code: isRxe || name.endsWith('Sge') ? 'EOPNOTSUPP' : 'EINVAL',
      });
      context.close({ cascade: true });
    },
  );
});

describe('a request of 0 bytes', () => {
  it.each(postings)('reads nothing, and completes, by $verb', async ({ connect }) => {
    using pair = await connect();
    const { a, remote } = pair;
    a.qp.postSend({ opcode: WrOpcode.RDMA_READ, remote: remote.slice(0, 0) });
    expect(await completion(a.cq, 'the read')).toMatchObject({ status: SUCCESS });
  });

  it('is a datagram with nothing but its header', async () => {
    await withDatagrams(ALL_ACCESS, async ({ a, b, to }) => {
      b.qp.postRecv({ sgList: b.mr.slice(0, GRH_BYTES) });
      a.qp.postSend({ opcode: WrOpcode.SEND, ...to });
      expect(await completion(a.cq, 'the send')).toMatchObject({ status: SUCCESS });
      const wc = await completion(b.cq, 'the datagram');
      expect(wc).toMatchObject({ status: SUCCESS, byteLen: GRH_BYTES, srcQp: a.qp.qpNum });
      expect(readDatagram(wc, b.mr.buffer).payload).toHaveLength(0);
    });
  });
});

describe('a receive queue that is full', () => {
  it('takes no more, and says which request was too many', () => {
    const { context, pd, cq, mr } = openSide(deviceA);
    const qp = pd.createQp({ sendCq: cq, qpType: QpType.UD, cap: { maxRecvWr: 8 } });
    const recv = { sgList: mr.slice(0, 64) };
    expect(thrown(() => qp.postRecv(recv))).toMatchObject({
      code: 'EINVAL',
      message: expect.stringContaining('RESET'),
    });
    readyUd(qp);
    const { maxRecvWr } = qp.cap;
    qp.postRecv(Array(maxRecvWr - 1).fill(recv));
    expect(thrown(() => qp.postRecv([recv, recv]))).toMatchObject({ name: 'PostError', code: 'ENOMEM', index: 1 });
    expect(qp.recvsInFlight).toBe(maxRecvWr);
    context.close({ cascade: true });
  });
});

describe('memory with RELAXED_ORDERING', () => {
  const access = ALL_ACCESS | AccessFlags.RELAXED_ORDERING;

  it('takes messages, writes and reads', async () => {
    using pair = await Pair.connect({ access });
    const { a, b, remote } = pair;
    const sent = fill(a.mr.buffer.subarray(0, 3000), 11);
    b.qp.postRecv({ sgList: b.mr.slice(0, 3000) });
    a.qp.postSend([
      { opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 3000), sendFlags: 0 },
      { opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 3000), remote: remote.slice(4000, 3000) },
    ]);
    expect(await completion(a.cq, 'the write')).toMatchObject({ status: SUCCESS });
    expect(await completion(b.cq, 'the receive')).toMatchObject({ status: SUCCESS, byteLen: 3000 });
    expect(b.mr.buffer.subarray(0, 3000).equals(sent)).toBe(true);
    expect(b.mr.buffer.subarray(4000, 7000).equals(sent)).toBe(true);
    a.qp.postSend({ opcode: WrOpcode.RDMA_READ, sgList: a.mr.slice(8000, 3000), remote: remote.slice(4000, 3000) });
    expect(await completion(a.cq, 'the read')).toMatchObject({ status: SUCCESS });
    expect(a.mr.buffer.subarray(8000, 11_000).equals(sent)).toBe(true);
  });

  it('takes datagrams', async () => {
    await withDatagrams(access, async ({ a, b, to }) => {
      const sent = fill(a.mr.buffer.subarray(0, 500), 12);
      b.qp.postRecv({ sgList: b.mr.slice(0, GRH_BYTES + 500) });
      a.qp.postSend({ opcode: WrOpcode.SEND, sgList: a.mr.slice(0, 500), ...to });
      await completion(a.cq, 'the send');
      const wc = await completion(b.cq, 'the datagram');
      expect(readDatagram(wc, b.mr.buffer).payload.equals(sent)).toBe(true);
    });
  });
});

describe('a window', () => {
  it.each([MwType.MW_TYPE_1, MwType.MW_TYPE_2])(
    'of type %i gives no access once it is unbound or gone',
    async (type) => {
      using pair = await Pair.connect({ access: ALL_ACCESS | AccessFlags.MW_BIND });
      const { a, b } = pair;
      const access = AccessFlags.REMOTE_WRITE;
      const mw = b.pd.allocMw(type);
      b.qp.bindMw(mw, { local: b.mr.slice(0, 64), access });
      await completion(b.cq, 'the binding');
      const window = new RemoteRegion(mw.remote()!);
      if (type === MwType.MW_TYPE_1) {
        b.qp.bindMw(mw, { local: b.mr.slice(0, 0), access: 0 });
        expect(await completion(b.cq, 'the unbinding')).toMatchObject({ status: SUCCESS });
        expect(mw.remote()).toBeUndefined();
      } else {
        mw.close();
      }
      a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: window.slice(0, 8) });
      expect(await completion(a.cq, 'the refused write')).toMatchObject({ status: WcStatus.REM_ACCESS_ERR });
      expect(b.mr.buffer.readBigUInt64LE()).toBe(0n);
      b.qp.close();
      mw.close();
    },
  );
});

function readyUd(qp: QueuePair): void {
  qp.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 1, qkey: QKEY });
  qp.modifySync({ qpState: QpState.RTR });
  qp.modifySync({ qpState: QpState.RTS, sqPsn: 0x45 });
}

interface Datagrams {
  a: Side;
  b: Side;
  /** Where a sends to. */
  to: Required<Pick<SendWr, 'ah' | 'remoteQpn' | 'remoteQkey'>>;
}

async function withDatagrams(
  access: number,
  run: (ends: Datagrams) => Promise<void>,
  cqOf: (side: Side) => CompletionQueue = ({ cq }) => cq,
): Promise<void> {
  const [a, b] = [deviceA, deviceB].map((device) => {
    const side = openSide(device, { access });
    const qp = side.pd.createQp({ sendCq: cqOf(side), qpType: QpType.UD });
    readyUd(qp);
    return { ...side, qp };
  }) as [Side, Side];
  try {
    const { grh } = rtrAttr(a, b).ahAttr!;
    await run({ a, b, to: { ah: a.pd.createAh({ grh: grh! }), remoteQpn: b.qp.qpNum, remoteQkey: QKEY } });
    for (const { qp } of [a, b]) qp.close();
  } finally {
    for (const { context } of [a, b]) context.close({ cascade: true });
  }
}
