/* mlx5model: LD_PRELOAD software model of the kernel uverbs interface plus the
 * ConnectX (mlx5) data path, so that unmodified libibverbs + libmlx5 run on a
 * machine that has neither RDMA kernel support nor a NIC. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---------------------------------------------------------------- config */
static int cfg_log, cfg_inline, cfg_ib, cfg_ndev = 1, cfg_s2c = 1;
static long cfg_spin_us = 2000;
static uint32_t cfg_devid = 0x1017;
#define LOG(...)                                              \
  do {                                                        \
    if (cfg_log) fprintf(stderr, "[mlx5model] " __VA_ARGS__); \
  } while (0)

/* ---------------------------------------------------------------- objects */
#define MAXFD 4096
#define MAXOBJ 65536
enum { FD_NONE, FD_UVERBS, FD_EVENT };
static uint8_t fd_kind[MAXFD];
static int fd_peer[MAXFD]; /* FD_EVENT: our write end */

struct ctx {
  int fd, async_fd, async_w, dev;
  uint32_t lowlat;
  unsigned rr;
  int nbf, nlow;
};
static struct ctx* fd_ctx[MAXFD];

struct pd {
  struct ctx* c;
};
struct mr {
  uint32_t key, pd, access, mw, qpn;
  uint64_t iova, len;
  uint8_t* va;
}; /* mw: 0 MR, 1 / 2 window type */
struct cq {
  struct ctx* c;
  uint32_t cqn, ncqe, esz, pi, sol_pi, sent;
  uint64_t uh;
  uint8_t* buf;
  volatile uint32_t* db;
  int chan, has_sol, overrun;
};
struct srq {
  struct ctx* c;
  uint32_t srqn, pd, max_wr, max_sge, limit;
  uint64_t uh;
  uint8_t* buf;
  volatile uint32_t* db;
  uint32_t shift;
  uint16_t head;
  uint32_t ci;
};
struct qp {
  struct ctx* c;
  uint32_t qpn, pd, uidx, sq_cnt, rq_cnt, rq_shift, dest, access, bf;
  uint64_t uh, rnr_until;
  uint32_t rnr_tries;
  int type, state;
  uint16_t sq_ci, rq_ci;
  uint8_t *sq, *rq;
  volatile uint32_t* db;
  struct cq *scq, *rcq;
  struct srq* srq;
  int s2c, sig_all;
  uint32_t ev_sent;
  struct ib_uverbs_query_qp_resp a;
};

static void* objs[5][MAXOBJ];
enum { O_PD, O_CQ, O_QP, O_SRQ, O_MR };
static uint32_t next_id[5] = {1, 0x400, 0x100, 0x40, 0x10};
static struct qp* act[MAXOBJ];
static int nact;
static struct cq* armed[MAXOBJ];
static int narmed; /* CQs that have a channel */

static pthread_mutex_t L = PTHREAD_MUTEX_INITIALIZER;
static volatile int ctl_wait;
static pthread_t eng_thr;
static int eng_started;
static struct { uint64_t wqe, cqe, bytes, ev; } st;

static uint32_t obj_new(int k, void* o) {
  for (uint32_t n = 0; n < MAXOBJ; n++) {
    uint32_t id = next_id[k]++ % MAXOBJ;
    if (id < 0x10 && k != O_PD) continue;
    if (id && !objs[k][id]) {
      objs[k][id] = o;
      return id;
    }
  }
  return 0;
}
static inline void* obj_get(int k, uint32_t id) { return id < MAXOBJ ? objs[k][id] : NULL; }

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* ---------------------------------------------------------------- memory */
static inline void* dma(uint32_t key, uint32_t pd, uint64_t addr, uint64_t len, uint32_t need) {
  struct mr* m = obj_get(O_MR, key >> 8);
  if (!m || m->key != key || m->pd != pd || (m->access & need) != need) return NULL;
  if (addr < m->iova || len > m->len || addr - m->iova > m->len - len) return NULL;
  return m->va + (addr - m->iova);
}

/* ---------------------------------------------------------------- completion */
static void cq_event(struct cq* q) {
  struct ib_uverbs_comp_event_desc d = {.cq_handle = q->uh};
  if (syscall(SYS_write, fd_peer[q->chan], &d, sizeof d) == sizeof d) {
    q->sent++;
    st.ev++;
  }
}
/* The hardware learns of an arm from the UAR doorbell; the record alone cannot tell
 * "never armed" from "armed, sn 0, ci 0", so the model parks a sentinel there. */
#define UNARMED 0xffffffffu
static inline void cq_check_arm(struct cq* q) {
  uint32_t v = q->db[1];
  if (v == UNARMED) return;
  uint32_t a = be32toh(v), ci = a & 0xffffff, pi = q->pi;
  if (a & (1u << 24)) {
    if (!q->has_sol) return;
    pi = q->sol_pi;
  } /* solicited only */
  if ((int32_t)((pi - ci) << 8) <= 0) return;
  if (__sync_bool_compare_and_swap(&q->db[1], v, UNARMED)) cq_event(q);
}
static inline struct mlx5_cqe64* cqe_next(struct cq* q) {
  uint32_t ci = be32toh(q->db[0]) & 0xffffff;
  if (((q->pi - ci) & 0xffffff) >= q->ncqe) {
    if (!q->overrun) fprintf(stderr, "[mlx5model] CQ 0x%x overrun\n", q->cqn);
    q->overrun = 1;
    return NULL;
  }
  uint8_t* e = q->buf + (size_t)(q->pi & (q->ncqe - 1)) * q->esz;
  return (void*)(q->esz == 128 ? e + 64 : e);
}
static inline void cqe_commit(struct cq* q, struct mlx5_cqe64* e, uint8_t op, int sol) {
  uint8_t own = op | !!(q->pi & q->ncqe) | (sol ? 2 : 0);
  q->pi++;
  st.cqe++;
  if (sol) {
    q->has_sol = 1;
    q->sol_pi = q->pi;
  }
  __atomic_store_n(&e->op_own, own, __ATOMIC_RELEASE);
  if (q->chan >= 0) cq_check_arm(q);
}
static void cqe_req(struct qp* q, uint8_t opc, uint16_t ctr, uint32_t bytes, uint8_t scat) {
  struct mlx5_cqe64* e = cqe_next(q->scq);
  if (!e) return;
  if (!scat) memset(e, 0, 32);
  e->srqn_uidx = htobe32(q->uidx);
  e->imm_inval_pkey = 0;
  e->app = 0;
  e->app_op = 0;
  e->app_info = 0;
  e->byte_cnt = htobe32(bytes);
  e->timestamp = 0;
  e->sop_drop_qpn = htobe32((uint32_t)opc << 24 | q->qpn);
  e->wqe_counter = htobe16(ctr);
  e->signature = 0;
  cqe_commit(q->scq, e, MLX5_CQE_REQ << 4 | scat, 0);
}
static void cqe_err(struct qp* q, int resp, uint8_t synd, uint8_t vend, uint8_t opc, uint16_t ctr) {
  struct cq* c = resp ? q->rcq : q->scq;
  struct mlx5_err_cqe* e = (void*)cqe_next(c);
  if (!e) return;
  memset(e, 0, 63);
  e->srqn = htobe32(q->uidx);
  e->vendor_err_synd = vend;
  e->syndrome = synd;
  e->s_wqe_opcode_qpn = htobe32((uint32_t)opc << 24 | q->qpn);
  e->wqe_counter = htobe16(ctr);
  cqe_commit(c, (void*)e, (resp ? MLX5_CQE_RESP_ERR : MLX5_CQE_REQ_ERR) << 4, 1);
}
static void async_event(struct qp* q, uint32_t type) {
  struct ib_uverbs_async_event_desc d = {.element = q->uh, .event_type = type};
  if (syscall(SYS_write, q->c->async_w, &d, sizeof d) == sizeof d) q->ev_sent++;
}

