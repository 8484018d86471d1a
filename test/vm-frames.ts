/** Messages over a stream: the length of each in four bytes, little-endian, and what V8 makes of it. */
import { deserialize, serialize } from 'node:v8';

export function frame(message: unknown): Buffer {
  const body = serialize(message);
  const head = Buffer.alloc(4);
  head.writeUInt32LE(body.length);
  return Buffer.concat([head, body]);
}

/** Takes pieces of the stream and gives each message that is whole. */
export function unframe(take: (message: unknown) => void): (piece: Buffer) => void {
  let pieces: Buffer[] = [];
  let have = 0;
  let need = 4;
  return (piece) => {
    pieces.push(piece);
    have += piece.length;
    while (have >= need) {
      const all = Buffer.concat(pieces, have);
      const end = 4 + all.readUInt32LE(0);
      pieces = [all];
      need = end;
      if (have < end) return;
      const rest = all.subarray(end);
      pieces = [rest];
      have = rest.length;
      need = 4;
      take(deserialize(all.subarray(4, end)));
    }
  };
}
