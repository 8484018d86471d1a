/**
 * One file over a channel, once both sides know what is to be copied. In turn:
 *
 *   receiver  {have, sum}   bytes that it has from before, and their SHA-256
 *   sender    {from}        have, if its file begins with these; else 0
 *   sender    pieces of the file from there to its size; or one of no bytes, when it gives up
 *   sender    {sum}         SHA-256 of the whole file; or {error}
 *   receiver  {sum}         of what it has, once the file has its name; or {error}, at any time before
 *
 * {error} in place of one of the first two ends it. A function here that throws a CopyError has told the other side, and the
 * next file can follow; any other error ends the connection.
 */
import { createHash, type Hash } from 'node:crypto';
import type { FileHandle } from 'node:fs/promises';
import { type CopyChannel, PIECE_BYTES, type Said } from './channel.ts';
import { CopyError, fileError, protocolError } from './errors.ts';
import type { Part } from './folder.ts';

/** What was copied. */
export interface Copied {
  /** Length of the file. */
  bytes: number;
  /** Bytes that were there from before. */
  resumedAt: number;
  /** SHA-256 of the file, in hexadecimal: of what was read there and written here. */
  sha256: string;
}

/** Told how far it is: bytes, of how many. */
export type Progress = (done: number, size: number) => void;

/** A file to be sent. */
export interface Source {
  handle: FileHandle;
  /** For messages. */
  path: string;
  size: number;
  mode: number;
  /** Its time of change, to see whether it is still the same in the end. */
  mtimeMs: number;
}

/** Looks at an open file. */
export async function sourceOf(handle: FileHandle, path: string): Promise<Source> {
  const { size, mode, mtimeMs } = await handle.stat();
  return { handle, path, size, mode: mode & 0o777, mtimeMs };
}

/** Hashes the beginning of a file. */
async function hashOf(channel: CopyChannel, handle: FileHandle, path: string, bytes: number): Promise<Hash> {
  try {
    return await hashed(handle, bytes, channel);
  } catch (error) {
    const told = fileError(error, path);
    await channel.sendError(told);
    throw told;
  }
}

async function hashed(handle: FileHandle, bytes: number, { messages }: CopyChannel): Promise<Hash> {
  const hash = createHash('sha256');
  const buffer = Buffer.allocUnsafe(Math.min(bytes, PIECE_BYTES));
  for (let at = 0; at < bytes; ) {
    if (messages.ended) throw new CopyError('ECONNRESET', 'the connection has ended');
    const { bytesRead } = await handle.read(buffer, 0, Math.min(buffer.length, bytes - at), at);
    if (bytesRead === 0) break;
    hash.update(buffer.subarray(0, bytesRead));
    at += bytesRead;
  }
  return hash;
}

/** Sends a file. @throws CopyError of either side */
export async function sendFile(channel: CopyChannel, source: Source, progress: Progress): Promise<Copied> {
  const { handle, path, size } = source;
  const has = await channel.receive();
  const have = has.count('have', size);
  let hash = createHash('sha256');
  let from = 0;
  if (have > 0) {
    const begun = await hashOf(channel, handle, path, have);
    if (begun.copy().digest('hex') === has.text('sum')) [hash, from] = [begun, have];
  }
  await channel.send({ from });
  // It comes in the end; or before, when the other side cannot go on.
  const early: { error?: Error } = {};
  const verdict = channel.receive();
  verdict.catch((error: Error) => {
    early.error = error;
  });
  try {
    await sendPieces(channel, source, from, { hash, progress, isStopped: () => early.error !== undefined });
  } catch (error) {
    // Its turn in the protocol is kept, unless the connection has ended.
    await channel.giveUp();
    await channel.sendError(error as Error);
    await verdict.catch(() => {});
    throw error;
  }
  if (early.error) {
    await channel.giveUp();
    await channel.send({ error: { code: 'ECANCELED', message: 'the other side cannot go on' } });
    throw early.error;
  }
  const sum = hash.digest('hex');
  await channel.send({ sum });
  if ((await verdict).text('sum') !== sum) throw new CopyError('ERR_COPY_CHECKSUM', `${path}: the sums differ`);
  return { bytes: size, resumedAt: from, sha256: sum };
}

