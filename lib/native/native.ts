/** The addon as TypeScript sees it. Every function checks the types of its arguments; ranges are checked in lib/. */
import type { GpuError, RdmaError } from '../errors.ts';
import type { QpType } from './constants.gen.ts';
import type { Layout } from './layout.gen.ts';
import type { CmBinding } from './native-cm.ts';
import type { GpuBinding } from './native-gpu.ts';

/** An opaque handle: a tagged object that the addon takes back as an argument. */
export type Handle<T extends string> = { readonly handleOf: T };
export type ContextHandle = Handle<'Context'>;
export type PdHandle = Handle<'ProtectionDomain'>;
export type MrHandle = Handle<'MemoryRegion'>;
export type ChannelHandle = Handle<'CompletionChannel'>;
export type ChannelEventsHandle = Handle<'ChannelEvents'>;
export type CqHandle = Handle<'CompletionQueue'>;
export type QpHandle = Handle<'QueuePair'>;
export type AhHandle = Handle<'AddressHandle'>;
export type SrqHandle = Handle<'SharedReceiveQueue'>;
export type AsyncEventsHandle = Handle<'AsyncEvents'>;
export type MwHandle = Handle<'MemoryWindow'>;
export type FlowHandle = Handle<'Flow'>;
export type CountersHandle = Handle<'Counters'>;
export type WqHandle = Handle<'ReceiveWorkQueue'>;
export type RwqIndTableHandle = Handle<'RwqIndTable'>;
export type XrcdHandle = Handle<'XrcDomain'>;
export type DmHandle = Handle<'DeviceMemory'>;
export type TdHandle = Handle<'ThreadDomain'>;
export type GpuMemoryHandle = Handle<'GpuBuffer'>;

export interface NativeDevice {
  name: string;
  guid: string;
  index: number;
  nodeType: number;
  transportType: number;
  devName: string;
  ibdevPath: string;
}

export interface NativeCq {
  handle: CqHandle;
  cqe: number;
}

export interface NativeMr {
  handle: MrHandle;
  addr: bigint;
  lkey: number;
  rkey: number;
  nativeHandle: number;
}

export interface NativeContext {
  handle: ContextHandle;
  name: string;
  transportType: number;
  numCompVectors: number;
  cmdFd: number;
}

export interface NativePd {
  handle: PdHandle;
  nativeHandle: number;
}

type RegDmabufMrArgs = readonly [
  pd: PdHandle,
  fd: number,
  offset: number,
  length: number,
  iova: bigint,
  access: number,
  gpu?: GpuMemoryHandle,
];

/** A region that was registered anew, or was not: then `errno` is not 0. */
export interface ChangedMr extends Omit<NativeMr, 'handle'> {
  errno: number;
  isKept: boolean;
}

type ReregMrArgs = readonly [
  mr: MrHandle,
  pd: PdHandle | null,
  access: number | null,
  memory: ArrayBuffer | null,
  offset: number,
  length: number,
];

type RegMrArgs = readonly [
  pd: PdHandle,
  memory: ArrayBuffer,
  offset: number,
  length: number,
  access: number,
  iova: bigint | undefined,
];

/** Length null: all of memory, for implicit on-demand paging. */
type RegMrAddressArgs = readonly [
  pd: PdHandle,
  address: bigint,
  length: number | null,
  access: number,
  iova: bigint | undefined,
  gpu?: GpuMemoryHandle,
];

type AllocMrArgs = readonly [
  pd: PdHandle,
  length: number,
  access: number,
  hugePages: boolean,
  iova: bigint | undefined,
];

export interface NativeGidEntry {
  gid: Uint8Array;
  gidIndex: number;
  portNum: number;
  gidType: number;
  netdev: string | null;
}

/** Capacities of a queue pair: `struct ibv_qp_cap`. */
export interface QpCap {
  /** Send requests that may be outstanding. */
  maxSendWr: number;
  /** Receive requests that may be outstanding. */
  maxRecvWr: number;
  /** Scatter/gather elements of a send request. */
  maxSendSge: number;
  /** Scatter/gather elements of a receive request. */
  maxRecvSge: number;
  /** Bytes that a request may carry inline. */
  maxInlineData: number;
}

