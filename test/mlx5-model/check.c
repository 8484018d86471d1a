#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#define CK(x)                                                                                  \
  do {                                                                                         \
    if (!(x)) {                                                                                \
      printf("FAIL %s:%d %s (errno %d %s)\n", __FILE__, __LINE__, #x, errno, strerror(errno)); \
      exit(1);                                                                                 \
    }                                                                                          \
  } while (0)
static struct ibv_context* ctx;
static struct ibv_pd* pd;
static struct ibv_cq *cq, *rcq;
static struct ibv_comp_channel* ch;
static uint64_t ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static void conn(struct ibv_qp* a, uint32_t dest) {
  struct ibv_qp_attr m = {
      .qp_state = IBV_QPS_INIT,
      .port_num = 1,
      .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
  CK(!ibv_modify_qp(a, &m, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  union ibv_gid g;
  CK(!ibv_query_gid(ctx, 1, 3, &g));
  m = (struct ibv_qp_attr){
      .qp_state = IBV_QPS_RTR,
      .path_mtu = IBV_MTU_1024,
      .dest_qp_num = dest,
      .max_dest_rd_atomic = 16,
      .min_rnr_timer = 12,
      .ah_attr = {.is_global = 1, .grh = {.dgid = g, .sgid_index = 3, .hop_limit = 64}, .port_num = 1}};
  CK(!ibv_modify_qp(a, &m,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  m = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 16};
  CK(!ibv_modify_qp(
      a, &m,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}
static struct ibv_qp* mkqp(struct ibv_srq* s, int sig) {
  struct ibv_qp_init_attr a = {.send_cq = cq,
                               .recv_cq = rcq,
                               .srq = s,
                               .qp_type = IBV_QPT_RC,
                               .sq_sig_all = sig,
                               .cap = {256, s ? 0 : 256, 4, s ? 0 : 4, 128}};
  struct ibv_qp* q = ibv_create_qp(pd, &a);
  CK(q);
  return q;
}
static struct ibv_wc wait1(struct ibv_cq* c) {
  struct ibv_wc w;
  int n;
  uint64_t t = ns();
  while (!(n = ibv_poll_cq(c, 1, &w))) CK(ns() - t < 2000000000ull);
  CK(n == 1);
  return w;
}
static int post(struct ibv_qp* q, int op, int fl, void* p, uint32_t len, uint32_t lkey, void* r, uint32_t rkey,
                uint64_t id) {
  struct ibv_sge s = {(uintptr_t)p, len, lkey};
  struct ibv_send_wr w = {.wr_id = id,
                          .sg_list = &s,
                          .num_sge = 1,
                          .opcode = op,
                          .send_flags = fl,
                          .imm_data = htonl(0x1234)},
                     *bad;
  w.wr.rdma.remote_addr = (uintptr_t)r;
  w.wr.rdma.rkey = rkey;
  return ibv_post_send(q, &w, &bad);
}
static void recv_(struct ibv_qp* q, struct ibv_srq* sr, void* p, uint32_t len, uint32_t lkey, uint64_t id) {
  struct ibv_sge s = {(uintptr_t)p, len, lkey};
  struct ibv_recv_wr w = {.wr_id = id, .sg_list = &s, .num_sge = 1}, *b;
  CK(!(sr ? ibv_post_srq_recv(sr, &w, &b) : ibv_post_recv(q, &w, &b)));
}
int main(int ac, char** av) {
  int n;
  struct ibv_device** l = ibv_get_device_list(&n);
  CK(l && n);
  ctx = ibv_open_device(l[0]);
  CK(ctx);
  pd = ibv_alloc_pd(ctx);
  CK(pd);
  ch = ibv_create_comp_channel(ctx);
  CK(ch);
  cq = ibv_create_cq(ctx, 1000, NULL, ch, 0);
  CK(cq);
  rcq = ibv_create_cq(ctx, 1000, NULL, NULL, 0);
  CK(rcq);
  size_t SZ = 1 << 20;
  char *A = aligned_alloc(4096, SZ), *B = aligned_alloc(4096, SZ);
  memset(A, 1, SZ);
  memset(B, 2, SZ);
  int acc = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  struct ibv_mr *ma = ibv_reg_mr(pd, A, SZ, acc), *mb = ibv_reg_mr(pd, B, SZ, acc);
  CK(ma && mb);
  struct ibv_qp *q = mkqp(NULL, 0), *p = mkqp(NULL, 0);
  conn(q, p->qp_num);
  conn(p, q->qp_num);
  struct ibv_wc w;
  /* write */
  CK(!post(q, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, A, SZ, ma->lkey, B, mb->rkey, 7));
  w = wait1(cq);
  CK(w.status == 0 && w.wr_id == 7 && w.opcode == IBV_WC_RDMA_WRITE && w.qp_num == q->qp_num && !memcmp(A, B, SZ));
  puts("ok RDMA_WRITE 1 MiB");
  /* inline write, all lengths, many wraps */
  for (int i = 0; i < 3000; i++) {
    uint32_t len = 1 + i % 128;
    for (uint32_t j = 0; j < len; j++) A[j] = i + j;
    CK(!post(q, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | IBV_SEND_INLINE, A, len, 0, B + 64, mb->rkey, i));
    w = wait1(cq);
    CK(!w.status && w.wr_id == (uint64_t)i && !memcmp(A, B + 64, len));
  }
  puts("ok inline RDMA_WRITE x3000");
  /* multi-SGE write with wrap: 4 SGEs = ds 6 -> 2 WQEBBs */
  for (int i = 0; i < 3000; i++) {
    struct ibv_sge s[4];
    for (int k = 0; k < 4; k++) {
      s[k] = (struct ibv_sge){(uintptr_t)A + 1000 * k, 10 + k, ma->lkey};
      memset(A + 1000 * k, i + k, 10 + k);
    }
    struct ibv_send_wr x = {.wr_id = i,
                            .sg_list = s,
                            .num_sge = 1 + i % 4,
                            .opcode = IBV_WR_RDMA_WRITE,
                            .send_flags = IBV_SEND_SIGNALED,
                            .wr.rdma = {(uintptr_t)B, mb->rkey}},
                       *bad;
    CK(!ibv_post_send(q, &x, &bad));
    w = wait1(cq);
    CK(!w.status && w.wr_id == (uint64_t)i);
    char* b = B;
    for (int k = 0; k <= i % 4; k++) {
      CK(!memcmp(b, A + 1000 * k, 10 + k));
      b += 10 + k;
    }
  }
  puts("ok multi-SGE x3000");
  memset(B, 9, 4096);
  CK(!post(q, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, A, 4096, ma->lkey, B, mb->rkey, 8));
  w = wait1(cq);
  CK(!w.status && w.opcode == IBV_WC_RDMA_READ && w.byte_len == 4096 && A[4095] == 9);
  puts("ok RDMA_READ");
  /* send/recv: small (scatter-to-CQE), large */
  for (uint32_t i = 0; i < 2000; i++) {
    uint32_t len = 1 + i * 7 % 4096;
    memset(A, i, len);
    recv_(p, NULL, B, 4096, mb->lkey, i);
    CK(!post(q, IBV_WR_SEND, IBV_SEND_SIGNALED, A, len, ma->lkey, 0, 0, i + 5));
    w = wait1(cq);
    CK(!w.status && w.wr_id == i + 5 && w.opcode == IBV_WC_SEND);
    w = wait1(rcq);
    CK(!w.status && w.wr_id == i && w.byte_len == len && w.opcode == IBV_WC_RECV && !memcmp(A, B, len));
  }
  puts("ok SEND/RECV x2000");
  recv_(p, NULL, B, 4096, mb->lkey, 1);
  CK(!post(q, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED, A, 8, ma->lkey, B, mb->rkey, 8));
  w = wait1(cq);
  CK(!w.status);
  w = wait1(rcq);
  CK(!w.status && w.opcode == IBV_WC_RECV_RDMA_WITH_IMM && (w.wc_flags & IBV_WC_WITH_IMM) &&
     ntohl(w.imm_data) == 0x1234);
  puts("ok WRITE_WITH_IMM");
  /* RNR: the send waits for the recv */
  CK(!post(q, IBV_WR_SEND_WITH_IMM, IBV_SEND_SIGNALED, A, 8, ma->lkey, 0, 0, 8));
  usleep(20000);
  CK(!ibv_poll_cq(cq, 1, &w));
  recv_(p, NULL, B, 64, mb->lkey, 2);
  w = wait1(cq);
  CK(!w.status);
  w = wait1(rcq);
  CK(!w.status && (w.wc_flags & IBV_WC_WITH_IMM));
  puts("ok RNR wait");
  /* atomics */
  *(uint64_t*)B = 40;
  {
    struct ibv_sge s = {(uintptr_t)A, 8, ma->lkey};
    struct ibv_send_wr x = {.sg_list = &s,
                            .num_sge = 1,
                            .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                            .send_flags = IBV_SEND_SIGNALED,
                            .wr.atomic = {.remote_addr = (uintptr_t)B, .compare_add = 2, .rkey = mb->rkey}},
                       *bad;
    CK(!ibv_post_send(q, &x, &bad));
    w = wait1(cq);
    CK(!w.status && w.opcode == IBV_WC_FETCH_ADD && *(uint64_t*)A == 40 && *(uint64_t*)B == 42);
    x.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    x.wr.atomic.compare_add = 42;
    x.wr.atomic.swap = 77;
    CK(!ibv_post_send(q, &x, &bad));
    w = wait1(cq);
    CK(!w.status && w.opcode == IBV_WC_COMP_SWAP && *(uint64_t*)A == 42 && *(uint64_t*)B == 77);
    puts("ok atomics");
  }
  /* completion channel */
  struct pollfd pf = {ch->fd, POLLIN, 0};
  if (getenv("NOCH")) goto noch;
  CK(!ibv_req_notify_cq(cq, 0));
  CK(poll(&pf, 1, 20) == 0);
  for (int i = 0; i < 50; i++) {
    CK(!post(q, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, A, 8, ma->lkey, B, mb->rkey, 70 + i));
    struct ibv_cq* ec;
    void* ec_ctx;
    CK(!ibv_get_cq_event(ch, &ec, &ec_ctx));
    CK(ec == cq);
    ibv_ack_cq_events(cq, 1);
    CK(!ibv_req_notify_cq(cq, 0));
    w = wait1(cq);
    CK(!w.status && w.wr_id == 70u + i);
    /* the re-arm came before the poll, so the event for the same CQE may fire again: consume it */
    if (poll(&pf, 1, 5) == 1) {
      CK(!ibv_get_cq_event(ch, &ec, &ec_ctx));
      ibv_ack_cq_events(cq, 1);
      CK(!ibv_req_notify_cq(cq, 0));
    }
  }
  puts("ok completion channel x50");
noch:;
  /* resize */
  for (int i = 0; i < 5; i++) CK(!post(q, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, A, 8, ma->lkey, B, mb->rkey, 90 + i));
  usleep(2000);
  CK(!ibv_resize_cq(cq, 4000));
  for (int i = 0; i < 5; i++) {
    w = wait1(cq);
    CK(!w.status && w.wr_id == 90u + i);
  }
  CK(!post(q, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, A, 8, ma->lkey, B, mb->rkey, 99));
  w = wait1(cq);
  CK(w.wr_id == 99);
  puts("ok resize_cq with entries in flight");
  /* SRQ */
  {
    struct ibv_srq_init_attr sa = {.attr = {64, 2, 0}};
    struct ibv_srq* sr = ibv_create_srq(pd, &sa);
    CK(sr);
    struct ibv_qp *x = mkqp(sr, 0), *y = mkqp(sr, 0);
    conn(x, y->qp_num);
    conn(y, x->qp_num);
    for (int i = 0; i < 500; i++) {
      recv_(NULL, sr, B, 4096, mb->lkey, i);
      memset(A, i, 100);
      CK(!post(i & 1 ? x : y, IBV_WR_SEND, IBV_SEND_SIGNALED, A, 1 + i % 100, ma->lkey, 0, 0, 0));
      w = wait1(cq);
      CK(!w.status);
      w = wait1(rcq);
      CK(!w.status && w.wr_id == (uint64_t)i && w.byte_len == 1u + i % 100 && !memcmp(A, B, 1 + i % 100));
    }
    CK(!ibv_destroy_qp(x) && !ibv_destroy_qp(y) && !ibv_destroy_srq(sr));
    puts("ok SRQ x500");
  }
  /* extended QP + CQ */
  {
    struct ibv_cq_init_attr_ex ca = {.cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_cq_ex* cx = ibv_create_cq_ex(ctx, &ca);
    CK(cx);
    struct ibv_qp_init_attr_ex qa = {.send_cq = ibv_cq_ex_to_cq(cx),
                                     .recv_cq = rcq,
                                     .qp_type = IBV_QPT_RC,
                                     .cap = {64, 64, 2, 2, 64},
                                     .pd = pd,
                                     .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                     .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND};
    struct ibv_qp *x = ibv_create_qp_ex(ctx, &qa), *y = ibv_create_qp_ex(ctx, &qa);
    CK(x && y);
    conn(x, y->qp_num);
    conn(y, x->qp_num);
    struct ibv_qp_ex* e = ibv_qp_to_qp_ex(x);
    struct ibv_poll_cq_attr pa = {0};
    for (int i = 0; i < 300; i++) {
      ibv_wr_start(e);
      e->wr_id = i;
      e->wr_flags = IBV_SEND_SIGNALED;
      ibv_wr_rdma_write(e, mb->rkey, (uintptr_t)B);
      ibv_wr_set_sge(e, ma->lkey, (uintptr_t)A, 64);
      CK(!ibv_wr_complete(e));
      int r;
      while ((r = ibv_start_poll(cx, &pa)) == ENOENT)
        ;
      CK(!r && cx->wr_id == (uint64_t)i && cx->status == 0 && ibv_wc_read_opcode(cx) == IBV_WC_RDMA_WRITE);
      ibv_end_poll(cx);
    }
    CK(!ibv_destroy_qp(x) && !ibv_destroy_qp(y) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cx)));
    puts("ok ibv_wr_* and ibv_cq_ex x300");
  }
  /* bench (before errors) */
  if (ac > 1) {
    long N = atol(av[1]);
    for (int v = 0; v < 7; v++) {
      static const char* nm[] = {"write 8 inline signaled, depth 1",
                                 "write 8 inline, depth 1 (sge)",
                                 "write 64 sge, batch 16, 1 signaled, poll",
                                 "write 64 sge depth 64 all signaled",
                                 "send/recv 16 depth 1 (s2c)",
                                 "write 4096 depth 1",
                                 "post_send only cost / poll only cost (depth 128)"};
      uint64_t best = ~0ull, bp = 0, bq = 0;
      for (int rep = 0; rep < 5; rep++) {
        uint64_t t = ns(), tp = 0, tq = 0;
        long done = 0;
        if (v == 0)
          for (; done < N; done++) {
            post(q, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | IBV_SEND_INLINE, A, 8, 0, B, mb->rkey, 1);
            while (!ibv_poll_cq(cq, 1, &w))
              ;
            CK(!w.status);
          }
        if (v == 1)
          for (; done < N; done++) {
            post(q, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, A, 8, ma->lkey, B, mb->rkey, 1);
            while (!ibv_poll_cq(cq, 1, &w))
              ;
            CK(!w.status);
          }
        if (v == 2)
          for (; done < N; done += 16) {
            struct ibv_sge s = {(uintptr_t)A, 64, ma->lkey};
            struct ibv_send_wr x[16], *bad;
            for (int i = 0; i < 16; i++) {
              x[i] = (struct ibv_send_wr){.wr_id = i,
                                          .next = i < 15 ? &x[i + 1] : NULL,
                                          .sg_list = &s,
                                          .num_sge = 1,
                                          .opcode = IBV_WR_RDMA_WRITE,
                                          .send_flags = i == 15 ? IBV_SEND_SIGNALED : 0,
                                          .wr.rdma = {(uintptr_t)B, mb->rkey}};
            }
            CK(!ibv_post_send(q, x, &bad));
            while (!ibv_poll_cq(cq, 1, &w))
              ;
            CK(!w.status);
          }
        if (v == 3) {
          long posted = 0;
          struct ibv_wc ws[32];
          while (done < N) {
            while (posted < N && posted - done < 64) {
              post(q, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, A, 64, ma->lkey, B, mb->rkey, 1);
              posted++;
            }
            done += ibv_poll_cq(cq, 32, ws);
          }
        }
        if (v == 4)
          for (; done < N; done++) {
            recv_(p, NULL, B, 64, mb->lkey, 1);
            post(q, IBV_WR_SEND, IBV_SEND_SIGNALED, A, 16, ma->lkey, 0, 0, 1);
            while (!ibv_poll_cq(rcq, 1, &w))
              ;
            CK(!w.status);
            while (!ibv_poll_cq(cq, 1, &w))
              ;
            CK(!w.status);
          }
        if (v == 5)
          for (; done < N; done++) {
            post(q, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, A, 4096, ma->lkey, B, mb->rkey, 1);
            while (!ibv_poll_cq(cq, 1, &w))
              ;
            CK(!w.status);
          }
        if (v == 6) {
          struct ibv_wc ws[128];
          for (; done < N; done += 128) {
            uint64_t a = ns();
            for (int i = 0; i < 128; i++)
              post(q, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, A, 64, ma->lkey, B, mb->rkey, 1);
            uint64_t b = ns();
            struct timespec z = {0, 30000};
            uint64_t sp = ns();
            (void)z;
            while (ns() - sp < 30000)
              ;
            uint64_t c = ns();
            int g = 0;
            while (g < 128) g += ibv_poll_cq(cq, 128 - g, ws);
            tp += b - a;
            tq += ns() - c;
          }
        }
        t = ns() - t;
        if (t < best) {
          best = t;
          bp = tp;
          bq = tq;
        }
      }
      if (v < 6)
        printf("%-45s %7.1f ns/op\n", nm[v], (double)best / N);
      else
        printf("%-45s %7.1f post, %.1f poll ns/op\n", nm[v], (double)bp / N, (double)bq / N);
    }
  }
  /* errors: bad rkey -> REM_ACCESS, flush, then peer dead */
  CK(!post(q, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, A, 8, ma->lkey, B, mb->rkey ^ 0x100, 8));
  CK(!post(q, IBV_WR_RDMA_WRITE, 0, A, 8, ma->lkey, B, mb->rkey, 9));
  w = wait1(cq);
  CK(w.status == IBV_WC_REM_ACCESS_ERR && w.wr_id == 8);
  w = wait1(cq);
  CK(w.status == IBV_WC_WR_FLUSH_ERR && w.wr_id == 9);
  struct ibv_async_event ev;
  CK(!ibv_get_async_event(ctx, &ev));
  CK(ev.event_type == IBV_EVENT_QP_ACCESS_ERR && ev.element.qp == p);
  ibv_ack_async_event(&ev);
  struct ibv_qp_attr qa;
  struct ibv_qp_init_attr qi;
  CK(!ibv_query_qp(q, &qa, IBV_QP_STATE | IBV_QP_CAP, &qi) && qa.qp_state == IBV_QPS_ERR);
  puts("ok remote access error, flush, async event");
  CK(!ibv_destroy_qp(q) && !ibv_destroy_qp(p) && !ibv_destroy_cq(cq) && !ibv_destroy_cq(rcq) && !ibv_dereg_mr(ma) &&
     !ibv_dereg_mr(mb) && !ibv_destroy_comp_channel(ch) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
  ibv_free_device_list(l);
  puts("ok teardown; ALL OK");
  return 0;
}
