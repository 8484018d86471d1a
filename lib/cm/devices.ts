/** The devices of ids, opened by this package: librdmacm keeps those that it has opened to itself. */
import { binding } from '../native/binding.ts';
import type { Context } from '../verbs/context.ts';
import { openDevice } from '../verbs/device.ts';

const contexts = new Map<string, Context>();
let opening: Promise<void> | undefined;

/** The context of a device that the ids of this thread share. @internal */
export function sharedContext(name: string): Context {
  let context = contexts.get(name);
  if (context === undefined || context.closed) {
    context = openDevice(name);
    contexts.set(name, context);
  }
  return context;
}

/**
 * librdmacm opens the devices when the first id is bound to one, on the thread that happens to do it. After this they are
 * open: it is done on a thread of the pool.
 *
 * @internal
 */
export async function devicesOpened(): Promise<void> {
  opening ??= binding().openCmDevices();
  try {
    await opening;
  } catch {
    // The step that needs a device says so better.
    opening = undefined;
  }
}
