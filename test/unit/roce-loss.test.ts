// Connections that go back N over a wire that loses packets before the capture, a thousand of them, made by a seeded
// generator: whatever was lost, the flows have each byte and each message once.
import { expect, it } from 'vitest';
import {
  encodePacket,
  encodeSyndrome,
  FlowTracker,
  Opcode,
  type PacketInit,
  PacketView,
} from '../../lib/roce/index.ts';
import { Random } from './roce-samples.ts';

const MTU = 256;
const WINDOW = 12;
const QP_A = 0x11;
const QP_B = 0x22;
const mac = { dst: '02:00:00:00:00:02', src: '02:00:00:00:00:01' };
const ACK = encodeSyndrome({ kind: 'ACK' });
const NAK = encodeSyndrome({ kind: 'NAK', code: 0 });

interface Request {
  kind: 'WRITE' | 'SEND' | 'READ' | 'ATOMIC';
  psn: number;
  packets: number;
  length: number;
}

/** A requester, a responder, and the wire between them. PSNs here do not wrap; on the wire they do. */
class Connection {
  readonly tracker = new FlowTracker();
  readonly requests: Request[] = [];
  readonly #view = new PacketView();
  readonly #random: Random;
  readonly #loss: number;
  #time = 1_700_000_000_000_000_000n;
  /** On its way back to the requester. */
  #responses: { psn: number; isPlain: boolean; isNak: boolean }[] = [];
  #unacknowledged: number;
  #next: number;
  #due: number;
  #hasRefused = false;
  readonly #end: number;

  constructor(random: Random) {
    this.#random = random;
    this.#loss = random.pick([1, 5, 20, 40]);
    const start = random.pick([1, 1000, 0xff_fff0]);
    const only = random.pick([undefined, 'WRITE', 'READ', 'ATOMIC'] as const);
    let psn = start;
    for (let i = 1 + random.below(12); i > 0; i--) {
      const kind = only ?? random.pick(['WRITE', 'SEND', 'READ', 'ATOMIC']);
      const length = kind === 'ATOMIC' ? 8 : 1 + random.below(6 * MTU);
      const packets = Math.ceil(length / MTU);
      this.requests.push({ kind, psn, packets, length });
      psn += packets;
    }
    this.#unacknowledged = this.#next = this.#due = start;
    this.#end = psn;
  }

