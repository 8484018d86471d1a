import { isIP } from 'node:net';
import { integer, string, typeError, valueError } from '../args.ts';

/** An IP address and a port of the connection manager. */
export interface CmAddress {
  /** IPv4 or IPv6, in text; a link-local one with its interface, as in `'fe80::1%eth0'`. */
  address: string;
  /** Port; 0, the default, for any. */
  port?: number;
}

/** An address, checked. @internal */
export function socketAddress(value: CmAddress, name: string): [address: string, port: number] {
  if (typeof value !== 'object' || value === null) throw typeError(name, 'an object', value);
  const { address, port = 0 } = value;
  if (isIP(string(address, `${name}.address`)) === 0) {
    throw valueError(`${name}.address is not an IP address: '${address}'`);
  }
  return [address, integer(port, `${name}.port`, 0, 65535)];
}
