// @ts-check
// Each RDMA operation between two processes, with the memory of both checked afterwards by its owner.
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';

// What a peer is told to do takes milliseconds, or seconds in an emulated VM, unless it hangs.
const DEADLINE_MS = 60_000;

/**
 * What a peer can do, seen from its parent.
 *
 * @typedef {{ kill(): void } & { [M in keyof import('./peer.mjs').Methods]: (...args: Parameters<import('./peer.mjs').Methods[M]>) =>
 *   Promise<Awaited<ReturnType<import('./peer.mjs').Methods[M]>>> }} Peer
 */

/**
 * Starts a process that opens a device.
 *
 * @param {string} device
 * @returns {Peer}
 */
export function startPeer(device) {
  const child = fork(fileURLToPath(new URL('peer.mjs', import.meta.url)), [device], { serialization: 'advanced' });
  /** @type {Map<number, { resolve: (result: any) => void, reject: (error: Error) => void }>} */
  const calls = new Map();
  let ended = '';
  let nextId = 0;
  child.on('message', (/** @type {{ id: number, result: unknown, error?: string }} */ { id, result, error }) => {
    const call = calls.get(id);
    calls.delete(id);
    if (error === undefined) call?.resolve(result);
    else call?.reject(new Error(`${device}: ${error}`));
  });
  const end = (/** @type {unknown} */ reason) => {
    ended ||= `the process of ${device} has ended: ${reason}`;
    for (const { reject } of calls.values()) reject(new Error(ended));
  };
  child.on('exit', (code, signal) => end(signal ?? `exit code ${code}`));
  child.on('error', end);
  const kill = () => child.kill('SIGKILL');
  const call = async (/** @type {string} */ method, /** @type {unknown[]} */ args) => {
    if (ended) throw new Error(ended);
    const timer = setTimeout(() => {
      end(`${method} took more than ${DEADLINE_MS / 1000} s`);
      kill();
    }, DEADLINE_MS);
    try {
      return await new Promise((resolve, reject) => {
        calls.set(nextId, { resolve, reject });
        child.send({ id: nextId++, method, args }, (error) => error && reject(error));
      });
    } finally {
      clearTimeout(timer);
    }
  };
  const get = (/** @type {unknown} */ _, /** @type {string} */ method) =>
    method === 'kill' ? kill : (/** @type {unknown[]} */ ...args) => call(method, args);
  return /** @type {Peer} */ (new Proxy({}, { get }));
}

/**
 * Connects them, over TCP for what they must know of each other.
 *
 * @param {Peer} a
 * @param {Peer} b
 * @returns {Promise<number[]>} their queue pair numbers
 */
export async function connectPeers(a, b) {
  const port = await a.listen();
  return Promise.all([a.accept(), b.connect(port)]);
}

/**
 * The operations that move bytes, by their name. Each is executed by the first peer, and ends when both sides have what
 * they must have; its result is what the receiver was told.
 *
 * @type {Record<string, { from: 'here' | 'there', run: (here: Peer, there: Peer, length: number) => Promise<void> }>}
 */
export const transfers = {
  'SEND / RECV': {
    from: 'here',
    async run(here, there, length) {
      await there.receive(length);
      await here.send(length);
      assert.deepEqual(await there.received(), { byteLen: length, immData: undefined });
    },
  },
  'RDMA WRITE': { from: 'here', run: (here, _, length) => here.write(length) },
  'RDMA WRITE with immediate': {
    from: 'here',
    async run(here, there, length) {
      const immData = 0xc0de_0000 + (length & 0xffff);
      await there.receive(0);
      await here.writeWithImm(length, immData);
      assert.deepEqual(await there.received(), { byteLen: length, immData });
    },
  },
  'RDMA READ': { from: 'there', run: (here, _, length) => here.read(length) },
};

/**
 * Executes one of `transfers`, and has both sides check all of their memory.
 *
 * @param {string} name
 * @param {Peer} here
 * @param {Peer} there
 * @param {number} length
 * @returns {Promise<string>} the SHA-256 of what both have in the end
 */
export async function transfer(name, here, there, length) {
  const { from, run } = /** @type {typeof transfers[string]} */ (transfers[name]);
  const content = { seed: `${name} ${length}`, length };
  await Promise.all([
    here.fill(from === 'here' ? content : undefined),
    there.fill(from === 'there' ? content : undefined),
  ]);
  await run(here, there, length);
  const [a, b] = await Promise.all([here.check(content), there.check(content)]);
  assert.equal(a, b);
  return a;
}

/**
 * The atomics, likewise.
 *
 * @type {Record<string, (here: Peer, there: Peer) => Promise<void>>}
 */
export const atomics = {
  async 'compare-and-swap'(here, there) {
    const [first, second] = [0x0123_4567_89ab_cdefn, 0xfedc_ba98_7654_3210n];
    await there.fill({ number: first });
    assert.equal(await here.compareAndSwap(first, second), first);
    await there.check({ number: second });
    // It is no longer what is compared with, so it stays.
    assert.equal(await here.compareAndSwap(first, 0n), second);
    await there.check({ number: second });
  },
  async 'fetch-and-add'(here, there) {
    await there.fill({ number: 40n });
    assert.equal(await here.fetchAdd(2n), 40n);
    await there.check({ number: 42n });
    // 64 bits wrap around.
    assert.equal(await here.fetchAdd(0xffff_ffff_ffff_ffffn), 42n);
    await there.check({ number: 41n });
  },
};