/* ---------------------------------------------------------------- receive queue */
struct rx {
  struct {
    uint8_t* p;
    uint32_t len;
  } v[64];
  int n;
  uint16_t ctr;
  uint32_t total;
  int bad;
};
static int rx_avail(struct qp* r) {
  if (r->srq) return (uint16_t)(be32toh(*r->srq->db) - r->srq->ci);
  return (uint16_t)(be32toh(r->db[MLX5_RCV_DBR]) - r->rq_ci);
}
static void rx_take(struct qp* r, struct rx* x) {
  struct mlx5_wqe_data_seg* s;
  int max;
  uint32_t pd;
  if (r->srq) {
    struct srq* q = r->srq;
    uint8_t* w = q->buf + ((size_t)q->head << q->shift);
    x->ctr = q->head;
    q->head = be16toh(((struct mlx5_wqe_srq_next_seg*)w)->next_wqe_index);
    q->ci++;
    s = (void*)(w + 16);
    max = (1 << (q->shift - 4)) - 1;
    pd = q->pd;
  } else {
    x->ctr = r->rq_ci;
    s = (void*)(r->rq + ((size_t)(r->rq_ci & (r->rq_cnt - 1)) << r->rq_shift));
    max = 1 << (r->rq_shift - 4);
    pd = r->pd;
    r->rq_ci++;
  }
  x->n = 0;
  x->total = 0;
  x->bad = 0;
  for (int i = 0; i < max; i++, s++) {
    uint32_t len = be32toh(s->byte_count), k = be32toh(s->lkey);
    if (!len && k == 0x100) break; /* terminator */
    if (!len) continue;
    uint8_t* p = dma(k, pd, be64toh(s->addr), len, IBV_ACCESS_LOCAL_WRITE);
    if (!p) {
      x->bad = 1;
      break;
    }
    x->v[x->n].p = p;
    x->v[x->n++].len = len;
    x->total += len;
  }
}
static void qp_to_err(struct qp* q) {
  q->state = IBV_QPS_ERR;
  q->a.qp_state = q->a.cur_qp_state = IBV_QPS_ERR;
}

