import type { SelectivityLevel, WrOpcode } from '../native/constants.gen.ts';
import type { AddressHandle } from './address-handle.ts';
import type { MemorySlice } from './memory-region.ts';
import type { RemoteSlice } from './remote-region.ts';

/** How a long send is cut into segments: TCP segmentation offload. */
export interface Tso {
  /** The header that each segment begins with: copied at the post. */
  hdr: MemorySlice;
  /** Bytes of data of a segment, at the most: 16 bits. */
  mss: number;
}

/** A send request: `struct ibv_send_wr`. */
export interface SendWr {
  /** Given back by the completion. Any safe integer from 0; default 0. */
  wrId?: number;
  /** What to do: one of `WrOpcode`. */
  opcode: WrOpcode;
  /**
   * Local memory: read from by sends and writes, written to by reads and atomics. Default none: a message of 0 bytes.
   * `ATOMIC_WRITE`: the 8 bytes, which are read at the post.
   */
  sgList?: MemorySlice | readonly MemorySlice[];
  /** `SendFlags` joined with `|`. Default `SIGNALED`; 0 makes a request without a completion of its own. */
  sendFlags?: number;
  /** Immediate data of 32 bits in host byte order, for the opcodes `..._WITH_IMM`. */
  immData?: number;
  /** Remote key that the peer shall invalidate (`SEND_WITH_INV`), or local key to invalidate (`LOCAL_INV`). */
  invalidateRkey?: number;
  /** Remote memory, for RDMA and atomics. */
  remote?: RemoteSlice;
  /** `ATOMIC_CMP_AND_SWP`: what the 8 bytes are compared with; `ATOMIC_FETCH_AND_ADD`: what is added. Host byte order. */
  compareAdd?: bigint;
  /** `ATOMIC_CMP_AND_SWP`: what replaces the 8 bytes when they are equal. Host byte order. */
  swap?: bigint;
  /** UD and DC: where the datagram, or the request, goes. */
  ah?: AddressHandle;
  /** UD: number of the queue pair there: 24 bits. */
  remoteQpn?: number;
  /** UD: its Q_Key. With the highest bit set, the sender's own is sent in its place. */
  remoteQkey?: number;
  /** XRC: number of the shared receive queue there (`srq.srqNum`): 24 bits. */
  remoteSrqn?: number;
  /** DC: number of the target there (`dct.qpNum`): 24 bits. */
  remoteDctn?: number;
  /** DC: the key that the target was made with: 64 bits. */
  remoteDcKey?: bigint;
  /**
   * DC: the stream channel, of 16 bits, that the request belongs to: the requests of one channel are executed in order, and
   * fail without the others. For an initiator that was made with `dciStreams`.
   */
  streamId?: number;
  /** `FLUSH`: how far, `PlacementType` joined with `|`. What is flushed is the range of `remote`. */
  placementType?: number;
  /** `FLUSH`: that range or the whole region of it. Default `SelectivityLevel.RANGE`. */
  selectivityLevel?: SelectivityLevel;
  /** `TSO`: how the data are cut into segments. */
  tso?: Tso;
}

/** @internal */
export const SEND_WR_KEYS = [
  'wrId',
  'opcode',
  'sgList',
  'sendFlags',
  'immData',
  'invalidateRkey',
  'remote',
  'compareAdd',
  'swap',
  'ah',
  'remoteQpn',
  'remoteQkey',
  'remoteSrqn',
  'remoteDctn',
  'remoteDcKey',
  'streamId',
  'placementType',
  'selectivityLevel',
  'tso',
] as const;
