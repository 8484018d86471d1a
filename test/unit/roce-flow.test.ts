import { beforeEach, describe, expect, it } from 'vitest';
import {
  diagnoseFlow,
  Ecn,
  encodePacket,
  encodeSyndrome,
  type FlowEvent,
  FlowTracker,
  NakCode,
  Opcode,
  type PacketInit,
  PacketView,
  readCapture,
} from '../../lib/roce/index.ts';

const a = {
  ethernet: { dst: '02:00:00:00:00:02', src: '02:00:00:00:00:01' },
  ipv4: { src: '10.0.0.1', dst: '10.0.0.2' },
};
const b = {
  ethernet: { dst: '02:00:00:00:00:01', src: '02:00:00:00:00:02' },
  ipv4: { src: '10.0.0.2', dst: '10.0.0.1' },
};
const QP_A = 0x11;
const QP_B = 0x22;
const MTU = 1024;
const start = 1_700_000_000_000_000_000n;

let events: FlowEvent[];
let tracker: FlowTracker;
let now: bigint;
const view = new PacketView();

function reset(options: object = {}): void {
  events = [];
  now = start;
  tracker = new FlowTracker({ onEvent: (event) => events.push(event), ...options });
}
beforeEach(() => reset());

/** A packet, a microsecond after the one before. */
function send(packet: PacketInit): void {
  const bytes = encodePacket(packet);
  expect(view.load(bytes)).toBe(true);
  tracker.add(now, view);
  now += 1000n;
}

type Rest = Partial<Omit<PacketInit, 'bth'>> & { bth?: Partial<PacketInit['bth']> };
const request = (opcode: number, psn: number, rest: Rest = {}) =>
  send({ ...a, ...rest, bth: { opcode, psn: psn & 0xffffff, destQp: QP_B, ...rest.bth } });
const response = (opcode: number, psn: number, syndrome: number | undefined, payload = Buffer.alloc(0)) =>
  send({
    ...b,
    bth: { opcode, psn: psn & 0xffffff, destQp: QP_A },
    payload,
    ...(syndrome !== undefined && { aeth: { syndrome, msn: 0 } }),
  });
const ack = (psn: number) => response(Opcode.RC_ACKNOWLEDGE, psn, encodeSyndrome({ kind: 'ACK' }));
const nak = (psn: number, code: NakCode = NakCode.PSN_SEQUENCE_ERROR) =>
  response(Opcode.RC_ACKNOWLEDGE, psn, encodeSyndrome({ kind: 'NAK', code }));

/** Packet `i` of a write of `count` packets whose first has this PSN. */
function write(psn: number, count: number, i: number): void {
  const payload = Buffer.alloc(MTU, psn + i);
  const reth = { va: 0x1000n, rkey: 7, dmaLen: count * MTU };
  if (i === 0) request(Opcode.RC_RDMA_WRITE_FIRST, psn, { reth, payload });
  else if (i < count - 1) request(Opcode.RC_RDMA_WRITE_MIDDLE, psn + i, { payload });
  else request(Opcode.RC_RDMA_WRITE_LAST, psn + i, { payload, bth: { ackReq: true } });
}
const range = (from: number, to: number) => Array.from({ length: to - from }, (_, i) => from + i);
const types = () => events.map(({ type }) => type);
const of = (destQp: number) => tracker.flows.find((flow) => flow.destQp === destQp)!;

