import { RdmaError } from '../errors.ts';
import { binding } from '../native/binding.ts';
import { QpState, QpType } from '../native/constants.gen.ts';
import type { QpHandle } from '../native/native.ts';
import { AnyQueuePair } from './any-queue-pair.ts';
import type { XrcDomain } from './xrc-domain.ts';

/**
 * The receiving side of an extended reliable connection: a queue pair without queues. What arrives goes into the shared
 * receive queue of its domain that the sender named, and completes there. Made by `context.createQp()`; another handle to
 * one, in another process or context, by `context.openQp()`.
 *
 * @see ibv_create_qp_ex(3), ibv_open_qp(3)
 */
export class XrcRecvQueuePair extends AnyQueuePair {
  /** The domain it belongs to. */
  readonly xrcd: XrcDomain;

  /**
   * @param qpNum - of the one to open; undefined makes a new one
   * @internal
   */
  constructor(xrcd: XrcDomain, qpNum: number | undefined) {
    const isNew = qpNum === undefined;
    const native = isNew ? binding().createXrcRecvQp(xrcd.handle) : open(xrcd, qpNum);
    const cap = { maxSendWr: 0, maxRecvWr: 0, maxSendSge: 0, maxRecvSge: 0, maxInlineData: 0 };
    super([xrcd], xrcd.context, native, QpType.XRC_RECV, cap, isNew ? QpState.RESET : QpState.UNKNOWN);
    this.xrcd = xrcd;
  }

  /** It has no queues that would have to know. @internal */
  protected override entered(): void {}
}

function open(xrcd: XrcDomain, qpNum: number): { handle: QpHandle; qpNum: number } {
  try {
    return binding().openQp(xrcd.handle, qpNum);
  } catch (error) {
    if (!(error instanceof RdmaError) || error.code !== 'EOPNOTSUPP') throw error;
    throw error.explained('libmlx5 would end the process when such a handle is closed, so it is not opened');
  }
}
