import type { QueuePair } from '../verbs/queue-pair.ts';
import type { RecvWr } from '../verbs/recv-list.ts';
import type { SendWr } from '../verbs/send-wr.ts';
import type { WorkCompletion } from '../verbs/work-completion.ts';
import type { RequestQueue } from './request-queue.ts';

const settled = Promise.resolve();

// Promises alone never let the event loop have its turn: every so often completions are looked for after it.
const TURN = 512;

/**
 * Takes the completions of a queue pair: at the end of each turn in which something was posted, and by events while more
 * are to come. Only then does it keep the process alive.
 *
 * @internal
 */
export class CompletionLoop {
  readonly #qp: QueuePair;
  readonly #sends: RequestQueue<SendWr>;
  readonly #recvs: RequestQueue<RecvWr>;
  readonly #settle: (wc: WorkCompletion) => void;
  readonly #lost: (error: Error) => void;
  #isScheduled = false;
  #turns = 0;
  #isWaiting = false;

  /**
   * @param queues - what completions are for
   * @param settle - takes one
   * @param lost - none will come any more
   */
  constructor(
    qp: QueuePair,
    queues: { sends: RequestQueue<SendWr>; recvs: RequestQueue<RecvWr> },
    settle: (wc: WorkCompletion) => void,
    lost: (error: Error) => void,
  ) {
    this.#qp = qp;
    this.#sends = queues.sends;
    this.#recvs = queues.recvs;
    this.#settle = settle;
    this.#lost = lost;
  }

  /** Whether any are to come. */
  get isPending(): boolean {
    return !this.#sends.isIdle || !this.#recvs.isIdle;
  }

  /** Looks at the end of this turn, once for all requests of it: fast devices have completed by then, without any event. */
  look(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    this.#turns = (this.#turns + 1) % TURN;
    if (this.#turns === 0) setImmediate(this.#turn);
    else settled.then(this.#turn);
  }

  /** Takes what there is. Returns whether there was anything. */
  drain(): boolean {
    const cq = this.#qp.sendCq;
    let count = cq.poll();
    if (count === 0) return false;
    do {
      for (let i = 0; i < count; i++) this.#settle(cq.at(i));
      this.pump();
      count = this.isPending ? cq.poll() : 0;
    } while (count > 0);
    return true;
  }

  /** Posts what waits for a place. */
  pump(): void {
    if (this.#sends.waiting > 0) this.#sends.pump();
    if (this.#recvs.waiting > 0) this.#recvs.pump();
  }

  readonly #turn = (): void => {
    this.#isScheduled = false;
    if (this.#qp.closed) return;
    try {
      this.pump();
      this.drain();
    } catch (error) {
      // The device is lost, or the queue cannot be polled any more.
      this.#lost(error as Error);
    }
    if (!this.#isWaiting && this.isPending) void this.#wait();
  };

  async #wait(): Promise<void> {
    const cq = this.#qp.sendCq;
    this.#isWaiting = true;
    cq.channel?.hold();
    try {
      while (this.isPending) {
        // One at a time, so that what it makes happen is not kept waiting.
        if (cq.spinUs > 0 && (await cq.spin(() => this.drain(), undefined))) continue;
        // Poll, arm, poll again, wait: what arrives between the first two makes no event.
        cq.reqNotify();
        this.drain();
        if (!this.isPending) break;
        await cq.nextEvent(undefined);
        // Who waited for these goes first: to arm is a system call, and often nothing more is to come.
        if (this.drain()) await settled;
      }
    } catch (error) {
      // The queue was closed meanwhile (RdmaClosedError), or cannot be polled any more.
      this.#lost(error as Error);
    } finally {
      cq.channel?.release();
      this.#isWaiting = false;
    }
  }
}
