/** Send requests as an endpoint posts them. */
import { typeError, valueError } from '../args.ts';
import { SendFlags, WrOpcode } from '../native/constants.gen.ts';
import { MemorySlice } from '../verbs/memory-region.ts';
import { isSendFlags, refuseFlags } from '../verbs/send-list.ts';
import type { SendWr } from '../verbs/send-wr.ts';

/** The flag INLINE for what is short enough, and of a kind that can; else 0. @internal */
export function inlineFlag({ sgList, opcode }: SendWr, maxInlineData: number): number {
  let length = 0;
  if (MemorySlice.is(sgList)) length = sgList.length;
  // What is no slice is told by the verb.
  else if (Array.isArray(sgList)) for (const slice of sgList) length += MemorySlice.is(slice) ? slice.length : NaN;
  return length <= maxInlineData && inlinable(opcode) ? SendFlags.INLINE : 0;
}

function inlinable(opcode: number): boolean {
  const { RDMA_WRITE, SEND, SEND_WITH_IMM, RDMA_WRITE_WITH_IMM, SEND_WITH_INV } = WrOpcode;
  const isWrite = opcode === RDMA_WRITE || opcode === RDMA_WRITE_WITH_IMM;
  return isWrite || opcode === SEND || opcode === SEND_WITH_IMM || opcode === SEND_WITH_INV;
}

/** Copies of the requests that `batch()` was given. The verb checks what is not checked here. @internal */
export function batchOf(wrs: readonly SendWr[], maxInlineData: number): SendWr[] {
  if (!Array.isArray(wrs)) throw typeError('wrs', 'an array', wrs);
  // Not by map(), which leaves out what is missing.
  return Array.from(wrs as readonly SendWr[], (wr, i) => {
    if (typeof wr !== 'object' || wr === null) throw typeError(`wrs[${i}]`, 'an object', wr);
    const copy: SendWr = { ...wr };
    if (copy.wrId !== undefined) throw valueError(`wrs[${i}].wrId: an endpoint numbers its requests itself`);
    copy.wrId = 0;
    const { sgList, sendFlags = 0 } = copy;
    if (Array.isArray(sgList)) copy.sgList = [...sgList];
    // Before anything is joined with them, which makes numbers of all.
    if (!isSendFlags(sendFlags)) refuseFlags(sendFlags, i);
    copy.sendFlags = sendFlags | SendFlags.SIGNALED | inlineFlag(copy, maxInlineData);
    return copy;
  });
}