/** `struct ibv_qp_init_attr_ex`: what is there beyond the first three selects the extended verb. */
export interface NativeQpInitAttr {
  qpType: QpType;
  sqSigAll: boolean;
  cap: QpCap;
  createFlags?: number;
  sourceQpn?: number;
  maxTsoHeader?: number;
  sendOpsFlags?: number;
}

/** `struct mlx5dv_qp_init_attr`: the keys that are there are the mask. */
export interface NativeMlx5QpInitAttr {
  createFlags?: number;
  dcType?: number;
  dctAccessKey?: bigint;
  dciStreams?: { logNumConcurent: number; logNumErrored: number };
}

/** `struct mlx5dv_cq_init_attr`: likewise. */
export interface NativeMlx5CqInitAttr {
  cqeCompResFormat?: number;
  flags?: number;
  cqeSize?: number;
}

/** An array of C structs shared with the addon, and the number that the doorbell knows it by. */
export interface SharedList {
  memory: ArrayBuffer;
  list: number;
}

/** Words of the doorbell (native/datapath/doorbell.h): what is asked for, and what came of it. */
export const BELL_LIST = 0;
export const BELL_COUNT = 1;
export const BELL_RESULT = 2;
export const BELL_INDEX = 3;

/** What came of a post that took all: the numbers of the queue's requests have entered a new era. */
export const NEW_ERA = -1;

/** Words of a work queue (native/datapath/work_queue.h): the sequence numbers of its oldest request and of the next. */
export const QUEUE_HEAD = 0;
export const QUEUE_TAIL = 1;

export interface Binding extends CmBinding, GpuBinding {
  setErrorClass(type: typeof RdmaError, ofGpus: typeof GpuError): void;
  census(): { open: number; leaked: number };
  loadState(): { available: boolean; path: string; error: string };
  constants: Record<string, number>;
  layout: typeof Layout;

  createAsyncEvents(context: ContextHandle, callback: (...numbers: number[]) => void): AsyncEventsHandle;
  startAsyncEvents(events: AsyncEventsHandle): void;
  stopAsyncEvents(events: AsyncEventsHandle): void;
  destroyAsyncEvents(events: AsyncEventsHandle): void;

  getDeviceList(): NativeDevice[];
  openDevice(name: string): NativeContext;
  importDevice(cmdFd: number): NativeContext;
  closeDevice(context: ContextHandle): void;
  isForkInitialized(): number;
  wcStatusStr(status: number): string | null;
  eventTypeStr(type: number): string | null;
  nodeTypeStr(type: number): string | null;
  portStateStr(state: number): string | null;

  queryDevice(context: ContextHandle): Record<string, unknown>;
  queryDeviceEx(context: ContextHandle): Record<string, unknown>;
  queryRtValues(context: ContextHandle): { rawClock?: bigint };
  queryPort(context: ContextHandle, portNum: number): Record<string, number>;
  queryGid(context: ContextHandle, portNum: number, gidIndex: number): Uint8Array;
  queryGidEx(context: ContextHandle, portNum: number, gidIndex: number): NativeGidEntry;
  queryGidTable(context: ContextHandle, maxEntries: number): NativeGidEntry[];
  queryPkey(context: ContextHandle, portNum: number, index: number): number;

  allocPd(context: ContextHandle): NativePd;
  importPd(context: ContextHandle, handle: number): NativePd;
  allocParentDomain(context: ContextHandle, pd: PdHandle, td: TdHandle | null): NativePd;
  allocTd(context: ContextHandle): TdHandle;
  deallocTd(td: TdHandle): void;
  deallocPd(pd: PdHandle): void;

