/**
 * The errors of this package. A verb that failed is an {@link RdmaError}; a completion that failed is a
 * {@link WorkCompletionError}, since its status is another number space than errno; a caller's mistake is a TypeError or
 * RangeError with Node's codes.
 */
import { constants } from 'node:os';
import { getSystemErrorMap } from 'node:util';

// EOPNOTSUPP and EAGAIN share their number with ENOTSUP and EWOULDBLOCK; the man pages say the former.
const codes = new Map<number, string>();
for (const [code, errno] of Object.entries(constants.errno)) {
  if (code !== 'ENOTSUP' && code !== 'EWOULDBLOCK') codes.set(errno, code);
}

// Where libuv's text misleads a reader of verbs.
const texts: Record<string, string> = {
  EOPNOTSUPP: 'not supported by this device, its provider or its kernel driver',
  EPROTONOSUPPORT: 'the kernel does not know this call: it is older than the library, or its driver lacks it',
  ENOSYS: 'the kernel has no RDMA support (modprobe ib_uverbs)',
  EBUSY: 'still in use',
  EIO: 'i/o error, which a device that is gone answers too',
};

/** A verb of libibverbs or librdmacm failed. Shaped like Node's system errors. */
export class RdmaError extends Error {
  /** The errno name, such as `'ENOMEM'`. Stable; test for this one. */
  readonly code: string;
  /** The errno value, negative as in Node. */
  readonly errno: number;
  /** The C function that failed, such as `'ibv_reg_mr'`. */
  readonly syscall: string;
  /** What this package knows about the failure beyond the errno, or undefined. */
  readonly detail: string | undefined;

  /**
   * @param syscall - the C function's name
   * @param errno - the positive errno value
   * @param detail - what else is known
   */
  constructor(syscall: string, errno: number, detail?: string) {
    const code = codes.get(errno) ?? `E${errno}`;
    const text = texts[code] ?? getSystemErrorMap().get(-errno)?.[1] ?? 'unknown error';
    super(`${syscall} ${code}: ${text}${detail === undefined ? '' : `: ${detail}`}`);
    this.name = 'RdmaError';
    this.code = code;
    this.errno = -errno;
    this.syscall = syscall;
    this.detail = detail;
    // It is in the message.
    Object.defineProperty(this, 'detail', { enumerable: false });
  }

  /** The same failure with more said about it, and the stack of the caller. @internal */
  explained(detail: string): RdmaError {
    return new RdmaError(this.syscall, -this.errno, this.detail === undefined ? detail : `${this.detail}; ${detail}`);
  }
}

/** An object cannot be closed while others need it. */
export class BusyError extends RdmaError {
  /** The open objects that need it, as far as they are objects. */
  readonly children: readonly object[];

  /** @param syscall - the destroy verb that was not called */
  constructor(syscall: string, detail: string, children: readonly object[] = []) {
    super(syscall, constants.errno.EBUSY, detail);
    this.name = 'BusyError';
    this.children = children;
  }
}

/**
 * A completion queue would have more completions outstanding than it has entries, and one that overflows is lost for good.
 * The verb was not called.
 */
export class CqOverrunError extends RdmaError {
  /** Entries that the completion queue has, or would have. */
  readonly cqe: number;
  /** Completions that the queue pairs which it has can make at once. */
  readonly claimed: number;
  /** What the new queue pair would add to them; 0 when it is the completion queue that changes. */
  readonly asked: number;

  /** @param syscall - the verb that was not called */
  constructor(syscall: string, errno: number, figures: { cqe: number; claimed: number; asked: number }, sum: string) {
    super(
      syscall,
      errno,
      `the completion queue would have ${figures.cqe} entries for ${sum} completions; make it longer, or create it with ` +
        '{ allowOverrun: true }',
    );
    this.name = 'CqOverrunError';
    this.cqe = figures.cqe;
    this.claimed = figures.claimed;
    this.asked = figures.asked;
  }
}

/** A list of work requests was taken only in part. The requests before `index` are posted, the others are not. */
export class PostError extends RdmaError {
  /** Position in the list of the first request that was refused. */
  readonly index: number;

  /** @param syscall - `'ibv_post_send'` or `'ibv_post_recv'` */
  constructor(syscall: string, errno: number, index: number, detail?: string) {
    super(syscall, errno, detail);
    this.name = 'PostError';
    this.index = index;
  }
}

/**
 * The driver of a GPU refused. Its statuses are another number space than errno.
 */
export class GpuError extends Error {
  /** The driver's name of the status, such as `'CUDA_ERROR_OUT_OF_MEMORY'`. Stable; test for this one. */
  readonly code: string;
  /** The status as it came. */
  readonly status: number;
  /** The driver's function that failed, such as `'cuMemAlloc'`. */
  readonly syscall: string;

