/* Checks: what mlx5dv has beyond verbs, dynamically connected transport before all. */
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

#define DC_KEY 0x0123456789abcdefull

/* An end with an initiator (end.qp), a target on a shared receive queue, and an address handle to the other end. */
struct dc_end {
  struct end e;
  struct ibv_qp* dct;
  struct ibv_ah* ah;
};
struct dc_pair {
  struct dc_end a, b;
};

static bool create_target(struct dc_end* d) {
  struct ibv_qp_init_attr_ex attr = {.send_cq = d->e.cq,
                                     .recv_cq = d->e.recv_cq,
                                     .srq = d->e.srq,
                                     .qp_type = IBV_QPT_DRIVER,
                                     .comp_mask = IBV_QP_INIT_ATTR_PD,
                                     .pd = d->e.pd};
  struct mlx5dv_qp_init_attr dv = {.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
                                   .dc_init_attr = {.dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = DC_KEY}};
  EXPECT(d->dct = mlx5dv_create_qp(d->e.context, &attr, &dv));
  return true;
}

static bool create_initiator(struct dc_end* d, int log_streams, int log_errored) {
  struct ibv_qp_init_attr_ex attr = {.send_cq = d->e.cq,
                                     .recv_cq = d->e.recv_cq,
                                     .qp_type = IBV_QPT_DRIVER,
                                     .cap = {.max_send_wr = 64, .max_send_sge = 6, .max_inline_data = 64},
                                     .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                     .pd = d->e.pd,
                                     .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE |
                                                       IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
                                                       IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP};
  struct mlx5dv_qp_init_attr dv = {.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
                                   .dc_init_attr = {.dc_type = MLX5DV_DCTYPE_DCI}};
  if (log_streams) {
    dv.comp_mask |= MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS;
    dv.dc_init_attr.dci_streams = (struct mlx5dv_dci_streams){log_streams, log_errored};
  }
  d->e.qp = mlx5dv_create_qp(d->e.context, &attr, &dv);
  return d->e.qp != NULL;
}

static struct ibv_qp_attr attributes(struct dc_end* d, enum ibv_qp_state state) {
  struct ibv_qp_attr attr = {.qp_state = state,
                             .port_num = 1,
                             .path_mtu = IBV_MTU_1024,
                             .timeout = 8,
                             .retry_cnt = 1,
                             .rnr_retry = 1,
                             .min_rnr_timer = 1,
                             .max_rd_atomic = 16,
                             .ah_attr = {.is_global = 1, .grh = {.sgid_index = 3, .hop_limit = 64}, .port_num = 1}};
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  ibv_query_gid(d->e.context, 1, 3, &attr.ah_attr.grh.dgid);
  return attr;
}

static int step(struct dc_end* d, struct ibv_qp* qp, enum ibv_qp_state state, int mask) {
  struct ibv_qp_attr attr = attributes(d, state);
  return ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE);
}

enum {
  DCI_INIT = IBV_QP_PKEY_INDEX | IBV_QP_PORT,
  DCI_RTR = IBV_QP_PATH_MTU,
  DCI_RTS = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
  DCT_INIT = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
  DCT_RTR = IBV_QP_MIN_RNR_TIMER | IBV_QP_AV | IBV_QP_PATH_MTU,
};

static bool start_initiator(struct dc_end* d) {
  EXPECT(!step(d, d->e.qp, IBV_QPS_INIT, DCI_INIT) && !step(d, d->e.qp, IBV_QPS_RTR, DCI_RTR));
  EXPECT(!step(d, d->e.qp, IBV_QPS_RTS, DCI_RTS));
  return true;
}

static bool dc_end_open(struct dc_end* d, int dev, int log_streams, int log_errored) {
  struct ibv_srq_init_attr srq = {.attr = {.max_wr = 32, .max_sge = 2}};
  memset(d, 0, sizeof *d);
  EXPECT(end_open(&d->e, dev) && (d->e.srq = ibv_create_srq(d->e.pd, &srq)));
  EXPECT(create_target(d) && create_initiator(d, log_streams, log_errored) && start_initiator(d));
  EXPECT(!step(d, d->dct, IBV_QPS_INIT, DCT_INIT) && !step(d, d->dct, IBV_QPS_RTR, DCT_RTR));
  return true;
}

