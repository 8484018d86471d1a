/**
 * The opcodes of the base transport header. Its top three bits are the transport, the others the operation; together
 * they say which extended headers follow.
 */

/** Transports by the top three bits of the opcode. Reliable datagrams (0x40), which nobody has built, are left out. */
export const Transport = Object.freeze({
  /** Reliable connection. */
  RC: 0x00,
  /** Unreliable connection. */
  UC: 0x20,
  /** Unreliable datagram. */
  UD: 0x60,
  /** Congestion notification packets. */
  CNP: 0x80,
  /** Extended reliable connection. */
  XRC: 0xa0,
  /**
   * The first range that the specification leaves to manufacturers (IBV_OPCODE has no name for it). Dynamically connected
   * transport is one of these: its headers are unpublished, so all behind the BTH is payload here.
   */
  MANUFACTURER_0: 0xc0,
  /** The second such range. */
  MANUFACTURER_1: 0xe0,
} as const);

/** One of the values of {@link Transport}. */
export type Transport = (typeof Transport)[keyof typeof Transport];

/** An extended header, by the name of its property in a `Packet`. */
export type ExtendedHeader =
  | 'xrceth'
  | 'deth'
  | 'feth'
  | 'reth'
  | 'atomicEth'
  | 'aeth'
  | 'atomicAckEth'
  | 'immDt'
  | 'ieth'
  | 'cnp';

/** Bytes of each extended header. */
export const extendedHeaderLength: Readonly<Record<ExtendedHeader, number>> = Object.freeze({
  xrceth: 4,
  deth: 8,
  feth: 4,
  reth: 16,
  atomicEth: 28,
  aeth: 4,
  atomicAckEth: 8,
  immDt: 4,
  ieth: 4,
  cnp: 16,
});

/** What a packet is within its message. */
export type Position = 'FIRST' | 'MIDDLE' | 'LAST' | 'ONLY';

/** What a packet's message does. `MANUFACTURER` is unknown. */
export type Operation =
  | 'SEND'
  | 'RDMA_WRITE'
  | 'RDMA_READ'
  | 'ATOMIC'
  | 'ATOMIC_WRITE'
  | 'FLUSH'
  | 'ACKNOWLEDGE'
  | 'CNP'
  | 'MANUFACTURER';

/** What the specification says of an opcode. */
export interface OpcodeInfo {
  /** The opcode. */
  readonly opcode: number;
  /** Its C name without `IBV_OPCODE_`, such as `'RC_RDMA_WRITE_ONLY'`. */
  readonly name: string;
  /** Its transport. */
  readonly transport: Transport;
  /** What the message does. */
  readonly operation: Operation;
  /** Which packet of the message it is. */
  readonly position: Position;
  /** Whether the responder sends it: acknowledgements and read responses. */
  readonly isResponse: boolean;
  /** The headers behind the BTH, in order. */
  readonly headers: readonly ExtendedHeader[];
  /** Bytes of the BTH and of those headers. */
  readonly headerLength: number;
}

/** Bytes of the base transport header. */
export const BTH_LENGTH = 12;

/** An operation by its C name without `IBV_OPCODE_` and its transport. */
export type OperationName =
  | `${'SEND' | 'RDMA_WRITE'}_${Position}`
  | `${'SEND' | 'RDMA_WRITE'}_${'LAST' | 'ONLY'}_WITH_IMMEDIATE`
  | `SEND_${'LAST' | 'ONLY'}_WITH_INVALIDATE`
  | `RDMA_READ_${'REQUEST' | `RESPONSE_${Position}`}`
  | 'ACKNOWLEDGE'
  | 'ATOMIC_ACKNOWLEDGE'
  | 'COMPARE_SWAP'
  | 'FETCH_ADD'
  | 'FLUSH'
  | 'ATOMIC_WRITE';

/** The lower five bits of the opcodes; no transport has all operations. */
const operations: Record<OperationName, number> = {
  SEND_FIRST: 0x00,
  SEND_MIDDLE: 0x01,
  SEND_LAST: 0x02,
  SEND_LAST_WITH_IMMEDIATE: 0x03,
  SEND_ONLY: 0x04,
  SEND_ONLY_WITH_IMMEDIATE: 0x05,
  RDMA_WRITE_FIRST: 0x06,
  RDMA_WRITE_MIDDLE: 0x07,
  RDMA_WRITE_LAST: 0x08,
  RDMA_WRITE_LAST_WITH_IMMEDIATE: 0x09,
  RDMA_WRITE_ONLY: 0x0a,
  RDMA_WRITE_ONLY_WITH_IMMEDIATE: 0x0b,
  RDMA_READ_REQUEST: 0x0c,
  RDMA_READ_RESPONSE_FIRST: 0x0d,
  RDMA_READ_RESPONSE_MIDDLE: 0x0e,
  RDMA_READ_RESPONSE_LAST: 0x0f,
  RDMA_READ_RESPONSE_ONLY: 0x10,
  ACKNOWLEDGE: 0x11,
  ATOMIC_ACKNOWLEDGE: 0x12,
  COMPARE_SWAP: 0x13,
  FETCH_ADD: 0x14,
  SEND_LAST_WITH_INVALIDATE: 0x16,
  SEND_ONLY_WITH_INVALIDATE: 0x17,
  // Annex A19, memory placement extensions.
  FLUSH: 0x1c,
  ATOMIC_WRITE: 0x1d,
};

