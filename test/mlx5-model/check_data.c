/* Checks: data arrive, through every kind of operation and of queue. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static void fill(char* p, size_t n, int seed) {
  for (size_t i = 0; i < n; i++) p[i] = (char)(seed + (int)i * 7);
}

static bool write_sizes(void) {
  static const uint32_t sizes[] = {0, 1, 7, 8, 4095, 4096, BUFFER};
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    fill(p.a.buf, sizes[i], (int)i);
    EXPECT(!post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, sizes[i], &p.b, i));
    struct ibv_wc wc = next_completion(p.a.cq);
    EXPECT(wc.status == IBV_WC_SUCCESS && wc.wr_id == i && wc.opcode == IBV_WC_RDMA_WRITE);
    EXPECT(wc.qp_num == p.a.qp->qp_num && !memcmp(p.a.buf, p.b.buf, sizes[i]));
  }
  return pair_close(&p);
}

/* Every inline length, often enough to wrap around the queue at every place. */
static bool inline_wraps(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  for (int i = 0; i < 3000; i++) {
    uint32_t length = (uint32_t)i % 129;
    fill(p.a.buf, length, i);
    EXPECT(!post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | IBV_SEND_INLINE, length, &p.b, (uint64_t)i));
    EXPECT(completes(p.a.cq, (uint64_t)i, IBV_WC_SUCCESS) && !memcmp(p.a.buf, p.b.buf, length));
  }
  return pair_close(&p);
}

/* 1 to 30 pieces at either side. */
static bool many_pieces(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  for (int i = 0; i < 1000; i++) {
    struct ibv_sge out[30], in[30];
    int n = 1 + i % 30, m = 1 + (i * 7) % 30;
    uint32_t total = 0;
    for (int k = 0; k < n; k++) {
      out[k] = (struct ibv_sge){(uintptr_t)p.a.buf + total, 10 + (uint32_t)k, p.a.mr->lkey};
      total += out[k].length;
    }
    for (int k = 0; k < m; k++)
      in[k] = (struct ibv_sge){(uintptr_t)p.b.buf + (size_t)k * 2000, (total + 29) / (uint32_t)m, p.b.mr->lkey};
    in[m - 1].length = 2000;
    fill(p.a.buf, total, i);
    struct ibv_recv_wr recv = {.wr_id = 1, .sg_list = in, .num_sge = m}, *bad_recv;
    struct ibv_send_wr send = {.sg_list = out, .num_sge = n, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr* bad_send;
    EXPECT(!ibv_post_recv(p.b.qp, &recv, &bad_recv) && !ibv_post_send(p.a.qp, &send, &bad_send));
    EXPECT(completes(p.a.cq, 0, IBV_WC_SUCCESS));
    struct ibv_wc wc = next_completion(p.b.recv_cq);
    EXPECT(wc.status == IBV_WC_SUCCESS && wc.byte_len == total);
    for (uint32_t at = 0, k = 0; at < total; k++) {
      uint32_t left = total - at, part = in[k].length < left ? in[k].length : left;
      EXPECT(!memcmp(p.b.buf + (size_t)k * 2000, p.a.buf + at, part));
      at += part;
    }
  }
  return pair_close(&p);
}

static bool read_back(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  fill(p.b.buf, BUFFER, 3);
  for (uint32_t length = 0; length <= BUFFER; length = length * 2 + 1) {
    memset(p.a.buf, 0, BUFFER);
    EXPECT(!post_rdma(&p.a, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, length, &p.b, length));
    struct ibv_wc wc = next_completion(p.a.cq);
    EXPECT(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_READ && wc.byte_len == length);
    EXPECT(!memcmp(p.a.buf, p.b.buf, length));
  }
  return pair_close(&p);
}

/* Lengths around 32 bytes, where data travel in the CQE, and others. */
static bool send_receive(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  for (uint32_t i = 0; i < 2000; i++) {
    uint32_t length = i % 2 ? i % 70 : i * 7 % 4096;
    fill(p.a.buf, length, (int)i);
    EXPECT(!post_receive(&p.b, p.b.buf, 4096, i));
    EXPECT(!post_rdma(&p.a, IBV_WR_SEND, IBV_SEND_SIGNALED, length, &p.b, i + 5));
    EXPECT(completes(p.a.cq, i + 5, IBV_WC_SUCCESS));
    struct ibv_wc wc = next_completion(p.b.recv_cq);
    EXPECT(wc.status == IBV_WC_SUCCESS && wc.wr_id == i && wc.byte_len == length && wc.opcode == IBV_WC_RECV);
    EXPECT(!memcmp(p.a.buf, p.b.buf, length));
  }
  return pair_close(&p);
}

static bool immediate_data(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  for (int write = 0; write < 2; write++) {
    EXPECT(!post_receive(&p.b, p.b.buf, 4096, 1));
    EXPECT(
        !post_rdma(&p.a, write ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND_WITH_IMM, IBV_SEND_SIGNALED, 100, &p.b, 2));
    EXPECT(completes(p.a.cq, 2, IBV_WC_SUCCESS));
    struct ibv_wc wc = next_completion(p.b.recv_cq);
    EXPECT(wc.status == IBV_WC_SUCCESS && wc.opcode == (write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV));
    EXPECT((wc.wc_flags & IBV_WC_WITH_IMM) && ntohl(wc.imm_data) == 0x1234 && wc.byte_len == 100);
  }
  return pair_close(&p);
}

/* rnr_retry 7 waits without end, for a receive and for nothing else. */
static bool receiver_not_ready(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  EXPECT(!post_rdma(&p.a, IBV_WR_SEND_WITH_IMM, IBV_SEND_SIGNALED, 8, &p.b, 1));
  EXPECT(!post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, &p.b, 2));
  EXPECT(quiet(p.a.cq));
  EXPECT(!post_receive(&p.b, p.b.buf, 64, 3));
  EXPECT(completes(p.a.cq, 1, IBV_WC_SUCCESS) && completes(p.a.cq, 2, IBV_WC_SUCCESS));
  EXPECT(completes(p.b.recv_cq, 3, IBV_WC_SUCCESS));
  return pair_close(&p);
}

