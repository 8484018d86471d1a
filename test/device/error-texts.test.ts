/** What errors say beyond the errno: the kernel names no number, no flag and no field. */
import { describe, expect, it } from 'vitest';
import {
  AccessFlags,
  getDeviceList,
  openDevice,
  QpState,
  QpType,
  RdmaError,
  RemoteRegion,
  type SendWr,
  WrOpcode,
} from '../../lib/index.ts';
import { deviceA, expectNoLeaks, isRxe, openSide, Pair, type Side, thrown } from './fixture.ts';

expectNoLeaks();

/** Opens a side, and closes it. */
function withSide(test: (side: Side) => void): void {
  const side = openSide(deviceA);
  try {
    test(side);
  } finally {
    side.context.close({ cascade: true });
  }
}

function verbError(call: () => unknown): RdmaError {
  const error = thrown(call);
  expect(error).toBeInstanceOf(RdmaError);
  return error as RdmaError;
}

describe('a create verb that is asked for more than the device has', () => {
  it.each(['maxSendWr', 'maxRecvWr', 'maxSendSge', 'maxRecvSge'] as const)('names cap.%s of a queue pair', (name) => {
    withSide(({ context, pd }) => {
      const cq = context.createCq(8, { allowOverrun: true });
      const limit = name.endsWith('Wr') ? 'maxQpWr' : 'maxSge';
      const most = context.queryDevice()[limit];
      // Elements: libmlx5 grants a few more than the device says.
      const asked = name.endsWith('Wr') ? most + 1 : 8 * most;
      const error = verbError(() => pd.createQp({ sendCq: cq, cap: { [name]: asked } }));
      expect(error).toMatchObject({ code: expect.stringMatching(/^(EINVAL|ENOMEM)$/), syscall: 'ibv_create_qp' });
      expect(error.message).toContain(`attr.cap.${name} is ${asked}, ${limit} of the device ${most}`);
    });
  });

  it('names cqe, and maxWr and maxSge of a shared receive queue', () => {
    withSide(({ context, pd }) => {
      const { maxCqe, maxSrqWr, maxSrqSge } = context.queryDevice();
      expect(verbError(() => context.createCq(maxCqe + 1))).toMatchObject({
        syscall: 'ibv_create_cq',
        message: expect.stringContaining(`cqe is ${maxCqe + 1}, maxCqe of the device ${maxCqe}`),
      });
      for (const [attr, text] of [
        [{ maxWr: maxSrqWr + 1 }, `attr.maxWr is ${maxSrqWr + 1}, maxSrqWr of the device ${maxSrqWr}`],
        [{ maxSge: maxSrqSge + 1 }, `attr.maxSge is ${maxSrqSge + 1}, maxSrqSge of the device ${maxSrqSge}`],
      ] as const) {
        expect(verbError(() => pd.createSrq(attr))).toMatchObject({
          code: expect.stringMatching(/^(EINVAL|ENOMEM)$/),
          syscall: 'ibv_create_srq',
          message: expect.stringContaining(text),
        });
      }
    });
  });

  it('lists the limits where no number by itself is beyond them', () => {
    withSide(({ context, pd, cq }) => {
      // Inline data is not limited by an attribute of the device.
      const { maxQpWr, maxSge, maxQp } = context.queryDevice();
      const error = verbError(() => pd.createQp({ sendCq: cq, cap: { maxInlineData: 100_000 } }));
      expect(error.message).toContain(`(maxQpWr ${maxQpWr}, maxSge ${maxSge}, maxQp ${maxQp})`);
    });
  });
});

describe('a port that is not there', () => {
  it.each<[string, (side: Side) => unknown]>([
    ['queryPort', ({ context }) => context.queryPort(9)],
    ['queryGid', ({ context }) => context.queryGid(9, 0)],
    ['queryGidEx', ({ context }) => context.queryGidEx(9, 0)],
    ['queryPkey', ({ context }) => context.queryPkey(9, 0)],
    ['createAh', ({ pd }) => pd.createAh({ portNum: 9, grh: { dgid: '::1', sgidIndex: 0 } })],
    ['qp.modify', ({ qp }) => qp.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 9, qpAccessFlags: 0 })],
  ])('is named by %s', (_name, call) => {
    withSide((side) => {
      expect(verbError(() => call(side)).message).toContain(`there is no port 9: ${deviceA} has one`);
    });
  });

  it('is told from a missing grh, by createAh', () => {
    withSide(({ pd }) => {
      expect(verbError(() => pd.createAh({})).message).toContain('ahAttr.grh is missing, which Ethernet needs');
    });
  });
});

