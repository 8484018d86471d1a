/** What the numbers of a flow mean to the people who run the network. */

import { object } from '../args.ts';
import { counted } from '../inspect.ts';
import type { Flow } from './flow-state.ts';

/** Something to say about a flow. */
export interface FlowFinding {
  /** `'note'`: works as designed. `'warning'`: something should be mended. */
  level: 'note' | 'warning';
  /** What was seen, and what it means. */
  text: string;
}

const percent = (part: number, all: number) => `${((100 * part) / all).toFixed(all >= 1000 * part ? 3 : 1)} %`;

/**
 * Says what is out of the ordinary in a flow, with its likely cause.
 *
 * @param flow - one of `FlowTracker.flows`, after its packets
 * @returns nothing for a flow without trouble
 */
export function diagnoseFlow(flow: Flow): FlowFinding[] {
  const findings: FlowFinding[] = [];
  const warn = (text: string) => findings.push({ level: 'warning', text });
  const { packets, missing, retransmissions, goBackNs, rnrNaks, naks, sequenceNaks } = object(flow, 'flow');
  if (flow.ackLatency.ofTwoClocks > 0) {
    warn(
      'the times of this flow and of its answers are of two clocks, hours apart: what lies between a packet and its answer is ' +
        'not known. Soft-RoCE over veth has its kernel stamp one direction so',
    );
  }
  if (missing > 0) {
    warn(
      `${counted(missing, 'packet')} lost before this place (${percent(missing, packets + missing)}): on a network meant ` +
        'to be lossless, look for drops in the buffers of switches and NICs, at PFC on this priority, and at the cabling',
    );
  }
  if (retransmissions > 0) {
    const wasted = flow.payloadBytes - flow.goodBytes;
    const share = flow.payloadBytes > 0 ? `, ${percent(wasted, flow.payloadBytes)} of all bytes` : '';
    const episodes = goBackNs > 0 ? ` in ${counted(goBackNs, 'go-back-N episode')}` : '';
    warn(
      `${counted(retransmissions, 'packet')} sent again${episodes} (${wasted} bytes${share}): ` +
        (missing > 0
          ? 'one lost packet costs all that was sent after it'
          : 'what was lost was lost behind this place, or its acknowledgement was'),
    );
  }
  if (flow.outOfOrder > 0 && missing === 0) {
    warn(`${counted(flow.outOfOrder, 'packet')} out of order: a receiver that goes back N takes it for loss`);
  }
  if (sequenceNaks > 0) {
    warn(
      `${counted(sequenceNaks, 'NAK')} for a missing packet: the way here, of the opposite direction, loses packets`,
    );
  }
  if (naks > sequenceNaks) {
    warn(
      `${counted(naks - sequenceNaks, 'request')} refused for good: a wrong key, range or right, or a message longer than ` +
        'its receive; the queue pair is in the error state after it',
    );
  }
  if (rnrNaks > 0) {
    warn(
      `${counted(rnrNaks, 'RNR NAK')}: the receiver at ${flow.src} had no receive posted; post more, or refill earlier`,
    );
  }
  if (flow.ecnMarks > 0) {
    findings.push({
      level: 'note',
      text: `${counted(flow.ecnMarks, 'ECN mark')} (${percent(flow.ecnMarks, packets)}): a switch asks to slow down, as designed`,
    });
    if (flow.peer !== undefined && flow.peer.cnps === 0) {
      warn('no CNP answers the marks: the receiver does not take part in congestion control');
    }
  }
  if (flow.cnps > 0) {
    findings.push({ level: 'note', text: `${counted(flow.cnps, 'CNP')}: QP ${flow.destQp} is asked to slow down` });
  }
  return findings;
}
