// What is compared, and what DESIGN promises of it: in nanoseconds more than C, or as a multiple of C.

/**
 * @typedef {object} Case
 * @property {string} name
 * @property {number} batch requests per call
 * @property {number} requests in one run: some 10 ms
 * @property {{ plusNs?: number, ratio?: number }} [goal]
 */

const depth1 = { plusNs: 60 };
const batched = { ratio: 1.15 };

/** @type {Case[]} */
export const cases = [
  { name: 'write-prepared', batch: 1, requests: 64_000, goal: depth1 },
  { name: 'write-inline-prepared', batch: 1, requests: 64_000, goal: depth1 },
  { name: 'read-prepared', batch: 1, requests: 64_000, goal: depth1 },
  { name: 'fetch-add-prepared', batch: 1, requests: 64_000, goal: depth1 },
  { name: 'send-recv-prepared', batch: 1, requests: 32_000 },
  { name: 'send-srq-prepared', batch: 1, requests: 32_000 },
  { name: 'datagram-prepared', batch: 1, requests: 32_000 },
  { name: 'write-batch', batch: 32, requests: 128_000, goal: batched },
  { name: 'write-batch-signaled', batch: 32, requests: 128_000, goal: batched },
  { name: 'write-object', batch: 1, requests: 32_000, goal: { plusNs: 250 } },
  { name: 'write-object-batch', batch: 32, requests: 64_000 },
  { name: 'write-awaited', batch: 1, requests: 16_000, goal: { plusNs: 1000 } },
  { name: 'write-awaited-batch', batch: 32, requests: 32_000 },
  { name: 'poll-empty', batch: 1, requests: 256_000 },
  { name: 'event-wait', batch: 1, requests: 2_000 },
  { name: 'event-ping-pong', batch: 1, requests: 1_000 },
  // Nothing of RDMA: what the event loop by itself costs beside epoll, for the two above to be compared with.
  { name: 'socket-ping-pong', batch: 1, requests: 1_000 },
];

/** How often a region of 64 MiB is registered in one run, and how many objects are made to see what they take. */
export const objects = [
  { name: 'reg-mr', count: 20 },
  { name: 'memory-qp', count: 1000 },
  { name: 'memory-cq', count: 1000 },
  { name: 'memory-mr', count: 5000 },
];
