#!/usr/bin/env node
// What connections cost beyond their traffic: how long the event loop is held up while many are made and closed and memory is
// registered, what those take that do nothing, and what is left of those that came and went.
//   LD_PRELOAD=build/model/libmlx5model.so node --expose-gc bench/connections.mjs
//   npm run vm -- node --expose-gc bench/connections.mjs --devices rxe0,rxe1 --idle 100
//   npm run vm -- node --expose-gc bench/connections.mjs --devices rxe0,rxe1 --cm --connects 20 --idle 50

import { readdirSync, readFileSync } from 'node:fs';
import { performance } from 'node:perf_hooks';
import { setTimeout, setImmediate as turn } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { connect, connectTcp, getDeviceList, listen, listenTcp, openDevice } from 'node-rdma';

const { values } = parseArgs({
  options: {
    devices: { type: 'string', default: '' },
    connects: { type: 'string', default: '100' },
    idle: { type: 'string', default: '1000' },
    rounds: { type: 'string', default: '5' },
    cycles: { type: 'string', default: '200' },
    // By the connection manager.
    cm: { type: 'boolean', default: false },
  },
});
const names = values.devices ? values.devices.split(',') : getDeviceList().map(({ name }) => name);
const [nameA, nameB = nameA] = names;
const pdA = openDevice(nameA).allocPd();
const pdB = openDevice(nameB).allocPd();
const addressOf = ({ context }) => context.selectGid().gid.replace('::ffff:', '');
const host = values.cm ? addressOf(pdB) : '127.0.0.1';
const listener = values.cm
  ? await listen({ port: 0, host, backlog: 4096 })
  : await listenTcp({ pd: pdB, port: 0, host, backlog: 4096 });
const to = { pd: pdA, host, port: listener.port, timeoutMs: 60_000 };

/** Both ends of a connection. */
function pair() {
  if (!values.cm) return Promise.all([connectTcp(to), listener.accept()]);
  const accepted = listener.getRequest().then((request) => request.accept({ pd: pdB, timeoutMs: 60_000 }));
  return Promise.all([connect({ ...to, localAddress: addressOf(pdA) }), accepted]);
}

/** So many connections, both ends of each, all begun at once. */
async function connections(count) {
  return (await Promise.all(Array.from({ length: count }, pair))).flat();
}

const closed = (endpoints) => Promise.all(endpoints.map((endpoint) => endpoint.close()));

/** CPU time of this thread in milliseconds. */
const threadMs = () => Number(readFileSync(`/proc/self/task/${process.pid}/schedstat`, 'latin1').split(' ')[0]) / 1e6;

/**
 * What is done, and the longest turn of the event loop in it, in milliseconds: of time, which the other programs of the machine
 * have a part of, and of this thread's CPU time.
 */
async function heldUp(work) {
  const longest = { ms: 0, cpuMs: 0 };
  let isOver = false;
  const watching = (async () => {
    let last = { ms: performance.now(), cpuMs: threadMs() };
    while (!isOver) {
      await turn();
      const now = { ms: performance.now(), cpuMs: threadMs() };
      for (const name of ['ms', 'cpuMs']) longest[name] = Math.max(longest[name], now[name] - last[name]);
      last = now;
    }
  })();
  const start = performance.now();
  const result = await work();
  const ms = performance.now() - start;
  isOver = true;
  await watching;
  return { result, ms, longest };
}

/** CPU time of this process in milliseconds, without the thread that plays the device. */
function cpuMs() {
  let ticks = 0;
  for (const task of readdirSync('/proc/self/task')) {
    const text = readFileSync(`/proc/self/task/${task}/stat`, 'latin1');
    const end = text.lastIndexOf(')');
    const fields = text.slice(end + 2).split(' ');
    // utime and stime, in hundredths of a second.
    if (!text.includes('(mlx5model)')) ticks += Number(fields[11]) + Number(fields[12]);
  }
  return ticks * 10;
}

async function settledMemory() {
  for (let i = 0; i < 3; i++) {
    globalThis.gc?.();
    await turn();
  }
  return process.memoryUsage();
}

const connects = Number(values.connects);
const rounds = [];
for (let round = 0; round < Number(values.rounds); round++) {
  const made = await heldUp(() => connections(connects));
  const ended = await heldUp(() => closed(made.result));
  rounds.push([made, ended]);
}
// The other programs of the machine hold it up too: the round that was disturbed least.
const of = (which, name) => Math.min(...rounds.map((round) => round[which].longest[name])).toFixed(1);
const least = (which) => `${of(which, 'ms')} ms, ${of(which, 'cpuMs')} ms of them at work`;
const took = (which) => Math.min(...rounds.map((round) => round[which].ms)).toFixed(0);
console.log(`${connects} connections, both ends in this process, of ${nameA} and ${nameB}:`);
console.log(`  made in ${took(0)} ms, the longest turn of the event loop ${least(0)}`);
console.log(`  closed in ${took(1)} ms, the longest turn ${least(1)}`);

const REGIONS = 8;
const REGION_BYTES = 64 << 20;
const together = [];
for (let round = 0; round < Number(values.rounds); round++) {
  const draining = await connections(connects);
  const mr = await pdA.alloc(65_536);
  const all = await heldUp(async () => {
    const sends = draining.filter((_, i) => i % 2 === 0).map((endpoint) => endpoint.send(mr.slice()).catch(() => {}));
    const regions = Array.from({ length: REGIONS }, () => pdA.alloc(REGION_BYTES));
    const [made] = await Promise.all([connections(connects), closed(draining), ...sends]);
    return { made, regions: await Promise.all(regions) };
  });
  for (const region of all.result.regions) region.close();
  await closed(all.result.made);
  mr.close();
  together.push(all);
}
const shortest = (name) => Math.min(...together.map(({ longest }) => longest[name])).toFixed(1);
console.log(
  `${connects} connects, as many closes with a message under way, ${REGIONS} registrations of 64 MiB, at once:`,
);
console.log(`  the longest turn of the event loop ${shortest('ms')} ms, ${shortest('cpuMs')} ms of them at work`);

const idle = Number(values.idle);
const before = await settledMemory();
const endpoints = await connections(idle);
const after = await settledMemory();
// Node itself has something to do for a while.
await setTimeout(3000);
const begin = cpuMs();
await setTimeout(5000);
const spent = cpuMs() - begin;
const kilobytes = (name) => ((after[name] - before[name]) / endpoints.length / 1000).toFixed(1);
console.log(`${endpoints.length} idle endpoints:`);
console.log(`  CPU time in 5 seconds: ${spent} ms`);
console.log(
  `  memory of each: ${kilobytes('rss')} kB resident, of which ${kilobytes('heapUsed')} kB JavaScript's heap`,
);
await closed(endpoints);

const descriptors = () => readdirSync('/proc/self/fd').length;
const cycles = Number(values.cycles);
let start;
// The first half is until the allocators have what they keep.
for (let i = 0; i < 2 * cycles; i++) {
  if (i === cycles) start = { descriptors: descriptors(), ...(await settledMemory()) };
  await closed(await pair());
}
const left = { descriptors: descriptors(), ...(await settledMemory()) };
const more = (name) => left[name] - start[name];
console.log(`${cycles} connections that came and went, one after another, after as many others:`);
console.log(
  `  descriptors ${more('descriptors')} more, resident memory ${(more('rss') / 1e6).toFixed(1)} MB more, JavaScript's heap ` +
    `${(more('heapUsed') / 1e6).toFixed(1)} MB more`,
);
await listener.close();
