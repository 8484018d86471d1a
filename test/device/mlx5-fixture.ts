/** What the tests of mlx5dv share: two ends of dynamically connected transport. */
import {
  AccessFlags,
  type AddressHandle,
  type CompletionQueue,
  type Context,
  type MemoryRegion,
  Mlx5dvDcType,
  mlx5dv,
  openDevice,
  type ProtectionDomain,
  QpState,
  type QueuePair,
  RemoteRegion,
  type SharedReceiveQueue,
} from '../../lib/index.ts';
import { ALL_ACCESS, deviceA, deviceB } from './fixture.ts';

export const DC_KEY = 0xfedc_ba98_7654_3210n;

/** A device with a target that is ready to receive, and what it needs. */
export interface Target {
  context: Context;
  pd: ProtectionDomain;
  cq: CompletionQueue;
  srq: SharedReceiveQueue;
  dct: mlx5dv.DctQueuePair;
  mr: MemoryRegion;
}

/** A device with an initiator that is ready to send. */
export interface Initiator {
  context: Context;
  pd: ProtectionDomain;
  cq: CompletionQueue;
  dci: QueuePair;
  mr: MemoryRegion;
}

export function createTarget(pd: ProtectionDomain, cq: CompletionQueue, srq: SharedReceiveQueue): mlx5dv.DctQueuePair {
  return mlx5dv.createQp(pd, { sendCq: cq, srq }, { dcType: Mlx5dvDcType.DCT, dctAccessKey: DC_KEY });
}

/** Takes a target to RTR. */
export function startTarget(dct: mlx5dv.DctQueuePair): void {
  const { gid, gidIndex } = dct.context.selectGid();
  dct.modifySync({
    qpState: QpState.INIT,
    pkeyIndex: 0,
    portNum: 1,
    qpAccessFlags: AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC,
  });
  dct.modifySync({
    qpState: QpState.RTR,
    pathMtu: dct.context.queryPort(1).activeMtu as 3,
    minRnrTimer: 1,
    ahAttr: { grh: { dgid: gid, sgidIndex: gidIndex } },
  });
}

/** Takes an initiator from RESET to RTS. */
export function startInitiator(dci: QueuePair): void {
  dci.modifySync({ qpState: QpState.INIT, pkeyIndex: 0, portNum: 1 });
  dci.modifySync({ qpState: QpState.RTR, pathMtu: dci.context.queryPort(1).activeMtu as 3 });
  dci.modifySync({ qpState: QpState.RTS, sqPsn: 0, timeout: 8, retryCnt: 1, rnrRetry: 1, maxRdAtomic: 4 });
}

export function openTarget(device: string): Target {
  const context = openDevice(device);
  const pd = context.allocPd();
  const cq = context.createCq(256);
  const srq = pd.createSrq({ maxWr: 32 });
  const mr = pd.allocSync(64 * 1024, { access: ALL_ACCESS });
  const dct = createTarget(pd, cq, srq);
  startTarget(dct);
  return { context, pd, cq, srq, dct, mr };
}

export function openInitiator(device: string, mlx5Attr: mlx5dv.Mlx5dvQpInitAttr = {}, maxSendWr = 32): Initiator {
  const context = openDevice(device);
  const pd = context.allocPd();
  const cq = context.createCq(256);
  const mr = pd.allocSync(64 * 1024, { access: ALL_ACCESS });
  const cap = { maxSendWr, maxSendSge: 3, maxInlineData: 64 };
  const dci = mlx5dv.createQp(pd, { sendCq: cq, cap }, { dcType: Mlx5dvDcType.DCI, ...mlx5Attr });
  startInitiator(dci);
  return { context, pd, cq, dci, mr };
}

/** An initiator on the one device, a target on the other, and where the one finds the other. */
export class DcPair implements Disposable {
  readonly a: Initiator;
  readonly b: Target;
  readonly ah: AddressHandle;
  readonly remote: RemoteRegion;

  constructor(mlx5Attr: mlx5dv.Mlx5dvQpInitAttr = {}, maxSendWr = 32) {
    this.a = openInitiator(deviceA, mlx5Attr, maxSendWr);
    this.b = openTarget(deviceB);
    this.ah = addressOf(this.a, this.b);
    this.remote = new RemoteRegion(JSON.parse(JSON.stringify(this.b.mr.remote())));
  }

  /** What every request to the target of b has. */
  get target(): { ah: AddressHandle; remoteDctn: number; remoteDcKey: bigint } {
    return { ah: this.ah, remoteDctn: this.b.dct.qpNum, remoteDcKey: DC_KEY };
  }

  [Symbol.dispose](): void {
    this.a.dci.close();
    for (const { context } of [this.a, this.b]) context.close({ cascade: true });
  }
}

/** The address of a target as an initiator needs it. */
export function addressOf(from: Initiator, to: Target): AddressHandle {
  const dgid = to.context.selectGid().gid;
  return from.pd.createAh({ grh: { dgid, sgidIndex: from.context.selectGid().gidIndex } });
}
