import { isUint8Array } from 'node:util/types';
import { abortSignal, integer, rangeError, readOptions, string, typeError, valueError } from '../args.ts';
import { CallError, RdmaClosedError, RdmaProtocolError } from '../errors.ts';
import { AccessFlags } from '../native/constants.gen.ts';
import { threadMark } from '../thread.ts';
import type { MemoryRegion, MemorySlice } from '../verbs/memory-region.ts';
import { CODE_CHARS, callError, reasonOf } from './call-errors.ts';
import type { Endpoint } from './endpoint.ts';
import { Kind } from './message-link.ts';
import type { Message } from './message-receiver.ts';
import { type Messages, type MessagesOptions, openMessages } from './messages.ts';
import { plainBytes } from './plain-bytes.ts';

/** The methods that a side has: functions of one parameter, which travels as JSON, and so does what they return. */
export type CallMethods = {
  /** From the parameters to the result. */
  [name: string]: (params: never) => unknown;
};

/** What a handler is called with besides the parameters. */
export interface IncomingCall {
  /** The bytes that came along, released when the handler is done, if it has not released them; undefined for none. */
  readonly body: Message | undefined;
  /** Aborted when the caller has given up, or the connection has ended. */
  readonly signal: AbortSignal;
  /** Bytes to go along with the answer: set it, and do not change them before `sent`. */
  answer: Uint8Array | MemorySlice | undefined;
  /**
   * Called when the caller has the answer, or will not get it: the memory of `answer` may be reused. What it throws is
   * emitted as a warning of the process.
   */
  sent: (() => void) | undefined;
}

/** What answers the calls of the peer. What it throws the caller gets as a {@link CallError}. */
export type CallHandlers<Local extends CallMethods> = {
  [M in keyof Local]: (
    params: Parameters<Local[M]>[0],
    call: IncomingCall,
  ) => ReturnType<Local[M]> | Promise<Awaited<ReturnType<Local[M]>>>;
};

/** How calls are opened. */
export interface CallsOptions<Local extends CallMethods> extends MessagesOptions {
  /** What answers the calls of the peer. Default: no method at all. */
  handlers?: CallHandlers<Local>;
}

/** One call. */
export interface CallOptions {
  /** Bytes that go along; not to be changed until the promise settles. A slice as in `messages.send()`. Default: none. */
  body?: Uint8Array | MemorySlice;
  /** Milliseconds until the call rejects with ETIMEDOUT; 0 for never. Default 0. */
  timeoutMs?: number;
  /** Gives the call up. */
  signal?: AbortSignal;
}

/** The answer to a call. */
export interface CallAnswer<Result> {
  /** What the handler returned. */
  result: Result;
  /** The bytes that came along, to be released; undefined for none. */
  body: Message | undefined;
}

// Each message begins with a type, whether a message with bytes follows, two zeros, and a number (u32, network order): of
// the call, or in LIMIT the calls that are answered at once. Behind that is JSON.
const Type = { LIMIT: 0, REQUEST: 1, ANSWER: 2, ERROR: 3, CANCEL: 4 } as const;
const HEAD_BYTES = 8;

// As much of an error as is sent.
const ERROR_CHARS = 2000;

interface Outstanding {
  method: string;
  resolve: (answer: CallAnswer<unknown>) => void;
  reject: (error: Error) => void;
  /** The caller has given up; the peer still answers. */
  isGiven: boolean;
}

interface Head {
  type: number;
  id: number;
  json: unknown;
}

/**
 * Calls over an endpoint, in both directions: methods by name, with parameters and results in JSON, and bytes of any length
 * along with either, which travel as messages do. Many calls may be under way; more than the peer answers at once, which
 * is half of its `buffers`, wait for their turn.
 */
export class Calls<Remote extends CallMethods = CallMethods, Local extends CallMethods = CallMethods> {
  /** @internal */
  readonly thread = threadMark('Calls');
  readonly #messages: Messages;
  readonly #handlers: CallHandlers<Local>;
  readonly #limit: number;
  readonly #outstanding = new Map<number, Outstanding>();
  // Calls that wait for their turn.
  readonly #waiting: { begin: () => void; reject: (error: Error) => void }[] = [];
  // Why no call is answered any more.
  #end: Error | undefined;
  readonly #incoming = new Map<number, AbortController>();
  #peerLimit = 0;
  #next = 0;

