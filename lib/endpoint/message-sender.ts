import { stateError } from '../args.ts';
import { RdmaProtocolError } from '../errors.ts';
import { AccessFlags } from '../native/constants.gen.ts';
import type { MemoryRegion, MemorySlice } from '../verbs/memory-region.ts';
import type { ProtectionDomain } from '../verbs/protection-domain.ts';
import type { Resource } from '../verbs/resource.ts';
import type { Using } from '../verbs/work-queue.ts';
import type { Endpoint } from './endpoint.ts';
import { ANNOUNCE_BYTES, FrameType, HEADER_BYTES, type Hello, writeAnnouncement } from './message-frames.ts';
import type { MessageRing, Slot } from './message-memory.ts';
import { byteLengthOf } from './plain-bytes.ts';

/** A message to be sent: bytes that are copied into a buffer, or memory that the peer reads. @internal */
export interface Outgoing {
  length: number;
  parts: readonly Uint8Array[];
  /** Memory of the caller's that is not copied and not registered. */
  memory: Uint8Array | undefined;
  /** Registered memory of the caller's: it is held until it is copied, or read. */
  slice: MemorySlice | undefined;
  /** The peer has it, or will not get it. */
  settle: (error?: Error) => void;
  /** The bytes may be changed. */
  copied: () => void;
  /** Whether the messages behind it make no sense without it. */
  isVital: boolean;
  /** Registered for this message alone. */
  region?: MemoryRegion;
}

/** The messages that go out, in order: as many at a time as the peer has buffers for. @internal */
export class MessageSender implements Using {
  readonly #endpoint: Endpoint;
  readonly #ring: MessageRing;
  readonly #post: (slot: Slot, type: number, length: number) => Promise<void>;
  readonly #fail: (error: Error) => void;
  readonly #queue: Outgoing[] = [];
  // Under way: in a buffer of the peer that it has not said to be free again; announced and not yet read.
  #untaken = 0;
  readonly #announced: Outgoing[] = [];
  #credits = 0;
  #unsettled = 0;
  // Whose regions may be in use.
  readonly #domains = new Set<ProtectionDomain>();
  #registering = false;
  #failed: Error | undefined;
  #idle: (() => void)[] = [];
  /** Messages up to that long are copied. */
  maxCopied = 0;
  /** Messages up to that long are taken by the peer. */
  maxBytes = 0;

  constructor(
    endpoint: Endpoint,
    ring: MessageRing,
    post: (slot: Slot, type: number, length: number) => Promise<void>,
    fail: (error: Error) => void,
  ) {
    this.#endpoint = endpoint;
    this.#ring = ring;
    this.#post = post;
    this.#fail = fail;
  }

