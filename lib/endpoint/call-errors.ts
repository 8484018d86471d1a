/** Errors of handlers, as they are told to the peer that has called. */
import { CallError } from '../errors.ts';

/** Longest code that is told. @internal */
export const CODE_CHARS = 40;
const NO_REASON = 'no reason given';

/** What a handler has thrown, which may be anything, and may throw itself when it is looked at. @internal */
export function reasonOf(thrown: unknown): { message: string; code: string | undefined } {
  try {
    if (!(thrown instanceof Error)) return { message: String(thrown), code: undefined };
    const { message, code } = thrown as { message: unknown; code?: unknown };
    return {
      message: typeof message === 'string' ? message : NO_REASON,
      // Printable, and nothing that JSON escapes.
      code: typeof code === 'string' && /^[ !#-[\]-~]*$/.test(code) ? code.slice(0, CODE_CHARS) : undefined,
    };
  } catch {
    return { message: NO_REASON, code: undefined };
  }
}

/** What came from a peer, so nothing of it is taken for granted. @internal */
export function callError(method: string, json: unknown): CallError {
  const { message, code } = (typeof json === 'object' && json !== null ? json : {}) as {
    message?: unknown;
    code?: unknown;
  };
  const text = typeof message === 'string' ? message : NO_REASON;
  return new CallError(`${method}: ${text}`, typeof code === 'string' ? code : undefined);
}