describe('messages', () => {
  it('are put together from their packets, across the end of the PSNs', () => {
    for (const i of range(0, 4)) write(0xfffffe, 4, i);
    ack(0xfffffe + 3);
    expect(events).toMatchObject([
      {
        type: 'message',
        operation: 'RDMA_WRITE',
        psn: 0xfffffe,
        packets: 4,
        length: 4 * MTU,
        duration: 3000,
        va: 0x1000n,
        rkey: 7,
        payload: undefined,
        timestamp: start + 3000n,
      },
    ]);
    expect(of(QP_B)).toMatchObject({
      messages: 1,
      goodBytes: 4 * MTU,
      gaps: 0,
      mtu: MTU,
      src: '10.0.0.1',
      srcQp: QP_A,
    });
    expect(of(QP_A)).toMatchObject({ acks: 1, goodBytes: 0, peer: of(QP_B), srcQp: QP_B });
  });

  it('come with their payload up to the length that is kept', () => {
    reset({ keepPayload: 2 * MTU });
    for (const i of range(0, 2)) write(1, 2, i);
    for (const i of range(0, 3)) write(3, 3, i);
    const payload = Buffer.concat([Buffer.alloc(MTU, 1), Buffer.alloc(MTU, 2)]);
    expect(events).toMatchObject([{ payload }, { payload: undefined, length: 3 * MTU }]);
  });

  it('of which the capture has not seen the start are passed over', () => {
    write(1, 4, 2);
    write(1, 4, 3);
    write(5, 2, 0);
    write(5, 2, 1);
    expect(events).toMatchObject([{ type: 'message', psn: 5 }]);
  });

  it('of a read are told by the way back, and the requests behind it follow without a gap', () => {
    const reth = { va: 1n, rkey: 2, dmaLen: 3 * MTU - 100 };
    request(Opcode.RC_RDMA_READ_REQUEST, 10, { reth });
    request(Opcode.RC_RDMA_READ_REQUEST, 13, { reth });
    const syndrome = encodeSyndrome({ kind: 'ACK' });
    for (const psn of [10, 13]) {
      response(Opcode.RC_RDMA_READ_RESPONSE_FIRST, psn, syndrome, Buffer.alloc(MTU));
      response(Opcode.RC_RDMA_READ_RESPONSE_MIDDLE, psn + 1, undefined, Buffer.alloc(MTU));
      response(Opcode.RC_RDMA_READ_RESPONSE_LAST, psn + 2, syndrome, Buffer.alloc(MTU - 100));
    }
    request(Opcode.RC_SEND_ONLY, 16);
    expect(types()).toEqual(['message', 'message', 'message']);
    expect(events[0]).toMatchObject({ operation: 'RDMA_READ', length: 3 * MTU - 100, psn: 10, flow: of(QP_A) });
    expect(of(QP_A)).toMatchObject({ messages: 2, goodBytes: 2 * (3 * MTU - 100), gaps: 0, peer: of(QP_B) });
    expect(of(QP_B)).toMatchObject({ gaps: 0, mtu: MTU });
    expect(of(QP_B).ackLatency.count).toBe(2);
  });

  it('of atomics and datagrams count too', () => {
    const atomicEth = { va: 8n, rkey: 1, swapDt: 1n, cmpDt: 0n };
    request(Opcode.RC_FETCH_ADD, 5, { atomicEth });
    for (const srcQp of [1, 2])
      request(Opcode.UD_SEND_ONLY, 900 * srcQp, { deth: { qkey: 1, srcQp }, payload: Buffer.alloc(9) });
    request(Opcode.UD_SEND_ONLY, 5, { deth: { qkey: 1, srcQp: 1 }, payload: Buffer.alloc(9) });
    expect(events).toMatchObject([
      { operation: 'ATOMIC' },
      { operation: 'SEND' },
      { operation: 'SEND' },
      { operation: 'SEND' },
    ]);
    expect(tracker.flows.map(({ srcQp, packets, gaps }) => [srcQp, packets, gaps])).toEqual([
      [undefined, 1, 0],
      [1, 2, 0],
      [2, 1, 0],
    ]);
  });
});

