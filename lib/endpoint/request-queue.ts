import { PostError, QueueFullError } from '../errors.ts';
import { SendFlags } from '../native/constants.gen.ts';
import { MemorySlice } from '../verbs/memory-region.ts';
import type { QueuePair } from '../verbs/queue-pair.ts';
import type { RecvWr } from '../verbs/recv-list.ts';
import type { Resource } from '../verbs/resource.ts';
import type { SendWr } from '../verbs/send-wr.ts';
import type { Using } from '../verbs/work-queue.ts';
import type { Received } from './operations.ts';

/** A work request of an endpoint, and who is told how it ends. @internal */
export interface Request<Wr = SendWr | RecvWr> {
  /** The method of the endpoint that asked for it. */
  readonly name: string;
  readonly wr: Wr;
  readonly resolve: (received: Received) => void;
  readonly reject: (error: Error) => void;
  /** Whether nobody waits for its completion: it is posted by the end of this turn, and that is all that is promised. */
  readonly isUnsignaled: boolean;
  /** Posts it, where that takes another verb than the others do. */
  readonly post: ((wrId: number) => void) | undefined;
}

interface Checker<Wr> {
  set(index: number, wr: Wr): void;
}

/** What a send's promise resolves with, if only as a formality: its type is void. @internal */
export const NOTHING = undefined as unknown as Received;

/** The lowest bit of the wrId of receives. @internal */
export const RECV = 1;

// Requests of a list: as many as one call of postSend() posts by one call into C.
const LIST = 64;
// Requests are numbered by 30 bits, and the number and the direction are a wrId that V8 keeps as a small integer.
const NUMBERS = 0x3fff_ffff;

/**
 * The requests of one direction: those that are under way, which complete in order, and those that wait for a place.
 *
 * What is posted when it is asked for has a completion of its own. What had to wait is posted as lists, of which the last
 * request has a completion, and one in so many before it: the others are known to be complete by that.
 *
 * @internal
 */
export class RequestQueue<Wr extends SendWr | RecvWr> implements Using {
  readonly #qp: QueuePair;
  // The lowest bit of the wrId: which of an endpoint's queues. Receives have 1.
  readonly #mark: 0 | 1;
  readonly #capacity: number;
  readonly #maxWaiting: number;
  readonly #broken: (error: Error) => void;
  // What is under way, at number & mask, and the numbers of the oldest and of the next.
  readonly #underWay: (Request<Wr> | undefined)[];
  readonly #mask: number;
  #head = 0;
  #tail = 0;
  // In the order of the calls. A set, since an abort takes one out of the middle.
  readonly #waiting = new Set<Request<Wr>>();
  // A completion for each so many. As many places must be free before some of what waits is posted.
  readonly #stride: number;
  // What checks a request without posting it.
  #checker: Checker<Wr> | undefined;
  // What a request rejects with that cannot be posted any more.
  #refusal: ((request: Request<Wr>) => Error) | undefined;

  /**
   * @param qp - whose send queue it is, or its receive queue
   * @param maxWaiting - how many may wait
   * @param broken - told when a list is posted in part, and no completion will say how that part ended
   */
  constructor(qp: QueuePair, isRecv: boolean, maxWaiting: number, broken: (error: Error) => void) {
    this.#qp = qp;
    this.#mark = isRecv ? RECV : 0;
    this.#broken = broken;
    // A queue of no length at all is for the verb to refuse.
    this.#capacity = Math.max(isRecv ? qp.cap.maxRecvWr : qp.cap.maxSendWr, 1);
    this.#maxWaiting = maxWaiting;
    this.#stride = Math.min(Math.max(this.#capacity >> 2, 1), LIST);
    this.#mask = 2 ** Math.ceil(Math.log2(this.#capacity)) - 1;
    this.#underWay = new Array<Request<Wr> | undefined>(this.#mask + 1).fill(undefined);
  }

