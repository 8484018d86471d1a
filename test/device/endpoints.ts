/** What the tests of endpoints share: two connected ones, each with memory of its own. */
import {
  type Context,
  connectTcp,
  type Endpoint,
  type EndpointOptions,
  listenTcp,
  type MemoryRegion,
  openDevice,
  type ProtectionDomain,
  RemoteRegion,
} from '../../lib/index.ts';
import { ALL_ACCESS, deviceA, deviceB, within } from './fixture.ts';

export interface EndsOptions {
  /** How a's endpoint is made, and b's. */
  a?: Partial<EndpointOptions>;
  b?: Partial<EndpointOptions>;
  /** Access flags of the memory. */
  access?: number;
}

/** An endpoint on device A and one on device B, connected. Ends with all that there is. */
export class Ends implements AsyncDisposable {
  readonly pdA: ProtectionDomain;
  readonly pdB: ProtectionDomain;
  readonly mrA: MemoryRegion;
  readonly mrB: MemoryRegion;
  /** The memory of b as a sees it. */
  readonly remoteB: RemoteRegion;
  a!: Endpoint;
  b!: Endpoint;

  private constructor(access: number) {
    const [a, b] = [openDevice(deviceA), openDevice(deviceB)] as [Context, Context];
    this.pdA = a.allocPd();
    this.pdB = b.allocPd();
    this.mrA = this.pdA.allocSync(64 * 1024, { access });
    this.mrB = this.pdB.allocSync(64 * 1024, { access });
    this.remoteB = new RemoteRegion(this.mrB.remote());
  }

  static async connect({ a, b, access = ALL_ACCESS }: EndsOptions = {}): Promise<Ends> {
    const ends = new Ends(access);
    // A receiver that is not ready shall not be waited for long.
    const listener = await listenTcp({ pd: ends.pdB, port: 0, host: '127.0.0.1', minRnrTimer: 1, ...b });
    const to = { pd: ends.pdA, host: '127.0.0.1', port: listener.port, minRnrTimer: 1, ...a };
    [ends.b, ends.a] = await within(Promise.all([listener.accept(), connectTcp(to)]), 'the connection');
    await listener.close();
    return ends;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const endpoint of [this.a, this.b]) await within(endpoint.close(), 'the end of an endpoint');
    for (const pd of [this.pdA, this.pdB]) pd.context.close({ cascade: true });
  }
}

/** How promises end, one word for each. */
export async function outcomes(promises: readonly Promise<unknown>[], what: string): Promise<string[]> {
  const word = (error: { statusName?: string; code?: string; name: string }) =>
    error.statusName ?? error.code ?? error.name;
  return within(Promise.all(promises.map((promise) => promise.then(() => 'SUCCESS', word))), what);
}