static bool dc_end_close(struct dc_end* d) {
  EXPECT(!d->ah || !ibv_destroy_ah(d->ah));
  EXPECT(!ibv_destroy_qp(d->dct));
  return end_close(&d->e);
}

static bool dc_open(struct dc_pair* p, int log_streams, int log_errored) {
  EXPECT(dc_end_open(&p->a, 0, log_streams, log_errored) && dc_end_open(&p->b, 1, 0, 0));
  struct ibv_ah_attr to = {.is_global = 1, .grh = {.sgid_index = 3, .hop_limit = 64}, .port_num = 1};
  EXPECT(!ibv_query_gid(p->b.e.context, 1, 3, &to.grh.dgid) && (p->a.ah = ibv_create_ah(p->a.e.pd, &to)));
  return true;
}

static bool dc_close(struct dc_pair* p) { return dc_end_close(&p->a) && dc_end_close(&p->b); }

/* Where a request goes; zeros stand for the other end's target, its key and its memory. */
struct request {
  enum ibv_wr_opcode op;
  uint32_t dctn, rkey, length, stream;
  uint64_t dc_key, offset, id, swap, compare_add;
  int sges;
};

static int post(struct dc_pair* p, struct request r) {
  struct ibv_qp_ex* qp = ibv_qp_to_qp_ex(p->a.e.qp);
  uint64_t remote = (uintptr_t)p->b.e.buf + r.offset;
  uint32_t rkey = r.rkey ? r.rkey : p->b.e.mr->rkey;
  struct ibv_sge sge[6];
  ibv_wr_start(qp);
  qp->wr_id = r.id;
  qp->wr_flags = IBV_SEND_SIGNALED;
  if (r.op == IBV_WR_SEND)
    ibv_wr_send(qp);
  else if (r.op == IBV_WR_RDMA_WRITE)
    ibv_wr_rdma_write(qp, rkey, remote);
  else if (r.op == IBV_WR_RDMA_READ)
    ibv_wr_rdma_read(qp, rkey, remote);
  else if (r.op == IBV_WR_ATOMIC_FETCH_AND_ADD)
    ibv_wr_atomic_fetch_add(qp, rkey, remote, r.compare_add);
  else
    ibv_wr_atomic_cmp_swp(qp, rkey, remote, r.compare_add, r.swap);
  int sges = r.sges ? r.sges : 1;
  for (int i = 0; i < sges; i++)
    sge[i] = (struct ibv_sge){(uintptr_t)p->a.e.buf + r.offset + (uint64_t)i * r.length, r.length, p->a.e.mr->lkey};
  ibv_wr_set_sge_list(qp, (size_t)sges, sge);
  mlx5dv_wr_set_dc_addr_stream(mlx5dv_qp_ex_from_ibv_qp_ex(qp), p->a.ah, r.dctn ? r.dctn : p->b.dct->qp_num,
                               r.dc_key ? r.dc_key : DC_KEY, (uint16_t)r.stream);
  return ibv_wr_complete(qp);
}

