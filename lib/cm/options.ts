import { boolean, integer, readOptions } from '../args.ts';
import { CmIdOption } from '../native/constants.gen.ts';

/** Options of an id, all of them: `rdma_set_option`. */
export interface CmIdOptions {
  /** Type of service of the connection: DSCP and ECN bits, 0 to 255. Before the route is resolved. */
  tos?: number;
  /** Whether the address may be bound while an older id still has it. Before the id is bound. */
  reuseAddr?: boolean;
  /** Whether a wildcard of IPv6 is not one of IPv4 too. Before the id is bound. */
  afOnly?: boolean;
  /** Acknowledgement timeout of the queue pair, 4.096 us * 2^ackTimeout, 0 to 31. Before the connection is made. */
  ackTimeout?: number;
}

const checks: Record<keyof CmIdOptions, [option: number, check: (value: unknown, name: string) => number]> = {
  tos: [CmIdOption.TOS, (value, name) => integer(value, name, 0, 255)],
  reuseAddr: [CmIdOption.REUSEADDR, (value, name) => Number(boolean(value, name))],
  afOnly: [CmIdOption.AFONLY, (value, name) => Number(boolean(value, name))],
  ackTimeout: [CmIdOption.ACK_TIMEOUT, (value, name) => integer(value, name, 0, 31)],
};

/** The options that were given, checked, by their numbers. @internal */
export function idOptions(options: CmIdOptions): [option: number, value: number][] {
  const given = readOptions(options, 'options', Object.keys(checks)) as Record<string, unknown>;
  return Object.entries(checks)
    .filter(([name]) => given[name] !== undefined)
    .map(([name, [option, check]]) => [option, check(given[name], `options.${name}`)]);
}
