import type { QueuePair } from '../verbs/queue-pair.ts';
import type { UdEvent } from './cm-event.ts';

interface Group {
  address: string;
  port: number;
  isSendOnly: boolean;
  /** The queue pair that is attached, and where. */
  attached?: { qp: QueuePair; mgid: string; mlid: number };
}

let last = 0;

/** The multicast groups of one id, by the numbers that librdmacm gives back in their events. @internal */
export class Groups {
  readonly #groups = new Map<number, Group>();

  enter(address: string, port: number, isSendOnly: boolean): number {
    last = (last % 0xffff_ffff) + 1;
    this.#groups.set(last, { address, port, isSendOnly });
    return last;
  }

  addressOf(number: number): string | undefined {
    return this.#groups.get(number)?.address;
  }

  /** The group is joined: its datagrams are for that queue pair. */
  attach(number: number, qp: QueuePair, { ahAttr }: UdEvent): void {
    const group = this.#groups.get(number);
    const mgid = ahAttr.grh?.dgid;
    if (group === undefined || group.isSendOnly || mgid === undefined) return;
    const mlid = ahAttr.dlid ?? 0;
    qp.attachMcast(mgid, mlid);
    group.attached = { qp, mgid, mlid };
  }

  /** Joined in vain. */
  delete(number: number): void {
    this.#groups.delete(number);
  }

  leave(address: string, port: number): void {
    for (const [number, group] of this.#groups) {
      if (group.address !== address || group.port !== port) continue;
      detach(group);
      this.#groups.delete(number);
      return;
    }
  }

  leaveAll(): void {
    for (const group of this.#groups.values()) detach(group);
    this.#groups.clear();
  }
}

function detach({ attached }: Group): void {
  if (attached && !attached.qp.closed) attached.qp.detachMcast(attached.mgid, attached.mlid);
}