/* ---------------------------------------------------------------- send queue */
struct tx {
  struct {
    uint8_t* p;
    uint32_t len;
  } v[72];
  int n;
  uint64_t total;
};
static inline uint8_t* seg(struct qp* q, uint16_t ci, int i) /* i: 16-byte unit */
{
  uint32_t off = ((uint32_t)(ci & (q->sq_cnt - 1)) * 64 + i * 16), sz = q->sq_cnt * 64;
  return q->sq + (off >= sz ? off - sz : off);
}
static int gather(struct qp* q, uint16_t ci, int i, int ds, struct tx* t, uint32_t need) {
  t->n = 0;
  t->total = 0;
  while (i < ds) {
    struct mlx5_wqe_data_seg* s = (void*)seg(q, ci, i);
    uint32_t bc = be32toh(s->byte_count);
    if (bc & 0x80000000u) { /* inline */
      uint32_t len = bc & 0x3ff;
      uint8_t *p = (uint8_t*)s + 4, *end = q->sq + q->sq_cnt * 64;
      uint32_t a = (uint32_t)(end - p) < len ? (uint32_t)(end - p) : len;
      t->v[t->n].p = p;
      t->v[t->n++].len = a;
      if (a < len) {
        t->v[t->n].p = q->sq;
        t->v[t->n++].len = len - a;
      }
      t->total += len;
      i += (len + 4 + 15) / 16;
      continue;
    }
    uint8_t* p = dma(be32toh(s->lkey), q->pd, be64toh(s->addr), bc, need);
    if (!p) return -1;
    t->v[t->n].p = p;
    t->v[t->n++].len = bc;
    t->total += bc;
    i++;
  }
  return 0;
}
static inline void copy(void* d, const void* s, size_t n) {
  st.bytes += n;
  if (n == 8) {
    uint64_t v;
    memcpy(&v, s, 8);
    __atomic_store_n((uint64_t*)d, v, __ATOMIC_RELAXED);
    return;
  }
  memmove(d, s, n);
}
static void copy_vv(struct tx* t, struct rx* x) {
  int i = 0, j = 0;
  uint32_t a = 0, b = 0;
  while (i < t->n && j < x->n) {
    uint32_t n = t->v[i].len - a, m = x->v[j].len - b;
    if (m < n) n = m;
    copy(x->v[j].p + b, t->v[i].p + a, n);
    if ((a += n) == t->v[i].len) i++, a = 0;
    if ((b += n) == x->v[j].len) j++, b = 0;
  }
}
static void mw_unbind(struct mr* m) {
  m->access = 0;
  m->len = 0;
  m->va = NULL;
  m->qpn = 0;
}
static uint8_t umr(struct qp* q, uint16_t ci, uint32_t key) /* bind or invalidate a memory window */
{
  struct mr *m = obj_get(O_MR, key >> 8), *p;
  uint32_t qm, acc = IBV_ACCESS_LOCAL_WRITE;
  uint8_t f;
  struct mlx5_wqe_mkey_context_seg* k = (void*)seg(q, ci, 4);
  struct mlx5_wqe_umr_klm_seg* klm = (void*)seg(q, ci, 8);
  if (!m || !m->mw || m->pd != q->pd) return MLX5_CQE_SYNDROME_MW_BIND_ERR;
  qm = be32toh(k->qpn_mkey);
  if (k->free & MLX5_WQE_MKEY_CONTEXT_FREE) {
    mw_unbind(m);
    if (m->mw == 1) m->key = (m->key & ~0xffu) | (qm & 0xff);
    return 0;
  }
  p = obj_get(O_MR, be32toh(klm->mkey) >> 8);
  f = k->access_flags;
  uint64_t a = be64toh(klm->address), n = be64toh(k->len);
  if (!p || p->mw || p->pd != q->pd || !(p->access & IBV_ACCESS_MW_BIND) || (m->mw == 2 && m->access) || a < p->iova ||
      n > p->len || a - p->iova > p->len - n)
    return MLX5_CQE_SYNDROME_MW_BIND_ERR;
  if (f & MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_READ) acc |= IBV_ACCESS_REMOTE_READ;
  if (f & MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE) acc |= IBV_ACCESS_REMOTE_WRITE;
  if (f & MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_ATOMIC) acc |= IBV_ACCESS_REMOTE_ATOMIC;
  m->key = (m->key & ~0xffu) | (qm & 0xff);
  m->qpn = m->mw == 2 ? qm >> 8 : 0;
  m->access = acc;
  m->iova = be64toh(k->start_addr);
  m->len = n;
  m->va = p->va + (a - p->iova);
  return 0;
}
/* One WQE. 1: consumed; 0: blocked (receiver not ready). */
static int exec_wqe(struct qp* q) {
  uint16_t ci = q->sq_ci;
  struct mlx5_wqe_ctrl_seg* c = (void*)seg(q, ci, 0);
  uint32_t oio = be32toh(c->opmod_idx_opcode), qd = be32toh(c->qpn_ds);
  uint8_t opc = oio & 0xff;
  int ds = qd & 0x3f, i = 1;
  uint16_t bb = (ds + 3) / 4;
  uint8_t synd = 0, vend = 0;
  uint32_t bytes = 0;
  uint8_t scat = 0;
  struct tx t;
  struct rx x;
  struct qp* r = NULL;

  if (((oio >> 8) & 0xffff) != ci || (qd >> 8) != q->qpn || !ds) {
    fprintf(stderr, "[mlx5model] QP 0x%x: malformed WQE at %u: idx %u qpn 0x%x ds %d\n", q->qpn, ci,
            (oio >> 8) & 0xffff, qd >> 8, ds);
    synd = MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
    vend = 0x68;
    bb = bb ? bb : 1;
    goto done;
  }
  if (opc == MLX5_OPCODE_NOP) goto done;
  if (opc == MLX5_OPCODE_UMR) {
    synd = umr(q, ci, be32toh(c->imm));
    goto done;
  }
  uint32_t dqpn = q->dest;
  uint32_t grh = 0;
  if (q->type == IBV_QPT_UD) {
    struct mlx5_wqe_av* av = (void*)seg(q, ci, 1);
    dqpn = be32toh(av->dqp_dct) & 0xffffff;
    i = 4;
    grh = 40;
    r = obj_get(O_QP, dqpn);
    if (!r || r->type != IBV_QPT_UD || r->state < IBV_QPS_RTR || r->state > IBV_QPS_SQE ||
        be32toh(av->key.qkey.qkey) != r->a.qkey)
      r = NULL;
  } else {
    r = obj_get(O_QP, dqpn);
    if (!r || r->type != q->type || r->dest != q->qpn || r->state < IBV_QPS_RTR || r->state > IBV_QPS_SQE) r = NULL;
    if (!r && q->type == IBV_QPT_RC) {
      synd = MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR;
      vend = 0x81;
      goto done;
    }
  }
  switch (opc) {
    case MLX5_OPCODE_RDMA_WRITE:
    case MLX5_OPCODE_RDMA_WRITE_IMM: {
      struct mlx5_wqe_raddr_seg* ra = (void*)seg(q, ci, i++);
      uint8_t* d = NULL;
      if (gather(q, ci, i, ds, &t, 0)) {
        synd = MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
        vend = 0x51;
        break;
      }
      if (!r) break;
      if (opc == MLX5_OPCODE_RDMA_WRITE_IMM && !rx_avail(r)) goto rnr;
      if (t.total && (!(r->access & IBV_ACCESS_REMOTE_WRITE) ||
                      !(d = dma(be32toh(ra->rkey), r->pd, be64toh(ra->raddr), t.total, IBV_ACCESS_REMOTE_WRITE)))) {
        synd = MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
        vend = 0x88;
        async_event(r, IBV_EVENT_QP_ACCESS_ERR);
        qp_to_err(r);
        break;
      }
      for (int k = 0; k < t.n; k++) {
        copy(d, t.v[k].p, t.v[k].len);
        d += t.v[k].len;
      }
      if (opc == MLX5_OPCODE_RDMA_WRITE_IMM) {
        rx_take(r, &x);
        goto respond;
      }
      break;
    }
    case MLX5_OPCODE_SEND:
    case MLX5_OPCODE_SEND_IMM:
    case MLX5_OPCODE_SEND_INVAL:
      if (gather(q, ci, i, ds, &t, 0)) {
        synd = MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
        vend = 0x51;
        break;
      }
      if (!r) break;
      if (!rx_avail(r)) {
        if (q->type == IBV_QPT_RC) goto rnr;
        break;
      }
      rx_take(r, &x);
      if (x.bad || t.total + grh > x.total) {
        cqe_err(r, 1, x.bad ? MLX5_CQE_SYNDROME_LOCAL_PROT_ERR : MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, 0x22, 0, x.ctr);
        qp_to_err(r);
        if (q->type == IBV_QPT_RC) {
          synd = x.bad ? MLX5_CQE_SYNDROME_REMOTE_OP_ERR : MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR;
          vend = 0x8a;
        }
        break;
      }
      if (grh) { /* leave room for the GRH */
        uint32_t g = grh;
        int k = 0;
        while (g) {
          uint32_t n = x.v[k].len < g ? x.v[k].len : g;
          memset(x.v[k].p, 0, n);
          x.v[k].p += n;
          x.v[k].len -= n;
          g -= n;
          if (!x.v[k].len) k++;
        }
      }
    respond : {
      struct mlx5_cqe64* e = cqe_next(r->rcq);
      uint8_t s2c = 0, op;
      int wimm = opc == MLX5_OPCODE_RDMA_WRITE_IMM;
      if (!wimm && r->s2c && q->type == IBV_QPT_RC && t.total && t.total <= 32 && e) {
        uint8_t* p = (uint8_t*)e;
        s2c = 4; /* scatter to CQE */
        for (int k = 0; k < t.n; k++) {
          memcpy(p, t.v[k].p, t.v[k].len);
          p += t.v[k].len;
        }
      } else if (!wimm)
        copy_vv(&t, &x);
      if (!e) break;
      op = wimm                          ? MLX5_CQE_RESP_WR_IMM
           : opc == MLX5_OPCODE_SEND     ? MLX5_CQE_RESP_SEND
           : opc == MLX5_OPCODE_SEND_IMM ? MLX5_CQE_RESP_SEND_IMM
                                         : MLX5_CQE_RESP_SEND_INV;
      if (!s2c) {
        memset(e, 0, 32);
        e->flags_rqpn = htobe32(q->qpn | (grh ? 1u << 28 : 0));
      }
      e->srqn_uidx = htobe32(r->uidx);
      e->imm_inval_pkey = c->imm;
      e->app = 0;
      e->app_op = 0;
      e->app_info = 0;
      e->byte_cnt = htobe32(t.total + grh);
      e->timestamp = 0;
      e->sop_drop_qpn = htobe32(r->qpn);
      e->wqe_counter = htobe16(x.ctr);
      e->signature = 0;
      if (opc == MLX5_OPCODE_SEND_INVAL) {
        struct mr* m = obj_get(O_MR, be32toh(c->imm) >> 8);
        if (m && m->mw == 2 && m->key == be32toh(c->imm)) mw_unbind(m);
      }
      cqe_commit(r->rcq, e, op << 4 | s2c, c->fm_ce_se & MLX5_WQE_CTRL_SOLICITED);
      q->rnr_until = 0;
      break;
    }
    case MLX5_OPCODE_RDMA_READ: {
      struct mlx5_wqe_raddr_seg* ra = (void*)seg(q, ci, i++);
      uint8_t* s = NULL;
      if (gather(q, ci, i, ds, &t, IBV_ACCESS_LOCAL_WRITE)) {
        synd = MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
        vend = 0x51;
        break;
      }
      if (t.total && (!(r->access & IBV_ACCESS_REMOTE_READ) ||
                      !(s = dma(be32toh(ra->rkey), r->pd, be64toh(ra->raddr), t.total, IBV_ACCESS_REMOTE_READ)))) {
        synd = MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
        vend = 0x88;
        async_event(r, IBV_EVENT_QP_ACCESS_ERR);
        qp_to_err(r);
        break;
      }
      for (int k = 0; k < t.n; k++) {
        copy(t.v[k].p, s, t.v[k].len);
        s += t.v[k].len;
      }
      bytes = t.total;
      break;
    }
    case MLX5_OPCODE_ATOMIC_CS:
    case MLX5_OPCODE_ATOMIC_FA: {
      struct mlx5_wqe_raddr_seg* ra = (void*)seg(q, ci, i++);
      struct mlx5_wqe_atomic_seg* as = (void*)seg(q, ci, i++);
      uint64_t addr = be64toh(ra->raddr), old, *p;
      if (gather(q, ci, i, ds, &t, IBV_ACCESS_LOCAL_WRITE) || t.n != 1 || t.total != 8) {
        synd = MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
        vend = 0x51;
        break;
      }
      p = (addr & 7) || !(r->access & IBV_ACCESS_REMOTE_ATOMIC)
              ? NULL
              : dma(be32toh(ra->rkey), r->pd, addr, 8, IBV_ACCESS_REMOTE_ATOMIC);
      if (!p) {
        synd = addr & 7 ? MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR : MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
        vend = 0x88;
        async_event(r, IBV_EVENT_QP_ACCESS_ERR);
        qp_to_err(r);
        break;
      }
      if (opc == MLX5_OPCODE_ATOMIC_FA)
        old = __sync_fetch_and_add(p, be64toh(as->swap_add));
      else
        old = __sync_val_compare_and_swap(p, be64toh(as->compare), be64toh(as->swap_add));
      copy(t.v[0].p, &old, 8);
      bytes = 8;
      break;
    }
    default:
      fprintf(stderr, "[mlx5model] QP 0x%x: opcode 0x%x not modelled\n", q->qpn, opc);
      synd = MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
      vend = 0x69;
  }
done:
  st.wqe++;
  q->sq_ci = ci + bb;
  if (synd) {
    cqe_err(q, 0, synd, vend, opc, ci);
    qp_to_err(q);
  } else if ((c->fm_ce_se & 0x0c) == MLX5_WQE_CTRL_CQ_UPDATE)
    cqe_req(q, opc, ci, bytes, scat);
  return 1;
rnr:
  if (q->a.rnr_retry == 7) return 0; /* retry for ever */
  if (!q->rnr_until) {
    q->rnr_until = now_ns() + 1000000ull * (1 + q->a.rnr_retry);
    return 0;
  }
  if (now_ns() < q->rnr_until) return 0;
  synd = MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR;
  vend = 0x87;
  q->rnr_until = 0;
  goto done;
}
static int flush_qp(struct qp* q) {
  int n = 0;
  uint16_t pi = be32toh(q->db[MLX5_SND_DBR]);
  while (q->sq_cnt && q->sq_ci != pi && n < 64) {
    struct mlx5_wqe_ctrl_seg* c = (void*)seg(q, q->sq_ci, 0);
    int ds = be32toh(c->qpn_ds) & 0x3f;
    cqe_err(q, 0, MLX5_CQE_SYNDROME_WR_FLUSH_ERR, 0xf9, be32toh(c->opmod_idx_opcode) & 0xff, q->sq_ci);
    q->sq_ci += ds ? (ds + 3) / 4 : 1;
    n++;
  }
  while (!q->srq && q->rq_cnt && rx_avail(q) && n < 64) {
    cqe_err(q, 1, MLX5_CQE_SYNDROME_WR_FLUSH_ERR, 0xf9, 0, q->rq_ci);
    q->rq_ci++;
    n++;
  }
  return n;
}
static int engine_scan(void) /* caller holds L; returns amount of work done */
{
  int work = 0;
  for (int i = 0; i < nact; i++) {
    struct qp* q = act[i];
    if (q->state == IBV_QPS_RTS) {
      uint16_t pi = be32toh(__atomic_load_n(&q->db[MLX5_SND_DBR], __ATOMIC_ACQUIRE));
      for (int n = 0; n < 64 && q->sq_ci != pi && q->state == IBV_QPS_RTS; n++) {
        if (!exec_wqe(q)) break;
        work++;
      }
    } else if (q->state == IBV_QPS_ERR)
      work += flush_qp(q);
  }
  for (int i = 0; i < narmed; i++) cq_check_arm(armed[i]);
  return work;
}
static void* engine(void* a) {
  (void)a;
  uint64_t idle = 0;
  unsigned n = 0;
  pthread_setname_np(pthread_self(), "mlx5model");
  for (;;) {
    while (ctl_wait) sched_yield();
    pthread_mutex_lock(&L);
    int w = engine_scan();
    pthread_mutex_unlock(&L);
    if (w) {
      idle = 0;
      continue;
    }
    __builtin_ia32_pause();
    if (!idle) {
      idle = now_ns();
      n = 0;
    }
    if (++n & 63) continue;
    if (now_ns() - idle > (uint64_t)cfg_spin_us * 1000) {
      struct timespec t = {0, 50000};
      nanosleep(&t, NULL);
    }
  }
  return NULL;
}
static void lock(void) {
  __atomic_add_fetch(&ctl_wait, 1, __ATOMIC_SEQ_CST);
  pthread_mutex_lock(&L);
}
static void unlock(void) {
  pthread_mutex_unlock(&L);
  __atomic_sub_fetch(&ctl_wait, 1, __ATOMIC_SEQ_CST);
}

