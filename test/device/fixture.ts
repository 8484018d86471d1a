/** What the device tests share: the two devices of the backend, two connected queue pairs, and waiting with a deadline. */
import { readdirSync } from 'node:fs';
import { afterEach, beforeEach, expect } from 'vitest';
import { type ConnectOptions, connectionInfo, connectQueuePair } from '../../lib/endpoint/connect.ts';
import {
  AccessFlags,
  type CompletionQueue,
  type Context,
  type MemoryRegion,
  openDevice,
  type ProtectionDomain,
  type QpAttr,
  type QpInitAttr,
  QpState,
  type QueuePair,
  RemoteRegion,
  SendOpsFlags,
  WcStatus,
  type WorkCompletion,
  WrOpcode,
  wcStatusName,
} from '../../lib/index.ts';
import { binding } from '../../lib/native/binding.ts';

const backends = {
  /** The distribution's libmlx5 over a software device, in this process. */
  model: { devices: ['mlx5_0', 'mlx5_1'] },
  /** The kernel's rdma_rxe in the VM, two devices on the two ends of a wire. */
  rxe: { devices: ['rxe0', 'rxe1'] },
  /** The kernel's software iWARP in the VM, likewise. What connects by itself, and not by the connection manager, is not for it. */
  siw: { devices: ['siw0', 'siw1'] },
} as const;

const named = process.env.RDMA_TEST_BACKEND;
if (named !== 'model' && named !== 'rxe' && named !== 'siw') {
  throw new Error('Device tests need a backend: npm run test:device (a software device) or npm run test:rxe (in a VM)');
}
/** Where the tests run. A test that differs says why. */
export const backend: 'model' | 'rxe' | 'siw' = named;
export const isRxe = backend === 'rxe';
export const isSiw = backend === 'siw';
/** AddressSanitizer keeps freed memory aside for a while, so that resident memory says nothing about leaks. */
export const isSanitized = process.env.ASAN_OPTIONS !== undefined;
/** The two devices: traffic goes from one to the other. */
export const [deviceA, deviceB] = backends[backend].devices;

/** No single wait takes this long unless it hangs; an emulated VM and the sanitizers are slow. */
export const DEADLINE_MS = backend === 'model' && !isSanitized ? 20_000 : 45_000;

/** Everything a peer may be allowed to do, and what that needs. */
export const ALL_ACCESS =
  AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC;

/** How many descriptors the process has open. One of an earlier file may be closed at any time: compare by "no more than". */
export const descriptors = (): number => readdirSync('/proc/self/fd').length;

/** After each test of the file: no more objects of verbs are open than before it. */
export function expectNoLeaks(): void {
  let before: number;
  beforeEach(() => {
    before = binding().census().open;
  });
  afterEach(() => {
    // Fewer: garbage collection has found one of an earlier file.
    expect(binding().census().open, 'objects left by the test').toBeLessThanOrEqual(before);
  });
}

/** One end: a device with one of everything, its queue pair not yet connected. */
export interface Side {
  context: Context;
  pd: ProtectionDomain;
  /** For sends and receives. */
  cq: CompletionQueue;
  qp: QueuePair;
  /** Registered memory, with all access. */
  mr: MemoryRegion;
}

export interface SideOptions {
  /** Bytes of memory; default 16 KiB. */
  bytes?: number;
  /** Its access flags. */
  access?: number;
  /** Entries of the completion queue; default 512. */
  cqe?: number;
  /** Whether it takes queue pairs that do not fit; default false. */
  allowOverrun?: boolean;
  cap?: NonNullable<QpInitAttr['cap']>;
  sqSigAll?: boolean;
  /** Else that the queue pair is made with. */
  attr?: Partial<QpInitAttr>;
}

/** Opens a device with one of everything. */
export function openSide(device: string, options: SideOptions = {}): Side {
  const context = openDevice(device);
  const pd = context.allocPd();
  const { cap = {}, sqSigAll = false, allowOverrun = false, attr } = options;
  const cq = context.createCq(options.cqe ?? 512, { allowOverrun });
  const qp = pd.createQp({ sendCq: cq, sqSigAll, cap: { maxSendWr: 64, maxRecvWr: 64, ...cap }, ...attr });
  const mr = pd.allocSync(options.bytes ?? 16 * 1024, { access: options.access ?? ALL_ACCESS });
  return { context, pd, cq, qp, mr };
}