static bool all_operations(void) {
  struct dc_pair p;
  EXPECT(dc_open(&p, 0, 0));
  char *from = p.a.e.buf, *to = p.b.e.buf;
  for (int i = 0; i < BUFFER; i++) from[i] = (char)(i * 7 + i / 251);
  EXPECT(!post(&p, (struct request){.op = IBV_WR_RDMA_WRITE, .length = 5000, .offset = 8192, .id = 1}));
  EXPECT(completes(p.a.e.cq, 1, IBV_WC_SUCCESS) && !memcmp(from + 8192, to + 8192, 5000) && !to[8191] && !to[13192]);

  struct ibv_sge sge = {(uintptr_t)to, 4096, p.b.e.mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = 77, .sg_list = &sge, .num_sge = 1}, *bad;
  EXPECT(!ibv_post_srq_recv(p.b.e.srq, &wr, &bad));
  EXPECT(!post(&p, (struct request){.op = IBV_WR_SEND, .length = 700, .id = 2}));
  EXPECT(completes(p.a.e.cq, 2, IBV_WC_SUCCESS));
  struct ibv_wc wc = next_completion(p.b.e.recv_cq);
  EXPECT(wc.status == IBV_WC_SUCCESS && wc.wr_id == 77 && wc.byte_len == 700 && wc.qp_num == p.b.dct->qp_num);
  EXPECT(wc.src_qp == p.a.e.qp->qp_num && !memcmp(from, to, 700));

  memset(to + 65536, 0x5a, 3000);
  EXPECT(!post(&p, (struct request){.op = IBV_WR_RDMA_READ, .length = 3000, .offset = 65536, .id = 3}));
  EXPECT(completes(p.a.e.cq, 3, IBV_WC_SUCCESS) && !memcmp(from + 65536, to + 65536, 3000));

  uint64_t value = 40, old;
  memcpy(to + 131072, &value, 8);
  struct request atomic = {
      .op = IBV_WR_ATOMIC_FETCH_AND_ADD, .length = 8, .offset = 131072, .id = 4, .compare_add = 2, .swap = 99};
  EXPECT(!post(&p, atomic) && completes(p.a.e.cq, 4, IBV_WC_SUCCESS));
  memcpy(&old, from + 131072, 8);
  memcpy(&value, to + 131072, 8);
  EXPECT(old == 40 && value == 42);
  atomic.op = IBV_WR_ATOMIC_CMP_AND_SWP;
  atomic.compare_add = 42;
  EXPECT(!post(&p, atomic) && completes(p.a.e.cq, 4, IBV_WC_SUCCESS));
  memcpy(&old, from + 131072, 8);
  memcpy(&value, to + 131072, 8);
  EXPECT(old == 42 && value == 99);
  return dc_close(&p);
}

/* WQEs of two and three blocks, so that they wrap around the end of the queue at each of their segments. */
static bool wraps_around(void) {
  struct dc_pair p;
  EXPECT(dc_open(&p, 0, 0));
  for (uint64_t i = 0; i < 1000; i++) {
    int sges = 1 + (int)(i % 6);
    memset(p.a.e.buf + 4096, (int)i, 6 * 100);
    memset(p.b.e.buf + 4096, ~(int)i, 6 * 100 + 1);
    EXPECT(!post(&p, (struct request){.op = IBV_WR_RDMA_WRITE, .length = 100, .offset = 4096, .sges = sges, .id = i}));
    EXPECT(completes(p.a.e.cq, i, IBV_WC_SUCCESS));
    EXPECT(!memcmp(p.a.e.buf + 4096, p.b.e.buf + 4096, 100 * (size_t)sges));
    EXPECT(p.b.e.buf[4096 + 100 * sges] == (char)~i);
  }
  return dc_close(&p);
}

static bool restart(struct dc_pair* p) {
  EXPECT(qp_state(p->a.e.qp) == IBV_QPS_ERR);
  EXPECT(!post(p, (struct request){.op = IBV_WR_RDMA_WRITE, .length = 8, .id = 100}));
  EXPECT(completes(p->a.e.cq, 100, IBV_WC_WR_FLUSH_ERR));
  EXPECT(!step(&p->a, p->a.e.qp, IBV_QPS_RESET, 0) && start_initiator(&p->a));
  return true;
}

static bool refused(struct dc_pair* p, struct request r, enum ibv_wc_status status) {
  EXPECT(!post(p, r) && completes(p->a.e.cq, r.id, status));
  return restart(p);
}