  /** The peer has said what it takes. */
  open(peer: Hello): void {
    this.#credits = peer.buffers;
    this.maxCopied = Math.min(peer.bufferBytes, this.#ring.limits.bufferBytes) - HEADER_BYTES;
    this.maxBytes = peer.maxMessageBytes;
  }

  push(outgoing: Outgoing): void {
    if (this.#failed) {
      outgoing.settle(this.#failed);
      return;
    }
    this.#unsettled++;
    this.#queue.push(outgoing);
    const pd = outgoing.slice?.region.pd;
    if (pd !== undefined && !this.#domains.has(pd)) {
      this.#domains.add(pd);
      pd.queues.add(this);
    }
    this.#pump();
  }

  /** Messages that wait, or that the peer reads, and use a region. */
  uses(resource: Resource): number {
    if (this.#endpoint.qp.closed) return 0;
    const using = ({ slice }: Outgoing) => slice?.region === resource;
    return this.#queue.filter(using).length + this.#announced.filter(using).length;
  }

  /** Takes back what is not yet on its way; returns whether it was not. */
  withdraw(outgoing: Outgoing): boolean {
    const at = this.#queue.indexOf(outgoing);
    // The first of the queue may be just being registered.
    if (at < 0 || (at === 0 && this.#registering)) return false;
    this.#queue.splice(at, 1);
    this.#done();
    this.#pump();
    return true;
  }

  /** The peer says that buffers of it are free again, and that it has read messages. */
  returned(buffers: number, reads: number): void {
    if (buffers > this.#untaken) {
      throw new RdmaProtocolError('CREDITS', `it gives ${buffers} buffers back, of ${this.#untaken} that it has`);
    }
    if (reads > this.#announced.length) {
      throw new RdmaProtocolError('CREDITS', `it has read ${reads} messages, of ${this.#announced.length} announced`);
    }
    this.#untaken -= buffers;
    this.#credits += buffers;
    for (const outgoing of this.#announced.splice(0, reads)) this.#settle(outgoing);
    this.#pump();
  }

  /** Resolves when all that was pushed has settled. */
  idle(): Promise<void> {
    if (this.#unsettled === 0) return Promise.resolve();
    return new Promise((resolve) => this.#idle.push(resolve));
  }

  /** Nothing more goes out. What the peer may still be reading settles with `closed()`. */
  fail(error: Error): void {
    this.#failed = error;
    const kept = this.#registering ? this.#queue.splice(0, 1) : [];
    for (const outgoing of this.#queue.splice(0)) this.#settle(outgoing, error);
    this.#queue.push(...kept);
  }

  /** The queue pair is gone. */
  closed(error: Error): void {
    for (const outgoing of this.#announced.splice(0)) this.#settle(outgoing, error);
  }

  #pump(): void {
    while (this.#queue.length > 0 && this.#credits > 0 && this.#ring.sends.length > 0 && !this.#failed) {
      const outgoing = this.#queue[0] as Outgoing;
      if (outgoing.memory !== undefined && outgoing.region === undefined) {
        void this.#register(outgoing, outgoing.memory);
        return;
      }
      this.#queue.shift();
      const slot = this.#ring.sends.at(-1) as Slot;
      const isAnnounced = outgoing.parts.length === 0;
      try {
        if (isAnnounced) announcement(outgoing, slot);
        else copy(outgoing, slot);
      } catch (error) {
        // Its memory has gone while it waited, which is no concern of the others, unless they belong together.
        if (outgoing.isVital) this.#fail(error as Error);
        this.#settle(outgoing, error as Error);
        continue;
      }
      this.#ring.sends.pop();
      this.#credits--;
      this.#untaken++;
      if (isAnnounced) this.#announce(outgoing, slot);
      else this.#send(outgoing, slot);
    }
  }

  #send(outgoing: Outgoing, slot: Slot): void {
    const sent = this.#post(slot, FrameType.DATA, outgoing.length);
    outgoing.copied();
    sent.then(
      () => {
        this.#ring.sends.push(slot);
        this.#settle(outgoing);
        this.#pump();
      },
      (error: Error) => {
        this.#fail(error);
        this.#settle(outgoing, this.#failed ?? error);
      },
    );
  }

  #announce(outgoing: Outgoing, slot: Slot): void {
    this.#announced.push(outgoing);
    this.#post(slot, FrameType.ANNOUNCE, ANNOUNCE_BYTES).then(() => {
      this.#ring.sends.push(slot);
      this.#pump();
    }, this.#fail);
  }

  // For one message: the key ends with it.
  async #register(outgoing: Outgoing, memory: Uint8Array): Promise<void> {
    if (this.#registering) return;
    this.#registering = true;
    let refusal: Error | undefined;
    try {
      requireWhole(byteLengthOf(memory), outgoing.length);
      outgoing.region = await this.#ring.pd.regMr(memory, { access: AccessFlags.REMOTE_READ });
    } catch (error) {
      refusal = error as Error;
    }
    this.#registering = false;
    refusal ??= this.#failed;
    if (refusal) {
      this.#queue.shift();
      this.#settle(outgoing, refusal);
    }
    this.#pump();
  }

  #settle(outgoing: Outgoing, error?: Error): void {
    outgoing.region?.close();
    outgoing.settle(error);
    this.#done();
  }

  #done(): void {
    if (--this.#unsettled > 0) return;
    for (const pd of this.#domains) pd.queues.delete(this);
    this.#domains.clear();
    for (const resolve of this.#idle.splice(0)) resolve();
  }
}

function copy({ slice, parts, length }: Outgoing, slot: Slot): void {
  slice?.region.requireOpen();
  requireWhole(
    parts.reduce((sum, part) => sum + byteLengthOf(part), 0),
    length,
  );
  let at = HEADER_BYTES;
  for (const part of parts) {
    slot.bytes.set(part, at);
    at += byteLengthOf(part);
  }
}

function announcement({ slice, region, length }: Outgoing, slot: Slot): void {
  const from = region ?? (slice as MemorySlice).region;
  from.requireOpen();
  const addr = from.addr + BigInt(slice?.offset ?? 0);
  writeAnnouncement(slot.bytes.subarray(HEADER_BYTES), { addr, rkey: from.rkey, length });
}

function requireWhole(length: number, expected: number): void {
  if (length === expected) return;
  throw stateError(`The memory of a message was taken away while it waited: ${length} bytes are left of ${expected}`);
}
