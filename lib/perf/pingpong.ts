/** Ping-pong with the programs ibv_rc_pingpong, ibv_uc_pingpong and ibv_ud_pingpong of rdma-core, or with itself. */
import { execFileSync } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { rangeError } from '../args.ts';
import { LinkLayer, type Mtu, QpState, QpType, WcStatus, WrOpcode } from '../native/constants.gen.ts';
import { GRH_BYTES } from '../verbs/address-handle.ts';
import type { Context } from '../verbs/context.ts';
import { openDevice } from '../verbs/device.ts';
import { formatGid, parseGid } from '../verbs/gid.ts';
import { requireNoIwarp } from '../verbs/iwarp.ts';
import type { QpAttr } from '../verbs/qp-attributes.ts';
import type { QueuePair } from '../verbs/queue-pair.ts';
import type { WorkCompletion } from '../verbs/work-completion.ts';
import { acceptOne, asEnd, connectTo } from './control.ts';
import { checkCompletion, giveTurn, isTurnDue, nextCompletions } from './spin.ts';

/** How to play. The defaults are those of the C programs. */
export interface PingpongOptions {
  transport: 'rc' | 'uc' | 'ud';
  /** The server to play with; undefined to be the server. */
  host: string | undefined;
  device: string | undefined;
  /** TCP port. */
  port: number;
  portNum: number;
  size: number;
  /** Bytes. */
  mtu: number;
  rxDepth: number;
  iters: number;
  sl: number;
  gidIndex: number | undefined;
  events: boolean;
  /** Compare what has come with what a client of the C programs sends. */
  check: boolean;
  signal: AbortSignal;
  /** Told when this side listens, or is about to connect. */
  onLocal: (local: PingpongAddress) => void;
  /** Told when the peer is known, before the first message. */
  onRemote?: (remote: PingpongAddress) => void;
}

/** How a side is addressed. */
export interface PingpongAddress {
  lid: number;
  qpn: number;
  psn: number;
  gid: string;
}

/** How it went. */
export interface PingpongResult {
  remote: PingpongAddress;
  /** Both ways. */
  bytes: number;
  iters: number;
  seconds: number;
}

const RECV = 1;
const SEND = 2;
// What the C programs fill their buffers with, but for the first byte of each page when they check.
const FILL = 0x7b;
const QKEY = 0x1111_1111;

const hex = (value: number, digits: number) => value.toString(16).padStart(digits, '0');

// As it travels: a C string with its zero.
const ADDRESS_BYTES = 'LLLL:QQQQQQ:PPPPPP:'.length + 32 + 1;
const encode = ({ lid, qpn, psn, gid }: PingpongAddress) =>
  `${hex(lid, 4)}:${hex(qpn, 6)}:${hex(psn, 6)}:${parseGid(gid).toString('hex')}\0`;

function failure(message: string): Error {
  return Object.assign(new Error(message), { code: 'ERR_PINGPONG' });
}

function decode(text: string): PingpongAddress {
  const found = /^([0-9a-f]{4}):([0-9a-f]{6}):([0-9a-f]{6}):([0-9a-f]{32})\0$/.exec(text);
  if (!found) throw failure(`not the address of a peer: ${JSON.stringify(text)}`);
  const [lid, qpn, psn] = found.slice(1, 4).map((digits) => Number.parseInt(digits, 16)) as [number, number, number];
  return { lid, qpn, psn, gid: formatGid(Buffer.from(found[4]!, 'hex')) };
}

/** Reads that many bytes of a socket. */
async function read(chunks: AsyncIterator<Buffer>, length: number): Promise<string> {
  let data = Buffer.alloc(0);
  while (data.length < length) {
    const { value, done } = await chunks.next().catch(asEnd);
    if (done) throw failure('the peer has closed the connection');
    data = Buffer.concat([data, value]);
  }
  return data.toString('latin1');
}

/**
 * Plays, as one of the two.
 *
 * @throws what the verbs throw; WorkCompletionError; an error with a code for a peer that talks otherwise
 */
