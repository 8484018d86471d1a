/* Queue pairs: creation, the modify and query commands, destruction. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

#define MAX_RQ_SHIFT 10 /* so that a scatter list fits struct receive */
#define NO_SLOT UINT32_MAX

/* What mlx5_ib can tell of a target. */
#define DC_TARGET_ATTRIBUTES                                                                                           \
  (uint32_t)(IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_MIN_RNR_TIMER | IBV_QP_AV | \
             IBV_QP_PATH_MTU)

/*
 * Doorbell registers. libmlx5 maps pages that hold four each, two of them usable, so the n-th usable one has index
 * n / 2 * 4 + n % 2. The last few are "low latency": each serves one QP, without a lock in libmlx5; when they are
 * all taken a QP shares one of the others (never number 0, which is for CQs).
 */
static void bfreg_assign(struct ctx* c, struct qp* qp) {
  uint32_t n = NO_SLOT;
  qp->low_latency_slot = NO_SLOT;
  if (qp->dc == DC_TARGET) return; /* nothing is posted to it */
  for (uint32_t i = 0; i < c->low_latency_bfregs && n == NO_SLOT; i++) {
    if (c->low_latency_used >> i & 1) continue;
    c->low_latency_used |= 1u << i;
    qp->low_latency_slot = i;
    n = c->bfregs - c->low_latency_bfregs + i;
  }
  if (n == NO_SLOT) n = 1 + c->next_shared_bfreg++ % (c->bfregs - c->low_latency_bfregs - 1);
  qp->bfreg = n / 2 * 4 + n % 2;
}

static void bfreg_release(struct qp* qp) {
  if (qp->low_latency_slot != NO_SLOT) qp->o.ctx->low_latency_used &= ~(1u << qp->low_latency_slot);
}

static bool type_is_known(unsigned type) {
  return type == IBV_QPT_RC || type == IBV_QPT_UC || type == IBV_QPT_UD || type == IBV_QPT_DRIVER ||
         type == IBV_QPT_XRC_SEND || type == IBV_QPT_XRC_RECV;
}

static bool power_of_two_or_zero(uint32_t n) { return !(n & (n - 1)); }

