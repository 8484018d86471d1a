import { instance, oneOf, readOptions, typeError, uint32, valueError } from '../args.ts';
import { brief } from '../inspect.ts';
import { binding } from '../native/binding.ts';
import { QpState, QpType, RxHashFunctionFlags } from '../native/constants.gen.ts';
import { AnyQueuePair } from './any-queue-pair.ts';
import { withinLimits } from './limits.ts';
import type { ProtectionDomain } from './protection-domain.ts';
import { RwqIndTable } from './receive-work-queue.ts';

/** How packets are spread over the queues of a table: `struct ibv_rx_hash_conf`. */
export interface RxHashConf {
  /** `RxHashFunctionFlags.TOEPLITZ`, the default, is all there is. */
  rxHashFunction?: RxHashFunctionFlags;
  /** The function's key, as long as the device wants it, up to 255 bytes; 40 bytes on mlx5. The same key gives the same spread. */
  rxHashKey: Uint8Array;
  /**
   * `RxHashFields` joined with `|`: what of a packet's headers is hashed, such as `SRC_IPV4 | DST_IPV4`. 0: nothing, so all
   * goes to the first queue.
   */
  rxHashFieldsMask: number;
}

/** What a queue pair with receive side scaling is made with. It has neither completion queues nor requests of its own. */
export interface RssQpInitAttr {
  /** Where what arrives goes: a table of `context.createRwqIndTable()`. */
  rwqIndTbl: RwqIndTable;
  /** How it is spread there. */
  rxHashConf: RxHashConf;
  /** `QpType.RAW_PACKET` (the default) or `UD`: those of `rssCaps.supportedQpts` of `context.queryDeviceEx()`. */
  qpType?: QpType;
}

/**
 * A queue pair with receive side scaling: one without queues, that spreads what its flow steering rules match over the
 * receive work queues of a table. It sends nothing. Made by `pd.createQp()` with `rwqIndTbl`. mlx5 has no states of it:
 * it receives once it is made, and `modify()` and `query()` are EOPNOTSUPP there; mlx4 wants it in RTR.
 *
 * @see ibv_create_qp_ex(3)
 */
export class RssQueuePair extends AnyQueuePair {
  /** The domain it belongs to. */
  readonly pd: ProtectionDomain;
  /** The table that it spreads over. */
  readonly rwqIndTbl: RwqIndTable;

  /** @internal */
  constructor(pd: ProtectionDomain, attr: RssQpInitAttr) {
    const given = readOptions(attr, 'attr', ['rwqIndTbl', 'rxHashConf', 'qpType']);
    const { qpType = QpType.RAW_PACKET } = given;
    const table = instance(given.rwqIndTbl, 'attr.rwqIndTbl', RwqIndTable);
    table.requireOpen();
    if (table.context !== pd.context)
      throw valueError('attr.rwqIndTbl is of another device than the protection domain');
    oneOf(qpType, 'attr.qpType', QpType, 'QpType');
    if (qpType !== QpType.RAW_PACKET && qpType !== QpType.UD) {
      throw valueError('attr.qpType: only RAW_PACKET and UD receive what a table of receive work queues takes');
    }
    if (given.rxHashConf === undefined) throw typeError('attr.rxHashConf', 'an object', given.rxHashConf);
    const {
      rxHashFunction = RxHashFunctionFlags.TOEPLITZ,
      rxHashKey,
      rxHashFieldsMask,
    } = readOptions(given.rxHashConf, 'attr.rxHashConf', ['rxHashFunction', 'rxHashKey', 'rxHashFieldsMask']);
    oneOf(rxHashFunction, 'attr.rxHashConf.rxHashFunction', RxHashFunctionFlags, 'RxHashFunctionFlags');
    const key = instance(rxHashKey, 'attr.rxHashConf.rxHashKey', Uint8Array);
    if (key.length > 0xff) throw valueError(`attr.rxHashConf.rxHashKey has ${key.length} bytes, of 255 at the most`);
    const fields = uint32(rxHashFieldsMask, 'attr.rxHashConf.rxHashFieldsMask');
    const native = withinLimits(pd.context, [], 'maxQp', () =>
      binding().createRssQp(pd.handle, table.handle, qpType, rxHashFunction, key, fields),
    );
    const cap = { maxSendWr: 0, maxRecvWr: 0, maxSendSge: 0, maxRecvSge: 0, maxInlineData: 0 };
    super([pd, table], pd.context, native, qpType, cap, QpState.RESET);
    this.pd = pd.root;
    this.rwqIndTbl = table;
  }

  /** It has no queues that would have to know. @internal */
  protected override entered(): void {}

  /** @internal */
  protected override fields(): object {
    return { ...super.fields(), rwqIndTbl: brief(this.rwqIndTbl) };
  }
}
