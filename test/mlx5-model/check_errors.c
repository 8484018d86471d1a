/* Checks: what goes wrong completes as it does on a NIC, and takes down what it takes down there. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

static bool both_in_error(const struct pair* p) {
  return qp_state(p->a.qp) == IBV_QPS_ERR && qp_state(p->b.qp) == IBV_QPS_ERR;
}

static bool gets_event(struct end* e, enum ibv_event_type type) {
  struct ibv_async_event event;
  EXPECT(!ibv_get_async_event(e->context, &event));
  ibv_ack_async_event(&event);
  EXPECT(event.event_type == type);
  return true;
}

static bool local_protection(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  EXPECT(!post_to(&p.a, IBV_WR_RDMA_WRITE, p.a.buf, 8, p.a.mr->lkey ^ 0x100, (uintptr_t)p.b.buf, p.b.mr->rkey, 1));
  EXPECT(completes(p.a.cq, 1, IBV_WC_LOC_PROT_ERR));
  EXPECT(qp_state(p.a.qp) == IBV_QPS_ERR && qp_state(p.b.qp) == IBV_QPS_RTS);
  return pair_close(&p);
}

/* Everything outstanding at both sides is flushed, in order, signalled or not. */
static bool remote_access_and_flush(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  for (uint64_t i = 0; i < 10; i++) EXPECT(!post_receive(&p.a, p.a.buf, 64, 100 + i));
  for (uint64_t i = 0; i < 10; i++) EXPECT(!post_receive(&p.b, p.b.buf, 64, 200 + i));
  EXPECT(!post_to(&p.a, IBV_WR_RDMA_WRITE, p.a.buf, 8, p.a.mr->lkey, (uintptr_t)p.b.buf, p.b.mr->rkey ^ 0x100, 1));
  EXPECT(completes(p.a.cq, 1, IBV_WC_REM_ACCESS_ERR) && both_in_error(&p));
  for (uint64_t i = 2; i < 20; i++)
    EXPECT(!post_rdma(&p.a, IBV_WR_RDMA_WRITE, i % 2 ? IBV_SEND_SIGNALED : 0, 8, &p.b, i));
  for (uint64_t i = 2; i < 20; i++) EXPECT(completes(p.a.cq, i, IBV_WC_WR_FLUSH_ERR));
  for (uint64_t i = 0; i < 10; i++) EXPECT(completes(p.a.recv_cq, 100 + i, IBV_WC_WR_FLUSH_ERR));
  for (uint64_t i = 0; i < 10; i++) EXPECT(completes(p.b.recv_cq, 200 + i, IBV_WC_WR_FLUSH_ERR));
  EXPECT(!post_receive(&p.b, p.b.buf, 64, 300) && completes(p.b.recv_cq, 300, IBV_WC_WR_FLUSH_ERR));
  EXPECT(gets_event(&p.b, IBV_EVENT_QP_ACCESS_ERR));
  return pair_close(&p);
}

