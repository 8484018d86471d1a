/** Counters in the text format of Prometheus, and a server that gives them. */

import { createServer, type Server } from 'node:http';
import { objects } from '../args.ts';
import { type Counter, type PortCounters, type ReadCountersOptions, readCounters } from './counters.ts';

interface Metric {
  help: string;
  samples: string[];
}

/** A label's value, escaped as the format wants it. */
const quoted = (text: string) => `"${text.replace(/\\/g, '\\\\').replace(/"/g, '\\"').replace(/\n/g, '\\n')}"`;
const labelled = (labels: Record<string, string>) =>
  Object.entries(labels)
    .map(([name, value]) => `${name}=${quoted(value)}`)
    .join(',');

/** Name of a counter's metric, and its priority where it has one: that is a label, so that sums over all are easy. */
function metricOf({ name, source }: Counter): { metric: string; priority: string | undefined } {
  const [, before, priority, behind] = /^(.*)_prio(\d)_(.*)$/.exec(name) ?? [];
  const bare = priority === undefined ? name : `${before}_prio_${behind}`;
  return { metric: `rdma_${source}_${bare.replace(/[^a-zA-Z0-9_]/g, '_')}_total`, priority };
}

/**
 * Counters in Prometheus' text format. The metric of a counter is `rdma_<source>_<name>_total`, with the labels
 * `device`, `port`, `netdev` and, for those of a priority (`rx_prio3_pause`: `rdma_ethtool_rx_prio_pause_total`),
 * `priority`. Of ethtool's, only those whose meaning is known: others may be no counters.
 *
 * @param ports - as `readCounters()` gives them
 */
export function formatPrometheus(ports: readonly PortCounters[]): string {
  const metrics = new Map<string, Metric>();
  const add = (name: string, help: string, labels: Record<string, string>, value: bigint | number) => {
    const metric = metrics.get(name) ?? { help, samples: [] };
    metric.samples.push(`${name}{${labelled(labels)}} ${value}`);
    metrics.set(name, metric);
  };
  for (const { device, portNum, netdev = '', driver = '', counters } of objects(ports, 'ports')) {
    const port = { device, port: String(portNum), netdev };
    add('rdma_port_info', 'A port of an RDMA device.', { ...port, driver }, 1);
    for (const counter of counters) {
      // ethtool -S also gives numbers that are no counters, such as the peer_ifindex of a veth.
      if (counter.source === 'ethtool' && counter.meaning === undefined) continue;
      const { metric, priority } = metricOf(counter);
      const { text = 'No meaning is known.', unit = 'events' } = counter.meaning ?? {};
      const help = `${text[0]!.toUpperCase()}${text.slice(1)} (${unit})`;
      add(metric, help, priority === undefined ? port : { ...port, priority }, counter.value);
    }
  }
  const lines: string[] = [];
  for (const [name, { help, samples }] of metrics) {
    lines.push(`# HELP ${name} ${help}`, `# TYPE ${name} ${name.endsWith('_total') ? 'counter' : 'gauge'}`, ...samples);
  }
  return lines.length === 0 ? '' : `${lines.join('\n')}\n`;
}

/**
 * A server that gives the counters at `/metrics`, read anew at each request. Not yet listening.
 *
 * @param options - which counters, and from where
 */
export function createExporter(options: ReadCountersOptions = {}): Server {
  return createServer((request, response) => {
    const answer = (status: number, text: string, type = 'text/plain; charset=utf-8') => {
      response.writeHead(status, { 'content-type': type });
      response.end(request.method === 'HEAD' ? undefined : text);
    };
    if (request.method !== 'GET' && request.method !== 'HEAD') answer(405, 'GET only\n');
    else if (request.url === '/') answer(200, 'Counters of RDMA ports are at /metrics.\n');
    else if (request.url !== '/metrics') answer(404, 'Counters are at /metrics.\n');
    else {
      readCounters(options).then(
        (ports) => answer(200, formatPrometheus(ports), 'text/plain; version=0.0.4; charset=utf-8'),
        (error: Error) => answer(500, `${error.message}\n`),
      );
    }
  });
}