static bool atomics(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  uint64_t *local = (uint64_t*)p.a.buf, *remote = (uint64_t*)p.b.buf;
  *remote = 40;
  struct ibv_sge sge = {(uintptr_t)local, 8, p.a.mr->lkey};
  struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED};
  wr.wr.atomic.remote_addr = (uintptr_t)remote;
  wr.wr.atomic.rkey = p.b.mr->rkey;
  wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  wr.wr.atomic.compare_add = 2;
  EXPECT(!ibv_post_send(p.a.qp, &wr, &bad) && completes(p.a.cq, 0, IBV_WC_SUCCESS) && *local == 40 && *remote == 42);
  wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
  wr.wr.atomic.compare_add = 42;
  wr.wr.atomic.swap = 77;
  EXPECT(!ibv_post_send(p.a.qp, &wr, &bad) && completes(p.a.cq, 0, IBV_WC_SUCCESS) && *local == 42 && *remote == 77);
  wr.wr.atomic.swap = 99;
  EXPECT(!ibv_post_send(p.a.qp, &wr, &bad) && completes(p.a.cq, 0, IBV_WC_SUCCESS) && *local == 77 && *remote == 77);
  return pair_close(&p);
}

static bool take_event(struct end* e) {
  struct ibv_cq* cq;
  void* user;
  struct pollfd fd = {e->channel->fd, POLLIN, 0};
  EXPECT(poll(&fd, 1, 3000) == 1 && !ibv_get_cq_event(e->channel, &cq, &user) && cq == e->cq);
  ibv_ack_cq_events(cq, 1);
  return true;
}

static bool completion_events(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  struct pollfd fd = {p.a.channel->fd, POLLIN, 0};
  EXPECT(!ibv_req_notify_cq(p.a.cq, 0) && poll(&fd, 1, 20) == 0);
  for (uint64_t i = 0; i < 50; i++) {
    EXPECT(!post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, &p.b, i) && take_event(&p.a));
    EXPECT(completes(p.a.cq, i, IBV_WC_SUCCESS) && !ibv_req_notify_cq(p.a.cq, 0) && poll(&fd, 1, 0) == 0);
  }
  /* armed behind the completion: fires at once */
  EXPECT(!post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, &p.b, 60) && take_event(&p.a));
  EXPECT(!ibv_req_notify_cq(p.a.cq, 0) && take_event(&p.a));
  return pair_close(&p); /* with a completion not polled */
}

