// Runs the C and the JavaScript side in turns, case by case, so that what the machine does meanwhile hits both.

import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { cases, objects } from './cases.mjs';

// New processes now and then: where their memory lies makes a difference.
const PROCESSES = 3;
const WARM_UP_ROUNDS = 2;
const ROUNDS = 5;

/**
 * @param {object} paths
 * @param {string} paths.c the compiled bench.c
 * @param {NodeJS.ProcessEnv} paths.env for both
 * @param {(text: string) => void} [onProgress]
 * @returns {Promise<{ case: string, batch: number, goal?: object, c: number[], js: number[] }[]>} nanoseconds of CPU time
 *   per request, of all runs
 */
export async function compare({ c, env }, onProgress = () => {}) {
  const results = cases.map(({ name, batch, goal }) => ({ case: name, batch, goal, c: [], js: [] }));
  for (let process_ = 0; process_ < PROCESSES; process_++) {
    onProgress(`processes ${process_ + 1} of ${PROCESSES}`);
    const sides = { c: start([c], env), js: start([process.execPath, script('js.mjs')], env) };
    try {
      for (let round = -WARM_UP_ROUNDS; round < ROUNDS; round++) {
        for (const [i, { name, requests }] of cases.entries()) {
          for (const side of ['c', 'js']) {
            const ns = await sides[side].measure(name, requests);
            if (round >= 0) results[i][side].push(ns);
          }
        }
      }
    } finally {
      for (const side of Object.values(sides)) side.stop();
    }
  }
  return results;
}

/**
 * What registration costs, and what objects take: one process each, since they are kept.
 *
 * @param {{ c: string, env: NodeJS.ProcessEnv }} paths as above
 * @returns {Promise<{ case: string, c: number, js: number }[]>} nanoseconds of CPU time to register and deregister 64 MiB;
 *   bytes of resident memory per object
 */
export async function compareObjects({ c, env }) {
  const results = [];
  for (const { name, count } of objects) {
    const row = { case: name };
    for (const [side, command] of Object.entries({ c: [c], js: [process.execPath, '--expose-gc', script('js.mjs')] })) {
      const process_ = start(command, env);
      try {
        row[side] = await process_.measure(name, count);
      } finally {
        process_.stop();
      }
    }
    results.push(row);
  }
  return results;
}

function script(name) {
  return fileURLToPath(new URL(name, import.meta.url));
}

/** Starts one side, on the last CPU that this process may use: the first ones are busiest. */
function start(command, env) {
  const cpu = /^Cpus_allowed_list:.*?(\d+)$/m.exec(readFileSync('/proc/self/status', 'utf8'))[1];
  const child = spawn('taskset', ['-c', cpu, ...command], { env, stdio: ['pipe', 'pipe', 'inherit'] });
  const failed = new Promise((_, reject) => {
    child.on('error', reject);
    child.on('exit', (code, signal) => reject(new Error(`${command.join(' ')} ended with ${signal ?? code}`)));
  });
  failed.catch(() => {});
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  return {
    async measure(name, requests) {
      child.stdin.write(`${name} ${requests}\n`);
      const { value } = await Promise.race([lines.next(), failed]);
      return JSON.parse(value).value;
    },
    stop() {
      child.removeAllListeners('exit');
      child.stdin.end();
    },
  };
}