  /**
   * @param syscall - the driver's function
   * @param status - its status
   * @param code - the status' name
   * @param text - the status in words, by the driver
   */
  constructor(syscall: string, status: number, code: string, text: string) {
    super(`${syscall} ${code}: ${text}`);
    this.name = 'GpuError';
    this.code = code;
    this.status = status;
    this.syscall = syscall;
  }
}

/** RDMA cannot be used here at all: `code` is `'ERR_RDMA_UNAVAILABLE'`. The message says what to install. */
export class RdmaUnavailableError extends Error {
  /** Always `'ERR_RDMA_UNAVAILABLE'`. */
  readonly code = 'ERR_RDMA_UNAVAILABLE';

  /** @param message - what is missing, and what to do about it */
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'RdmaUnavailableError';
  }
}

/** An object was used after it was closed: `code` is `'ERR_RDMA_CLOSED'`. */
export class RdmaClosedError extends Error {
  /** Always `'ERR_RDMA_CLOSED'`. */
  readonly code = 'ERR_RDMA_CLOSED';

  /** @param what - the object, in words */
  constructor(what: string) {
    super(`${what} is closed`);
    this.name = 'RdmaClosedError';
  }
}

/**
 * The device is gone: it failed (`EventType.DEVICE_FATAL`), or was removed. `code` is `'ERR_RDMA_DEVICE_LOST'`. What is
 * left to do with its objects is to close them; the device may be opened again when it is back.
 */
export class RdmaDeviceLostError extends Error {
  /** Always `'ERR_RDMA_DEVICE_LOST'`. */
  readonly code = 'ERR_RDMA_DEVICE_LOST';

  /** @param what - the object, in words */
  constructor(what: string) {
    super(`${what}: the device is gone (DEVICE_FATAL); all that is left to do is to close it`);
    this.name = 'RdmaDeviceLostError';
  }
}

/**
 * More operations of an endpoint wait for their turn than its option `maxWaiting` allows: `code` is
 * `'ERR_RDMA_QUEUE_FULL'`. The operation was not begun: await some of those that were.
 */
export class QueueFullError extends Error {
  /** Always `'ERR_RDMA_QUEUE_FULL'`. */
  readonly code = 'ERR_RDMA_QUEUE_FULL';
  /** Requests of that direction under way. */
  readonly inFlight: number;
  /** Requests that wait. */
  readonly waiting: number;

  /** @internal */
  constructor(inFlight: number, waiting: number) {
    super(`${inFlight} requests are under way and ${waiting} wait, and no more may (maxWaiting)`);
    this.name = 'QueueFullError';
    this.inFlight = inFlight;
    this.waiting = waiting;
  }
}

/** The peer of an endpoint has ended the connection, or its process is gone: `code` is `'ERR_RDMA_PEER_LEFT'`. */
export class RdmaPeerLeftError extends Error {
  /** Always `'ERR_RDMA_PEER_LEFT'`. */
  readonly code = 'ERR_RDMA_PEER_LEFT';

  /** @internal */
  constructor() {
    super('The peer has ended the connection');
    this.name = 'RdmaPeerLeftError';
  }
}

/**
 * A peer of `Messages`, or of what is built on it, does not keep to the protocol: it is of another version, broken,
 * or hostile. The connection is closed. `code` is `'ERR_RDMA_PROTOCOL'`.
 */
export class RdmaProtocolError extends Error {
  /** Always `'ERR_RDMA_PROTOCOL'`. */
  readonly code = 'ERR_RDMA_PROTOCOL';
  /**
   * What is wrong: `HELLO`, `VERSION` or `KIND` of its first frame; a malformed `FRAME`, one that is out of `ORDER`, a
   * message of a `LENGTH` that is not taken, more than it had `CREDITS` for, or memory that gives no `ACCESS`.
   */
  readonly reason: 'HELLO' | 'VERSION' | 'KIND' | 'FRAME' | 'ORDER' | 'LENGTH' | 'CREDITS' | 'ACCESS';

  /** @param detail - what the peer did, in words */
  constructor(reason: RdmaProtocolError['reason'], detail: string, options?: ErrorOptions) {
    super(`The peer does not keep to the protocol of messages: ${detail}`, options);
    this.name = 'RdmaProtocolError';
    this.reason = reason;
  }
}

/**
 * A queue pair has failed by itself, most often because it has refused a request of its peer: `code` is
 * `'ERR_RDMA_QP_FAILED'`.
 */
export class RdmaQpFailedError extends Error {
  /** Always `'ERR_RDMA_QP_FAILED'`. */
  readonly code = 'ERR_RDMA_QP_FAILED';
  /** The asynchronous event that said so: `EventType.QP_ACCESS_ERR`, `QP_REQ_ERR` or `QP_FATAL`. */
  readonly event: number;

