/** Waiting by polling, in turns: signals, sockets and a peer in the same thread get theirs. */
import { setImmediate as turn } from 'node:timers/promises';
import { WorkCompletionError } from '../errors.ts';
import { WcStatus } from '../native/constants.gen.ts';
import type { CompletionQueue } from '../verbs/completion-queue.ts';
import { wcStatusName, wcStatusStr } from '../verbs/text.ts';
import type { WorkCompletion } from '../verbs/work-completion.ts';

// How long is polled before others have a turn; a look at the clock costs as much as some polls.
const SPIN_MS = 0.3;
const POLLS = 64;

// How long others wait where completions never run out.
const TURN_MS = 50;
let calls = 0;
let lastTurn = 0;

/** Whether others have waited for a turn for long: asked in each round of a loop that may find work without end. */
export function isTurnDue(): boolean {
  return (++calls & 63) === 0 && performance.now() - lastTurn > TURN_MS;
}

/** Gives others a turn. */
export async function giveTurn(signal: AbortSignal): Promise<void> {
  await turn();
  lastTurn = performance.now();
  signal.throwIfAborted();
}

/** Asks until the answer is yes. */
export async function spin(isDone: () => boolean, signal: AbortSignal): Promise<void> {
  for (;;) {
    const end = performance.now() + SPIN_MS;
    do {
      for (let i = 0; i < POLLS; i++) if (isDone()) return;
    } while (performance.now() < end);
    await turn();
    signal.throwIfAborted();
  }
}

/** Waits for completions, asleep or awake. @returns how many there are; `cq.at(i)` has them */
export async function nextCompletions(cq: CompletionQueue, events: boolean, signal: AbortSignal): Promise<number> {
  if (events) return cq.wait({ signal });
  let found = 0;
  await spin(() => {
    found = cq.poll();
    return found > 0;
  }, signal);
  return found;
}

/** Throws when a completion tells of a failure. */
export function checkCompletion(wc: WorkCompletion, operation: string): void {
  const { status } = wc;
  if (status === WcStatus.SUCCESS) return;
  // The error carries a code for the command line, which shows its message.
  const error = new WorkCompletionError(operation, wc, wcStatusName(status), wcStatusStr(status));
  throw Object.assign(error, { code: 'ERR_RDMA_COMPLETION' });
}
