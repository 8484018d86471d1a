const marks = new Map<string, symbol>();

/**
 * The value of the property `thread` of an object that belongs to the thread that made it. `postMessage()` and
 * `structuredClone()` would make plain data of such an object, which looks like it and is nothing. A symbol is what they
 * refuse, in every version of Node, and its text is in their DataCloneError. It is set first of all properties, so that
 * the error names the object itself, and not one that it refers to.
 *
 * @param name - what the object is
 */
export function threadMark(name: string): symbol {
  let mark = marks.get(name);
  if (mark === undefined) {
    mark = Symbol(`this ${name} belongs to the thread that made it`);
    marks.set(name, mark);
  }
  return mark;
}