/* ---------------------------------------------------------------- inline mode: run the engine from the caller */
static int (*o_post)(struct ibv_qp*, struct ibv_send_wr*, struct ibv_send_wr**);
static int (*o_poll)(struct ibv_cq*, int, struct ibv_wc*);
static int (*o_arm)(struct ibv_cq*, int);
static int (*o_start)(struct ibv_cq_ex*, struct ibv_poll_cq_attr*);
static void pump(void) {
  if (!pthread_mutex_trylock(&L)) {
    while (engine_scan())
      ;
    pthread_mutex_unlock(&L);
  }
}
static int w_post(struct ibv_qp* q, struct ibv_send_wr* w, struct ibv_send_wr** b) {
  int r = o_post(q, w, b);
  pump();
  return r;
}
static int w_poll(struct ibv_cq* c, int n, struct ibv_wc* w) {
  pump();
  return o_poll(c, n, w);
}
static int w_arm(struct ibv_cq* c, int s) {
  int r = o_arm(c, s);
  pump();
  return r;
}
static int w_start(struct ibv_cq_ex* c, struct ibv_poll_cq_attr* a) {
  pump();
  return o_start(c, a);
}
static void hook_ops(uint64_t uh) {
  struct ibv_cq_ex* x = (void*)uh;
  struct ibv_context* c = x->context;
  if (c->ops.poll_cq != w_poll) {
    o_poll = c->ops.poll_cq;
    c->ops.poll_cq = w_poll;
    if (cfg_inline == 1) {
      o_post = c->ops.post_send;
      c->ops.post_send = w_post;
    }
    o_arm = c->ops.req_notify_cq;
    c->ops.req_notify_cq = w_arm;
  }
  if (x->start_poll && x->start_poll != w_start) {
    o_start = x->start_poll;
    x->start_poll = w_start;
  }
}