static int create_qp(struct command* cmd, const struct ib_uverbs_create_qp* req, const struct mlx5_ib_create_qp* buf,
                     struct qp** created) {
  struct ctx* c = cmd->ctx;
  bool dc = req->qp_type == IBV_QPT_DRIVER;
  bool xrc_recv = req->qp_type == IBV_QPT_XRC_RECV, xrc_send = req->qp_type == IBV_QPT_XRC_SEND;
  if (!type_is_known(req->qp_type)) return EOPNOTSUPP;
  if (dc && dc_check_create(req, buf)) return EINVAL;
  /* A receiving QP of XRC has a domain of its own kind, and no queues; a sending one receives nothing. */
  struct xrcd* xrcd = xrc_recv ? object_find(c, KIND_XRCD, req->pd_handle) : NULL;
  struct pd* pd = xrc_recv ? NULL : object_find(c, KIND_PD, req->pd_handle);
  struct cq* send_cq = xrc_recv ? NULL : object_find(c, KIND_CQ, req->send_cq_handle);
  struct cq* recv_cq = xrc_recv || xrc_send ? NULL : object_find(c, KIND_CQ, req->recv_cq_handle);
  struct srq* srq = req->is_srq ? object_find(c, KIND_SRQ, req->srq_handle) : NULL;
  if (xrc_recv ? !xrcd : !pd || !send_cq || (!recv_cq && !xrc_send)) return EINVAL;
  if (req->is_srq && !srq) return EINVAL;
  if (!power_of_two_or_zero(buf->sq_wqe_count) || !power_of_two_or_zero(buf->rq_wqe_count)) return EINVAL;
  if (buf->sq_wqe_count > MAX_QP_WR || buf->rq_wqe_count > MAX_QP_WR) return EINVAL;
  if (buf->rq_wqe_count && (buf->rq_wqe_shift < 4 || buf->rq_wqe_shift > MAX_RQ_SHIFT)) return EINVAL;

  struct qp* qp = calloc(1, sizeof *qp);
  if (!qp) return ENOMEM;
  size_t rq_size = (size_t)buf->rq_wqe_count << buf->rq_wqe_shift, sq_size = (size_t)buf->sq_wqe_count * 64;
  int err = rq_size + sq_size ? memory_pin(&qp->pin, buf->buf_addr, rq_size + sq_size, true) : 0;
  if (err || !object_add(c, KIND_QP, &qp->o)) {
    memory_unpin(&qp->pin);
    free(qp);
    return err ? err : ENOMEM;
  }
  qp->user_handle = req->user_handle;
  qp->type = req->qp_type;
  qp->pd = pd;
  qp->send_cq = send_cq;
  qp->recv_cq = recv_cq;
  qp->srq = srq;
  qp->xrcd = xrcd;
  if (xrcd) xrcd->o.users++;
  if (pd) pd->o.users++;
  if (send_cq) send_cq->o.users++;
  if (recv_cq) recv_cq->o.users++;
  if (srq) srq->o.users++;
  qp->uidx = buf->uidx;
  if (buf->ece_options) qp->ece = ECE_OPTIONS;
  qp->sq_count = buf->sq_wqe_count;
  qp->rq_count = buf->rq_wqe_count;
  qp->rq_shift = buf->rq_wqe_shift;
  qp->rq = (uint8_t*)buf->buf_addr;
  qp->sq = qp->rq + rq_size;
  qp->dbrec = (_Atomic uint32_t*)buf->db_addr;
  qp->scatter_to_cqe = cfg.scatter_to_cqe && (buf->flags & MLX5_QP_FLAG_SCATTER_CQE);
  qp->attr = (struct ib_uverbs_query_qp_resp){.max_send_wr = req->max_send_wr,
                                              .max_recv_wr = qp->rq_count,
                                              .max_send_sge = req->max_send_sge,
                                              .max_recv_sge = req->max_recv_sge,
                                              .max_inline_data = req->max_inline_data,
                                              .sq_sig_all = req->sq_sig_all};
  if (dc) dc_created(qp, buf);
  qp->lag_port = 1;
  qp->low_latency_slot = NO_SLOT;
  if (!(buf->flags & MLX5_QP_FLAG_UAR_PAGE_INDEX)) bfreg_assign(c, qp); /* else a page of the program's: uar.c */
  engine_add_qp(qp);
  hook_qp(qp);
  MODEL_LOG("  QP 0x%x: sq %u blocks, rq %u x %u, uidx 0x%x, flags 0x%x, bfreg %u\n", qp->o.id, qp->sq_count,
            qp->rq_count, 1u << qp->rq_shift, qp->uidx, buf->flags, qp->bfreg);
  *created = qp;
  return 0;
}

static void created_response(const struct qp* qp, struct ib_uverbs_create_qp_resp* resp) {
  *resp = (struct ib_uverbs_create_qp_resp){.qp_handle = qp->o.id,
                                            .qpn = qp->dc == DC_TARGET ? 0 : qp->o.id, /* known when it is RTR */
                                            .max_send_wr = qp->attr.max_send_wr,
                                            .max_recv_wr = qp->attr.max_recv_wr,
                                            .max_send_sge = qp->attr.max_send_sge,
                                            .max_recv_sge = qp->attr.max_recv_sge,
                                            .max_inline_data = qp->attr.max_inline_data};
}

int cmd_create_qp(struct command* cmd) {
  struct ib_uverbs_create_qp req;
  struct mlx5_ib_create_qp buf;
  struct qp* qp;
  command_request(cmd, &req, sizeof req);
  command_driver_request(cmd, sizeof req, &buf, sizeof buf);
  int err = create_qp(cmd, &req, &buf, &qp);
  if (err) return err;
  struct ib_uverbs_create_qp_resp resp;
  struct mlx5_ib_create_qp_resp driver = {.bfreg_index = qp->bfreg, .ece_options = qp->ece};
  created_response(qp, &resp);
  command_reply(cmd, &resp, sizeof resp, &driver, sizeof driver);
  return 0;
}