/** The headers that an operation has of its own, beside what its transport adds to each request. */
const operationHeaders: Partial<Record<OperationName, ExtendedHeader[]>> = {
  SEND_LAST_WITH_IMMEDIATE: ['immDt'],
  SEND_ONLY_WITH_IMMEDIATE: ['immDt'],
  RDMA_WRITE_FIRST: ['reth'],
  RDMA_WRITE_LAST_WITH_IMMEDIATE: ['immDt'],
  RDMA_WRITE_ONLY: ['reth'],
  RDMA_WRITE_ONLY_WITH_IMMEDIATE: ['reth', 'immDt'],
  RDMA_READ_REQUEST: ['reth'],
  RDMA_READ_RESPONSE_FIRST: ['aeth'],
  RDMA_READ_RESPONSE_LAST: ['aeth'],
  RDMA_READ_RESPONSE_ONLY: ['aeth'],
  ACKNOWLEDGE: ['aeth'],
  ATOMIC_ACKNOWLEDGE: ['aeth', 'atomicAckEth'],
  COMPARE_SWAP: ['atomicEth'],
  FETCH_ADD: ['atomicEth'],
  SEND_LAST_WITH_INVALIDATE: ['ieth'],
  SEND_ONLY_WITH_INVALIDATE: ['ieth'],
  FLUSH: ['feth', 'reth'],
  ATOMIC_WRITE: ['reth'],
};

const messages: [pattern: RegExp, operation: Operation][] = [
  [/^SEND/, 'SEND'],
  [/^RDMA_WRITE/, 'RDMA_WRITE'],
  [/^RDMA_READ/, 'RDMA_READ'],
  [/^ATOMIC_WRITE/, 'ATOMIC_WRITE'],
  [/^ATOMIC|^COMPARE_SWAP|^FETCH_ADD/, 'ATOMIC'],
  [/^FLUSH/, 'FLUSH'],
  [/^ACKNOWLEDGE/, 'ACKNOWLEDGE'],
];

function info(transport: Transport, code: number, name: string, rest: Partial<OpcodeInfo>): OpcodeInfo {
  const headers = Object.freeze([...(rest.headers ?? [])]);
  return Object.freeze({
    opcode: transport | code,
    name,
    transport,
    operation: 'MANUFACTURER',
    position: 'ONLY',
    isResponse: false,
    ...rest,
    headers,
    headerLength: headers.reduce((sum, header) => sum + extendedHeaderLength[header], BTH_LENGTH),
  });
}

function standard(transport: Transport, prefix: string, name: OperationName): OpcodeInfo {
  const isResponse = /RESPONSE|ACKNOWLEDGE/.test(name);
  const headers = [...(operationHeaders[name] ?? [])];
  if (transport === Transport.UD) headers.unshift('deth');
  // Annex A14: each request names the shared receive queue that it is for.
  if (transport === Transport.XRC && !isResponse) headers.unshift('xrceth');
  return info(transport, operations[name], `${prefix}_${name}`, {
    operation: messages.find(([pattern]) => pattern.test(name))![1],
    position: (/_(FIRST|MIDDLE|LAST)(?=_|$)/.exec(name)?.[1] ?? 'ONLY') as Position,
    isResponse,
    headers,
  });
}

function buildTable(): readonly (OpcodeInfo | undefined)[] {
  const all: OpcodeInfo[] = [info(Transport.CNP, 1, 'CNP', { operation: 'CNP', headers: ['cnp'] })];
  for (const name of Object.keys(operations) as OperationName[]) {
    all.push(standard(Transport.RC, 'RC', name), standard(Transport.XRC, 'XRC', name));
    // What needs no answer.
    if (/^(SEND|RDMA_WRITE)/.test(name) && !name.includes('INVALIDATE')) all.push(standard(Transport.UC, 'UC', name));
    if (/^SEND_ONLY(_WITH_IMMEDIATE)?$/.test(name)) all.push(standard(Transport.UD, 'UD', name));
  }
  for (const transport of [Transport.MANUFACTURER_0, Transport.MANUFACTURER_1]) {
    for (let code = 0; code < 32; code++)
      all.push(info(transport, code, `MANUFACTURER_${(transport | code).toString(16).toUpperCase()}`, {}));
  }
  const table: (OpcodeInfo | undefined)[] = new Array(256).fill(undefined);
  for (const entry of all) table[entry.opcode] = entry;
  return Object.freeze(table);
}

/** What the specification says of each opcode; undefined where it says nothing. */
export const opcodeTable: readonly (OpcodeInfo | undefined)[] = buildTable();

/** An opcode by its C name without `IBV_OPCODE_`. */
export type OpcodeName =
  | `${'RC' | 'XRC'}_${OperationName}`
  | `UC_${Exclude<OperationName & `${'SEND' | 'RDMA_WRITE'}_${string}`, `${string}_INVALIDATE`>}`
  | `UD_SEND_ONLY${'' | '_WITH_IMMEDIATE'}`
  | 'CNP';

/** The opcodes by their C names without `IBV_OPCODE_`: `Opcode.RC_RDMA_WRITE_ONLY` is 0x0a. */
export const Opcode: Readonly<Record<OpcodeName, number>> = Object.freeze(
  Object.fromEntries(
    opcodeTable
      .filter((entry) => entry !== undefined && entry.operation !== 'MANUFACTURER')
      .map((entry) => [entry!.name, entry!.opcode]),
  ) as Record<OpcodeName, number>,
);
