/** A packet in one line, as tcpdump would show it, and as an object for JSON. */

import { instance } from '../args.ts';
import { hashAddresses, isSame } from './addresses.ts';
import { Ecn } from './lower.ts';
import { decodeSyndrome, NakCode } from './syndrome.ts';
import { PacketView } from './view.ts';

const nakNames = Object.fromEntries(Object.entries(NakCode).map(([name, code]) => [code, name]));

/** A syndrome in words: `'ACK, 8 credits'`. */
function syndromeText(syndrome: number): string {
  const taken = decodeSyndrome(syndrome);
  switch (taken.kind) {
    case 'ACK':
      return taken.credits === undefined ? 'ACK' : `ACK, ${taken.credits} credits`;
    case 'RNR_NAK':
      return `RNR NAK, ${taken.timerMs} ms`;
    case 'NAK':
      return `NAK, ${nakNames[taken.code] ?? `reserved code ${taken.code}`}`;
    default:
      return `reserved syndrome ${taken.syndrome}`;
  }
}

const syndromes = Array.from({ length: 256 }, (_, syndrome) => syndromeText(syndrome));
const hex24 = (value: number) => value.toString(16).padStart(6, '0');

/** A packet for JSON. Fields that it does not have are absent. */
export interface PacketSummary {
  /** Sender: an address, or a GID for RoCE v1. */
  src: string;
  /** Receiver. */
  dst: string;
  /** The opcode's C name without `IBV_OPCODE_`. */
  opcode: string;
  /** Queue pair that receives. */
  destQp: number;
  /** Packet sequence number. */
  psn: number;
  /** Bytes of payload. */
  length: number;
  /** UDP source port; absent for RoCE v1. */
  srcPort?: number;
  /** Whether an acknowledgement is asked for; absent where it is not. */
  ackReq?: true;
  /** Whether a solicited event is asked for; absent where it is not. */
  se?: true;
  /** Queue pair that sends, of a datagram. */
  srcQp?: number;
  /** Remote address, with 0x. */
  va?: string;
  /** Remote key. */
  rkey?: number;
  /** Bytes of the message. */
  dmaLen?: number;
  /** What the syndrome says, in words. */
  syndrome?: string;
  /** Message sequence number. */
  msn?: number;
  /** The ECN bits of the network header. */
  ecn: number;
  /** The DSCP of the network header. */
  dscp: number;
  /** Whether the ICRC is right; absent where the capture cut it off. */
  icrcOk?: boolean;
}

/**
 * Describes a packet for JSON.
 *
 * @param view - a loaded view
 * @param icrcOk - whether the ICRC is right, if known already. Default: it is computed
 */
export function summarizePacket(view: PacketView, icrcOk?: boolean): PacketSummary {
  const { srcQp, va, syndrome } = instance(view, 'view', PacketView);
  const summary: PacketSummary = {
    src: view.src,
    dst: view.dst,
    opcode: view.info.name,
    destQp: view.destQp,
    psn: view.psn,
    length: view.payloadLength,
    ecn: view.ecn,
    dscp: view.dscp,
  };
  if (view.network !== 'grh') summary.srcPort = view.srcPort;
  if (view.ackReq) summary.ackReq = true;
  if (view.se) summary.se = true;
  if (srcQp !== undefined) summary.srcQp = srcQp;
  if (va !== undefined) {
    summary.va = `0x${va.toString(16)}`;
    summary.rkey = view.rkey!;
    summary.dmaLen = view.dmaLen!;
  }
  if (syndrome !== undefined) {
    summary.syndrome = syndromes[syndrome]!;
    summary.msn = view.msn!;
  }
  const isRight = icrcOk ?? view.icrcOk;
  if (isRight !== undefined) summary.icrcOk = isRight;
  return summary;
}

/** What a line begins with repeats in a capture: so many beginnings are kept as text, and of so many routes. */
const KEPT = 4096;

/** A way between two addresses, and how the lines of its packets begin: by opcode and queue pair. */
interface Route {
  network: PacketView['network'];
  addresses: Uint8Array;
  text: string;
  beginnings: Map<number, string>;
  json: Map<number, JsonLine>;
}

/** What lines of JSON share: how they begin, and what stands behind the PSN; of one flow that seldom changes. */
interface JsonLine {
  beginning: string;
  payloadLength: number;
  ecn: number;
  dscp: number;
  srcPort: number;
  /** `',"length":1024,"ecn":2,"dscp":26,"srcPort":49152'` */
  middle: string;
}

/**
 * Describes packets in a line each: who, what, PSN, and whatever is out of the ordinary. Made for hundreds of thousands
 * a second.
 */
export class PacketLines {
  // By a hash of the addresses.
  readonly #routes = new Map<number, Route[]>();
  #size = 0;