/* With receive side scaling: it is told nothing of queues, and has no number, no states, and no doorbell. */
static int create_rss_qp(struct command* cmd, const struct ib_uverbs_ex_create_qp* req) {
  struct pd* pd = object_find(cmd->ctx, KIND_PD, req->pd_handle);
  struct object* table;
  int err = rss_check(cmd, req, &table);
  if (err) return err;
  if (!pd) return EINVAL;
  struct qp* qp = calloc(1, sizeof *qp);
  if (!qp || !object_add(cmd->ctx, KIND_QP, &qp->o)) {
    free(qp);
    return ENOMEM;
  }
  qp->user_handle = req->user_handle;
  qp->type = req->qp_type;
  qp->pd = pd;
  qp->table = table;
  qp->low_latency_slot = NO_SLOT;
  pd->o.users++;
  table->users++;
  engine_add_qp(qp);
  struct ib_uverbs_ex_create_qp_resp resp = {.response_length = sizeof resp, .base.qp_handle = qp->o.id};
  struct mlx5_ib_create_qp_resp driver = {0};
  command_reply(cmd, &resp, sizeof resp, &driver, sizeof driver);
  return 0;
}

int cmd_ex_create_qp(struct command* cmd) {
  struct ib_uverbs_ex_create_qp req;
  struct ib_uverbs_create_qp core = {0};
  struct mlx5_ib_create_qp buf;
  struct qp* qp;
  command_request(cmd, &req, sizeof req);
  if (req.comp_mask & IB_UVERBS_CREATE_QP_MASK_IND_TABLE) return create_rss_qp(cmd, &req);
  command_driver_request(cmd, sizeof req, &buf, sizeof buf);
  MODEL_LOG("  a QP of type %u, create_flags 0x%x, source_qpn 0x%x\n", req.qp_type, req.create_flags, req.source_qpn);
  if (req.create_flags & ~(uint32_t)IBV_QP_CREATE_BLOCK_SELF_MCAST_LB) return EOPNOTSUPP; /* for raw packets, IPoIB */
  /* The extended request starts with the fields of the plain one behind its `response`, in the same order. */
  memcpy(&core.user_handle, &req, offsetof(struct ib_uverbs_ex_create_qp, comp_mask));
  int err = create_qp(cmd, &core, &buf, &qp);
  if (err) return err;
  struct ib_uverbs_ex_create_qp_resp resp = {.response_length = sizeof resp};
  struct mlx5_ib_create_qp_resp driver = {.bfreg_index = qp->bfreg, .ece_options = qp->ece};
  created_response(qp, &resp.base);
  command_reply(cmd, &resp, sizeof resp, &driver, sizeof driver);
  return 0;
}

void qp_destroy(struct qp* qp) {
  if (qp->xrcd) qp->xrcd->o.users--;
  if (qp->table) qp->table->users--;
  engine_remove_qp(qp);
  bfreg_release(qp);
  if (qp->pd) qp->pd->o.users--;
  if (qp->send_cq) qp->send_cq->o.users--;
  if (qp->recv_cq) qp->recv_cq->o.users--;
  if (qp->srq) qp->srq->o.users--;
  memory_unpin(&qp->pin);
  object_remove(&qp->o);
  free(qp);
}

int cmd_destroy_qp(struct command* cmd) {
  struct ib_uverbs_destroy_qp req;
  command_request(cmd, &req, sizeof req);
  struct qp* qp = object_find(cmd->ctx, KIND_QP, req.qp_handle);
  if (!qp) return ENOENT;
  struct ib_uverbs_destroy_qp_resp resp = {.events_reported = qp->async_sent};
  resp.events_reported -= file_forget(cmd->ctx->async_file, sizeof(struct ib_uverbs_async_event_desc), qp->user_handle);
  qp_destroy(qp);
  command_reply(cmd, &resp, sizeof resp, NULL, 0);
  return 0;
}