static bool solicited_events(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  struct ibv_qp_init_attr attr = {.send_cq = p.b.recv_cq, .recv_cq = p.b.cq, .qp_type = IBV_QPT_RC};
  attr.cap = (struct ibv_qp_cap){16, 16, 1, 1, 0};
  EXPECT(!ibv_destroy_qp(p.b.qp) && (p.b.qp = ibv_create_qp(p.b.pd, &attr))); /* receives go to the CQ with events */
  EXPECT(connect_qp(&p.b, p.a.qp->qp_num, &(struct setup){0}));
  struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
  EXPECT(!ibv_modify_qp(p.a.qp, &reset, IBV_QP_STATE) && connect_qp(&p.a, p.b.qp->qp_num, &(struct setup){0}));
  struct pollfd fd = {p.b.channel->fd, POLLIN, 0};
  EXPECT(!ibv_req_notify_cq(p.b.cq, 1));
  for (int solicited = 0; solicited < 2; solicited++) {
    EXPECT(!post_receive(&p.b, p.b.buf, 64, 1));
    int flags = IBV_SEND_SIGNALED | (solicited ? IBV_SEND_SOLICITED : 0);
    EXPECT(!post_rdma(&p.a, IBV_WR_SEND, flags, 8, &p.b, 2) && completes(p.a.cq, 2, IBV_WC_SUCCESS));
    EXPECT(poll(&fd, 1, 20) == solicited);
    EXPECT(completes(p.b.cq, 1, IBV_WC_SUCCESS));
  }
  EXPECT(take_event(&p.b));
  return pair_close(&p);
}

static bool resize_cq(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  for (uint64_t i = 0; i < 5; i++) EXPECT(!post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, &p.b, i));
  usleep(2000);
  EXPECT(!ibv_resize_cq(p.a.cq, 4000) && p.a.cq->cqe >= 4000);
  EXPECT(!post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, &p.b, 5));
  for (uint64_t i = 0; i < 6; i++) EXPECT(completes(p.a.cq, i, IBV_WC_SUCCESS));
  return pair_close(&p);
}

static bool shared_receive_queue(void) {
  struct pair p = {0};
  struct ibv_srq_init_attr attr = {.attr = {64, 2, 0}};
  struct ibv_async_event event;
  EXPECT(end_open(&p.a, 0) && end_open(&p.b, 1) && (p.b.srq = ibv_create_srq(p.b.pd, &attr)));
  EXPECT(end_qp(&p.a, IBV_QPT_RC) && end_qp(&p.b, IBV_QPT_RC));
  EXPECT(connect_qp(&p.a, p.b.qp->qp_num, &(struct setup){0}) && connect_qp(&p.b, p.a.qp->qp_num, &(struct setup){0}));
  for (uint32_t i = 0; i < 500; i++) {
    uint32_t length = 1 + i % 100;
    fill(p.a.buf, length, (int)i);
    EXPECT(!post_receive(&p.b, p.b.buf, 4096, i) && !post_rdma(&p.a, IBV_WR_SEND, IBV_SEND_SIGNALED, length, &p.b, 0));
    struct ibv_wc wc = next_completion(p.b.recv_cq);
    EXPECT(wc.status == IBV_WC_SUCCESS && wc.wr_id == i && wc.byte_len == length && !memcmp(p.a.buf, p.b.buf, length));
    EXPECT(completes(p.a.cq, 0, IBV_WC_SUCCESS));
  }
  EXPECT(!post_receive(&p.b, p.b.buf, 64, 1) && !post_receive(&p.b, p.b.buf, 64, 2));
  struct ibv_srq_attr limit = {.srq_limit = 2};
  EXPECT(!ibv_modify_srq(p.b.srq, &limit, IBV_SRQ_LIMIT) && !post_rdma(&p.a, IBV_WR_SEND, 0, 8, &p.b, 0));
  EXPECT(quiet(p.a.cq)); /* in poll mode a poll makes it happen */
  EXPECT(!ibv_get_async_event(p.b.context, &event) && event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED);
  EXPECT(event.element.srq == p.b.srq);
  ibv_ack_async_event(&event);
  struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
  EXPECT(!ibv_modify_qp(p.b.qp, &err, IBV_QP_STATE) && !ibv_get_async_event(p.b.context, &event));
  EXPECT(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == p.b.qp);
  ibv_ack_async_event(&event);
  return pair_close(&p);
}

