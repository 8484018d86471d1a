/**
 * RoCE packets: built, read and checked, from captures too. Pure TypeScript, which loads no addon and needs no RDMA.
 *
 * @module
 */

export { type CaptureOptions, CaptureParser, encodeCapture, readCapture, writeCapture } from './capture.ts';
export { type CapturedPacket, CaptureRecord } from './capture-record.ts';
export { diagnoseFlow, type FlowFinding } from './diagnosis.ts';
export { PacketError, type PacketErrorCode } from './errors.ts';
export { type FlowOptions, FlowTracker } from './flow.ts';
export type {
  CnpEvent,
  EcnMarkEvent,
  EvictedEvent,
  FlowEvent,
  FlowEventBase,
  GapEvent,
  GoBackNEvent,
  MessageEvent,
  NakEvent,
  RetransmissionEvent,
  RnrNakEvent,
} from './flow-events.ts';
export type { Durations, Timeline } from './flow-measures.ts';
export type { Flow } from './flow-state.ts';
export {
  type Aeth,
  type AtomicAckEth,
  type AtomicEth,
  type Bth,
  type BthInit,
  type Deth,
  decodeHeader,
  encodeHeader,
  type Feth,
  type HeaderInit,
  type Headers,
  type Ieth,
  type ImmDt,
  type Reth,
  type Xrceth,
} from './headers.ts';
export type { Network } from './icrc.ts';
export { PacketLines, type PacketSummary, summarizePacket } from './line.ts';
export { captureInterface, type InterfaceCaptureOptions } from './live.ts';
export {
  Ecn,
  type Ethernet,
  type EthernetInit,
  type Grh,
  type GrhInit,
  type Ipv4,
  type Ipv4Init,
  type Ipv6,
  type Ipv6Init,
  type Vlan,
  type VlanInit,
} from './lower.ts';
export {
  type ExtendedHeader,
  extendedHeaderLength,
  Opcode,
  type OpcodeInfo,
  type OpcodeName,
  type Operation,
  type OperationName,
  opcodeTable,
  type Position,
  Transport,
} from './opcodes.ts';
export { decodePacket, encodePacket, type Packet, type PacketInit, type Udp } from './packet.ts';
export { decodeSyndrome, encodeSyndrome, NakCode, type Syndrome } from './syndrome.ts';
export { LinkType, PacketView, ROCE_V1_ETHERTYPE, ROCE_V2_PORT } from './view.ts';