/* Each way to lack the right, with a fresh pair each. */
static bool remote_access_reasons(void) {
  for (int reason = 0; reason < 4; reason++) {
    struct pair p;
    EXPECT(pair_open(&p, (struct setup){0}));
    struct ibv_mr* only_read = ibv_reg_mr(p.b.pd, p.b.buf, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    struct ibv_mr* gone = ibv_reg_mr(p.b.pd, p.b.buf, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    EXPECT(only_read && gone);
    uint64_t at = (uintptr_t)p.b.buf;
    uint32_t key = p.b.mr->rkey, gone_key = gone->rkey;
    EXPECT(!ibv_dereg_mr(gone));
    if (reason == 0) key = only_read->rkey;
    if (reason == 1) key = gone_key;
    if (reason == 2) at += BUFFER - 4;
    if (reason == 3) at = UINT64_MAX - 3; /* address and length overflow */
    EXPECT(!post_to(&p.a, IBV_WR_RDMA_WRITE, p.a.buf, 8, p.a.mr->lkey, at, key, 1));
    EXPECT(completes(p.a.cq, 1, IBV_WC_REM_ACCESS_ERR) && both_in_error(&p));
    EXPECT(!ibv_dereg_mr(only_read) && pair_close(&p));
  }
  return true;
}

static bool receive_too_small(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  EXPECT(!post_receive(&p.b, p.b.buf, 10, 1) && !post_receive(&p.b, p.b.buf, 10, 2));
  EXPECT(!post_rdma(&p.a, IBV_WR_SEND, IBV_SEND_SIGNALED, 11, &p.b, 3));
  EXPECT(completes(p.a.cq, 3, IBV_WC_REM_INV_REQ_ERR));
  EXPECT(completes(p.b.recv_cq, 1, IBV_WC_LOC_LEN_ERR) && completes(p.b.recv_cq, 2, IBV_WC_WR_FLUSH_ERR));
  EXPECT(both_in_error(&p));
  return pair_close(&p);
}

static bool receive_not_writable(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  struct ibv_sge sge = {(uintptr_t)p.b.buf, 64, p.b.mr->lkey ^ 1};
  struct ibv_recv_wr *bad, wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1};
  EXPECT(!ibv_post_recv(p.b.qp, &wr, &bad) && !post_rdma(&p.a, IBV_WR_SEND, IBV_SEND_SIGNALED, 8, &p.b, 2));
  EXPECT(completes(p.a.cq, 2, IBV_WC_REM_OP_ERR) && completes(p.b.recv_cq, 1, IBV_WC_LOC_PROT_ERR));
  return pair_close(&p);
}

static bool unaligned_atomic(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  struct ibv_sge sge = {(uintptr_t)p.a.buf, 8, p.a.mr->lkey};
  struct ibv_send_wr *bad, wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD};
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.atomic.remote_addr = (uintptr_t)p.b.buf + 4;
  wr.wr.atomic.rkey = p.b.mr->rkey;
  EXPECT(!ibv_post_send(p.a.qp, &wr, &bad) && completes(p.a.cq, 1, IBV_WC_REM_INV_REQ_ERR));
  EXPECT(gets_event(&p.b, IBV_EVENT_QP_REQ_ERR));
  return pair_close(&p);
}

/* timeout 8 is about 1 ms a try */
static bool peer_gone(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){.weak = true, .timeout = 8, .retry_cnt = 7, .rnr_retry = 7}));
  EXPECT(!ibv_destroy_qp(p.b.qp));
  p.b.qp = NULL;
  uint64_t start = now();
  EXPECT(!post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, &p.b, 1));
  EXPECT(completes(p.a.cq, 1, IBV_WC_RETRY_EXC_ERR) && now() - start > 5000000);
  return pair_close(&p);
}

/* A peer that is not ready yet is waited for: the first message is not lost in a race of two programs. */
static bool peer_late(void) {
  struct pair p = {0};
  EXPECT(end_open(&p.a, 0) && end_open(&p.b, 1) && end_qp(&p.a, IBV_QPT_RC) && end_qp(&p.b, IBV_QPT_RC));
  EXPECT(connect_qp(&p.a, p.b.qp->qp_num, &(struct setup){0}));
  EXPECT(!post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, &p.b, 1) && quiet(p.a.cq));
  EXPECT(connect_qp(&p.b, p.a.qp->qp_num, &(struct setup){0}) && completes(p.a.cq, 1, IBV_WC_SUCCESS));
  return pair_close(&p);
}

static bool receiver_never_ready(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){.weak = true, .timeout = 8, .retry_cnt = 7, .rnr_retry = 2}));
  EXPECT(!post_rdma(&p.a, IBV_WR_SEND, IBV_SEND_SIGNALED, 8, &p.b, 1));
  EXPECT(completes(p.a.cq, 1, IBV_WC_RNR_RETRY_EXC_ERR) && qp_state(p.b.qp) == IBV_QPS_RTS);
  return pair_close(&p);
}

/* A time limit passes although nobody polls: who waits for an event is told. */
static bool limit_raises_event(void) {
  struct pair p;
  struct ibv_cq* cq;
  void* user;
  EXPECT(pair_open(&p, (struct setup){.weak = true, .timeout = 8, .retry_cnt = 1, .rnr_retry = 1}));
  EXPECT(!ibv_req_notify_cq(p.a.cq, 0) && !post_rdma(&p.a, IBV_WR_SEND, IBV_SEND_SIGNALED, 8, &p.b, 1));
  EXPECT(!ibv_get_cq_event(p.a.channel, &cq, &user) && completes(cq, 1, IBV_WC_RNR_RETRY_EXC_ERR));
  ibv_ack_cq_events(cq, 1);
  return pair_close(&p);
}