/** What takes a queue pair from RESET to INIT. */
export const initAttr = (more: QpAttr = {}): QpAttr => ({
  qpState: QpState.INIT,
  pkeyIndex: 0,
  portNum: 1,
  qpAccessFlags: AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC,
  ...more,
});

/** What takes a queue pair of `from` from INIT to RTR, to talk with the one of `to`. */
export function rtrAttr(from: Side, to: Side, more: QpAttr = {}): QpAttr {
  const local = from.context.selectGid();
  return {
    qpState: QpState.RTR,
    pathMtu: from.context.queryPort(1).activeMtu as NonNullable<QpAttr['pathMtu']>,
    destQpNum: to.qp.qpNum,
    rqPsn: 0xff_fffe,
    maxDestRdAtomic: 4,
    minRnrTimer: 1,
    ahAttr: { grh: { dgid: to.context.selectGid().gid, sgidIndex: local.gidIndex } },
    ...more,
  };
}

/** What takes a queue pair from RTR to RTS. */
export const rtsAttr = (more: QpAttr = {}): QpAttr => ({
  qpState: QpState.RTS,
  sqPsn: 0xff_fffe,
  timeout: 14,
  retryCnt: 7,
  rnrRetry: 7,
  maxRdAtomic: 4,
  ...more,
});

/** Connects two sides whose queue pairs are in RESET. */
export async function connectSides(a: Side, b: Side, options: ConnectOptions = {}): Promise<void> {
  // A receiver that is not ready shall not be waited for long.
  const how = { minRnrTimer: 1, ...options };
  const [infoA, infoB] = [connectionInfo(a.qp, how), connectionInfo(b.qp, how)];
  await connectQueuePair(a.qp, infoA, infoB, how);
  await connectQueuePair(b.qp, infoB, infoA, how);
}

/** Two sides that are connected. Closes all that there is at the end. */
export class Pair implements Disposable {
  readonly a: Side;
  readonly b: Side;
  /** The memory of b as a sees it, by way of the token that a peer would send. */
  readonly remote: RemoteRegion;

  private constructor(a: Side, b: Side) {
    this.a = a;
    this.b = b;
    this.remote = new RemoteRegion(JSON.parse(JSON.stringify(b.mr.remote())));
  }

  static async connect(options: SideOptions & { b?: SideOptions; connect?: ConnectOptions } = {}): Promise<Pair> {
    const a = openSide(deviceA, options);
    const b = openSide(deviceB, { ...options, ...options.b });
    await connectSides(a, b, options.connect);
    return new Pair(a, b);
  }

  [Symbol.dispose](): void {
    // Queue pairs first, so that no test leaves one side sending into the other's end.
    for (const { qp } of [this.a, this.b]) qp.close();
    for (const { context } of [this.a, this.b]) context.close({ cascade: true });
  }
}

// What every device has that has extended posting.
const COMMON_OPS =
  SendOpsFlags.SEND |
  SendOpsFlags.SEND_WITH_IMM |
  SendOpsFlags.SEND_WITH_INV |
  SendOpsFlags.RDMA_WRITE |
  SendOpsFlags.RDMA_WRITE_WITH_IMM |
  SendOpsFlags.RDMA_READ |
  SendOpsFlags.ATOMIC_CMP_AND_SWP |
  SendOpsFlags.ATOMIC_FETCH_AND_ADD |
  SendOpsFlags.LOCAL_INV |
  SendOpsFlags.BIND_MW;

/** The two ways to post: what a queue pair is made with, what its errors name, and two sides that are connected so. */
export const postings = (
  [
    ['ibv_post_send', {}],
    ['ibv_wr_complete', { sendOpsFlags: COMMON_OPS }],
  ] as const
).map(([verb, attr]) => ({
  verb,
  attr,
  connect: (options: Parameters<typeof Pair.connect>[0] = {}) =>
    Pair.connect({ ...options, attr: { ...attr, ...options.attr } }),
}));

/** A completion of its own: what a cursor shows now. */
export function snapshot(wc: WorkCompletion): WorkCompletion {
  return JSON.parse(JSON.stringify(wc));
}

