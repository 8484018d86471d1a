/** Two sides that are connected by the TCP exchange and carry messages. */
import {
  type Context,
  connectTcp,
  type Endpoint,
  listenTcp,
  type MessageEndpointOptions,
  messageEndpoint,
  openDevice,
  type ProtectionDomain,
} from '../../lib/index.ts';
import { deviceA, deviceB, within } from './fixture.ts';

type Limits = Partial<Omit<MessageEndpointOptions, 'pd'>>;

/** Both devices, each with a domain. */
export class Ends {
  readonly contexts: [Context, Context];
  readonly pdA: ProtectionDomain;
  readonly pdB: ProtectionDomain;

  constructor() {
    this.contexts = [openDevice(deviceA), openDevice(deviceB)];
    [this.pdA, this.pdB] = this.contexts.map((context) => context.allocPd()) as [ProtectionDomain, ProtectionDomain];
    // The shared channels of the contexts are made with their first queue, and outlive the tests.
    for (const context of this.contexts) context.createCq(1).close();
  }

  close(): void {
    for (const context of this.contexts) context.close({ cascade: true });
  }

  /** Two endpoints that can carry messages, of A and of B. */
  async connect(a: Limits = {}, b: Limits = a): Promise<[Endpoint, Endpoint]> {
    // A dead peer is to be noticed soon; a live one on a busy machine may take long to answer.
    // And no frame ever finds no receive: the first that did would end the connection.
    const how = { host: '127.0.0.1', timeout: 15, retryCnt: 6, rnrRetry: 0 };
    const listener = await listenTcp({ ...messageEndpoint({ pd: this.pdB, ...b }), ...how, port: 0 });
    const to = { ...messageEndpoint({ pd: this.pdA, ...a }), ...how, port: listener.port };
    const pair = await Promise.all([within(connectTcp(to), 'connect'), within(listener.accept(), 'accept')]);
    await listener.close();
    return pair;
  }
}
