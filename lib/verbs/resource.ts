import { inspect } from 'node:util';
import { boolean, readOptions } from '../args.ts';
import { BusyError, RdmaClosedError, RdmaDeviceLostError } from '../errors.ts';
import { type Inspecting, shown } from '../inspect.ts';
import { threadMark } from '../thread.ts';

// Children that were collected open take themselves out of their parents' lists.
const collected = new FinalizationRegistry<() => void>((forget) => forget());

// Who takes memory away when it is closed. Weak, so that who keeps the memory need not keep that one.
const owners = new WeakMap<ArrayBuffer, WeakRef<Resource>>();

/** Begins an operation on memory: while it runs, nobody who would take the memory away can be closed. @internal */
export function onMemory<T>(memory: ArrayBuffer, begin: () => Promise<T>): Promise<T> {
  const owner = owners.get(memory)?.deref();
  owner?.requireMemory();
  const operation = begin();
  return owner?.track(operation) ?? operation;
}

/**
 * An object of verbs with a beginning and an end. A child keeps its parents alive, in JavaScript and in C; a parent
 * does not keep its children, but refuses to be closed while they are open.
 */
export abstract class Resource {
  /** @internal */
  readonly thread = threadMark(this.constructor.name);
  #closed = false;
  #lost = false;
  #parents: readonly Resource[];
  // In order of creation. Weak, so that a forgotten child can be collected before its parent.
  #children = new Set<WeakRef<Resource>>();
  #pending = 0;
  #self: WeakRef<Resource> | undefined;

  /**
   * Called only once the verbs object exists, so that one that could not be made does not hold its parents.
   *
   * @internal
   */
  constructor(parents: readonly Resource[]) {
    this.#parents = parents;
    this.#lost = parents.some((parent) => parent.#lost);
    if (parents.length > 0) {
      const self = new WeakRef<Resource>(this);
      this.#self = self;
      for (const parent of parents) {
        parent.#children.add(self);
        const children = parent.#children;
        collected.register(this, () => children.delete(self), self);
      }
    }
  }

  /** Whether `close()` has succeeded. */
  get closed(): boolean {
    return this.#closed;
  }

  /** Whether the device was lost: it has raised `DEVICE_FATAL`. Then the object can only be closed. */
  get lost(): boolean {
    return this.#lost;
  }

  /**
   * Destroys the object. Idempotent; the same as `[Symbol.dispose]()`.
   *
   * @param options - `cascade`: close the objects that need this one first, newest first
   * @throws BusyError with the list of open children and operations under way; the object stays open and usable
   * @throws RdmaError when the destroy verb fails; the object stays open
   */
  close(options: { cascade?: boolean } = {}): void {
    const { cascade = false } = readOptions(options, 'options', ['cascade']);
    if (boolean(cascade, 'options.cascade')) {
      // A queue pair goes before the regions that its requests hold.
      const children = this.openChildren().reverse();
      const busy = children.filter((child) => child.busyReasons().length > 0);
      for (const child of [...children.filter((child) => !busy.includes(child)), ...busy]) child.close({ cascade });
      if (!this.#closed) this.onCascade();
    }
    if (this.#closed) return;
    const children = this.openChildren();
    const reasons = children.map((child) => child.describe());
    if (this.#pending > 0) reasons.push(`${this.#pending} operation(s) under way`);
    reasons.push(...this.busyReasons());
    if (reasons.length > 0) {
      const shown = reasons.length > 8 ? [...reasons.slice(0, 8), `${reasons.length - 8} more`] : reasons;
      const hint = children.length > 0 ? '; close them first, or pass { cascade: true }' : '';
      throw new BusyError(this.destroyVerb, `${this.describe()} is needed by ${shown.join(', ')}${hint}`, children);
    }
    this.destroy();
    this.leave();
  }

  /** From now on it is closed: its verbs object is destroyed, or another's. @internal */
  protected leave(): void {
    this.#closed = true;
    for (const parent of this.#parents) if (this.#self) parent.#children.delete(this.#self);
    if (this.#self) collected.unregister(this.#self);
  }

  /** The same as `close()`. */
  [Symbol.dispose](): void {
    this.close();
  }

  /** The object in a few words, for errors. @internal */
  abstract describe(): string;

  /** What is printed of it. @internal */
  protected fields(): object {
    return {};
  }

  /** @internal */
  [inspect.custom](...how: Inspecting): object | string {
    return shown(
      this.constructor.name,
      #closed in this && this.#closed ? 'closed' : undefined,
      () => this.fields(),
      ...how,
    );
  }

  /** Name of the destroy verb, for errors. @internal */
  protected abstract readonly destroyVerb: string;

  /** Calls the destroy verb; throws when it fails. @internal */
  protected abstract destroy(): void;

  /** Ends what needs it and is no child, when it is closed with `cascade`. @internal */
  protected onCascade(): void {}

  /** Why it cannot be closed now, besides children. @internal */
  protected busyReasons(): string[] {
    return [];
  }

  /** Operations that use it now. @internal */
  protected get underWay(): number {
    return this.#pending;
  }

  /** Whether no open object needs this one. @internal */
  get idle(): boolean {
    return this.openChildren().length === 0;
  }

  /** @internal */
  requireOpen(): void {
    if (this.#closed) throw new RdmaClosedError(this.describe());
    if (this.#lost) throw new RdmaDeviceLostError(this.describe());
  }

  /** The device is gone: so is this, and all that was made of it. @internal */
  lose(): void {
    if (this.#lost || this.#closed) return;
    this.#lost = true;
    this.onLost();
    for (const child of this.openChildren()) child.lose();
  }

  /** What must end then. @internal */
  protected onLost(): void {}

  /** Counts an operation that uses this object until its promise settles. @internal */
  async track<T>(operation: Promise<T>): Promise<T> {
    this.#pending++;
    try {
      return await operation;
    } finally {
      this.#pending--;
    }
  }

  /** Its memory goes with it. @internal */
  protected owns(memory: ArrayBuffer): void {
    this.#self ??= new WeakRef<Resource>(this);
    owners.set(memory, this.#self);
  }

  /** Throws when its memory may go while an operation uses it. @internal */
  requireMemory(): void {}

  /** Goes from one parent to another. @internal */
  protected moveTo(from: Resource, to: Resource): void {
    const self = this.#self;
    if (self === undefined) return;
    this.#parents = this.#parents.map((parent) => (parent === from ? to : parent));
    from.#children.delete(self);
    to.#children.add(self);
    const children = to.#children;
    collected.register(this, () => children.delete(self), self);
  }

  /** @internal */
  protected openChildren(): Resource[] {
    const open: Resource[] = [];
    for (const ref of this.#children) {
      const child = ref.deref();
      if (child && !child.#closed) open.push(child);
    }
    return open;
  }
}
