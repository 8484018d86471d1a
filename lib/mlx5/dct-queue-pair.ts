import { instance, readOptions, typeError, valueError } from '../args.ts';
import { brief } from '../inspect.ts';
import { mlx5 } from '../native/binding.ts';
import { QpAttrMask, QpState, QpType } from '../native/constants.gen.ts';
import type { NativeMlx5QpInitAttr } from '../native/native.ts';
import { AnyQueuePair } from '../verbs/any-queue-pair.ts';
import { CompletionQueue } from '../verbs/completion-queue.ts';
import type { ProtectionDomain } from '../verbs/protection-domain.ts';
import type { QpAttrs } from '../verbs/qp-attributes.ts';
import type { QpInitAttr } from '../verbs/qp-init-attr.ts';
import { DCT } from '../verbs/qp-transitions.ts';
import { SharedReceiveQueue } from '../verbs/shared-receive-queue.ts';

/** What the kernel can tell of a target. */
const QUERYABLE =
  QpAttrMask.STATE |
  QpAttrMask.ACCESS_FLAGS |
  QpAttrMask.PORT |
  QpAttrMask.PKEY_INDEX |
  QpAttrMask.MIN_RNR_TIMER |
  QpAttrMask.AV |
  QpAttrMask.PATH_MTU;

/**
 * A target of dynamically connected transport (DCT): any number of initiators send to it, by its number and its key. It
 * takes its receives from a shared queue, and sends nothing. Made by `mlx5dv.createQp()` with the `dcType` DCT.
 *
 * Two changes of state take it into service: to INIT with `pkeyIndex`, `portNum` and `qpAccessFlags`, then to RTR with
 * `minRnrTimer`, `pathMtu` and `ahAttr`, of which its own GID index, the hop limit and the traffic class count. From there
 * it goes nowhere: it is closed.
 *
 * @see mlx5dv_create_qp(3)
 */
export class DctQueuePair extends AnyQueuePair {
  /** The domain it belongs to. */
  readonly pd: ProtectionDomain;
  /** Where receives complete. */
  readonly recvCq: CompletionQueue;
  /** Where receives are taken from. */
  readonly srq: SharedReceiveQueue;

  /** @internal */
  constructor(pd: ProtectionDomain, attr: QpInitAttr, native: NativeMlx5QpInitAttr) {
    const { sendCq, recvCq = sendCq, srq, qpType } = readOptions(attr, 'attr', ['sendCq', 'recvCq', 'srq', 'qpType']);
    const cq = instance(recvCq, 'attr.recvCq', CompletionQueue);
    cq.requireOpen();
    if (cq.context !== pd.context) throw valueError('attr.recvCq is of another device than the protection domain');
    if (srq === undefined) throw typeError('attr.srq', 'a SharedReceiveQueue: a target has no queue of its own', srq);
    instance(srq, 'attr.srq', SharedReceiveQueue).requireOpen();
    if (srq.pd !== pd) throw valueError('attr.srq is of another protection domain');
    if (qpType !== undefined && qpType !== QpType.DRIVER) throw valueError('attr.qpType of a target is QpType.DRIVER');
    const cap = { maxSendWr: 0, maxRecvWr: 0, maxSendSge: 0, maxRecvSge: 0, maxInlineData: 0 };
    const init = { qpType: QpType.DRIVER, sqSigAll: false, cap: { ...cap } };
    const claim = { sends: 0, recvs: 0, srq };
    cq.requireRoom(claim, 'mlx5dv_create_qp');
    // Nothing is sent, but the kernel asks for both.
    const created = mlx5().mlx5CreateQp(pd.handle, cq.handle, cq.handle, srq.handle, init, native);
    super([pd, cq, srq], pd.context, created, QpType.DRIVER, cap, QpState.RESET);
    this.pd = pd;
    this.recvCq = cq;
    this.srq = srq;
    cq.claims.add(this, claim);
  }

  /**
   * As of any queue pair, but in RTR only, and only state, port, partition key, access, MTU, address and RNR timer mean
   * something.
   *
   * @throws RdmaError EINVAL in another state
   */
  override query(): QpAttrs {
    return super.query();
  }

  protected override get queryable(): number {
    return QUERYABLE;
  }

  protected override get transitions(): number {
    return DCT;
  }

  /** @internal */
  protected override entered(state: number): void {
    // It has no number before.
    if (state === QpState.RTR) this.renumber(mlx5().mlx5QpNum(this.handle));
  }

  /** @internal */
  protected override fields(): object {
    return { ...super.fields(), srq: brief(this.srq), recvCq: brief(this.recvCq) };
  }

  protected override destroy(): void {
    super.destroy();
    this.recvCq.claims.remove(this);
  }
}