/** Waits for exactly `count` completions, in their order; fails when there are more or when the deadline passes. */
export async function completions(cq: CompletionQueue, count: number, what = 'completions'): Promise<WorkCompletion[]> {
  const found: WorkCompletion[] = [];
  const signal = AbortSignal.timeout(DEADLINE_MS);
  while (found.length < count) {
    const taken = await cq.wait({ signal }).catch((error: Error) => {
      if (!signal.aborted) throw error;
      const seen = found.map((wc) => `${wc.wrId} ${wcStatusName(wc.status)}`).join(', ');
      throw new Error(`${what}: ${found.length} of ${count} came within ${DEADLINE_MS} ms (${seen})`);
    });
    for (let i = 0; i < taken; i++) found.push(snapshot(cq.at(i)));
  }
  if (found.length > count) throw new Error(`${what}: ${found.length} came where ${count} were expected`);
  return found;
}

/** One completion. */
export async function completion(cq: CompletionQueue, what?: string): Promise<WorkCompletion> {
  return (await completions(cq, 1, what))[0]!;
}

/** Waits until a condition holds, a turn of the event loop at a time. */
export async function until(condition: () => boolean, what: string): Promise<void> {
  const end = performance.now() + DEADLINE_MS;
  while (!condition()) {
    if (performance.now() > end) throw new Error(`${what}: not within ${DEADLINE_MS} ms`);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/** Fails when a promise has not settled by the deadline. */
export async function within<T>(promise: Promise<T>, what: string): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: not within ${DEADLINE_MS} ms`)), DEADLINE_MS);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** The error that a call throws. */
export function thrown(call: () => unknown): Error & { code?: string; syscall?: string } {
  try {
    call();
  } catch (error) {
    return error as Error;
  }
  throw new Error('it did not throw');
}

/** What the provider of Soft-RoCE answers to what it has no function for. */
export const unsupported = (syscall: string) => ({ name: 'RdmaError', code: 'EOPNOTSUPP', errno: -95, syscall });

/** Writes, reads and an atomic by way of a token of b's region, whose bytes `read` shows; both ends' bytes are checked. */
export async function exerciseRegion(pair: Pair, theirs: MemoryRegion, read: () => Buffer): Promise<void> {
  const { a } = pair;
  const remote = new RemoteRegion(JSON.parse(JSON.stringify(theirs.remote())));
  const sent = fill(a.mr.buffer.subarray(0, 1024), 9);
  a.qp.postSend({ opcode: WrOpcode.RDMA_WRITE, sgList: a.mr.slice(0, 1024), remote: remote.slice(64, 1024) });
  expect(await completion(a.cq, 'the write')).toMatchObject({ status: WcStatus.SUCCESS });
  expect(read().subarray(64, 1088).equals(sent)).toBe(true);
  a.qp.postSend({ opcode: WrOpcode.RDMA_READ, sgList: a.mr.slice(2048, 1024), remote: remote.slice(64, 1024) });
  expect(await completion(a.cq, 'the read')).toMatchObject({ status: WcStatus.SUCCESS });
  expect(a.mr.buffer.subarray(2048, 3072).equals(sent)).toBe(true);
  const atomic = { opcode: WrOpcode.ATOMIC_FETCH_AND_ADD, sgList: a.mr.slice(4096, 8), remote: remote.slice(64, 8) };
  a.qp.postSend({ ...atomic, compareAdd: 5n });
  expect(await completion(a.cq, 'the atomic')).toMatchObject({ status: WcStatus.SUCCESS });
  expect(a.mr.buffer.subarray(4096, 4104).equals(sent.subarray(0, 8))).toBe(true);
  expect(read().readBigUInt64LE(64)).toBe(BigInt.asUintN(64, sent.readBigUInt64LE(0) + 5n));
}

/** Fills memory with a pattern that differs from page to page and from seed to seed, and returns a copy. */
export function fill(buffer: Buffer, seed = 1): Buffer {
  for (let i = 0; i < buffer.length; i++) buffer[i] = (i * 7 + (i >> 8) * 13 + seed * 31) & 0xff;
  return Buffer.from(buffer);
}

/** Collects garbage, and gives finalizers, which run on the event loop, their turn. */
export async function collect(): Promise<void> {
  for (let i = 0; i < 2; i++) {
    (globalThis.gc as () => void)();
    await new Promise((resolve) => setImmediate(resolve));
  }
}
