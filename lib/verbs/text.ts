/** The texts that libibverbs has for its enums, in English. Any number will do: one that it does not know has a text too. */
import { uint32 } from '../args.ts';
import { nameOf } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import { WcStatus } from '../native/constants.gen.ts';

/**
 * The text for a completion's status.
 *
 * @param status - one of `WcStatus`
 * @throws RdmaUnavailableError where there is no addon
 * @see ibv_wc_status_str(3)
 */
export function wcStatusStr(status: number): string {
  return binding().wcStatusStr(uint32(status, 'status')) ?? `status ${status}`;
}

/** The C name of a status without its prefix, such as `'RNR_RETRY_EXC_ERR'`, or its number. */
export function wcStatusName(status: number): string {
  return nameOf(WcStatus, status);
}

/** The text for an asynchronous event: one of `EventType`. @see ibv_event_type_str(3) */
export function eventTypeStr(type: number): string {
  return binding().eventTypeStr(uint32(type, 'type')) ?? `event ${type}`;
}

/** The text for a kind of node: one of `NodeType`. @see ibv_event_type_str(3) */
export function nodeTypeStr(type: number): string {
  return binding().nodeTypeStr(uint32(type, 'type')) ?? `node type ${type}`;
}

/** The text for the state of a port: one of `PortState`. @see ibv_event_type_str(3) */
export function portStateStr(state: number): string {
  return binding().portStateStr(uint32(state, 'state')) ?? `port state ${state}`;
}
