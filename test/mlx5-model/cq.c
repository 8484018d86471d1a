/* Completion queues: writing CQEs, arming, events. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

int cqs_armed;

/*
 * The NIC learns of an arm from the UAR doorbell. The doorbell record alone cannot tell "never armed" from "armed,
 * sequence number 0, consumer index 0", so the model parks a value there that libmlx5 never writes.
 */
#define UNARMED 0xffffffffu
#define ARM_SOLICITED (1u << 24) /* PRM, CQ doorbell: cmd 1 asks for solicited completions only */
#define CI_MASK 0xffffffu
#define OP_OWN_SOLICITED 2 /* PRM, CQE: the se bit */

static struct list delayed = {&delayed, &delayed};

/* Moderation: whether the first completion has waited long enough for its event. Without a period it waits for others.
 */
static bool is_due(struct cq* cq) {
  uint64_t now = now_ns();
  if (!cq->moderate_ns) return false;
  if (!cq->due) {
    cq->due = now + cq->moderate_ns;
    list_append(&delayed, &cq->delayed);
    engine_wake();
  }
  return now >= cq->due;
}

static void not_due(struct cq* cq) {
  cq->due = 0;
  list_remove(&cq->delayed);
}

uint64_t cq_check_due(void) {
  if (list_empty(&delayed)) return 0;
  uint64_t next = 0, now = now_ns();
  for (struct list *l = delayed.next, *after; l != &delayed; l = after) {
    struct cq* cq = container_of(l, struct cq, delayed);
    after = l->next;
    if (now >= cq->due)
      cq_check_arm(cq);
    else if (!next || cq->due < next)
      next = cq->due;
  }
  return next;
}

void cq_check_arm(struct cq* cq) {
  uint32_t raw = atomic_load(&cq->dbrec[DBREC_ARM]);
  if (raw == UNARMED) return not_due(cq);
  if (!cq->armed) cqs_armed++;
  cq->armed = true;
  uint32_t arm = be32toh(raw), produced = cq->produced;
  if (arm & ARM_SOLICITED) {
    if (!cq->any_solicited) return not_due(cq);
    produced = cq->produced_solicited;
  }
  if ((int32_t)((produced - (arm & CI_MASK)) << 8) <= 0) return not_due(cq); /* nothing newer than what was consumed */
  if (((produced - (arm & CI_MASK)) & CI_MASK) < cq->moderate_count && !is_due(cq)) return;
  /* libmlx5 may be arming anew at this moment: then that arm counts, not this one */
  if (!atomic_compare_exchange_strong(&cq->dbrec[DBREC_ARM], &raw, UNARMED)) return;
  cq->armed = false;
  cqs_armed--;
  not_due(cq);
  struct ib_uverbs_comp_event_desc event = {.cq_handle = cq->user_handle};
  if (file_event(cq->channel, &event, sizeof event)) cq->events_sent++;
}

struct mlx5_cqe64* cq_next(struct cq* cq) {
  uint32_t consumed = be32toh(atomic_load_explicit(&cq->dbrec[DBREC_CONSUMER], memory_order_acquire));
  if (((cq->produced - consumed) & CI_MASK) >= cq->entries && !cq->ignore_overrun) {
    if (!cq->overrun) {
      MODEL_WARN("CQ 0x%x overrun: %u entries and none free\n", cq->o.id, cq->entries);
      async_event(cq->o.ctx, cq->user_handle, IBV_EVENT_CQ_ERR, &cq->async_sent);
    }
    cq->overrun = true;
    return NULL;
  }
  uint8_t* entry = cq->ring + (size_t)(cq->produced & (cq->entries - 1)) * cq->entry_size;
  return (struct mlx5_cqe64*)(entry + cq->entry_size - sizeof(struct mlx5_cqe64)); /* the last 64 of 128 bytes */
}

static bool is_error(uint8_t format) { return format >> 4 == MLX5_CQE_REQ_ERR || format >> 4 == MLX5_CQE_RESP_ERR; }

void cq_commit(struct cq* cq, struct mlx5_cqe64* cqe, uint8_t format, bool solicited) {
  uint8_t owner = !!(cq->produced & cq->entries); /* flips at each wrap */
  /* not where one in error has its syndromes */
  if (cq->stamped && !is_error(format)) cqe->timestamp = htobe64(device_clock());
  cq->produced++;
  stats.cqes++;
  if (solicited) {
    cq->any_solicited = true;
    cq->produced_solicited = cq->produced;
  }
  __atomic_store_n(&cqe->op_own, format | owner | (solicited ? OP_OWN_SOLICITED : 0), __ATOMIC_RELEASE);
  if (cq->channel) cq_check_arm(cq);
}

void cq_report_sent(struct qp* qp, uint8_t opcode, uint16_t counter, uint32_t bytes) {
  struct mlx5_cqe64* cqe = cq_next(qp->send_cq);
  if (!cqe) return;
  memset(cqe, 0, offsetof(struct mlx5_cqe64, op_own));
  cqe->srqn_uidx = htobe32(qp->uidx);
  cqe->byte_cnt = htobe32(bytes);
  cqe->sop_drop_qpn = htobe32((uint32_t)opcode << 24 | qp->o.id);
  cqe->wqe_counter = htobe16(counter);
  cq_commit(qp->send_cq, cqe, MLX5_CQE_REQ << 4, false);
}

