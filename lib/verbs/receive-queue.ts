import { integer } from '../args.ts';
import type { SharedList } from '../native/native.ts';
import { elementsOf } from './post-list.ts';
import type { ProtectionDomain } from './protection-domain.ts';
import { RecvList, type RecvWr } from './recv-list.ts';
import { Resource } from './resource.ts';
import type { SharedWorkQueue, WorkQueue } from './work-queue.ts';

const LIST_CAPACITY = 64;

// What events name the queues of this thread by.
let lastId = 0;

/** The number of the next queue. @internal */
export function nextQueueId(): number {
  lastId = (lastId % 0xffff_ffff) + 1;
  return lastId;
}

// Queues that were collected open leave their domain's list.
const collected = new FinalizationRegistry<() => void>((leave) => leave());

/** What a queue of receives is made of. @internal */
export interface ReceiveQueueParts {
  parents: readonly Resource[];
  pd: ProtectionDomain;
  maxWr: number;
  maxSge: number;
  /** What events name it by. */
  kind: 'srq' | 'wq';
  id: number;
  /** What is in flight. */
  queue: WorkQueue | SharedWorkQueue;
  /** The verb that posts. */
  verb: string;
  /** Makes a list of requests, in memory shared with the addon. */
  createList: (length: number, maxSge: number, queueId: number) => SharedList;
}

/** A queue that has receives and nothing else: a `SharedReceiveQueue` or a `ReceiveWorkQueue`. */
export abstract class ReceiveQueue extends Resource {
  /** The domain it belongs to. */
  readonly pd: ProtectionDomain;
  /** Elements of a receive: what was granted. */
  readonly maxSge: number;
  readonly #parts: ReceiveQueueParts;
  #recvs: RecvList;
  readonly #leave: () => void;

  /** @internal */
  constructor(parts: ReceiveQueueParts) {
    const { pd, maxWr, maxSge, kind, id, queue } = parts;
    super(parts.parents);
    this.pd = pd.root;
    this.maxSge = maxSge;
    this.#parts = parts;
    pd.context.events.enter(kind, id, this);
    this.#recvs = this.#list(Math.min(maxWr, LIST_CAPACITY));
    const { queues } = pd.root;
    queues.add(queue);
    this.#leave = () => {
      queue.close();
      queues.delete(queue);
    };
    collected.register(this, this.#leave, this.#leave);
  }

  /** Receives that may be outstanding: as asked for. A provider may have granted more, which is not used. */
  get maxWr(): number {
    return this.#parts.queue.capacity;
  }

  /** Receives in flight: posted and not completed. */
  get recvsInFlight(): number {
    return this.#parts.queue.length;
  }

  /**
   * Posts receives, in their order. The memory they use is held until their completion was polled.
   *
   * @param wrs - one, or a list
   * @throws as `qp.postRecv()`; a receive work queue takes them in the states RDY and ERR
   * @see ibv_post_srq_recv(3), ibv_post_wq_recv(3)
   */
  postRecv(wrs: RecvWr | readonly RecvWr[]): void {
    if (!Array.isArray(wrs)) this.#recvs.postOne(wrs as RecvWr);
    else if (wrs.length > 0) this.#recvs.postAll(wrs);
    else this.requireOpen();
  }

  /** Prepares a list of receives, of at most `maxWr`. */
  prepareRecv(wrs: RecvWr | readonly RecvWr[]): RecvList {
    this.requireOpen();
    const requests = Array.isArray(wrs) ? elementsOf(wrs as readonly RecvWr[], this.maxWr + 1) : [wrs as RecvWr];
    integer(requests.length, 'wrs.length', 1, this.maxWr);
    const list = this.#list(requests.length);
    requests.forEach((wr, i) => list.encode(i, wr, i));
    return list;
  }

  /** `maxWr` is another now. @internal */
  protected resized(): void {
    this.#recvs = this.#list(Math.min(this.maxWr, LIST_CAPACITY));
  }

  #list(length: number): RecvList {
    const { createList, queue, verb } = this.#parts;
    const shared = createList(length, this.maxSge, queue.id);
    return new RecvList(this, queue, shared, length, this.maxSge, verb, 0);
  }

  /** @internal */
  abstract refuse(verb: string): never;

  protected override onLost(): void {
    this.#parts.queue.postable = false;
  }

  /** Once the verbs object is destroyed. @internal */
  protected destroyed(): void {
    const { kind, id } = this.#parts;
    this.pd.context.events.leave(kind, id);
    collected.unregister(this.#leave);
    this.#leave();
  }
}
