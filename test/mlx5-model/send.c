/*
 * The send queue: what a WQE says, done.
 *
 * A WQE is `ds` units of 16 bytes: a control segment, then what its opcode asks for (address vector, remote address,
 * atomic operands, data pointers or inline data). It occupies whole blocks of 64 bytes and may wrap around the end of
 * the queue's buffer. Layouts: <infiniband/mlx5dv.h>; how libmlx5 writes them: providers/mlx5/qp.c of rdma-core.
 */
#include <string.h>

#include "model.h"

#define BLOCK 64u /* MLX5_SEND_WQE_BB */
#define UNIT 16u
#define DS_MASK 0x3f
#define INLINE_LENGTH_MASK 0x3ff
#define CE_MASK 0x0c               /* fm_ce_se: when a CQE is wanted */
#define CQE_GRH_PRESENT (1u << 28) /* flags_rqpn: a GRH precedes the data */
#define CQE_SL_SHIFT 24            /* and the service level */

/* Outcomes of a step: 0 is success, a positive number the CQE syndrome. */
enum { MUST_WAIT = -1 };

#define MAX_GATHER 72 /* 63 units, and each inline segment may be in two pieces */
struct gather {
  struct piece piece[MAX_GATHER];
  int pieces;
  uint64_t total;
};

struct wqe {
  struct qp* qp;
  struct mlx5_wqe_ctrl_seg* ctrl;
  uint16_t counter;
  uint8_t opcode;
  int units, next; /* how long it is, and which unit is to be read next */
  struct gather data;
};

static inline void* unit(const struct wqe* w, int i) {
  uint32_t size = w->qp->sq_count * BLOCK;
  uint32_t offset = (w->counter & (w->qp->sq_count - 1)) * BLOCK + (uint32_t)i * UNIT;
  return w->qp->sq + (offset >= size ? offset - size : offset);
}

static void gather_inline(struct wqe* w, uint8_t* p, uint32_t length) {
  struct gather* g = &w->data;
  uint32_t until_end = (uint32_t)(w->qp->sq + w->qp->sq_count * BLOCK - p), first = min_of(until_end, length);
  g->piece[g->pieces++] = (struct piece){p, first};
  if (first < length) g->piece[g->pieces++] = (struct piece){w->qp->sq, length - first};
  g->total += length;
}

/* Reads the data segments that follow. `need` is the right that each must have. */
static inline int gather(struct wqe* w, uint32_t need) {
  struct gather* g = &w->data;
  g->pieces = 0;
  g->total = 0;
  while (w->next < w->units) {
    struct mlx5_wqe_data_seg* seg = unit(w, w->next);
    uint32_t count = be32toh(seg->byte_count);
    if (count & MLX5_INLINE_SEG) {
      uint32_t length = count & INLINE_LENGTH_MASK;
      if (length) gather_inline(w, (uint8_t*)seg + sizeof(struct mlx5_wqe_inl_data_seg), length);
      w->next += (int)((length + sizeof(struct mlx5_wqe_inl_data_seg) + UNIT - 1) / UNIT);
      continue;
    }
    w->next++;
    if (!count) continue;
    if (!piece_at(&g->piece[g->pieces++], be32toh(seg->lkey), w->qp->pd, w->qp->o.id, be64toh(seg->addr), count, need))
      return MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
    g->total += count;
  }
  return g->total > MAX_MSG_SIZE ? MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR : 0;
}

/* `offset` bytes into a piece. */
static inline uint8_t* into(const struct piece* piece, uint32_t offset) { return piece->p ? piece->p + offset : NULL; }

/* A null pointer is the null MR's: reads as zeros, and takes what is written. */
static inline void copy(uint8_t* to, const uint8_t* from, size_t n) {
  stats.bytes += n;
  if (!to) return;
  if (!from) {
    memset(to, 0, n);
    return;
  }
  if (n == 8 && !((uintptr_t)to & 7)) { /* seen whole by who spins on it, as a NIC's write is */
    uint64_t v;
    memcpy(&v, from, 8);
    __atomic_store_n((uint64_t*)to, v, __ATOMIC_RELAXED);
    return;
  }
  memmove(to, from, n);
}