/* What a ConnectX puts beside the syndrome; people know these numbers from the logs of libmlx5. */
static uint8_t vendor_syndrome(uint8_t syndrome) {
  switch (syndrome) {
    case MLX5_CQE_SYNDROME_LOCAL_PROT_ERR:
      return 0x51;
    case MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR:
      return 0x68;
    case MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR:
      return 0x81;
    case MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR:
      return 0x87;
    case MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR:
      return 0x88;
    case MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR:
    case MLX5_CQE_SYNDROME_REMOTE_OP_ERR:
      return 0x8a;
    case MLX5_CQE_SYNDROME_WR_FLUSH_ERR:
      return 0xf9;
    default:
      return 0;
  }
}

void cq_report_error(struct qp* qp, bool receive, uint8_t syndrome, uint8_t opcode, uint16_t counter) {
  struct cq* cq = receive ? qp->recv_cq : qp->send_cq;
  struct mlx5_err_cqe* cqe = (struct mlx5_err_cqe*)cq_next(cq);
  if (!cqe) return;
  memset(cqe, 0, offsetof(struct mlx5_err_cqe, op_own));
  cqe->srqn = htobe32(qp->uidx);
  cqe->vendor_err_synd = vendor_syndrome(syndrome);
  cqe->syndrome = syndrome;
  cqe->s_wqe_opcode_qpn = htobe32((uint32_t)opcode << 24 | qp->o.id);
  cqe->wqe_counter = htobe16(counter);
  /* a completion in error counts as solicited (IBTA, "Request completion notification") */
  cq_commit(cq, (struct mlx5_cqe64*)cqe, (receive ? MLX5_CQE_RESP_ERR : MLX5_CQE_REQ_ERR) << 4, true);
}

void async_event(struct ctx* c, uint64_t element, uint32_t type, uint32_t* counter) {
  struct ib_uverbs_async_event_desc event = {.element = element, .event_type = type};
  if (c->async_file && file_event(c->async_file, &event, sizeof event)) ++*counter;
}

/* ------------------------------------------------------------------ commands */

int cmd_create_comp_channel(struct command* cmd) {
  struct file* f = file_new_events();
  if (!f) return EMFILE;
  struct ib_uverbs_create_comp_channel_resp resp = {.fd = f->read_fd};
  command_reply(cmd, &resp, sizeof resp, NULL, 0);
  return 0;
}

static int create_cq(struct command* cmd, const struct ib_uverbs_ex_create_cq* req, const struct mlx5_ib_create_cq* buf,
                     struct cq** created) {
  /* libmlx5 asks for a power of two less one, and needs one entry more than it asks for */
  uint32_t entries = req->cqe + 1;
  if (req->cqe > MAX_CQE || req->comp_vector >= COMP_VECTORS || (entries & req->cqe)) return EINVAL;
  if (buf->cqe_size != 64 && buf->cqe_size != 128) return EINVAL;
  uint8_t format = buf->cqe_comp_res_format; /* of compression: exactly one */
  if (buf->cqe_comp_en && (!format || format > MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX || (format & (format - 1))))
    return EINVAL;
  struct file* channel = req->comp_channel >= 0 ? file_of(req->comp_channel) : NULL;
  if (req->comp_channel >= 0 && (!channel || channel->kind != FILE_EVENTS)) return EBADF;
  struct cq* cq = calloc(1, sizeof *cq);
  if (!cq) return ENOMEM;
  int err = memory_pin(&cq->pin, buf->buf_addr, (uint64_t)entries * buf->cqe_size, true);
  if (err || !object_add(cmd->ctx, KIND_CQ, &cq->o)) {
    memory_unpin(&cq->pin);
    free(cq);
    return err ? err : ENOMEM;
  }
  list_init(&cq->delayed);
  cq->user_handle = req->user_handle;
  cq->ignore_overrun = req->flags & IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN;
  cq->entries = entries;
  cq->entry_size = buf->cqe_size;
  cq->ring = (uint8_t*)buf->buf_addr;
  cq->dbrec = (_Atomic uint32_t*)buf->db_addr;
  atomic_store(&cq->dbrec[DBREC_ARM], UNARMED);
  cq->channel = channel;
  if (channel) file_hold(channel);
  hook_cq(cq);
  MODEL_LOG("  CQ 0x%x: %u entries, vector %u\n", cq->o.id, entries, req->comp_vector);
  *created = cq;
  return 0;
}

