import type { FlowEventBody } from './flow-events.ts';
import { Durations, PendingAcks, PsnRanges, psnAdd, psnDistance, Timeline, WINDOW } from './flow-measures.ts';
import { Assembler } from './flow-message.ts';
import { Ecn } from './lower.ts';
import { type OpcodeInfo, type Operation, Transport } from './opcodes.ts';
import { decodeSyndrome, NakCode } from './syndrome.ts';
import type { PacketView } from './view.ts';

const mtus = [4096, 2048, 1024, 512, 256];
/** What the responder answers each time, asked or not. */
const answered: ReadonlySet<Operation> = new Set(['RDMA_READ', 'ATOMIC', 'ATOMIC_WRITE', 'FLUSH']);

/** Packets of which each has the PSN after the one before, as a receiver takes them that goes back N. */
interface Sequence {
  isStarted: boolean;
  /** The PSN that the receiver waits for. */
  due: number;
  /** The PSN behind the highest that was sent. */
  high: number;
  /** What has come in its turn. */
  readonly taken: PsnRanges;
  /** What has been told as messages. */
  readonly told: PsnRanges;
  readonly assembler: Assembler;
}

interface Episode {
  trigger: 'NAK' | 'RNR_NAK' | 'TIMEOUT';
  psn: number;
  packets: number;
  bytes: number;
  start: number;
}

/** What a flow needs of its tracker. */
export interface FlowContext {
  readonly keepPayload: number;
  emit(flow: Flow, time: number, body: FlowEventBody): void;
  readonly hasListener: boolean;
}

/**
 * The packets from one address to one queue pair at another, and what they tell. Requests of one side and responses to
 * the requests of the other side share it; {@link Flow.peer} is the way back.
 */
export class Flow {
  /** Address of the sender, or its GID. */
  readonly src: string;
  /** Address of the receiver, or its GID. */
  readonly dst: string;
  /** UDP source port of the first packet; 0 for RoCE v1. The destination port is 4791. */
  readonly srcPort: number;
  /** Queue pair that receives. */
  readonly destQp: number;
  /** The way back, found by the acknowledgements; undefined until then. */
  peer: Flow | undefined;
  /** One of `Transport`, from the first packet that is no CNP; undefined before. */
  transport: Transport | undefined;
  /** The path MTU of RDMA in bytes, from the size of the packets; undefined until it is known. */
  mtu: number | undefined;

  /** Packets. */
  packets = 0;
  /** Bytes of payload, with all that came more than once. */
  payloadBytes = 0;
  /** Bytes of payload that the receiver could use: each once, and in order. */
  goodBytes = 0;
  /** Those bytes over time. */
  readonly goodput = new Timeline();
  /** Messages that are complete. */
  messages = 0;
  /** How often PSNs were skipped. */
  gaps = 0;
  /** How many PSNs were skipped. */
  missing = 0;
  /** Packets that came again. */
  retransmissions = 0;
  /** Packets behind a gap, which a receiver that goes back N discards. */
  outOfOrder = 0;
  /** How often the sender of requests went back and sent again. */
  goBackNs = 0;
  /** Acknowledgements in this flow. */
  acks = 0;
  /** Refusals in this flow. */
  naks = 0;
  /** Of these, those for a missing packet: the sender goes back. The others end a connection. */
  sequenceNaks = 0;
  /** "Receiver not ready" in this flow. */
  rnrNaks = 0;
  /** Packets that switches may mark. */
  ecnCapable = 0;
  /** Packets that a switch has marked. */
  ecnMarks = 0;
  /** Congestion notifications in this flow: to its `destQp`, because of what that has sent. */
  cnps = 0;
  /** From each request of this flow that asked for it to the first response that covers it, in nanoseconds. */
  readonly ackLatency = new Durations();
  /** Time of the first packet, in nanoseconds since 1970. */
  readonly firstTimestamp: bigint;
  /** Time of the last. */
  lastTimestamp: bigint;