describe('losses', () => {
  it('show as a gap, a NAK, and the sender going back; each byte counts once', () => {
    for (const i of [0, 1, 3, 4]) write(100, 8, i);
    nak(102);
    for (const i of range(2, 8)) write(100, 8, i);
    ack(107);
    expect(types()).toEqual(['gap', 'nak', 'retransmission', 'retransmission', 'retransmission', 'goBackN', 'message']);
    expect(events[0]).toMatchObject({ of: 'requests', expected: 102, psn: 103, missing: 1, flow: of(QP_B) });
    expect(events[1]).toMatchObject({ psn: 102, code: NakCode.PSN_SEQUENCE_ERROR, flow: of(QP_A) });
    expect(events[5]).toMatchObject({ trigger: 'NAK', psn: 102, packets: 3, bytes: 3 * MTU, duration: 2000 });
    expect(of(QP_B)).toMatchObject({
      packets: 10,
      payloadBytes: 10 * MTU,
      goodBytes: 8 * MTU,
      retransmissions: 3,
      outOfOrder: 2,
      missing: 1,
      goBackNs: 1,
    });
    expect(of(QP_A)).toMatchObject({ naks: 1, acks: 1 });
  });

  it('of acknowledgements show as a time-out, and bytes that came twice count once', () => {
    for (const i of range(0, 2)) write(1, 2, i);
    for (const i of range(0, 2)) write(1, 2, i);
    ack(2);
    write(3, 2, 0);
    expect(types()).toEqual(['message', 'retransmission', 'retransmission', 'goBackN']);
    expect(events.at(-1)).toMatchObject({ trigger: 'TIMEOUT', packets: 2 });
    expect(of(QP_B).goodBytes).toBe(3 * MTU);
    // Which of the two was answered?
    expect(of(QP_B).ackLatency.count).toBe(0);
  });

  it('that hit the capture alone leave one message incomplete', () => {
    for (const i of [0, 2, 3]) write(1, 4, i);
    ack(4);
    for (const i of range(0, 2)) write(5, 2, i);
    expect(types()).toEqual(['gap', 'message']);
    expect(of(QP_B)).toMatchObject({ messages: 1, goodBytes: 3 * MTU });
  });

  it('on an unreliable connection leave the message incomplete, and nobody waits', () => {
    const payload = Buffer.alloc(MTU);
    request(Opcode.UC_SEND_FIRST, 1, { payload });
    request(Opcode.UC_SEND_LAST, 3, { payload });
    request(Opcode.UC_SEND_ONLY, 4, { payload });
    expect(types()).toEqual(['gap', 'message']);
    expect(of(QP_B)).toMatchObject({ messages: 1, outOfOrder: 0, missing: 1 });
  });

  it('of a read response show as a gap there, and the read is sent again from there', () => {
    const syndrome = encodeSyndrome({ kind: 'ACK' });
    request(Opcode.RC_RDMA_READ_REQUEST, 1, { reth: { va: 0n, rkey: 2, dmaLen: 3 * MTU } });
    response(Opcode.RC_RDMA_READ_RESPONSE_FIRST, 1, syndrome, Buffer.alloc(MTU));
    response(Opcode.RC_RDMA_READ_RESPONSE_LAST, 3, syndrome, Buffer.alloc(MTU));
    request(Opcode.RC_RDMA_READ_REQUEST, 2, { reth: { va: 1024n, rkey: 2, dmaLen: 2 * MTU } });
    response(Opcode.RC_RDMA_READ_RESPONSE_FIRST, 2, syndrome, Buffer.alloc(MTU));
    response(Opcode.RC_RDMA_READ_RESPONSE_LAST, 3, syndrome, Buffer.alloc(MTU));
    expect(types()).toEqual(['gap', 'retransmission', 'goBackN', 'retransmission', 'retransmission', 'message']);
    expect(events[0]).toMatchObject({ of: 'responses', expected: 2, missing: 1, flow: of(QP_A) });
    expect(of(QP_A)).toMatchObject({ goodBytes: 3 * MTU, outOfOrder: 1, retransmissions: 2 });
    expect(of(QP_B)).toMatchObject({ retransmissions: 1, goBackNs: 1 });
  });

  it('are no losses when a queue pair begins anew', () => {
    write(1, 2, 0);
    for (const i of range(0, 2)) write(5_000_000, 2, i);
    expect(types()).toEqual(['message']);
    expect(of(QP_B)).toMatchObject({ gaps: 0, retransmissions: 0 });
  });
});

