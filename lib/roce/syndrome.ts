/** The syndrome of an AETH: an acknowledgement with credits, a "receiver not ready" with a timer, or a refusal. */

import { integer, object, oneOf } from '../args.ts';

/** Why a responder refuses a request for good. */
export const NakCode = Object.freeze({
  /** A packet is missing: send again from the PSN of this NAK on. */
  PSN_SEQUENCE_ERROR: 0,
  /** The request is not allowed or does not fit. */
  INVALID_REQUEST: 1,
  /** Wrong key, range or right. */
  REMOTE_ACCESS_ERROR: 2,
  /** The responder failed. */
  REMOTE_OPERATIONAL_ERROR: 3,
  /** Of reliable datagrams only. */
  INVALID_RD_REQUEST: 4,
} as const);

/** One of the values of {@link NakCode}. */
export type NakCode = (typeof NakCode)[keyof typeof NakCode];

/** A syndrome, taken apart. */
export type Syndrome =
  | {
      /** An acknowledgement. */
      kind: 'ACK';
      /** How many more requests the responder has receives for; undefined where it does not say. */
      credits: number | undefined;
    }
  | {
      /** Receiver not ready: nothing is posted to receive this. */
      kind: 'RNR_NAK';
      /** How long to wait, as encoded: 0 to 31. */
      timer: number;
      /** The same in milliseconds. */
      timerMs: number;
    }
  | {
      /** A refusal. */
      kind: 'NAK';
      /** One of {@link NakCode}, or a reserved number. */
      code: number;
    }
  | {
      /** Neither, by the specification. */
      kind: 'RESERVED';
      /** The eight bits. */
      syndrome: number;
    };

// The specification's tables. Both step by 1.5 and 1.33 in turn.
const credits = [
  0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
  8192, 12288, 16384, 24576, 32768,
];
const timersMs = [
  655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92, 2.56, 3.84, 5.12,
  7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
];

/**
 * Takes the syndrome of an AETH apart.
 *
 * @param syndrome - eight bits
 * @example
 * decodeSyndrome(0x60); // { kind: 'NAK', code: NakCode.PSN_SEQUENCE_ERROR }
 */
export function decodeSyndrome(syndrome: number): Syndrome {
  integer(syndrome, 'syndrome', 0, 255);
  const value = syndrome & 31;
  switch (syndrome >> 5) {
    case 0:
      return { kind: 'ACK', credits: credits[value] };
    case 1:
      return { kind: 'RNR_NAK', timer: value, timerMs: timersMs[value]! };
    case 3:
      return { kind: 'NAK', code: value };
    default:
      return { kind: 'RESERVED', syndrome };
  }
}

/**
 * Builds a syndrome.
 *
 * @param syndrome - what it is to say. `credits` is rounded down to what can be encoded, and undefined says nothing of
 * credits; of an RNR NAK `timer` counts and not `timerMs`
 * @returns eight bits
 * @throws RangeError `ERR_OUT_OF_RANGE`
 */
export function encodeSyndrome(
  syndrome:
    | { kind: 'ACK'; credits?: number | undefined }
    | { kind: 'RNR_NAK'; timer: number }
    | { kind: 'NAK'; code: number },
): number {
  object(syndrome, 'syndrome');
  switch (syndrome.kind) {
    case 'ACK': {
      if (syndrome.credits === undefined) return 31;
      integer(syndrome.credits, 'credits', 0, 32768);
      return credits.findLastIndex((value) => value <= syndrome.credits!);
    }
    case 'RNR_NAK':
      return 0x20 | integer(syndrome.timer, 'timer', 0, 31);
    default:
      return 0x60 | oneOf(syndrome.code, 'code', NakCode, 'NakCode');
  }
}
