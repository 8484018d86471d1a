/** Decodes a capture by us and by tshark, each to lines of the same fields, so that they can be compared. */

import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { decodePacket, LinkType, type Packet, PacketView, readCapture } from '../../lib/roce/index.ts';

interface Subject {
  timestamp: bigint;
  wireLength: number;
  packet: Packet;
  view: PacketView;
}

const hex = (value: number | undefined, digits: number) =>
  value === undefined ? '' : `0x${value.toString(16).padStart(digits, '0')}`;
const flag = (value: boolean | undefined) => (value === undefined ? '' : Number(value));
const time = (ns: bigint) => `${ns / 1_000_000_000n}.${(ns % 1_000_000_000n).toString().padStart(9, '0')}`;

/** tshark's name of a field, and how it prints what we have decoded. */
const fields: Record<string, (subject: Subject) => unknown> = {
  'frame.time_epoch': ({ timestamp }) => time(timestamp),
  'frame.len': ({ wireLength }) => wireLength,
  'eth.dst': ({ packet }) => packet.ethernet?.dst,
  'eth.src': ({ packet }) => packet.ethernet?.src,
  'ip.src': ({ packet }) => packet.ipv4?.src,
  'ip.dst': ({ packet }) => packet.ipv4?.dst,
  'ip.dsfield.dscp': ({ packet }) => packet.ipv4?.dscp,
  'ip.dsfield.ecn': ({ packet }) => packet.ipv4?.ecn,
  'ip.ttl': ({ packet }) => packet.ipv4?.ttl,
  'ip.id': ({ packet }) => hex(packet.ipv4?.id, 4),
  'ip.flags.df': ({ packet }) => flag(packet.ipv4?.dontFragment),
  'ipv6.src': ({ packet }) => packet.ipv6?.src,
  'ipv6.dst': ({ packet }) => packet.ipv6?.dst,
  'ipv6.tclass.dscp': ({ packet }) => packet.ipv6?.dscp,
  'ipv6.tclass.ecn': ({ packet }) => packet.ipv6?.ecn,
  'ipv6.flow': ({ packet }) => hex(packet.ipv6?.flowLabel, 6),
  'ipv6.hlim': ({ packet }) => packet.ipv6?.hopLimit,
  'udp.srcport': ({ packet }) => packet.udp?.srcPort,
  'udp.checksum': ({ packet }) => hex(packet.udp?.checksum, 4),
  'infiniband.bth.opcode': ({ packet }) => packet.bth.opcode,
  'infiniband.bth.se': ({ packet }) => flag(packet.bth.se),
  'infiniband.bth.m': ({ packet }) => flag(packet.bth.migReq),
  'infiniband.bth.padcnt': ({ packet }) => packet.bth.padCnt,
  'infiniband.bth.tver': ({ packet }) => packet.bth.tver,
  'infiniband.bth.p_key': ({ packet }) => packet.bth.pkey,
  'infiniband.bth.destqp': ({ packet }) => hex(packet.bth.destQp, 6),
  'infiniband.bth.a': ({ packet }) => flag(packet.bth.ackReq),
  'infiniband.bth.psn': ({ packet }) => packet.bth.psn,
  'infiniband.deth.q_key': ({ packet }) => hex(packet.deth?.qkey, 16),
  'infiniband.deth.srcqp': ({ packet }) => hex(packet.deth?.srcQp, 8),
  'infiniband.reth.va': ({ packet }) => va(packet),
  'infiniband.reth.r_key': ({ packet }) => hex(packet.reth?.rkey ?? packet.atomicEth?.rkey, 8),
  'infiniband.reth.dmalen': ({ packet }) => packet.reth?.dmaLen,
  'infiniband.atomiceth.swapdt': ({ packet }) => packet.atomicEth?.swapDt,
  'infiniband.atomiceth.cmpdt': ({ packet }) => packet.atomicEth?.cmpDt,
  'infiniband.aeth.syndrome': ({ packet }) => packet.aeth?.syndrome,
  'infiniband.aeth.msn': ({ packet }) => packet.aeth?.msn,
  'infiniband.atomicacketh.origremdt': ({ packet }) => packet.atomicAckEth?.origRemDt,
  'infiniband.immdt': ({ packet }) => packet.immDt && hex(packet.immDt.immDt, 8).slice(2),
  'infiniband.ieth': ({ packet }) => packet.ieth && hex(packet.ieth.rkey, 8).slice(2),
  'infiniband.invariant.crc': ({ packet }) => hex(packet.icrc, 8),
  // Padding is data to tshark. What it takes apart further, the messages of the connection manager, it does not print.
  'data.data': ({ packet, view }) =>
    packet.deth?.qkey === GSI_QKEY ? '' : Buffer.from(view.bytes.subarray(view.payloadAt, view.icrcAt)).toString('hex'),
};

const GSI_QKEY = 0x8001_0000;

function va({ reth, atomicEth }: Packet): string {
  const value = reth?.va ?? atomicEth?.va;
  return value === undefined ? '' : `0x${value.toString(16).padStart(16, '0')}`;
}

// Which tshark guesses from the payload, often wrongly.
const guesses = ['rpcordma', 'smb_direct', 'nvme-rdma', 'lnet', 'iser', 'infiniband_sdp', 'fcoib', 'smc'];

/** What tshark sees in a file: names of fields, and one line for each packet. */
export async function decodedByTshark(file: string): Promise<string[]> {
  const names = Object.keys(fields);
  // Only the fields that say what was on the wire; resolved names, or several values of a field, would not.
  const args = ['-r', file, '-n', '-T', 'fields', '-E', 'occurrence=f', '--disable-protocol', guesses.join(',')];
  for (const heuristic of ['mellanox_eoib', 'eth_over_ib']) args.push('--disable-heuristic', heuristic);
  args.push(...names.flatMap((name) => ['-e', name]));
  const { stdout } = await promisify(execFile)('tshark', args, { maxBuffer: 1 << 28 });
  return [names.join('\t'), ...stdout.split('\n').slice(0, -1)];
}

/** What we see in it. Each ICRC must be right. */
export async function decodedByUs(file: string): Promise<string[]> {
  const lines = [Object.keys(fields).join('\t')];
  const view = new PacketView();
  for await (const record of readCapture(file)) {
    if (!record.load(view)) throw view.error();
    if (view.icrcOk !== true) throw new Error(`packet ${lines.length}: the ICRC is wrong`);
    const linkType = record.linkType as LinkType;
    const packet = decodePacket(record.bytes, { linkType });
    const subject = { timestamp: record.timestamp, wireLength: record.wireLength, packet, view };
    const line = Object.entries(fields).map(([name, print]) => {
      // The cooked header has a source address too, and no destination.
      if (name.startsWith('eth.') && linkType !== LinkType.ETHERNET) return '';
      return print(subject) ?? '';
    });
    lines.push(line.join('\t'));
  }
  return lines;
}
