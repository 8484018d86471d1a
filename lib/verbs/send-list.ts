import { integer, oneOf, rangeError, readOptions, typeError, uint32, uint64, valueError } from '../args.ts';
import { flagged, named } from '../inspect.ts';
import { PlacementType, QpType, SelectivityLevel, SendFlags, WrOpcode } from '../native/constants.gen.ts';
import { Layout } from '../native/layout.gen.ts';
import type { QpCap, SharedList } from '../native/native.ts';
import { AddressHandle } from './address-handle.ts';
import { isIwarp, isSiw, iwarpLacks } from './iwarp.ts';
import { MemorySlice } from './memory-region.ts';
import { elementsOf, label, type Name, type Posting, PostList, requestHints } from './post-list.ts';
import { RemoteSlice } from './remote-region.ts';
import {
  ATOMIC,
  ATOMIC_WRITE,
  explainOpcode,
  FENCED,
  FENCED_SHIFT,
  FLUSH,
  lackedByIwarp,
  MAY_INLINE,
  NEEDS_IMM,
  NEEDS_INVALIDATE,
  NEEDS_REMOTE,
  NO_DATA,
  TSO,
  traitsOf,
} from './send-opcodes.ts';
import { SEND_WR_KEYS, type SendWr } from './send-wr.ts';
import { swap32 } from './wc-cursor.ts';
import type { InFlight } from './work-queue.ts';

const NUM_SGE = Layout.sendWr.numSge / 4;
const OPCODE = Layout.sendWr.opcode / 4;
const SEND_FLAGS = Layout.sendWr.sendFlags / 4;
const IMM_DATA = Layout.sendWr.immData / 4;
const REMOTE_ADDR = Layout.sendWr.remoteAddr / 4;
const RKEY = Layout.sendWr.rkey / 4;
const COMPARE_ADD = Layout.sendWr.compareAdd / 4;
const SWAP = Layout.sendWr.swap / 4;
const ATOMIC_RKEY = Layout.sendWr.atomicRkey / 4;
const REMOTE_QPN = Layout.sendWr.udRemoteQpn / 4;
const REMOTE_QKEY = Layout.sendWr.udRemoteQkey / 4;
const REMOTE_SRQN = Layout.sendWr.xrcRemoteSrqn / 4;
const REMOTE_DCTN = Layout.sendWr.dcRemoteDctn / 4;
const REMOTE_DC_KEY = Layout.sendWr.dcRemoteDcKey / 4;
const STREAM_ID = Layout.sendWr.dcStreamId / 4;
const TSO_HDR = Layout.sendWr.tsoHdr / 4;
const TSO_SIZES = Layout.sendWr.tsoHdrSz / 4;

const ALL_FLAGS: number =
  SendFlags.FENCE | SendFlags.SIGNALED | SendFlags.SOLICITED | SendFlags.INLINE | SendFlags.IP_CSUM;

// What the keys beyond the common ones are for.
const OF_DATAGRAMS = ['remoteQpn', 'remoteQkey'] as const;
const OF_INITIATORS = ['remoteDctn', 'remoteDcKey', 'streamId'] as const;
const OF_FLUSHES = ['placementType', 'selectivityLevel'] as const;
const someOf = (wr: SendWr, keys: readonly (keyof SendWr)[]) => keys.some((key) => wr[key] !== undefined);

/** Whether it is `SendFlags` joined with `|`. @internal */
export function isSendFlags(flags: unknown): flags is number {
  return typeof flags === 'number' && flags >>> 0 === flags && (flags & ~ALL_FLAGS) === 0;
}

/** Says what is wrong with flags that are none. @internal */
export function refuseFlags(flags: unknown, name: Name): never {
  uint32(flags, label(name, 'sendFlags'));
  throw rangeError(`${label(name, 'sendFlags')} must be SendFlags joined with |, not ${flags}`);
}

