/** What the two sides of a copy tell each other: objects as JSON, and the bytes of files between them. */
import type { Message } from '../endpoint/message-receiver.ts';
import type { Messages } from '../endpoint/messages.ts';
import { AccessFlags } from '../native/constants.gen.ts';
import type { MemoryRegion, MemorySlice } from '../verbs/memory-region.ts';
import type { ProtectionDomain } from '../verbs/protection-domain.ts';
import { CopyError, protocolError } from './errors.ts';

/** The longest piece of a file in a message. */
export const PIECE_BYTES = 1 << 20;
// Pieces under way in one direction.
const PIECES = 4;
// No object of ours is longer: a path has 4096 bytes, as JSON six times that.
const MAX_OBJECT = 32_768;

/** What messages of copies are made with. */
export const copyLimits = {
  bufferBytes: 16_384,
  buffers: 8,
  maxMessageBytes: PIECE_BYTES,
  receiveBytes: 2 * PIECES * PIECE_BYTES,
} as const;

/** An object of a peer: nothing in it is as it should be until it was looked at. */
export class Said {
  readonly #value: Record<string, unknown>;

  constructor(value: unknown) {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) throw protocolError('no object');
    this.#value = value as Record<string, unknown>;
  }

  has(name: string): boolean {
    return Object.hasOwn(this.#value, name);
  }

  count(name: string, max: number = Number.MAX_SAFE_INTEGER): number {
    const value = this.has(name) ? this.#value[name] : undefined;
    if (Number.isSafeInteger(value) && (value as number) >= 0 && (value as number) <= max) return value as number;
    throw protocolError(`no number ${name}`);
  }

  object(name: string): Said {
    return new Said(this.has(name) ? this.#value[name] : undefined);
  }

  text(name: string): string {
    const value = this.has(name) ? this.#value[name] : undefined;
    if (typeof value === 'string') return value;
    throw protocolError(`no text ${name}`);
  }
}

// What a peer calls an error is printed: on one line, and without what moves the cursor.
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is to be taken out
const printable = (text: string) => text.replace(/[\x00-\x1f\x7f-\x9f]/g, '?').slice(0, 1000);

const isCode = (code: unknown): code is string => typeof code === 'string' && /^[A-Z][A-Z0-9_]{0,63}$/.test(code);

/** Objects and pieces over messages. */
export class CopyChannel {
  readonly messages: Messages;
  readonly #pd: ProtectionDomain;
  // The peer may read all of it: there is never anything in it but pieces for this peer.
  #region: MemoryRegion | undefined;
  #free: MemorySlice[] = [];
  #wake: (() => void) | undefined;
  #failed: Error | undefined;

  constructor(messages: Messages, pd: ProtectionDomain) {
    this.messages = messages;
    this.#pd = pd;
  }

  async send(object: object): Promise<void> {
    const bytes = Buffer.from(JSON.stringify(object));
    if (bytes.length > MAX_OBJECT) throw new CopyError('ENAMETOOLONG', 'the path is too long');
    await this.messages.send(bytes);
  }

  /** Tells the peer what went wrong, in its turn. */
  async sendError(error: Error): Promise<void> {
    const { code: given } = error as NodeJS.ErrnoException;
    const code = isCode(given) ? given : 'EIO';
    // A mistake of ours is no business of the peer's.
    const message = error instanceof CopyError ? error.message : code;
    await this.send({ error: { code, message: message.slice(0, 4500) } });
  }

  /** The next object, or undefined when the peer has ended. @throws the CopyError that the peer has sent */
  async next(): Promise<Said | undefined> {
    let message = await this.messages.receive();
    // A peer that gives up has said so in place of a piece, and there was none to come.
    while (message?.byteLength === 0) {
      message.release();
      message = await this.messages.receive();
    }
    if (message === undefined) return undefined;
    let said: Said;
    try {
      if (message.byteLength > MAX_OBJECT) throw protocolError(`an object of ${message.byteLength} bytes`);
      said = new Said(parsed(message.data.toString('utf8')));
    } finally {
      message.release();
    }
    if (!said.has('error')) return said;
    const error = said.object('error');
    const code = error.text('code');
    if (!isCode(code)) throw protocolError('no code of an error');
    throw new CopyError(code, printable(error.text('message')), { isRemote: true });
  }

  /** The next object. */
  async receive(): Promise<Said> {
    const said = await this.next();
    if (said === undefined) throw new CopyError('ECONNRESET', 'the peer has ended in the middle');
    return said;
  }

  /** A piece of a file: of no bytes when the peer gives up. It must be released. */
  async receivePiece(): Promise<Message> {
    const message = await this.messages.receive();
    if (message === undefined) throw new CopyError('ECONNRESET', 'the peer has ended in the middle');
    return message;
  }

  /** Memory for a piece, once some is free. */
  async room(): Promise<MemorySlice> {
    if (this.#region === undefined) {
      const access = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ;
      this.#region = await this.#pd.alloc(PIECES * PIECE_BYTES, { access });
      for (let i = 0; i < PIECES; i++) this.#free.push(this.#region.slice(i * PIECE_BYTES, PIECE_BYTES));
    }
    while (this.#free.length === 0 && !this.#failed) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    if (this.#failed) throw this.#failed;
    return this.#free.pop() as MemorySlice;
  }

  /** Sends what is at the beginning of that memory, which is free again when the peer has it. */
  sendPiece(room: MemorySlice, length: number): void {
    const piece = room.region.slice(room.offset, length);
    this.messages.send(piece).then(
      () => this.giveBack(room),
      (error: Error) => {
        this.#failed = error;
        this.giveBack(room);
      },
    );
  }

  /** Gives memory back that was not sent. */
  giveBack(room: MemorySlice): void {
    this.#free.push(room);
    this.#wake?.();
  }

  /** No more pieces come: an object does. */
  async giveUp(): Promise<void> {
    await this.messages.send(Buffer.alloc(0));
  }

  async close(): Promise<void> {
    await this.messages.close();
    this.#region?.close();
    this.#region = undefined;
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw protocolError('no JSON');
  }
}