  readonly #context: FlowContext;
  readonly #requests: Sequence;
  readonly #responses: Sequence;
  #pending: PendingAcks | undefined;
  /** A read whose number of responses is not known for want of the MTU. */
  #openRead: { psn: number; length: number } | undefined;
  #refusal: 'NAK' | 'RNR_NAK' | undefined;
  #episode: Episode | undefined;
  /** The PSN behind the last request, new or sent again. */
  #next = 0;
  #acked = 0;

  /** @internal */
  constructor(context: FlowContext, view: PacketView, timestamp: bigint) {
    this.#context = context;
    this.src = view.src;
    this.dst = view.dst;
    this.srcPort = view.srcPort;
    this.destQp = view.destQp;
    this.firstTimestamp = timestamp;
    this.lastTimestamp = timestamp;
    const sequence = () => ({
      isStarted: false,
      due: 0,
      high: 0,
      taken: new PsnRanges(),
      told: new PsnRanges(),
      assembler: new Assembler(context.keepPayload),
    });
    this.#requests = sequence();
    this.#responses = sequence();
  }

  /** The queue pair that sends, as far as its own traffic has told; undefined before. */
  get srcQp(): number | undefined {
    return this.peer?.destQp ?? this.datagramSource;
  }
  /** @internal The source queue pair of a datagram flow. */
  datagramSource: number | undefined;

  /** @internal Takes a packet of this flow. */
  add(view: PacketView, time: number): void {
    const { info } = view;
    this.packets++;
    this.payloadBytes += view.payloadLength;
    this.#addCongestion(view, info, time);
    if (info.transport === Transport.CNP) return;
    this.transport ??= info.transport;
    if (info.transport === Transport.UD) {
      this.datagramSource = view.srcQp;
      // The PSNs of a sender count for all its destinations.
      this.#accept(this.#requests, view, info, time, true);
    } else if (info.isResponse) this.#addResponse(view, info, time);
    else if (info.operation !== 'MANUFACTURER') this.#addRequest(view, info, time);
  }

  #addCongestion(view: PacketView, info: OpcodeInfo, time: number): void {
    const { ecn } = view;
    if (ecn !== Ecn.NOT_ECT) this.ecnCapable++;
    if (ecn === Ecn.CE) {
      this.ecnMarks++;
      if (this.#context.hasListener) this.#emit(time, { type: 'ecnMark', psn: view.psn });
    }
    if (info.transport === Transport.CNP) {
      this.cnps++;
      if (this.#context.hasListener) this.#emit(time, { type: 'cnp' });
    }
  }

  #emit(time: number, body: FlowEventBody): void {
    this.#context.emit(this, time, body);
  }