/* ---------------------------------------------------------------- uverbs commands */
static int mkpipe(int* w) {
  int p[2];
  if (pipe2(p, O_CLOEXEC)) return -1;
  *w = p[1];
  if (p[0] < MAXFD) {
    fd_kind[p[0]] = FD_EVENT;
    fd_peer[p[0]] = p[1];
  }
  return p[0];
}
/* drop the unread records for one element from an event pipe; returns how many */
static uint32_t drain(int fd, size_t rec, uint64_t element) {
  int n = 0;
  uint32_t dropped = 0;
  if (fd < 0 || ioctl(fd, FIONREAD, &n) || n < (int)rec) return 0;
  uint8_t b[16];
  for (int i = n / rec; i > 0; i--) {
    if (syscall(SYS_read, fd, b, rec) != (long)rec) break;
    if (*(uint64_t*)b == element)
      dropped++;
    else
      (void)!syscall(SYS_write, fd_peer[fd], b, rec);
  }
  return dropped;
}
static void fill_dev(struct ib_uverbs_query_device_resp* r, int dev) {
  memset(r, 0, sizeof *r);
  r->fw_ver = (16ull << 32) | (35ull << 16) | 4030;
  r->node_guid = htobe64(0x0c42a10300000000ull + dev);
  r->sys_image_guid = r->node_guid;
  r->max_mr_size = ~0ull;
  r->page_size_cap = 0xfffffffffffff000ull;
  r->vendor_id = 0x02c9;
  r->vendor_part_id = cfg_devid;
  r->hw_ver = 0;
  r->max_qp = 131072;
  r->max_qp_wr = 32768;
  r->device_cap_flags = 0xed721c36;
  r->max_sge = 30;
  r->max_sge_rd = 30;
  r->max_cq = 1 << 24;
  r->max_cqe = 4194303;
  r->max_mr = 1 << 24;
  r->max_pd = 1 << 24;
  r->max_qp_rd_atom = 16;
  r->max_res_rd_atom = 2097152;
  r->max_qp_init_rd_atom = 16;
  r->atomic_cap = IBV_ATOMIC_HCA;
  r->max_mw = 1 << 24;
  r->max_mcast_grp = 2097152;
  r->max_mcast_qp_attach = 240;
  r->max_total_mcast_qp_attach = 503316480;
  r->max_ah = 0x7fffffff;
  r->max_srq = 8388608;
  r->max_srq_wr = 32767;
  r->max_srq_sge = 31;
  r->max_pkeys = 128;
  r->local_ca_ack_delay = 16;
  r->phys_port_cnt = 1;
}
static void bf_pick(struct ctx* c, struct qp* q) {
  int n = -1;
  for (int i = 0; i < c->nlow; i++)
    if (!(c->lowlat >> i & 1)) {
      c->lowlat |= 1u << i;
      n = c->nbf - c->nlow + i;
      break;
    }
  if (n < 0) n = 1 + c->rr++ % (c->nbf - c->nlow - 1);
  q->bf = n / 2 * 4 + n % 2;
}
static int modify(struct qp* q, const struct ib_uverbs_modify_qp* m) {
  uint32_t k = m->attr_mask;
  int ns = k & IBV_QP_STATE ? m->qp_state : q->state;
  uint32_t need = 0;
  if (k & IBV_QP_CUR_STATE && m->cur_qp_state != q->state) return EINVAL;
  if (k & IBV_QP_STATE) {
    int rc = q->type == IBV_QPT_RC, ud = q->type == IBV_QPT_UD;
    if (ns == IBV_QPS_RESET || ns == IBV_QPS_ERR)
      ;
    else if (q->state == IBV_QPS_RESET && ns == IBV_QPS_INIT)
      need = IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    else if (q->state == IBV_QPS_INIT && ns == IBV_QPS_INIT)
      ;
    else if (q->state == IBV_QPS_INIT && ns == IBV_QPS_RTR)
      need = ud ? 0
                : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                      (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
    else if (q->state == IBV_QPS_RTR && ns == IBV_QPS_RTS)
      need = IBV_QP_SQ_PSN | (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0);
    else if (q->state == IBV_QPS_RTS && (ns == IBV_QPS_RTS || ns == IBV_QPS_SQD))
      ;
    else if (q->state == IBV_QPS_SQD && (ns == IBV_QPS_RTS || ns == IBV_QPS_SQD))
      ;
    else
      return EINVAL;
    if ((k & need) != need) return EINVAL;
  }
  if (k & IBV_QP_ACCESS_FLAGS) q->a.qp_access_flags = q->access = m->qp_access_flags;
  if (k & IBV_QP_PKEY_INDEX) q->a.pkey_index = m->pkey_index;
  if (k & IBV_QP_PORT) {
    if (m->port_num != 1) return EINVAL;
    q->a.port_num = m->port_num;
  }
  if (k & IBV_QP_QKEY) q->a.qkey = m->qkey;
  if (k & IBV_QP_AV) q->a.dest = m->dest;
  if (k & IBV_QP_PATH_MTU) q->a.path_mtu = m->path_mtu;
  if (k & IBV_QP_TIMEOUT) q->a.timeout = m->timeout;
  if (k & IBV_QP_RETRY_CNT) q->a.retry_cnt = m->retry_cnt;
  if (k & IBV_QP_RNR_RETRY) q->a.rnr_retry = m->rnr_retry;
  if (k & IBV_QP_RQ_PSN) q->a.rq_psn = m->rq_psn;
  if (k & IBV_QP_SQ_PSN) q->a.sq_psn = m->sq_psn;
  if (k & IBV_QP_MIN_RNR_TIMER) q->a.min_rnr_timer = m->min_rnr_timer;
  if (k & IBV_QP_MAX_QP_RD_ATOMIC) q->a.max_rd_atomic = m->max_rd_atomic;
  if (k & IBV_QP_MAX_DEST_RD_ATOMIC) q->a.max_dest_rd_atomic = m->max_dest_rd_atomic;
  if (k & IBV_QP_DEST_QPN) q->a.dest_qp_num = q->dest = m->dest_qp_num & 0xffffff;
  if (ns == IBV_QPS_RESET) {
    q->sq_ci = q->rq_ci = 0;
    q->dest = 0;
    q->rnr_until = 0;
  }
  q->state = q->a.qp_state = q->a.cur_qp_state = ns;
  return 0;
}

#define OUT(T) \
  T r;         \
  memset(&r, 0, sizeof r)
/* in: core request then driver request; out: response buffer of outlen bytes */
static int do_cmd(struct ctx* c, uint32_t cmd, int ex, const uint8_t* in, size_t inlen, uint8_t* out, size_t outlen,
                  size_t coreout, const uint8_t* din) {
  (void)inlen;
  (void)coreout;
#define PUT(v) memcpy(out, &(v), sizeof(v) < outlen ? sizeof(v) : outlen)
#define PUTD(T, v)                                                    \
  do {                                                                \
    if (outlen > sizeof(T)) {                                         \
      size_t n_ = outlen - sizeof(T);                                 \
      memcpy(out + sizeof(T), &(v), sizeof(v) < n_ ? sizeof(v) : n_); \
    }                                                                 \
  } while (0)
  switch (cmd | (ex ? 0x100 : 0)) {
    case IB_USER_VERBS_CMD_GET_CONTEXT: {
      const struct mlx5_ib_alloc_ucontext_req_v2* d = (const void*)(in + sizeof(struct ib_uverbs_get_context));
      OUT(struct ib_uverbs_get_context_resp);
      struct mlx5_ib_alloc_ucontext_resp u = {0};
      if (c->async_fd >= 0) return EINVAL;
      if ((c->async_fd = mkpipe(&c->async_w)) < 0) return ENOMEM;
      r.async_fd = c->async_fd;
      r.num_comp_vectors = 8;
      c->nbf = d->total_num_bfregs & ~1u;
      c->nlow = d->num_low_latency_bfregs > 31 ? 31 : d->num_low_latency_bfregs;
      u.qp_tab_size = 1 << 18;
      u.bf_reg_size = 512;
      u.tot_bfregs = c->nbf;
      u.cache_line_size = 64;
      u.max_sq_desc_sz = 1024;
      u.max_rq_desc_sz = 512;
      u.max_send_wqebb = 32768;
      u.max_recv_wr = 32768;
      u.max_srq_recv_wr = 32767;
      u.num_ports = 1;
      u.response_length = sizeof u;
      u.cqe_version = 1;
      u.cmds_supp_uhw = MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH;
      u.eth_min_inline = 1;
      u.log_uar_size = 12;
      u.num_uars_per_page = 1;
      PUT(r);
      PUTD(struct ib_uverbs_get_context_resp, u);
      return 0;
    }
    case IB_USER_VERBS_CMD_QUERY_DEVICE: {
      struct ib_uverbs_query_device_resp r;
      fill_dev(&r, c->dev);
      PUT(r);
      return 0;
    }
    case 0x100 | IB_USER_VERBS_EX_CMD_QUERY_DEVICE: {
      OUT(struct ib_uverbs_ex_query_device_resp);
      struct mlx5_ib_query_device_resp u = {0};
      fill_dev(&r.base, c->dev);
      r.response_length = sizeof r < coreout ? sizeof r : coreout;
      r.timestamp_mask = ~0ull;
      r.hca_core_clock = 156250;
      r.device_cap_flags_ex = r.base.device_cap_flags;
      r.cq_moderation_caps.max_cq_moderation_count = 65535;
      r.cq_moderation_caps.max_cq_moderation_period = 4095;
      u.response_length = sizeof u;
      memcpy(out, &r, r.response_length);
      if (outlen > coreout) memcpy(out + coreout, &u, sizeof u < outlen - coreout ? sizeof u : outlen - coreout);
      return 0;
    }
    case IB_USER_VERBS_CMD_QUERY_PORT: {
      OUT(struct ib_uverbs_query_port_resp);
      if (((const struct ib_uverbs_query_port*)in)->port_num != 1) return EINVAL;
      r.port_cap_flags = cfg_ib ? 0x2651e848 : 0x04010000;
      r.max_msg_sz = 1 << 30;
      r.gid_tbl_len = 8;
      r.pkey_tbl_len = cfg_ib ? 128 : 1;
      r.lid = cfg_ib ? 1 + c->dev : 0;
      r.sm_lid = cfg_ib;
      r.state = IBV_PORT_ACTIVE;
      r.max_mtu = 5;
      r.active_mtu = cfg_ib ? 5 : 3;
      r.max_vl_num = 1;
      r.active_width = 2;
      r.active_speed = 32;
      r.phys_state = 5;
      r.link_layer = cfg_ib ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
      r.flags = cfg_ib ? 0 : 1;
      PUT(r);
      return 0;
    }
    case IB_USER_VERBS_CMD_ALLOC_PD: {
      struct pd* p = calloc(1, sizeof *p);
      p->c = c;
      OUT(struct ib_uverbs_alloc_pd_resp);
      struct mlx5_ib_alloc_pd_resp u;
      r.pd_handle = u.pdn = obj_new(O_PD, p);
      PUT(r);
      memcpy(out + 4, &u, outlen >= 8 ? 4 : 0);
      return 0;
    }
    case IB_USER_VERBS_CMD_DEALLOC_PD: {
      uint32_t h = ((const struct ib_uverbs_dealloc_pd*)in)->pd_handle;
      struct pd* p = obj_get(O_PD, h);
      if (!p) return EINVAL;
      for (int i = 0; i < MAXOBJ; i++) {
        struct mr* m = objs[O_MR][i];
        struct qp* q = objs[O_QP][i];
        if ((m && m->pd == h) || (q && q->pd == h)) return EBUSY;
      }
      objs[O_PD][h] = NULL;
      free(p);
      return 0;
    }
    case IB_USER_VERBS_CMD_REG_MR: {
      const struct ib_uverbs_reg_mr* q = (const void*)in;
      OUT(struct ib_uverbs_reg_mr_resp);
      if (!obj_get(O_PD, q->pd_handle)) return EINVAL;
      if (q->access_flags & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) &&
          !(q->access_flags & IBV_ACCESS_LOCAL_WRITE))
        return EINVAL;
      /* the pages must be there, as get_user_pages would insist; mincore() fails with ENOMEM on a hole */
      if (q->length && q->length < 1ull << 40) {
        uint64_t a = q->start & ~4095ull, e = (q->start + q->length + 4095) & ~4095ull;
        unsigned char v[256];
        for (; a < e; a += 256 * 4096ull)
          if (mincore((void*)a, e - a < 256 * 4096ull ? e - a : 256 * 4096ull, v)) return EFAULT;
      }
      struct mr* m = calloc(1, sizeof *m);
      m->va = (void*)q->start;
      m->iova = q->hca_va;
      m->len = q->length;
      m->pd = q->pd_handle;
      m->access = q->access_flags;
      uint32_t id = obj_new(O_MR, m);
      if (!id) {
        free(m);
        return ENOMEM;
      }
      static uint8_t variant;
      m->key = id << 8 | ++variant;
      r.mr_handle = id;
      r.lkey = r.rkey = m->key;
      PUT(r);
      return 0;
    }
    case IB_USER_VERBS_CMD_DEREG_MR: {
      uint32_t h = ((const struct ib_uverbs_dereg_mr*)in)->mr_handle;
      struct mr* m = obj_get(O_MR, h);
      if (!m) return EINVAL;
      objs[O_MR][h] = NULL;
      free(m);
      return 0;
    }
    case IB_USER_VERBS_CMD_REREG_MR: {
      const struct ib_uverbs_rereg_mr* q = (const void*)in;
      OUT(struct ib_uverbs_rereg_mr_resp);
      struct mr* m = obj_get(O_MR, q->mr_handle);
      if (!m) return EINVAL;
      if (q->flags & 1) {
        m->va = (void*)q->start;
        m->iova = q->hca_va;
        m->len = q->length;
      }
      if (q->flags & 2) m->pd = q->pd_handle;
      if (q->flags & 4) m->access = q->access_flags;
      r.lkey = r.rkey = m->key;
      PUT(r);
      return 0;
    }
    case IB_USER_VERBS_CMD_ALLOC_MW: {
      const struct ib_uverbs_alloc_mw* q = (const void*)in;
      OUT(struct ib_uverbs_alloc_mw_resp);
      if (!obj_get(O_PD, q->pd_handle) || q->mw_type < 1 || q->mw_type > 2) return EINVAL;
      struct mr* m = calloc(1, sizeof *m);
      m->pd = q->pd_handle;
      m->mw = q->mw_type;
      uint32_t id = obj_new(O_MR, m);
      m->key = id << 8;
      r.mw_handle = id;
      r.rkey = m->key;
      PUT(r);
      return 0;
    }
    case IB_USER_VERBS_CMD_DEALLOC_MW: {
      uint32_t h = ((const struct ib_uverbs_dealloc_mw*)in)->mw_handle;
      struct mr* m = obj_get(O_MR, h);
      if (!m || !m->mw) return EINVAL;
      objs[O_MR][h] = NULL;
      free(m);
      return 0;
    }
    case IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL: {
      OUT(struct ib_uverbs_create_comp_channel_resp);
      int w, f = mkpipe(&w);
      if (f < 0) return ENOMEM;
      r.fd = f;
      PUT(r);
      return 0;
    }
    case 0x100 | IB_USER_VERBS_EX_CMD_CREATE_CQ:
    case IB_USER_VERBS_CMD_CREATE_CQ: {
      uint64_t uh;
      uint32_t n, cv;
      int32_t ch;
      const struct mlx5_ib_create_cq* d;
      if (ex) {
        const struct ib_uverbs_ex_create_cq* q = (const void*)in;
        uh = q->user_handle;
        n = q->cqe;
        ch = q->comp_channel;
        cv = q->comp_vector;
        d = (const void*)din;
      } else {
        const struct ib_uverbs_create_cq* q = (const void*)in;
        uh = q->user_handle;
        n = q->cqe;
        ch = q->comp_channel;
        cv = q->comp_vector;
        d = (const void*)q->driver_data;
      }
      if (n > 4194303 || cv >= 8) return EINVAL;
      struct cq* k = calloc(1, sizeof *k);
      k->c = c;
      k->uh = uh;
      k->ncqe = n + 1;
      k->esz = d->cqe_size;
      k->buf = (void*)d->buf_addr;
      k->db = (void*)d->db_addr;
      k->chan = ch;
      if (k->ncqe & (k->ncqe - 1)) {
        free(k);
        return EINVAL;
      }
      k->db[1] = UNARMED;
      k->cqn = obj_new(O_CQ, k);
      if (ch >= 0) armed[narmed++] = k;
      if (cfg_inline) hook_ops(uh);
      struct mlx5_ib_create_cq_resp u = {.cqn = k->cqn};
      if (ex) {
        OUT(struct ib_uverbs_ex_create_cq_resp);
        r.base.cq_handle = k->cqn;
        r.base.cqe = n;
        r.response_length = sizeof r;
        PUT(r);
        PUTD(struct ib_uverbs_ex_create_cq_resp, u);
      } else {
        OUT(struct ib_uverbs_create_cq_resp);
        r.cq_handle = k->cqn;
        r.cqe = n;
        PUT(r);
        PUTD(struct ib_uverbs_create_cq_resp, u);
      }
      return 0;
    }
    case IB_USER_VERBS_CMD_RESIZE_CQ: {
      const struct ib_uverbs_resize_cq* q = (const void*)in;
      const struct mlx5_ib_resize_cq* d = (const void*)q->driver_data;
      OUT(struct ib_uverbs_resize_cq_resp);
      struct cq* k = obj_get(O_CQ, q->cq_handle);
      if (!k || q->cqe > 4194303 || ((k->pi - be32toh(k->db[0])) & 0xffffff) > q->cqe) return EINVAL;
      struct mlx5_cqe64* e = cqe_next(k);
      if (!e) return ENOMEM;
      uint32_t chan = k->chan;
      k->chan = -1;
      memset(e, 0, 63);
      cqe_commit(k, e, MLX5_CQE_RESIZE_CQ << 4, 0);
      k->chan = chan;
      k->buf = (void*)d->buf_addr;
      k->ncqe = q->cqe + 1;
      k->esz = d->cqe_size;
      r.cqe = q->cqe;
      PUT(r);
      return 0;
    }
    case IB_USER_VERBS_CMD_DESTROY_CQ: {
      const struct ib_uverbs_destroy_cq* q = (const void*)in;
      OUT(struct ib_uverbs_destroy_cq_resp);
      struct cq* k = obj_get(O_CQ, q->cq_handle);
      if (!k) return EINVAL;
      for (int i = 0; i < nact; i++)
        if (act[i]->scq == k || act[i]->rcq == k) return EBUSY;
      for (int i = 0; i < narmed; i++)
        if (armed[i] == k) {
          armed[i] = armed[--narmed];
          break;
        }
      r.comp_events_reported = k->sent - (k->chan >= 0 ? drain(k->chan, 8, k->uh) : 0);
      objs[O_CQ][k->cqn] = NULL;
      free(k);
      PUT(r);
      return 0;
    }
    case IB_USER_VERBS_CMD_CREATE_QP:
    case 0x100 | IB_USER_VERBS_EX_CMD_CREATE_QP: {
      struct ib_uverbs_create_qp b;
      const struct mlx5_ib_create_qp* d;
      if (ex) {
        memcpy(&b.user_handle, in, offsetof(struct ib_uverbs_ex_create_qp, comp_mask));
        d = (const void*)din;
      } else {
        memcpy(&b, in, sizeof b);
        d = (const void*)(in + sizeof b);
      }
      if (b.qp_type != IBV_QPT_RC && b.qp_type != IBV_QPT_UC && b.qp_type != IBV_QPT_UD) return EOPNOTSUPP;
      struct qp* q = calloc(1, sizeof *q);
      q->c = c;
      q->uh = b.user_handle;
      q->type = b.qp_type;
      q->pd = b.pd_handle;
      q->scq = obj_get(O_CQ, b.send_cq_handle);
      q->rcq = obj_get(O_CQ, b.recv_cq_handle);
      q->srq = b.is_srq ? obj_get(O_SRQ, b.srq_handle) : NULL;
      if (!obj_get(O_PD, q->pd) || !q->scq || !q->rcq || (b.is_srq && !q->srq)) {
        free(q);
        return EINVAL;
      }
      q->uidx = d->uidx;
      q->rq_cnt = d->rq_wqe_count;
      q->rq_shift = d->rq_wqe_shift;
      q->sq_cnt = d->sq_wqe_count;
      q->db = (void*)d->db_addr;
      q->rq = (void*)d->buf_addr;
      q->sq = q->rq + ((size_t)q->rq_cnt << q->rq_shift);
      q->sig_all = b.sq_sig_all;
      q->s2c = cfg_s2c && (d->flags & MLX5_QP_FLAG_SCATTER_CQE);
      q->qpn = obj_new(O_QP, q);
      act[nact++] = q;
      bf_pick(c, q);
      LOG("  QP 0x%x: sq %u WQEBB at %p, rq %u x %u at %p, dbrec %p, uidx 0x%x flags 0x%x bfreg %u\n", q->qpn,
          q->sq_cnt, q->sq, q->rq_cnt, 1u << q->rq_shift, q->rq, q->db, q->uidx, d->flags, q->bf);
      q->a.max_send_wr = b.max_send_wr;
      q->a.max_recv_wr = q->rq_cnt;
      q->a.max_send_sge = b.max_send_sge;
      q->a.max_recv_sge = b.max_recv_sge;
      q->a.max_inline_data = b.max_inline_data;
      q->a.sq_sig_all = b.sq_sig_all;
      struct mlx5_ib_create_qp_resp u = {.bfreg_index = q->bf};
      struct ib_uverbs_ex_create_qp_resp r = {0};
      r.base.qp_handle = r.base.qpn = q->qpn;
      r.base.max_send_wr = b.max_send_wr;
      r.base.max_recv_wr = b.max_recv_wr;
      r.base.max_send_sge = b.max_send_sge;
      r.base.max_recv_sge = b.max_recv_sge;
      r.base.max_inline_data = b.max_inline_data;
      if (ex) {
        r.response_length = sizeof r;
        PUT(r);
        PUTD(struct ib_uverbs_ex_create_qp_resp, u);
      } else {
        PUT(r.base);
        PUTD(struct ib_uverbs_create_qp_resp, u);
      }
      return 0;
    }
    case IB_USER_VERBS_CMD_MODIFY_QP:
    case 0x100 | IB_USER_VERBS_EX_CMD_MODIFY_QP: {
      const struct ib_uverbs_modify_qp* m = (const void*)in;
      struct qp* q = obj_get(O_QP, m->qp_handle);
      if (!q) return EINVAL;
      int from = q->state, e = modify(q, m);
      LOG("  QP 0x%x: state %d -> %d mask 0x%x: %s\n", q->qpn, from, q->state, m->attr_mask, e ? strerror(e) : "ok");
      if (!e && ex && outlen) {
        OUT(struct ib_uverbs_ex_modify_qp_resp);
        r.response_length = sizeof r;
        PUT(r);
      }
      return e;
    }
    case IB_USER_VERBS_CMD_QUERY_QP: {
      struct qp* q = obj_get(O_QP, ((const struct ib_uverbs_query_qp*)in)->qp_handle);
      if (!q) return EINVAL;
      PUT(q->a);
      return 0;
    }
    case IB_USER_VERBS_CMD_DESTROY_QP: {
      struct qp* q = obj_get(O_QP, ((const struct ib_uverbs_destroy_qp*)in)->qp_handle);
      OUT(struct ib_uverbs_destroy_qp_resp);
      if (!q) return EINVAL;
      for (int i = 0; i < nact; i++)
        if (act[i] == q) {
          act[i] = act[--nact];
          break;
        }
      int n = (q->bf / 4) * 2 + q->bf % 4 - (c->nbf - c->nlow);
      if (n >= 0) c->lowlat &= ~(1u << n);
      r.events_reported = q->ev_sent - drain(c->async_fd, 16, q->uh);
      objs[O_QP][q->qpn] = NULL;
      free(q);
      PUT(r);
      return 0;
    }
    case IB_USER_VERBS_CMD_CREATE_SRQ: {
      const struct ib_uverbs_create_srq* q = (const void*)in;
      const struct mlx5_ib_create_srq* d = (const void*)q->driver_data;
      struct srq* s = calloc(1, sizeof *s);
      s->c = c;
      s->uh = q->user_handle;
      s->pd = q->pd_handle;
      s->max_wr = q->max_wr;
      s->max_sge = q->max_sge;
      s->limit = q->srq_limit;
      s->buf = (void*)d->buf_addr;
      s->db = (void*)d->db_addr;
      uint32_t sz = 16 + q->max_sge * 16;
      s->shift = 5;
      while ((1u << s->shift) < sz) s->shift++;
      s->srqn = obj_new(O_SRQ, s);
      OUT(struct ib_uverbs_create_srq_resp);
      r.srq_handle = s->srqn;
      r.max_wr = s->max_wr;
      r.max_sge = s->max_sge;
      r.srqn = s->srqn;
      struct mlx5_ib_create_srq_resp u = {.srqn = s->srqn};
      PUT(r);
      PUTD(struct ib_uverbs_create_srq_resp, u);
      return 0;
    }
    case IB_USER_VERBS_CMD_MODIFY_SRQ: {
      const struct ib_uverbs_modify_srq* q = (const void*)in;
      struct srq* s = obj_get(O_SRQ, q->srq_handle);
      if (!s) return EINVAL;
      if (q->attr_mask & IBV_SRQ_MAX_WR) return EINVAL;
      s->limit = q->srq_limit;
      return 0;
    }
    case IB_USER_VERBS_CMD_QUERY_SRQ: {
      struct srq* s = obj_get(O_SRQ, ((const struct ib_uverbs_query_srq*)in)->srq_handle);
      OUT(struct ib_uverbs_query_srq_resp);
      if (!s) return EINVAL;
      r.max_wr = s->max_wr;
      r.max_sge = s->max_sge;
      r.srq_limit = s->limit;
      PUT(r);
      return 0;
    }
    case IB_USER_VERBS_CMD_DESTROY_SRQ: {
      struct srq* s = obj_get(O_SRQ, ((const struct ib_uverbs_destroy_srq*)in)->srq_handle);
      OUT(struct ib_uverbs_destroy_srq_resp);
      if (!s) return EINVAL;
      for (int i = 0; i < nact; i++)
        if (act[i]->srq == s) return EBUSY;
      objs[O_SRQ][s->srqn] = NULL;
      free(s);
      PUT(r);
      return 0;
    }
    case IB_USER_VERBS_CMD_CREATE_AH: {
      OUT(struct ib_uverbs_create_ah_resp);
      static uint32_t ah;
      r.ah_handle = ++ah;
      struct mlx5_ib_create_ah_resp u = {.response_length = sizeof u, .dmac = {2, 0, 0, 0, 0, 1}};
      PUT(r);
      if (outlen > 4) memcpy(out + 4, &u, sizeof u < outlen - 4 ? sizeof u : outlen - 4);
      return 0;
    }
    case IB_USER_VERBS_CMD_DESTROY_AH:
      return 0;
  }
  return EOPNOTSUPP;
}
static const char* cname(uint32_t c) {
  static const char* n[] = {
      "GET_CONTEXT",  "QUERY_DEVICE", "QUERY_PORT", "ALLOC_PD",   "DEALLOC_PD", "CREATE_AH",
      "MODIFY_AH",    "QUERY_AH",     "DESTROY_AH", "REG_MR",     "REG_SMR",    "REREG_MR",
      "QUERY_MR",     "DEREG_MR",     "ALLOC_MW",   "BIND_MW",    "DEALLOC_MW", "CREATE_COMP_CHANNEL",
      "CREATE_CQ",    "RESIZE_CQ",    "DESTROY_CQ", "POLL_CQ",    "PEEK_CQ",    "REQ_NOTIFY_CQ",
      "CREATE_QP",    "QUERY_QP",     "MODIFY_QP",  "DESTROY_QP", "POST_SEND",  "POST_RECV",
      "ATTACH_MCAST", "DETACH_MCAST", "CREATE_SRQ", "MODIFY_SRQ", "QUERY_SRQ",  "DESTROY_SRQ"};
  return c < sizeof n / sizeof *n ? n[c] : "?";
}
static ssize_t uv_write(int fd, const void* buf, size_t n) {
  struct ctx* c = fd_ctx[fd];
  const struct ib_uverbs_cmd_hdr* h = buf;
  int e;
  if (!c || n < sizeof *h) {
    errno = EINVAL;
    return -1;
  }
  uint32_t cmd = h->command & 0xff;
  int ex = !!(h->command & IB_USER_VERBS_CMD_FLAG_EXTENDED);
  lock();
  if (!eng_started && !cfg_inline) {
    eng_started = 1;
    pthread_create(&eng_thr, NULL, engine, NULL);
  }
  if (ex) {
    const struct ib_uverbs_ex_cmd_hdr* x = (const void*)(h + 1);
    const uint8_t* in = (const void*)(x + 1);
    size_t core = h->in_words * 8;
    e = do_cmd(c, cmd, 1, in, n - sizeof *h - sizeof *x, (void*)x->response,
               h->out_words * 8 + x->provider_out_words * 8, h->out_words * 8, in + core);
  } else {
    const uint8_t* in = (const void*)(h + 1);
    uint64_t resp = 0;
    if (n >= sizeof *h + 8 && h->out_words) memcpy(&resp, in, 8);
    e = do_cmd(c, cmd, 0, in, n - sizeof *h, (void*)resp, h->out_words * 4, h->out_words * 4, NULL);
  }
  unlock();
  LOG("write %s%s in %zu -> %s\n", ex ? "EX_" : "", cname(cmd), n, e ? strerror(e) : "ok");
  if (e) {
    errno = e;
    return -1;
  }
  return n;
}
static void uv_close(int fd) {
  struct ctx* c = fd_ctx[fd];
  if (!c) return;
  lock();
  for (int i = 0; i < MAXOBJ; i++) { /* what the kernel's file release does */
    struct qp* q = objs[O_QP][i];
    if (q && q->c == c) {
      for (int j = 0; j < nact; j++)
        if (act[j] == q) {
          act[j] = act[--nact];
          break;
        }
      objs[O_QP][i] = NULL;
      free(q);
    }
    struct cq* k = objs[O_CQ][i];
    if (k && k->c == c) {
      for (int j = 0; j < narmed; j++)
        if (armed[j] == k) {
          armed[j] = armed[--narmed];
          break;
        }
      objs[O_CQ][i] = NULL;
      free(k);
    }
    struct srq* s = objs[O_SRQ][i];
    if (s && s->c == c) {
      objs[O_SRQ][i] = NULL;
      free(s);
    }
    struct pd* p = objs[O_PD][i];
    if (p && p->c == c) {
      for (int j = 0; j < MAXOBJ; j++) {
        struct mr* m = objs[O_MR][j];
        if (m && m->pd == (uint32_t)i) {
          objs[O_MR][j] = NULL;
          free(m);
        }
      }
      objs[O_PD][i] = NULL;
      free(p);
    }
  }
  fd_ctx[fd] = NULL;
  fd_kind[fd] = FD_NONE;
  unlock();
  free(c);
}

