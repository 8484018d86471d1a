/** Queue pairs of ids, taken through their states as librdmacm takes those of its own making. */
import { QpState, QpType } from '../native/constants.gen.ts';
import type { ProtectionDomain } from '../verbs/protection-domain.ts';
import type { QpAttr } from '../verbs/qp-attributes.ts';
import type { QpInitAttr } from '../verbs/qp-init-attr.ts';
import type { QueuePair } from '../verbs/queue-pair.ts';
import type { CmId } from './cm-id.ts';

/** @internal */
export async function take(id: CmId, qp: QueuePair, state: QpState, more: QpAttr = {}): Promise<void> {
  const attr = id.initQpAttr(state);
  // iWARP has nothing to set for some.
  if (Object.keys(attr).length > 0) await qp.modify({ ...attr, ...more });
}

/** Makes one: in INIT, or for datagrams in RTS. @internal */
export async function createCmQp(
  id: CmId,
  pd: ProtectionDomain,
  attr: QpInitAttr,
  isDatagram: boolean,
): Promise<QueuePair> {
  const qp = pd.createQp({ qpType: isDatagram ? QpType.UD : QpType.RC, ...attr });
  try {
    await take(id, qp, QpState.INIT);
    if (isDatagram) {
      await qp.modify({ qpState: QpState.RTR });
      await qp.modify({ qpState: QpState.RTS, sqPsn: 0 });
    }
    return qp;
  } catch (error) {
    qp.close();
    throw error;
  }
}

/** From INIT to RTS, once the peer has asked or answered. @internal */
export async function connectCmQp(id: CmId, qp: QueuePair, rtr: QpAttr = {}, rts: QpAttr = {}): Promise<void> {
  // The access flags are known only now.
  await take(id, qp, QpState.INIT);
  await take(id, qp, QpState.RTR, rtr);
  await take(id, qp, QpState.RTS, rts);
}

/** To the error state, after something failed: what that was is what is told. @internal */
export async function failCmQp(qp: QueuePair | undefined): Promise<void> {
  if (qp === undefined || qp.closed) return;
  try {
    await qp.modify({ qpState: QpState.ERR });
  } catch {
    // The device is gone.
  }
}
