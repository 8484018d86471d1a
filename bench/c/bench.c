// The C side of the comparison: what bench/js.mjs does, written against libibverbs as a C programmer would. The two run
// in turns and are told what to do by bench/compare.mjs: a line "<case> <requests>" on stdin is answered by a line
// {"case": ..., "ns": ...} on stdout, nanoseconds of CPU time per request.
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(x)                                                    \
  do {                                                              \
    if (!(x)) {                                                     \
      fprintf(stderr, "bench.c:%d: %s failed: %m\n", __LINE__, #x); \
      exit(1);                                                      \
    }                                                               \
  } while (0)

enum { BYTES = 8, BATCH = 32 };

static struct ibv_comp_channel* channel;
static struct ibv_cq *send_cq, *recv_cq;
static struct ibv_qp *here, *there;
static struct ibv_sge local, target;
static uint64_t remote_addr;
static uint32_t remote_key;

static void connect_qp(struct ibv_qp* qp, uint32_t peer, const struct ibv_gid_entry* gid) {
  struct ibv_qp_attr init = {
      .qp_state = IBV_QPS_INIT,
      .port_num = 1,
      .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
  };
  CHECK(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  struct ibv_qp_attr rtr = {
      .qp_state = IBV_QPS_RTR,
      .path_mtu = IBV_MTU_1024,
      .dest_qp_num = peer,
      .max_dest_rd_atomic = 16,
      .min_rnr_timer = 12,
      .ah_attr = {.is_global = 1,
                  .port_num = 1,
                  .grh = {.dgid = gid->gid, .sgid_index = (uint8_t)gid->gid_index, .hop_limit = 64}},
  };
  CHECK(!ibv_modify_qp(qp, &rtr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  struct ibv_qp_attr rts = {
      .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 16};
  CHECK(!ibv_modify_qp(
      qp, &rts,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void open_pair(void) {
  int devices = 0;
  struct ibv_device** list = ibv_get_device_list(&devices);
  CHECK(list && devices > 0);
  struct ibv_context* context = ibv_open_device(list[0]);
  CHECK(context);
  struct ibv_pd* pd = ibv_alloc_pd(context);
  CHECK(pd);
  struct ibv_gid_entry gids[64];
  const ssize_t found = ibv_query_gid_table(context, gids, 64, 0);
  CHECK(found > 0);

  CHECK(channel = ibv_create_comp_channel(context));
  CHECK(send_cq = ibv_create_cq(context, 256, NULL, channel, 0));
  CHECK(recv_cq = ibv_create_cq(context, 256, NULL, channel, 0));
  struct ibv_qp_init_attr attr = {
      .send_cq = send_cq,
      .recv_cq = recv_cq,
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = 128, .max_recv_wr = 128, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64},
  };
  CHECK(here = ibv_create_qp(pd, &attr));
  CHECK(there = ibv_create_qp(pd, &attr));
  connect_qp(here, there->qp_num, &gids[found - 1]);
  connect_qp(there, here->qp_num, &gids[found - 1]);

  char* memory = aligned_alloc(4096, 8192);
  CHECK(memory);
  memset(memory, 0, 8192);
  struct ibv_mr* mr =
      ibv_reg_mr(pd, memory, 8192,
                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
  CHECK(mr);
  local = (struct ibv_sge){.addr = (uintptr_t)memory, .length = BYTES, .lkey = mr->lkey};
  target = (struct ibv_sge){.addr = (uintptr_t)memory + 4096, .length = BYTES, .lkey = mr->lkey};
  remote_addr = target.addr;
  remote_key = mr->rkey;
}

static struct ibv_send_wr request(enum ibv_wr_opcode opcode, unsigned flags) {
  struct ibv_send_wr wr = {.sg_list = &local, .num_sge = 1, .opcode = opcode, .send_flags = flags};
  if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    wr.wr.atomic.remote_addr = remote_addr;
    wr.wr.atomic.rkey = remote_key;
    wr.wr.atomic.compare_add = 1;
  } else if (opcode != IBV_WR_SEND) {
    wr.wr.rdma.remote_addr = remote_addr;
    wr.wr.rdma.rkey = remote_key;
  }
  return wr;
}

// A linked list of writes, of which the last is signalled, or all are.
static void prepare_batch(struct ibv_send_wr* wrs, unsigned flags) {
  for (int i = 0; i < BATCH; i++) {
    wrs[i] = request(IBV_WR_RDMA_WRITE, i == BATCH - 1 ? flags | IBV_SEND_SIGNALED : flags);
    wrs[i].wr_id = i;
    wrs[i].next = i == BATCH - 1 ? NULL : &wrs[i + 1];
  }
}

static inline void post(struct ibv_send_wr* wr) {
  struct ibv_send_wr* bad;
  CHECK(!ibv_post_send(here, wr, &bad));
}

// Polls until `count` completions were there.
static inline void drain(struct ibv_cq* cq, int count) {
  struct ibv_wc wc[BATCH];
  while (count > 0) {
    const int found = ibv_poll_cq(cq, count, wc);
    CHECK(found >= 0);
    for (int i = 0; i < found; i++) CHECK(wc[i].status == IBV_WC_SUCCESS);
    count -= found;
  }
}

static void prepared(long requests, enum ibv_wr_opcode opcode, unsigned flags) {
  struct ibv_send_wr wr = request(opcode, IBV_SEND_SIGNALED | flags);
  for (long i = 0; i < requests; i++) {
    post(&wr);
    drain(send_cq, 1);
  }
}

static void write_prepared(long requests) { prepared(requests, IBV_WR_RDMA_WRITE, 0); }
static void write_inline_prepared(long requests) { prepared(requests, IBV_WR_RDMA_WRITE, IBV_SEND_INLINE); }
static void read_prepared(long requests) { prepared(requests, IBV_WR_RDMA_READ, 0); }
static void fetch_add_prepared(long requests) { prepared(requests, IBV_WR_ATOMIC_FETCH_AND_ADD, 0); }

static void write_batch(long requests) {
  struct ibv_send_wr wrs[BATCH];
  prepare_batch(wrs, 0);
  for (long i = 0; i < requests; i += BATCH) {
    post(wrs);
    drain(send_cq, 1);
  }
}

static void write_batch_signaled(long requests) {
  struct ibv_send_wr wrs[BATCH];
  prepare_batch(wrs, IBV_SEND_SIGNALED);
  for (long i = 0; i < requests; i += BATCH) {
    post(wrs);
    drain(send_cq, BATCH);
  }
}

static void write_inline_batch(long requests) {
  struct ibv_send_wr wrs[BATCH];
  prepare_batch(wrs, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
  for (long i = 0; i < requests; i += BATCH) {
    post(wrs);
    drain(send_cq, BATCH);
  }
}

static void send_recv_prepared(long requests) {
  struct ibv_send_wr send = request(IBV_WR_SEND, IBV_SEND_SIGNALED);
  struct ibv_recv_wr recv = {.sg_list = &target, .num_sge = 1}, *bad;
  for (long i = 0; i < requests; i++) {
    CHECK(!ibv_post_recv(there, &recv, &bad));
    post(&send);
    drain(send_cq, 1);
    drain(recv_cq, 1);
  }
}

// The request is written anew each time, as JavaScript does with an object.
static void write_object(long requests) {
  for (long i = 0; i < requests; i++) {
    struct ibv_sge sge = local;
    struct ibv_send_wr wr = {
        .wr_id = i,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {.remote_addr = remote_addr, .rkey = remote_key},
    };
    post(&wr);
    drain(send_cq, 1);
  }
}

static void write_object_batch(long requests) {
  for (long i = 0; i < requests; i += BATCH) {
    struct ibv_send_wr wrs[BATCH];
    prepare_batch(wrs, 0);
    post(wrs);
    drain(send_cq, 1);
  }
}

static void poll_empty(long requests) {
  struct ibv_wc wc;
  for (long i = 0; i < requests; i++) CHECK(ibv_poll_cq(send_cq, 1, &wc) == 0);
}

static void event_wait(long requests) {
  struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
  struct pollfd readable = {.fd = channel->fd, .events = POLLIN};
  for (long i = 0; i < requests; i++) {
    CHECK(!ibv_req_notify_cq(send_cq, 0));
    post(&wr);
    CHECK(poll(&readable, 1, -1) == 1);
    struct ibv_cq* cq;
    void* context;
    CHECK(!ibv_get_cq_event(channel, &cq, &context));
    ibv_ack_cq_events(cq, 1);
    drain(cq, 1);
  }
}

static const struct {
  const char* name;
  void (*run)(long requests);
} cases[] = {
    {"write-prepared", write_prepared},
    {"write-inline-prepared", write_inline_prepared},
    {"read-prepared", read_prepared},
    {"fetch-add-prepared", fetch_add_prepared},
    {"send-recv-prepared", send_recv_prepared},
    {"write-batch", write_batch},
    {"write-batch-signaled", write_batch_signaled},
    {"write-object", write_object},
    {"write-object-batch", write_object_batch},
    // Endpoints send what is short inline.
    {"write-awaited", write_inline_prepared},
    {"write-awaited-batch", write_inline_batch},
    {"poll-empty", poll_empty},
    {"event-wait", event_wait},
};

// CPU time and not time of day: other programs of the machine must not count.
static double cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(void) {
  open_pair();
  char name[64];
  long requests;
  while (scanf("%63s %ld", name, &requests) == 2) {
    void (*run)(long) = NULL;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
      if (strcmp(cases[i].name, name) == 0) run = cases[i].run;
    CHECK(run);
    const double start = cpu_ns();
    run(requests);
    printf("{\"case\": \"%s\", \"ns\": %.2f}\n", name, (cpu_ns() - start) / (double)requests);
    fflush(stdout);
  }
  return 0;
}
