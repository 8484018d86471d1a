/** What counters mean: those of mlx5 and rxe, the standard ones of a port, and what ethtool tells of pause and drops. */

import { string } from '../args.ts';

/**
 * What it means when a counter rises. `'traffic'`: work is done. `'designed'`: the network works as it should.
 * `'pause'`: fine now and then, and trouble when it goes on. `'loss'`: packets are dropped. `'software'`: a program is at
 * fault. `'link'`: cable, optics or port.
 */
export type CounterKind = 'traffic' | 'designed' | 'pause' | 'loss' | 'software' | 'link';

/** What a counter is. */
export interface CounterMeaning {
  /** What it means when it rises. */
  kind: CounterKind;
  /** What is counted: `'packets'`, `'bytes'`, `'words'` of four bytes, `'microseconds'`, `'ticks'` of the device, `'events'`. */
  unit: 'packets' | 'bytes' | 'words' | 'microseconds' | 'ticks' | 'events';
  /** In words. */
  text: string;
}

type Unit = CounterMeaning['unit'];
type Row = [pattern: RegExp, kind: CounterKind, unit: Unit, text: string];

// The first that matches counts.
const rows: Row[] = [
  // Congestion control of mlx5, its three roles. NP: notification point, the receiver. RP: reaction point, the sender.
  [/^np_ecn_marked_roce_packets$/, 'designed', 'packets', 'received with a mark of a switch: congestion control works'],
  [/^np_cnp_sent$/, 'designed', 'packets', 'CNPs sent: senders were asked to slow down'],
  [/^rp_cnp_handled$/, 'designed', 'packets', 'CNPs received: this side has slowed down'],
  [
    /^rp_cnp_ignored$/,
    'loss',
    'packets',
    'CNPs received and ignored: the reaction point is off here, or firmware is busy',
  ],
  [/^roce_slow_restart(_cnps|_trans)?$/, 'designed', 'events', 'slow restarts after an idle time, with their CNPs'],
  // Loss and its repair.
  [
    /^(out_of_sequence|out_of_seq_request|responder_oos)$/,
    'loss',
    'packets',
    'requests behind a gap: a packet before them was lost on the way here',
  ],
  [
    /^(packet_seq_err|rcvd_seq_err|requester_oos_nak)$/,
    'loss',
    'packets',
    'NAKs received for a missing packet: the way there loses packets, and this side sends again',
  ],
  [/^implied_nak_seq_err$/, 'loss', 'events', 'a response came whose predecessor is missing: packets are lost'],
  [/^duplicate_request$/, 'loss', 'packets', 'requests that came again: acknowledgements or responses were lost'],
  [
    /^(local_ack_timeout_err|completer_retry_err|requester_timeout)$/,
    'loss',
    'events',
    'no acknowledgement in time: the last packet or its acknowledgement was lost, or the peer is gone',
  ],
  [/^roce_adp_retrans$/, 'loss', 'events', 'adaptive retransmissions: sent again before the full timeout'],
  [/^roce_adp_retrans_to$/, 'loss', 'events', 'timeouts of adaptive retransmission'],
  [
    /^(req_transport_retries_exceeded|retry_exceeded_err|requestor_retries_exceeded)$/,
    'loss',
    'events',
    'given up after all retries: the connection broke (RETRY_EXC_ERR)',
  ],
  [/^rx_icrc_encapsulated$/, 'link', 'packets', 'RoCE packets with a bad ICRC'],
  // Programs: the receiver's, which is the peer's where RNR NAKs come, and those with wrong requests.
  [/^out_of_buffer$/, 'software', 'packets', 'dropped, since no receive was posted: post more, or refill earlier'],
  [/^(rnr_nak_retry_err|rcvd_rnr_err)$/, 'software', 'packets', 'RNR NAKs received: the peer had no receive posted'],
  [/^send_rnr_err$/, 'software', 'packets', 'RNR NAKs sent: no receive was posted here'],
  [
    /^(req_rnr_retries_exceeded|retry_rnr_exceeded_err)$/,
    'software',
    'events',
    'given up, since the peer had no receive posted for too long (RNR_RETRY_EXC_ERR)',
  ],
  [/^(req|resp)_remote_access_errors$/, 'software', 'events', 'a wrong key, range or right'],
  [/^req_remote_invalid_request$/, 'software', 'events', 'requests that the peer found invalid'],
  [/^resp_local_length_error$/, 'software', 'events', 'a message was longer than its receive'],
  [/^(req|resp)_cqe_error$/, 'software', 'events', 'completions with an error, flushed ones among them'],
  [/^(req|resp)_cqe_flush_error$/, 'traffic', 'events', 'requests flushed: ordinary when a queue pair ends'],
  [/^send_err$/, 'loss', 'packets', 'could not be handed to the network interface'],
  [/^ack_deferred$/, 'traffic', 'events', 'acknowledgements put off to another thread'],
  // Traffic.
  [/^sent_pkts$/, 'traffic', 'packets', 'RoCE packets sent'],
  [/^rcvd_pkts$/, 'traffic', 'packets', 'RoCE packets received'],
  [/^rdma_sends$/, 'traffic', 'events', 'messages of SEND sent'],
  [/^rdma_recvs$/, 'traffic', 'events', 'messages of SEND received'],
  [/^rx_(write|read|atomic)_requests$/, 'traffic', 'packets', 'requests received'],
  [/^rx_dct_connect$/, 'traffic', 'packets', 'connections of DC'],
  [/^(port_)?(rcv|xmit)_data$/, 'traffic', 'words', 'RDMA data, in units of four bytes'],
  [/^(port_|unicast_|multicast_)(rcv|xmit)_packets$/, 'traffic', 'packets', 'RDMA packets'],
  [/^port_xmit_wait$/, 'pause', 'ticks', 'data waited and could not be sent: no credits, or paused'],
  // Pause frames. Global ones have no priority.
  [
    /^rx(_prio\d)?_(global_)?pause(_ctrl_phy)?$/,
    'pause',
    'packets',
    'pause frames received: the switch cannot take more; sustained ones mean that congestion control is losing',
  ],
  [
    /^tx(_prio\d)?_(global_)?pause(_ctrl_phy)?$/,
    'pause',
    'packets',
    'pause frames sent: this host cannot take more; look at PCIe, memory and posted receives',
  ],
  [/^rx(_prio\d|_global)_pause_duration$/, 'pause', 'microseconds', 'time for which this side was paused'],
  [/^tx(_prio\d|_global)_pause_duration$/, 'pause', 'microseconds', 'time for which this side has paused the switch'],
  [/^[rt]x(_prio\d|_global)_pause_transition$/, 'pause', 'events', 'changes from paused to running'],
  [
    /^tx_pause_storm_warning_events$/,
    'pause',
    'events',
    'this host has paused the switch for long: a receiver that hangs',
  ],
  [
    /^tx_pause_storm_error_events$/,
    'loss',
    'events',
    'the watchdog has ended a pause storm of this host by dropping packets',
  ],
  // Drops of the NIC and of the wire.
  [/^rx_prio\d_buf_discard$/, 'loss', 'packets', 'dropped for want of buffer of this priority: PFC is off or misset'],
  [/^rx_prio\d_discards$/, 'loss', 'packets', 'dropped for want of buffer on the port, of this priority'],
  [/^rx_prio\d_cong_discard$/, 'loss', 'packets', 'dropped by congestion of this priority'],
  [/^rx_prio\d_marked$/, 'designed', 'packets', 'marked by the NIC on their way in: the host is the bottleneck'],
  [/^rx_discards_phy$/, 'loss', 'packets', 'dropped for want of buffer on the port: PFC is off or misset'],
  [/^tx_discards_phy$/, 'loss', 'packets', 'dropped on the way out of the port'],
  [/^(rx_out_of_buffer|rx_buf_alloc_err)$/, 'software', 'packets', 'dropped, since no receive was posted'],
  [/^rx_ecn_mark$/, 'designed', 'packets', 'marked by a switch: congestion control works'],
  [/^[rt]x_prio\d_(bytes|packets)$/, 'traffic', 'packets', 'traffic of this priority'],
  [/^port_rcv_errors$|^rx_crc_errors_phy$|^rx_symbol_err_phy$|^symbol_error$/, 'link', 'packets', 'damaged packets'],
  [/^link_(downed|error_recovery)$|^link_down_events_phy$/, 'link', 'events', 'the link went down, or was mended'],
  [/^(port_)?(xmit|rcv)_discards$|^port_xmit_discards$/, 'loss', 'packets', 'dropped by the port'],
  [
    /^port_(rcv|xmit)_constraint_errors$/,
    'loss',
    'packets',
    'dropped by the port: not of a partition that it lets pass',
  ],
  [/^port_rcv_(remote_physical|switch_relay)_errors$/, 'link', 'packets', 'damaged or misrouted elsewhere'],
  [/^(local_link_integrity|excessive_buffer_overrun)_errors$/, 'link', 'events', 'errors of the link'],
  [/^VL15_dropped$/, 'loss', 'packets', 'management packets dropped'],
];

/**
 * What a counter means.
 *
 * @param name - as the kernel or ethtool calls it
 * @returns undefined for one that is not known here
 */
export function counterMeaning(name: string): CounterMeaning | undefined {
  string(name, 'name');
  const row = rows.find(([pattern]) => pattern.test(name));
  if (row === undefined) return undefined;
  const [, kind, unit, text] = row;
  return { kind, unit: /_prio\d_bytes$/.test(name) ? 'bytes' : unit, text };
}
