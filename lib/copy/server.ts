import type { CopyChannel, Said } from './channel.ts';
import { CopyError, protocolError } from './errors.ts';
import { Folder, namesOf } from './folder.ts';
import { type Copied, receiveFile, sendFile, sourceOf } from './transfer.ts';

/** Said by the client first of all. */
export const COPY_PROTOCOL = 'node-rdma copy 1';

/** A file that a peer has put or got, or has failed to. */
export interface ServedFile extends Partial<Copied> {
  direction: 'put' | 'get';
  /** Below the directory. */
  path: string;
  seconds: number;
  /** Why it failed. */
  error?: Error;
}

/** A directory that files are put into and got out of, by any number of peers. */
export class CopyFolder {
  readonly #root: Folder;
  readonly #isReadOnly: boolean;
  // Files that are being put: by their directory and their name.
  readonly #taken = new Set<string>();

  private constructor(root: Folder, isReadOnly: boolean) {
    this.#root = root;
    this.#isReadOnly = isReadOnly;
  }

  /** @throws CopyError ENOENT, ENOTDIR, EACCES */
  static async open(path: string, isReadOnly = false): Promise<CopyFolder> {
    return new CopyFolder(await Folder.open(path), isReadOnly);
  }

  /**
   * Does what a peer asks for, until it ends.
   *
   * @param onFile - told of each file
   * @throws what has ended the connection, after closing it
   */
  async serve(channel: CopyChannel, onFile: (file: ServedFile) => void): Promise<void> {
    try {
      const hello = await channel.next();
      if (hello === undefined) return;
      if (hello.text('protocol') !== COPY_PROTOCOL) throw protocolError(`it is no ${COPY_PROTOCOL}`);
      await channel.send({ protocol: COPY_PROTOCOL });
      for (;;) {
        const request = await channel.next();
        if (request === undefined) return;
        await this.#answer(channel, request, onFile);
      }
    } catch (error) {
      channel.messages.destroy(error as Error);
      throw error;
    } finally {
      await channel.close();
    }
  }

  async close(): Promise<void> {
    await this.#root.close();
  }

  async #answer(channel: CopyChannel, request: Said, onFile: (file: ServedFile) => void): Promise<void> {
    const direction = request.has('put') ? 'put' : 'get';
    const asked = request.text(direction);
    let path = asked;
    const begin = performance.now();
    const seconds = () => (performance.now() - begin) / 1000;
    try {
      const named = (name: string) => {
        path = name;
      };
      const copied =
        direction === 'put' ? await this.#put(channel, asked, request, named) : await this.#get(channel, asked);
      onFile({ direction, path, ...copied, seconds: seconds() });
    } catch (error) {
      onFile({ direction, path, seconds: seconds(), error: error as Error });
      // The next file may do better, unless the two sides no longer understand each other.
      if (!(error instanceof CopyError) || /^(ERR_COPY_PROTOCOL|ECONNRESET)$/.test(error.code)) throw error;
    }
  }

  async #get(channel: CopyChannel, path: string): Promise<Copied> {
    const source = await told(channel, async () => {
      const names = namesOf(path);
      const name = names.pop();
      if (name === undefined) throw new CopyError('EISDIR', `${path || '.'}: is a directory`);
      const folder = await this.#root.below(names);
      try {
        return await sourceOf(await folder.openFile(name, path), path);
      } finally {
        await folder.close();
      }
    });
    try {
      const { size, mode } = source;
      await channel.send({ size, mode });
      return await sendFile(channel, source, () => {});
    } finally {
      await source.handle.close();
    }
  }

  /** @param named - told the path of the file, as far as it is known */
  async #put(channel: CopyChannel, path: string, request: Said, named: (path: string) => void): Promise<Copied> {
    const [size, mode] = [request.count('size'), request.count('mode', 0o777)];
    const given = request.text('name');
    if (path === '' || path.endsWith('/')) named(path + given);
    const target = await told(channel, async () => {
      if (this.#isReadOnly) throw new CopyError('EROFS', `${path || given}: what is served is read-only`);
      return this.#target(path, given);
    });
    const { folder, name, part, key } = target;
    named(name);
    try {
      return await receiveFile(channel, part, { path: name, size, mode }, () => {});
    } finally {
      this.#taken.delete(key);
      await part.close();
      await folder.close();
    }
  }

  /** Where a file goes: into the directory of that path under the given name, else to that path. */
  async #target(path: string, given: string) {
    const names = namesOf(path);
    const name = names.pop();
    const own = namesOf(given);
    if (own.length !== 1) throw new CopyError('ERR_COPY_PATH', `${JSON.stringify(given)} is no name of a file`);
    const parent = await this.#root.below(names);
    let folder = parent;
    try {
      let last = name;
      if (name === undefined || path.endsWith('/') || (await parent.hasFolder(name, path))) {
        folder = await parent.below(name === undefined ? [] : [name]);
        last = own[0];
      }
      const key = `${folder.key}/${last}`;
      if (this.#taken.has(key)) throw new CopyError('EBUSY', `${path || given}: it is being written already`);
      const full = folder === parent ? path : [...names, name, last].filter(Boolean).join('/');
      if (await folder.hasFolder(last as string, full)) throw new CopyError('EISDIR', `${full}: is a directory`);
      this.#taken.add(key);
      const part = await folder.openPart(last as string, full).catch((error) => {
        this.#taken.delete(key);
        throw error;
      });
      if (folder !== parent) await parent.close();
      return { folder, name: full, part, key };
    } catch (error) {
      if (folder !== parent) await folder.close();
      await parent.close();
      throw error;
    }
  }
}

/** Does something, and tells the peer when it fails. */
async function told<T>(channel: CopyChannel, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    await channel.sendError(error as Error);
    throw error;
  }
}