  /** Requests under way. */
  get length(): number {
    return (this.#tail - this.#head) & NUMBERS;
  }

  /** Requests that wait for a place. */
  get waiting(): number {
    return this.#waiting.size;
  }

  /** Whether there is nothing under way and nothing that waits. */
  get isIdle(): boolean {
    return this.#tail === this.#head && this.#waiting.size === 0;
  }

  /**
   * Posts a request, or lets it wait for its turn.
   *
   * @throws what the verb throws, and the request is forgotten; QueueFullError
   */
  add(request: Request<Wr>): void {
    if (this.#refusal) throw this.#refusal(request);
    if (this.#waiting.size === 0 && !request.isUnsignaled && this.length < this.#capacity) {
      const { wr, post } = request;
      wr.wrId = (this.#tail << 1) | this.#mark;
      if (post === undefined) this.#post(wr);
      else post(wr.wrId);
      this.#enter(request);
      return;
    }
    this.#requireRoom(1);
    this.#wait(request);
    if (request.isUnsignaled && this.#waiting.size < this.#stride) return;
    this.pump();
    if (!this.#waiting.has(request)) return;
    try {
      this.#check(request);
    } catch (error) {
      this.withdraw(request);
      throw error;
    }
  }

  /** As `add()`, for several that nothing comes between; with a mistake in one of them none is posted. */
  addAll(requests: readonly Request<Wr>[]): void {
    if (this.#refusal) throw this.#refusal(requests[0] as Request<Wr>);
    const isWhole = this.#waiting.size === 0 && requests.length <= Math.min(LIST, this.#capacity - this.length);
    if (isWhole) {
      const { error, taken } = this.#postList(requests);
      for (let i = taken; i < requests.length; i++) requests[i]?.reject(error as Error);
      return;
    }
    this.#requireRoom(requests.length);
    requests.forEach((request, i) => {
      try {
        this.#check(request);
      } catch (error) {
        throw told(error, 'batch', i);
      }
    });
    for (const request of requests) this.#wait(request);
    this.pump();
  }

  /** Takes one out that still waits for its turn. Returns whether it did. */
  withdraw(request: Request<Wr>): boolean {
    const isFound = this.#waiting.delete(request);
    if (this.#waiting.size === 0) this.#qp.pd.queues.delete(this);
    return isFound;
  }

  #wait(request: Request<Wr>): void {
    this.#waiting.add(request);
    this.#qp.pd.queues.add(this);
  }

  /** Posts what waits, as far as there are places. */
  pump(): void {
    if (this.#refusal) {
      if (this.length === 0) for (const request of this.#waiting) this.#settleWaiting(request, this.#refusal(request));
      return;
    }
    let most = LIST;
    while (this.#waiting.size > 0) {
      const room = this.#capacity - this.length;
      if (room < Math.min(this.#stride, this.#waiting.size)) break;
      const requests = this.#next(Math.min(room, most));
      const { taken, error } = this.#postList(requests);
      for (let i = 0; i < taken; i++) this.withdraw(requests[i] as Request<Wr>);
      if (error === undefined) continue;
      const refused = requests[taken];
      // A mistake in any of them, such as memory that was closed, and none was posted: it is found one by one.
      if (requests.length > 1 && !(error instanceof PostError)) most = 1;
      else if (refused !== undefined) {
        this.withdraw(refused);
        refused.reject(told(error, refused.name));
      }
    }
  }

  /**
   * The request of a completion, which is no longer under way. Those in front of it have completed as well.
   *
   * @param wrId - of the completion
   */
  take(wrId: number): Request<Wr> | undefined {
    let ahead = ((wrId >> 1) - this.#head) & NUMBERS;
    if (ahead >= this.length) return undefined;
    for (; ahead > 0; ahead--) this.#shift().resolve(NOTHING);
    return this.#shift();
  }

  /** Nothing is posted any more: what waits is rejected when all that is under way has ended. */
  end(refusal: (request: Request<Wr>) => Error): void {
    this.#refusal = refusal;
  }

  /**
   * Nothing will complete any more.
   *
   * @param error - what the requests reject with. Default: the refusal of `end()`
   */
  abandon(error?: Error): void {
    const reason = (request: Request<Wr>) => error ?? (this.#refusal?.(request) as Error);
    while (this.length > 0) {
      const request = this.#shift();
      settle(request, reason(request));
    }
    for (const request of this.#waiting) this.#settleWaiting(request, reason(request));
  }

  #settleWaiting(request: Request<Wr>, error: Error): void {
    this.withdraw(request);
    settle(request, error);
  }

  /** Requests that wait and use a region. */
  uses(resource: Resource): number {
    let count = 0;
    for (const { wr } of this.#waiting) if (slicesOf(wr).some((slice) => slice.region === resource)) count++;
    return count;
  }

  #requireRoom(count: number): void {
    const waiting = this.#waiting.size + Math.max(count - (this.#capacity - this.length), 0);
    if (count > 0 && waiting > this.#maxWaiting) throw new QueueFullError(this.length, this.#waiting.size);
  }

  // What must wait is checked before, so that a mistake is told at once.
  #check({ wr, post }: Request<Wr>): void {
    if (post !== undefined) return;
    const qp = this.#qp;
    if (this.#checker !== undefined) this.#checker.set(0, wr);
    else this.#checker = (this.#mark === RECV ? qp.prepareRecv(wr) : qp.prepareSend(wr as SendWr)) as Checker<Wr>;
  }

  #post(wrs: Wr | readonly Wr[]): void {
    if (this.#mark === RECV) this.#qp.postRecv(wrs as RecvWr | readonly RecvWr[]);
    else this.#qp.postSend(wrs as SendWr | readonly SendWr[]);
  }

  // The first of those that wait: only such as one list can have.
  #next(most: number): Request<Wr>[] {
    const requests: Request<Wr>[] = [];
    for (const request of this.#waiting) {
      if (requests.length === most || (request.post !== undefined && requests.length > 0)) break;
      requests.push(request);
      if (request.post !== undefined) break;
    }
    return requests;
  }

  // Posts them by one call: all, or with an error those in front of one that is refused.
  #postList(requests: readonly Request<Wr>[]): { taken: number; error?: Error } {
    const last = requests.length - 1;
    const wrs = requests.map(({ wr }, i) => {
      wr.wrId = (((this.#tail + i) & NUMBERS) << 1) | this.#mark;
      if (this.#mark !== RECV) signal(wr as SendWr, i === last || i % this.#stride === this.#stride - 1);
      return wr;
    });
    let taken = requests.length;
    let error: Error | undefined;
    try {
      const post = requests[0]?.post;
      if (post === undefined) this.#post(wrs);
      else post(wrs[0]?.wrId as number);
    } catch (thrown) {
      error = thrown as Error;
      taken = error instanceof PostError ? error.index : 0;
    }
    for (let i = 0; i < taken; i++) this.#enter(requests[i] as Request<Wr>);
    if (error === undefined) return { taken };
    if (taken > 0 && taken <= last) this.#broken(error);
    return { taken, error };
  }

  // It is posted.
  #enter(request: Request<Wr>): void {
    this.#underWay[this.#tail & this.#mask] = request;
    this.#tail = (this.#tail + 1) & NUMBERS;
    if (request.isUnsignaled) request.resolve(NOTHING);
  }

  #shift(): Request<Wr> {
    const slot = this.#head & this.#mask;
    const request = this.#underWay[slot] as Request<Wr>;
    this.#underWay[slot] = undefined;
    this.#head = (this.#head + 1) & NUMBERS;
    return request;
  }
}

function signal(wr: SendWr, isSignaled: boolean): void {
  const flags = wr.sendFlags ?? 0;
  wr.sendFlags = isSignaled ? flags | SendFlags.SIGNALED : flags & ~SendFlags.SIGNALED;
}

/**
 * An error about a request in the words of the method that was called, whose arguments are no requests.
 *
 * @param index - its position in what `batch()` was given
 * @internal
 */
export function told(error: unknown, name: string, index = 0): Error {
  // A getter of the caller's may throw anything.
  if (!(error instanceof Error)) return error as Error;
  const { message, stack } = error;
  const texts = /^(wr|wrs\[\d+\]|request)(?![\w[])(?:\.(\w+))?/.exec(message);
  if (texts === null) return error;
  const [old, request, field] = texts;
  let text = argumentOf(name, field ?? '') ?? old;
  if (name === 'batch') text = request === 'wr' ? old.replace('wr', `wrs[${index}]`) : old;
  if (text === old) return error;
  const said = text + message.slice(old.length);
  return Object.assign(error, { message: said, stack: stack?.replace(message, () => said) });
}

// What a field of a request is called by who asked for it.
function argumentOf(name: string, field: string): string | undefined {
  if (name.startsWith('options.recvs')) return name;
  if (name === 'share') return field === 'local' ? 'memory' : field;
  if (field === 'sgList') return 'local';
  if (field === 'compareAdd') return name === 'fetchAdd' ? 'add' : 'compare';
  if (field === 'immData' && name === 'send') return 'options.immData';
  return field === '' ? undefined : field;
}

// Who waits for nothing is told nothing of an end: `endpoint.closed` says why.
function settle(request: Request, error: Error): void {
  if (request.isUnsignaled) request.resolve(NOTHING);
  else request.reject(error);
}

/** The local memory of a request. @internal */
export function slicesOf({ sgList }: SendWr | RecvWr): readonly MemorySlice[] {
  if (MemorySlice.is(sgList)) return [sgList];
  // One that waits for the end of its turn was not checked yet.
  return Array.isArray(sgList) ? sgList.filter(MemorySlice.is) : [];
}
