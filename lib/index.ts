/**
 * RDMA for Node.js: the verbs of libibverbs, over the real rdma-core.
 *
 * @packageDocumentation
 */
export type { CmAddress } from './cm/address.ts';
export { type AddrInfo, type AddrInfoHints, getaddrinfo } from './cm/addrinfo.ts';
export type { CmEvent, ConnEvent, UdEvent } from './cm/cm-event.ts';
export { CmId } from './cm/cm-id.ts';
export {
  type ConnParam,
  decodePrivateData,
  encodePrivateData,
  type PrivateDataMessage,
  privateDataLimit,
} from './cm/conn-param.ts';
export { createEventChannel, EventChannel } from './cm/event-channel.ts';
export type { CmIdOptions } from './cm/options.ts';
export { type DiagnoseOptions, type Diagnosis, diagnose, type Finding, isAvailable } from './diagnose.ts';
export {
  type CmConnectOptions,
  type CmEndpointOptions,
  CmListener,
  type CmListenOptions,
  ConnectionRequest,
  connect,
  listen,
} from './endpoint/cm.ts';
export {
  type ConnectionInfo,
  type ConnectOptions,
  connectionInfo,
  connectQueuePair,
  decodeConnectionInfo,
  encodeConnectionInfo,
} from './endpoint/connect.ts';
export { Endpoint } from './endpoint/endpoint.ts';
export { type MessageEndpoint, type MessageEndpointOptions, messageEndpoint } from './endpoint/message-memory.ts';
export { Message, type Place } from './endpoint/message-receiver.ts';
export { Messages, type MessagesOptions } from './endpoint/messages.ts';
export { type OperationOptions, Operations, type Received } from './endpoint/operations.ts';
export { BufferPool, type BufferPoolOptions, type OutstandingBuffer, PoolBuffer } from './endpoint/pool.ts';
export {
  type CallAnswer,
  type CallHandlers,
  type CallMethods,
  type CallOptions,
  Calls,
  type CallsOptions,
  type IncomingCall,
} from './endpoint/rpc.ts';
export { Scope } from './endpoint/scope.ts';
export { SharedMemory } from './endpoint/shared-memory.ts';
export { RdmaSocket, type RdmaSocketOptions } from './endpoint/stream.ts';
export {
  type ConnectTcpOptions,
  connectTcp,
  type EndpointOptions,
  type ListenTcpOptions,
  listenTcp,
  TcpListener,
} from './endpoint/tcp.ts';
export {
  BusyError,
  CallError,
  CmError,
  CqOverrunError,
  PostError,
  QueueFullError,
  RdmaClosedError,
  RdmaDeviceLostError,
  RdmaError,
  RdmaPeerLeftError,
  RdmaProtocolError,
  RdmaQpFailedError,
  RdmaUnavailableError,
  WorkCompletionError,
} from './errors.ts';
export { flagNames } from './inspect.ts';
export * as mlx5dv from './mlx5/index.ts';
export * from './native/constants.gen.ts';
export type { QpCap } from './native/native.ts';
export type { CmAddressInfo } from './native/native-cm.ts';
export {
  AddressHandle,
  type AhAttr,
  type Datagram,
  type GlobalRoute,
  GRH_BYTES,
  type Grh,
  readDatagram,
} from './verbs/address-handle.ts';
export { AnyQueuePair, type Ece, type QpRateLimitAttr } from './verbs/any-queue-pair.ts';
export type { AsyncEvent, AsyncEventElements, AsyncEventOf } from './verbs/async-event.ts';
export { CompletionChannel } from './verbs/completion-channel.ts';
export { CompletionQueue, type CqOptions } from './verbs/completion-queue.ts';
export {
  CompletionQueueEx,
  type CqExOptions,
  type TmInfo,
  type WorkCompletionEx,
} from './verbs/completion-queue-ex.ts';
export { Context } from './verbs/context.ts';
export { Counters } from './verbs/counters.ts';
export { type Device, getDeviceList, importDevice, isForkInitialized, openDevice } from './verbs/device.ts';
export type { DeviceAttr, DeviceAttrEx, PortAttr, RtValues } from './verbs/device-attributes.ts';
export { DeviceMemory } from './verbs/device-memory.ts';
export { DeviceQueries } from './verbs/device-queries.ts';
export { Flow } from './verbs/flow.ts';
export type {
  FlowAttr,
  FlowCount,
  FlowDrop,
  FlowEspFilter,
  FlowEthFilter,
  FlowGreFilter,
  FlowHeader,
  FlowIpv4ExtFilter,
  FlowIpv4Filter,
  FlowIpv6Filter,
  FlowMplsFilter,
  FlowSpec,
  FlowTag,
  FlowTcpUdpFilter,
  FlowTunnelFilter,
} from './verbs/flow-spec.ts';
export { chooseGid, formatGid, type GidEntry, parseGid } from './verbs/gid.ts';
export { ImplicitRegion } from './verbs/implicit-region.ts';
export { MemoryRegion, MemorySlice, type ReregMrChange } from './verbs/memory-region.ts';
export { MemoryWindow } from './verbs/memory-window.ts';
export { ProtectionDomain } from './verbs/protection-domain.ts';
export type { QpAttr, QpAttrs } from './verbs/qp-attributes.ts';
export type { QpInitAttr } from './verbs/qp-init-attr.ts';
export { QueuePair } from './verbs/queue-pair.ts';
export { ReceiveQueue } from './verbs/receive-queue.ts';
export { ReceiveWorkQueue, RwqIndTable, type WqAttr, type WqInitAttr } from './verbs/receive-work-queue.ts';
export { RecvList, type RecvWr } from './verbs/recv-list.ts';
export type { AllocOptions, RegDmabufMrOptions, RegMrOptions } from './verbs/registration.ts';
export { RemoteRegion, type RemoteRegionToken, RemoteSlice } from './verbs/remote-region.ts';
export { Resource } from './verbs/resource.ts';
export { type RssQpInitAttr, RssQueuePair, type RxHashConf } from './verbs/rss-queue-pair.ts';
export { SendList } from './verbs/send-list.ts';
export type { SendWr, Tso } from './verbs/send-wr.ts';
export { SharedReceiveQueue, type SrqAttr, type SrqInitAttr } from './verbs/shared-receive-queue.ts';
export { eventTypeStr, nodeTypeStr, portStateStr, wcStatusName, wcStatusStr } from './verbs/text.ts';
export { ThreadDomain } from './verbs/thread-domain.ts';
export type { WorkCompletion } from './verbs/work-completion.ts';
export { XrcDomain, type XrcdInitAttr } from './verbs/xrc-domain.ts';
export { XrcRecvQueuePair } from './verbs/xrc-recv-queue-pair.ts';
