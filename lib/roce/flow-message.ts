import type { OpcodeInfo, Operation } from './opcodes.ts';
import type { PacketView } from './view.ts';

/** A message whose packets have all come. */
export interface Message {
  operation: Operation;
  psn: number;
  packets: number;
  length: number;
  start: number;
  va: bigint | undefined;
  rkey: number | undefined;
  payload: Buffer | undefined;
}

/** Puts packets, which come in order, together to messages. */
export class Assembler {
  readonly #keep: number;
  #message: Message | undefined;
  /** Undefined when the payload is not kept: too long, or not all captured. */
  #chunks: Buffer[] | undefined;

  /** @param keep - messages up to this many bytes are given with their payload */
  constructor(keep: number) {
    this.#keep = keep;
  }

  /** Whether a message has begun. */
  get isActive(): boolean {
    return this.#message !== undefined;
  }

  /** Adds the next packet; gives the message that it completes. */
  add(view: PacketView, info: OpcodeInfo, time: number): Message | undefined {
    const { position, operation } = info;
    if (position === 'FIRST' || position === 'ONLY') this.#begin(view, operation, time);
    const message = this.#message;
    // The first packet came before the capture, or was lost.
    if (message === undefined || message.operation !== operation) {
      this.abort();
      return undefined;
    }
    message.packets++;
    message.length += view.payloadLength;
    if (this.#chunks !== undefined) {
      if (message.length > this.#keep || view.payload.length < view.payloadLength) this.#chunks = undefined;
      else this.#chunks.push(Buffer.from(view.payload));
    }
    if (position === 'FIRST' || position === 'MIDDLE') return undefined;
    message.payload = this.#chunks && Buffer.concat(this.#chunks);
    this.abort();
    return message;
  }

  #begin(view: PacketView, operation: Operation, time: number): void {
    const { psn, va, rkey } = view;
    this.#message = { operation, psn, packets: 0, length: 0, start: time, va, rkey, payload: undefined };
    this.#chunks = this.#keep > 0 ? [] : undefined;
  }

  /** Gives up the message that has begun. */
  abort(): void {
    this.#message = undefined;
    this.#chunks = undefined;
  }
}
