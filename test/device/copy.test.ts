/** Copies between the two devices, both sides in this process: bytes, modes, resuming, refusals, ends in the middle. */
import { createHash } from 'node:crypto';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { CopyChannel, copyLimits, PIECE_BYTES } from '../../lib/copy/channel.ts';
import { CopyClient } from '../../lib/copy/client.ts';
import { Folder, partName } from '../../lib/copy/folder.ts';
import { COPY_PROTOCOL, CopyFolder, type ServedFile } from '../../lib/copy/server.ts';
import { receivePieces, sendPieces, sourceOf } from '../../lib/copy/transfer.ts';
import { Messages } from '../../lib/index.ts';
import { rejection } from './cm.ts';
import { DEADLINE_MS, expectNoLeaks, fill, isRxe, within } from './fixture.ts';
import { Ends } from './messages.ts';

let ends: Ends;
// What is served, and what the client has.
let served: string;
let own: string;
let root: string;

beforeAll(() => {
  ends = new Ends();
});

afterAll(() => ends.close());

beforeEach(() => {
  root = fs.mkdtempSync(join(tmpdir(), 'rdma-copy-'));
  [served, own] = [join(root, 'served'), join(root, 'own')];
  for (const folder of [served, own]) fs.mkdirSync(folder);
});

afterEach(() => fs.rmSync(root, { recursive: true }));

expectNoLeaks();

const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');
const bytes = (length: number, seed = 1) => fill(Buffer.alloc(length), seed);
const has = (...path: string[]) => fs.existsSync(join(...path));

/** A server and something that talks with it. */
class Session {
  readonly files: ServedFile[] = [];
  readonly folder: CopyFolder;
  /** The server's end, and how that ended. */
  readonly messages: Messages;
  readonly ended: Promise<Error | undefined>;
  /** The client's end. */
  readonly channel: CopyChannel;

  private constructor(folder: CopyFolder, a: Messages, b: Messages) {
    this.folder = folder;
    this.messages = b;
    this.channel = new CopyChannel(a, ends.pdA);
    this.ended = folder
      .serve(new CopyChannel(b, ends.pdB), (file) => this.files.push(file))
      .then(
        () => undefined,
        (error: Error) => error,
      );
  }

  static async open(folder?: CopyFolder, isReadOnly = false): Promise<Session> {
    const serving = folder ?? (await CopyFolder.open(served, isReadOnly));
    const [a, b] = await ends.connect(copyLimits);
    const how = { timeoutMs: DEADLINE_MS };
    return new Session(serving, ...(await Promise.all([Messages.open(a, how), Messages.open(b, how)])));
  }

  /** What the server told of the last file, once it has told. */
  get last(): ServedFile {
    return this.files.at(-1) as ServedFile;
  }

  async close(): Promise<void> {
    await within(this.channel.close(), 'the close');
    await within(this.ended, 'the end of the server');
    await this.folder.close().catch(() => {});
  }
}

/** Does something with a client, and closes all. */
async function withClient(
  work: (client: CopyClient, session: Session) => Promise<void>,
  isReadOnly = false,
): Promise<Session> {
  const session = await Session.open(undefined, isReadOnly);
  try {
    await work(await CopyClient.open(session.channel), session);
  } finally {
    await session.close();
  }
  return session;
}

// Many rounds: where they are fast. The connection and the kernel's files are the same on Soft-RoCE.
const itFast = it.runIf(!isRxe);

