/** What the tests of the connection manager share: the wire's two addresses, and one connection made step by step. */
import { networkInterfaces } from 'node:os';
import { describe, expect, it, vi } from 'vitest';
import {
  type CmEvent,
  CmEventType,
  CmId,
  type CompletionQueue,
  type ConnParam,
  createEventChannel,
  type EventChannel,
  type MemoryRegion,
  openDevice,
  type ProtectionDomain,
  type QpInitAttr,
  type QueuePair,
  RdmaError,
} from '../../lib/index.ts';
import { ALL_ACCESS, backend, DEADLINE_MS, deviceA, deviceB, isSiw, thrown, within } from './fixture.ts';

/**
 * Tests of the connection manager. The software device is a model of verbs, with no connection manager of a kernel behind
 * it: what there is to say of it is that it says so.
 */
export function describeCm(name: string, tests: () => void): void {
  if (backend !== 'model') {
    describe(name, tests);
    return;
  }
  describe(name, () => {
    it('is refused with ENOENT from rdma_create_event_channel, and what to type, where the kernel has none', () => {
      const error = thrown(() => createEventChannel());
      expect(error).toBeInstanceOf(RdmaError);
      expect(error).toMatchObject({ code: 'ENOENT', syscall: 'rdma_create_event_channel' });
      expect(error.message).toContain('modprobe rdma_ucm');
    });
  });
}

/** The functions of the addon that take a handle of the connection manager, by its kind. */
export const cmFunctionsOf = {
  EventChannel: ['createCmEvents', 'createCmId', 'createEp', 'destroyEventChannel'],
  CmEvents: ['startCmEvents', 'stopCmEvents', 'takeCmId', 'destroyCmEvents'],
  CmId: [
    ...['queryCmId', 'bindAddr', 'resolveAddr', 'resolveRoute', 'setCmOption', 'migrateCmId', 'joinMulticast'],
    ...['leaveMulticast', 'listenCmId', 'connectCmId', 'acceptCmId', 'rejectCmId', 'establishCmId', 'notifyCmId'],
    ...['disconnectCmId', 'initQpAttr', 'destroyCmId'],
  ],
} as const;
export const cmFunctions: readonly string[] = Object.values(cmFunctionsOf).flat();

/** What a promise rejects with. */
export const rejection = (promise: Promise<unknown>): Promise<Error & { code?: string }> =>
  within(
    promise.then(
      () => new Error('it did not reject'),
      (error) => error,
    ),
    'a rejection',
  );

/** The address of `deviceA`, and the one of `deviceB`: of IPv4, and link-local with its interface. */
export const [addressA, addressB] = isSiw ? ['10.79.0.1', '10.79.0.2'] : ['10.78.0.1', '10.78.0.2'];

/** The interfaces that have them. */
export const [interfaceA, interfaceB] = isSiw ? ['w0', 'w1'] : ['v0', 'v1'];

/** The link-local address of an interface. */
export function linkLocal(name: string): string {
  const entry = networkInterfaces()[name]?.find(({ address }) => address.startsWith('fe80'));
  if (entry === undefined) throw new Error(`${name} has no link-local address`);
  return `${entry.address.split('%')[0]}%${name}`;
}

let lastPort = 20_000;
/** A port that no test has used. */
export function newPort(): number {
  return ++lastPort;
}

/** The number of a queue pair that does not exist: the kernel remembers those that it has seen. */
export function newQpNum(): number {
  return 0x10_0000 + ++lastPort;
}

/** A deadline for a step. */
export const soon = () => ({ signal: AbortSignal.timeout(DEADLINE_MS) });

/** An end of a connection. */
export interface CmSide {
  id: CmId;
  pd: ProtectionDomain;
  cq: CompletionQueue;
  qp: QueuePair;
  mr: MemoryRegion;
}

/** The objects that a queue pair needs, on one of the two devices. */
export async function cmSide(id: CmId, attr: Partial<QpInitAttr> = {}): Promise<CmSide> {
  const context = openDevice(id.device as string);
  const pd = context.allocPd();
  const cq = context.createCq(64);
  const mr = pd.allocSync(4096, { access: ALL_ACCESS });
  const qp = await id.createQp(pd, { sendCq: cq, cap: { maxSendWr: 16, maxRecvWr: 16 }, ...attr });
  return { id, pd, cq, qp, mr };
}

export function closeSide(side: CmSide): void {
  side.id.close();
  side.pd.context.close({ cascade: true });
}

/** An id that listens on the address of `deviceB`. */
export async function listening(channel: EventChannel, port: number, backlog = 8): Promise<CmId> {
  const id = channel.createId();
  await id.bindAddr({ address: addressB, port });
  id.listen(backlog);
  return id;
}

/** An id that has found the way from `deviceA` to `deviceB`. */
export async function resolved(channel: EventChannel, port: number): Promise<CmId> {
  const id = channel.createId();
  await id.resolveAddr({ address: addressB, port }, { src: { address: addressA }, ...soon() });
  await id.resolveRoute(soon());
  return id;
}

/** The next connection request. */
export async function request(listener: CmId): Promise<CmEvent> {
  const event = await listener.getEvent(soon());
  if (event.type !== CmEventType.CONNECT_REQUEST) throw new Error(`${event.name} came`);
  return event;
}

/** Two connected sides, and what they were told of each other. */
export class CmPair implements Disposable {
  readonly channel = createEventChannel();
  listener!: CmId;
  a!: CmSide;
  b!: CmSide;
  /** What b was asked, and what a was answered. */
  asked!: CmEvent;
  answered!: CmEvent;

  static async connect(
    params: { connect?: ConnParam; accept?: ConnParam; attr?: Partial<QpInitAttr> } = {},
  ): Promise<CmPair> {
    const pair = new CmPair();
    const port = newPort();
    pair.listener = await listening(pair.channel, port);
    pair.a = await cmSide(await resolved(pair.channel, port), params.attr);
    const answered = pair.a.id.connect(params.connect, soon());
    pair.asked = await request(pair.listener);
    pair.b = await cmSide(pair.asked.id, params.attr);
    await pair.b.id.accept(params.accept, soon());
    pair.answered = await answered;
    return pair;
  }

  [Symbol.dispose](): void {
    for (const { qp } of [this.a, this.b]) qp.close();
    for (const side of [this.a, this.b]) closeSide(side);
    this.channel.close({ cascade: true });
  }
}

export { deviceA, deviceB };

type Step = 'resolveAddr' | 'resolveRoute' | 'createQp' | 'connect' | 'accept';

/** Does something when the next step of that name has begun, of whatever id; the step goes on. */
export function during(step: Step, act: () => void): void {
  const original = CmId.prototype[step] as (this: CmId, ...args: unknown[]) => Promise<unknown>;
  const spy = vi.spyOn(CmId.prototype as Record<Step, typeof original>, step);
  spy.mockImplementation(function (this: CmId, ...args) {
    spy.mockRestore();
    const result = original.apply(this, args);
    act();
    return result;
  });
}
