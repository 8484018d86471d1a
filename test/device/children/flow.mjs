// Makes a flow steering rule of the specifications that it is given as JSON. The log of the software device, on stderr, shows
// what libibverbs made of them.
import { openDevice, QpType } from '../../../dist/index.js';

const context = openDevice(process.env.DEVICE_A);
const qp = context.allocPd().createQp({ sendCq: context.createCq(256), qpType: QpType.UD });
const flow = qp.createFlow({ specs: JSON.parse(process.argv[2]) });
flow.close();
context.close({ cascade: true });