int cmd_query_qp(struct command* cmd) {
  struct ib_uverbs_query_qp req;
  command_request(cmd, &req, sizeof req);
  struct qp* qp = object_find(cmd->ctx, KIND_QP, req.qp_handle);
  if (!qp) return EINVAL;
  if (qp->dc == DC_TARGET && (qp->state != IBV_QPS_RTR || (req.attr_mask & ~DC_TARGET_ATTRIBUTES))) return EINVAL;
  command_reply(cmd, &qp->attr, sizeof qp->attr, NULL, 0);
  return 0;
}

static void set_state(struct qp* qp, enum ibv_qp_state state) {
  qp->state = state;
  qp->attr.qp_state = qp->attr.cur_qp_state = state;
  qp->wait = WAIT_NONE;
}

void qp_send_failed(struct qp* qp) {
  if (qp->type != IBV_QPT_UC && qp->type != IBV_QPT_UD) return qp_to_error(qp);
  set_state(qp, IBV_QPS_SQE); /* an unreliable transport goes on receiving */
  engine_set_pending(qp);
}
void qp_die(struct qp* qp) { set_state(qp, IBV_QPS_RESET); }

void qp_to_error(struct qp* qp) {
  if (qp->state == IBV_QPS_ERR) return;
  set_state(qp, IBV_QPS_ERR);
  engine_set_pending(qp); /* what is outstanding has to be flushed */
  /* With an SRQ the consumer cannot count its receives off: this event tells that none will come any more. */
  if (qp->srq && qp->type != IBV_QPT_XRC_RECV)
    async_event(qp->o.ctx, qp->user_handle, IBV_EVENT_QP_LAST_WQE_REACHED, &qp->async_sent);
}

/* The values that the kernel refuses, beside the transition itself: ib_uverbs, ib_core and mlx5_ib together. */
static int check_values(const struct ib_uverbs_modify_qp* m) {
  uint32_t mask = m->attr_mask;
  if ((mask & IBV_QP_PORT) && m->port_num != 1) return EINVAL;
  if ((mask & IBV_QP_PKEY_INDEX) && m->pkey_index >= (cfg.ib ? 128 : 1)) return EINVAL;
  if ((mask & IBV_QP_PATH_MTU) && (m->path_mtu < IBV_MTU_256 || m->path_mtu > IBV_MTU_4096)) return EINVAL;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) && m->max_rd_atomic > MAX_RD_ATOMIC) return EINVAL;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) && m->max_dest_rd_atomic > MAX_RD_ATOMIC) return EINVAL;
  if ((mask & IBV_QP_ALT_PATH) && !cfg.ib) return EINVAL;
  return mask & IBV_QP_AV ? check_address(m->dest.port_num, m->dest.is_global, m->dest.sgid_index) : 0;
}

static void take_values(struct qp* qp, const struct ib_uverbs_modify_qp* m) {
  struct ib_uverbs_query_qp_resp* a = &qp->attr;
  uint32_t mask = m->attr_mask;
  if (mask & IBV_QP_ACCESS_FLAGS) a->qp_access_flags = m->qp_access_flags;
  if (mask & IBV_QP_PKEY_INDEX) a->pkey_index = m->pkey_index;
  if (mask & IBV_QP_PORT) a->port_num = m->port_num;
  if (mask & IBV_QP_QKEY) a->qkey = m->qkey;
  if (mask & IBV_QP_AV) a->dest = m->dest;
  if (mask & IBV_QP_ALT_PATH) {
    a->alt_dest = m->alt_dest;
    a->alt_pkey_index = m->alt_pkey_index;
    a->alt_port_num = m->alt_port_num;
    a->alt_timeout = m->alt_timeout;
  }
  if (mask & IBV_QP_PATH_MTU) a->path_mtu = m->path_mtu;
  if (mask & IBV_QP_TIMEOUT) a->timeout = m->timeout & 0x1f;    /* the QP context has 5 bits for it, */
  if (mask & IBV_QP_RETRY_CNT) a->retry_cnt = m->retry_cnt & 7; /* and 3 bits for these two */
  if (mask & IBV_QP_RNR_RETRY) a->rnr_retry = m->rnr_retry & 7;
  if (mask & IBV_QP_MIN_RNR_TIMER) a->min_rnr_timer = m->min_rnr_timer & 0x1f;
  if (mask & IBV_QP_RQ_PSN) a->rq_psn = m->rq_psn & 0xffffff;
  if (mask & IBV_QP_SQ_PSN) a->sq_psn = m->sq_psn & 0xffffff;
  if (mask & IBV_QP_MAX_QP_RD_ATOMIC) a->max_rd_atomic = m->max_rd_atomic;
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) a->max_dest_rd_atomic = m->max_dest_rd_atomic;
  if (mask & IBV_QP_DEST_QPN) a->dest_qp_num = m->dest_qp_num & 0xffffff;
}

