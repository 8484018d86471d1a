import { RdmaProtocolError } from '../errors.ts';
import { RemoteRegion } from '../verbs/remote-region.ts';
import type { Endpoint } from './endpoint.ts';
import {
  type Announcement,
  FrameType,
  HEADER_BYTES,
  HELLO_BYTES,
  type Hello,
  readAnnouncement,
  readBye,
  readHeader,
  readHello,
  writeBye,
  writeHeader,
  writeHello,
} from './message-frames.ts';
import { CONTROLS, type MessageRing, type Slot } from './message-memory.ts';
import type { Received } from './operations.ts';

/** What is spoken over messages: both sides must mean the same. @internal */
export const Kind = { MESSAGES: 0, STREAM: 1, CALLS: 2 } as const;

const kindNames = ['messages', 'a stream', 'calls'];

/** Who is told of what comes. What they throw fails the connection. @internal */
export interface LinkEvents {
  hello: (peer: Hello) => void;
  /** The peer has buffers free again, and has read announced messages. */
  returned: (buffers: number, reads: number) => void;
  data: (slot: Slot, length: number) => void;
  announce: (slot: Slot, announced: Announcement) => void;
  end: () => void;
  bye: (code: number, text: string) => void;
  fail: (error: Error) => void;
}

// Control frames that are answered by one.
const ENOUGH = CONTROLS >> 1;

/** The frames of a connection, out and in: their numbers, and what each side owes the other. @internal */
export class MessageLink {
  readonly #endpoint: Endpoint;
  readonly #ring: MessageRing;
  readonly #kind: number;
  readonly #events: LinkEvents;
  #peer: Hello | undefined;
  // Frames of both directions.
  #sent = 0;
  #received = 0;
  // Control frames that the peer has buffers for.
  #controls = 0;
  // What the next frame tells the peer.
  #owedBuffers = 0;
  #owedControls = 0;
  #owedReads = 0;
  #stopped = false;
  #heard = false;
  #asking = false;

