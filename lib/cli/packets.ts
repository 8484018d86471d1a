/** What `decode` and `capture` share: packets, or events, or only the flows, as lines or as JSON. */
import { open } from 'node:fs/promises';
import { setImmediate as turn } from 'node:timers/promises';
import { Option } from 'commander';
import { counted } from '../inspect.ts';
import {
  CaptureParser,
  type CaptureRecord,
  diagnoseFlow,
  type Flow,
  type FlowEvent,
  FlowTracker,
  NakCode,
  PacketLines,
  PacketView,
  Transport,
} from '../roce/index.ts';
import { colour, LineWriter, print, toJson } from './output.ts';

/** How long a signal waits while a file is read. */
const TURN_MS = 50;

/** Options of both. */
export interface PacketFlags {
  show: 'packets' | 'events' | 'flows';
  qp?: number;
  count?: number;
  json?: true;
}

/** The option `--show`. */
export const showOption = (): Option =>
  new Option('--show <what>', 'a line for each packet, or for each event of a flow, or only the flows')
    .choices(['packets', 'events', 'flows'])
    .default('packets');

/** What was seen of a capture. */
export interface Totals {
  packets: number;
  /** Frames that are no RoCE. */
  others: number;
  /** RoCE that cannot be read. */
  malformed: number;
  badIcrc: number | null;
}

/** Reads a capture and shows it, then its flows. */
export async function showPackets(
  source: string | AsyncIterable<Uint8Array>,
  flags: PacketFlags,
  signal: AbortSignal,
): Promise<Totals> {
  const shower = new Shower(flags);
  const { lines, totals } = shower;
  // Behind Ctrl-C a reader of the output that does not read is not waited for.
  const flush = () => lines.flush(signal.aborted ? AbortSignal.timeout(1000) : signal);
  const parser = new CaptureParser();
  /** Shows what has come in whole. @returns false when it was enough */
  const show = async () => {
    // Record by record: a turn of the event loop's queue for each would be a fifth of the work.
    for (let record = parser.next(); record !== undefined; record = parser.next()) {
      shower.add(record);
      if (lines.isFull) await flush();
      if (totals.packets === flags.count) return false;
    }
    return true;
  };
  const readFile = async (path: string) => {
    const file = await open(path);
    try {
      if (!(await file.stat()).isFile()) {
        await readStream(file.createReadStream({ autoClose: false }));
        return;
      }
      let turned = performance.now();
      while (parser.pullSync(file.fd)) {
        if (!(await show())) return;
        // Nothing is waited for, so signals get a turn of their own.
        if (performance.now() - turned < TURN_MS) continue;
        await turn();
        if (signal.aborted) return;
        turned = performance.now();
      }
    } finally {
      await file.close();
    }
    parser.end();
  };
  const readStream = async (stream: AsyncIterable<Uint8Array>) => {
    for await (const chunk of stream) {
      parser.push(chunk);
      if (!(await show())) return;
      // It is shown as it comes: behind each chunk, not behind each packet. It ends by itself when it is told to, and what
      // it held till then counts.
      await flush();
    }
    parser.end();
  };
  let failure: unknown;
  await (typeof source === 'string' ? readFile(source) : readStream(source)).catch((error: unknown) => {
    failure = error;
  });
  // What was read before damage, or before Ctrl-C, is worth showing.
  const hasRead = totals.packets + totals.others + totals.malformed > 0;
  if ((hasRead || failure === undefined) && !process.stdout.errored) {
    await flush();
    shower.summary();
  }
  if (failure !== undefined) throw failure;
  return totals;
}

class Shower {
  readonly lines = new LineWriter();
  readonly totals: Totals;
  readonly #flags: PacketFlags;
  readonly #view = new PacketView();
  readonly #text = new PacketLines();
  readonly #tracker: FlowTracker;
  #origin: bigint | undefined;
  #secondText = '0';
  /** The second that `#secondText` names; at first, none. */
  #base = -(1n << 64n);

  constructor(flags: PacketFlags) {
    this.#flags = flags;
    // Checked where packets are shown, and not where only flows are.
    this.totals = { packets: 0, others: 0, malformed: 0, badIcrc: flags.show === 'packets' ? 0 : null };
    const onEvent = (event: FlowEvent) => this.#event(event);
    this.#tracker = new FlowTracker(flags.show === 'events' ? { onEvent } : {});
  }

