/** What the guest is asked to do, once it is up. */
export interface Request {
  command: string;
  args: readonly string[];
  cwd: string;
  env: NodeJS.ProcessEnv;
  hostname: string;
  /** The folder with the kernel's modules, so that the guest's modprobe finds them. */
  modules: string;
  /** Marks the end of the command's output. Hexadecimal digits, chosen at random. */
  token: string;
  out?: string | undefined;
  /** Set when the command runs on a terminal. */
  tty?: { rows: number; columns: number } | undefined;
}

/** A word that a POSIX shell reads as exactly this text. */
export function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** Writes the request as the shell script that the guest's init reads (see init.ts). */
export function requestScript(request: Request): string {
  const environment = Object.entries({ ...request.env, NODE_RDMA_VM: '1' })
    .filter((entry): entry is [string, string] => entry[1] !== undefined)
    .map(([name, value]) => `${name}=${value}`);
  const words = ['/usr/bin/env', '-i', ...environment, request.command, ...request.args];
  const tty = request.tty === undefined ? '' : `sane rows ${request.tty.rows} cols ${request.tty.columns}`;
  return `hostname=${quote(request.hostname)}
modules=${quote(request.modules)}
token=${quote(request.token)}
out=${quote(request.out ?? '')}
tty=${quote(tty)}
cwd=${quote(request.cwd)}
run() { exec "$@" ${words.map(quote).join(' ')}; }
`;
}
