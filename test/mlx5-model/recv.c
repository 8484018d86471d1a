/* Receive queues and shared receive queues. */
#include <errno.h>
#include <stdlib.h>

#include "model.h"

#define END_OF_LIST 0x100 /* MLX5_INVALID_LKEY: with length 0 it ends a scatter list that is not full */

static uint16_t srq_available(struct srq* srq) {
  return be32toh(atomic_load_explicit(srq->dbrec, memory_order_acquire)) - srq->consumed;
}

int recv_available(struct qp* qp) {
  if (qp->srq) return srq_available(qp->srq);
  uint32_t posted = be32toh(atomic_load_explicit(&qp->dbrec[MLX5_RCV_DBR], memory_order_acquire));
  return (uint16_t)(posted - qp->rq_consumed);
}

/* Takes the WQE off the queue: returns its scatter list and says where the list must end. */
static const struct mlx5_wqe_data_seg* take_wqe(struct qp* qp, struct receive* r, int* max) {
  struct srq* srq = qp->srq;
  if (!srq) {
    r->counter = qp->rq_consumed++;
    *max = 1 << (qp->rq_shift - 4);
    return (void*)(qp->rq + ((size_t)(r->counter & (qp->rq_count - 1)) << qp->rq_shift));
  }
  /* An SRQ is a linked list, because its WQEs are freed in any order. */
  uint8_t* wqe = srq->buf + ((size_t)srq->head << srq->shift);
  r->counter = srq->head;
  srq->head = be16toh(((struct mlx5_wqe_srq_next_seg*)wqe)->next_wqe_index);
  srq->consumed++;
  if (srq->limit && srq_available(srq) < srq->limit) { /* the limit fires once, then it has to be set anew */
    srq->limit = 0;
    async_event(srq->o.ctx, srq->user_handle, IBV_EVENT_SRQ_LIMIT_REACHED, &srq->async_sent);
  }
  *max = (1 << (srq->shift - 4)) - 1;
  return (void*)(wqe + sizeof(struct mlx5_wqe_srq_next_seg));
}

void recv_take(struct qp* qp, struct receive* r) {
  int max;
  const struct mlx5_wqe_data_seg* seg = take_wqe(qp, r, &max);
  const struct pd* pd = qp->srq ? qp->srq->pd : qp->pd;
  r->pieces = 0;
  r->total = 0;
  r->bad = false;
  for (int i = 0; i < max && i < MAX_SCATTER; i++, seg++) {
    uint32_t length = be32toh(seg->byte_count), key = be32toh(seg->lkey);
    if (!length && key == END_OF_LIST) break;
    if (!length) continue;
    if (!piece_at(&r->piece[r->pieces++], key, pd, qp->o.id, be64toh(seg->addr), length, IBV_ACCESS_LOCAL_WRITE)) {
      r->bad = true;
      return;
    }
    r->total += length;
  }
}

/* ------------------------------------------------------------------ commands */

int srq_create(struct ctx* c, const struct ib_uverbs_create_srq* req, const struct mlx5_ib_create_srq* buf,
               struct srq** created) {
  struct pd* pd = object_find(c, KIND_PD, req->pd_handle);
  if (!pd || req->max_wr > MAX_SRQ_WR || req->max_sge > MAX_SRQ_SGE) return EINVAL;
  struct srq* srq = calloc(1, sizeof *srq);
  if (!srq) return ENOMEM;
  /* The same rounding as in libmlx5, which allocated the buffer: one entry more, both sizes a power of two. */
  uint32_t entries = 1,
           wqe_size = sizeof(struct mlx5_wqe_srq_next_seg) + req->max_sge * sizeof(struct mlx5_wqe_data_seg);
  while (entries < req->max_wr + 1) entries *= 2;
  srq->shift = 5;
  while (1u << srq->shift < wqe_size) srq->shift++;
  int err = memory_pin(&srq->pin, buf->buf_addr, (uint64_t)entries << srq->shift, true);
  if (err || !object_add(c, KIND_SRQ, &srq->o)) {
    memory_unpin(&srq->pin);
    free(srq);
    return err ? err : ENOMEM;
  }
  srq->user_handle = req->user_handle;
  srq->pd = pd;
  pd->o.users++;
  srq->max_wr = entries - 1;
  srq->max_sge = req->max_sge;
  srq->limit = req->srq_limit;
  srq->buf = (uint8_t*)buf->buf_addr;
  srq->dbrec = (_Atomic uint32_t*)buf->db_addr;
  *created = srq;
  return 0;
}

int cmd_create_srq(struct command* cmd) {
  struct ib_uverbs_create_srq req;
  struct mlx5_ib_create_srq buf;
  struct srq* srq;
  command_request(cmd, &req, sizeof req);
  command_driver_request(cmd, sizeof req, &buf, sizeof buf);
  int err = srq_create(cmd->ctx, &req, &buf, &srq);
  if (err) return err;
  struct ib_uverbs_create_srq_resp resp = {
      .srq_handle = srq->o.id, .max_wr = srq->max_wr, .max_sge = srq->max_sge, .srqn = srq->o.id};
  struct mlx5_ib_create_srq_resp driver = {.srqn = srq->o.id};
  command_reply(cmd, &resp, sizeof resp, &driver, sizeof driver);
  return 0;
}

int cmd_modify_srq(struct command* cmd) {
  struct ib_uverbs_modify_srq req;
  command_request(cmd, &req, sizeof req);
  struct srq* srq = object_find(cmd->ctx, KIND_SRQ, req.srq_handle);
  if (!srq || (req.attr_mask & IBV_SRQ_MAX_WR)) return EINVAL; /* mlx5 cannot resize an SRQ */
  if (req.attr_mask & IBV_SRQ_LIMIT) {
    if (req.srq_limit > srq->max_wr) return EINVAL;
    srq->limit = req.srq_limit;
  }
  return 0;
}

int cmd_query_srq(struct command* cmd) {
  struct ib_uverbs_query_srq req;
  command_request(cmd, &req, sizeof req);
  struct srq* srq = object_find(cmd->ctx, KIND_SRQ, req.srq_handle);
  if (!srq) return EINVAL;
  struct ib_uverbs_query_srq_resp resp = {.max_wr = srq->max_wr, .max_sge = srq->max_sge, .srq_limit = srq->limit};
  command_reply(cmd, &resp, sizeof resp, NULL, 0);
  return 0;
}

void srq_destroy(struct srq* srq) {
  srq->pd->o.users--;
  if (srq->xrcd) srq->xrcd->o.users--;
  if (srq->cq) srq->cq->o.users--;
  memory_unpin(&srq->pin);
  object_remove(&srq->o);
  free(srq);
}

int cmd_destroy_srq(struct command* cmd) {
  struct ib_uverbs_destroy_srq req;
  command_request(cmd, &req, sizeof req);
  struct srq* srq = object_find(cmd->ctx, KIND_SRQ, req.srq_handle);
  if (!srq) return ENOENT;
  if (srq->o.users) return EBUSY;
  struct ib_uverbs_destroy_srq_resp resp = {.events_reported = srq->async_sent};
  resp.events_reported -=
      file_forget(cmd->ctx->async_file, sizeof(struct ib_uverbs_async_event_desc), srq->user_handle);
  srq_destroy(srq);
  command_reply(cmd, &resp, sizeof resp, NULL, 0);
  return 0;
}
