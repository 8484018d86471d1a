/** The connection manager's part of the addon as TypeScript sees it: native.ts has the rest. */
import type { Handle } from './native.ts';

export type CmChannelHandle = Handle<'EventChannel'>;
export type CmEventsHandle = Handle<'CmEvents'>;
export type CmIdHandle = Handle<'CmId'>;

/** An address and a port that the connection manager knows. */
export interface CmAddressInfo {
  /** In text; a link-local one with its interface. */
  address: string;
  /** Its family. */
  family: 'IPv4' | 'IPv6';
  /** The port; 0 when there is none yet. */
  port: number;
}

/** What librdmacm knows of an id. */
export interface NativeCmId {
  portSpace: number;
  portNum: number;
  device: string | null;
  transportType: number;
  localAddr: CmAddressInfo | null;
  peerAddr: CmAddressInfo | null;
}

/** `struct rdma_addrinfo`. */
export interface NativeAddrInfo {
  flags: number;
  qpType: number;
  portSpace: number;
  srcAddr: CmAddressInfo | null;
  dstAddr: CmAddressInfo | null;
  srcCanonname: string | null;
  dstCanonname: string | null;
  route: Buffer;
  connect: Buffer;
}

/** `struct rdma_conn_param`, complete. */
export interface NativeConnParam {
  privateData: Uint8Array | null;
  responderResources: number;
  initiatorDepth: number;
  flowControl: boolean;
  retryCount: number;
  rnrRetryCount: number;
  srq: boolean;
  qpNum: number;
}

export interface CmBinding {
  cmLoadState(): { available: boolean; path: string; error: string };
  createEventChannel(): CmChannelHandle;
  destroyEventChannel(channel: CmChannelHandle): void;
  createCmEvents(channel: CmChannelHandle, callback: (...numbers: number[]) => void): CmEventsHandle;
  startCmEvents(events: CmEventsHandle, keepsAlive: boolean): void;
  stopCmEvents(events: CmEventsHandle): void;
  destroyCmEvents(events: CmEventsHandle): void;
  takeCmId(events: CmEventsHandle, number: number): CmIdHandle;
  openCmDevices(): Promise<void>;
  createCmId(channel: CmChannelHandle, portSpace: number): { handle: CmIdHandle; number: number };
  destroyCmId(id: CmIdHandle): void;
  queryCmId(id: CmIdHandle): NativeCmId;
  bindAddr(id: CmIdHandle, address: string, port: number): void;
  resolveAddr(
    id: CmIdHandle,
    dstAddress: string,
    dstPort: number,
    srcAddress: string | null,
    srcPort: number,
    timeoutMs: number,
  ): void;
  resolveRoute(id: CmIdHandle, timeoutMs: number): Promise<void>;
  setCmOption(id: CmIdHandle, name: number, value: number): void;
  migrateCmId(id: CmIdHandle, channel: CmChannelHandle): void;
  joinMulticast(id: CmIdHandle, address: string, port: number, joinFlags: number | null, number: number): void;
  leaveMulticast(id: CmIdHandle, address: string, port: number): void;
  listenCmId(id: CmIdHandle, backlog: number): void;
  connectCmId(id: CmIdHandle, param: NativeConnParam): void;
  acceptCmId(id: CmIdHandle, param: NativeConnParam): void;
  rejectCmId(id: CmIdHandle, privateData: Uint8Array | null): void;
  establishCmId(id: CmIdHandle): void;
  notifyCmId(id: CmIdHandle, eventType: number): void;
  disconnectCmId(id: CmIdHandle): void;
  getAddrInfo(node: string | null, service: string | null, hints: object): Promise<NativeAddrInfo[] | string>;
  createEp(channel: CmChannelHandle, addrInfo: object): Promise<{ handle: CmIdHandle; number: number }>;
  initQpAttr(id: CmIdHandle, qpState: number): { mask: number; attr: Record<string, unknown> };
}
