import { getSystemErrorMap } from 'node:util';

/**
 * A file was not copied. `code` is an errno name (`'ENOENT'`, `'ENOSPC'`, ...) or `'ERR_COPY_PATH'`: the path leads out of
 * the directory; `'ERR_COPY_CHECKSUM'`: what has arrived is not what was sent; `'ERR_COPY_CHANGED'`: the file has changed
 * in the middle; `'ERR_COPY_PROTOCOL'`: the peer says what makes no sense.
 */
export class CopyError extends Error {
  readonly code: string;
  /** Whether it is the peer that says so. */
  readonly isRemote: boolean;

  constructor(code: string, message: string, options: ErrorOptions & { isRemote?: boolean } = {}) {
    super(message, options);
    this.name = 'CopyError';
    this.code = code;
    this.isRemote = options.isRemote === true;
  }
}

/** The peer does not keep to the protocol. */
export const protocolError = (detail: string): CopyError =>
  new CopyError('ERR_COPY_PROTOCOL', `the peer does not keep to the protocol of copies: ${detail}`);

/** An error of the file system, told of the path that the user knows. Others are passed on. */
export function fileError(error: unknown, path: string): Error {
  const { code, errno } = error as NodeJS.ErrnoException;
  if (!(error instanceof Error) || error instanceof CopyError || typeof errno !== 'number') return error as Error;
  const text = getSystemErrorMap().get(errno)?.[1] ?? error.message;
  return new CopyError(code as string, `${path}: ${text}`, { cause: error });
}
