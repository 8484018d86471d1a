/*
 * Hooks in the function tables that libmlx5 fills in: they stand for the doorbell that the model cannot see ringing.
 *
 * Contexts, extended CQs and extended QPs carry tables of function pointers in their public structs. The model learns
 * of each struct from the user_handle of the create command, and puts itself in front of the provider's function.
 */
#include <errno.h>
#include <sched.h>

#include "model.h"

/* All contexts are of one provider, so the functions behind their tables are the same. */
static struct {
  int (*post_send)(struct ibv_qp*, struct ibv_send_wr*, struct ibv_send_wr**);
  int (*post_recv)(struct ibv_qp*, struct ibv_recv_wr*, struct ibv_recv_wr**);
  int (*post_srq_recv)(struct ibv_srq*, struct ibv_recv_wr*, struct ibv_recv_wr**);
  int (*poll_cq)(struct ibv_cq*, int, struct ibv_wc*);
  int (*req_notify_cq)(struct ibv_cq*, int);
  int (*bind_mw)(struct ibv_qp*, struct ibv_mw*, struct ibv_mw_bind*);
  int (*query_rt_values)(struct ibv_context*, struct ibv_values_ex*);
} provider;

static int post_send(struct ibv_qp* qp, struct ibv_send_wr* wr, struct ibv_send_wr** bad) {
  int err = provider.post_send(qp, wr, bad);
  engine_posted_send(qp->handle); /* also after an error: the requests before the bad one are posted */
  return err;
}

/* Binding a type 1 window is a post inside libmlx5. */
static int bind_mw(struct ibv_qp* qp, struct ibv_mw* mw, struct ibv_mw_bind* bind) {
  int err = provider.bind_mw(qp, mw, bind);
  engine_posted_send(qp->handle);
  return err;
}

static int post_recv(struct ibv_qp* qp, struct ibv_recv_wr* wr, struct ibv_recv_wr** bad) {
  int err = provider.post_recv(qp, wr, bad);
  engine_posted_recv(qp->handle);
  return err;
}

static int post_srq_recv(struct ibv_srq* srq, struct ibv_recv_wr* wr, struct ibv_recv_wr** bad) {
  int err = provider.post_srq_recv(srq, wr, bad);
  engine_posted_srq_recv();
  return err;
}

/* Who spins on a queue would keep a busy machine's processor from the engine's thread, which a NIC does not need. */
static void found_nothing(void) {
  if (cfg.mode == MODE_THREAD) sched_yield();
}

static int poll_cq(struct ibv_cq* cq, int n, struct ibv_wc* wc) {
  engine_polling();
  int found = provider.poll_cq(cq, n, wc);
  if (found == 0) found_nothing();
  return found;
}

static int req_notify_cq(struct ibv_cq* cq, int solicited_only) {
  int err = provider.req_notify_cq(cq, solicited_only);
  engine_armed(cq->handle);
  return err;
}

/* A NIC's clock runs by itself; this one is set whenever somebody is about to look. */
static int query_rt_values(struct ibv_context* context, struct ibv_values_ex* values) {
  struct file* f = file_of(context->cmd_fd);
  if (f && f->ctx->core_clock) *f->ctx->core_clock = htobe64(device_clock());
  return provider.query_rt_values(context, values);
}

void hook_context(struct ibv_context* context) {
  struct ibv_context_ops* ops = &context->ops;
  if (ops->post_send == post_send) return;
  provider.post_send = ops->post_send;
  provider.post_recv = ops->post_recv;
  provider.post_srq_recv = ops->post_srq_recv;
  provider.req_notify_cq = ops->req_notify_cq;
  provider.bind_mw = ops->bind_mw;
  ops->post_send = post_send;
  ops->bind_mw = bind_mw;
  ops->post_recv = post_recv;
  ops->post_srq_recv = post_srq_recv;
  ops->req_notify_cq = req_notify_cq;
  provider.poll_cq = ops->poll_cq;
  ops->poll_cq = poll_cq;
  struct verbs_context* extended = verbs_get_ctx(context);
  provider.query_rt_values = extended->query_rt_values;
  extended->query_rt_values = query_rt_values;
}

static int start_poll(struct ibv_cq_ex* ex, struct ibv_poll_cq_attr* attr) {
  struct cq* cq = object_at(KIND_CQ, ex->handle);
  engine_polling();
  int err = cq->start_poll(ex, attr);
  if (err == ENOENT) found_nothing();
  return err;
}

void hook_cq(struct cq* cq) {
  struct ibv_cq_ex* ex = (struct ibv_cq_ex*)cq->user_handle;
  hook_context(ex->context);
  if (!ex->start_poll) return; /* not an extended CQ */
  cq->stamped = ex->read_completion_ts || ex->read_completion_wallclock_ns;
  cq->start_poll = ex->start_poll;
  ex->start_poll = start_poll;
}

static int wr_complete(struct ibv_qp_ex* ex) {
  struct qp* qp = object_at(KIND_QP, ex->qp_base.handle);
  int err = qp->wr_complete(ex);
  engine_posted_send(ex->qp_base.handle);
  return err;
}

/* libmlx5 sets wr_complete anew whenever the state changes to or from RTS, so it is hooked at each start. */
static void wr_start(struct ibv_qp_ex* ex) {
  struct qp* qp = object_at(KIND_QP, ex->qp_base.handle);
  qp->wr_start(ex);
  if (ex->wr_complete == wr_complete) return;
  qp->wr_complete = ex->wr_complete;
  ex->wr_complete = wr_complete;
}

void hook_qp(struct qp* qp) {
  struct ibv_qp_ex* ex = (struct ibv_qp_ex*)qp->user_handle;
  if (!ex->wr_start) return; /* not created with the extended posting interface */
  qp->wr_start = ex->wr_start;
  ex->wr_start = wr_start;
}