describe('refusals', () => {
  it('are told apart: receiver not ready with its timer, and NAK codes', () => {
    write(1, 2, 0);
    write(1, 2, 1);
    response(Opcode.RC_ACKNOWLEDGE, 1, encodeSyndrome({ kind: 'RNR_NAK', timer: 12 }));
    nak(1);
    write(1, 2, 0);
    write(1, 2, 1);
    nak(2, NakCode.REMOTE_ACCESS_ERROR);
    expect(events.find(({ type }) => type === 'rnrNak')).toMatchObject({ psn: 1, timerMs: 0.64, flow: of(QP_A) });
    expect(events.find(({ type }) => type === 'goBackN')).toMatchObject({ trigger: 'RNR_NAK', psn: 1, packets: 2 });
    expect(events.at(-1)).toMatchObject({ type: 'nak', psn: 2, code: NakCode.REMOTE_ACCESS_ERROR });
    expect(of(QP_A)).toMatchObject({ rnrNaks: 1, naks: 2 });
  });
});

describe('acknowledgements', () => {
  it('have a latency from each packet that asks for one, also when one covers several', () => {
    for (const i of range(0, 2)) write(1, 2, i);
    for (const i of range(0, 2)) write(3, 2, i);
    now += 10_000n;
    ack(4);
    const { ackLatency } = of(QP_B);
    expect(ackLatency).toMatchObject({ count: 2, min: 11_000, max: 13_000, mean: 12_000 });
    expect(ackLatency.percentile(50)).toBeGreaterThanOrEqual(11_000);
    expect(ackLatency.percentile(50)).toBeLessThan(11_000 * 1.2);
    expect(ackLatency.percentile(100)).toBe(13_000);
  });

  it('have none where the two directions have different clocks, which is said', () => {
    write(1, 2, 0);
    write(1, 2, 1);
    now += 1_796_042_378_000_000_000n;
    ack(2);
    expect(of(QP_B).ackLatency).toMatchObject({ ofTwoClocks: 1, count: 0, max: 0 });
    expect(diagnoseFlow(of(QP_B))).toContainEqual({ level: 'warning', text: expect.stringContaining('two clocks') });
  });

  it('find the way back among several connections, once there is one candidate', () => {
    for (const [destQp, psn] of [
      [QP_B, 5],
      [0x33, 700],
    ] as const) {
      request(Opcode.RC_SEND_ONLY, psn, { bth: { destQp, ackReq: true } });
    }
    ack(5);
    expect(of(QP_A).peer).toBe(of(QP_B));
    expect(of(0x33).peer).toBeUndefined();
  });

  it('do not guess when two connections have the same PSNs', () => {
    for (const destQp of [QP_B, 0x33]) request(Opcode.RC_SEND_ONLY, 5, { bth: { destQp, ackReq: true } });
    ack(5);
    expect(of(QP_A).peer).toBeUndefined();
  });
});

describe('congestion', () => {
  it('shows as marks, and as notifications to the sender', () => {
    const marked = { ipv4: { ...a.ipv4, ecn: Ecn.CE } };
    request(Opcode.RC_SEND_ONLY, 1, { ipv4: { ...a.ipv4, ecn: Ecn.ECT_0 } });
    request(Opcode.RC_SEND_ONLY, 2, marked);
    send({ ...b, bth: { opcode: Opcode.CNP, destQp: QP_A, psn: 0, becn: true } });
    expect(events.slice(-3)).toMatchObject([
      { type: 'ecnMark', psn: 2 },
      { type: 'message' },
      { type: 'cnp', flow: of(QP_A) },
    ]);
    expect(of(QP_B)).toMatchObject({ ecnCapable: 2, ecnMarks: 1, cnps: 0 });
    expect(of(QP_A)).toMatchObject({ cnps: 1, transport: undefined });
  });
});