/** Where a request goes, for queue pairs that are not connected to one place. */
interface Address {
  ah?: AddressHandle;
  remoteQpn: number;
  remoteQkey: number;
  /** DC: the target's number stands in `remoteQpn`, and the stream channel in `remoteQkey`. */
  remoteDcKey?: bigint;
}

// As in extended_post.cc: the request belongs to no stream channel.
const NO_STREAM = -1;

/**
 * Send requests that were prepared: made by `qp.prepareSend()`. The fastest way to post again and again: change in place
 * what differs, then `post()`.
 *
 * @see ibv_post_send(3)
 */
export class SendList extends PostList<SendWr> {
  readonly #cap: QpCap;
  readonly #traits: readonly number[];
  readonly #qpType: number;
  readonly #sendOpsFlags: number | undefined;
  // Whether each request says where it goes.
  readonly #isAddressed: boolean;
  // For datagrams and DC initiators: the number of each request's address handle.
  readonly #ahs: Uint32Array | null;
  // Bytes of each request at both ends, for the setters that change only one of them.
  readonly #localBytes: Float64Array;
  readonly #remoteBytes: Float64Array;

  /** @internal */
  constructor(
    qp: Posting,
    queue: InFlight,
    shared: SharedList,
    length: number,
    cap: QpCap,
    qpType: number,
    sendOpsFlags: number | undefined,
  ) {
    const verb = sendOpsFlags === undefined ? 'ibv_post_send' : 'ibv_wr_complete';
    super(qp, queue, shared, length, cap.maxSendSge, Layout.sendWr.size, verb);
    this.#cap = cap;
    const { context } = qp.pd;
    this.#traits = traitsOf(qpType, sendOpsFlags, isSiw(context) ? 'siw' : isIwarp(context) ? 'iwarp' : undefined);
    this.#qpType = qpType;
    this.#sendOpsFlags = sendOpsFlags;
    const hasAhs = qpType === QpType.UD || qpType === QpType.DRIVER;
    this.#isAddressed = hasAhs || qpType === QpType.XRC_SEND;
    const bytesBefore = length * (Layout.sendWr.size + cap.maxSendSge * Layout.sge.size + 8);
    this.#ahs = hasAhs ? new Uint32Array(shared.memory, bytesBefore, length) : null;
    this.#localBytes = new Float64Array(length);
    this.#remoteBytes = new Float64Array(length);
  }

  /**
   * Replaces a request.
   *
   * @param index - from 0
   * @throws TypeError or RangeError naming the field, and nothing is changed
   */
  set(index: number, wr: SendWr): void {
    this.#checkIndex(index);
    this.encode(index, wr, 'wr');
  }

  /** Changes the `wrId` of a request. */
  setWrId(index: number, wrId: number): void {
    this.#checkIndex(index);
    this.storeWrId(index, integer(wrId, 'wrId', 0, Number.MAX_SAFE_INTEGER));
  }

  /**
   * Changes the local memory of a request to one slice. An inline request is bound by the same limit as before, and
   * there must be as much remote memory: to make both longer, change the remote one first.
   */
  setLocal(index: number, slice: MemorySlice): void {
    this.#checkIndex(index);
    const at = this.at(index);
    const trait = this.#traits[this.words[at + OPCODE] as number] as number;
    const bytes = this.#checkLocal(slice, trait, this.words[at + SEND_FLAGS] as number, 'wr');
    const remoteBytes = this.#remoteBytes[index] as number;
    if ((trait & NEEDS_REMOTE) !== 0 && bytes > remoteBytes) throw tooFewRemoteBytes('slice', remoteBytes, bytes);
    this.#localBytes[index] = bytes;
    this.encodeSgList(index, slice);
    this.words[at + NUM_SGE] = 1;
  }

  /** Changes the remote memory of a request: it must have room for the local one. */
  setRemote(index: number, remote: RemoteSlice): void {
    this.#checkIndex(index);
    const trait = this.#traits[this.words[this.at(index) + OPCODE] as number] as number;
    this.#encodeRemote(index, remote, trait, this.#localBytes[index] as number, 'wr');
  }

