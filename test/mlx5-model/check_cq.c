/* Checks: completion queues that moderate their events, or tell the time. */
#include <poll.h>

#include "check.h"

static bool has_event(struct end* e, int timeout_ms) {
  struct pollfd fd = {.fd = e->channel->fd, .events = POLLIN};
  return poll(&fd, 1, timeout_ms) == 1;
}

static bool take_event(struct end* e) {
  struct ibv_cq* cq;
  void* context;
  if (ibv_get_cq_event(e->channel, &cq, &context)) return false;
  ibv_ack_cq_events(cq, 1);
  return cq == e->cq;
}

static int moderate(struct ibv_cq* cq, uint16_t count, uint16_t period) {
  struct ibv_modify_cq_attr attr = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {count, period}};
  return ibv_modify_cq(cq, &attr);
}

static bool write_and_wait(struct pair* p) {
  return !post_rdma(&p->a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, &p->b, 1) && completes(p->a.cq, 1, IBV_WC_SUCCESS);
}

static bool moderated_events(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  EXPECT(moderate(p.a.cq, 1, 4096) && !moderate(p.a.cq, 3, 0));
  EXPECT(!ibv_req_notify_cq(p.a.cq, 0));
  EXPECT(write_and_wait(&p) && write_and_wait(&p) && !has_event(&p.a, 20));
  EXPECT(write_and_wait(&p) && has_event(&p.a, 3000) && take_event(&p.a));

  /* The first one waits no longer than the period. */
  EXPECT(!moderate(p.a.cq, 100, 2000) && !ibv_req_notify_cq(p.a.cq, 0));
  uint64_t begin = now();
  EXPECT(write_and_wait(&p) && has_event(&p.a, 3000) && now() - begin >= 2000000 && take_event(&p.a));

  EXPECT(!moderate(p.a.cq, 0, 0) && !ibv_req_notify_cq(p.a.cq, 0));
  EXPECT(write_and_wait(&p) && has_event(&p.a, 3000) && take_event(&p.a));
  return pair_close(&p);
}

static bool clock_of_the_device(void) {
  struct end e;
  struct ibv_device_attr_ex attr;
  struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
  EXPECT(end_open(&e, 0) && !ibv_query_device_ex(e.context, NULL, &attr));
  EXPECT(attr.hca_core_clock == 156250 && attr.completion_timestamp_mask == UINT64_MAX);
  EXPECT(!ibv_query_rt_values_ex(e.context, &values));
  uint64_t first = (uint64_t)values.raw_clock.tv_nsec, begin = now(), end;
  do end = now();
  while (end - begin < 1000000);
  EXPECT(!ibv_query_rt_values_ex(e.context, &values));
  uint64_t ns = ((uint64_t)values.raw_clock.tv_nsec - first) * 32 / 5; /* a cycle is 6.4 ns */
  EXPECT(ns >= end - begin - 1000 && ns <= now() - begin + 100000000);
  return end_close(&e);
}

const struct check cq_checks[] = {
    {"events of many completions, or after a while", moderated_events},
    {"the clock", clock_of_the_device},
    {0},
};