/* ---------------------------------------------------------------- fake sysfs */
static char sysroot[256];
static void put(const char* rel, const char* fmt, ...) {
  char p[512], v[256];
  va_list a;
  snprintf(p, sizeof p, "%s/%s", sysroot, rel);
  for (char* s = p + 1; (s = strchr(s, '/')); s++) {
    *s = 0;
    mkdir(p, 0755);
    *s = '/';
  }
  va_start(a, fmt);
  int n = vsnprintf(v, sizeof v, fmt, a);
  va_end(a);
  int fd = syscall(SYS_openat, AT_FDCWD, p, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return;
  (void)!syscall(SYS_write, fd, v, n);
  syscall(SYS_close, fd);
}
static void mksysfs(void) {
  char b[128];
#define P(f, ...)                                            \
  do {                                                       \
    snprintf(b, sizeof b, "class/infiniband/mlx5_%d/" f, d); \
    put(b, __VA_ARGS__);                                     \
  } while (0)
#define U(f, ...)                                                   \
  do {                                                              \
    snprintf(b, sizeof b, "class/infiniband_verbs/uverbs%d/" f, d); \
    put(b, __VA_ARGS__);                                            \
  } while (0)
  put("class/infiniband_verbs/abi_version", "6\n");
  for (int d = 0; d < cfg_ndev; d++) {
    U("ibdev", "mlx5_%d\n", d);
    U("dev", "1:3\n");
    U("abi_version", "1\n");
    P("node_type", "1: CA\n");
    P("node_guid", "0c42:a103:0000:%04x\n", d);
    P("sys_image_guid", "0c42:a103:0000:%04x\n", d);
    P("fw_ver", "16.35.4030\n");
    P("board_id", "MODEL0000000001\n");
    P("hca_type", "MT%d\n", cfg_devid + 0);
    P("hw_rev", "0\n");
    P("node_desc", "mlx5model\n");
    P("device/modalias", "pci:v000015B3d%08Xsv000015B3sd00000001bc02sc00i00\n", cfg_devid);
    P("device/vendor", "0x15b3\n");
    P("device/device", "0x%04x\n", cfg_devid);
    P("device/numa_node", "-1\n");
    P("ports/1/state", "4: ACTIVE\n");
    P("ports/1/phys_state", "5: LinkUp\n");
    P("ports/1/link_layer", cfg_ib ? "InfiniBand\n" : "Ethernet\n");
    P("ports/1/rate", "100 Gb/sec (4X EDR)\n");
    P("ports/1/lid", "0x%x\n", cfg_ib ? 1 + d : 0);
    P("ports/1/pkeys/0", "0xffff\n");
    for (int g = 0; g < 8; g++) {
      char f[64];
      snprintf(f, sizeof f, "ports/1/gids/%d", g);
      snprintf(b, sizeof b, "class/infiniband/mlx5_%d/%s", d, f);
      if (g < (cfg_ib ? 1 : 2))
        put(b, "fe80:0000:0000:0000:0e42:a1ff:fe00:%04x\n", d);
      else if (g < 4 && !cfg_ib)
        put(b, "0000:0000:0000:0000:0000:ffff:0a63:00%02x\n", d + 1);
      else
        put(b, "0000:0000:0000:0000:0000:0000:0000:0000\n");
      snprintf(b, sizeof b, "class/infiniband/mlx5_%d/ports/1/gid_attrs/types/%d", d, g);
      put(b, g & 1 && !cfg_ib ? "RoCE v2\n" : "IB/RoCE v1\n");
      if (!cfg_ib && g < 4) {
        snprintf(b, sizeof b, "class/infiniband/mlx5_%d/ports/1/gid_attrs/ndevs/%d", d, g);
        put(b, "lo\n");
      }
    }
  }
}

/* ---------------------------------------------------------------- libc interposition */
static int (*r_open)(const char*, int, ...), (*r_openat)(int, const char*, int, ...), (*r_close)(int),
    (*r_ioctl)(int, unsigned long, ...), (*r_socket)(int, int, int), (*r_stat)(const char*, struct stat*);
static ssize_t (*r_write)(int, const void*, size_t);
#define REAL(f)                                                    \
  do {                                                             \
    if (__builtin_expect(!r_##f, 0)) r_##f = dlsym(RTLD_NEXT, #f); \
  } while (0)
static int is_uv(const char* p) {
  int d, n = 0;
  return p && !strncmp(p, "/dev/infiniband/uverbs", 22) && sscanf(p + 22, "%d%n", &d, &n) == 1 && !p[22 + n] &&
                 d < cfg_ndev
             ? d
             : -1;
}
static int uv_open(int dev, int flags) {
  int fd = syscall(SYS_openat, AT_FDCWD, "/dev/null", flags, 0);
  if (fd < 0 || fd >= MAXFD) return fd; /* a char device 1:3, as our sysfs says */
  struct ctx* c = calloc(1, sizeof *c);
  c->fd = fd;
  c->async_fd = -1;
  c->dev = dev;
  fd_ctx[fd] = c;
  fd_kind[fd] = FD_UVERBS;
  LOG("open uverbs%d -> fd %d\n", dev, fd);
  return fd;
}
#define MODE                        \
  mode_t m = 0;                     \
  if (fl & (O_CREAT | O_TMPFILE)) { \
    va_list a;                      \
    va_start(a, fl);                \
    m = va_arg(a, mode_t);          \
    va_end(a);                      \
  }                                 \
  int d = is_uv(p);                 \
  if (d >= 0) return uv_open(d, fl)
int open(const char* p, int fl, ...) {
  MODE;
  REAL(open);
  return r_open(p, fl, m);
}
int open64(const char* p, int fl, ...) {
  MODE;
  REAL(open);
  return r_open(p, fl | O_LARGEFILE, m);
}
int openat(int at, const char* p, int fl, ...) {
  MODE;
  REAL(openat);
  return r_openat(at, p, fl, m);
}
int openat64(int at, const char* p, int fl, ...) {
  MODE;
  REAL(openat);
  return r_openat(at, p, fl | O_LARGEFILE, m);
}
int stat(const char* p, struct stat* s) {
  REAL(stat);
  return r_stat(is_uv(p) >= 0 ? "/dev/null" : p, s);
}
int close(int fd) {
  REAL(close);
  if ((unsigned)fd < MAXFD && fd_kind[fd]) {
    if (fd_kind[fd] == FD_UVERBS)
      uv_close(fd);
    else {
      r_close(fd_peer[fd]);
      fd_kind[fd] = FD_NONE;
    }
  }
  return r_close(fd);
}
ssize_t write(int fd, const void* b, size_t n) {
  if ((unsigned)fd < MAXFD && fd_kind[fd] == FD_UVERBS) return uv_write(fd, b, n);
  REAL(write);
  return r_write(fd, b, n);
}
int ioctl(int fd, unsigned long rq, ...) {
  va_list a;
  va_start(a, rq);
  void* arg = va_arg(a, void*);
  va_end(a);
  if ((unsigned)fd < MAXFD && fd_kind[fd] == FD_UVERBS) {
    errno = ENOTTY;
    return -1;
  } /* "kernel without the uverbs ioctl": everything then arrives by write() */
  REAL(ioctl);
  return r_ioctl(fd, rq, arg);
}
void* mmap(void* at, size_t n, int prot, int fl, int fd, off_t off) {
  if (fd >= 0 && fd < MAXFD && fd_kind[fd] == FD_UVERBS) {
    LOG("mmap cmd %ld index %ld\n", (long)(off >> 20) & 0xff, (long)(off >> 12) & 0xff);
    fl = MAP_PRIVATE | MAP_ANONYMOUS;
    fd = -1;
    off = 0;
    prot = PROT_READ | PROT_WRITE; /* UAR page: plain memory */
  }
  return (void*)syscall(SYS_mmap, at, n, prot, fl, fd, off);
}
void* mmap64(void* at, size_t n, int prot, int fl, int fd, off_t off) { return mmap(at, n, prot, fl, fd, off); }
int socket(int d, int t, int p) {
  if (d == AF_NETLINK && p == 20 /* NETLINK_RDMA */) {
    errno = EPROTONOSUPPORT;
    return -1;
  }
  REAL(socket);
  return r_socket(d, t, p);
}

static void fini(void) {
  if (cfg_log) fprintf(stderr, "[mlx5model] %lu WQEs %lu CQEs %lu bytes %lu events\n", st.wqe, st.cqe, st.bytes, st.ev);
}
__attribute__((constructor)) static void init(void) {
  char* e;
  if ((e = getenv("MLX5MODEL_LOG"))) cfg_log = atoi(e);
  if ((e = getenv("MLX5MODEL_MODE"))) cfg_inline = !strcmp(e, "inline") ? 1 : !strcmp(e, "poll") ? 2 : 0;
  if ((e = getenv("MLX5MODEL_LINK"))) cfg_ib = !strcmp(e, "ib");
  if ((e = getenv("MLX5MODEL_NDEV"))) cfg_ndev = atoi(e);
  if ((e = getenv("MLX5MODEL_SPIN_US"))) cfg_spin_us = atol(e);
  if ((e = getenv("MLX5MODEL_S2C"))) cfg_s2c = atoi(e);
  snprintf(sysroot, sizeof sysroot, "%s/sysfs.%d", getenv("MLX5MODEL_DIR") ?: "/tmp", getuid());
  mksysfs();
  setenv("SYSFS_PATH", sysroot, 1);
  atexit(fini);
}