static void scatter(struct receive* r, const struct gather* g) {
  int to = 0;
  uint32_t used = 0;
  for (int i = 0; i < g->pieces; i++) {
    uint32_t done = 0;
    while (done < g->piece[i].length) {
      uint32_t n = min_of(g->piece[i].length - done, r->piece[to].length - used);
      copy(into(&r->piece[to], used), into(&g->piece[i], done), n);
      done += n;
      used += n;
      if (used == r->piece[to].length) to++, used = 0;
    }
  }
}

/* ------------------------------------------------------------------ waiting for the other side */

/* IBTA's table of RNR NAK timers: 1 is 10 us, then pairs of 10 and 15 us times powers of two, 0 means code 32. */
static uint64_t rnr_timer_ns(unsigned code) {
  if (code == 1) return 10000;
  if (code == 0) code = 32;
  return code % 2 ? 15000ull << (code - 1) / 2 : 10000ull << code / 2;
}

static int wait_for(struct qp* qp, enum wait_reason reason, bool for_ever, uint64_t ns, int syndrome) {
  if (qp->wait != reason) {
    qp->wait = reason;
    qp->wait_until = for_ever ? 0 : now_ns() + ns;
  }
  return qp->wait_until && now_ns() >= qp->wait_until ? syndrome : MUST_WAIT;
}

static int wait_for_receiver(struct qp* qp, const struct qp* peer) {
  uint8_t retries = qp->attr.rnr_retry; /* 7: without end */
  return wait_for(qp, WAIT_RECEIVER, retries == 7, retries * rnr_timer_ns(peer->attr.min_rnr_timer),
                  MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR);
}

/* Nobody acknowledges: each try takes 4.096 us * 2^timeout, and timeout 0 waits without end. */
static int wait_for_peer(struct qp* qp) {
  uint64_t once = 4096ull << qp->attr.timeout;
  return wait_for(qp, WAIT_PEER, qp->attr.timeout == 0, once * (qp->attr.retry_cnt + 1u),
                  MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR);
}

static bool can_receive(const struct qp* qp) { return qp->state >= IBV_QPS_RTR && qp->state <= IBV_QPS_SQE; }

static struct qp* connected_peer(const struct qp* qp) {
  struct qp* peer = object_at(KIND_QP, qp->attr.dest_qp_num);
  enum ibv_qp_type wanted = qp->type == IBV_QPT_XRC_SEND ? IBV_QPT_XRC_RECV : qp->type;
  bool connected = peer && peer->type == wanted && peer->attr.dest_qp_num == qp->o.id && can_receive(peer);
  return connected ? peer : NULL;
}

/* ------------------------------------------------------------------ the responder's side */

static inline bool is_reliable(const struct qp* qp) {
  return qp->type == IBV_QPT_RC || qp->dc == DC_INITIATOR || qp->type == IBV_QPT_XRC_SEND;
}

/* A request that the responder refuses takes its QP down as well. Only a reliable transport tells the requester. */
static int refuse(const struct wqe* w, struct qp* peer, int syndrome) {
  if (!is_reliable(w->qp)) return 0;
  if (peer->dc == DC_TARGET) return syndrome; /* serves others too, and goes on */
  bool access = syndrome == MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
  async_event(peer->o.ctx, peer->user_handle, access ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR,
              &peer->async_sent);
  qp_to_error(peer);
  return syndrome;
}

/* The receive request that the message met is no good for it. */
static int spoil(const struct wqe* w, struct qp* peer, const struct receive* r) {
  cq_report_error(peer, true, r->bad ? MLX5_CQE_SYNDROME_LOCAL_PROT_ERR : MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, 0,
                  r->counter);
  if (peer->dc != DC_TARGET) qp_to_error(peer);
  if (!is_reliable(w->qp)) return 0;
  return r->bad ? MLX5_CQE_SYNDROME_REMOTE_OP_ERR : MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR;
}

/* A datagram's data come behind a header. */
static void put_grh(const struct wqe* w, struct receive* r) {
  uint8_t grh[GRH_BYTES];
  uint32_t undefined = grh_make(w->qp->o.ctx->dev, unit(w, 1), w->data.total, grh);
  for (uint32_t at = 0, i = 0; at < GRH_BYTES; i++) {
    struct piece* piece = &r->piece[i];
    uint32_t n = min_of(GRH_BYTES - at, piece->length), skip = at < undefined ? min_of(undefined - at, n) : 0;
    copy(into(piece, skip), grh + at + skip, n - skip);
    piece->p = into(piece, n);
    piece->length -= n;
    at += n;
  }
}

