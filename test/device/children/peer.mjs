// A peer that is killed: listens by the connection manager and over TCP, tells the two ports, accepts one connection by each,
// says so, and receives nothing: peer.mjs
import { listen, listenTcp, openDevice } from '../../../dist/index.js';

const pd = openDevice(process.env.DEVICE_B).allocPd();
const byCm = await listen({ host: '10.78.0.2', port: 0 });
const byTcp = await listenTcp({ pd, host: '127.0.0.1', port: 0, minRnrTimer: 1 });
process.stdout.write(`${byCm.port} ${byTcp.port}\n`);
const request = await byCm.getRequest();
globalThis.kept = await Promise.all([request.accept({ pd, timeoutMs: 60_000 }), byTcp.accept()]);
process.stdout.write('connected\n');
setInterval(() => {}, 1000);