describe('a registration', () => {
  it.each(['REMOTE_WRITE', 'REMOTE_ATOMIC'] as const)('with %s explains that LOCAL_WRITE is needed', async (name) => {
    const side = openSide(deviceA);
    const access = AccessFlags[name] | AccessFlags.REMOTE_READ;
    const expected = {
      code: 'EINVAL',
      syscall: 'ibv_reg_mr',
      message: expect.stringContaining('REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE too'),
    };
    expect(verbError(() => side.pd.allocSync(64, { access }))).toMatchObject(expected);
    expect(verbError(() => side.pd.regMrSync(Buffer.alloc(64), { access }))).toMatchObject(expected);
    await expect(side.pd.alloc(64, { access })).rejects.toMatchObject(expected);
    await expect(side.pd.regMr(Buffer.alloc(64), { access })).rejects.toMatchObject(expected);
    side.context.close({ cascade: true });
  });

  it('of a SharedArrayBuffer says what to do in its place', () => {
    withSide(({ pd }) => {
      for (const memory of [new SharedArrayBuffer(64), new Uint8Array(new SharedArrayBuffer(64))]) {
        const error = thrown(() => pd.regMrSync(memory as never));
        expect(error).toMatchObject({ code: 'ERR_INVALID_ARG_TYPE' });
        expect(error.message).toContain(
          'a SharedArrayBuffer cannot be registered: each thread registers memory of its own',
        );
      }
    });
  });
});

describe('a request with the fields of C', () => {
  it.each([
    ['remoteAddr', 'new RemoteRegion(token).slice('],
    ['remote_addr', 'new RemoteRegion(token).slice('],
    ['rkey', 'new RemoteRegion(token).slice('],
    ['addr', 'mr.slice('],
    ['length', 'mr.slice('],
    ['lkey', 'mr.slice('],
    ['opocde', "did you mean 'opcode'?"],
    ['sg_list', "did you mean 'sgList'?"],
    ['sendFalgs', "did you mean 'sendFlags'?"],
  ])('is told what %s is here', async (key, text) => {
    using pair = await Pair.connect();
    const { a, remote } = pair;
    const wr = { opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote: remote.slice(), [key]: 1 };
    for (const post of [() => a.qp.postSend(wr), () => a.qp.postSend([wr]), () => a.qp.prepareSend(wr)]) {
      const error = thrown(post);
      expect(error).toMatchObject({ code: 'ERR_INVALID_ARG_VALUE' });
      expect(error.message).toMatch(/^Unknown option '\w+' in wrs?(\[0\])?[:;] /);
      expect(error.message).toContain(text);
    }
    if (!text.startsWith('did')) {
      expect(thrown(() => a.qp.postRecv({ [key]: 1 } as never)).message).toContain(text);
    }
    expect(a.qp.sendsInFlight).toBe(0);
  });

  it('is told what remote must be, where it is given a region or a token', async () => {
    using pair = await Pair.connect();
    const { a, b } = pair;
    for (const remote of [new RemoteRegion(b.mr.remote()), b.mr.remote(), undefined]) {
      const wr = { opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 8), remote } as unknown as SendWr;
      expect(thrown(() => a.qp.postSend(wr)).message).toContain('RemoteSlice (new RemoteRegion(token).slice())');
    }
  });
});

describe('a misspelt constant', () => {
  it('throws where it would vanish in |', () => {
    withSide(({ pd }) => {
      const flags = AccessFlags as unknown as Record<string, number>;
      const error = thrown(() => pd.allocSync(64, { access: flags.LOCAL_WRITE! | flags.REMOTE_WIRTE! }));
      expect(error).toMatchObject({
        name: 'TypeError',
        code: 'ERR_INVALID_ARG_VALUE',
        message: "There is no AccessFlags.REMOTE_WIRTE; did you mean 'REMOTE_WRITE'?",
      });
      const types = QpType as unknown as Record<string, number>;
      expect(thrown(() => types.RAW_ETHERNET_FRAMES).message).toBe('There is no QpType.RAW_ETHERNET_FRAMES');
    });
  });
});

describe('openDevice', () => {
  it('takes an entry of the device list', () => {
    const device = getDeviceList().find(({ name }) => name === deviceA);
    using context = openDevice(device);
    expect(context.name).toBe(deviceA);
  });

  it('names the devices that there are, when there is none of that name', () => {
    expect(verbError(() => openDevice({ ...getDeviceList()[0]!, name: 'mlx4_7' })).message).toContain(
      isRxe ? 'there is rxe0, rxe1' : 'there is mlx5_0, mlx5_1',
    );
  });
});
