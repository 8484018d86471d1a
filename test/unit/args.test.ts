import { describe, expect, it } from 'vitest';
import * as args from '../../lib/args.ts';
import * as lib from '../../lib/index.ts';
import * as observe from '../../lib/observe/index.ts';
import * as roce from '../../lib/roce/index.ts';
import * as sim from '../../lib/sim/index.ts';

const type = expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE', message: expect.stringContaining('thing') });
const range = expect.objectContaining({ code: 'ERR_OUT_OF_RANGE', message: expect.stringContaining('thing') });
const value = expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE', message: expect.stringContaining('thing') });

class Known {}

describe('what is exported', () => {
  const nothing = undefined as never;
  const packet = {
    ...{ ethernet: { dst: '02:00:00:00:00:02', src: '02:00:00:00:00:01' }, ipv4: { src: '10.0.0.1', dst: '10.0.0.2' } },
    ...{ bth: { opcode: roce.Opcode.RC_ACKNOWLEDGE, destQp: 1, psn: 1 }, aeth: { syndrome: 0, msn: 1 } },
  };
  it.each<[string, () => unknown, string]>([
    ['chooseGid', () => lib.chooseGid(nothing), 'table'],
    ['flagNames: flags', () => lib.flagNames(nothing, 1), 'flags'],
    ['flagNames: value', () => lib.flagNames(lib.AccessFlags, nothing), 'value'],
    ['isAvailable', () => lib.isAvailable(null as never), 'options'],
    ['diagnose', () => lib.diagnose(null as never), 'options'],
    ['readDatagram', () => lib.readDatagram(nothing, Buffer.alloc(64)), 'wc'],
    ['decodePacket', () => roce.decodePacket(nothing), 'bytes'],
    ['decodeHeader', () => roce.decodeHeader('bth', nothing), 'bytes'],
    ['encodePacket', () => roce.encodePacket(nothing), 'packet'],
    ['encodePacket: bth', () => roce.encodePacket({} as never), 'bth'],
    ['encodePacket: ethernet', () => roce.encodePacket({ ...packet, ethernet: null } as never), 'ethernet'],
    ['encodePacket: ipv4', () => roce.encodePacket({ ...packet, ipv4: null } as never), 'ipv4'],
    ['encodePacket: aeth', () => roce.encodePacket({ ...packet, aeth: null } as never), 'aeth'],
    ['encodePacket: payload', () => roce.encodePacket({ ...packet, payload: 'hi' } as never), 'payload'],
    ['encodeHeader', () => roce.encodeHeader('bth', nothing), 'bth'],
    ['PacketView.load', () => new roce.PacketView().load(nothing), 'bytes'],
    ['PacketLines.json', () => new roce.PacketLines().json(nothing), 'view'],
    ['PacketLines.describe', () => new roce.PacketLines().describe(nothing), 'view'],
    ['CaptureParser.push', () => new roce.CaptureParser().push('x' as never), 'chunk'],
    ['FlowTracker.add: timestamp', () => new roce.FlowTracker().add(1 as never, new roce.PacketView()), 'timestamp'],
    ['FlowTracker.add: view', () => new roce.FlowTracker().add(1n, nothing), 'view'],
    ['counterMeaning', () => observe.counterMeaning(Symbol('x') as never), 'name'],
    ['summarizePacket', () => roce.summarizePacket({} as never), 'view'],
    ['diagnoseFlow', () => roce.diagnoseFlow(nothing), 'flow'],
    ['encodeSyndrome', () => roce.encodeSyndrome(null as never), 'syndrome'],
    ['counterRates: before', () => observe.counterRates(nothing, { counters: [], time: 0 } as never), 'before'],
    ['counterRates: after', () => observe.counterRates({ counters: [], time: 0 } as never, nothing), 'after'],
    ['counterRates: counters', () => observe.counterRates({} as never, {} as never), 'before.counters'],
    ['formatPrometheus', () => observe.formatPrometheus(nothing), 'ports'],
    ['formatPrometheus: a port', () => observe.formatPrometheus([null as never]), 'ports[0]'],
    ['judgeCounters', () => observe.judgeCounters('x' as never), 'rates'],
    ['parseEthtool', () => observe.parseEthtool(nothing), 'text'],
    ['readTopology', () => observe.readTopology(null as never), 'options'],
    ['simulatePfc: links', () => sim.simulatePfc({} as never), 'options.links'],
    ['simulatePfc: flows', () => sim.simulatePfc({ links: [] } as never), 'options.flows'],
  ])('names the argument that is missing: %s', (_, call, name) => {
    expect(call).toThrow(
      expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE', message: expect.stringContaining(`${name} must be`) }),
    );
  });

  const frame = { timestamp: 1n, bytes: new Uint8Array(60) };
  it.each<[string, () => AsyncGenerator<unknown>, string]>([
    ['readCapture', () => roce.readCapture(1 as never), 'source'],
    // Of a stream that was told of an encoding.
    ['readCapture: text', () => roce.readCapture(['x'] as never), 'chunk'],
    ['captureInterface: filter', () => roce.captureInterface('lo', { filter: 1 as never }), 'options.filter'],
    ['encodeCapture', () => roce.encodeCapture(nothing), 'packets'],
    [
      'encodeCapture: wireLength',
      () => roce.encodeCapture([{ ...frame, wireLength: 1n } as never]),
      'packet.wireLength',
    ],
    ['encodeCapture: linkType', () => roce.encodeCapture([{ ...frame, linkType: 1n } as never]), 'packet.linkType'],
  ])('names it when it is asked for the first: %s', async (_, call, name) => {
    const error = { code: 'ERR_INVALID_ARG_TYPE', message: expect.stringContaining(`${name} must be`) };
    await expect(call().next()).rejects.toMatchObject(error);
  });
});