  /**
   * Opens calls, which both sides must do; the endpoint belongs to them from now on.
   *
   * @param endpoint - made with the options of `messageEndpoint()`
   * @throws as `Messages.open()`
   */
  static async open<Remote extends CallMethods = CallMethods, Local extends CallMethods = CallMethods>(
    endpoint: Endpoint,
    options: CallsOptions<Local> = {},
  ): Promise<Calls<Remote, Local>> {
    const known = ['handlers', 'timeoutMs', 'signal', 'keepAliveMs', 'place'] as const;
    const { handlers = {} as CallHandlers<Local>, ...rest } = readOptions(options, 'options', known);
    if (typeof handlers !== 'object' || handlers === null) throw typeError('options.handlers', 'an object', handlers);
    for (const [name, handler] of Object.entries(handlers)) {
      if (typeof handler !== 'function') throw typeError(`options.handlers.${name}`, 'a function', handler);
    }
    const messages = await openMessages(endpoint, rest, Kind.CALLS);
    return new Calls(messages, handlers);
  }

  /** @internal */
  constructor(messages: Messages, handlers: CallHandlers<Local>) {
    this.#messages = messages;
    this.#handlers = handlers;
    this.#limit = messages.buffers >> 1;
    this.#send(Type.LIMIT, this.#limit, undefined).catch(() => {});
    void this.#serve();
  }

  /** Resolves when the connection has ended, as `messages.closed`. */
  get closed(): Promise<Error | undefined> {
    return this.#messages.closed;
  }

  /** The endpoint, for reads, writes and atomics of its own. */
  get endpoint(): Endpoint {
    return this.#messages.endpoint;
  }

  /** Calls that are not yet answered, those that wait for their turn too. */
  get pending(): number {
    return this.#outstanding.size + this.#waiting.length;
  }