  /** @internal */
  constructor(what: string, event: number, eventName: string, text: string) {
    super(`${what} has failed: ${text} (${eventName})`);
    this.name = 'RdmaQpFailedError';
    this.event = event;
  }
}

/** A handler of the peer threw, or there is none: see `Calls`. What it says comes from the peer. */
export class CallError extends Error {
  /** The `code` of what the handler threw, if it had one; `'ERR_RDMA_NO_METHOD'` when there is no such method. */
  readonly code: string | undefined;

  /** @param message - what went wrong */
  constructor(message: string, code?: string) {
    super(message);
    this.name = 'CallError';
    this.code = code;
  }
}

/** A work request was executed and failed. Thrown by helpers that promise success; `cq.poll()` returns it as data. */
export class WorkCompletionError extends Error {
  /** How it ended: one of `WcStatus`. */
  readonly status: number;
  /** The C name of the status without its prefix, such as `'RETRY_EXC_ERR'`. */
  readonly statusName: string;
  /** The provider's own code; 0 where it has none. */
  readonly vendorErr: number;
  /** Number of the local queue pair. */
  readonly qpNum: number;
  /** What was being done, in words. */
  readonly operation: string;
  /** What probably stands behind it, in words; they are in the message. */
  readonly causes: readonly string[];

  /**
   * @param operation - what was being done, in words
   * @param wc - the completion
   * @param statusName - its status' C name
   * @param text - its status in words
   * @param causes - what probably stands behind it. Default: what most often does
   */
  constructor(
    operation: string,
    wc: { status: number; vendorErr: number; qpNum: number },
    statusName: string,
    text: string,
    causes: readonly string[] = hints[statusName] === undefined ? [] : [hints[statusName]],
  ) {
    super(
      `${operation} failed: ${text} (IBV_WC_${statusName}${wc.vendorErr ? `, vendor error 0x${wc.vendorErr.toString(16)}` : ''})` +
        `${causes.length > 0 ? `: ${causes.join('; ')}` : ''}`,
    );
    this.name = 'WorkCompletionError';
    this.operation = operation;
    this.causes = causes;
    // They are in the message.
    for (const name of ['operation', 'causes']) Object.defineProperty(this, name, { enumerable: false });
    this.status = wc.status;
    this.statusName = statusName;
    this.vendorErr = wc.vendorErr;
    this.qpNum = wc.qpNum;
  }
}

/**
 * The connection manager answered a step with an event that says it failed. `status` is a number space of its own:
 * a negative errno, or the peer's reason.
 */
export class CmError extends Error {
  /**
   * The errno name: `'ECONNREFUSED'` when the peer rejected, `'ETIMEDOUT'` when it did not answer, `'ENODEV'` when the
   * device was removed, else what the event's status says.
   */
  readonly code: string;
  /** What happened: one of `CmEventType`. */
  readonly event: number;
  /** Its C name without the prefix, such as `'REJECTED'`. */
  readonly eventName: string;
  /** The event's status as it came: a negative errno, or for REJECTED the reason, and for UNREACHABLE of a datagram
   * service (UD) its status. */
  readonly status: number;
  /** What the peer sent along with a rejection, zeros behind it and all; else empty. */
  readonly privateData: Buffer;

  /**
   * @param operation - the C function whose outcome it is
   * @param event - the event
   * @param reason - its status in words; default by errno
   */
  constructor(
    operation: string,
    event: { type: number; name: string; status: number; privateData?: Buffer },
    code: string | undefined,
    reason: string | undefined,
  ) {
    const fallback = event.status < 0 ? codes.get(-event.status) : undefined;
    const text = reason ?? getSystemErrorMap().get(event.status)?.[1] ?? `status ${event.status}`;
    super(`${operation}: RDMA_CM_EVENT_${event.name}, ${text}`);
    this.name = 'CmError';
    this.code = code ?? fallback ?? 'EIO';
    this.event = event.type;
    this.eventName = event.name;
    this.status = event.status;
    this.privateData = event.privateData ?? Buffer.alloc(0);
  }
}

// What most often stands behind a status.
const hints: Record<string, string> = {
  WR_FLUSH_ERR: 'not executed, since the queue pair was closed or an earlier request failed',
  RETRY_EXC_ERR:
    'the peer did not answer; is it alive and connected, the GID right, UDP port 4791 open, the MTU passing?',
  RNR_RETRY_EXC_ERR: 'the peer had no receive posted',
  REM_ACCESS_ERR: 'the peer refused the key, the range or the right; is the region still open there, with that access?',
  REM_INV_REQ_ERR: 'the peer found the request invalid; does the message fit its receive buffer?',
  LOC_PROT_ERR: 'a local buffer is not in its region, or the region lacks LOCAL_WRITE',
  LOC_LEN_ERR: 'the message is longer than the receive buffer',
};