  /**
   * Describes a packet.
   *
   * @param view - a loaded view
   * @param icrcOk - whether the ICRC is right, if known already. Default: it is computed
   * @returns such as `'10.0.0.1 > 10.0.0.2 QP 0x000011 RC_RDMA_WRITE_ONLY psn 1000 len 18 va 0x7f0012345000 rkey 0xabcd
   *   dmalen 18 ackreq'`. Last come `ECN CE`, `BECN` and `BAD ICRC`
   */
  describe(view: PacketView, icrcOk: boolean | undefined = instance(view, 'view', PacketView).icrcOk): string {
    let line = `${this.#beginning(view)}${view.psn} len ${view.payloadLength}`;
    const { va, syndrome, srcQp } = view;
    if (va !== undefined) line += ` va 0x${va.toString(16)} rkey 0x${view.rkey!.toString(16)} dmalen ${view.dmaLen}`;
    if (syndrome !== undefined) line += ` msn ${view.msn} ${syndromes[syndrome]}`;
    if (srcQp !== undefined) line += ` from QP 0x${hex24(srcQp)}`;
    if (view.ackReq) line += ' ackreq';
    if (view.se) line += ' solicited';
    if (view.ecn === Ecn.CE) line += ' ECN CE';
    if (view.becn) line += ' BECN';
    if (icrcOk === false) line += ' BAD ICRC';
    return line;
  }

  /**
   * The text of JSON of what {@link summarizePacket} gives, many times as fast.
   *
   * @param view - a loaded view
   * @param icrcOk - whether the ICRC is right, if known already. Default: it is computed
   * @param before - members of the object that come first, such as `'"type":"packet"'`
   */
  json(
    view: PacketView,
    icrcOk: boolean | undefined = instance(view, 'view', PacketView).icrcOk,
    before: string = '',
  ): string {
    const line = this.#jsonLine(view);
    const { payloadLength, ecn, dscp, srcPort } = view;
    if (payloadLength !== line.payloadLength || ecn !== line.ecn || dscp !== line.dscp || srcPort !== line.srcPort) {
      const port = view.network === 'grh' ? '' : `,"srcPort":${srcPort}`;
      const middle = [`,"length":${payloadLength},"ecn":${ecn},"dscp":${dscp}`, port].join('');
      Object.assign(line, { payloadLength, ecn, dscp, srcPort, middle });
    }
    // Few pieces: each one is an object, and is copied on its own in the end.
    let text = `{${before}${before === '' ? line.beginning.slice(1) : line.beginning}${view.psn}${line.middle}`;
    if (view.ackReq) text += ',"ackReq":true';
    if (view.se) text += ',"se":true';
    const { srcQp, va, syndrome } = view;
    if (srcQp !== undefined) text += `,"srcQp":${srcQp}`;
    if (va !== undefined) text += `,"va":"0x${va.toString(16)}","rkey":${view.rkey},"dmaLen":${view.dmaLen}`;
    if (syndrome !== undefined) text += `,"syndrome":"${syndromes[syndrome]}","msn":${view.msn}`;
    if (icrcOk === undefined) return `${text}}`;
    return text + (icrcOk ? ',"icrcOk":true}' : ',"icrcOk":false}');
  }

  #jsonLine(view: PacketView): JsonLine {
    const { json } = this.#route(view);
    const key = view.destQp * 256 + view.opcode;
    let line = json.get(key);
    if (line === undefined) {
      line = newJsonLine(view);
      this.#count();
      json.set(key, line);
    }
    return line;
  }

  /** `'10.0.0.1 > 10.0.0.2 QP 0x000011 RC_RDMA_WRITE_ONLY psn '` */
  #beginning(view: PacketView): string {
    const { text, beginnings } = this.#route(view);
    const key = view.destQp * 256 + view.opcode;
    let begun = beginnings.get(key);
    if (begun === undefined) {
      begun = beginning(text, view);
      this.#count();
      beginnings.set(key, begun);
    }
    return begun;
  }

  #route(view: PacketView): Route {
    const { bytes, addressesAt: at, network } = view;
    const length = network === 4 ? 8 : 32;
    const hash = hashAddresses(bytes, at, length);
    const known = this.#routes.get(hash);
    for (const route of known ?? []) {
      if (route.network === network && isSame(route.addresses, 0, bytes, at, length)) return route;
    }
    this.#count();
    const addresses = Uint8Array.prototype.slice.call(bytes, at, at + length);
    const text = `${view.src} > ${view.dst}`;
    const route: Route = { network, addresses, text, beginnings: new Map(), json: new Map() };
    this.#routes.set(hash, [...(this.#routes.get(hash) ?? []), route]);
    return route;
  }

  #count(): void {
    if (this.#size++ < KEPT) return;
    this.#routes.clear();
    this.#size = 0;
  }
}

// In one piece: a text that was put together is copied piece by piece with each line.
const beginning = (route: string, view: PacketView) =>
  [route, ' QP 0x', hex24(view.destQp), ' ', view.info.name, ' psn '].join('');

const newJsonLine = ({ src, dst, info, destQp }: PacketView): JsonLine => ({
  beginning: [`,"src":"${src}","dst":"${dst}","opcode":"${info.name}","destQp":`, destQp, ',"psn":'].join(''),
  ...{ payloadLength: -1, ecn: 0, dscp: 0, srcPort: 0, middle: '' },
});