  /**
   * Calls a method of the peer.
   *
   * @param method - its name
   * @param params - what JSON can say; with the name it must fit a buffer
   * @returns the answer, whose `body` must be released. When the call rejects, the peer may still be reading the body of the
   *   request for a moment: until then its region says EBUSY, as after an abort
   * @throws CallError when the handler threw, or there is none; Error ETIMEDOUT; the signal's reason; RdmaClosedError after
   *   `close()`; else the reason for which the connection has ended
   * @throws RangeError `ERR_OUT_OF_RANGE` when it is too long
   */
  async call<M extends keyof Remote & string>(
    method: M,
    params: Parameters<Remote[M]>[0],
    options: CallOptions = {},
  ): Promise<CallAnswer<Awaited<ReturnType<Remote[M]>>>> {
    string(method, 'method');
    const o = readOptions(options, 'options', ['body', 'timeoutMs', 'signal']);
    const timeoutMs = integer(o.timeoutMs ?? 0, 'options.timeoutMs', 0, 2 ** 31 - 1);
    const signal = abortSignal(o.signal, 'options.signal');
    signal?.throwIfAborted();
    let head: Buffer;
    try {
      head = this.#encode([method, params]);
    } catch (error) {
      // What JSON does not have. What a toJSON() of theirs throws is theirs.
      if (!(error instanceof TypeError) || 'code' in error) throw error;
      throw valueError(`params has no JSON: ${error.message}`);
    }
    return new Promise((resolve, reject) => {
      let timer: NodeJS.Timeout | undefined;
      let id: number | undefined;
      const settled = () => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', abort);
      };
      const outstanding: Outstanding = {
        method,
        resolve: (answer) => {
          settled();
          resolve(answer as CallAnswer<Awaited<ReturnType<Remote[M]>>>);
        },
        reject: (error) => {
          settled();
          reject(error);
        },
        isGiven: false,
      };
      const begin = () => {
        id = this.#next;
        this.#next = (this.#next + 1) >>> 0;
        this.#outstanding.set(id, outstanding);
        this.#transfer(Type.REQUEST, id, head, o.body).catch((error) => {
          // It has not left.
          this.#finish(id as number);
          outstanding.reject(error);
        });
      };
      const giveUp = (reason: Error) => {
        outstanding.reject(reason);
        outstanding.isGiven = true;
        const at = this.#waiting.findIndex((waiting) => waiting.begin === begin);
        if (at >= 0) this.#waiting.splice(at, 1);
        else if (id !== undefined) this.#send(Type.CANCEL, id, undefined).catch(() => {});
      };
      const abort = () => giveUp(signal?.reason as Error);
      signal?.addEventListener('abort', abort, { once: true });
      if (timeoutMs > 0) {
        timer = setTimeout(() => {
          const text = `The peer has not answered ${JSON.stringify(method)} within ${timeoutMs} ms`;
          giveUp(Object.assign(new Error(text), { code: 'ETIMEDOUT' }));
        }, timeoutMs);
      }
      if (this.#end) outstanding.reject(this.#end);
      else if (this.#messages.ended) {
        void this.closed.then((reason) => outstanding.reject(reason ?? new RdmaClosedError('Calls')));
      } else {
        this.#waiting.push({ begin, reject: outstanding.reject });
        this.#begin();
      }
    });
  }

  /**
   * Ends. What is not yet answered rejects, and what is being answered is aborted.
   *
   * @param options - as of `messages.close()`
   */
  async close(options: { timeoutMs?: number } = {}): Promise<void> {
    await this.#messages.close(options);
  }

  /** The same as `close()`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Ends the connection at once; as `messages.destroy()`. */
  destroy(reason?: Error): void {
    this.#messages.destroy(reason);
  }

  #begin(): void {
    while (this.#waiting.length > 0 && this.#outstanding.size < this.#peerLimit) this.#waiting.shift()?.begin();
  }

  #finish(id: number): void {
    this.#outstanding.delete(id);
    this.#begin();
  }

  #encode(json: unknown): Buffer {
    const bytes = Buffer.from(JSON.stringify(json) ?? 'null');
    const most = this.#messages.maxCopiedBytes - HEAD_BYTES;
    if (bytes.length > most) {
      throw rangeError(
        `The parameters of a call, and its result, have ${most} bytes of JSON, not ${bytes.length}: use the body`,
      );
    }
    return bytes;
  }

  async #send(type: number, id: number, json: Buffer | undefined, hasBody = false): Promise<void> {
    const head = Buffer.alloc(HEAD_BYTES);
    head[0] = type;
    head[1] = Number(hasBody);
    head.writeUInt32BE(id, 4);
    const parts = json === undefined ? [head] : [head, json];
    await this.#messages.sendParts(parts, HEAD_BYTES + (json?.length ?? 0), () => {});
  }

  // The head and the body, with nothing between them. What can go wrong with the body does so first.
  async #transfer(type: number, id: number, json: Buffer, body: Uint8Array | MemorySlice | undefined): Promise<void> {
    if (body === undefined) return this.#send(type, id, json);
    let region: MemoryRegion | undefined;
    try {
      let memory = body;
      this.#messages.requireSendable(body);
      if (isUint8Array(body)) {
        memory = plainBytes(body);
        if (memory.length <= this.#messages.maxCopiedBytes) memory = Buffer.from(memory);
        else {
          region = await this.endpoint.qp.pd.regMr(memory, { access: AccessFlags.REMOTE_READ });
          memory = region.slice();
        }
      }
      this.#messages.requireSendable(memory);
      const sends = [this.#send(type, id, json, true), this.#messages.sendVital(memory)];
      // The peer may still be reading one when the other has failed.
      await Promise.allSettled(sends);
      await Promise.all(sends);
    } finally {
      region?.close();
    }
  }

  // Calls and answers, as they come.
  async #serve(): Promise<void> {
    let head: Head | undefined;
    let reason: Error | undefined;
    try {
      for await (const message of this.#messages) {
        if (head === undefined) {
          let parsed: Head & { hasBody: boolean };
          try {
            parsed = this.#parse(message.data);
          } finally {
            message.release();
          }
          if (parsed.hasBody) head = parsed;
          else this.#take(parsed, undefined);
        } else {
          const whole = head;
          head = undefined;
          this.#take(whole, message);
        }
      }
    } catch (error) {
      reason = error as Error;
      if (error instanceof RdmaProtocolError) this.#messages.destroy(error);
    }
    // The connection may stand yet, when the peer has closed in order, but nobody answers any more.
    const error = reason ?? new RdmaClosedError('Calls');
    this.#end = error;
    for (const controller of this.#incoming.values()) controller.abort(error);
    // Nor is there anything left to say, which the peer waits for.
    if (reason === undefined) void this.close();
    for (const { reject } of [...this.#outstanding.values(), ...this.#waiting.splice(0)]) reject(error);
    this.#outstanding.clear();
  }

  #parse(data: Buffer): Head & { hasBody: boolean } {
    if (data.length < HEAD_BYTES || (data[1] as number) > 1 || data.readUInt16BE(2) !== 0) {
      throw new RdmaProtocolError('FRAME', 'the head of a call is malformed');
    }
    let json: unknown;
    try {
      if (data.length > HEAD_BYTES) json = JSON.parse(data.toString('utf8', HEAD_BYTES));
    } catch {
      throw new RdmaProtocolError('FRAME', 'a call whose JSON is none');
    }
    return { type: data[0] as number, hasBody: data[1] === 1, id: data.readUInt32BE(4), json };
  }

  #take({ type, id, json }: Head, body: Message | undefined): void {
    try {
      switch (type) {
        case Type.LIMIT:
          if (this.#peerLimit > 0 || id === 0) throw new RdmaProtocolError('FRAME', 'a limit of calls that is none');
          this.#peerLimit = id;
          this.#begin();
          return;
        case Type.REQUEST: {
          const isCall = Array.isArray(json) && json.length === 2 && typeof json[0] === 'string';
          if (!isCall) throw new RdmaProtocolError('FRAME', 'a call without a method');
          if (this.#incoming.has(id)) throw new RdmaProtocolError('ORDER', 'two calls of one number');
          if (this.#incoming.size >= this.#limit)
            throw new RdmaProtocolError('CREDITS', `more than ${this.#limit} calls`);
          void this.#answer(id, json[0] as string, json[1], body);
          // It has it now.
          body = undefined;
          return;
        }
        case Type.ANSWER:
        case Type.ERROR: {
          const outstanding = this.#outstanding.get(id);
          if (outstanding === undefined) throw new RdmaProtocolError('ORDER', 'an answer to no call');
          this.#finish(id);
          if (outstanding.isGiven) return;
          if (type === Type.ERROR) outstanding.reject(callError(outstanding.method, json));
          else {
            outstanding.resolve({ result: Array.isArray(json) ? json[0] : undefined, body });
            body = undefined;
          }
          return;
        }
        case Type.CANCEL:
          // It may have been answered meanwhile.
          this.#incoming.get(id)?.abort(new CallError('The caller has given up', 'ABORT_ERR'));
          return;
        default:
          throw new RdmaProtocolError('FRAME', `a message of type ${type}`);
      }
    } finally {
      body?.release();
    }
  }

  async #answer(id: number, method: string, params: unknown, body: Message | undefined): Promise<void> {
    const controller = new AbortController();
    this.#incoming.set(id, controller);
    const call: IncomingCall = { body, signal: controller.signal, answer: undefined, sent: undefined };
    let type: number = Type.ANSWER;
    let json: Buffer;
    let answer: IncomingCall['answer'];
    try {
      const handler = Object.hasOwn(this.#handlers, method) ? this.#handlers[method] : undefined;
      if (handler === undefined)
        throw new CallError(`There is no method ${JSON.stringify(method)}`, 'ERR_RDMA_NO_METHOD');
      json = this.#encode([await handler(params as never, call)]);
      const { sent } = call;
      if (sent !== undefined && typeof sent !== 'function') throw typeError('call.sent', 'a function', sent);
      answer = call.answer;
      if (answer !== undefined) this.#messages.requireSendable(answer);
    } catch (error) {
      [type, json, answer] = [Type.ERROR, this.#failure(error), undefined];
    }
    body?.[Symbol.dispose]();
    this.#incoming.delete(id);
    try {
      await this.#transfer(type, id, json, answer);
    } catch (error) {
      // The memory of the answer cannot be registered. Where the connection has ended this fails as well.
      await this.#send(Type.ERROR, id, this.#failure(error)).catch(() => {});
    }
    try {
      if (typeof call.sent === 'function') call.sent();
    } catch (error) {
      // The caller has been answered, so nobody else can be told.
      process.emitWarning(`call.sent of the method ${JSON.stringify(method)} has failed: ${reasonOf(error).message}`);
    }
  }

  #failure(error: unknown): Buffer {
    const { message, code } = reasonOf(error);
    // In JSON a character may take six bytes; of a code it takes one.
    const room = this.#messages.maxCopiedBytes - HEAD_BYTES - CODE_CHARS - '{"message":"","code":""}'.length;
    return this.#encode({ message: message.slice(0, Math.min(ERROR_CHARS, Math.floor(room / 6))), code });
  }
}