describe('encodeHeader and decodeHeader', () => {
  it('name the headers that there are', () => {
    const error = { code: 'ERR_INVALID_ARG_VALUE', message: expect.stringMatching(/^name must be one of .*\breth\b/) };
    expect(() => roce.encodeHeader('toString' as never, {} as never)).toThrow(expect.objectContaining(error));
    expect(() => roce.decodeHeader('grh' as never, Buffer.alloc(64))).toThrow(expect.objectContaining(error));
  });
});

describe('each check', () => {
  it('gives back what is in order', () => {
    const signal = new AbortController().signal;
    const known = new Known();
    expect(args.integer(5, 'thing', 5, 5)).toBe(5);
    expect(args.integer(-0, 'thing', 0, 1)).toBe(-0);
    expect(args.uint32(2 ** 32 - 1, 'thing')).toBe(2 ** 32 - 1);
    expect(args.uint64(2n ** 64n - 1n, 'thing')).toBe(2n ** 64n - 1n);
    expect(args.boolean(false, 'thing')).toBe(false);
    expect(args.string('', 'thing')).toBe('');
    expect(args.instance(known, 'thing', Known)).toBe(known);
    expect(args.oneOf(2, 'thing', { A: 1, B: 2 }, 'Letter')).toBe(2);
    expect(args.readOptions({ a: 1 }, 'thing', ['a', 'b'])).toEqual({ a: 1 });
    expect(args.readOptions(undefined, 'thing', [])).toEqual({});
    expect(args.abortSignal(signal, 'thing')).toBe(signal);
    expect(args.abortSignal(undefined, 'thing')).toBeUndefined();
  });

  it.each<[string, () => unknown, unknown]>([
    ['integer: text', () => args.integer('5', 'thing', 0, 9), type],
    ['integer: bigint', () => args.integer(5n, 'thing', 0, 9), type],
    ['integer: symbol', () => args.integer(Symbol('s'), 'thing', 0, 9), type],
    ['integer: an object without prototype', () => args.integer(Object.create(null), 'thing', 0, 9), type],
    ['integer: below', () => args.integer(4, 'thing', 5, 9), range],
    ['integer: above', () => args.integer(10, 'thing', 5, 9), range],
    ['integer: NaN', () => args.integer(Number.NaN, 'thing', 0, 9), range],
    ['uint32: 2^32', () => args.uint32(2 ** 32, 'thing'), range],
    ['uint64: number', () => args.uint64(5, 'thing'), type],
    ['uint64: negative', () => args.uint64(-1n, 'thing'), range],
    ['uint64: 2^64', () => args.uint64(2n ** 64n, 'thing'), range],
    ['boolean: 0', () => args.boolean(0, 'thing'), type],
    ['string: number', () => args.string(1, 'thing'), type],
    ['instance: object', () => args.instance({}, 'thing', Known), type],
    ['instance: null', () => args.instance(null, 'thing', Known), type],
    ['oneOf: unknown', () => args.oneOf(3, 'thing', { A: 1 }, 'Letter'), range],
    ['oneOf: its name', () => args.oneOf('A', 'thing', { A: 1 }, 'Letter'), type],
    ['readOptions: null', () => args.readOptions(null as never, 'thing', []), type],
    ['readOptions: array', () => args.readOptions([] as never, 'thing', []), type],
    ['readOptions: function', () => args.readOptions((() => {}) as never, 'thing', []), type],
    ['readOptions: unknown key', () => args.readOptions({ c: 1 } as object, 'thing', ['a']), value],
    ['abortSignal: controller', () => args.abortSignal(new AbortController(), 'thing'), type],
  ])('refuses, with one of the codes of Node and naming the argument: %s', (_what, call, expected) => {
    expect(call).toThrow(expected as Error);
  });
});

describe('readOptions', () => {
  it.each([
    ['maxsendwr', 'maxSendWr'],
    ['max_send_wr', 'maxSendWr'],
    ['MAXSENDWR', 'maxSendWr'],
    ['MaxSendWr', 'maxSendWr'],
    ['maxSednWr', 'maxSendWr'],
    ['maxSendWrs', 'maxSendWr'],
    ['maxSndWr', 'maxSendWr'],
    ['maxRceivWr', 'maxRecvWr'],
  ])('suggests for %s what was meant: %s', (given, meant) => {
    const call = () => args.readOptions({ [given]: 1 } as object, 'options', ['maxRecvWr', 'maxSendWr']);
    expect(call).toThrow(`Unknown option '${given}' in options; did you mean '${meant}'?`);
  });

  it('says what a name is here, where it is told', () => {
    const call = (key: string) => () =>
      args.readOptions({ [key]: 1 } as object, 'options', ['local'], { lkey: "use 'local'" });
    expect(call('lkey')).toThrow("Unknown option 'lkey' in options: use 'local'");
    expect(call('toString')).toThrow("Unknown option 'toString' in options; known are local");
  });

  it('does not compare what is longer than any name', () => {
    expect(args.nearest('x'.repeat(1_000_000), ['x'.repeat(40)])).toBeUndefined();
    expect(args.nearest('', ['a', 'b'])).toBe('a');
  });

  it('lists what there is where it cannot guess', () => {
    const call = () => args.readOptions({ colour: 1 } as object, 'options', ['maxRecvWr', 'maxSendWr']);
    expect(call).toThrow('known are maxRecvWr, maxSendWr');
  });
});