int cmd_create_cq(struct command* cmd) {
  struct ib_uverbs_create_cq req;
  struct mlx5_ib_create_cq buf;
  struct cq* cq;
  command_request(cmd, &req, sizeof req);
  command_driver_request(cmd, sizeof req, &buf, sizeof buf);
  struct ib_uverbs_ex_create_cq ex = {
      .user_handle = req.user_handle, .cqe = req.cqe, .comp_vector = req.comp_vector, .comp_channel = req.comp_channel};
  int err = create_cq(cmd, &ex, &buf, &cq);
  if (err) return err;
  struct ib_uverbs_create_cq_resp resp = {.cq_handle = cq->o.id, .cqe = req.cqe};
  struct mlx5_ib_create_cq_resp driver = {.cqn = cq->o.id};
  command_reply(cmd, &resp, sizeof resp, &driver, sizeof driver);
  return 0;
}

int cmd_ex_create_cq(struct command* cmd) {
  struct ib_uverbs_ex_create_cq req;
  struct mlx5_ib_create_cq buf;
  struct cq* cq;
  command_request(cmd, &req, sizeof req);
  command_driver_request(cmd, sizeof req, &buf, sizeof buf);
  int err = create_cq(cmd, &req, &buf, &cq);
  if (err) return err;
  struct ib_uverbs_ex_create_cq_resp resp = {.base = {.cq_handle = cq->o.id, .cqe = req.cqe},
                                             .response_length = sizeof resp};
  struct mlx5_ib_create_cq_resp driver = {.cqn = cq->o.id};
  command_reply(cmd, &resp, sizeof resp, &driver, sizeof driver);
  return 0;
}

/* The last CQE in the old ring says "go on in the new one"; libmlx5 copies the entries that were not polled yet. */
int cmd_resize_cq(struct command* cmd) {
  struct ib_uverbs_resize_cq req;
  struct mlx5_ib_resize_cq buf;
  command_request(cmd, &req, sizeof req);
  command_driver_request(cmd, sizeof req, &buf, sizeof buf);
  struct cq* cq = object_find(cmd->ctx, KIND_CQ, req.cq_handle);
  if (!cq || req.cqe > MAX_CQE || (req.cqe & (req.cqe + 1))) return EINVAL;
  uint32_t waiting = (cq->produced - be32toh(atomic_load(&cq->dbrec[DBREC_CONSUMER]))) & CI_MASK;
  if (waiting > req.cqe) return EINVAL;
  struct pin pin = {0};
  int err = memory_pin(&pin, buf.buf_addr, (uint64_t)(req.cqe + 1) * buf.cqe_size, true);
  if (err) return err;
  struct mlx5_cqe64* cqe = cq_next(cq);
  if (!cqe) {
    memory_unpin(&pin);
    return ENOMEM;
  }
  struct file* channel = cq->channel;
  cq->channel = NULL; /* this CQE is no completion: no event */
  memset(cqe, 0, offsetof(struct mlx5_cqe64, op_own));
  cq_commit(cq, cqe, MLX5_CQE_RESIZE_CQ << 4, false);
  cq->channel = channel;
  memory_unpin(&cq->pin);
  cq->pin = pin;
  cq->ring = (uint8_t*)buf.buf_addr;
  cq->entries = req.cqe + 1;
  cq->entry_size = buf.cqe_size;
  struct ib_uverbs_resize_cq_resp resp = {.cqe = req.cqe};
  command_reply(cmd, &resp, sizeof resp, NULL, 0);
  return 0;
}

/* As mlx5_ib: the count is the field's, the period has 12 bits. */
int cmd_ex_modify_cq(struct command* cmd) {
  struct ib_uverbs_ex_modify_cq req;
  command_request(cmd, &req, sizeof req);
  struct cq* cq = object_find(cmd->ctx, KIND_CQ, req.cq_handle);
  if (!cq || !(req.attr_mask & IBV_CQ_ATTR_MODERATE) || req.attr.cq_period > MAX_CQ_PERIOD) return EINVAL;
  cq->moderate_count = req.attr.cq_count;
  cq->moderate_ns = req.attr.cq_period * 1000ull;
  return 0;
}

void cq_destroy(struct cq* cq) {
  if (cq->armed) cqs_armed--;
  list_remove(&cq->delayed);
  if (cq->channel) file_put(cq->channel);
  memory_unpin(&cq->pin);
  object_remove(&cq->o);
  free(cq);
}

/* The counts tell libibverbs how many events the user was given and has to acknowledge. */
int cmd_destroy_cq(struct command* cmd) {
  struct ib_uverbs_destroy_cq req;
  command_request(cmd, &req, sizeof req);
  struct cq* cq = object_find(cmd->ctx, KIND_CQ, req.cq_handle);
  if (!cq) return ENOENT;
  if (cq->o.users) return EBUSY;
  struct ib_uverbs_destroy_cq_resp resp = {.comp_events_reported = cq->events_sent,
                                           .async_events_reported = cq->async_sent};
  if (cq->channel)
    resp.comp_events_reported -= file_forget(cq->channel, sizeof(struct ib_uverbs_comp_event_desc), cq->user_handle);
  resp.async_events_reported -=
      file_forget(cmd->ctx->async_file, sizeof(struct ib_uverbs_async_event_desc), cq->user_handle);
  cq_destroy(cq);
  command_reply(cmd, &resp, sizeof resp, NULL, 0);
  return 0;
}