/* 30 pieces of 2 GiB less one: the sum exceeds 32 bits, and what one message may carry. */
static bool too_long(void) {
  const size_t size = (size_t)1 << 31;
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  void* zeros = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  EXPECT(zeros != MAP_FAILED);
  madvise(zeros, size, MADV_HUGEPAGE); /* so that looking at every page is quick */
  struct ibv_mr* mr = ibv_reg_mr(p.a.pd, zeros, size, 0);
  EXPECT(mr);
  struct ibv_sge sge[30];
  for (int i = 0; i < 30; i++) sge[i] = (struct ibv_sge){(uintptr_t)zeros, 0x7fffffff, mr->lkey};
  struct ibv_send_wr *bad, wr = {.wr_id = 1, .sg_list = sge, .num_sge = 30, .opcode = IBV_WR_RDMA_WRITE};
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = (uintptr_t)p.b.buf;
  wr.wr.rdma.rkey = p.b.mr->rkey;
  EXPECT(!ibv_post_send(p.a.qp, &wr, &bad) && completes(p.a.cq, 1, IBV_WC_LOC_LEN_ERR));
  EXPECT(!ibv_dereg_mr(mr) && !munmap(zeros, size));
  return pair_close(&p);
}

static bool cq_overrun(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  struct ibv_cq* small = ibv_create_cq(p.a.context, 3, NULL, NULL, 0);
  struct ibv_qp_init_attr attr = {.send_cq = small, .recv_cq = p.a.recv_cq, .qp_type = IBV_QPT_RC};
  attr.cap = (struct ibv_qp_cap){64, 1, 1, 1, 0};
  EXPECT(small && !ibv_destroy_qp(p.a.qp) && (p.a.qp = ibv_create_qp(p.a.pd, &attr)));
  struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
  EXPECT(connect_qp(&p.a, p.b.qp->qp_num, &(struct setup){0}));
  EXPECT(!ibv_modify_qp(p.b.qp, &reset, IBV_QP_STATE) && connect_qp(&p.b, p.a.qp->qp_num, &(struct setup){0}));
  EXPECT(!ibv_req_notify_cq(p.a.cq, 0)); /* in poll mode: an event is awaited, so work is done without a poll */
  for (uint64_t i = 0; i < 8; i++) EXPECT(!post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, &p.b, i));
  EXPECT(gets_event(&p.a, IBV_EVENT_CQ_ERR));
  EXPECT(!ibv_destroy_qp(p.a.qp) && !ibv_destroy_cq(small));
  p.a.qp = NULL;
  return pair_close(&p);
}

/* After RESET a pair that failed works again. */
static bool recovers_after_reset(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  for (uint64_t round = 0; round < 3; round++) {
    EXPECT(!post_to(&p.a, IBV_WR_RDMA_READ, p.a.buf, 8, p.a.mr->lkey, 0, 0, round));
    EXPECT(completes(p.a.cq, round, IBV_WC_REM_ACCESS_ERR) && both_in_error(&p));
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    EXPECT(!ibv_modify_qp(p.a.qp, &reset, IBV_QP_STATE) && !ibv_modify_qp(p.b.qp, &reset, IBV_QP_STATE));
    EXPECT(connect_qp(&p.a, p.b.qp->qp_num, &(struct setup){0}));
    EXPECT(connect_qp(&p.b, p.a.qp->qp_num, &(struct setup){0}));
    EXPECT(!post_rdma(&p.a, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 8, &p.b, 7));
    EXPECT(completes(p.a.cq, 7, IBV_WC_SUCCESS));
  }
  return pair_close(&p);
}

const struct check error_checks[] = {
    {"local protection error", local_protection},
    {"remote access error: both QPs, flush in order", remote_access_and_flush},
    {"remote access error: every reason", remote_access_reasons},
    {"receive buffer too small", receive_too_small},
    {"receive buffer not writable", receive_not_writable},
    {"unaligned atomic", unaligned_atomic},
    {"peer destroyed: retries exceeded", peer_gone},
    {"peer late: waited for", peer_late},
    {"receiver never ready: RNR retries exceeded", receiver_never_ready},
    {"a time limit raises an event", limit_raises_event},
    {"message too long, sum beyond 32 bits", too_long},
    {"CQ overrun event", cq_overrun},
    {"a pair recovers after RESET", recovers_after_reset},
    {0},
};