/* Each failure harms the initiator alone: the target goes on. */
static bool failures(void) {
  struct dc_pair p;
  EXPECT(dc_open(&p, 0, 0));
  struct request write = {.op = IBV_WR_RDMA_WRITE, .length = 64, .id = 1}, r = write;
  r.dc_key = DC_KEY + 1;
  EXPECT(refused(&p, r, IBV_WC_REM_ACCESS_ERR));
  r = write;
  r.rkey = p.b.e.mr->rkey + 1;
  EXPECT(refused(&p, r, IBV_WC_REM_ACCESS_ERR));
  r = write;
  r.dctn = p.b.e.qp->qp_num; /* not a target */
  EXPECT(refused(&p, r, IBV_WC_RETRY_EXC_ERR));
  r.dctn = 0xfffff0;
  EXPECT(refused(&p, r, IBV_WC_RETRY_EXC_ERR));
  r = write;
  r.op = IBV_WR_SEND;
  EXPECT(refused(&p, r, IBV_WC_RNR_RETRY_EXC_ERR));
  struct ibv_sge sge = {(uintptr_t)p.b.e.buf, 32, p.b.e.mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = 7, .sg_list = &sge, .num_sge = 1}, *bad;
  EXPECT(!ibv_post_srq_recv(p.b.e.srq, &wr, &bad));
  EXPECT(refused(&p, r, IBV_WC_REM_INV_REQ_ERR) && completes(p.b.e.recv_cq, 7, IBV_WC_LOC_LEN_ERR));
  EXPECT(!post(&p, write) && completes(p.a.e.cq, 1, IBV_WC_SUCCESS));
  return dc_close(&p);
}

static bool states_of_dc(void) {
  struct dc_end d;
  struct ibv_srq_init_attr srq = {.attr = {.max_wr = 32, .max_sge = 1}};
  memset(&d, 0, sizeof d);
  EXPECT(end_open(&d.e, 0) && (d.e.srq = ibv_create_srq(d.e.pd, &srq)) && create_target(&d));
  EXPECT(create_initiator(&d, 0, 0) && d.dct->qp_num == 0 && d.e.qp->qp_num != 0);
  struct {
    struct ibv_qp* qp;
    int to, must, may;
  } steps[] = {{d.e.qp, IBV_QPS_INIT, DCI_INIT, 0},
               {d.e.qp, IBV_QPS_RTR, DCI_RTR, IBV_QP_PKEY_INDEX | IBV_QP_AV},
               {d.e.qp, IBV_QPS_RTS, DCI_RTS, IBV_QP_MIN_RNR_TIMER},
               {d.dct, IBV_QPS_INIT, DCT_INIT, 0},
               {d.dct, IBV_QPS_RTR, DCT_RTR, 0}};
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  EXPECT(ibv_query_qp(d.dct, &attr, IBV_QP_STATE, &init) == EINVAL);
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    for (int bit = 2; bit < IBV_QP_RATE_LIMIT; bit <<= 1) {
      int mask = steps[i].must & bit ? steps[i].must & ~bit : steps[i].must | bit;
      if (!(steps[i].may & bit)) EXPECT(step(&d, steps[i].qp, steps[i].to, mask) == EINVAL);
    }
    EXPECT(!step(&d, steps[i].qp, steps[i].to, steps[i].must));
  }
  EXPECT(d.dct->qp_num != 0 && step(&d, d.dct, IBV_QPS_ERR, 0) == EINVAL);
  EXPECT(!ibv_query_qp(d.dct, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PORT, &init));
  EXPECT(attr.qp_state == IBV_QPS_RTR && attr.port_num == 1);
  EXPECT(ibv_query_qp(d.dct, &attr, IBV_QP_STATE | IBV_QP_QKEY, &init) == EINVAL);
  return dc_end_close(&d);
}

