/** A pyverbs process on the other end of the wire, as an object: `open()` makes its side of a pair, `close()` ends that. */
import { type ChildProcess, spawn } from 'node:child_process';
import { resolve } from 'node:path';
import { createInterface, type Interface } from 'node:readline';
import { parseGid, type RemoteRegionToken } from '../../lib/index.ts';
import { within } from '../device/fixture.ts';

/** What it says of a completion. Keys and immediate data in host byte order. */
export interface PeerCompletion {
  wrId: number;
  status: number;
  opcode: number;
  byteLen: number;
  srcQp: number;
  imm?: number;
  invalidated: number;
}

export interface PeerSend {
  opcode: string;
  wrId?: number;
  offset?: number;
  length?: number;
  imm?: number;
  invalidate?: number;
  remote?: { addr: string; rkey: number };
  atomic?: readonly string[];
  to?: { qpNum: number; qkey: number };
}

/** A GID in the notation of pyverbs. */
export function eightWords(gid: string): string {
  return parseGid(gid)
    .toString('hex')
    .replace(/....(?!$)/g, '$&:');
}

export class PyverbsPeer {
  readonly #child: ChildProcess;
  readonly #lines: Interface;
  readonly #answers: AsyncIterator<string>;
  readonly #failed: Promise<never>;

  constructor() {
    const script = resolve('test/interop/pyverbs_peer.py');
    // The distribution's own Python, which the package of pyverbs belongs to.
    this.#child = spawn('/usr/bin/python3', [script], { stdio: ['pipe', 'pipe', 'inherit'] });
    this.#lines = createInterface({ input: this.#child.stdout as NodeJS.ReadableStream });
    this.#answers = this.#lines[Symbol.asyncIterator]();
    this.#failed = new Promise((_, reject) => {
      this.#child.on('error', reject);
      this.#child.on('exit', (code) => reject(new Error(`the peer has ended with code ${code}`)));
    });
    this.#failed.catch(() => {});
  }

  async #ask(request: { do: string } & Record<string, unknown>): Promise<unknown> {
    this.#child.stdin?.write(`${JSON.stringify(request)}\n`);
    const { value } = await within(Promise.race([this.#answers.next(), this.#failed]), `the peer's ${request.do}`);
    const answer = JSON.parse(value as string) as { result?: unknown; error?: string };
    if (answer.error !== undefined) throw new Error(`the peer's ${request.do}: ${answer.error}`);
    return answer.result;
  }

  open(device: string, type: 'RC' | 'UD', srq: boolean): Promise<RemoteRegionToken & { qpNum: number }> {
    return this.#ask({ do: 'open', device, type, srq }) as Promise<RemoteRegionToken & { qpNum: number }>;
  }
  async connect(to: { qpNum: number; gid: string; gidIndex: number; psn: number; mtu: number }): Promise<void> {
    await this.#ask({ do: 'connect', ...to, gid: eightWords(to.gid) });
  }
  async ready(qkey: number, psn: number): Promise<void> {
    await this.#ask({ do: 'ready', qkey, psn });
  }
  async write(offset: number, bytes: Buffer): Promise<void> {
    await this.#ask({ do: 'write', offset, data: bytes.toString('hex') });
  }
  async read(offset: number, length: number): Promise<Buffer> {
    return Buffer.from((await this.#ask({ do: 'read', offset, length })) as string, 'hex');
  }
  async recv(wrId: number, offset: number, length: number): Promise<void> {
    await this.#ask({ do: 'recv', wrId, offset, length });
  }
  async send(wr: PeerSend): Promise<void> {
    await this.#ask({ do: 'send', ...wr });
  }
  async poll(count = 1): Promise<PeerCompletion[]> {
    return (await this.#ask({ do: 'poll', count })) as PeerCompletion[];
  }
  bind(type: number, offset: number, length: number): Promise<RemoteRegionToken> {
    return this.#ask({ do: 'bind', type, offset, length }) as Promise<RemoteRegionToken>;
  }
  async addressTo(gid: string, gidIndex: number): Promise<void> {
    await this.#ask({ do: 'address_to', gid: eightWords(gid), gidIndex });
  }
  async answerTo(offset: number): Promise<void> {
    await this.#ask({ do: 'answer_to', offset });
  }

  async close(): Promise<void> {
    await this.#ask({ do: 'close' });
  }

  /** Ends the process. */
  async end(): Promise<void> {
    this.#child.removeAllListeners('exit');
    const ended = new Promise((resolve) => this.#child.once('exit', resolve));
    this.#child.stdin?.end();
    await within(ended, "the peer's end").finally(() => this.#child.kill('SIGKILL'));
    this.#lines.close();
  }
}
