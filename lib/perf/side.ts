/** What one side of a measurement has: queue pairs, memory, and what it knows of the peer. */
import {
  type ConnectionInfo,
  type ConnectOptions,
  connectionInfo,
  connectQueuePair,
  decodeConnectionInfo,
  encodeConnectionInfo,
} from '../endpoint/connect.ts';
import { AccessFlags, type Mtu } from '../native/constants.gen.ts';
import type { CompletionQueue } from '../verbs/completion-queue.ts';
import type { Context } from '../verbs/context.ts';
import type { GidEntry } from '../verbs/gid.ts';
import type { MemoryRegion, MemorySlice } from '../verbs/memory-region.ts';
import type { QueuePair } from '../verbs/queue-pair.ts';
import { RemoteRegion, type RemoteRegionToken } from '../verbs/remote-region.ts';

/** What both sides must agree on. */
export interface PerfSetup {
  /** Queue pairs. */
  qps: number;
  txDepth: number;
  rxDepth: number;
  /** Bytes of the longest message. */
  maxSize: number;
  /** Bytes that may go inline. */
  inline: number;
}

/** What one side tells the other to be connected. */
export interface PerfAddress {
  infos: string[];
  region: RemoteRegionToken;
}

// A line of memory apart, so that what is received does not share one with what is sent.
const aligned = (size: number) => Math.max(64, Math.ceil(size / 64) * 64);

/** One side. Its objects are closed with the context. */
export class Side {
  readonly qps: QueuePair[] = [];
  readonly sendCq: CompletionQueue;
  readonly recvCq: CompletionQueue;
  readonly #mr: MemoryRegion;
  readonly #options: ConnectOptions;
  readonly #room: number;
  /** Bytes of the longest message. */
  readonly maxSize: number;
  readonly #local: ConnectionInfo[];
  #remote: RemoteRegion | undefined;
  /** GID of this side, and its index. */
  readonly gid: GidEntry;
  /** Bytes of the path MTU, when it is connected. */
  mtu = 0;

  constructor(context: Context, setup: PerfSetup, options: ConnectOptions) {
    const { qps, txDepth, rxDepth, maxSize, inline } = setup;
    this.maxSize = maxSize;
    const pd = context.allocPd();
    const { maxCqe } = context.queryDevice();
    this.sendCq = context.createCq(Math.min(qps * txDepth + 1, maxCqe));
    this.recvCq = context.createCq(Math.min(qps * rxDepth + 1, maxCqe));
    const cap = { maxSendWr: txDepth, maxRecvWr: rxDepth, maxInlineData: inline };
    for (let i = 0; i < qps; i++) this.qps.push(pd.createQp({ sendCq: this.sendCq, recvCq: this.recvCq, cap }));
    this.#room = aligned(maxSize);
    const { LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC } = AccessFlags;
    this.#mr = pd.allocSync(2 * this.#room, { access: LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC });
    this.#options = options;
    const { portNum = 1, gidIndex } = options;
    this.gid = context.selectGid(portNum, gidIndex === undefined ? {} : { gidIndex });
    this.#local = this.qps.map((qp) => connectionInfo(qp, options));
  }

  get address(): PerfAddress {
    return {
      infos: this.#local.map((info) => encodeConnectionInfo(info).toString('base64')),
      region: this.#mr.remote(),
    };
  }

  /** Connects with the peer's queue pairs, one to one. */
  async connect({ infos, region }: PerfAddress): Promise<void> {
    this.#remote = new RemoteRegion(region);
    for (const [i, qp] of this.qps.entries()) {
      const info = decodeConnectionInfo(Buffer.from(String(infos[i]), 'base64'));
      await connectQueuePair(qp, this.#local[i]!, info, this.#options);
      this.mtu = 128 << (this.#options.mtu ?? (Math.min(this.#local[i]!.mtu, info.mtu) as Mtu));
    }
  }

  /** What is sent from here. */
  outgoing(bytes: number): MemorySlice {
    return this.#mr.slice(0, bytes);
  }

  /** Where it arrives here. */
  incoming(bytes: number): MemorySlice {
    return this.#mr.slice(this.#room, bytes);
  }

  /** Where it arrives there. */
  remoteIncoming(bytes: number) {
    return this.#remote!.slice(this.#room, bytes);
  }

  /** What is read from there. */
  remoteOutgoing(bytes: number) {
    return this.#remote!.slice(0, bytes);
  }
}
