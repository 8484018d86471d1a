import { inspect } from 'node:util';
import { rangeError, uint32 } from '../args.ts';
import { QueueFullError, RdmaError } from '../errors.ts';
import { hex, type Inspecting, shown } from '../inspect.ts';
import { AccessFlags, MwType, WrOpcode } from '../native/constants.gen.ts';
import { threadMark } from '../thread.ts';
import type { MemoryWindow } from '../verbs/memory-window.ts';
import type { ProtectionDomain } from '../verbs/protection-domain.ts';
import type { RemoteRegionToken } from '../verbs/remote-region.ts';
import type { Operations } from './operations.ts';

/**
 * Memory that the peer may use until it is taken back: made by `endpoint.share()`. It is a memory window of type 2: a key of its
 * own, which no other connection can use, and which is worth nothing once it is revoked.
 *
 * `JSON.stringify()` gives its token, which `RemoteRegion.parse()` reads there.
 */
export class SharedMemory {
  /** @internal */
  readonly thread = threadMark('SharedMemory');
  /** What the peer makes its `RemoteRegion` of. */
  readonly token: RemoteRegionToken;
  readonly #endpoint: Operations;
  readonly #window: MemoryWindow;
  readonly #forget: () => void;
  #isInvalid = false;
  #revoking: Promise<void> | undefined;

  /** @internal */
  constructor(endpoint: Operations, window: MemoryWindow, forget: () => void) {
    this.#endpoint = endpoint;
    this.#window = window;
    this.#forget = forget;
    this.token = window.remote() as RemoteRegionToken;
  }

  /** Whether the peer can use it no more: it was revoked, or the peer has given it back (SEND_WITH_INV). */
  get isRevoked(): boolean {
    return this.#isInvalid || this.#window.closed;
  }

  /**
   * Takes it back, in its turn among the operations of the endpoint: when the promise resolves, the key is worth nothing
   * whoever has it, and the peer's next use of it ends the connection (REM_ACCESS_ERR there). Idempotent; also after the
   * connection has ended, and then by the kernel.
   *
   * @throws QueueFullError when more than `maxWaiting` would wait: it is not revoked then, and may be asked again
   * @see ibv_post_send(3), IBV_WR_LOCAL_INV
   */
  revoke(): Promise<void> {
    this.#revoking ??= this.#revoke();
    return this.#revoking;
  }

  /** The same as `revoke()`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.revoke();
  }

  /** The token. */
  toJSON(): RemoteRegionToken {
    return this.token;
  }

  /** @internal */
  [inspect.custom](...how: Inspecting): object | string {
    const tag = #window in this && this.isRevoked ? 'revoked' : undefined;
    const fields = () => ({ addr: this.token.addr, length: this.token.length, rkey: hex(this.token.rkey) });
    return shown('SharedMemory', tag, fields, ...how);
  }

  /** The peer has invalidated the key. @internal */
  invalidated(): void {
    this.#isInvalid = true;
  }

  async #revoke(): Promise<void> {
    if (!this.isRevoked) {
      const wr = { wrId: 0, opcode: WrOpcode.LOCAL_INV, invalidateRkey: this.token.rkey };
      try {
        await this.#endpoint.perform(wr, 'revoke', undefined);
        this.#isInvalid = true;
      } catch (error) {
        if (error instanceof QueueFullError) {
          this.#revoking = undefined;
          throw error;
        }
        // The connection has ended. The kernel takes the key back with the window.
      }
    }
    this.#window.close();
    this.#forget();
  }
}

const { REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC } = AccessFlags;

/** What a peer may be allowed. @internal */
export function checkSharedAccess(access: number): void {
  if ((uint32(access, 'access') & ~(REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC)) === 0) return;
  throw rangeError(`access must be of REMOTE_WRITE, REMOTE_READ and REMOTE_ATOMIC, not 0x${access.toString(16)}`);
}

/** A window of type 2. @internal */
export function windowOf(pd: ProtectionDomain): MemoryWindow {
  try {
    return pd.allocMw(MwType.MW_TYPE_2);
  } catch (error) {
    if (!(error instanceof RdmaError && error.code === 'EOPNOTSUPP')) throw error;
    throw error.explained(
      'the device has no memory windows of type 2: use mr.remote(), and close the region to revoke it',
    );
  }
}
