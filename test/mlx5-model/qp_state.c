/*
 * Which attributes a state transition must and may carry: IBTA volume 1, "Modify queue pair", as the Linux kernel
 * applies it to RC, UC and UD (ib_modify_qp_is_ok). Any state may go to RESET or, except from RESET, to ERR, with no
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

enum { RC, UC, UD, TYPES };

static const struct transition {
  enum ibv_qp_state from, to;
  uint32_t must[TYPES], may[TYPES];
} transitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, {PKEY | PORT | ACCESS, PKEY | PORT | ACCESS, PKEY | PORT | QKEY}, {0}},
    {IBV_QPS_INIT, IBV_QPS_INIT, {0}, {PKEY | PORT | ACCESS, PKEY | PORT | ACCESS, PKEY | PORT | QKEY}},
    {IBV_QPS_INIT,
     IBV_QPS_RTR,
     {CONNECT | RC_RESPONDER, CONNECT, 0},
     {ALT | ACCESS | PKEY, ALT | ACCESS | PKEY, PKEY | QKEY}},
    {IBV_QPS_RTR,
     IBV_QPS_RTS,
     {RC_REQUESTER | IBV_QP_SQ_PSN, IBV_QP_SQ_PSN, IBV_QP_SQ_PSN},
     {CUR | ALT | ACCESS | RNR_TIMER | MIG, CUR | ALT | ACCESS | MIG, CUR | QKEY}},
    {IBV_QPS_RTS, IBV_QPS_RTS, {0}, {CUR | ACCESS | ALT | MIG | RNR_TIMER, CUR | ACCESS | ALT | MIG, CUR | QKEY}},
    {IBV_QPS_RTS,
     IBV_QPS_SQD,
     {0},
     {IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_EN_SQD_ASYNC_NOTIFY}},
    {IBV_QPS_SQD, IBV_QPS_RTS, {0}, {CUR | ALT | ACCESS | RNR_TIMER | MIG, CUR | ALT | ACCESS | MIG, CUR | QKEY}},
    {IBV_QPS_SQD,
     IBV_QPS_SQD,
     {0},
     {PORT | IBV_QP_AV | RC_REQUESTER | RC_RESPONDER | ALT | ACCESS | PKEY | MIG, IBV_QP_AV | ALT | ACCESS | PKEY | MIG,
      PKEY | QKEY}},
    {IBV_QPS_SQE, IBV_QPS_RTS, {0}, {0, CUR | ACCESS, CUR | QKEY}},
};

bool qp_transition_ok(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to, uint32_t mask) {
  int t = type == IBV_QPT_RC ? RC : type == IBV_QPT_UC ? UC : UD;
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