static uint8_t responder_opcode(uint8_t opcode) {
  switch (opcode) {
    case MLX5_OPCODE_RDMA_WRITE_IMM:
      return MLX5_CQE_RESP_WR_IMM;
    case MLX5_OPCODE_SEND_IMM:
      return MLX5_CQE_RESP_SEND_IMM;
    case MLX5_OPCODE_SEND_INVAL:
      return MLX5_CQE_RESP_SEND_INV;
    default:
      return MLX5_CQE_RESP_SEND;
  }
}

/* Of a datagram on InfiniBand. On Ethernet the priority of the VLAN stands for it, and there is none. */
static uint32_t service_level(const struct wqe* w) {
  const struct mlx5_wqe_av* av = unit(w, 1);
  return cfg.ib && w->qp->type == IBV_QPT_UD ? av->stat_rate_sl & 0xf : 0;
}

/* Gives the message to the receive request and completes that. */
static int deliver(struct wqe* w, struct qp* peer, struct receive* r, uint32_t grh) {
  const struct gather* g = &w->data;
  bool is_write = w->opcode == MLX5_OPCODE_RDMA_WRITE_IMM;
  struct mlx5_cqe64* cqe = cq_next(peer->recv_cq);
  uint8_t format = responder_opcode(w->opcode) << 4;
  bool in_cqe = !is_write && peer->scatter_to_cqe && w->qp->type == IBV_QPT_RC && g->total && g->total <= 32 && cqe;
  if (in_cqe) { /* small data travel in the CQE itself, libmlx5 copies them to the buffer */
    uint8_t* p = (uint8_t*)cqe;
    for (int i = 0; i < g->pieces; p += g->piece[i++].length) copy(p, g->piece[i].p, g->piece[i].length);
    format |= MLX5_INLINE_SCATTER_32;
  } else if (!is_write) {
    scatter(r, g);
  }
  if (w->opcode == MLX5_OPCODE_SEND_INVAL) {
    uint32_t key = be32toh(w->ctrl->imm);
    struct mkey* window = object_at(KIND_MKEY, key >> 8);
    if (window && window->mw_type == IBV_MW_TYPE_2 && window->key == key) window_unbind(window);
  }
  if (!cqe) return 0;
  if (!in_cqe) memset(cqe, 0, 32);
  memset((uint8_t*)cqe + 32, 0, offsetof(struct mlx5_cqe64, op_own) - 32);
  if (!in_cqe) cqe->flags_rqpn = htobe32(w->qp->o.id | (grh ? CQE_GRH_PRESENT : 0) | service_level(w) << CQE_SL_SHIFT);
  cqe->srqn_uidx = htobe32(peer->uidx);
  cqe->imm_inval_pkey = w->ctrl->imm;
  cqe->byte_cnt = htobe32((uint32_t)g->total + grh);
  cqe->sop_drop_qpn = htobe32(peer->o.id);
  cqe->wqe_counter = htobe16(r->counter);
  cq_commit(peer->recv_cq, cqe, format, w->ctrl->fm_ce_se & MLX5_WQE_CTRL_SOLICITED);
  return 0;
}

static inline uint8_t* remote_memory(struct qp* peer, const struct mlx5_wqe_raddr_seg* remote, uint64_t length,
                                     uint32_t right) {
  if (!(peer->attr.qp_access_flags & right)) return NULL;
  return memory_at(be32toh(remote->rkey), peer->pd, peer->o.id, be64toh(remote->raddr), length, right);
}

/* ------------------------------------------------------------------ the operations */

