/** What an error says of an operation that failed, and what most often stands behind it. */
import { WorkCompletionError } from '../errors.ts';
import { nameOf } from '../inspect.ts';
import { AccessFlags, LinkLayer, WcStatus, WrOpcode } from '../native/constants.gen.ts';
import { isIwarp } from '../verbs/iwarp.ts';
import type { QueuePair } from '../verbs/queue-pair.ts';
import type { SendWr } from '../verbs/send-wr.ts';
import { wcStatusName, wcStatusStr } from '../verbs/text.ts';
import type { WorkCompletion } from '../verbs/work-completion.ts';
import { type Request, slicesOf } from './request-queue.ts';

/**
 * The error of a request that failed.
 *
 * @param first - why the connection has ended before, if it has
 * @internal
 */
export function failureOf(
  qp: QueuePair,
  request: Request,
  wc: Pick<WorkCompletion, 'status' | 'vendorErr' | 'qpNum'>,
  first: Error | undefined,
): WorkCompletionError {
  const { name, wr } = request;
  const bytes = slicesOf(wr).reduce((sum, slice) => sum + slice.length, 0);
  const verb = name === 'batch' ? `${nameOf(WrOpcode, (wr as SendWr).opcode)} of a batch` : name;
  const operation = `${verb} of ${bytes} bytes on queue pair 0x${wc.qpNum.toString(16)}`;
  const causes = causesOf(qp, request, wc.status, bytes, first);
  return new WorkCompletionError(operation, wc, wcStatusName(wc.status), wcStatusStr(wc.status), causes);
}

// None: the general ones will do.
function causesOf(
  qp: QueuePair,
  { wr }: Request,
  status: number,
  bytes: number,
  first: Error | undefined,
): string[] | undefined {
  const { remote } = wr as SendWr;
  switch (status) {
    case WcStatus.WR_FLUSH_ERR:
      return (
        first && [
          `not executed, since the connection had ended: ${first.message}`,
          ...(isIwarp(qp.context) ? [IWARP_ENDS] : []),
        ]
      );
    case WcStatus.RETRY_EXC_ERR:
      return noAnswer(qp);
    case WcStatus.RNR_RETRY_EXC_ERR:
      return notReady(qp);
    case WcStatus.REM_ACCESS_ERR:
      return (
        remote && [
          `the peer refused ${bytes} bytes at ${remote.describe()}`,
          'the region is closed there, or shorter, or the key was revoked',
          `the region, its window or the queue pair there lacks REMOTE_${rightOf(wr as SendWr)}`,
        ]
      );
    case WcStatus.REM_INV_REQ_ERR:
    case WcStatus.REM_OP_ERR:
      return remote
        ? [
            `the peer refused ${bytes} bytes at ${remote.describe()}: it takes no request of that kind, or not of that length`,
          ]
        : [`the peer's receive is shorter than the ${bytes} bytes of the message, or its memory lacks LOCAL_WRITE`];
    case WcStatus.LOC_PROT_ERR: {
      const isSink = 'opcode' in wr && wr.opcode === WrOpcode.RDMA_READ;
      const right = isSink && isIwarp(qp.context) ? 'LOCAL_WRITE or REMOTE_WRITE' : 'LOCAL_WRITE';
      return slicesOf(wr).map(
        (slice) => `${slice.describe()} is not in an open region, or the region lacks ${right} where bytes come in`,
      );
    }
    case WcStatus.LOC_QP_OP_ERR:
      // What siw says of a request that the peer's end has come between, and Soft-RoCE of such a receive.
      if ('opcode' in wr) return isIwarp(qp.context) ? [IWARP_ENDS] : undefined;
      return [
        ...slicesOf(wr)
          .filter((slice) => (slice.region.access & AccessFlags.LOCAL_WRITE) === 0)
          .map((slice) => `${slice.describe()} is to be written to, and its region lacks LOCAL_WRITE`),
        `the message may be longer than the ${bytes} bytes of its receive`,
      ];
    case WcStatus.LOC_LEN_ERR:
      return [`the message is longer than the ${bytes} bytes of its receive, or than the port can carry`];
    default:
      return undefined;
  }
}

const IWARP_ENDS =
  'iWARP has no answer for a message without a receive, or for a key, range or right that is refused: the connection ends, ' +
  'and what was written or sent may have been done or not';

function rightOf({ opcode }: SendWr): string {
  if (opcode === WrOpcode.RDMA_READ) return 'READ';
  return opcode === WrOpcode.RDMA_WRITE || opcode === WrOpcode.RDMA_WRITE_WITH_IMM ? 'WRITE' : 'ATOMIC';
}

function noAnswer(qp: QueuePair): string[] | undefined {
  const attr = attributesOf(qp);
  if (attr === undefined) return undefined;
  const { timeout, retryCnt, pathMtu, portNum, ahAttr } = attr;
  // Nanoseconds are exact.
  const ms = timeout === 0 ? 'for ever' : `${Number(((4096 * 2 ** timeout) / 1e6).toPrecision(3))} ms`;
  const isEthernet = qp.context.queryPort(portNum).linkLayer === LinkLayer.ETHERNET;
  const { dgid, sgidIndex } = ahAttr.grh;
  const way = isEthernet
    ? `${dgid}, asked from ${qp.context.queryGid(portNum, sgidIndex)} (GID index ${sgidIndex})`
    : `LID ${ahAttr.dlid}`;
  return [
    `no answer from ${way}, where each of ${retryCnt + 1} attempts waits for ${ms} or some times that (timeout ${timeout})`,
    'the peer is dead, or its queue pair is not connected to this one',
    isEthernet ? 'one of the GIDs is wrong, or UDP port 4791 is closed on the way' : 'the LID is wrong',
    `packets of the path MTU of ${128 << pathMtu} bytes do not pass`,
  ];
}

function notReady(qp: QueuePair): string[] | undefined {
  const attr = attributesOf(qp);
  if (attr === undefined) return undefined;
  return [
    `the receiver was not ready: the peer had no receive posted, and still none after ${attr.rnrRetry} retries (rnrRetry; 7 is ` +
      'without end), before each of which it asks for a wait of its own (its minRnrTimer)',
  ];
}

// Not of a device that is lost.
function attributesOf(qp: QueuePair) {
  try {
    return qp.query();
  } catch {
    return undefined;
  }
}
