/**
 * Which attributes each transition of a queue pair needs and takes: the tables of ibv_modify_qp(3) and the InfiniBand
 * specification, volume 1, section 11.2.5.2. Used to explain EINVAL after the kernel has said it, never to forbid.
 */
import { flagNames, nameOf } from '../inspect.ts';
import { QpAttrMask, QpState, QpType } from '../native/constants.gen.ts';

const M = QpAttrMask;
const S = QpState;

interface Transition {
  needs: Partial<Record<number, number>>;
  takes: Partial<Record<number, number>>;
}

const { RC, UC, UD, XRC_SEND, XRC_RECV, RAW_PACKET } = QpType;
const all = (mask: number) => ({ [RC]: mask, [UC]: mask, [UD]: mask, [XRC_SEND]: mask, [XRC_RECV]: mask });
const connected = (mask: number) => ({ [RC]: mask, [UC]: mask, [XRC_SEND]: mask, [XRC_RECV]: mask });

const BASE = M.PKEY_INDEX | M.PORT | M.ACCESS_FLAGS;
const PATH = M.AV | M.PATH_MTU | M.DEST_QPN | M.RQ_PSN;
const RESPONDER = M.MAX_DEST_RD_ATOMIC | M.MIN_RNR_TIMER;
const REQUESTER = M.TIMEOUT | M.RETRY_CNT | M.RNR_RETRY | M.MAX_QP_RD_ATOMIC;
const LIVE = M.CUR_STATE | M.ACCESS_FLAGS | M.ALT_PATH | M.PATH_MIG_STATE;
const SQD = M.AV | M.PKEY_INDEX | M.ACCESS_FLAGS | M.ALT_PATH | M.PATH_MIG_STATE;
const RESPONDS = LIVE | M.MIN_RNR_TIMER;
// The pace can be set where there are sends.
const sending = {
  [RC]: RESPONDS | M.RATE_LIMIT,
  [UC]: LIVE | M.RATE_LIMIT,
  [UD]: M.CUR_STATE | M.QKEY | M.RATE_LIMIT,
  [XRC_SEND]: LIVE | M.RATE_LIMIT,
  [XRC_RECV]: RESPONDS,
  [RAW_PACKET]: M.RATE_LIMIT,
};

const transitions: Record<string, Transition> = {
  [`${S.RESET}-${S.INIT}`]: {
    needs: { ...connected(BASE), [UD]: M.PKEY_INDEX | M.PORT | M.QKEY, [RAW_PACKET]: M.PORT },
    takes: {},
  },
  [`${S.INIT}-${S.INIT}`]: {
    needs: {},
    takes: { ...connected(BASE), [UD]: M.PKEY_INDEX | M.PORT | M.QKEY, [RAW_PACKET]: M.PORT },
  },
  [`${S.INIT}-${S.RTR}`]: {
    needs: { [RC]: PATH | RESPONDER, [UC]: PATH, [XRC_SEND]: PATH, [XRC_RECV]: PATH | RESPONDER },
    takes: { ...connected(M.ALT_PATH | M.ACCESS_FLAGS | M.PKEY_INDEX), [UD]: M.PKEY_INDEX | M.QKEY },
  },
  [`${S.RTR}-${S.RTS}`]: {
    needs: {
      [RC]: M.SQ_PSN | REQUESTER,
      [UC]: M.SQ_PSN,
      [UD]: M.SQ_PSN,
      [XRC_SEND]: M.SQ_PSN | REQUESTER,
      [XRC_RECV]: M.SQ_PSN | M.TIMEOUT,
    },
    takes: sending,
  },
  [`${S.RTS}-${S.RTS}`]: { needs: {}, takes: sending },
  [`${S.RTS}-${S.SQD}`]: { needs: {}, takes: all(M.EN_SQD_ASYNC_NOTIFY) },
  [`${S.SQD}-${S.RTS}`]: {
    needs: {},
    takes: { [RC]: RESPONDS, [UC]: LIVE, [UD]: M.CUR_STATE | M.QKEY, [XRC_SEND]: LIVE, [XRC_RECV]: RESPONDS },
  },
  [`${S.SQD}-${S.SQD}`]: {
    needs: {},
    takes: {
      [RC]: M.PORT | SQD | RESPONDER | REQUESTER,
      [UC]: SQD,
      [UD]: M.PKEY_INDEX | M.QKEY,
      [XRC_SEND]: M.PORT | SQD | REQUESTER,
      [XRC_RECV]: M.PORT | SQD | RESPONDER | M.TIMEOUT,
    },
  },
  [`${S.SQE}-${S.RTS}`]: { needs: {}, takes: { [UC]: M.CUR_STATE | M.ACCESS_FLAGS, [UD]: M.CUR_STATE | M.QKEY } },
};

