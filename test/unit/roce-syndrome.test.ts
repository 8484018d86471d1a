import { describe, expect, it } from 'vitest';
import { decodeSyndrome, encodeSyndrome, NakCode } from '../../lib/roce/index.ts';

describe('syndromes', () => {
  it('come back from all 256 values', () => {
    for (let value = 0; value < 256; value++) {
      const syndrome = decodeSyndrome(value);
      if (syndrome.kind === 'RESERVED') expect(syndrome.syndrome).toBe(value);
      else if (syndrome.kind !== 'NAK' || syndrome.code <= 4) expect(encodeSyndrome(syndrome)).toBe(value);
    }
  });

  it('acknowledge with credits, rounded down, or without', () => {
    expect(decodeSyndrome(0x1f)).toEqual({ kind: 'ACK', credits: undefined });
    expect(decodeSyndrome(0x1e)).toEqual({ kind: 'ACK', credits: 32768 });
    expect(encodeSyndrome({ kind: 'ACK', credits: 100 })).toBe(13);
    expect(decodeSyndrome(13)).toEqual({ kind: 'ACK', credits: 96 });
    expect(encodeSyndrome({ kind: 'ACK' })).toBe(0x1f);
  });

  it('tell a receiver that is not ready how long to wait', () => {
    expect(decodeSyndrome(0x20)).toEqual({ kind: 'RNR_NAK', timer: 0, timerMs: 655.36 });
    expect(decodeSyndrome(0x2c)).toEqual({ kind: 'RNR_NAK', timer: 12, timerMs: 0.64 });
    expect(decodeSyndrome(0x3f)).toEqual({ kind: 'RNR_NAK', timer: 31, timerMs: 491.52 });
  });

  it('refuse with a code', () => {
    expect(decodeSyndrome(0x60)).toEqual({ kind: 'NAK', code: NakCode.PSN_SEQUENCE_ERROR });
    expect(encodeSyndrome({ kind: 'NAK', code: NakCode.REMOTE_ACCESS_ERROR })).toBe(0x62);
  });

  it('refuse what cannot be encoded', () => {
    expect(() => encodeSyndrome({ kind: 'RNR_NAK', timer: 32 })).toThrow(/timer/);
    expect(() => encodeSyndrome({ kind: 'ACK', credits: 40_000 })).toThrow(/credits/);
    expect(() => encodeSyndrome({ kind: 'NAK', code: 5 })).toThrow(/NakCode/);
    expect(() => decodeSyndrome(256)).toThrow(/syndrome/);
  });
});