  add(record: CaptureRecord): void {
    const view = this.#view;
    const { show, qp, json } = this.#flags;
    if (!record.load(view)) {
      this.#unreadable(record);
      return;
    }
    if (qp !== undefined && view.destQp !== qp && view.srcQp !== qp) return;
    this.totals.packets++;
    const { timestamp } = record;
    this.#tracker.add(timestamp, view);
    if (show !== 'packets') return;
    const { icrcOk } = view;
    if (icrcOk === false) this.totals.badIcrc = (this.totals.badIcrc ?? 0) + 1;
    if (json) this.lines.add(this.#text.json(view, icrcOk, this.#stamp(timestamp)));
    else this.lines.add(`${this.#time(timestamp)} ${this.#text.describe(view, icrcOk)}`);
  }

  #unreadable(record: CaptureRecord): void {
    const error = this.#view.error()!;
    if (error.code === 'ERR_ROCE_NOT_ROCE') {
      this.totals.others++;
      return;
    }
    this.totals.malformed++;
    if (this.#flags.show !== 'packets') return;
    const { code, offset, message } = error;
    const { timestamp } = record;
    if (this.#flags.json) this.lines.add(toJson({ type: 'malformed', time: timestamp, code, offset, message }));
    else this.lines.add(`${this.#time(timestamp)} cannot be read: ${message}`);
  }

  /** Seconds since the first packet. */
  #time(timestamp: bigint): string {
    this.#origin ??= timestamp;
    // What was merged is not always in order.
    if (timestamp < this.#origin) return `-${this.#time(2n * this.#origin - timestamp)}`;
    const digits = this.#digits(timestamp, this.#origin);
    return `${this.#secondText}.${digits}`;
  }

  /** What JSON of a packet begins with: nanoseconds since 1970. */
  #stamp(timestamp: bigint): string {
    // An interface of a pcapng file may have an offset.
    if (timestamp < 0n) return `"type":"packet","time":"${timestamp}"`;
    const digits = this.#digits(timestamp, 0n);
    // Before 2001 there is a digit less.
    return `"type":"packet","time":"${this.#secondText === '0' ? Number(digits) : this.#secondText + digits}"`;
  }

  /** The nine digits below a second since then; thousands of packets share what stands before them, `#secondText`. */
  #digits(timestamp: bigint, since: bigint): string {
    let nanoseconds = Number(timestamp - this.#base);
    if (nanoseconds < 0 || nanoseconds >= 1e9) {
      const seconds = (timestamp - since) / 1_000_000_000n;
      this.#base = since + seconds * 1_000_000_000n;
      this.#secondText = String(seconds);
      nanoseconds = Number(timestamp - this.#base);
    }
    // A leading one keeps the zeros; as a whole number it is text sooner.
    return String((1e9 + nanoseconds) | 0).slice(1);
  }

  #event(event: FlowEvent): void {
    const { flow, timestamp, ...rest } = event;
    if (this.#flags.json) {
      const { payload: _, type, ...body } = rest as Record<string, unknown>;
      this.lines.add(toJson({ type, time: timestamp, src: flow.src, dst: flow.dst, destQp: flow.destQp, ...body }));
    } else {
      this.lines.add(
        `${this.#time(timestamp)} ${flow.src} > ${flow.dst} QP ${qpText(flow.destQp)} ${eventText(event)}`,
      );
    }
  }

  summary(): void {
    const { json } = this.#flags;
    // Those of an acknowledgement belong to the requests that it acknowledges.
    const flows = this.#tracker.flows.sort((a, b) => (a.firstTimestamp < b.firstTimestamp ? -1 : 1));
    if (json) {
      for (const flow of flows) print(toJson({ type: 'flow', ...flowObject(flow) }));
      print(toJson({ type: 'total', flows: flows.length, ...this.totals }));
      return;
    }
    const { packets, others, malformed, badIcrc } = this.totals;
    for (const flow of flows) print(flowText(flow));
    const icrc = badIcrc ? `, ${badIcrc} with a bad ICRC` : '';
    const seen = `${counted(packets, 'RoCE packet')} in ${counted(flows.length, 'flow')}${icrc}`;
    print(`${seen}; ${counted(others, 'other')}, ${malformed} cannot be read`);
  }
}

const qpText = (qp: number | undefined) => (qp === undefined ? '?' : `0x${qp.toString(16).padStart(6, '0')}`);
const nakName = (code: number) => Object.entries(NakCode).find(([, value]) => value === code)?.[0] ?? `code ${code}`;

function eventText(event: FlowEvent): string {
  switch (event.type) {
    case 'message':
      return `${event.operation} of ${event.length} bytes in ${event.packets} packets from psn ${event.psn}`;
    case 'gap':
      return `lost ${event.missing} of the ${event.of}: psn ${event.psn} where ${event.expected} was due`;
    case 'retransmission':
      return `again psn ${event.psn} (${event.of})`;
    case 'nak':
      return `NAK ${nakName(event.code)} at psn ${event.psn}`;
    case 'rnrNak':
      return `RNR NAK at psn ${event.psn}, wait ${event.timerMs} ms`;
    case 'ecnMark':
      return `ECN mark at psn ${event.psn}`;
    case 'cnp':
      return 'CNP';
    case 'goBackN':
      return `go-back-N by ${event.trigger}: ${event.packets} packets, ${event.bytes} bytes again from psn ${event.psn}`;
    default:
      return 'forgotten: too many flows';
  }
}

const transportNames = Object.fromEntries(Object.entries(Transport).map(([name, value]) => [value, name]));
const transportName = ({ transport }: Flow) => (transport === undefined ? 'CNP' : transportNames[transport]!);
const seconds = ({ firstTimestamp, lastTimestamp }: Flow) => Number(lastTimestamp - firstTimestamp) / 1e9;

function flowObject(flow: Flow): object {
  const { ackLatency } = flow;
  const latency = { count: ackLatency.count, min: ackLatency.min, mean: ackLatency.mean, max: ackLatency.max };
  return {
    ...{ src: flow.src, dst: flow.dst, srcPort: flow.srcPort, srcQp: flow.srcQp, destQp: flow.destQp },
    ...{ transport: transportName(flow), mtu: flow.mtu, seconds: seconds(flow) },
    ...{ packets: flow.packets, messages: flow.messages, payloadBytes: flow.payloadBytes, goodBytes: flow.goodBytes },
    ...{ missing: flow.missing, retransmissions: flow.retransmissions, outOfOrder: flow.outOfOrder },
    ...{ goBackNs: flow.goBackNs, acks: flow.acks, naks: flow.naks, sequenceNaks: flow.sequenceNaks },
    ...{ rnrNaks: flow.rnrNaks, ecnMarks: flow.ecnMarks, cnps: flow.cnps },
    ackLatencyNs: { ...latency, p50: ackLatency.percentile(50), p99: ackLatency.percentile(99) },
    findings: diagnoseFlow(flow),
  };
}

function flowText(flow: Flow): string {
  const { ackLatency, goodBytes, payloadBytes } = flow;
  const time = seconds(flow);
  const parts = [counted(flow.packets, 'packet'), counted(flow.messages, 'message')];
  if (payloadBytes > 0) parts.push(`${goodBytes} of ${payloadBytes} bytes good`);
  if (goodBytes > 0 && time > 0) parts.push(`${((goodBytes * 8) / time / 1e6).toFixed(1)} Mb/s`);
  if (flow.acks > 0) parts.push(counted(flow.acks, 'acknowledgement'));
  if (ackLatency.count > 0) {
    const us = (percent: number) => (ackLatency.percentile(percent) / 1000).toFixed(1);
    parts.push(`acknowledged after ${us(50)} us (median), ${us(99)} us (99 %)`);
  }
  const route = `${flow.src} > ${flow.dst} QP ${qpText(flow.destQp)}`;
  const from = flow.srcQp === undefined ? '' : ` from QP ${qpText(flow.srcQp)}`;
  const head = `${colour('bold', route)}${from} ${transportName(flow)}: ${parts.join(', ')}`;
  const findings = diagnoseFlow(flow).map(
    ({ level, text }) => `  ${level === 'warning' ? colour('yellow', 'warning') : colour('grey', 'note')}: ${text}`,
  );
  return [head, ...findings].join('\n');
}