static bool extended_interface(void) {
  struct pair p = {0};
  EXPECT(end_open(&p.a, 0) && end_open(&p.b, 1) && end_qp(&p.b, IBV_QPT_RC));
  struct ibv_cq_init_attr_ex cq_attr = {.cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS};
  struct ibv_cq_ex* cq = ibv_create_cq_ex(p.a.context, &cq_attr);
  EXPECT(cq);
  struct ibv_qp_init_attr_ex attr = {.send_cq = ibv_cq_ex_to_cq(cq),
                                     .recv_cq = p.a.recv_cq,
                                     .qp_type = IBV_QPT_RC,
                                     .cap = {64, 64, 2, 2, 64},
                                     .pd = p.a.pd,
                                     .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                     .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND};
  EXPECT(p.a.qp = ibv_create_qp_ex(p.a.context, &attr));
  EXPECT(connect_qp(&p.a, p.b.qp->qp_num, &(struct setup){0}) && connect_qp(&p.b, p.a.qp->qp_num, &(struct setup){0}));
  struct ibv_qp_ex* qp = ibv_qp_to_qp_ex(p.a.qp);
  for (uint64_t i = 0; i < 300; i++) {
    ibv_wr_start(qp);
    qp->wr_id = i;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(qp, p.b.mr->rkey, (uintptr_t)p.b.buf);
    ibv_wr_set_sge(qp, p.a.mr->lkey, (uintptr_t)p.a.buf, 64);
    EXPECT(!ibv_wr_complete(qp));
    struct ibv_poll_cq_attr poll_attr = {0};
    int err = ENOENT;
    for (uint64_t start = now(); err == ENOENT && now() - start < 3000000000ull;) err = ibv_start_poll(cq, &poll_attr);
    EXPECT(!err && cq->wr_id == i && cq->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(cq) == IBV_WC_RDMA_WRITE);
    ibv_end_poll(cq);
  }
  EXPECT(!ibv_destroy_qp(p.a.qp) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
  p.a.qp = NULL;
  return pair_close(&p);
}

static bool datagrams(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){.type = IBV_QPT_UD}));
  union ibv_gid gid_a, gid_b;
  EXPECT(!ibv_query_gid(p.a.context, 1, 3, &gid_a) && !ibv_query_gid(p.b.context, 1, 3, &gid_b));
  struct ibv_ah_attr to = {.is_global = 1, .grh = {.dgid = gid_b, .sgid_index = 3, .hop_limit = 64}, .port_num = 1};
  struct ibv_ah* ah = ibv_create_ah(p.a.pd, &to);
  EXPECT(ah);
  struct ibv_sge sge = {(uintptr_t)p.a.buf, 100, p.a.mr->lkey};
  struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM};
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.ud.ah = ah;
  wr.wr.ud.remote_qpn = p.b.qp->qp_num;
  wr.wr.ud.remote_qkey = 0x11111111;
  EXPECT(!ibv_post_send(p.a.qp, &wr, &bad) && completes(p.a.cq, 0, IBV_WC_SUCCESS)); /* nobody there: dropped */
  EXPECT(!post_receive(&p.b, p.b.buf, 4096, 1));
  wr.wr.ud.remote_qkey = 5; /* not the receiver's: dropped */
  EXPECT(!ibv_post_send(p.a.qp, &wr, &bad) && completes(p.a.cq, 0, IBV_WC_SUCCESS) && quiet(p.b.recv_cq));
  wr.wr.ud.remote_qkey = 0x11111111;
  fill(p.a.buf, 100, 1);
  memset(p.b.buf, 0x60, 20); /* not defined for IPv4: libibverbs goes by the checksum then */
  EXPECT(!ibv_post_send(p.a.qp, &wr, &bad) && completes(p.a.cq, 0, IBV_WC_SUCCESS));
  struct ibv_wc wc = next_completion(p.b.recv_cq);
  EXPECT(wc.status == IBV_WC_SUCCESS && wc.byte_len == 140 && (wc.wc_flags & IBV_WC_GRH));
  EXPECT(wc.src_qp == p.a.qp->qp_num && !memcmp(p.a.buf, p.b.buf + 40, 100));
  struct ibv_ah_attr back = {0}; /* the receiver can answer from what came */
  EXPECT(!ibv_init_ah_from_wc(p.b.context, 1, &wc, (struct ibv_grh*)p.b.buf, &back));
  EXPECT(!memcmp(&back.grh.dgid, &gid_a, 16) && back.grh.sgid_index == 3);
  EXPECT(!ibv_destroy_ah(ah));
  return pair_close(&p);
}