/* A stream that fails is flushed alone, until one too many has failed. */
static bool streams(void) {
  struct dc_pair p;
  EXPECT(dc_open(&p, 3, 1));
  struct request good = {.op = IBV_WR_RDMA_WRITE, .length = 8, .id = 1, .stream = 1}, bad = good;
  bad.rkey = p.b.e.mr->rkey + 1;
  bad.stream = 2;
  EXPECT(!post(&p, good) && completes(p.a.e.cq, 1, IBV_WC_SUCCESS));
  EXPECT(!post(&p, bad) && completes(p.a.e.cq, 1, IBV_WC_REM_ACCESS_ERR) && qp_state(p.a.e.qp) == IBV_QPS_RTS);
  EXPECT(!post(&p, bad) && completes(p.a.e.cq, 1, IBV_WC_WR_FLUSH_ERR) && qp_state(p.a.e.qp) == IBV_QPS_RTS);
  EXPECT(!post(&p, good) && completes(p.a.e.cq, 1, IBV_WC_SUCCESS));
  bad.stream = 3;
  EXPECT(!post(&p, bad) && completes(p.a.e.cq, 1, IBV_WC_REM_ACCESS_ERR) && restart(&p));
  good.stream = 3;
  EXPECT(!post(&p, good) && completes(p.a.e.cq, 1, IBV_WC_SUCCESS));
  EXPECT(mlx5dv_dci_stream_id_reset(p.a.e.qp, 3) == EINVAL); /* it has not failed */
  bad.stream = 4;
  EXPECT(!post(&p, bad) && completes(p.a.e.cq, 1, IBV_WC_REM_ACCESS_ERR) && qp_state(p.a.e.qp) == IBV_QPS_RTS);
  EXPECT(!mlx5dv_dci_stream_id_reset(p.a.e.qp, 4) && mlx5dv_dci_stream_id_reset(p.a.e.qp, 4) == EINVAL);
  good.stream = 4;
  EXPECT(!post(&p, good) && completes(p.a.e.cq, 1, IBV_WC_SUCCESS));
  struct mlx5dv_context caps = {.comp_mask = MLX5DV_CONTEXT_MASK_DCI_STREAMS};
  EXPECT(!mlx5dv_query_device(p.a.e.context, &caps) && (caps.comp_mask & MLX5DV_CONTEXT_MASK_DCI_STREAMS));
  struct dc_end beyond = p.a;
  EXPECT(!create_initiator(&beyond, caps.dci_streams_caps.max_log_num_concurent + 1, 0) && errno == EINVAL);
  return dc_close(&p);
}

/* The value of a field of a queue pair's context, as the device has it. */
static unsigned context_field(struct ibv_qp* qp, unsigned byte, unsigned bytes) {
  uint8_t in[16] = {5, 0x0b}, out[272] = {0}; /* QUERY_QP */
  in[9] = (uint8_t)(qp->qp_num >> 16);
  in[10] = (uint8_t)(qp->qp_num >> 8);
  in[11] = (uint8_t)qp->qp_num;
  if (mlx5dv_devx_qp_query(qp, in, sizeof in, out, sizeof out)) return ~0u;
  return bytes == 1 ? out[byte] & 0xfu : (unsigned)(out[byte] << 8 | out[byte + 1]);
}

static bool ports_of_a_connection(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  EXPECT(!mlx5dv_modify_qp_udp_sport(p.a.qp, 55555) && context_field(p.a.qp, 82, 2) == 55555);
  uint8_t port, active;
  EXPECT(!mlx5dv_query_qp_lag_port(p.a.qp, &port, &active) && port == 1 && active == 1);
  EXPECT(!mlx5dv_modify_qp_lag_port(p.a.qp, 2) && mlx5dv_modify_qp_lag_port(p.a.qp, 3) == EINVAL);
  EXPECT(!mlx5dv_query_qp_lag_port(p.a.qp, &port, &active) && port == 2 && active == 2);
  EXPECT(context_field(p.a.qp, 24, 1) == 2 && mlx5dv_query_qp_lag_port(p.b.qp, &port, &active) == EOPNOTSUPP);
  struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
  EXPECT(!ibv_modify_qp(p.b.qp, &reset, IBV_QP_STATE) && mlx5dv_modify_qp_udp_sport(p.b.qp, 1) == EOPNOTSUPP);
  struct mlx5dv_clock_info clock;
  EXPECT(!mlx5dv_get_clock_info(p.a.context, &clock) && mlx5dv_ts_to_ns(&clock, clock.last_cycles) == clock.nsec);
  uint64_t later = mlx5dv_ts_to_ns(&clock, clock.last_cycles + 156250000) - clock.nsec;
  EXPECT(later > 999000000 && later < 1001000000); /* a second */
  return pair_close(&p);
}

const struct check dc_checks[] = {
    {"DC: write, send, read and atomics", all_operations},
    {"DC: WQEs wrap around", wraps_around},
    {"DC: failures", failures},
    {"DC: states and attribute masks", states_of_dc},
    {"DC: streams", streams},
    {"ports of a connection, the clock", ports_of_a_connection},
    {0},
};