describe('goodput', () => {
  it('is bytes over time, in intervals that double when time goes on', () => {
    for (const i of range(0, 2)) write(1, 2, i);
    now = start + 3_000_000n;
    for (const i of range(0, 2)) write(3, 2, i);
    expect(of(QP_B).goodput).toMatchObject({ interval: 1_000_000, bytes: [2 * MTU, 0, 0, 2 * MTU] });
    now = start + 1_000_000_000n;
    for (const i of range(0, 2)) write(5, 2, i);
    const { interval, bytes } = of(QP_B).goodput;
    expect(interval).toBe(2_000_000);
    expect([bytes.length, bytes[0], bytes[1], bytes[500]]).toEqual([501, 2 * MTU, 2 * MTU, 2 * MTU]);
  });

  it('bears clocks that jump', () => {
    write(1, 2, 0);
    now = 1n;
    write(1, 2, 1);
    now = start + 10n ** 18n;
    write(3, 2, 0);
    const sum = of(QP_B).goodput.bytes.reduce((total, bytes) => total + bytes, 0);
    expect(sum).toBe(3 * MTU);
    expect(of(QP_B).goodput.bytes.length).toBeLessThanOrEqual(512);
  });
});

describe('memory', () => {
  it('is bounded: above maxFlows the flows that were idle the longest are forgotten', () => {
    reset({ maxFlows: 8 });
    for (const destQp of range(0, 8)) request(Opcode.RC_SEND_ONLY, 1, { bth: { destQp } });
    request(Opcode.RC_SEND_ONLY, 2, { bth: { destQp: 0 } });
    request(Opcode.RC_SEND_ONLY, 1, { bth: { destQp: 100 } });
    expect(events.filter(({ type }) => type === 'evicted').map(({ flow }) => flow.destQp)).toEqual([1, 2]);
    expect(tracker.flows.map(({ destQp }) => destQp)).toEqual([0, 3, 4, 5, 6, 7, 100]);
    for (const destQp of range(0, 1000)) request(Opcode.RC_SEND_ONLY, 1, { bth: { destQp } });
    expect(tracker.flows.length).toBeLessThanOrEqual(8);
  });

  it('options are checked', () => {
    expect(() => new FlowTracker({ maxFlows: 0 })).toThrow(/maxFlows/);
    expect(() => new FlowTracker({ keepPayload: -1 })).toThrow(/keepPayload/);
    expect(() => new FlowTracker({ maxflows: 3 } as object)).toThrow(/did you mean 'maxFlows'/);
  });
});

describe('captures of foreign tools', () => {
  const fixture = (name: string) => new URL(`../fixtures/${name}`, import.meta.url);
  const summary = () =>
    tracker.flows
      .filter(({ messages, transport }) => messages > 0 && transport !== 0x60)
      .map(({ messages, goodBytes, missing, peer }) => [messages, goodBytes, missing, peer !== undefined]);

  it('have the messages that the tools were told to send', async () => {
    for await (const event of tracker.follow(readCapture(fixture('roce-small.pcap')))) events.push(event);
    expect(summary().slice(0, 2)).toEqual([
      // ibv_rc_pingpong -s 3001 -n 10, both ways; rxe sends one message twice.
      [10, 10 * 3001, 0, true],
      [10, 10 * 3001, 0, true],
    ]);
    expect(summary()).toContainEqual([5, 5 * 2051, 0, true]);
    expect(summary()).toContainEqual([5, 5 * 4001, 0, true]);
    expect(summary()).toContainEqual([10, 10 * 77, 0, true]);
  });

  it('have them also where packets were lost', async () => {
    const seen: FlowEvent[] = [];
    for await (const event of tracker.follow(readCapture(fixture('roce-lossy.pcapng')))) seen.push(event);
    // ib_write_bw -s 4096 -n 20, and ib_read_bw -s 4096 -n 10; netem loses some packets each way.
    expect(summary().map(([, bytes]) => bytes)).toEqual([20 * 4096, 10 * 4096]);
    expect(seen.map(({ type }) => type)).toEqual(expect.arrayContaining(['gap', 'retransmission', 'goBackN']));
    expect(events).toEqual([]);
  });
});
