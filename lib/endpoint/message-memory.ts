import { instance, integer, readOptions, stateError, valueError } from '../args.ts';
import type { QpCap } from '../native/native.ts';
import { sinkAccess } from '../verbs/iwarp.ts';
import type { MemoryRegion, MemorySlice } from '../verbs/memory-region.ts';
import { ProtectionDomain } from '../verbs/protection-domain.ts';
import type { Endpoint } from './endpoint.ts';
import { BYE_BYTES, HEADER_BYTES } from './message-frames.ts';

/** What an endpoint that carries messages is made with. */
export interface MessageEndpointOptions {
  /** The protection domain, and with it the device. */
  pd: ProtectionDomain;
  /**
   * Bytes of each buffer, 16 of them for a header: longer messages do not go through buffers. A multiple of 64, from 256
   * to 1 MiB. Default 16,384.
   */
  bufferBytes?: number;
  /** Messages that may be under way in each direction, or wait to be released: 2 to 4096. Default 32. */
  buffers?: number;
  /** The longest message that is taken, in bytes: up to 2^31. Default 16 MiB. */
  maxMessageBytes?: number;
  /**
   * Memory for messages that do not fit a buffer and are not yet released, in bytes: a peer that sends more waits. It is
   * registered as it is needed, in pieces of 64 KiB or more. At least `maxMessageBytes`; default four times that.
   */
  receiveBytes?: number;
}

/** What `connectTcp()`, `listenTcp()`, `connect()` and `request.accept()` take, to be spread into their options. */
export interface MessageEndpoint {
  /** The protection domain. */
  pd: ProtectionDomain;
  /** Capacities for all that may be under way. */
  cap: Partial<QpCap>;
  /** Registers the buffers of a connection, and says which receives to post before the peer can send. */
  recvs: (endpoint: Endpoint) => readonly MemorySlice[];
}

/** Control frames that may be on their way without an answer. @internal */
export const CONTROLS = 4;

// One HELLO, one END and one BYE in a connection: they are not counted.
const UNCOUNTED = 3;

/** RDMA reads that a connection has under way at most. @internal */
export const MAX_READS = 16;

// Frames that are no messages.
const CONTROL_BYTES = HEADER_BYTES + BYE_BYTES;

interface Limits {
  bufferBytes: number;
  buffers: number;
  maxMessageBytes: number;
  receiveBytes: number;
}

const rings = new WeakMap<Endpoint, MessageRing>();

/**
 * What an endpoint is to be made with so that it can carry messages, a stream or calls: `connectTcp({ host, port,
 * ...messageEndpoint({ pd }) })`. For each connection it registers `2 * buffers * bufferBytes` and some kilobytes, which
 * is 1 MiB by default, and takes them back when the connection ends.
 *
 * @throws TypeError or RangeError naming the option
 */
export function messageEndpoint(options: MessageEndpointOptions): MessageEndpoint {
  const known = ['pd', 'bufferBytes', 'buffers', 'maxMessageBytes', 'receiveBytes'] as const;
  const o = readOptions(options, 'options', known);
  const pd = instance(o.pd, 'options.pd', ProtectionDomain);
  pd.requireOpen();
  const bufferBytes = integer(o.bufferBytes ?? 16_384, 'options.bufferBytes', 256, 1 << 20);
  if (bufferBytes % 64 !== 0) throw valueError(`options.bufferBytes must be a multiple of 64, not ${bufferBytes}`);
  const buffers = integer(o.buffers ?? 32, 'options.buffers', 2, 4096);
  const maxMessageBytes = integer(o.maxMessageBytes ?? 1 << 24, 'options.maxMessageBytes', 1, 2 ** 31);
  const receiveBytes = integer(
    o.receiveBytes ?? 4 * maxMessageBytes,
    'options.receiveBytes',
    maxMessageBytes,
    Number.MAX_SAFE_INTEGER,
  );
  const limits = { bufferBytes, buffers, maxMessageBytes, receiveBytes };
  const frames = buffers + CONTROLS + UNCOUNTED;
  return {
    pd,
    // One more, for the read that asks whether the peer is still there.
    cap: { maxSendWr: frames + MAX_READS + 1, maxRecvWr: frames },
    recvs: (endpoint) => {
      const ring = new MessageRing(pd, limits);
      rings.set(endpoint, ring);
      // The receives of a connection that was given up are flushed, and nobody will come for their memory.
      queueMicrotask(() => void Promise.allSettled(endpoint.recvs).then(() => ring.abandon()));
      return ring.receives.map(({ slice }) => slice);
    },
  };
}

/** The memory of an endpoint, for who opens messages on it: once. @internal */
export function takeRing(endpoint: Endpoint): MessageRing {
  const ring = rings.get(endpoint);
  if (ring === undefined) {
    throw stateError('The endpoint cannot carry messages: it must be made with the options of messageEndpoint()');
  }
  ring.take();
  return ring;
}

