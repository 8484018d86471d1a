import type { Flow } from './flow-state.ts';
import type { Operation } from './opcodes.ts';

/** What all events tell. */
export interface FlowEventBase {
  /** Where it was seen. Its numbers go on changing. */
  readonly flow: Flow;
  /** When, in nanoseconds since 1970. */
  readonly timestamp: bigint;
}

/** A message is complete. */
export interface MessageEvent extends FlowEventBase {
  /** Tells events apart. */
  readonly type: 'message';
  /** What it does. An `'RDMA_READ'` is told by the flow that carries the data. */
  readonly operation: Operation;
  /** PSN of its first packet. */
  readonly psn: number;
  /** How many packets carried it. */
  readonly packets: number;
  /** Bytes of its payload. */
  readonly length: number;
  /** Nanoseconds from its first packet to its last, both as accepted. */
  readonly duration: number;
  /** Remote address of a write. */
  readonly va: bigint | undefined;
  /** Remote key of a write. */
  readonly rkey: number | undefined;
  /** The payload, when the tracker keeps messages of this length and all of it was captured. */
  readonly payload: Buffer | undefined;
}

/** PSNs were skipped: packets were lost before the capture, or by it. */
export interface GapEvent extends FlowEventBase {
  /** Tells events apart. */
  readonly type: 'gap';
  /** Whether requests are missing, or read responses. */
  readonly of: 'requests' | 'responses';
  /** The PSN that was due. */
  readonly expected: number;
  /** The PSN that came. */
  readonly psn: number;
  /** How many PSNs are missing. */
  readonly missing: number;
}

/** A PSN came again. */
export interface RetransmissionEvent extends FlowEventBase {
  /** Tells events apart. */
  readonly type: 'retransmission';
  /** Whether a request came again, or a read response. */
  readonly of: 'requests' | 'responses';
  /** The PSN. */
  readonly psn: number;
}

/** A responder refused a request. Told by the flow that carries the refusal. */
export interface NakEvent extends FlowEventBase {
  /** Tells events apart. */
  readonly type: 'nak';
  /** PSN that is refused; for a sequence error the one that is due. */
  readonly psn: number;
  /** One of `NakCode`, or a reserved number. */
  readonly code: number;
}

/** A responder had no receive posted. Told by the flow that carries this. */
export interface RnrNakEvent extends FlowEventBase {
  /** Tells events apart. */
  readonly type: 'rnrNak';
  /** PSN that must be sent again. */
  readonly psn: number;
  /** How long to wait, in milliseconds. */
  readonly timerMs: number;
}

/** A packet carries the congestion mark of a switch. */
export interface EcnMarkEvent extends FlowEventBase {
  /** Tells events apart. */
  readonly type: 'ecnMark';
  /** PSN of the packet. */
  readonly psn: number;
}

/** A receiver that has seen marks asks the queue pair `flow.destQp` to slow down. */
export interface CnpEvent extends FlowEventBase {
  /** Tells events apart. */
  readonly type: 'cnp';
}

/** A sender went back and has sent again, up to where it had been or to where it went back once more: that is `timestamp`. */
export interface GoBackNEvent extends FlowEventBase {
  /** Tells events apart. */
  readonly type: 'goBackN';
  /** What the sender knew: a NAK for a missing packet, an RNR NAK, or nothing that was seen: a time-out. */
  readonly trigger: 'NAK' | 'RNR_NAK' | 'TIMEOUT';
  /** The first PSN that was sent again. */
  readonly psn: number;
  /** Packets that were sent again. */
  readonly packets: number;
  /** Bytes of payload that were sent again. */
  readonly bytes: number;
  /** Nanoseconds from the first packet that was sent again. */
  readonly duration: number;
}

/** There were too many flows: the tracker has forgotten this one, which was idle the longest. */
export interface EvictedEvent extends FlowEventBase {
  /** Tells events apart. */
  readonly type: 'evicted';
}

/** Something that happened in a flow. */
export type FlowEvent =
  | MessageEvent
  | GapEvent
  | RetransmissionEvent
  | NakEvent
  | RnrNakEvent
  | EcnMarkEvent
  | CnpEvent
  | GoBackNEvent
  | EvictedEvent;

/** An event without what the flow adds to it. */
export type FlowEventBody = FlowEvent extends infer E
  ? E extends FlowEvent
    ? Omit<E, keyof FlowEventBase>
    : never
  : never;