static bool unreliable_connection(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){.type = IBV_QPT_UC}));
  fill(p.a.buf, 5000, 1);
  EXPECT(!post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 5000, &p.b, 1));
  EXPECT(completes(p.a.cq, 1, IBV_WC_SUCCESS) && !memcmp(p.a.buf, p.b.buf, 5000));
  EXPECT(!post_rdma(&p.a, IBV_WR_SEND, IBV_SEND_SIGNALED, 8, &p.b, 2));              /* no receive: lost */
  EXPECT(!post_to(&p.a, IBV_WR_RDMA_WRITE, p.a.buf, 8, p.a.mr->lkey, 64, 12345, 3)); /* refused: lost */
  EXPECT(completes(p.a.cq, 2, IBV_WC_SUCCESS) && completes(p.a.cq, 3, IBV_WC_SUCCESS));
  EXPECT(qp_state(p.a.qp) == IBV_QPS_RTS && qp_state(p.b.qp) == IBV_QPS_RTS);
  return pair_close(&p);
}

static bool memory_window(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  struct ibv_mw* mw = ibv_alloc_mw(p.b.pd, IBV_MW_TYPE_2);
  EXPECT(mw);
  struct ibv_send_wr *bad, wr = {.wr_id = 1, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};
  wr.bind_mw.mw = mw;
  wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
  wr.bind_mw.bind_info = (struct ibv_mw_bind_info){p.b.mr, (uintptr_t)p.b.buf + 4096, 64, IBV_ACCESS_REMOTE_WRITE};
  EXPECT(!ibv_post_send(p.b.qp, &wr, &bad) && completes(p.b.cq, 1, IBV_WC_SUCCESS));
  EXPECT(ibv_dereg_mr(p.b.mr) == EBUSY);
  fill(p.a.buf, 64, 9);
  EXPECT(!post_to(&p.a, IBV_WR_RDMA_WRITE, p.a.buf, 64, p.a.mr->lkey, (uintptr_t)p.b.buf + 4096, wr.bind_mw.rkey, 2));
  EXPECT(completes(p.a.cq, 2, IBV_WC_SUCCESS) && !memcmp(p.a.buf, p.b.buf + 4096, 64));
  EXPECT(!post_to(&p.a, IBV_WR_RDMA_WRITE, p.a.buf, 65, p.a.mr->lkey, (uintptr_t)p.b.buf + 4096, wr.bind_mw.rkey, 3));
  EXPECT(completes(p.a.cq, 3, IBV_WC_REM_ACCESS_ERR));
  EXPECT(!ibv_dealloc_mw(mw));
  return pair_close(&p);
}

static bool type_1_window(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  struct ibv_mw* mw = ibv_alloc_mw(p.b.pd, IBV_MW_TYPE_1);
  struct ibv_mw_bind bind = {.wr_id = 1, .send_flags = IBV_SEND_SIGNALED};
  bind.bind_info = (struct ibv_mw_bind_info){p.b.mr, (uintptr_t)p.b.buf, 64, IBV_ACCESS_REMOTE_WRITE};
  EXPECT(mw && !ibv_bind_mw(p.b.qp, mw, &bind) && completes(p.b.cq, 1, IBV_WC_SUCCESS));
  EXPECT(!post_to(&p.a, IBV_WR_RDMA_WRITE, p.a.buf, 64, p.a.mr->lkey, (uintptr_t)p.b.buf, mw->rkey, 2));
  EXPECT(completes(p.a.cq, 2, IBV_WC_SUCCESS));
  bind.bind_info.length = 0; /* unbinds */
  EXPECT(!ibv_bind_mw(p.b.qp, mw, &bind) && completes(p.b.cq, 1, IBV_WC_SUCCESS));
  EXPECT(!post_to(&p.a, IBV_WR_RDMA_WRITE, p.a.buf, 64, p.a.mr->lkey, (uintptr_t)p.b.buf, mw->rkey, 3));
  EXPECT(completes(p.a.cq, 3, IBV_WC_REM_ACCESS_ERR) && !ibv_dealloc_mw(mw));
  return pair_close(&p);
}