describe('copies', () => {
  it('put and get files, whole and under their names, with sums, modes and progress', async () => {
    const data = bytes(3 * PIECE_BYTES + 17);
    fs.writeFileSync(join(own, 'big'), data);
    fs.chmodSync(join(own, 'big'), 0o751);
    fs.mkdirSync(join(served, 'sub'));
    const { files } = await withClient(async (client) => {
      const seen: number[][] = [];
      const copied = await client.put(join(own, 'big'), 'sub', (done, size) => seen.push([done, size]));
      expect(copied).toEqual({ bytes: data.length, resumedAt: 0, sha256: sha256(data) });
      expect(seen[0]).toEqual([0, data.length]);
      expect(seen.at(-1)).toEqual([data.length, data.length]);
      await client.get('sub/big', join(own, 'back'));
    });
    for (const path of [join(served, 'sub/big'), join(own, 'back')]) {
      expect(fs.readFileSync(path).equals(data)).toBe(true);
      expect(fs.statSync(path).mode & 0o777).toBe(0o751 & ~process.umask());
    }
    expect([fs.readdirSync(join(served, 'sub')), fs.readdirSync(own).sort()]).toEqual([['big'], ['back', 'big']]);
    const common = { bytes: data.length, resumedAt: 0, sha256: sha256(data) };
    expect(files).toMatchObject([
      { direction: 'put', path: 'sub/big', ...common },
      { direction: 'get', path: 'sub/big', ...common },
    ]);
  });

  itFast(
    'of every length around a piece and a buffer, none included, into a directory or under a new name',
    async () => {
      await withClient(async (client) => {
        const lengths = [0, 1, 16_367, 16_368, 16_369, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES];
        for (const [i, length] of lengths.entries()) {
          const data = bytes(length, i);
          fs.writeFileSync(join(own, 'file'), data);
          await client.put(join(own, 'file'), i % 2 ? '' : 'name');
          await client.get(i % 2 ? 'file' : './name', `${own}/${i % 2 ? 'back' : ''}`);
          expect(fs.readFileSync(join(served, i % 2 ? 'file' : 'name')).equals(data)).toBe(true);
          expect(fs.readFileSync(join(own, i % 2 ? 'back' : 'name')).equals(data)).toBe(true);
        }
      });
    },
  );

  itFast('go on where one was cut off, either way, when the file still begins so', async () => {
    const data = bytes(4 * PIECE_BYTES);
    const cut = PIECE_BYTES + 12_345;
    fs.writeFileSync(join(own, 'file'), data);
    for (const [start, resumedAt] of [
      [data.subarray(0, cut), cut],
      [data, data.length],
      // Of another file; and longer than this one.
      [bytes(cut, 9), 0],
      [bytes(data.length + 1), 0],
    ] as const) {
      fs.writeFileSync(join(served, partName('file')), start);
      fs.writeFileSync(join(own, partName('back')), start);
      await withClient(async (client) => {
        const copied = { bytes: data.length, resumedAt, sha256: sha256(data) };
        expect(await client.put(join(own, 'file'), '')).toEqual(copied);
        expect(await client.get('file', join(own, 'back'))).toEqual(copied);
      });
      for (const [folder, name] of [
        [served, 'file'],
        [own, 'back'],
      ] as const) {
        expect(fs.readFileSync(join(folder, name)).equals(data)).toBe(true);
        expect(has(folder, partName(name))).toBe(false);
      }
    }
  });

  itFast.each(['client', 'server'] as const)('leave what has arrived when the %s goes in the middle', async (who) => {
    // What has arrived is read even then: more than fits into the receiver's memory.
    const data = bytes(24 * PIECE_BYTES);
    fs.writeFileSync(join(own, 'file'), data);
    fs.writeFileSync(join(served, 'old'), 'what was there');
    for (const direction of ['put', 'get'] as const) {
      const session = await Session.open();
      const client = await CopyClient.open(session.channel);
      const progress = (done: number) => {
        if (done < 8 * PIECE_BYTES) return;
        if (who === 'client') client.destroy(new Error('killed'));
        else session.messages.destroy(new Error('killed'));
      };
      const [source, target] = direction === 'put' ? [join(own, 'file'), 'old'] : ['old', join(own, 'back')];
      const error = await rejection(client[direction](source, target, progress));
      expect(error).toMatchObject(who === 'client' ? { message: 'killed' } : { code: 'ECONNRESET' });
      expect(await within(session.ended, 'the server')).toMatchObject(
        who === 'server' ? { message: 'killed' } : { code: 'ECONNRESET' },
      );
      await session.close();
      const [part, now, before] =
        direction === 'put'
          ? [join(served, partName('old')), join(served, 'old'), 'what was there']
          : [join(own, partName('back')), join(own, 'back'), undefined];
      const length = fs.statSync(part).size;
      expect(length).toBeGreaterThan(0);
      expect(length).toBeLessThan(data.length);
      expect(fs.readFileSync(part).equals(data.subarray(0, length))).toBe(true);
      // Nobody sees a file in the middle.
      expect(has(now) ? fs.readFileSync(now, 'utf8') : undefined).toBe(before);
      await withClient(async (again) => {
        expect(await again[direction](source, target)).toMatchObject({ resumedAt: length, sha256: sha256(data) });
      });
      expect(fs.readFileSync(now).equals(data)).toBe(true);
      expect(has(part)).toBe(false);
    }
  });

  itFast('of more than 4 GiB are written where they belong', async () => {
    const [file, size] = [join(own, 'file'), 5 * 2 ** 30 + 5];
    const from = size - 3 * PIECE_BYTES - 1;
    const data = bytes(size - from);
    const handle = await fs.promises.open(file, 'w+');
    // Sparse: only its end takes room.
    await handle.truncate(size);
    await handle.write(data, 0, data.length, from);
    const folder = await Folder.open(served);
    const part = await folder.openPart('file', 'file');
    await part.handle.truncate(from);
    const channels = (await ends.connect(copyLimits)).map((end) => Messages.open(end, { timeoutMs: DEADLINE_MS }));
    const [a, b] = (await Promise.all(channels)) as [Messages, Messages];
    const [sender, receiver] = [new CopyChannel(a, ends.pdA), new CopyChannel(b, ends.pdB)];
    const seen: number[] = [];
    const progress = (done: number) => void seen.push(done);
    const [sent, received] = [createHash('sha256'), createHash('sha256')];
    const rest = { from, size, hash: received, progress, fail: (error: unknown) => Promise.reject(error) };
    await within(
      Promise.all([
        sendPieces(sender, await sourceOf(handle, file), from, { hash: sent, progress, isStopped: () => false }),
        receivePieces(receiver, part, { ...rest, hasFailed: () => false }),
      ]),
      'the rest',
    );
    await part.finish(0o600);
    await part.close();
    await Promise.all([sender.close(), receiver.close()]);
    await Promise.all([folder.close(), handle.close()]);
    expect([Math.min(...seen), Math.max(...seen)]).toEqual([from, size]);
    expect([sent.digest('hex'), received.digest('hex')]).toEqual([sha256(data), sha256(data)]);
    const written = await fs.promises.open(join(served, 'file'));
    const { size: length, blocks } = await written.stat();
    expect(length).toBe(size);
    expect(blocks * 512).toBeLessThan(2 ** 30);
    const { buffer } = await written.read(Buffer.alloc(data.length), 0, data.length, from);
    expect(buffer.equals(data)).toBe(true);
    await written.close();
  });

  itFast('refuse what leads out of the directory, and go on', async () => {
    fs.writeFileSync(join(root, 'secret'), 'secret');
    fs.writeFileSync(join(own, 'file'), 'mine');
    fs.writeFileSync(join(served, 'inside'), 'inside');
    fs.symlinkSync(join(root, 'secret'), join(served, 'link'));
    fs.symlinkSync(root, join(served, 'up'));
    fs.symlinkSync('inside', join(served, 'near'));
    fs.symlinkSync(join(root, 'secret'), join(served, partName('trap')));
    const before = fs.readdirSync(served).sort();
    const refused = [
      '../secret',
      '/etc/passwd',
      'a/../../secret',
      'link',
      'up/secret',
      'near',
      'in\0side',
      '..',
      'up/',
    ];
    const { files } = await withClient(async (client) => {
      for (const path of [...refused, '.x.rdma-part']) {
        const expected = { code: 'ERR_COPY_PATH', isRemote: true };
        expect(await rejection(client.get(path, join(own, 'got'))), `get ${path}`).toMatchObject(expected);
        expect(await rejection(client.put(join(own, 'file'), path)), `put ${path}`).toMatchObject(expected);
      }
      expect(await rejection(client.put(join(own, 'file'), 'trap'))).toMatchObject({ code: 'ERR_COPY_PATH' });
      expect(await client.get('inside', join(own, 'got'))).toMatchObject({ bytes: 6 });
    });
    expect(files).toHaveLength(2 * refused.length + 4);
    expect(fs.readdirSync(served).sort()).toEqual(before);
    expect(fs.readdirSync(own).sort()).toEqual(['file', 'got']);
    expect(fs.readFileSync(join(root, 'secret'), 'utf8')).toBe('secret');
    expect(fs.readdirSync(root).sort()).toEqual(['own', 'secret', 'served']);
  });

  itFast(
    'refuse names that are none, what is no file, and what is not there, with the code of the system',
    async () => {
      fs.mkdirSync(join(served, 'folder'));
      fs.mkdirSync(join(served, 'folder/file'));
      fs.writeFileSync(join(own, 'file'), 'mine');
      fs.writeFileSync(join(served, 'file'), 'theirs');
      const { channel, ...session } = await Session.open();
      const client = await CopyClient.open(channel);
      expect(await rejection(client.get('nix', own))).toMatchObject({ code: 'ENOENT', isRemote: true });
      expect(await rejection(client.get('file/x', own))).toMatchObject({ code: 'ENOTDIR' });
      for (const path of ['folder', '', '.', 'folder/']) {
        const { code, message } = await rejection(client.get(path, join(own, 'x')));
        expect([code, message]).toEqual(['EISDIR', expect.not.stringContaining('/proc/')]);
      }
      expect(await rejection(client.put(join(own, 'file'), 'nix/'))).toMatchObject({ code: 'ENOENT' });
      expect(await rejection(client.put(join(own, 'file'), 'folder'))).toMatchObject({ code: 'EISDIR' });
      expect(await rejection(client.put(join(own, 'file'), 'x'.repeat(250)))).toMatchObject({ code: 'ENAMETOOLONG' });
      expect(await rejection(client.put(join(own, 'file'), 'x'.repeat(5000)))).toMatchObject({ code: 'ENAMETOOLONG' });
      expect(await rejection(client.put(join(own, 'nix'), ''))).toMatchObject({ code: 'ENOENT', isRemote: false });
      expect(await rejection(client.put(own, ''))).toMatchObject({ code: 'EISDIR', isRemote: false });
      expect(await rejection(client.put('/dev/null', ''))).toMatchObject({ code: 'EINVAL' });
      expect(await rejection(client.get('file', join(own, 'nix/x')))).toMatchObject({
        code: 'ENOENT',
        isRemote: false,
      });
      for (const name of ['', '..', 'a/b', '/etc/passwd', 'a\0b']) {
        await channel.send({ put: '', name, size: 1, mode: 0o644 });
        expect(await rejection(channel.receive()), name).toMatchObject({ code: 'ERR_COPY_PATH', isRemote: true });
      }
      expect(await client.get('file', join(own, 'got'))).toMatchObject({ bytes: 6 });
      expect(fs.readdirSync(served).sort()).toEqual(['file', 'folder']);
      await within(channel.close(), 'the close');
      expect(await within(session.ended, 'the server')).toBeUndefined();
      await session.folder.close();
    },
  );

  itFast('that fail at the disk are told to both sides, and the next file follows', async () => {
    // Nobody makes files there, not even root.
    const folder = await CopyFolder.open('/sys/kernel');
    fs.writeFileSync(join(own, 'file'), bytes(2 * PIECE_BYTES));
    const session = await Session.open(folder);
    const client = await CopyClient.open(session.channel);
    for (let i = 0; i < 2; i++) {
      const error = await rejection(client.put(join(own, 'file'), ''));
      expect(error).toMatchObject({ code: expect.stringMatching(/^(EACCES|EROFS|EPERM)$/), isRemote: true });
      expect(session.last.error).toMatchObject({ code: error.code });
    }
    await session.close();
  });

  itFast('are only got where what is served is read-only', async () => {
    fs.writeFileSync(join(served, 'file'), 'theirs');
    await withClient(async (client) => {
      expect(await rejection(client.put(join(served, 'file'), 'x'))).toMatchObject({ code: 'EROFS', isRemote: true });
      expect(await client.get('file', own)).toMatchObject({ bytes: 6 });
    }, true);
    expect(fs.readdirSync(served)).toEqual(['file']);
  });

  itFast('of a file that changes meanwhile fail', async () => {
    const path = join(own, 'file');
    for (const change of [
      () => fs.truncateSync(path, 2 * PIECE_BYTES),
      () => fs.utimesSync(path, new Date(), new Date(1_000_000)),
    ]) {
      fs.writeFileSync(path, bytes(12 * PIECE_BYTES));
      let hasChanged = false;
      const { files } = await withClient(async (client) => {
        const copied = client.put(path, '', (done) => {
          if (done === 0 || hasChanged) return;
          hasChanged = true;
          change();
        });
        expect(await rejection(copied)).toMatchObject({ code: 'ERR_COPY_CHANGED', isRemote: false });
        fs.writeFileSync(path, 'short');
        expect(await client.put(path, 'other')).toMatchObject({ bytes: 5 });
      });
      expect(files[0]?.error).toMatchObject({ code: 'ERR_COPY_CHANGED', isRemote: true });
      expect(has(served, 'file')).toBe(false);
    }
  });

  itFast('to the same file at the same time are refused, and to others are not', async () => {
    fs.writeFileSync(join(own, 'file'), bytes(6 * PIECE_BYTES));
    const folder = await CopyFolder.open(served);
    const [first, second] = [await Session.open(folder), await Session.open(folder)];
    const [a, b] = [await CopyClient.open(first.channel), await CopyClient.open(second.channel)];
    let tried: Promise<void> | undefined;
    await a.put(join(own, 'file'), '', (done) => {
      if (done === 0) {
        tried = (async () => {
          // Either spelling of it.
          expect(await rejection(b.put(join(own, 'file'), './/file'))).toMatchObject({ code: 'EBUSY', isRemote: true });
          expect(await b.put(join(own, 'file'), 'other')).toMatchObject({ bytes: 6 * PIECE_BYTES });
        })();
      }
    });
    await within(tried!, 'the other client');
    expect(await b.put(join(own, 'file'), '')).toMatchObject({ bytes: 6 * PIECE_BYTES });
    await first.close();
    await second.close();
  });
});