/** A buffer for a frame. @internal */
export interface Slot {
  slice: MemorySlice;
  /** What is in it. */
  bytes: Buffer;
}

/** The buffers of one connection, in one registration. @internal */
export class MessageRing {
  readonly limits: Limits;
  readonly pd: ProtectionDomain;
  /** One for each receive. */
  readonly receives: readonly Slot[];
  /** For messages to be sent: those that are free. */
  readonly sends: Slot[];
  /** For control frames to be sent: those that are free. */
  readonly controls: Slot[];
  readonly #region: MemoryRegion;
  #taken = false;

  constructor(pd: ProtectionDomain, limits: Limits) {
    const { buffers, bufferBytes } = limits;
    const frames = buffers + CONTROLS + UNCOUNTED;
    const controls = CONTROLS + UNCOUNTED;
    this.pd = pd;
    this.limits = limits;
    this.#region = pd.allocSync((frames + buffers) * bufferBytes + controls * CONTROL_BYTES);
    const slices = (count: number, bytes: number, from: number) =>
      Array.from({ length: count }, (_, i) => {
        const slice = this.#region.slice(from + i * bytes, bytes);
        return { slice, bytes: slice.buffer };
      });
    this.receives = slices(frames, bufferBytes, 0);
    this.sends = slices(buffers, bufferBytes, frames * bufferBytes);
    this.controls = slices(controls, CONTROL_BYTES, (frames + buffers) * bufferBytes);
  }

  take(): void {
    if (this.#taken) throw stateError('The endpoint carries messages already');
    if (this.#region.closed) throw stateError('The endpoint has failed');
    this.#taken = true;
  }

  /** The connection was given up before anybody took it. */
  abandon(): void {
    if (!this.#taken) this.close();
  }

  /** No bytes, for a request without memory. */
  get nothing(): MemorySlice {
    return this.#region.slice(0, 0);
  }

  close(): void {
    this.#region.close();
  }
}

// Smaller messages share a size.
const MIN_LANDING = 64 * 1024;

/**
 * Memory that long messages are read into: regions of some sizes, kept for the next, all together within a limit. @internal
 */
export class Landing {
  readonly #pd: ProtectionDomain;
  readonly #maxMessageBytes: number;
  readonly #limit: number;
  readonly #free: MemoryRegion[] = [];
  readonly #out = new Set<MemoryRegion>();
  #bytes = 0;
  #wake: (() => void) | undefined;
  #closed = false;

  constructor(ring: MessageRing) {
    this.#pd = ring.pd;
    this.#maxMessageBytes = ring.limits.maxMessageBytes;
    this.#limit = Math.max(ring.limits.receiveBytes, this.#sizeFor(this.#maxMessageBytes));
  }

  /** Memory for a message; undefined when it was closed meanwhile. One call at a time. */
  async take(length: number): Promise<MemoryRegion | undefined> {
    const size = this.#sizeFor(length);
    while (!this.#closed) {
      const at = this.#free.findIndex((region) => region.length === size);
      if (at >= 0) {
        const [region] = this.#free.splice(at, 1) as [MemoryRegion];
        this.#out.add(region);
        return region;
      }
      // What is kept for messages of other sizes goes first.
      while (this.#bytes + size > this.#limit && this.#free.length > 0) this.#drop(this.#free.shift() as MemoryRegion);
      if (this.#bytes + size <= this.#limit) {
        this.#bytes += size;
        let region: MemoryRegion;
        try {
          region = await this.#pd.alloc(size, { access: sinkAccess(this.#pd.context) });
        } catch (error) {
          this.#bytes -= size;
          throw error;
        }
        this.#out.add(region);
        if (!this.#closed) return region;
        this.#out.delete(region);
        region.close();
        return undefined;
      }
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    return undefined;
  }

  give(region: MemoryRegion): void {
    if (!this.#out.delete(region)) return;
    if (this.#closed) region.close();
    else this.#free.push(region);
    this.#wake?.();
  }

  /** What is out goes when it is given back. */
  close(): void {
    this.#closed = true;
    for (const region of this.#free.splice(0)) region.close();
    this.#wake?.();
  }

  #drop(region: MemoryRegion): void {
    this.#bytes -= region.length;
    region.close();
  }

  // Powers of two, so that messages of about the same length share memory; the longest is as long as it may be.
  #sizeFor(length: number): number {
    const pages = Math.ceil(this.#maxMessageBytes / 4096) * 4096;
    return Math.min(Math.max(2 ** Math.ceil(Math.log2(length)), MIN_LANDING), Math.max(pages, MIN_LANDING));
  }
}
