import { closeSync, constants, openSync } from 'node:fs';
import { integer, readOptions, string, uint32, valueError } from '../args.ts';
import { brief } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import type { XrcdHandle } from '../native/native.ts';
import type { Context } from './context.ts';
import { Resource } from './resource.ts';

/** What a domain of extended reliable connections is opened with: `struct ibv_xrcd_init_attr`. */
export interface XrcdInitAttr {
  /**
   * The file that names the domain to other processes, and to other contexts of this one: an open descriptor, which may be
   * closed afterwards.
   */
  fd?: number;
  /** The same by its path: it is opened, and made when `oflags` has `O_CREAT`. */
  path?: string;
  /**
   * Of `fs.constants`, joined with `|`: `O_CREAT` makes the domain when there is none of this file yet, `O_EXCL` as well
   * refuses one that is there. Default `O_CREAT`.
   */
  oflags?: number;
}

/**
 * A domain of extended reliable connections (XRC): `struct ibv_xrcd`. Its receiving queue pairs, each connected to one
 * sender, put every message into the shared receive queue that the message names: the processes of a host that share the
 * domain need one connection from each peer together, not one each. Made by `context.openXrcd()`.
 *
 * @see ibv_open_xrcd(3)
 */
export class XrcDomain extends Resource {
  /** The device it belongs to. */
  readonly context: Context;
  /** @internal */
  readonly handle: XrcdHandle;

  /** @internal */
  constructor(context: Context, attr: XrcdInitAttr) {
    const { fd, path, oflags = constants.O_CREAT } = readOptions(attr, 'attr', ['fd', 'path', 'oflags']);
    uint32(oflags, 'attr.oflags');
    if (fd !== undefined && path !== undefined) throw valueError('attr.fd and attr.path are two names of one thing');
    if (fd !== undefined) integer(fd, 'attr.fd', 0, 0x7fff_ffff);
    // An exclusive domain may be of a file that is there.
    const named = path === undefined ? fd : openSync(string(path, 'attr.path'), oflags & ~constants.O_EXCL, 0o600);
    let handle: XrcdHandle;
    try {
      handle = binding().openXrcd(context.handle, named ?? -1, oflags);
    } finally {
      if (path !== undefined) closeSync(named as number);
    }
    super([context]);
    this.context = context;
    this.handle = handle;
  }

  /** @internal */
  describe(): string {
    return 'XrcDomain';
  }

  /** @internal */
  protected override fields(): object {
    return { context: brief(this.context) };
  }

  protected readonly destroyVerb = 'ibv_close_xrcd';

  protected destroy(): void {
    binding().closeXrcd(this.handle);
  }
}