  regMr(...args: RegMrArgs): Promise<NativeMr>;
  regMrSync(...args: RegMrArgs): NativeMr;
  regMrAddress(...args: RegMrAddressArgs): Promise<NativeMr>;
  regMrAddressSync(...args: RegMrAddressArgs): NativeMr;
  allocMr(...args: AllocMrArgs): Promise<NativeMr & { buffer: ArrayBuffer }>;
  allocMrSync(...args: AllocMrArgs): NativeMr & { buffer: ArrayBuffer };
  reregMr(...args: ReregMrArgs): Promise<ChangedMr>;
  reregMrSync(...args: ReregMrArgs): ChangedMr;
  allocNullMr(pd: PdHandle): NativeMr;
  regDmabufMr(...args: RegDmabufMrArgs): Promise<NativeMr>;
  regDmabufMrSync(...args: RegDmabufMrArgs): NativeMr;
  regDmMr(pd: PdHandle, dm: DmHandle, offset: number, length: number, access: number): NativeMr;
  importMr(pd: PdHandle, handle: number, iova: bigint): NativeMr & { length: number };
  allocDm(context: ContextHandle, length: number, logAlign: number): { handle: DmHandle; nativeHandle: number };
  importDm(context: ContextHandle, handle: number): { handle: DmHandle; nativeHandle: number };
  freeDm(dm: DmHandle): void;
  memcpyToDm(dm: DmHandle, offset: number, bytes: Uint8Array): void;
  memcpyFromDm(dm: DmHandle, offset: number, bytes: Uint8Array): void;
  /** `slices`: an array of `struct ibv_sge`. */
  adviseMr(pd: PdHandle, advice: number, flags: number, slices: ArrayBuffer): Promise<void>;
  addressOf(memory: ArrayBuffer, offset: number, length: number): bigint;
  deregMr(mr: MrHandle): void;
  detach(buffer: ArrayBuffer): void;

  createCompChannel(context: ContextHandle): ChannelHandle;
  destroyCompChannel(channel: ChannelHandle): void;
  createChannelEvents(channel: ChannelHandle, callback: (...cqIds: number[]) => void): ChannelEventsHandle;
  startChannelEvents(events: ChannelEventsHandle): void;
  stopChannelEvents(events: ChannelEventsHandle): void;
  destroyChannelEvents(events: ChannelEventsHandle): void;

  createCq(
    context: ContextHandle,
    cqe: number,
    channel: ChannelHandle | null,
    compVector: number,
    id: number,
  ): NativeCq;
  createCqEx(
    context: ContextHandle,
    cqe: number,
    channel: ChannelHandle | null,
    compVector: number,
    id: number,
    wcFlags: number,
    flags: number,
    parentDomain: PdHandle | null,
  ): NativeCq;
  resizeCq(cq: CqHandle, cqe: number): Promise<number>;
  resizeCqSync(cq: CqHandle, cqe: number): number;
  modifyCq(cq: CqHandle, cqCount: number, cqPeriod: number): void;
  destroyCq(cq: CqHandle): void;
  reqNotifyCq(cq: CqHandle, solicitedOnly: boolean): void;

  createQp(
    pd: PdHandle,
    sendCq: CqHandle,
    recvCq: CqHandle | null,
    srq: SrqHandle | null,
    attr: NativeQpInitAttr,
  ): { handle: QpHandle; qpNum: number };
  createXrcRecvQp(xrcd: XrcdHandle): { handle: QpHandle; qpNum: number };
  createRssQp(
    pd: PdHandle,
    table: RwqIndTableHandle,
    qpType: number,
    rxHashFunction: number,
    rxHashKey: Uint8Array,
    rxHashFieldsMask: number,
  ): { handle: QpHandle; qpNum: number };
  openQp(xrcd: XrcdHandle, qpNum: number): { handle: QpHandle; qpNum: number };
  modifyQp(qp: QpHandle, attr: object, mask: number): Promise<void>;
  modifyQpSync(qp: QpHandle, attr: object, mask: number): void;
  queryQp(qp: QpHandle, mask: number): Record<string, unknown>;
  queryEce(qp: QpHandle): { vendorId: number; options: number };
  setEce(qp: QpHandle, vendorId: number, options: number): void;
  modifyQpRateLimit(qp: QpHandle, rateLimit: number, maxBurstSz: number, typicalPktSz: number): void;
  queryQpDataInOrder(qp: QpHandle, opcode: number, flags: number): number;
  destroyQp(qp: QpHandle): void;
  attachMcast(qp: QpHandle, gid: Uint8Array, lid: number): void;
  detachMcast(qp: QpHandle, gid: Uint8Array, lid: number): void;

  createAh(pd: PdHandle, attr: { ahAttr: object }): { handle: AhHandle; number: number };
  createAhFromWc(
    pd: PdHandle,
    context: ContextHandle,
    portNum: number,
    wc: object,
    grh: Uint8Array | null,
  ): { handle: AhHandle; number: number; attr: object };
  destroyAh(ah: AhHandle): void;

