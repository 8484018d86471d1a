/*
 * Which attributes a state transition must and may carry: IBTA volume 1, "Modify queue pair", as the Linux kernel
 * applies it (ib_modify_qp_is_ok). Any state may go to RESET or, except from RESET, to ERR, with no
 * attribute beside the state.
 */
#include "model.h"

#define PKEY IBV_QP_PKEY_INDEX
#define PORT IBV_QP_PORT
#define QKEY IBV_QP_QKEY
#define ACCESS IBV_QP_ACCESS_FLAGS
#define CUR IBV_QP_CUR_STATE
#define ALT IBV_QP_ALT_PATH
#define MIG IBV_QP_PATH_MIG_STATE
#define RNR_TIMER IBV_QP_MIN_RNR_TIMER
#define CONNECT (IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)
#define RC_RESPONDER (IBV_QP_MAX_DEST_RD_ATOMIC | RNR_TIMER)
#define RC_REQUESTER (IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)

#define BASE (PKEY | PORT | ACCESS)
#define LIVE (CUR | ALT | ACCESS | MIG)
#define SQD_ANY (IBV_QP_AV | ALT | ACCESS | PKEY | MIG)
#define NOTIFY IBV_QP_EN_SQD_ASYNC_NOTIFY

/* INI and TGT: what sends and what receives, of XRC. */
enum { RC, UC, UD, INI, TGT, TYPES };

static const struct transition {
  enum ibv_qp_state from, to;
  uint32_t must[TYPES], may[TYPES];
} transitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, {BASE, BASE, PKEY | PORT | QKEY, BASE, BASE}, {0}},
    {IBV_QPS_INIT, IBV_QPS_INIT, {0}, {BASE, BASE, PKEY | PORT | QKEY, BASE, BASE}},
    {IBV_QPS_INIT,
     IBV_QPS_RTR,
     {CONNECT | RC_RESPONDER, CONNECT, 0, CONNECT, CONNECT | RC_RESPONDER},
     {ALT | ACCESS | PKEY, ALT | ACCESS | PKEY, PKEY | QKEY, ALT | ACCESS | PKEY, ALT | ACCESS | PKEY}},
    {IBV_QPS_RTR,
     IBV_QPS_RTS,
     {RC_REQUESTER | IBV_QP_SQ_PSN, IBV_QP_SQ_PSN, IBV_QP_SQ_PSN, RC_REQUESTER | IBV_QP_SQ_PSN,
      IBV_QP_TIMEOUT | IBV_QP_SQ_PSN},
     {LIVE | RNR_TIMER, LIVE, CUR | QKEY, LIVE, LIVE | RNR_TIMER}},
    {IBV_QPS_RTS, IBV_QPS_RTS, {0}, {LIVE | RNR_TIMER, LIVE, CUR | QKEY, LIVE, LIVE | RNR_TIMER}},
    {IBV_QPS_RTS, IBV_QPS_SQD, {0}, {NOTIFY, NOTIFY, NOTIFY, NOTIFY, NOTIFY}},
    {IBV_QPS_SQD, IBV_QPS_RTS, {0}, {LIVE | RNR_TIMER, LIVE, CUR | QKEY, LIVE, LIVE | RNR_TIMER}},
    {IBV_QPS_SQD,
     IBV_QPS_SQD,
     {0},
     {SQD_ANY | PORT | RC_REQUESTER | RC_RESPONDER, SQD_ANY, PKEY | QKEY, SQD_ANY | PORT | RC_REQUESTER,
      SQD_ANY | PORT | IBV_QP_TIMEOUT | RC_RESPONDER}},
    {IBV_QPS_SQE, IBV_QPS_RTS, {0}, {0, CUR | ACCESS, CUR | QKEY}},
};

static int column(enum ibv_qp_type type) {
  switch (type) {
    case IBV_QPT_UC:
      return UC;
    case IBV_QPT_UD:
      return UD;
    case IBV_QPT_XRC_SEND:
      return INI;
    case IBV_QPT_XRC_RECV:
      return TGT;
    default:
      return RC;
  }
}

bool qp_transition_ok(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to, uint32_t mask) {
  int t = column(type);
  if ((mask & CUR) && from != IBV_QPS_RTR && from != IBV_QPS_RTS && from != IBV_QPS_SQD && from != IBV_QPS_SQE)
    return false;
  mask &= ~(uint32_t)IBV_QP_STATE;
  if (to == IBV_QPS_RESET || (to == IBV_QPS_ERR && from != IBV_QPS_RESET)) return !mask;
  for (size_t i = 0; i < sizeof transitions / sizeof *transitions; i++) {
    const struct transition* x = &transitions[i];
    if (x->from != from || x->to != to) continue;
    return (mask & x->must[t]) == x->must[t] && !(mask & ~(x->must[t] | x->may[t]));
  }
  return false;
}
