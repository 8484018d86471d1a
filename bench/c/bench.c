// The C side of the comparison: what bench/js.mjs does, written against libibverbs as a C programmer would. The two run
// in turns and are told what to do by bench/compare.mjs: a line "<case> <requests>" on stdin is answered by a line
// {"case": ..., "value": ...} on stdout: nanoseconds of CPU time per request, or bytes of memory per object.
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHECK(x)                                                    \
  do {                                                              \
    if (!(x)) {                                                     \
      fprintf(stderr, "bench.c:%d: %s failed: %m\n", __LINE__, #x); \
      exit(1);                                                      \
    }                                                               \
  } while (0)

enum { BYTES = 8, BATCH = 32 };

static struct ibv_context* context;
static struct ibv_pd* pd;
static struct ibv_gid_entry gid;
static struct ibv_comp_channel *channel, *here_channel, *there_channel;
static struct ibv_cq *send_cq, *recv_cq, *here_cq, *there_cq;
// Of one connection each: the plain one, one whose receiver has a shared receive queue, one for each end's own events.
static struct ibv_qp *here, *there, *to_srq, *srq_qp, *ping_qp, *pong_qp;
// Datagrams.
static struct ibv_qp *ud_here, *ud_there;
static struct ibv_ah* ah;
static struct ibv_srq* srq;
static struct ibv_sge local, target, with_grh;
static uint64_t remote_addr;
static uint32_t remote_key;
static const uint32_t qkey = 0x11111111;

static void connect_qp(struct ibv_qp* qp, uint32_t peer) {
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
                  .grh = {.dgid = gid.gid, .sgid_index = (uint8_t)gid.gid_index, .hop_limit = 64}},
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

static void to_rts_ud(struct ibv_qp* qp) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = qkey};
  CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
  attr.qp_state = IBV_QPS_RTR;
  CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
  attr.qp_state = IBV_QPS_RTS;
  CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

static struct ibv_qp* create_qp(enum ibv_qp_type type, struct ibv_cq* recv, struct ibv_srq* shared) {
  struct ibv_qp_init_attr attr = {
      .send_cq = send_cq,
      .recv_cq = recv,
      .srq = shared,
      .qp_type = type,
      .cap = {.max_send_wr = 128, .max_recv_wr = 128, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64},
  };
  struct ibv_qp* qp = ibv_create_qp(pd, &attr);
  CHECK(qp);
  return qp;
}

static void connect_pair(struct ibv_qp* a, struct ibv_qp* b) {
  connect_qp(a, b->qp_num);
  connect_qp(b, a->qp_num);
}

