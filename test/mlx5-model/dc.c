/*
 * Dynamically connected transport. An initiator (DCI) sends each request to the target (DCT) that the request's address
 * vector names, by number and key; a target receives from any number of initiators, into a shared receive queue.
 *
 * A target exists for the NIC only once it is RTR, and gets its number then. A request that it refuses harms the
 * initiator alone. The initiator's requests may belong to stream channels: then one that fails takes only its channel
 * down, until as many have failed as the initiator was made for.
 */
#include <errno.h>

#include "model.h"

int dc_check_create(const struct ib_uverbs_create_qp* req, const struct mlx5_ib_create_qp* buf) {
  bool initiator = buf->flags & MLX5_QP_FLAG_TYPE_DCI, target = buf->flags & MLX5_QP_FLAG_TYPE_DCT;
  if (initiator == target) return EINVAL;
  if (target) return req->is_srq && !buf->sq_wqe_count && !buf->rq_wqe_count ? 0 : EINVAL;
  if (buf->flags & MLX5_QP_FLAG_DCI_STREAM) {
    if (buf->dci_streams.log_num_concurent > DC_LOG_CONCURRENT) return EINVAL;
    if (buf->dci_streams.log_num_errored > DC_LOG_ERRORED) return EINVAL;
  }
  return 0;
}

void dc_created(struct qp* qp, const struct mlx5_ib_create_qp* buf) {
  qp->dc = buf->flags & MLX5_QP_FLAG_TYPE_DCT ? DC_TARGET : DC_INITIATOR;
  if (qp->dc == DC_TARGET)
    qp->dc_key = buf->access_key;
  else if (buf->flags & MLX5_QP_FLAG_DCI_STREAM)
    qp->streams_failed_max = 1u << buf->dci_streams.log_num_errored;
}

/* As in the kernel's mlx5_ib, which has tables of its own for these two. */
static const struct transition {
  enum dc dc;
  enum ibv_qp_state from, to;
  uint32_t must, may;
} transitions[] = {
    {DC_INITIATOR, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT, 0},
    {DC_INITIATOR, IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT},
    {DC_INITIATOR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX | IBV_QP_AV},
    {DC_INITIATOR, IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_SQ_PSN,
     IBV_QP_MIN_RNR_TIMER},
    {DC_INITIATOR, IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_MIN_RNR_TIMER},
    {DC_TARGET, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {DC_TARGET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_MIN_RNR_TIMER | IBV_QP_AV | IBV_QP_PATH_MTU, 0},
};

bool dc_transition_ok(const struct qp* qp, enum ibv_qp_state from, enum ibv_qp_state to, uint32_t mask) {
  mask &= ~(uint32_t)IBV_QP_STATE;
  if (qp->dc == DC_INITIATOR && (to == IBV_QPS_RESET || (to == IBV_QPS_ERR && from != IBV_QPS_RESET))) return !mask;
  for (size_t i = 0; i < sizeof transitions / sizeof *transitions; i++) {
    const struct transition* x = &transitions[i];
    if (x->dc != qp->dc || x->from != from || x->to != to) continue;
    return (mask & x->must) == x->must && !(mask & ~(x->must | x->may));
  }
  return false;
}

struct qp* dc_target(uint32_t dctn) {
  struct qp* qp = object_at(KIND_QP, dctn);
  return qp && qp->dc == DC_TARGET && qp->state == IBV_QPS_RTR ? qp : NULL;
}

static uint32_t place_of(const struct qp* qp, uint16_t stream) {
  uint32_t i = 0;
  while (i < qp->streams_failed && qp->failed_stream[i] != stream) i++;
  return i;
}

bool dc_stream_has_failed(const struct qp* qp, uint16_t stream) { return place_of(qp, stream) < qp->streams_failed; }

bool dc_stream_fails(struct qp* qp, uint16_t stream) {
  if (dc_stream_has_failed(qp, stream)) return true; /* what is flushed is no further failure */
  if (qp->streams_failed + 1 >= qp->streams_failed_max) return false;
  qp->failed_stream[qp->streams_failed++] = stream;
  return true;
}

bool dc_stream_reset(struct qp* qp, uint16_t stream) {
  uint32_t i = place_of(qp, stream);
  if (i == qp->streams_failed) return false;
  qp->failed_stream[i] = qp->failed_stream[--qp->streams_failed];
  return true;
}