  createSrq(
    pd: PdHandle,
    xrcd: XrcdHandle | null,
    cq: CqHandle | null,
    attr: { srqType: number; maxWr: number; maxSge: number; maxNumTags: number; maxOps: number; id: number },
  ): { handle: SrqHandle; maxWr: number; maxSge: number };
  getSrqNum(srq: SrqHandle): number;
  modifySrq(srq: SrqHandle, mask: number, maxWr: number, srqLimit: number): void;
  querySrq(srq: SrqHandle): { maxWr: number; maxSge: number; srqLimit: number };
  destroySrq(srq: SrqHandle): void;

  mlx5LoadState(): { available: boolean; path: string; error: string };
  mlx5IsSupported(name: string): boolean;
  mlx5QueryDevice(context: ContextHandle): Record<string, unknown>;
  mlx5GetClockInfo(context: ContextHandle): Record<string, unknown>;
  mlx5CreateCq(
    context: ContextHandle,
    cqe: number,
    channel: ChannelHandle | null,
    compVector: number,
    id: number,
    attr: NativeMlx5CqInitAttr,
  ): { handle: CqHandle; cqe: number };
  mlx5CreateQp(
    pd: PdHandle,
    sendCq: CqHandle,
    recvCq: CqHandle | null,
    srq: SrqHandle | null,
    attr: NativeQpInitAttr,
    mlx5Attr: NativeMlx5QpInitAttr,
  ): { handle: QpHandle; qpNum: number };
  mlx5QpNum(qp: QpHandle): number;
  mlx5ModifyQpUdpSport(qp: QpHandle, udpSport: number): void;
  mlx5ModifyQpLagPort(qp: QpHandle, portNum: number): void;
  mlx5QueryQpLagPort(qp: QpHandle): { portNum: number; activePortNum: number };
  mlx5DciStreamIdReset(qp: QpHandle, streamId: number): void;

  openXrcd(context: ContextHandle, fd: number, oflags: number): XrcdHandle;
  closeXrcd(xrcd: XrcdHandle): void;

  allocMw(pd: PdHandle, type: number): { handle: MwHandle; rkey: number };
  bindMw(
    qp: QpHandle,
    mw: MwHandle,
    mr: MrHandle,
    addr: bigint,
    length: number,
    access: number,
    sendFlags: number,
    queueId: number,
    wrId: number,
  ): number;
  deallocMw(mw: MwHandle): void;

  createFlow(qp: QpHandle, bytes: Uint8Array, counters: CountersHandle[]): FlowHandle;
  destroyFlow(flow: FlowHandle): void;
  createCounters(context: ContextHandle): CountersHandle;
  attachCounters(counters: CountersHandle, counterDesc: number, index: number, flow: FlowHandle | null): void;
  readCounters(counters: CountersHandle, count: number, flags: number): bigint[];
  destroyCounters(counters: CountersHandle): void;

  createWq(
    pd: PdHandle,
    cq: CqHandle,
    maxWr: number,
    maxSge: number,
    createFlags: number,
    id: number,
  ): { handle: WqHandle; wqNum: number; maxWr: number; maxSge: number };
  modifyWq(wq: WqHandle, mask: number, wqState: number, currWqState: number, flags: number, flagsMask: number): void;
  destroyWq(wq: WqHandle): void;
  createRwqIndTable(context: ContextHandle, wqs: WqHandle[]): { handle: RwqIndTableHandle; indTblNum: number };
  destroyRwqIndTable(table: RwqIndTableHandle): void;

  /** The words of the doorbell. */
  doorbell: ArrayBuffer;
  /** Posts or polls the list that the doorbell's words say, and leaves the results there. */
  ring(): void;
  createWorkQueue(capacity: number, inOrder: boolean): { memory: ArrayBuffer; id: number };
  /** Of one that is not in order. Its memory, when it is another now. */
  resizeWorkQueue(id: number, capacity: number): ArrayBuffer | null;
  clearWorkQueue(id: number): void;
  destroyWorkQueue(id: number): void;
  createSendList(qp: QpHandle, capacity: number, maxSge: number, queueId: number, isDatagram: boolean): SharedList;
  createSrqRecvList(srq: SrqHandle, capacity: number, maxSge: number, queueId: number): SharedList;
  createWqRecvList(wq: WqHandle, capacity: number, maxSge: number, queueId: number): SharedList;
  createRecvList(qp: QpHandle, capacity: number, maxSge: number, queueId: number): SharedList;
  createWcRing(cq: CqHandle, capacity: number): SharedList;
  createWcRingEx(cq: CqHandle, capacity: number): SharedList;
}
