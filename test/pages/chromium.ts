/** A real headless Chromium, driven over its pipe of the DevTools protocol. */
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { pathToFileURL } from 'node:url';

/** No answer takes this long. */
const DEADLINE_MS = 40_000;

interface Message {
  id?: number;
  sessionId?: string;
  method?: string;
  params?: Record<string, unknown>;
  // biome-ignore lint/suspicious/noExplicitAny: each method has its own result
  result?: any;
  error?: { message: string };
}

/** What a page has done besides being shown. */
export interface Noise {
  /** Messages on the console, warnings of the browser, exceptions. */
  complaints: string[];
  /** Addresses that it asked for. */
  requests: string[];
}

/** A browser, from its start to its end. */
export class Chromium {
  readonly #child: ChildProcess;
  readonly #profile = mkdtempSync(join(tmpdir(), 'node-rdma-chromium-'));
  readonly #waiting = new Map<number, (message: Message) => void>();
  readonly #listeners = new Map<string, (message: Message) => void>();
  readonly #ended: Promise<never>;
  #complaints = '';
  #last = 0;

  constructor() {
    const flags = [
      ...['--headless', '--remote-debugging-pipe', '--no-first-run', '--disable-gpu', '--disable-dev-shm-usage'],
      // Its own errands.
      ...['--disable-background-networking', '--disable-component-update', `--user-data-dir=${this.#profile}`],
      // Its sandbox takes no root.
      ...(process.getuid?.() === 0 ? ['--no-sandbox'] : []),
    ];
    this.#child = spawn('chromium', flags, {
      stdio: ['ignore', 'ignore', 'pipe', 'pipe', 'pipe'],
      // A group of its own, to be ended as a whole; and not over the model, which our side of a test may be.
      detached: true,
      env: { ...process.env, LD_PRELOAD: undefined },
    });
    this.#child.stderr!.on('data', (chunk) => (this.#complaints += chunk));
    this.#ended = new Promise((_, reject) => {
      this.#child.on('error', reject);
      this.#child.on('exit', (code) => reject(new Error(`Chromium has ended with ${code}:\n${this.#complaints}`)));
    });
    this.#ended.catch(() => {});
    let text = '';
    (this.#child.stdio[4] as Readable).setEncoding('utf8').on('data', (chunk: string) => {
      const parts = (text + chunk).split('\0');
      text = parts.pop()!;
      for (const part of parts) this.#take(JSON.parse(part));
    });
  }

  #take(message: Message): void {
    if (message.id !== undefined) this.#waiting.get(message.id)?.(message);
    else this.#listeners.get(message.sessionId ?? '')?.(message);
  }

  async #ask(method: string, params: object = {}, sessionId?: string) {
    const id = ++this.#last;
    const answer = new Promise<Message>((resolve) => this.#waiting.set(id, resolve));
    (this.#child.stdio[3] as Writable).write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    const { result, error } = await this.#within(answer, method);
    this.#waiting.delete(id);
    if (error) throw new Error(`${method}: ${error.message}`);
    return result;
  }

  async #within<T>(promise: Promise<T>, what: string): Promise<T> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error(`${what}: not within ${DEADLINE_MS} ms`)), DEADLINE_MS);
    });
    return Promise.race([promise, late, this.#ended]).finally(() => clearTimeout(timer));
  }

  /**
   * Opens a page of this width, and runs a function in it when it is loaded.
   *
   * @param look - takes nothing from outside of itself; its result must be JSON
   */
  async open<T>(file: string, width: number, look: () => T): Promise<{ seen: T; noise: Noise }> {
    const noise: Noise = { complaints: [], requests: [] };
    const { targetId } = await this.#ask('Target.createTarget', { url: 'about:blank' });
    const { sessionId } = await this.#ask('Target.attachToTarget', { targetId, flatten: true });
    const loaded = new Promise<void>((resolve) => {
      this.#listeners.set(sessionId, ({ method, params }) => {
        if (method === 'Page.loadEventFired') resolve();
        else if (method === 'Network.requestWillBeSent') noise.requests.push((params as never as Request).request.url);
        else if (/^(Runtime\.(consoleAPICalled|exceptionThrown)|Log\.entryAdded)$/.test(method!))
          noise.complaints.push(JSON.stringify(params));
      });
    });
    for (const domain of ['Page', 'Runtime', 'Log', 'Network']) await this.#ask(`${domain}.enable`, {}, sessionId);
    const screen = { width, height: 1000, deviceScaleFactor: 1, mobile: false };
    await this.#ask('Emulation.setDeviceMetricsOverride', screen, sessionId);
    await this.#ask('Page.navigate', { url: pathToFileURL(file).href }, sessionId);
    await this.#within(loaded, file);
    const call = { expression: `(${look})()`, returnByValue: true };
    const { result, exceptionDetails } = await this.#ask('Runtime.evaluate', call, sessionId);
    if (exceptionDetails) throw new Error(exceptionDetails.exception.description);
    this.#listeners.delete(sessionId);
    await this.#ask('Target.closeTarget', { targetId });
    return { seen: result.value as T, noise };
  }

  /** Ends it, and all of its processes. */
  async close(): Promise<void> {
    // Its pipe closes in the middle of the answer.
    await this.#ask('Browser.close').catch(() => {});
    const gone = this.#ended.catch(() => {});
    const timer = setTimeout(() => process.kill(-this.#child.pid!, 'SIGKILL'), 5_000);
    await gone;
    clearTimeout(timer);
    rmSync(this.#profile, { recursive: true, force: true, maxRetries: 5 });
  }
}

interface Request {
  request: { url: string };
}
