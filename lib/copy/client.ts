import { basename, dirname, join } from 'node:path';
import type { CopyChannel } from './channel.ts';
import { CopyError, protocolError } from './errors.ts';
import { Folder, openSource } from './folder.ts';
import { COPY_PROTOCOL } from './server.ts';
import { type Copied, type Progress, receiveFile, sendFile, sourceOf } from './transfer.ts';

/** Puts files into what a peer serves, and gets them out of it: one at a time, over one connection. */
export class CopyClient {
  readonly #channel: CopyChannel;

  private constructor(channel: CopyChannel) {
    this.#channel = channel;
  }

  /** Begins, on a connection to a peer that serves. @throws CopyError ERR_COPY_PROTOCOL when it is another program */
  static async open(channel: CopyChannel): Promise<CopyClient> {
    try {
      await channel.send({ protocol: COPY_PROTOCOL });
      const said = await channel.receive();
      if (said.text('protocol') !== COPY_PROTOCOL) throw protocolError(`it is no ${COPY_PROTOCOL}`);
      return new CopyClient(channel);
    } catch (error) {
      channel.messages.destroy(error as Error);
      await channel.close();
      throw error;
    }
  }

  /**
   * Puts a file.
   *
   * @param file - path of this side
   * @param path - below what is served: of a directory, or the new name
   * @throws CopyError, after which the next file can follow unless `ended`
   */
  async put(file: string, path: string, progress: Progress = () => {}): Promise<Copied> {
    const handle = await openSource(file);
    try {
      const source = await sourceOf(handle, file);
      const { size, mode } = source;
      await this.#channel.send({ put: path, name: basename(file), size, mode });
      return await sendFile(this.#channel, source, progress);
    } finally {
      await handle.close();
    }
  }

  /**
   * Gets a file.
   *
   * @param path - below what is served
   * @param target - path of this side: of a directory, or the new name
   */
  async get(path: string, target: string, progress: Progress = () => {}): Promise<Copied> {
    const [folder, name, full] = await placeOf(target, basename(path));
    try {
      await this.#channel.send({ get: path });
      const said = await this.#channel.receive();
      const [size, mode] = [said.count('size'), said.count('mode', 0o777)];
      const part = await folder.openPart(name, full).catch(async (error) => {
        await this.#channel.sendError(error);
        throw error;
      });
      try {
        return await receiveFile(this.#channel, part, { path: full, size, mode }, progress);
      } finally {
        await part.close();
      }
    } finally {
      await folder.close();
    }
  }

  /** Whether the connection has ended. */
  get ended(): boolean {
    return this.#channel.messages.ended;
  }

  /** Ends the connection in the middle. What has arrived can be gone on with. */
  destroy(reason: Error): void {
    this.#channel.messages.destroy(reason);
  }

  async close(): Promise<void> {
    await this.#channel.close();
  }
}

/** The directory where a file goes, its name there, and the path of that for messages. */
async function placeOf(target: string, given: string): Promise<[Folder, string, string]> {
  const isFolder = await Folder.open(target).catch(() => undefined);
  if (isFolder) return [isFolder, checked(given), join(target, given)];
  if (target.endsWith('/')) throw new CopyError('ENOTDIR', `${target}: not a directory`);
  return [await Folder.open(dirname(target)), checked(basename(target)), target];
}

function checked(name: string): string {
  if (name === '' || name === '.' || name === '..') throw new CopyError('EISDIR', `${name}: is no name of a file`);
  return name;
}