static bool two_contexts_of_a_device(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){.one_device = true}));
  fill(p.b.buf, 100, 5);
  EXPECT(!post_rdma(&p.a, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 100, &p.b, 1));
  EXPECT(completes(p.a.cq, 1, IBV_WC_SUCCESS) && !memcmp(p.a.buf, p.b.buf, 100));
  return pair_close(&p);
}

static bool loop_to_itself(void) {
  struct end e;
  EXPECT(end_open(&e, 0) && end_qp(&e, IBV_QPT_RC) && connect_qp(&e, e.qp->qp_num, &(struct setup){0}));
  EXPECT(!post_receive(&e, e.buf + 8192, 64, 1) && !post_rdma(&e, IBV_WR_SEND, IBV_SEND_SIGNALED, 40, &e, 2));
  EXPECT(completes(e.cq, 2, IBV_WC_SUCCESS) && completes(e.recv_cq, 1, IBV_WC_SUCCESS));
  return end_close(&e);
}

static bool batches_in_order(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  struct ibv_sge sge = {(uintptr_t)p.a.buf, 64, p.a.mr->lkey};
  struct ibv_send_wr wr[32], *bad;
  for (int round = 0; round < 100; round++) {
    for (uint64_t i = 0; i < 32; i++) {
      wr[i] = (struct ibv_send_wr){.wr_id = i, .next = i < 31 ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1};
      wr[i].opcode = IBV_WR_RDMA_WRITE;
      wr[i].send_flags = i % 8 == 7 ? IBV_SEND_SIGNALED : 0;
      wr[i].wr.rdma.remote_addr = (uintptr_t)p.b.buf + i * 64;
      wr[i].wr.rdma.rkey = p.b.mr->rkey;
    }
    EXPECT(!ibv_post_send(p.a.qp, wr, &bad));
    for (uint64_t i = 7; i < 32; i += 8) EXPECT(completes(p.a.cq, i, IBV_WC_SUCCESS));
  }
  return pair_close(&p);
}

static bool send_queue_drained(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  struct ibv_qp_attr sqd = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1}, rts = {.qp_state = IBV_QPS_RTS};
  struct ibv_async_event event;
  EXPECT(!ibv_modify_qp(p.a.qp, &sqd, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
  EXPECT(!ibv_get_async_event(p.a.context, &event) && event.event_type == IBV_EVENT_SQ_DRAINED);
  ibv_ack_async_event(&event);
  EXPECT(!post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, &p.b, 1) && quiet(p.a.cq));
  EXPECT(!post_receive(&p.a, p.a.buf, 64, 2) && !post_rdma(&p.b, IBV_WR_SEND, IBV_SEND_SIGNALED, 8, &p.a, 3));
  EXPECT(completes(p.b.cq, 3, IBV_WC_SUCCESS) && completes(p.a.recv_cq, 2, IBV_WC_SUCCESS)); /* it still receives */
  EXPECT(!ibv_modify_qp(p.a.qp, &rts, IBV_QP_STATE) && completes(p.a.cq, 1, IBV_WC_SUCCESS));
  return pair_close(&p);
}

const struct check data_checks[] = {
    {"RDMA_WRITE of 0 bytes to 1 MiB", write_sizes},
    {"inline data, every length and wrap", inline_wraps},
    {"1 to 30 pieces at both sides", many_pieces},
    {"RDMA_READ", read_back},
    {"SEND and receive, small ones in the CQE", send_receive},
    {"immediate data", immediate_data},
    {"receiver not ready: waits without end", receiver_not_ready},
    {"atomics", atomics},
    {"completion events", completion_events},
    {"solicited events", solicited_events},
    {"resize of a CQ with entries in it", resize_cq},
    {"shared receive queue, limit and last-WQE events", shared_receive_queue},
    {"extended posting and polling", extended_interface},
    {"UD: GRH, Q_Key, answering", datagrams},
    {"UC: losses are silent", unreliable_connection},
    {"type 1 memory window", type_1_window},
    {"type 2 memory window", memory_window},
    {"two contexts of one device", two_contexts_of_a_device},
    {"a QP connected to itself", loop_to_itself},
    {"batches of 32, in order", batches_in_order},
    {"SQD holds the send queue", send_queue_drained},
    {0},
};
