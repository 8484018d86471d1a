/** Directories that are held open, and files in them: no path leads out, whatever others do to the tree meanwhile. */
import { readFileSync } from 'node:fs';
import { constants, type FileHandle, lstat, open, rename, unlink } from 'node:fs/promises';
import { CopyError, fileError } from './errors.ts';

const { O_CREAT, O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_RDWR } = constants;

const PART_SUFFIX = '.rdma-part';
// What Linux takes.
const MAX_PATH = 4096;

/** Where what has arrived of a file is kept until all of it is there. */
export const partName = (name: string): string => `.${name}${PART_SUFFIX}`;

const outside = (path: string, why: string) =>
  new CopyError('ERR_COPY_PATH', `${JSON.stringify(path)} is refused: ${why}`);

/**
 * The names along a path below a directory.
 *
 * @throws CopyError `ERR_COPY_PATH` for one that is absolute, goes up, has a NUL, or names what is kept of another copy
 */
export function namesOf(path: string): string[] {
  if (path.includes('\0')) throw outside(path, 'it has a NUL');
  if (path.startsWith('/')) throw outside(path, 'it is absolute');
  if (Buffer.byteLength(path) > MAX_PATH) throw new CopyError('ENAMETOOLONG', 'the path is too long');
  const names = path.split('/').filter((name) => name !== '' && name !== '.');
  if (names.includes('..')) throw outside(path, 'it goes up');
  if (names.some((name) => name.endsWith(PART_SUFFIX))) throw outside(path, `${PART_SUFFIX} is for copies under way`);
  return names;
}

/** A directory that is held open. What is done in it goes through the kernel's link to it, which no renaming changes. */
export class Folder {
  readonly #handle: FileHandle;
  /** Which one it is, whatever it is called. */
  readonly key: string;

  private constructor(handle: FileHandle, key: string) {
    this.#handle = handle;
    this.key = key;
  }

  /** Opens a directory by the path of who runs this process: links in it are followed. */
  static async open(path: string): Promise<Folder> {
    return Folder.#of(
      await open(path, O_RDONLY | O_DIRECTORY).catch((error) => Promise.reject(fileError(error, path))),
    );
  }

  /** Opens one below this one, name by name. Symbolic links are refused. */
  async below(names: readonly string[]): Promise<Folder> {
    let at: Folder | undefined;
    for (const [i, name] of names.entries()) {
      const parent: Folder = at ?? this;
      try {
        at = await Folder.#of(await open(parent.#path(name), O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
      } catch (error) {
        throw await parent.#explained(error, name, names.slice(0, i + 1).join('/'));
      } finally {
        if (parent !== this) await parent.close();
      }
    }
    return at ?? (await Folder.#of(await open(this.#path('.'), O_RDONLY | O_DIRECTORY)));
  }

  /** Opens a regular file in it to be read. */
  async openFile(name: string, path: string): Promise<FileHandle> {
    try {
      // A FIFO would wait for its writer.
      const handle = await open(this.#path(name), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
      return await regular(handle, path);
    } catch (error) {
      throw await this.#explained(error, name, path);
    }
  }

  /** Whether there is a directory of that name. @throws CopyError `ERR_COPY_PATH` for a symbolic link to one */
  async hasFolder(name: string, path: string): Promise<boolean> {
    try {
      const handle = await open(this.#path(name), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
      await handle.close();
      return true;
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === 'ENOENT') return false;
      const told = await this.#explained(error, name, path);
      if (code === 'ENOTDIR' && (told as CopyError).code === 'ENOTDIR') return false;
      throw told;
    }
  }

  /** Opens what there is of a file that is to be in it, or begins it. */
  async openPart(name: string, path: string): Promise<Part> {
    const part = this.#path(partName(name));
    try {
      const handle = await open(part, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0o600);
      await regular(handle, path);
      return new Part(handle, part, this.#path(name), path, (await handle.stat()).size);
    } catch (error) {
      throw await this.#explained(error, partName(name), path);
    }
  }

  async close(): Promise<void> {
    await this.#handle.close();
  }

  static async #of(handle: FileHandle): Promise<Folder> {
    const { dev, ino } = await handle.stat({ bigint: true });
    return new Folder(handle, `${dev}:${ino}`);
  }

  #path(name: string): string {
    return `/proc/self/fd/${this.#handle.fd}/${name}`;
  }

  async #explained(error: unknown, name: string, path: string): Promise<Error> {
    const { code } = error as NodeJS.ErrnoException;
    // What O_NOFOLLOW makes of a link, alone and with O_DIRECTORY.
    if (code === 'ELOOP' || code === 'ENOTDIR') {
      const isLink = await lstat(this.#path(name))
        .then((stat) => stat.isSymbolicLink())
        .catch(() => false);
      if (isLink) return outside(path, 'symbolic links are not followed');
    }
    return fileError(error, path);
  }
}

/** What has arrived of a file. */
export class Part {
  readonly #handle: FileHandle;
  readonly #part: string;
  readonly #target: string;
  readonly #path: string;
  /** Bytes that were there when it was opened. */
  readonly size: number;

  constructor(handle: FileHandle, part: string, target: string, path: string, size: number) {
    this.#handle = handle;
    this.#part = part;
    this.#target = target;
    this.#path = path;
    this.size = size;
  }

  get handle(): FileHandle {
    return this.#handle;
  }

  /** Nothing has arrived. */
  async clear(): Promise<void> {
    await this.#do(this.#handle.truncate(0));
  }

  /** Writes all of it there. @throws CopyError such as ENOSPC */
  async write(bytes: Buffer, at: number): Promise<void> {
    for (let done = 0; done < bytes.length; ) {
      const { bytesWritten } = await this.#do(this.#handle.write(bytes, done, bytes.length - done, at + done));
      done += bytesWritten;
    }
  }

  /** It is whole: it gets its mode and, once it is on the disk, its name, in place of what had that before. */
  async finish(mode: number): Promise<void> {
    await this.#do(this.#handle.chmod(mode & 0o777 & ~umask()));
    await this.#do(this.#handle.sync());
    await this.#do(rename(this.#part, this.#target));
  }

  /** It is worthless. */
  async remove(): Promise<void> {
    await unlink(this.#part).catch(() => {});
  }

  async close(): Promise<void> {
    await this.#handle.close();
  }

  async #do<T>(promise: Promise<T>): Promise<T> {
    return promise.catch((error) => Promise.reject(fileError(error, this.#path)));
  }
}

async function regular(handle: FileHandle, path: string): Promise<FileHandle> {
  const stat = await handle.stat();
  if (stat.isFile()) return handle;
  await handle.close();
  if (stat.isDirectory()) throw new CopyError('EISDIR', `${path}: is a directory`);
  throw new CopyError('EINVAL', `${path}: is no regular file`);
}

// process.umask() sets it to read it, which other threads see.
function umask(): number {
  const [, digits] = /^Umask:\s*([0-7]+)$/m.exec(readFileSync('/proc/self/status', 'latin1')) ?? [];
  return digits === undefined ? 0o022 : Number.parseInt(digits, 8);
}

/** Opens a file of this side's user to be read. */
export async function openSource(path: string): Promise<FileHandle> {
  try {
    return await regular(await open(path, O_RDONLY | O_NONBLOCK), path);
  } catch (error) {
    throw fileError(error, path);
  }
}
