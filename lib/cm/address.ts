import { isIP } from 'node:net';
import { integer, object, string, valueError } from '../args.ts';

/** An IP address and a port of the connection manager. */
export interface CmAddress {
  /** IPv4 or IPv6, in text; a link-local one with its interface, as in `'fe80::1%eth0'`. */
  address: string;
  /** Port; 0, the default, for any. */
  port?: number;
}

/** An address, checked. @internal */
export function socketAddress(value: CmAddress, name: string): [address: string, port: number] {
  const { address, port = 0 } = object(value, name);
  if (isIP(string(address, `${name}.address`)) === 0) {
    throw valueError(`${name}.address is not an IP address: '${address}'`);
  }
  return [address, integer(port, `${name}.port`, 0, 65535)];
}
