// Forgets a region without closing it, and lets it be collected.
import { openDevice } from '../../../dist/index.js';

const context = openDevice(process.env.DEVICE_A);
const pd = context.allocPd();
(() => pd.allocSync(64))();
for (let i = 0; i < 5; i++) {
  globalThis.gc();
  await new Promise((resolve) => setImmediate(resolve));
}
context.close({ cascade: true });
