/** Captures an interface. Node has no packet sockets: tcpdump or dumpcap reads them, and hands over a capture file. */

import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { abortSignal, integer, readOptions, string, valueError } from '../args.ts';
import { SNAPLEN } from './pcap.ts';
import { ROCE_V1_ETHERTYPE, ROCE_V2_PORT } from './view.ts';

// `vlan` shifts what stands behind it, so it comes last.
const roce = `udp dst port ${ROCE_V2_PORT} or ether proto ${ROCE_V1_ETHERTYPE}`;
const ROCE_FILTER = `${roce} or (vlan and (${roce}))`;
// What the kernel hands over of all interfaces at once has no frames, so no tags to ask for.
const filterOf = (name: string) => (name === 'any' ? roce : ROCE_FILTER);

/** How to capture. */
export interface InterfaceCaptureOptions {
  /** Ends the capture: the stream then ends in the ordinary way. */
  signal?: AbortSignal;
  /** Bytes of each packet that are kept, up to 262144. Default all: with fewer no ICRC can be checked. */
  snapLength?: number;
  /** What to capture, in the language of pcap-filter(7). Default RoCE v2 and v1, with a VLAN tag or without. */
  filter?: string;
  /** Called with what the capturing program says, once it captures: how many packets it took, and dropped. */
  onMessage?: (line: string) => void;
}

/** A capturing program was not found, or failed. */
function failure(code: string, message: string): Error {
  return Object.assign(new Error(message), { code });
}

/**
 * Captures the RoCE packets of a network interface, by tcpdump, or by dumpcap where there is no tcpdump. What goes
 * through a RoCE NIC does not pass the kernel, and is not seen; Soft-RoCE is, and so is a mirror port of a switch.
 *
 * @param name - of the interface, such as `'eth0'`, or `'any'`
 * @param options - what, and how long
 * @returns the bytes of a capture file, for `readCapture`
 * @throws Error `ERR_CAPTURE_UNAVAILABLE` when neither program is installed; `ERR_CAPTURE_FAILED` with its words when
 *   it fails: no such interface, or no right to capture
 * @example
 * for await (const record of readCapture(captureInterface('eth0', { signal }))) console.log(record.wireLength);
 */
export async function* captureInterface(
  name: string,
  options: InterfaceCaptureOptions = {},
): AsyncGenerator<Uint8Array, void, undefined> {
  const known = ['signal', 'snapLength', 'filter', 'onMessage'];
  const { filter = filterOf(name), snapLength = SNAPLEN, onMessage, ...rest } = readOptions(options, 'options', known);
  const signal = abortSignal(rest.signal, 'options.signal');
  if (!/^[^\s/-][^\s/]*$/.test(string(name, 'name'))) throw valueError(`'${name}' is no name of an interface`);
  integer(snapLength, 'options.snapLength', 1, SNAPLEN);
  string(filter, 'options.filter');
  if (signal?.aborted) return;
  const [program, ...args] = commandLine(name, filter, snapLength);
  const child = spawn(program!, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  const said: string[] = [];
  let unfinished = '';
  let isCapturing = false;
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    const lines = (unfinished + text).split('\n');
    unfinished = lines.pop()!;
    for (const line of lines.filter(Boolean)) {
      said.push(line);
      if (said.length > 20) said.shift();
      if (isCapturing) onMessage?.(line);
    }
  });
  // What it says before its first bytes is in the error, if it does not come to them.
  const begin = () => {
    if (isCapturing) return;
    isCapturing = true;
    for (const line of said) onMessage?.(line);
  };
  const ended = new Promise<number | null>((resolve, reject) => {
    child.on('error', reject);
    child.on('close', resolve);
  });
  ended.catch(() => {});
  // Tells it to write what it holds, and end.
  const stop = () => child.kill('SIGTERM');
  signal?.addEventListener('abort', stop, { once: true });
  let isWhole = false;
  try {
    for await (const chunk of child.stdout as AsyncIterable<Uint8Array>) {
      begin();
      yield chunk;
    }
    isWhole = true;
    const code = await ended;
    if (code !== 0 && !signal?.aborted) throw failure('ERR_CAPTURE_FAILED', `${program}: ${reason(said)}`);
    begin();
  } finally {
    signal?.removeEventListener('abort', stop);
    if (!isWhole) child.kill('SIGTERM');
    await ended.catch(() => {});
  }
}

/** What it said, without its name, and without what it says again in brackets. */
function reason(said: string[]): string {
  const lines = said.map((line) => line.replace(/^(tcpdump|dumpcap): /, ''));
  const isNew = (line: string, i: number) => {
    const [, again] = /^\((.*)\)$/.exec(line) ?? [];
    return again === undefined || !lines[i - 1]?.includes(again);
  };
  return lines.filter(isNew).join('; ');
}

function commandLine(name: string, filter: string, snapLength: number): string[] {
  const folders = [...(process.env.PATH ?? '').split(delimiter), '/usr/sbin', '/sbin', '/usr/local/sbin'];
  const find = (program: string) => folders.map((folder) => join(folder, program)).find((path) => existsSync(path));
  const tcpdump = find('tcpdump');
  // Each packet at once (-U, --immediate-mode), with nanoseconds, without looking for other names.
  const precise = ['--time-stamp-precision=nano', '--immediate-mode', '-U', '-n'];
  // Behind -- a filter is none of its options, of which some run programs.
  if (tcpdump !== undefined) return [tcpdump, ...precise, '-s', `${snapLength}`, '-i', name, '-w', '-', '--', filter];
  const dumpcap = find('dumpcap');
  if (dumpcap !== undefined) return [dumpcap, '-q', '-s', `${snapLength}`, '-i', name, '-f', filter, '-w', '-'];
  throw failure('ERR_CAPTURE_UNAVAILABLE', 'capturing takes tcpdump or dumpcap: apt-get install -y tcpdump');
}