static int modify(struct qp* qp, const struct ib_uverbs_modify_qp* m) {
  enum ibv_qp_state from = qp->state, to = m->attr_mask & IBV_QP_STATE ? (enum ibv_qp_state)m->qp_state : from;
  if ((m->attr_mask & IBV_QP_CUR_STATE) && m->cur_qp_state != from) return EINVAL;
  bool ok = qp->dc ? dc_transition_ok(qp, from, to, m->attr_mask) : qp_transition_ok(qp->type, from, to, m->attr_mask);
  if (!ok) return EINVAL;
  int err = check_values(m);
  if (err) return err;
  take_values(qp, m);
  if (to == IBV_QPS_ERR) {
    qp_to_error(qp);
    return 0;
  }
  set_state(qp, to);
  if (to == IBV_QPS_RESET) {
    qp->sq_consumed = qp->rq_consumed = 0;
    qp->attr.dest_qp_num = 0;
    qp->streams_failed = 0;
  }
  if (to == IBV_QPS_SQD && from == IBV_QPS_RTS && m->en_sqd_async_notify)
    async_event(qp->o.ctx, qp->user_handle, IBV_EVENT_SQ_DRAINED, &qp->async_sent);
  if (to == IBV_QPS_RTS) engine_set_pending(qp);
  return 0;
}

static int modify_and_log(struct command* cmd, const struct ib_uverbs_modify_qp* m) {
  struct qp* qp = object_find(cmd->ctx, KIND_QP, m->qp_handle);
  if (!qp) return EINVAL;
  enum ibv_qp_state from = qp->state;
  int err = modify(qp, m);
  MODEL_LOG("  QP 0x%x: state %d -> %d, mask 0x%x: %s\n", qp->o.id, from, qp->state, m->attr_mask,
            err ? strerror(err) : "ok");
  return err;
}

int cmd_modify_qp(struct command* cmd) {
  struct ib_uverbs_modify_qp req;
  command_request(cmd, &req, sizeof req);
  return modify_and_log(cmd, &req);
}

int cmd_ex_modify_qp(struct command* cmd) {
  struct ib_uverbs_ex_modify_qp req;
  command_request(cmd, &req, sizeof req);
  struct mlx5_ib_modify_qp more;
  command_driver_request(cmd, sizeof req, &more, sizeof more);
  if (req.base.attr_mask & IBV_QP_RATE_LIMIT)
    MODEL_LOG("  rate limit %u kbps, bursts of %u, packets of %u\n", req.rate_limit, more.burst_info.max_burst_sz,
              more.burst_info.typical_pkt_sz);
  int err = modify_and_log(cmd, &req.base);
  if (err) return err;
  struct ib_uverbs_ex_modify_qp_resp resp = {.response_length = sizeof resp};
  struct mlx5_ib_modify_qp_resp driver = {.response_length = sizeof driver};
  const struct qp* qp = object_find(cmd->ctx, KIND_QP, req.base.qp_handle);
  if (qp->dc == DC_TARGET && qp->state == IBV_QPS_RTR) driver.dctn = qp->o.id;
  if (more.ece_options) driver.ece_options = more.ece_options & ECE_OPTIONS; /* what both ends can */
  command_reply(cmd, &resp, sizeof resp, &driver, sizeof driver);
  return 0;
}
