/*
 * `check bench <rounds>`: what posting and polling cost in C. In MODE=inline the figures are CPU time of libmlx5 and of
 * the model together; they say nothing of a NIC.
 */
#include <stdio.h>
#include <stdlib.h>

#include "check.h"

static struct pair p;

static void poll_one(struct ibv_cq* cq) {
  struct ibv_wc wc;
  while (!ibv_poll_cq(cq, 1, &wc))
    ;
  if (wc.status) abort();
}

static void write_8_inline(long n) {
  for (long i = 0; i < n; i++) {
    post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | IBV_SEND_INLINE, 8, &p.b, 1);
    poll_one(p.a.cq);
  }
}

static void write_8(long n) {
  for (long i = 0; i < n; i++) {
    post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, &p.b, 1);
    poll_one(p.a.cq);
  }
}

static void write_4096(long n) {
  for (long i = 0; i < n; i++) {
    post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 4096, &p.b, 1);
    poll_one(p.a.cq);
  }
}

static void write_64_batches(long n) {
  enum { BATCH = 32 };
  struct ibv_sge sge = {(uintptr_t)p.a.buf, 64, p.a.mr->lkey};
  struct ibv_send_wr wr[BATCH], *bad;
  for (int i = 0; i < BATCH; i++) {
    wr[i] = (struct ibv_send_wr){.next = i < BATCH - 1 ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1};
    wr[i].opcode = IBV_WR_RDMA_WRITE;
    wr[i].send_flags = i == BATCH - 1 ? IBV_SEND_SIGNALED : 0;
    wr[i].wr.rdma.remote_addr = (uintptr_t)p.b.buf;
    wr[i].wr.rdma.rkey = p.b.mr->rkey;
  }
  for (long done = 0; done < n; done += BATCH) {
    ibv_post_send(p.a.qp, wr, &bad);
    poll_one(p.a.cq);
  }
}

static void write_64_depth_64(long n) {
  struct ibv_wc wc[32];
  for (long posted = 0, done = 0; done < n; done += ibv_poll_cq(p.a.cq, 32, wc))
    for (; posted < n && posted - done < 64; posted++)
      post_rdma(&p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 64, &p.b, 1);
}

static void send_16(long n) {
  for (long i = 0; i < n; i++) {
    post_receive(&p.b, p.b.buf, 64, 1);
    post_rdma(&p.a, IBV_WR_SEND, IBV_SEND_SIGNALED, 16, &p.b, 1);
    poll_one(p.b.recv_cq);
    poll_one(p.a.cq);
  }
}

int benchmark(long rounds) {
  static const struct {
    const char* name;
    void (*run)(long);
  } cases[] = {
      {"WRITE 8 inline, depth 1", write_8_inline},
      {"WRITE 8, depth 1", write_8},
      {"WRITE 64, batches of 32, last signalled", write_64_batches},
      {"WRITE 64, depth 64, all signalled", write_64_depth_64},
      {"SEND 16 and receive, depth 1", send_16},
      {"WRITE 4096, depth 1", write_4096},
  };
  if (rounds < 1 || !pair_open(&p, (struct setup){0})) return 1;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    uint64_t best = UINT64_MAX;
    for (int repeat = 0; repeat < 5; repeat++) {
      uint64_t start = now();
      cases[i].run(rounds);
      if (now() - start < best) best = now() - start;
    }
    printf("%-42s %7.1f ns\n", cases[i].name, (double)best / (double)rounds);
  }
  return !pair_close(&p);
}