/** Sends the rest of a file. @throws CopyError ERR_COPY_CHANGED when it is no longer as long, or was written to */
export async function sendPieces(
  channel: CopyChannel,
  { handle, path, size, mtimeMs }: Source,
  from: number,
  { hash, progress, isStopped }: { hash: Hash; progress: Progress; isStopped: () => boolean },
): Promise<void> {
  const changed = () => new CopyError('ERR_COPY_CHANGED', `${path}: it was changed while it was copied`);
  progress(from, size);
  for (let at = from; at < size && !isStopped(); ) {
    const room = await channel.room();
    const length = Math.min(PIECE_BYTES, size - at);
    try {
      for (let done = 0; done < length; ) {
        const { bytesRead } = await handle.read(room.buffer, done, length - done, at + done);
        if (bytesRead === 0) throw changed();
        done += bytesRead;
      }
    } catch (error) {
      channel.giveBack(room);
      throw fileError(error, path);
    }
    hash.update(room.buffer.subarray(0, length));
    channel.sendPiece(room, length);
    at += length;
    progress(at, size);
  }
  if ((await handle.stat()).mtimeMs !== mtimeMs) throw changed();
}

/** Receives a file of a size. The part stays when it fails, to be gone on with, unless it is worthless. */
export async function receiveFile(
  channel: CopyChannel,
  part: Part,
  { path, size, mode }: { path: string; size: number; mode: number },
  progress: Progress,
): Promise<Copied> {
  // What is longer is of another file.
  const have = part.size > size ? 0 : part.size;
  let hash = await hashOf(channel, part.handle, path, have);
  await channel.send({ have, sum: hash.copy().digest('hex') });
  const from = (await channel.receive()).count('from');
  if (from !== 0 && from !== have) throw protocolError(`it goes on at ${from}, where ${have} bytes are`);
  let failure: Error | undefined;
  const fail = async (error: unknown) => {
    if (failure) return;
    failure = error as Error;
    await channel.sendError(failure);
  };
  if (from === 0) {
    hash = createHash('sha256');
    if (part.size > 0) await part.clear().catch(fail);
  }
  await receivePieces(channel, part, { from, size, hash, progress, fail, hasFailed: () => failure !== undefined });
  let said: Said | undefined;
  try {
    said = await channel.receive();
  } catch (error) {
    if (!(error instanceof CopyError && error.isRemote)) throw error;
    // It gives up: because of what this side has said, or for a reason of its own.
    await fail(error);
  }
  if (failure) throw failure;
  const sum = hash.digest('hex');
  if (said?.text('sum') !== sum) {
    await part.remove();
    await fail(new CopyError('ERR_COPY_CHECKSUM', `${path}: what has arrived is not what was sent`));
  } else await part.finish(mode).catch(fail);
  if (failure) throw failure;
  await channel.send({ sum });
  return { bytes: size, resumedAt: from, sha256: sum };
}

/** Receives the rest of a file, and writes it as far as that goes. */
export async function receivePieces(
  channel: CopyChannel,
  part: Part,
  how: {
    from: number;
    size: number;
    hash: Hash;
    progress: Progress;
    fail: (error: unknown) => Promise<void>;
    hasFailed: () => boolean;
  },
): Promise<void> {
  const { from, size, hash, progress, fail, hasFailed } = how;
  progress(from, size);
  for (let at = from; at < size; ) {
    const piece = await channel.receivePiece();
    try {
      const length = piece.byteLength;
      if (length === 0) return;
      if (length > size - at) throw protocolError(`${length} bytes, where ${size - at} are left`);
      if (!hasFailed()) {
        hash.update(piece.data);
        await part.write(piece.data, at).catch(fail);
      }
      at += length;
      progress(at, size);
    } finally {
      piece.release();
    }
  }
}