  #addRequest(view: PacketView, info: OpcodeInfo, time: number): void {
    const requests = this.#requests;
    const { psn } = view;
    if (info.position === 'FIRST' || info.position === 'MIDDLE') this.learnMtu(view.payloadLength);
    beginAnew(requests, psn);
    if (!requests.isStarted) {
      this.#acked = psn;
      this.#openRead = undefined;
    }
    this.#closeRead(psn);
    const isAgain = this.#sequence(requests, 'requests', view, info, time);
    if (isAgain) this.#sendAgain(view, info, time);
    else this.#endEpisode(time);
    this.#next = psnAdd(psn, this.#span(view, info));
    if (!isAgain && info.transport !== Transport.UC && (view.ackReq || answered.has(info.operation))) {
      this.#pending ??= new PendingAcks();
      this.#pending.add(psn, time);
    }
  }

  /** Puts a packet in its place in the sequence. @returns whether it came again */
  #sequence(
    sequence: Sequence,
    of: 'requests' | 'responses',
    view: PacketView,
    info: OpcodeInfo,
    time: number,
  ): boolean {
    const { psn } = view;
    if (!sequence.isStarted) {
      sequence.isStarted = true;
      sequence.due = sequence.high = psn;
      sequence.assembler.abort();
    }
    const ahead = psnDistance(psn, sequence.high);
    const next = psnAdd(psn, of === 'requests' ? this.#span(view, info) : 1);
    if (ahead > 0) {
      this.gaps++;
      this.missing += ahead;
      if (this.#context.hasListener)
        this.#emit(time, { type: 'gap', of, expected: sequence.high, psn, missing: ahead });
      // Nobody sends again what an unreliable connection has lost.
      if (info.transport === Transport.UC) {
        sequence.due = psn;
        sequence.assembler.abort();
      }
    }
    if (ahead >= 0) sequence.high = next;
    else {
      this.retransmissions++;
      if (this.#context.hasListener) this.#emit(time, { type: 'retransmission', of, psn });
      // It was lost before the capture, which has passed over it; or a read is asked for anew, behind what is complete.
      const behind = psnDistance(psn, sequence.due);
      const isPassed = behind < 0 && info.transport !== Transport.UC && !sequence.taken.has(psn);
      if (isPassed || (behind > 0 && of === 'responses' && isStart(info))) {
        sequence.due = psn;
        sequence.assembler.abort();
      }
    }
    if (psn === sequence.due) {
      sequence.due = next;
      this.#accept(sequence, view, info, time, sequence.taken.add(psn, next));
    } else if (psnDistance(psn, sequence.due) > 0) this.outOfOrder++;
    return ahead < 0;
  }

  #accept(sequence: Sequence, view: PacketView, info: OpcodeInfo, time: number, isNew: boolean): void {
    const { payloadLength } = view;
    if (payloadLength > 0 && isNew) {
      this.goodBytes += payloadLength;
      this.goodput.add(time, payloadLength);
    }
    // The message of a read is the data, which is on its way back.
    if (info.operation === 'RDMA_READ' && !info.isResponse) return;
    const message = sequence.assembler.add(view, info, time);
    if (message === undefined) return;
    const { start, ...rest } = message;
    const isDatagram = info.transport === Transport.UD;
    if (!isDatagram && !sequence.told.add(message.psn, psnAdd(message.psn, message.packets))) return;
    this.messages++;
    if (!this.#context.hasListener) return;
    this.#emit(time, { type: 'message', ...rest, duration: time - start });
  }

  /** How many PSNs a request takes: one, but those of all its responses for a read. */
  #span(view: PacketView, info: OpcodeInfo): number {
    if (info.operation !== 'RDMA_READ') return 1;
    const length = view.dmaLen!;
    if (this.mtu !== undefined) return Math.max(1, Math.ceil(length / this.mtu));
    if (length > mtus.at(-1)!) this.#openRead = { psn: view.psn, length };
    return 1;
  }

  /** The next request tells how many PSNs a read took, where the MTU was not known. */
  #closeRead(psn: number): void {
    const read = this.#openRead;
    if (read === undefined || !this.#requests.isStarted) return;
    const span = psnDistance(psn, read.psn);
    const mtu = mtus.find((size) => Math.ceil(read.length / size) === span);
    if (mtu !== undefined) this.#advanceRead(span);
  }

  #advanceRead(span: number): void {
    const requests = this.#requests;
    const { psn } = this.#openRead!;
    this.#openRead = undefined;
    const end = psnAdd(psn, span);
    if (requests.high !== psnAdd(psn, 1)) return;
    if (requests.due === requests.high) {
      requests.due = end;
      requests.taken.add(requests.high, end);
    }
    requests.high = end;
  }

  /** @internal The size of a packet that is not the last of its message. */
  learnMtu(size: number): void {
    if (this.mtu === size || !mtus.includes(size)) return;
    this.mtu = size;
    if (this.#openRead !== undefined) this.#advanceRead(Math.ceil(this.#openRead.length / size));
  }

  #sendAgain(view: PacketView, info: OpcodeInfo, time: number): void {
    const { psn } = view;
    this.#pending?.forgetFrom(psn);
    if (this.#episode === undefined || psnDistance(psn, this.#next) < 0) {
      this.#endEpisode(time);
      this.goBackNs++;
      this.#episode = { trigger: this.#refusal ?? 'TIMEOUT', psn, packets: 0, bytes: 0, start: time };
      this.#refusal = undefined;
    }
    this.#episode.packets++;
    this.#episode.bytes += view.payloadLength;
    if (psnDistance(psnAdd(psn, this.#span(view, info)), this.#requests.high) >= 0) this.#endEpisode(time);
  }

  #endEpisode(time: number): void {
    if (this.#episode === undefined) return;
    const { start, ...rest } = this.#episode;
    this.#episode = undefined;
    if (this.#context.hasListener) this.#emit(time, { type: 'goBackN', ...rest, duration: time - start });
  }

  #addResponse(view: PacketView, info: OpcodeInfo, time: number): void {
    const { psn } = view;
    const { peer } = this;
    if (info.operation === 'RDMA_READ') {
      if (info.position === 'FIRST' || info.position === 'MIDDLE') peer?.learnMtu(view.payloadLength);
      this.#addReadResponse(view, info, time);
    }
    const syndrome = view.syndrome === undefined ? undefined : decodeSyndrome(view.syndrome);
    if (syndrome === undefined || syndrome.kind === 'ACK') {
      if (info.operation === 'ACKNOWLEDGE') this.acks++;
      peer?.acknowledged(psn, time);
    } else if (syndrome.kind === 'RNR_NAK') {
      this.rnrNaks++;
      peer?.refused(psn, time, 'RNR_NAK');
      if (this.#context.hasListener) this.#emit(time, { type: 'rnrNak', psn, timerMs: syndrome.timerMs });
    } else if (syndrome.kind === 'NAK') {
      this.naks++;
      if (syndrome.code === NakCode.PSN_SEQUENCE_ERROR) {
        this.sequenceNaks++;
        peer?.refused(psn, time, 'NAK');
      }
      if (this.#context.hasListener) this.#emit(time, { type: 'nak', psn, code: syndrome.code });
    }
  }

  #addReadResponse(view: PacketView, info: OpcodeInfo, time: number): void {
    const responses = this.#responses;
    beginAnew(responses, view.psn);
    // PSNs between two reads belong to other requests.
    const isBehindAll = responses.due === responses.high && !responses.assembler.isActive;
    if (isBehindAll && isStart(info) && psnDistance(view.psn, responses.high) > 0) responses.isStarted = false;
    this.#sequence(responses, 'responses', view, info, time);
  }

  /** @internal A request of this flow, and all before it, has been answered. */
  acknowledged(psn: number, time: number): void {
    this.#pending?.acknowledge(psn, time, this.ackLatency);
    const next = psnAdd(psn, 1);
    const requests = this.#requests;
    if (psnDistance(next, this.#acked) > 0) this.#acked = next;
    // The receiver has what we have not seen: the capture has lost it, or the receiver does not go back.
    if (psnDistance(next, requests.due) > 0 && psnDistance(next, requests.high) <= 0) {
      requests.due = next;
      requests.assembler.abort();
    }
  }

  /** @internal A request of this flow must be sent again; those before it are answered. */
  refused(psn: number, time: number, kind: 'NAK' | 'RNR_NAK'): void {
    this.acknowledged(psnAdd(psn, -1), time);
    // What is refused after an RNR NAK is a consequence of it.
    this.#refusal ??= kind;
  }

  /** @internal Whether a response with this PSN can answer a request of this flow. */
  couldAnswer(psn: number): boolean {
    const { isStarted, high } = this.#requests;
    const end = this.#openRead === undefined ? high : psnAdd(high, Math.ceil(this.#openRead.length / mtus.at(-1)!));
    return isStarted && psnDistance(psn, this.#acked) >= -1 && psnDistance(psn, end) < 0;
  }
}

function isStart({ position }: OpcodeInfo): boolean {
  return position === 'FIRST' || position === 'ONLY';
}

function beginAnew(sequence: Sequence, psn: number): void {
  if (Math.abs(psnDistance(psn, sequence.high)) <= WINDOW) return;
  sequence.isStarted = false;
  sequence.taken.clear();
  sequence.told.clear();
}