  /** Changes the immediate data of a request whose opcode has some. */
  setImmData(index: number, immData: number): void {
    this.#checkIndex(index);
    const at = this.at(index);
    if (((this.#traits[this.words[at + OPCODE] as number] as number) & NEEDS_IMM) === 0) {
      throw valueError('The opcode of this request carries no immediate data');
    }
    this.words[at + IMM_DATA] = swap32(uint32(immData, 'immData')) | 0;
  }

  #checkIndex(index: number): void {
    integer(index, 'index', 0, this.length - 1);
  }

  #encodeRemote(index: number, remote: unknown, trait: number, localBytes: number, name: Name): void {
    const at = this.at(index);
    if (!RemoteSlice.is(remote)) {
      throw typeError(label(name, 'remote'), 'a RemoteSlice (new RemoteRegion(token).slice())', remote);
    }
    if ((trait & NEEDS_REMOTE) === 0) throw valueError(`${label(name, 'remote')}: this opcode has no remote memory`);
    const remoteBytes = RemoteSlice.lengthOf(remote);
    if ((trait & (ATOMIC | ATOMIC_WRITE)) !== 0) {
      if (remoteBytes < 8) {
        throw rangeError(`${label(name, 'remote')} must have the 8 bytes of an atomic, not ${remoteBytes}`);
      }
      if (!RemoteSlice.isAligned(remote)) {
        throw rangeError(`${label(name, 'remote')}: an atomic needs an address that is a multiple of 8`);
      }
    }
    if ((trait & (ATOMIC | FLUSH)) !== 0) {
      RemoteSlice.encode(remote, this.words, at + REMOTE_ADDR, at + ATOMIC_RKEY);
      if ((trait & FLUSH) !== 0) encode64(this.words, at + COMPARE_ADD, BigInt(remoteBytes));
    } else {
      if (localBytes > remoteBytes) throw tooFewRemoteBytes(label(name, 'remote'), remoteBytes, localBytes);
      RemoteSlice.encode(remote, this.words, at + REMOTE_ADDR, at + RKEY);
    }
    this.#remoteBytes[index] = remoteBytes;
  }

