/** A view of captures by connection: messages, losses, refusals, latencies, congestion. */

import { instance, integer, readOptions, typeError } from '../args.ts';
import { hashAddresses, isSame } from './addresses.ts';
import type { CaptureRecord } from './capture-record.ts';
import type { FlowEvent, FlowEventBody } from './flow-events.ts';
import { Flow, type FlowContext } from './flow-state.ts';
import { PacketView } from './view.ts';

/** How to track flows. */
export interface FlowOptions {
  /** Called with each event, within `add`. */
  onEvent?: (event: FlowEvent) => void;
  /** Messages of up to this many bytes are given with their payload. Default 0: none. */
  keepPayload?: number;
  /** Flows that are kept; above it a quarter of them, idle the longest, is forgotten. Default 4096, each some 10 KiB. */
  maxFlows?: number;
}

/** A flow with what finds it again. */
interface Entry {
  readonly flow: Flow;
  readonly network: PacketView['network'];
  readonly addresses: Uint8Array;
  readonly hash: number;
  readonly datagramSource: number;
  /** Number of its last packet. */
  last: number;
}

/**
 * Follows the flows of a capture in bounded memory. Feed it with packets in the order of time, then look at
 * {@link FlowTracker.flows}; events come to `onEvent`, or from {@link FlowTracker.follow}.
 *
 * It sees what the capture sees: packets lost behind the place of the capture show up as retransmissions, not as gaps.
 */
export class FlowTracker {
  readonly #entries = new Map<number, Entry[]>();
  /** By a hash of both addresses, to look for the way back. */
  readonly #byHosts = new Map<number, Set<Entry>>();
  readonly #maxFlows: number;
  readonly #context: FlowContext;
  #listener: ((event: FlowEvent) => void) | undefined;
  #size = 0;
  #packets = 0;
  #origin: bigint | undefined;

  /** @param options - what to keep, and who listens */
  constructor(options: FlowOptions = {}) {
    const given = readOptions(options, 'options', ['onEvent', 'keepPayload', 'maxFlows']);
    const { onEvent, keepPayload = 0, maxFlows = 4096 } = given;
    this.#listener = onEvent;
    this.#maxFlows = integer(maxFlows, 'maxFlows', 1, 2 ** 24);
    const tracker = this;
    this.#context = {
      keepPayload: integer(keepPayload, 'keepPayload', 0, 2 ** 31),
      emit: (flow, time, body) => tracker.#emit(flow, time, body),
      get hasListener() {
        return tracker.#listener !== undefined;
      },
    };
  }

  /** Packets that were added. */
  get packets(): number {
    return this.#packets;
  }

  /** Time of the first packet, in nanoseconds since 1970: where each `goodput` starts. */
  get origin(): bigint | undefined {
    return this.#origin;
  }

  /** The flows, as they are now. */
  get flows(): Flow[] {
    return [...this.#entries.values()].flat().map(({ flow }) => flow);
  }

  #emit(flow: Flow, time: number, body: FlowEventBody): void {
    this.#listener?.({ flow, timestamp: this.#origin! + BigInt(Math.round(time)), ...body } as FlowEvent);
  }

  /**
   * Takes the next packet.
   *
   * @param timestamp - nanoseconds since 1970
   * @param view - a view that has loaded the packet; nothing of it is kept
   */
  add(timestamp: bigint, view: PacketView): void {
    if (typeof timestamp !== 'bigint') throw typeError('timestamp', 'a bigint', timestamp);
    instance(view, 'view', PacketView);
    this.#origin ??= timestamp;
    const time = Number(timestamp - this.#origin);
    const entry = this.#find(view, timestamp);
    const { flow } = entry;
    entry.last = this.#packets++;
    flow.lastTimestamp = timestamp;
    if (flow.peer === undefined && view.info.isResponse) this.#findPeer(entry, view);
    flow.add(view, time);
  }

  /**
   * Reads a capture, and gives the events one by one. `onEvent`, if any, is not called for these.
   *
   * @param records - what {@link readCapture} gives
   */
  async *follow(records: AsyncIterable<CaptureRecord>): AsyncGenerator<FlowEvent, void, undefined> {
    const listener = this.#listener;
    const events: FlowEvent[] = [];
    const view = new PacketView();
    try {
      for await (const record of records) {
        this.#listener = (event) => events.push(event);
        if (record.load(view)) this.add(record.timestamp, view);
        yield* events.splice(0);
      }
    } finally {
      this.#listener = listener;
    }
  }

  #find(view: PacketView, timestamp: bigint): Entry {
    const { bytes, addressesAt, network, destQp } = view;
    const length = network === 4 ? 8 : 32;
    const datagramSource = view.srcQp ?? -1;
    const hosts = hashAddresses(bytes, addressesAt, length);
    const hash = Math.imul(Math.imul(hosts ^ destQp, 0x9e3779b1) ^ datagramSource, 0x85ebca6b);
    const bucket = this.#entries.get(hash);
    for (const entry of bucket ?? []) {
      if (
        entry.flow.destQp === destQp &&
        entry.datagramSource === datagramSource &&
        entry.network === network &&
        isSame(entry.addresses, 0, bytes, addressesAt, length)
      ) {
        return entry;
      }
    }
    if (this.#size >= this.#maxFlows) this.#evict(timestamp);
    const flow = new Flow(this.#context, view, timestamp);
    const addresses = Uint8Array.prototype.slice.call(bytes, addressesAt, addressesAt + length);
    const entry = { flow, network, addresses, hash, datagramSource, last: 0 };
    this.#size++;
    append(this.#entries, hash, entry);
    const others = this.#byHosts.get(hosts);
    if (others === undefined) this.#byHosts.set(hosts, new Set([entry]));
    else others.add(entry);
    return entry;
  }

  /** The flow whose requests this one answers: a response has the PSN of its request. Two candidates are too many. */
  #findPeer(entry: Entry, view: PacketView): void {
    const { addresses, network } = entry;
    const half = addresses.length / 2;
    const swapped = Buffer.concat([addresses.subarray(half), addresses.subarray(0, half)]);
    let found: Flow | undefined;
    for (const other of this.#byHosts.get(hashAddresses(swapped, 0, swapped.length)) ?? []) {
      if (other.network !== network || other.flow.peer !== undefined) continue;
      if (!isSame(other.addresses, 0, swapped, 0, swapped.length) || !other.flow.couldAnswer(view.psn)) continue;
      if (found !== undefined) return;
      found = other.flow;
    }
    if (found === undefined) return;
    entry.flow.peer = found;
    found.peer = entry.flow;
  }

  #evict(timestamp: bigint): void {
    const all = [...this.#entries.values()].flat().sort((a, b) => a.last - b.last);
    for (const entry of all.slice(0, Math.ceil(all.length / 4))) {
      const { flow, hash, addresses } = entry;
      const bucket = this.#entries.get(hash)!.filter((other) => other !== entry);
      if (bucket.length === 0) this.#entries.delete(hash);
      else this.#entries.set(hash, bucket);
      const hosts = hashAddresses(addresses, 0, addresses.length);
      const others = this.#byHosts.get(hosts)!;
      others.delete(entry);
      if (others.size === 0) this.#byHosts.delete(hosts);
      this.#size--;
      if (flow.peer !== undefined) flow.peer.peer = undefined;
      this.#emit(flow, Number(timestamp - this.#origin!), { type: 'evicted' });
    }
  }
}

function append(map: Map<number, Entry[]>, key: number, entry: Entry): void {
  const list = map.get(key);
  if (list === undefined) map.set(key, [entry]);
  else list.push(entry);
}
