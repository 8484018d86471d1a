// Registers memory beyond the limit on locked memory and says how that ended, one line for each way.
import { openDevice } from '../../../dist/index.js';

const context = openDevice(process.env.DEVICE_A);
const pd = context.allocPd();
const length = 4 << 20;
const buffer = Buffer.alloc(length);
const ways = [() => pd.allocSync(length), () => pd.regMrSync(buffer), () => pd.alloc(length), () => pd.regMr(buffer)];
for (const way of ways) {
  try {
    const mr = await way();
    mr.close();
    console.log(JSON.stringify({ ok: true }));
  } catch ({ name, code, syscall, message }) {
    console.log(JSON.stringify({ name, code, syscall, message }));
  }
}
context.close({ cascade: true });