static void open_all(void) {
  int devices = 0;
  struct ibv_device** list = ibv_get_device_list(&devices);
  CHECK(list && devices > 0);
  CHECK(context = ibv_open_device(list[0]));
  CHECK(pd = ibv_alloc_pd(context));
  struct ibv_gid_entry gids[64];
  const ssize_t found = ibv_query_gid_table(context, gids, 64, 0);
  CHECK(found > 0);
  gid = gids[found - 1];

  CHECK(channel = ibv_create_comp_channel(context));
  CHECK(here_channel = ibv_create_comp_channel(context));
  CHECK(there_channel = ibv_create_comp_channel(context));
  CHECK(send_cq = ibv_create_cq(context, 1024, NULL, channel, 0));
  CHECK(recv_cq = ibv_create_cq(context, 1024, NULL, channel, 0));
  CHECK(here_cq = ibv_create_cq(context, 256, NULL, here_channel, 0));
  CHECK(there_cq = ibv_create_cq(context, 256, NULL, there_channel, 0));
  struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 128, .max_sge = 1}};
  CHECK(srq = ibv_create_srq(pd, &srq_attr));
  connect_pair(here = create_qp(IBV_QPT_RC, recv_cq, NULL), there = create_qp(IBV_QPT_RC, recv_cq, NULL));
  connect_pair(to_srq = create_qp(IBV_QPT_RC, recv_cq, NULL), srq_qp = create_qp(IBV_QPT_RC, recv_cq, srq));
  connect_pair(ping_qp = create_qp(IBV_QPT_RC, here_cq, NULL), pong_qp = create_qp(IBV_QPT_RC, there_cq, NULL));
  to_rts_ud(ud_here = create_qp(IBV_QPT_UD, recv_cq, NULL));
  to_rts_ud(ud_there = create_qp(IBV_QPT_UD, recv_cq, NULL));
  struct ibv_ah_attr ah_attr = {
      .is_global = 1,
      .port_num = 1,
      .grh = {.dgid = gid.gid, .sgid_index = (uint8_t)gid.gid_index, .hop_limit = 64},
  };
  CHECK(ah = ibv_create_ah(pd, &ah_attr));

  char* memory = aligned_alloc(4096, 8192);
  CHECK(memory);
  memset(memory, 0, 8192);
  struct ibv_mr* mr =
      ibv_reg_mr(pd, memory, 8192,
                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
  CHECK(mr);
  local = (struct ibv_sge){.addr = (uintptr_t)memory, .length = BYTES, .lkey = mr->lkey};
  target = (struct ibv_sge){.addr = (uintptr_t)memory + 4096, .length = BYTES, .lkey = mr->lkey};
  // The first 40 bytes of a datagram are the global routing header.
  with_grh = target;
  with_grh.length += 40;
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

static inline void post_to(struct ibv_qp* qp, struct ibv_send_wr* wr) {
  struct ibv_send_wr* bad;
  CHECK(!ibv_post_send(qp, wr, &bad));
}

static inline void post(struct ibv_send_wr* wr) { post_to(here, wr); }

static inline void post_recv(struct ibv_qp* qp, struct ibv_recv_wr* wr) {
  struct ibv_recv_wr* bad;
  CHECK(!ibv_post_recv(qp, wr, &bad));
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
  struct ibv_recv_wr recv = {.sg_list = &target, .num_sge = 1};
  for (long i = 0; i < requests; i++) {
    post_recv(there, &recv);
    post(&send);
    drain(send_cq, 1);
    drain(recv_cq, 1);
  }
}

static void send_srq_prepared(long requests) {
  struct ibv_send_wr send = request(IBV_WR_SEND, IBV_SEND_SIGNALED);
  struct ibv_recv_wr recv = {.sg_list = &target, .num_sge = 1}, *bad;
  for (long i = 0; i < requests; i++) {
    CHECK(!ibv_post_srq_recv(srq, &recv, &bad));
    post_to(to_srq, &send);
    drain(send_cq, 1);
    drain(recv_cq, 1);
  }
}

static void datagram_prepared(long requests) {
  struct ibv_send_wr send = request(IBV_WR_SEND, IBV_SEND_SIGNALED);
  send.wr.ud.ah = ah;
  send.wr.ud.remote_qpn = ud_there->qp_num;
  send.wr.ud.remote_qkey = qkey;
  struct ibv_recv_wr recv = {.sg_list = &with_grh, .num_sge = 1};
  for (long i = 0; i < requests; i++) {
    post_recv(ud_there, &recv);
    post_to(ud_here, &send);
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

// Until the next event of a channel, which it takes.
static void await_event(struct ibv_comp_channel* of) {
  struct pollfd readable = {.fd = of->fd, .events = POLLIN};
  CHECK(poll(&readable, 1, -1) == 1);
  struct ibv_cq* cq;
  void* cq_context;
  CHECK(!ibv_get_cq_event(of, &cq, &cq_context));
  ibv_ack_cq_events(cq, 1);
}

static void event_wait(long requests) {
  struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
  for (long i = 0; i < requests; i++) {
    CHECK(!ibv_req_notify_cq(send_cq, 0));
    post(&wr);
    await_event(channel);
    drain(send_cq, 1);
  }
}

static void event_ping_pong(long requests) {
  struct ibv_send_wr send = request(IBV_WR_SEND, IBV_SEND_SIGNALED);
  struct ibv_recv_wr recv = {.sg_list = &target, .num_sge = 1};
  for (long i = 0; i < requests; i++) {
    post_recv(ping_qp, &recv);
    post_recv(pong_qp, &recv);
    CHECK(!ibv_req_notify_cq(there_cq, 0));
    post_to(ping_qp, &send);
    await_event(there_channel);
    drain(there_cq, 1);
    CHECK(!ibv_req_notify_cq(here_cq, 0));
    post_to(pong_qp, &send);
    await_event(here_channel);
    drain(here_cq, 1);
    drain(send_cq, 2);
  }
}

// A byte there and back by a pair of sockets, each side asleep until epoll tells of it.
static void socket_ping_pong(long requests) {
  static int ends[2] = {-1, -1};
  static int loop;
  struct epoll_event event;
  if (ends[0] < 0) {
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) && (loop = epoll_create1(0)) >= 0);
    for (int i = 0; i < 2; i++) {
      event = (struct epoll_event){.events = EPOLLIN, .data.fd = ends[i]};
      CHECK(!epoll_ctl(loop, EPOLL_CTL_ADD, ends[i], &event));
    }
  }
  char byte = 0;
  for (long i = 0; i < 2 * requests; i++) {
    CHECK(write(ends[i % 2], &byte, 1) == 1);
    CHECK(epoll_wait(loop, &event, 1, -1) == 1 && read(event.data.fd, &byte, 1) == 1);
  }
}

// One region of 64 MiB, registered and deregistered again and again.
static void reg_mr(long requests) {
  static const size_t length = 64 << 20;
  static char* memory;
  if (memory == NULL) {
    CHECK(memory = aligned_alloc(4096, length));
    memset(memory, 0, length);
  }
  for (long i = 0; i < requests; i++) {
    struct ibv_mr* mr = ibv_reg_mr(pd, memory, length, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr);
    CHECK(!ibv_dereg_mr(mr));
  }
}

static double resident_bytes(void) {
  FILE* file = fopen("/proc/self/statm", "r");
  long pages = 0;
  CHECK(file && fscanf(file, "%*d %ld", &pages) == 1);
  fclose(file);
  return (double)pages * 4096;
}

// What objects take, all of one kind and kept.
static double memory_of(long objects, void* (*create)(void)) {
  create();
  const double before = resident_bytes();
  for (long i = 0; i < objects; i++) CHECK(create());
  return (resident_bytes() - before) / (double)objects;
}

static void* new_qp(void) { return create_qp(IBV_QPT_RC, recv_cq, NULL); }
static void* new_cq(void) { return ibv_create_cq(context, 256, NULL, channel, 0); }
static void* new_mr(void) { return ibv_reg_mr(pd, (void*)(uintptr_t)local.addr, 4096, IBV_ACCESS_LOCAL_WRITE); }
static double memory_qp(long objects) { return memory_of(objects, new_qp); }
static double memory_cq(long objects) { return memory_of(objects, new_cq); }
static double memory_mr(long objects) { return memory_of(objects, new_mr); }

static const struct {
  const char* name;
  void (*run)(long requests);
  // In place of a time.
  double (*measure)(long objects);
} cases[] = {
    {"write-prepared", write_prepared, NULL},
    {"write-inline-prepared", write_inline_prepared, NULL},
    {"read-prepared", read_prepared, NULL},
    {"fetch-add-prepared", fetch_add_prepared, NULL},
    {"send-recv-prepared", send_recv_prepared, NULL},
    {"send-srq-prepared", send_srq_prepared, NULL},
    {"datagram-prepared", datagram_prepared, NULL},
    {"write-batch", write_batch, NULL},
    {"write-batch-signaled", write_batch_signaled, NULL},
    {"write-object", write_object, NULL},
    {"write-object-batch", write_object_batch, NULL},
    // Endpoints send what is short inline.
    {"write-awaited", write_inline_prepared, NULL},
    {"write-awaited-batch", write_inline_batch, NULL},
    {"poll-empty", poll_empty, NULL},
    {"event-wait", event_wait, NULL},
    {"event-ping-pong", event_ping_pong, NULL},
    {"socket-ping-pong", socket_ping_pong, NULL},
    {"reg-mr", reg_mr, NULL},
    {"memory-qp", NULL, memory_qp},
    {"memory-cq", NULL, memory_cq},
    {"memory-mr", NULL, memory_mr},
};

// CPU time and not time of day: other programs of the machine must not count.
static double cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(void) {
  open_all();
  char name[64];
  long requests;
  while (scanf("%63s %ld", name, &requests) == 2) {
    size_t i = 0;
    while (i < sizeof(cases) / sizeof(cases[0]) && strcmp(cases[i].name, name) != 0) i++;
    CHECK(i < sizeof(cases) / sizeof(cases[0]));
    double value;
    if (cases[i].measure != NULL) {
      value = cases[i].measure(requests);
    } else {
      const double start = cpu_ns();
      cases[i].run(requests);
      value = (cpu_ns() - start) / (double)requests;
    }
    printf("{\"case\": \"%s\", \"value\": %.2f}\n", name, value);
    fflush(stdout);
  }
  return 0;
}