export async function pingpong(options: PingpongOptions): Promise<PingpongResult> {
  const context = openDevice(options.device);
  try {
    return await new Game(context, options).run();
  } catch (error) {
    // The signal ends the connection, too, which may be seen first.
    options.signal.throwIfAborted();
    throw error;
  } finally {
    context.close({ cascade: true });
  }
}

class Game {
  readonly #o: PingpongOptions;
  readonly #isUd: boolean;
  readonly #qp: QueuePair;
  readonly #sgidIndex: number;
  readonly #local: PingpongAddress;

  constructor(context: Context, options: PingpongOptions) {
    const { transport, portNum, gidIndex, rxDepth } = options;
    requireNoIwarp(context);
    this.#o = options;
    this.#isUd = transport === 'ud';
    const port = context.queryPort(portNum);
    if (this.#isUd && options.size > 128 << port.activeMtu) {
      throw rangeError(`--size must be at most ${128 << port.activeMtu} for ud, the MTU of the port`);
    }
    const isRoce = port.linkLayer === LinkLayer.ETHERNET;
    const entry =
      isRoce || gidIndex !== undefined
        ? context.selectGid(portNum, gidIndex === undefined ? {} : { gidIndex })
        : undefined;
    this.#sgidIndex = entry?.gidIndex ?? 0;
    const qpType = { rc: QpType.RC, uc: QpType.UC, ud: QpType.UD }[transport];
    const cap = { maxSendWr: 1, maxRecvWr: rxDepth };
    this.#qp = context.allocPd().createQp({ sendCq: context.createCq(rxDepth + 1), qpType, cap });
    this.#local = { lid: port.lid, qpn: this.#qp.qpNum, psn: randomInt(0x100_0000), gid: entry?.gid ?? '::' };
  }

