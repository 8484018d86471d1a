/** Bytes of a stream that wait to be read, addressed by their place in the stream. Chunks are used in place if possible. */
export class ByteQueue {
  /** What holds the waiting bytes, from `start` to `end`. */
  bytes: Uint8Array = new Uint8Array(0);
  /** Where the first waiting byte is. */
  start = 0;
  /** Behind the last. */
  end = 0;
  /** Where in the stream the first waiting byte was. */
  offset = 0;
  /** Bytes yet to come that nobody wants. */
  #unwanted = 0;
  #room = new Uint8Array(0);

  /** Bytes that wait. */
  get length(): number {
    return this.end - this.start;
  }

  /** Whether the stream may end here. */
  get isDrained(): boolean {
    return this.length === 0 && this.#unwanted === 0;
  }

  /** Adds a chunk, which must stay as it is until its bytes have been taken. */
  push(chunk: Uint8Array): void {
    const dropped = Math.min(this.#unwanted, chunk.length);
    this.#unwanted -= dropped;
    if (this.length === 0) {
      this.bytes = chunk;
      this.start = dropped;
      this.end = chunk.length;
      return;
    }
    // Bytes are unwanted only while nothing waits, so the chunk is wanted whole.
    this.#makeRoom(chunk.length);
    this.bytes.set(chunk, this.end);
    this.end += chunk.length;
  }

  /** Room for so many bytes behind those that wait: to be filled, and told by {@link ByteQueue.commit}. */
  reserve(count: number): Uint8Array {
    this.#makeRoom(count);
    return this.bytes.subarray(this.end, this.end + count);
  }

  /** Adds what was put into the room that was reserved. */
  commit(count: number): void {
    const dropped = Math.min(this.#unwanted, count);
    this.#unwanted -= dropped;
    // Nothing waits where something is dropped.
    this.start += dropped;
    this.end += count;
  }

  /** Moves what waits to a place where more can follow. */
  #makeRoom(count: number): void {
    if (this.bytes === this.#room && this.end + count <= this.#room.length) return;
    const waiting = this.bytes.subarray(this.start, this.end);
    if (waiting.length + count > this.#room.length) this.#room = new Uint8Array(2 * (waiting.length + count));
    this.#room.set(waiting);
    this.bytes = this.#room;
    this.start = 0;
    this.end = waiting.length;
  }

  /** Takes bytes from the front; more than wait are taken when they come. */
  skip(count: number): void {
    const here = Math.min(count, this.length);
    this.start += here;
    this.offset += count;
    this.#unwanted += count - here;
  }

  /** A number of 16 bits, `at` bytes from the front. */
  u16(at: number, isLittle: boolean): number {
    const low = this.bytes[this.start + at + (isLittle ? 0 : 1)]!;
    return low | (this.bytes[this.start + at + (isLittle ? 1 : 0)]! << 8);
  }

  /** A number of 32 bits, `at` bytes from the front. */
  u32(at: number, isLittle: boolean): number {
    const low = this.u16(at + (isLittle ? 0 : 2), isLittle);
    return (low | (this.u16(at + (isLittle ? 2 : 0), isLittle) << 16)) >>> 0;
  }
}