/** A DC initiator, where `QpType` is asked for. @internal */
export const DCI = 0x2ff;
/** A DC target. @internal */
export const DCT = 0x1ff;

// Those of mlx5, as its kernel driver has them.
const dynamic: Partial<Record<number, Partial<Record<string, { needs: number; takes: number }>>>> = {
  [DCI]: {
    [`${S.RESET}-${S.INIT}`]: { needs: M.PKEY_INDEX | M.PORT, takes: 0 },
    [`${S.INIT}-${S.INIT}`]: { needs: 0, takes: M.PKEY_INDEX | M.PORT },
    [`${S.INIT}-${S.RTR}`]: { needs: M.PATH_MTU, takes: M.PKEY_INDEX | M.AV },
    [`${S.RTR}-${S.RTS}`]: {
      needs: M.SQ_PSN | M.TIMEOUT | M.RETRY_CNT | M.RNR_RETRY | M.MAX_QP_RD_ATOMIC,
      takes: M.MIN_RNR_TIMER,
    },
    [`${S.RTS}-${S.RTS}`]: { needs: 0, takes: M.MIN_RNR_TIMER },
  },
  [DCT]: {
    [`${S.RESET}-${S.INIT}`]: { needs: M.PKEY_INDEX | M.PORT | M.ACCESS_FLAGS, takes: 0 },
    [`${S.INIT}-${S.RTR}`]: { needs: M.MIN_RNR_TIMER | M.AV | M.PATH_MTU, takes: 0 },
  },
};

function masksOf(type: number, step: string): { needs: number; takes: number } | undefined {
  const own = dynamic[type];
  if (own !== undefined) return own[step];
  const transition = transitions[step];
  return transition && { needs: transition.needs[type] ?? 0, takes: transition.takes[type] ?? 0 };
}

/**
 * What is wrong with a transition, in words; undefined when the tables find nothing.
 *
 * @param type - `QpType`; `DCI` or `DCT`
 * @param from - the state it is in
 * @param to - the state it shall go to
 * @param mask - `QpAttrMask` of the attributes given
 * @internal
 */
export function explainTransition(type: number, from: number, to: number, mask: number): string | undefined {
  // A provider's own types have states and attributes of its own.
  if (type === QpType.DRIVER) return undefined;
  const given = mask & ~QpAttrMask.STATE;
  const step = `${nameOf(QpState, from)} -> ${nameOf(QpState, to)}`;
  if (type !== DCT && (to === QpState.RESET || (to === QpState.ERR && from !== QpState.RESET))) {
    return given === 0 ? undefined : `${step} takes no attributes, but was given ${flagNames(QpAttrMask, given)}`;
  }
  const masks = masksOf(type, `${from}-${to}`);
  if (!masks) return `there is no transition ${step}`;
  const missing = masks.needs & ~given;
  const excess = given & ~(masks.needs | masks.takes);
  if (missing === 0 && excess === 0) return undefined;
  return [
    missing === 0 ? '' : `${step} needs ${flagNames(QpAttrMask, missing)}`,
    excess === 0 ? '' : `${step} does not take ${flagNames(QpAttrMask, excess)}`,
  ]
    .filter(Boolean)
    .join('; ');
}