  run(): void {
    while (this.#unacknowledged < this.#end) {
      while (this.#next < Math.min(this.#end, this.#unacknowledged + WINDOW)) {
        this.#request();
        while (this.#responses.length > 0 && this.#random.flag()) this.#complete();
      }
      while (this.#responses.length > 0) this.#complete();
      // What is still unanswered is sent again after a time-out.
      if (this.#next >= this.#unacknowledged + WINDOW || this.#next >= this.#end) this.#next = this.#unacknowledged;
    }
  }

  /** Whether the wire loses a packet, before the capture. */
  #isLost(): boolean {
    return this.#random.below(100) < this.#loss;
  }

  #capture(fromA: boolean, opcode: number, psn: number, rest: Omit<PacketInit, 'bth'> & { ackReq?: boolean }): void {
    const ipv4 = fromA ? { src: '10.0.0.1', dst: '10.0.0.2' } : { src: '10.0.0.2', dst: '10.0.0.1' };
    const { ackReq = false, ...headers } = rest;
    const bth = { opcode, psn: psn & 0xff_ffff, destQp: fromA ? QP_B : QP_A, ackReq };
    this.#view.load(encodePacket({ ethernet: mac, ipv4, ...headers, bth }));
    this.tracker.add(this.#time, this.#view);
    this.#time += 1000n;
  }

  #at(psn: number): Request {
    return this.requests.find((request) => psn < request.psn + request.packets)!;
  }

  /** Sends the request packet with the next PSN; the rest of a read in one. */
  #request(): void {
    const psn = this.#next;
    const request = this.#at(psn);
    const { kind, packets, length } = request;
    const i = psn - request.psn;
    this.#next = kind === 'READ' ? request.psn + packets : psn + 1;
    if (this.#isLost()) return;
    const payload = Buffer.alloc(Math.min(MTU, length - i * MTU));
    const ackReq = i === packets - 1;
    const place = packets === 1 ? 'ONLY' : i === 0 ? 'FIRST' : ackReq ? 'LAST' : 'MIDDLE';
    if (kind === 'READ') {
      const reth = { va: BigInt(i * MTU), rkey: 1, dmaLen: length - i * MTU };
      this.#capture(true, Opcode.RC_RDMA_READ_REQUEST, psn, { reth });
    } else if (kind === 'ATOMIC') {
      const atomicEth = { va: 0n, rkey: 1, swapDt: 1n, cmpDt: 0n };
      this.#capture(true, Opcode.RC_FETCH_ADD, psn, { atomicEth });
    } else if (kind === 'SEND') this.#capture(true, Opcode[`RC_SEND_${place}`], psn, { payload, ackReq });
    else {
      const reth = i === 0 ? { reth: { va: 0n, rkey: 1, dmaLen: length } } : {};
      this.#capture(true, Opcode[`RC_RDMA_WRITE_${place}`], psn, { payload, ackReq, ...reth });
    }
    this.#respond(psn, request, ackReq);
  }

  #respond(psn: number, request: Request, ackReq: boolean): void {
    if (psn > this.#due) {
      if (!this.#hasRefused) this.#answer(this.#due, Opcode.RC_ACKNOWLEDGE, { aeth: { syndrome: NAK, msn: 0 } });
      this.#hasRefused = true;
      return;
    }
    this.#hasRefused = false;
    const end = request.psn + request.packets;
    const isNew = psn === this.#due;
    if (isNew) this.#due = request.kind === 'READ' ? end : psn + 1;
    const aeth = { syndrome: ACK, msn: 0 };
    if (request.kind === 'ATOMIC')
      this.#answer(psn, Opcode.RC_ATOMIC_ACKNOWLEDGE, { aeth, atomicAckEth: { origRemDt: 0n } });
    else if (request.kind !== 'READ') {
      if (!isNew || ackReq) this.#answer(this.#due - 1, Opcode.RC_ACKNOWLEDGE, { aeth });
    } else {
      const from = psn;
      for (let at = from; at < end; at++) {
        const place = at === from ? (at === end - 1 ? 'ONLY' : 'FIRST') : at === end - 1 ? 'LAST' : 'MIDDLE';
        const payload = Buffer.alloc(Math.min(MTU, request.length - (at - request.psn) * MTU));
        const headers = place === 'MIDDLE' ? { payload } : { payload, aeth };
        this.#answer(at, Opcode[`RC_RDMA_READ_RESPONSE_${place}`], headers);
      }
    }
  }

  #answer(psn: number, opcode: number, headers: Omit<PacketInit, 'bth'>): void {
    if (this.#isLost()) return;
    this.#capture(false, opcode, psn, headers);
    const isPlain = opcode === Opcode.RC_ACKNOWLEDGE;
    this.#responses.push({ psn, isPlain, isNak: headers.aeth?.syndrome === NAK });
  }

  /** The requester takes a response. Behind what has not come yet of a read or an atomic, it asks for that again. */
  #complete(): void {
    const { psn, isPlain, isNak } = this.#responses.shift()!;
    const answered = isNak ? psn : psn + 1;
    if (answered <= this.#unacknowledged && !isNak) return;
    const open = this.requests.find(
      ({ kind, psn: first, packets }) => /READ|ATOMIC/.test(kind) && first + packets > this.#unacknowledged,
    );
    const wanted = Math.max(open?.psn ?? this.#end, this.#unacknowledged);
    const isMissing = isPlain ? answered > wanted : psn !== wanted;
    this.#unacknowledged = Math.max(this.#unacknowledged, isMissing ? Math.min(wanted, answered) : answered);
    if (isMissing || isNak) this.#next = this.#unacknowledged;
  }
}

it('each byte and each message counts once, whatever was lost before the capture', () => {
  for (let seed = 0; seed < 1000; seed++) {
    const connection = new Connection(new Random(seed));
    connection.run();
    const { tracker, requests } = connection;
    const sum = (kinds: string[], of: (request: Request) => number) =>
      requests.filter(({ kind }) => kinds.includes(kind)).reduce((total, request) => total + of(request), 0);
    const got = (qp: number) => {
      const flow = tracker.flows.find(({ destQp }) => destQp === qp);
      return { goodBytes: flow?.goodBytes ?? 0, messages: flow?.messages ?? 0 };
    };
    expect({ seed, ...got(QP_B) }).toEqual({
      seed,
      goodBytes: sum(['WRITE', 'SEND'], ({ length }) => length),
      messages: sum(['WRITE', 'SEND', 'ATOMIC'], () => 1),
    });
    expect({ seed, bytes: got(QP_A).goodBytes }).toEqual({ seed, bytes: sum(['READ'], ({ length }) => length) });
  }
});
