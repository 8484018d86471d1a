import type { PacketView } from './view.ts';

/** How a capture file counts time. */
export interface Clock {
  /** Nanoseconds since 1970 from the two words of a timestamp. */
  toNanoseconds(high: number, low: number): bigint;
}

/** Something captured, or to be written to a capture file. */
export interface CapturedPacket {
  /** Nanoseconds since 1970. */
  readonly timestamp: bigint;
  /** The frame, as far as it was captured. */
  readonly bytes: Uint8Array;
  /** Bytes that it had on the wire. Default the length of `bytes`. */
  readonly wireLength?: number;
  /** What the frame begins with, one of `LinkType`. Default Ethernet. */
  readonly linkType?: number;
}

/** A record of a capture file. There is one per file, which changes with each step: copy what is to be kept. */
export class CaptureRecord implements CapturedPacket {
  /** What holds the frame, from {@link CaptureRecord.start} to {@link CaptureRecord.end}. */
  buffer: Uint8Array = new Uint8Array(0);
  /** Where the frame starts. */
  start = 0;
  /** Where it ends, or where the capture cut it. */
  end = 0;
  /** Bytes that it had on the wire. */
  wireLength = 0;
  /** What the frame begins with, one of `LinkType` or another number. */
  linkType = 0;
  #clock: Clock | undefined;
  #high = 0;
  #low = 0;

  /** The frame, as far as it was captured. A view on the reader's memory, valid until the next step. */
  get bytes(): Uint8Array {
    return this.buffer.subarray(this.start, this.end);
  }

  /** Nanoseconds since 1970; 0 where the file has no time for it. */
  get timestamp(): bigint {
    return this.#clock?.toNanoseconds(this.#high, this.#low) ?? 0n;
  }

  /** Points a view at the frame. @returns whether it is a RoCE packet, as `PacketView.load` says */
  load(view: PacketView): boolean {
    return view.load(this.buffer, this.start, this.end, this.linkType, this.wireLength);
  }

  /** @internal */
  setFrame(buffer: Uint8Array, start: number, length: number, wireLength: number, linkType: number): void {
    this.buffer = buffer;
    this.start = start;
    this.end = start + length;
    this.wireLength = wireLength;
    this.linkType = linkType;
  }

  /** @internal */
  setTime(clock: Clock | undefined, high: number, low: number): void {
    this.#clock = clock;
    this.#high = high;
    this.#low = low;
  }
}