const errorOf = (code: string) => ({ error: { code, message: 'm' } });

describe('a hostile peer', () => {
  itFast.each([
    ['another program', [{ protocol: 'x' }]],
    ['no object', [{ protocol: COPY_PROTOCOL }, [1]]],
    ['neither put nor get', [{ protocol: COPY_PROTOCOL }, { hello: 1 }]],
    ['a path that is no text', [{ protocol: COPY_PROTOCOL }, { get: 5 }]],
    ['a size below zero', [{ protocol: COPY_PROTOCOL }, { put: '', name: 'x', size: -1, mode: 0 }]],
    ['a size of 2^53', [{ protocol: COPY_PROTOCOL }, { put: '', name: 'x', size: 2 ** 53, mode: 0 }]],
    ['a mode with setuid', [{ protocol: COPY_PROTOCOL }, { put: '', name: 'x', size: 1, mode: 0o4755 }]],
    ['to go on where nothing is', [{ protocol: COPY_PROTOCOL }, { put: '', name: 'x', size: 9, mode: 0 }, { from: 8 }]],
    ['more than the file', [{ protocol: COPY_PROTOCOL }, { put: '', name: 'x', size: 1, mode: 0 }, { from: 0 }, 'xx']],
    ['an error whose code writes to the terminal', [{ protocol: COPY_PROTOCOL }, errorOf('E\x1b[2J')]],
    ['an error whose code is long', [{ protocol: COPY_PROTOCOL }, errorOf('E'.repeat(65))]],
    ['an error whose code is none', [{ protocol: COPY_PROTOCOL }, errorOf('')]],
    ['to have more than there is', [{ protocol: COPY_PROTOCOL }, { get: 'file' }, { have: 7, sum: '' }]],
  ])('that says %s loses its connection, and nothing else happens', async (_, objects) => {
    fs.writeFileSync(join(served, 'file'), 'theirs');
    const session = await Session.open();
    for (const object of objects) {
      if (typeof object === 'string') await session.channel.messages.send(Buffer.from(object));
      else await session.channel.send(object);
    }
    expect(await within(session.ended, 'the end')).toMatchObject({ code: 'ERR_COPY_PROTOCOL' });
    expect(await within(session.channel.messages.closed, 'the end')).toMatchObject({ code: 'ECONNRESET' });
    await session.close();
    expect(fs.readdirSync(served).filter((name) => name !== partName('x'))).toEqual(['file']);
  });

  itFast('that sends bytes which are not what it hashed leaves no file, and no part to go on with', async () => {
    const session = await Session.open();
    const { channel } = session;
    await channel.send({ protocol: COPY_PROTOCOL });
    await channel.receive();
    await channel.send({ put: 'x', name: 'x', size: 3, mode: 0o644 });
    expect((await channel.receive()).count('have')).toBe(0);
    await channel.send({ from: 0 });
    await channel.messages.send(Buffer.from('abc'));
    await channel.send({ sum: sha256(Buffer.from('abd')) });
    expect(await rejection(channel.receive())).toMatchObject({ code: 'ERR_COPY_CHECKSUM', isRemote: true });
    await session.close();
    expect(fs.readdirSync(served)).toEqual([]);
    expect(session.last.error).toMatchObject({ code: 'ERR_COPY_CHECKSUM' });
  });

  itFast('that sends no JSON, or writes to the terminal of who reads its errors, does not', async () => {
    const session = await Session.open();
    await session.channel.messages.send(Buffer.from('{'));
    expect(await within(session.ended, 'the end')).toMatchObject({ code: 'ERR_COPY_PROTOCOL' });
    await session.close();
    const other = await Session.open();
    await other.channel.send({ protocol: COPY_PROTOCOL });
    await other.channel.send({ put: '', name: 'x', size: 1, mode: 0 });
    await other.channel.send({ error: { code: 'E', message: 'a\x1b[2J\nb' } });
    await other.close();
    expect(other.last.error).toMatchObject({ code: 'E', message: 'a?[2J?b', isRemote: true });
  });
});