static inline int do_write(struct wqe* w, struct qp* peer) {
  struct mlx5_wqe_raddr_seg* remote = unit(w, w->next++);
  bool imm = w->opcode == MLX5_OPCODE_RDMA_WRITE_IMM;
  int err = gather(w, 0);
  if (err || !peer) return err;
  if (imm && !recv_available(peer)) return is_reliable(w->qp) ? wait_for_receiver(w->qp, peer) : 0;
  if (w->data.total) { /* the keys of an empty message are not looked at */
    uint8_t* to = remote_memory(peer, remote, w->data.total, IBV_ACCESS_REMOTE_WRITE);
    if (!to) return refuse(w, peer, MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR);
    for (int i = 0; i < w->data.pieces; to += w->data.piece[i++].length)
      copy(to, w->data.piece[i].p, w->data.piece[i].length);
  }
  if (!imm) return 0;
  struct receive r;
  recv_take(peer, &r);
  return deliver(w, peer, &r, 0);
}

static int do_send(struct wqe* w, struct qp* peer) {
  bool ud = w->qp->type == IBV_QPT_UD;
  uint32_t grh = ud ? GRH_BYTES : 0;
  int err = gather(w, 0);
  if (err || !peer) return err;
  if (!recv_available(peer)) return is_reliable(w->qp) ? wait_for_receiver(w->qp, peer) : 0;
  struct receive r;
  recv_take(peer, &r);
  if (r.bad || w->data.total + grh > r.total) return spoil(w, peer, &r);
  if (ud) put_grh(w, &r);
  return deliver(w, peer, &r, grh);
}

static int do_read(struct wqe* w, struct qp* peer) {
  struct mlx5_wqe_raddr_seg* remote = unit(w, w->next++);
  int err = gather(w, IBV_ACCESS_LOCAL_WRITE);
  if (err || !w->data.total) return err;
  const uint8_t* from = remote_memory(peer, remote, w->data.total, IBV_ACCESS_REMOTE_READ);
  if (!from) return refuse(w, peer, MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR);
  for (int i = 0; i < w->data.pieces; from += w->data.piece[i++].length)
    copy(w->data.piece[i].p, from, w->data.piece[i].length);
  return 0;
}

static int do_atomic(struct wqe* w, struct qp* peer) {
  struct mlx5_wqe_raddr_seg* remote = unit(w, w->next++);
  struct mlx5_wqe_atomic_seg* operands = unit(w, w->next++);
  int err = gather(w, IBV_ACCESS_LOCAL_WRITE);
  if (err) return err;
  if (w->data.pieces != 1 || w->data.total != 8) return MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR;
  if (be64toh(remote->raddr) & 7) return refuse(w, peer, MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR);
  uint64_t old, add = be64toh(operands->swap_add),
                *p = (uint64_t*)remote_memory(peer, remote, 8, IBV_ACCESS_REMOTE_ATOMIC);
  if (!p || ((uintptr_t)p & 7)) return refuse(w, peer, MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR);
  if (w->opcode == MLX5_OPCODE_ATOMIC_FA)
    old = __sync_fetch_and_add(p, add);
  else
    old = __sync_val_compare_and_swap(p, be64toh(operands->compare), add);
  copy(w->data.piece[0].p, (uint8_t*)&old, 8);
  return 0;
}

/* What a connected QP, or an initiator, asks of its peer. */
static inline int operate(struct wqe* w, struct qp* peer) {
  switch (w->opcode) {
    case MLX5_OPCODE_RDMA_WRITE:
    case MLX5_OPCODE_RDMA_WRITE_IMM:
      return do_write(w, peer);
    case MLX5_OPCODE_SEND:
    case MLX5_OPCODE_SEND_IMM:
    case MLX5_OPCODE_SEND_INVAL:
      return do_send(w, peer);
    case MLX5_OPCODE_RDMA_READ:
      if (is_reliable(w->qp)) return do_read(w, peer);
      break;
    case MLX5_OPCODE_ATOMIC_CS:
    case MLX5_OPCODE_ATOMIC_FA:
      if (is_reliable(w->qp)) return do_atomic(w, peer);
      break;
  }
  MODEL_WARN("QP 0x%x: opcode 0x%x is not modelled\n", w->qp->o.id, w->opcode);
  return MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
}

static inline int execute_connected(struct wqe* w) {
  struct qp* peer = connected_peer(w->qp);
  if (!peer && w->qp->type == IBV_QPT_RC) return wait_for_peer(w->qp);
  return operate(w, peer);
}

