import { constants } from 'node:os';
import { CqOverrunError } from '../errors.ts';
import type { CompletionQueue } from './completion-queue.ts';
import type { Resource } from './resource.ts';

/** What a queue pair, or whatever else completes in a queue, can have completed there before somebody polls. @internal */
export interface Claim {
  /** Send requests. Unsignalled ones count: each of them completes when it fails. */
  sends: number;
  /** Receives of its own. */
  recvs: number;
  /** Receives that it shares with others: counted once, however many queue pairs take them. */
  srq: { readonly maxWr: number } | null;
}

/** Who completes in one completion queue, and how much of it they can fill. @internal */
export class CompletionClaims {
  /** Completions that there can be at once. */
  total = 0;
  // Keeps the queue pairs: one that is dropped in flight must not take its requests along.
  readonly #claims = new Map<Resource, Claim>();
  // How many of them take from each shared queue.
  readonly #srqs = new Map<object, number>();

  /** How many they are. */
  get owners(): number {
    return this.#claims.size;
  }

  /**
   * Refuses what does not fit.
   *
   * @param cqe - entries of the queue
   * @param syscall - the verb that is not called then
   */
  require(cqe: number, claim: Claim, syscall: string): void {
    const srq = claim.srq !== null && !this.#srqs.has(claim.srq) ? claim.srq.maxWr : 0;
    const asked = claim.sends + claim.recvs + srq;
    if (this.total + asked <= cqe) return;
    const parts = [
      claim.sends > 0 ? `${claim.sends} sends` : '',
      claim.recvs > 0 ? `${claim.recvs} receives` : '',
      srq > 0 ? `${srq} shared receives` : '',
    ].filter(Boolean);
    const more = ` + ${asked} asked (${parts.join(' + ')}) = ${this.total + asked}`;
    const sum = `${this.total} claimed${asked === 0 ? '' : more}`;
    throw new CqOverrunError(syscall, constants.errno.EINVAL, { cqe, claimed: this.total, asked }, sum);
  }

  add(owner: Resource, claim: Claim): void {
    this.#claims.set(owner, claim);
    this.total += claim.sends + claim.recvs;
    if (claim.srq === null) return;
    const sharers = this.#srqs.get(claim.srq) ?? 0;
    if (sharers === 0) this.total += claim.srq.maxWr;
    this.#srqs.set(claim.srq, sharers + 1);
  }

  /** A shared receive queue has become longer by so many receives, or shorter. */
  resized(srq: Resource, more: number): void {
    if (this.#srqs.has(srq)) this.total += more;
    const own = this.#claims.get(srq);
    if (own === undefined) return;
    own.recvs += more;
    this.total += more;
  }

  remove(owner: Resource): void {
    const claim = this.#claims.get(owner);
    if (claim === undefined) return;
    this.#claims.delete(owner);
    this.total -= claim.sends + claim.recvs;
    if (claim.srq === null) return;
    const sharers = (this.#srqs.get(claim.srq) ?? 0) - 1;
    if (sharers > 0) {
      this.#srqs.set(claim.srq, sharers);
    } else {
      this.#srqs.delete(claim.srq);
      this.total -= claim.srq.maxWr;
    }
  }
}

/** What a queue pair claims of its completion queues, which may be one. @internal */
export function claimsOf(sendCq: CompletionQueue, recvCq: CompletionQueue, whole: Claim): Map<CompletionQueue, Claim> {
  if (sendCq === recvCq) return new Map([[sendCq, whole]]);
  return new Map([
    [sendCq, { ...whole, recvs: 0, srq: null }],
    [recvCq, { ...whole, sends: 0 }],
  ]);
}