  // Returns the total length.
  #checkLocal(sgList: unknown, trait: number, flags: number, name: Name): number {
    const cap = this.#cap;
    let total = 0;
    let elements = 1;
    if (MemorySlice.is(sgList)) {
      total = this.#checkSlice(sgList, name, -1);
    } else if (Array.isArray(sgList)) {
      elements = sgList.length;
      for (let i = 0; i < elements; i++) total += this.#checkSlice(sgList[i], name, i);
    } else {
      throw typeError(label(name, 'sgList'), 'a MemorySlice (mr.slice()) or an array of them', sgList);
    }
    if (elements > cap.maxSendSge) {
      throw rangeError(`${label(name, 'sgList')} has ${elements} element(s), more than maxSendSge (${cap.maxSendSge})`);
    }
    if ((trait & (ATOMIC | NO_DATA | ATOMIC_WRITE)) !== 0) {
      if ((trait & NO_DATA) !== 0) throw valueError(`${label(name, 'sgList')}: this opcode takes no data`);
      if (total !== 8) throw rangeError(`${label(name, 'sgList')} must be the 8 bytes of an atomic, not ${total}`);
      if ((trait & ATOMIC_WRITE) !== 0 && elements !== 1) {
        throw rangeError(`${label(name, 'sgList')} must be one element of 8 bytes, not ${elements}`);
      }
    }
    if ((flags & SendFlags.INLINE) !== 0 && total > cap.maxInlineData) {
      throw rangeError(`${label(name, 'sgList')} has ${total} bytes, more than maxInlineData (${cap.maxInlineData})`);
    }
    return total;
  }

  #checkSlice(slice: unknown, name: Name, element: number): number {
    if (!MemorySlice.is(slice)) {
      throw typeError(label(name, element < 0 ? 'sgList' : `sgList[${element}]`), 'a MemorySlice (mr.slice())', slice);
    }
    const region = MemorySlice.regionOf(slice);
    if (region.closed || region.isBorrowed) region.requireOpen();
    if (region.pd !== this.pd) {
      throw valueError(`${label(name, 'sgList')} is of another protection domain than the queue pair`);
    }
    return MemorySlice.lengthOf(slice);
  }

  /**
   * Checks a request whole, then writes it.
   *
   * @param name - what errors call it: its position in a list, or a name. Texts are made only for an error
   * @internal
   */
  override encode(index: number, wr: SendWr, name: Name): void {
    if (typeof wr !== 'object' || wr === null) throw typeError(label(name), 'an object', wr);
    // Each field is read once, and a list copied by index: what is read twice may differ the second time.
    const { wrId, opcode, sgList: given, sendFlags: flags, immData, invalidateRkey, remote, compareAdd, swap } = wr;
    const sgList = Array.isArray(given) ? elementsOf(given, this.#cap.maxSendSge + 1) : given;
    const sendFlags = flags === undefined ? SendFlags.SIGNALED : flags;
    // As many keys as there are known ones in it: the usual case, without a look at each.
    let keys = 0;
    for (const _ in wr) keys++;
    const known =
      +(wrId !== undefined) +
      +(opcode !== undefined) +
      +(given !== undefined) +
      +(flags !== undefined) +
      +(immData !== undefined) +
      +(invalidateRkey !== undefined) +
      +(remote !== undefined) +
      +(compareAdd !== undefined) +
      +(swap !== undefined);
    if (keys !== known) this.#checkKeys(wr, name);

    const trait = typeof opcode === 'number' ? (this.#traits[opcode] ?? -1) : -1;
    if (trait === -1) this.#refuseOpcode(opcode, name);
    if (wrId !== undefined && !(Number.isSafeInteger(wrId) && wrId >= 0)) {
      integer(wrId, label(name, 'wrId'), 0, Number.MAX_SAFE_INTEGER);
    }
    if (!isSendFlags(sendFlags)) refuseFlags(sendFlags, name);
    if ((sendFlags & SendFlags.INLINE) !== 0 && (trait & MAY_INLINE) === 0) {
      throw valueError(`${label(name, 'sendFlags')}: INLINE is for sends and writes only`);
    }
    let bytes = 0;
    if (sgList !== undefined) bytes = this.#checkLocal(sgList, trait, sendFlags, name);
    else if ((trait & (ATOMIC | ATOMIC_WRITE)) !== 0) {
      throw valueError(`${label(name, 'sgList')} is missing: an atomic has 8 bytes`);
    }
    if ((trait & NEEDS_IMM) !== 0) {
      if (typeof immData !== 'number' || immData >>> 0 !== immData) uint32(immData, label(name, 'immData'));
    } else if (immData !== undefined) {
      throw valueError(`${label(name, 'immData')}: this opcode carries no immediate data`);
    }
    if ((trait & NEEDS_INVALIDATE) !== 0) {
      uint32(invalidateRkey, label(name, 'invalidateRkey'));
    } else if (invalidateRkey !== undefined) {
      throw valueError(`${label(name, 'invalidateRkey')}: this opcode invalidates nothing`);
    }
    if ((trait & ATOMIC) !== 0) {
      uint64(compareAdd, label(name, 'compareAdd'));
      if (opcode === WrOpcode.ATOMIC_CMP_AND_SWP) uint64(swap, label(name, 'swap'));
    } else if (compareAdd !== undefined || swap !== undefined) {
      throw valueError(`${label(name)}: compareAdd and swap are for atomics only`);
    }
    if ((trait & NEEDS_REMOTE) !== 0) this.#encodeRemote(index, remote, trait, bytes, name);
    else if (remote !== undefined) throw valueError(`${label(name, 'remote')}: this opcode has no remote memory`);

    const address = this.#isAddressed ? this.#checkAddress(wr, name) : undefined;
    const more = trait < FLUSH ? undefined : this.#checkMore(wr, trait, name);

    const words = this.words;
    const at = this.at(index);
    this.storeWrId(index, wrId ?? 0);
    this.#localBytes[index] = bytes;
    words[at + OPCODE] = opcode;
    words[at + SEND_FLAGS] = sendFlags | ((trait & FENCED) >> FENCED_SHIFT);
    this.encodeSgList(index, sgList ?? []);
    words[at + NUM_SGE] = sgList === undefined ? 0 : Array.isArray(sgList) ? sgList.length : 1;
    if (address !== undefined) this.#encodeAddress(index, address);
    if (more !== undefined) this.#encodeMore(index, more);
    if ((trait & NEEDS_IMM) !== 0) words[at + IMM_DATA] = swap32(immData as number) | 0;
    if ((trait & NEEDS_INVALIDATE) !== 0) words[at + IMM_DATA] = (invalidateRkey as number) | 0;
    if ((trait & ATOMIC) !== 0) {
      encode64(words, at + COMPARE_ADD, compareAdd as bigint);
      encode64(words, at + SWAP, swap ?? 0n);
    }
  }

  /** @internal */
  protected override requestFields(index: number): object {
    const at = this.at(index);
    const { wrId, bytes } = this.commonFields(index, this.words[at + NUM_SGE] as number);
    return {
      wrId,
      opcode: named(WrOpcode)(this.words[at + OPCODE] as number),
      bytes,
      sendFlags: flagged(SendFlags)(this.words[at + SEND_FLAGS] as number),
    };
  }

  #refuseOpcode(opcode: unknown, name: Name): never {
    oneOf(opcode, label(name, 'opcode'), WrOpcode, 'WrOpcode');
    const lacked = isIwarp(this.pd.context) ? lackedByIwarp(opcode as number) : undefined;
    if (lacked !== undefined) throw iwarpLacks('ibv_post_send', lacked);
    throw valueError(`${label(name, 'opcode')}: ${explainOpcode(opcode as number, this.#qpType, this.#sendOpsFlags)}`);
  }

  // For a request with keys that few requests have.
  #checkKeys(wr: SendWr, name: Name): void {
    readOptions(wr, label(name), SEND_WR_KEYS, requestHints);
    const { opcode } = wr;
    if (this.#qpType !== QpType.UD && (someOf(wr, OF_DATAGRAMS) || (this.#ahs === null && wr.ah !== undefined))) {
      throw valueError(`${label(name)}: ah, remoteQpn and remoteQkey are for UD queue pairs only`);
    }
    if (this.#qpType !== QpType.DRIVER && someOf(wr, OF_INITIATORS)) {
      throw valueError(`${label(name)}: remoteDctn, remoteDcKey and streamId are for DC initiators only`);
    }
    if (this.#qpType !== QpType.XRC_SEND && wr.remoteSrqn !== undefined) {
      throw valueError(`${label(name, 'remoteSrqn')} is for XRC_SEND queue pairs only`);
    }
    if (opcode !== WrOpcode.FLUSH && someOf(wr, OF_FLUSHES)) {
      throw valueError(`${label(name)}: placementType and selectivityLevel are for FLUSH only`);
    }
    if (opcode !== WrOpcode.TSO && wr.tso !== undefined) throw valueError(`${label(name, 'tso')} is for TSO only`);
  }

  // Where a request goes: each field is read once, since what is read twice may differ.
  #checkAddress(wr: SendWr, name: Name): Address {
    if (this.#ahs === null) {
      return { remoteQpn: integer(wr.remoteSrqn, label(name, 'remoteSrqn'), 0, 0xff_ffff), remoteQkey: 0 };
    }
    const { ah, remoteQpn, remoteQkey, remoteDctn, remoteDcKey, streamId } = wr;
    if (!AddressHandle.is(ah)) throw typeError(label(name, 'ah'), 'an AddressHandle (pd.createAh())', ah);
    ah.requireOpen();
    if (ah.pd !== this.pd) throw valueError(`${label(name, 'ah')} is of another protection domain than the queue pair`);
    if (this.#qpType === QpType.DRIVER) {
      return {
        ah,
        remoteQpn: integer(remoteDctn, label(name, 'remoteDctn'), 0, 0xff_ffff),
        remoteDcKey: uint64(remoteDcKey, label(name, 'remoteDcKey')),
        remoteQkey: streamId === undefined ? NO_STREAM : integer(streamId, label(name, 'streamId'), 0, 0xffff),
      };
    }
    return {
      ah,
      remoteQpn: integer(remoteQpn, label(name, 'remoteQpn'), 0, 0xff_ffff),
      remoteQkey: uint32(remoteQkey, label(name, 'remoteQkey')),
    };
  }

  #encodeAddress(index: number, { ah, remoteQpn, remoteQkey, remoteDcKey }: Address): void {
    const at = this.at(index);
    if (this.#ahs === null || ah === undefined) {
      this.words[at + REMOTE_SRQN] = remoteQpn;
      return;
    }
    this.#ahs[index] = AddressHandle.numberOf(ah);
    this.alsoHold(index, ah);
    if (remoteDcKey !== undefined) {
      this.words[at + REMOTE_DCTN] = remoteQpn;
      this.words[at + STREAM_ID] = remoteQkey;
      encode64(this.words, at + REMOTE_DC_KEY, remoteDcKey);
      return;
    }
    this.words[at + REMOTE_QPN] = remoteQpn;
    this.words[at + REMOTE_QKEY] = remoteQkey | 0;
  }

  // What flushes and segmented sends have beyond the others: read once.
  #checkMore(wr: SendWr, trait: number, name: Name): { flush?: bigint; hdr?: MemorySlice; sizes?: number } {
    if ((trait & TSO) !== 0) {
      const { hdr, mss } = readOptions(wr.tso, label(name, 'tso'), ['hdr', 'mss']);
      if (!MemorySlice.is(hdr)) throw typeError(`${label(name, 'tso')}.hdr`, 'a MemorySlice (mr.slice())', hdr);
      const bytes = this.#checkSlice(hdr, name, -1);
      integer(bytes, `${label(name, 'tso')}.hdr.length`, 1, 0xffff);
      return { hdr, sizes: bytes | (integer(mss, `${label(name, 'tso')}.mss`, 1, 0xffff) << 16) };
    }
    const { placementType, selectivityLevel = SelectivityLevel.RANGE } = wr;
    const most = PlacementType.GLOBAL | PlacementType.PERSISTENT;
    const type = integer(placementType, label(name, 'placementType'), 1, most);
    oneOf(selectivityLevel, label(name, 'selectivityLevel'), SelectivityLevel, 'SelectivityLevel');
    return { flush: BigInt(type) | (BigInt(selectivityLevel) << 32n) };
  }

  #encodeMore(index: number, more: { flush?: bigint; hdr?: MemorySlice; sizes?: number }): void {
    const at = this.at(index);
    const { words } = this;
    if (more.flush !== undefined) encode64(words, at + SWAP, more.flush);
    if (more.hdr !== undefined) {
      const element = new Int32Array(4);
      MemorySlice.encode(more.hdr, element, 0);
      words[at + TSO_HDR] = element[0] as number;
      words[at + TSO_HDR + 1] = element[1] as number;
      words[at + TSO_SIZES] = more.sizes as number;
      this.alsoHold(index, MemorySlice.regionOf(more.hdr));
    }
  }
}

function tooFewRemoteBytes(name: string, remote: number, local: number): RangeError {
  return rangeError(`${name}: ${local} bytes do not fit the ${remote} bytes of the remote memory`);
}

function encode64(words: Int32Array, at: number, value: bigint): void {
  words[at] = Number(value & 0xffff_ffffn) | 0;
  words[at + 1] = Number(value >> 32n) | 0;
}