/* The request names the SRQ, behind the control segment. */
static int execute_xrc(struct wqe* w) {
  struct wqe_xrc* seg = unit(w, w->next++);
  struct qp* peer = connected_peer(w->qp);
  if (!peer) return wait_for_peer(w->qp);
  if (!xrc_aim(peer, be32toh(seg->srqn))) return refuse(w, peer, MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR);
  int result = operate(w, peer);
  xrc_unaim(peer);
  return result;
}

/* The connection is made for the request: to the target that its address vector names. */
static int execute_dynamic(struct wqe* w) {
  struct mlx5_wqe_av* av = unit(w, 1);
  w->next += (int)(sizeof *av / UNIT);
  if (dc_stream_has_failed(w->qp, be16toh(w->ctrl->dci_stream_channel_id))) return MLX5_CQE_SYNDROME_WR_FLUSH_ERR;
  struct qp* target = dc_target(be32toh(av->dqp_dct) & 0xffffff);
  if (!target) return wait_for_peer(w->qp);
  if (be64toh(av->key.dc_key) != target->dc_key) return MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
  return operate(w, target);
}

static int execute_datagram(struct wqe* w) {
  if (w->opcode != MLX5_OPCODE_SEND && w->opcode != MLX5_OPCODE_SEND_IMM) return MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
  struct mlx5_wqe_av* av = unit(w, 1);
  w->next += (int)(sizeof *av / UNIT);
  struct qp* peer = object_at(KIND_QP, be32toh(av->dqp_dct) & 0xffffff);
  bool accepts = peer && peer->type == IBV_QPT_UD && can_receive(peer) && be32toh(av->key.qkey.qkey) == peer->attr.qkey;
  return do_send(w, accepts ? peer : NULL);
}

static bool well_formed(const struct wqe* w, uint32_t opmod_idx_opcode, uint32_t qpn_ds) {
  bool ok = ((opmod_idx_opcode >> 8) & 0xffff) == w->counter && qpn_ds >> 8 == w->qp->o.id && w->units;
  if (!ok)
    MODEL_WARN("QP 0x%x: malformed WQE at %u: opmod_idx_opcode 0x%x qpn_ds 0x%x\n", w->qp->o.id, w->counter,
               opmod_idx_opcode, qpn_ds);
  return ok;
}

bool send_execute(struct qp* qp) {
  struct wqe w; /* not cleared: it is large, and each step writes what the next one reads */
  w.qp = qp;
  w.counter = qp->sq_consumed;
  w.ctrl = unit(&w, 0);
  uint32_t opmod_idx_opcode = be32toh(w.ctrl->opmod_idx_opcode), qpn_ds = be32toh(w.ctrl->qpn_ds);
  w.opcode = opmod_idx_opcode & 0xff;
  w.units = qpn_ds & DS_MASK;
  w.next = 1;

  int result;
  w.data.total = 0;
  if (!well_formed(&w, opmod_idx_opcode, qpn_ds))
    result = MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
  else if (w.opcode == MLX5_OPCODE_NOP)
    result = 0;
  else if (w.opcode == MLX5_OPCODE_UMR) /* units: 1 to 3 UMR control, 4 to 7 mkey context, 8 the address list */
    result = window_umr(qp->pd, be32toh(w.ctrl->imm), unit(&w, 4), unit(&w, 8));
  else if (qp->type == IBV_QPT_UD)
    result = execute_datagram(&w);
  else if (qp->dc)
    result = execute_dynamic(&w);
  else if (qp->type == IBV_QPT_XRC_SEND)
    result = execute_xrc(&w);
  else
    result = execute_connected(&w);
  if (result == MUST_WAIT) return false;

  stats.wqes++;
  qp->wait = WAIT_NONE;
  qp->sq_consumed = (uint16_t)(w.counter + (w.units ? (w.units + 3) / 4 : 1));
  if (result) {
    cq_report_error(qp, false, (uint8_t)result, w.opcode, w.counter);
    if (!dc_stream_fails(qp, be16toh(w.ctrl->dci_stream_channel_id))) qp_send_failed(qp);
  } else if ((w.ctrl->fm_ce_se & CE_MASK) == MLX5_WQE_CTRL_CQ_UPDATE) {
    cq_report_sent(qp, w.opcode, w.counter, (uint32_t)w.data.total);
  }
  return true;
}