  async run(): Promise<PingpongResult> {
    const { host, rxDepth, size, portNum, signal, iters, check } = this.#o;
    const [qp, isServer, at] = [this.#qp, host === undefined, this.#isUd ? GRH_BYTES : 0];
    const access = this.#isUd ? { qkey: QKEY } : { qpAccessFlags: 0 };
    await qp.modify({ qpState: QpState.INIT, pkeyIndex: 0, portNum, ...access });
    // The server answers from where it received; the client receives elsewhere, so that it can check what has come back.
    const outgoing = qp.pd.allocSync(at + size);
    const incoming = isServer ? outgoing : qp.pd.allocSync(at + size);
    outgoing.buffer.fill(FILL);
    if (check) {
      incoming.buffer.fill(~FILL);
      if (!isServer) expected(size).copy(outgoing.buffer, at);
    }
    const recv = { wrId: RECV, sgList: incoming.slice() };
    // When one receive is left, all others are posted again, by one call.
    const refill = qp.prepareRecv(new Array(Math.max(rxDepth - 1, 1)).fill(recv));
    refill.post();
    if (rxDepth > 1) qp.postRecv(recv);

    const remote = await (isServer ? this.#serve() : this.#call(host!));
    this.#o.onRemote?.(remote);
    const message = { wrId: SEND, opcode: WrOpcode.SEND, sgList: outgoing.slice(at, size) };
    const to = this.#isUd ? { ah: qp.pd.createAh(this.#ahAttr(remote)), remoteQpn: remote.qpn, remoteQkey: QKEY } : {};
    const send = qp.prepareSend({ ...message, ...to });

    const start = performance.now();
    await this.#play(() => send.post(), refill, isServer);
    const seconds = (performance.now() - start) / 1000;
    signal.throwIfAborted();
    if (check) compare(incoming.buffer.subarray(at), expected(size));
    return { remote, bytes: 2 * size * iters, iters, seconds };
  }

  /** Exchanges the addresses: the client begins, the server answers when it is ready to receive. */
  async #serve(): Promise<PingpongAddress> {
    const { port, signal, onLocal } = this.#o;
    const socket = await acceptOne(port, signal, () => onLocal(this.#local));
    const chunks = socket[Symbol.asyncIterator]();
    const remote = decode(await read(chunks, ADDRESS_BYTES));
    await this.#connect(remote);
    socket.write(encode(this.#local));
    await read(chunks, 'done\0'.length);
    socket.end();
    return remote;
  }

  async #call(host: string): Promise<PingpongAddress> {
    const { port, signal, onLocal } = this.#o;
    onLocal(this.#local);
    const socket = await connectTo(host, port, signal);
    socket.write(encode(this.#local));
    const remote = decode(await read(socket[Symbol.asyncIterator](), ADDRESS_BYTES));
    socket.end('done\0');
    await this.#connect(remote);
    return remote;
  }

  #ahAttr({ lid, gid }: PingpongAddress) {
    const { sl, portNum } = this.#o;
    const isGlobal = !parseGid(gid).subarray(8).equals(Buffer.alloc(8));
    return { dlid: lid, sl, portNum, ...(isGlobal && { grh: { dgid: gid, sgidIndex: this.#sgidIndex } }) };
  }

  async #connect(remote: PingpongAddress): Promise<void> {
    const { transport, mtu } = this.#o;
    const isRc = transport === 'rc';
    const path: QpAttr = {
      pathMtu: Math.log2(mtu / 128) as Mtu,
      destQpNum: remote.qpn,
      rqPsn: remote.psn,
      ahAttr: this.#ahAttr(remote),
    };
    const rcRtr = isRc ? { maxDestRdAtomic: 1, minRnrTimer: 12 } : {};
    const rcRts = isRc ? { timeout: 14, retryCnt: 7, rnrRetry: 7, maxRdAtomic: 1 } : {};
    await this.#qp.modify({ qpState: QpState.RTR, ...(!this.#isUd && path), ...rcRtr });
    await this.#qp.modify({ qpState: QpState.RTS, sqPsn: this.#local.psn, ...rcRts });
  }

  /** Ping and pong, until both have come `iters` times. */
  async #play(send: () => void, refill: { post(): void; length: number }, isServer: boolean): Promise<void> {
    const { iters, rxDepth, events, signal } = this.#o;
    const cq = this.#qp.sendCq;
    let posted = rxDepth;
    let [sent, received] = [0, 0];
    // What has to complete before the next send.
    let pending = isServer ? RECV : RECV | SEND;
    if (!isServer) send();
    while (sent < iters || received < iters) {
      if (isTurnDue()) await giveTurn(signal);
      const found = cq.poll() || (await nextCompletions(cq, events, signal));
      for (let i = 0; i < found; i++) {
        const wc = cq.at(i);
        const { wrId } = wc;
        if (wc.status !== WcStatus.SUCCESS) explain(wc, wrId === SEND ? 'send' : 'receive');
        if (wrId === SEND) sent++;
        else received++;
        if (wrId === RECV && --posted === rxDepth - refill.length) {
          refill.post();
          posted = rxDepth;
        }
        pending &= ~wrId;
        if (pending === 0 && sent < iters) {
          send();
          pending = RECV | SEND;
        }
      }
    }
  }
}

// What a message that is longer than the receive on the other side ends with, on either side.
const sizeErrors: readonly number[] = [WcStatus.LOC_LEN_ERR, WcStatus.REM_OP_ERR, WcStatus.REM_INV_REQ_ERR];

/** Throws what a completion tells of, with what is likely behind it. */
function explain(wc: WorkCompletion, operation: string): void {
  try {
    checkCompletion(wc, operation);
  } catch (error) {
    if (sizeErrors.includes(wc.status)) (error as Error).message += ': do both sides have the same -s?';
    throw error;
  }
}

function compare(came: Buffer, due: Buffer): void {
  const at = due.findIndex((byte, i) => byte !== came[i]);
  if (at < 0) return;
  const bytes = `0x${hex(came[at]!, 2)} in the place of 0x${hex(due[at]!, 2)}`;
  throw failure(`the received data is wrong from byte ${at} on, ${bytes}: both sides need --chk (-c), and the same -s`);
}

/** The message that a checking client sends, in all programs. */
function expected(size: number): Buffer {
  const message = Buffer.alloc(size, FILL);
  const pageSize = Number(execFileSync('getconf', ['PAGESIZE'], { encoding: 'utf8' }));
  for (let i = 0; i < size; i += pageSize) message[i] = 0;
  return message;
}