  constructor(endpoint: Endpoint, ring: MessageRing, kind: number, events: LinkEvents) {
    this.#endpoint = endpoint;
    this.#ring = ring;
    this.#kind = kind;
    this.#events = events;
    ring.receives.forEach((slot, i) => this.#receive(slot, endpoint.recvs[i] as Promise<Received>));
    if (!endpoint.listensFirst) this.#greet();
  }

  #greet(): void {
    const { buffers, bufferBytes, maxMessageBytes } = this.#ring.limits;
    this.#postControl(FrameType.HELLO, (body) => {
      writeHello(body, { kind: this.#kind, buffers, controls: CONTROLS, bufferBytes, maxMessageBytes });
      return HELLO_BYTES;
    }).catch(this.#events.fail);
  }

  /** Nothing that comes is looked at any more, and only a farewell goes out. */
  stop(): void {
    this.#stopped = true;
  }

  /** Sends what is in a buffer; what this side owes goes along. */
  post(slot: Slot, type: number, length: number): Promise<void> {
    writeHeader(slot.bytes, {
      type,
      buffers: this.#owedBuffers,
      controls: this.#owedControls,
      reads: this.#owedReads,
      sequence: this.#sent,
      length,
    });
    this.#owedBuffers = 0;
    this.#owedControls = 0;
    this.#owedReads = 0;
    this.#sent = (this.#sent + 1) >>> 0;
    const { region, offset } = slot.slice;
    try {
      return this.#endpoint.send(region.slice(offset, HEADER_BYTES + length));
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** No more messages will follow. Once. */
  end(): Promise<void> {
    return this.#postControl(FrameType.END);
  }

  /** The connection ends. Once. */
  bye(code: number, text: string): Promise<void> {
    return this.#postControl(FrameType.BYE, (body) => writeBye(body, code, text));
  }

  /** The buffer of a message is free. */
  freed(slot: Slot): void {
    if (this.#stopped) return;
    this.#again(slot);
    this.#owedBuffers++;
    this.#answer();
  }

  /** An announced message was read. */
  wasRead(): void {
    this.#owedReads++;
    this.#answer();
  }

  /**
   * When nothing was heard since the last call: a read of nothing. The peer's NIC answers it without its program, and
   * nobody does when the peer is dead.
   */
  ask(): void {
    if (this.#heard || this.#asking || this.#stopped) {
      this.#heard = false;
      return;
    }
    this.#asking = true;
    this.#endpoint.read(this.#ring.nothing, new RemoteRegion({ addr: '0x0', rkey: 0, length: 0 }).slice()).then(() => {
      this.#asking = false;
    }, this.#events.fail);
  }

  async #postControl(type: number, write: (body: Buffer) => number = () => 0): Promise<void> {
    const slot = this.#ring.controls.pop() as Slot;
    await this.post(slot, type, write(slot.bytes.subarray(HEADER_BYTES)));
    this.#ring.controls.push(slot);
  }

  // Gives back what the peer waits for, when no message of ours has done so: half of the buffers, each message that was
  // read, and control frames before they run out. The last control frame that the peer has a buffer for must give
  // control frames back, so that two sides that have sent all of theirs do not wait for each other.
  #answer(): void {
    if (this.#stopped || this.#peer === undefined) return;
    const isDue =
      this.#owedBuffers >= this.#ring.limits.buffers >> 1 || this.#owedReads > 0 || this.#owedControls >= ENOUGH;
    if (!isDue || this.#controls === 0 || (this.#controls === 1 && this.#owedControls < ENOUGH)) return;
    // The last two buffers are for the end and the farewell.
    if (this.#ring.controls.length <= 2) return;
    this.#controls--;
    this.#postControl(FrameType.CREDITS).then(() => this.#answer(), this.#events.fail);
  }

  #again(slot: Slot): void {
    this.#receive(slot, this.#endpoint.recv(slot.slice));
  }

  #receive(slot: Slot, received: Promise<Received>): void {
    received.then(({ byteLen, immData }) => {
      if (this.#stopped) return;
      this.#heard = true;
      try {
        if (immData !== undefined) throw new RdmaProtocolError('FRAME', 'a frame with immediate data');
        this.#frame(slot, slot.bytes.subarray(0, byteLen));
      } catch (error) {
        this.#events.fail(error as Error);
      }
    }, this.#events.fail);
  }

  #frame(slot: Slot, frame: Buffer): void {
    const { type, sequence, buffers, controls, reads } = readHeader(frame);
    if (sequence !== this.#received) {
      throw new RdmaProtocolError('ORDER', `frame ${sequence}, where ${this.#received} was to come`);
    }
    this.#received = (this.#received + 1) >>> 0;
    if ((type === FrameType.HELLO) === (this.#peer !== undefined) && type !== FrameType.BYE) {
      throw new RdmaProtocolError('ORDER', this.#peer ? 'a second hello' : `a frame of type ${type} before hello`);
    }
    this.#controls += controls;
    if (this.#controls > (this.#peer?.controls ?? 0)) {
      throw new RdmaProtocolError('CREDITS', 'it gives back more control frames than it has');
    }
    this.#events.returned(buffers, reads);
    this.#take(slot, type, frame.subarray(HEADER_BYTES));
    // What was given back may be what an answer has waited for.
    this.#answer();
  }

  #take(slot: Slot, type: number, body: Buffer): void {
    switch (type) {
      case FrameType.DATA:
        this.#events.data(slot, body.length);
        return;
      case FrameType.ANNOUNCE:
        this.#events.announce(slot, readAnnouncement(body, this.#ring.limits.maxMessageBytes));
        return;
      case FrameType.HELLO:
        this.#hello(body);
        this.#again(slot);
        return;
      case FrameType.CREDITS:
        if (body.length > 0) throw new RdmaProtocolError('FRAME', 'credits with a body');
        this.#owedControls++;
        this.#again(slot);
        return;
      case FrameType.END:
        if (body.length > 0) throw new RdmaProtocolError('FRAME', 'an end with a body');
        this.#events.end();
        return;
      case FrameType.BYE: {
        const { code, text } = readBye(body);
        this.#events.bye(code, text);
        return;
      }
      default:
        throw new RdmaProtocolError('FRAME', `a frame of type ${type}`);
    }
  }

  #hello(body: Buffer): void {
    const peer = readHello(body);
    if (peer.kind !== this.#kind) {
      const theirs = kindNames[peer.kind] ?? `something unknown (${peer.kind})`;
      throw new RdmaProtocolError('KIND', `it speaks ${theirs}, and this side ${kindNames[this.#kind]}`);
    }
    if (this.#endpoint.listensFirst) this.#greet();
    this.#peer = peer;
    this.#controls = peer.controls;
    this.#events.hello(peer);
  }
}
