/* Runs the checks, and holds what they share. `check [name part]`, `check bench <rounds>`. */
#include "check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

bool fail(const char* file, int line, const char* condition) {
  printf("  %s:%d: %s (errno: %s)\n", file, line, condition, strerror(errno));
  return false;
}

uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

struct ibv_context* open_device(int dev) {
  char name[16];
  struct ibv_context* context = NULL;
  struct ibv_device** list = ibv_get_device_list(NULL);
  snprintf(name, sizeof name, "mlx5_%d", dev);
  for (int i = 0; list && list[i]; i++)
    if (!strcmp(ibv_get_device_name(list[i]), name)) context = ibv_open_device(list[i]);
  ibv_free_device_list(list);
  return context;
}

bool end_open(struct end* e, int dev) {
  memset(e, 0, sizeof *e);
  EXPECT(e->context = open_device(dev));
  EXPECT(e->pd = ibv_alloc_pd(e->context));
  EXPECT(e->channel = ibv_create_comp_channel(e->context));
  EXPECT(e->cq = ibv_create_cq(e->context, 1000, NULL, e->channel, 0));
  EXPECT(e->recv_cq = ibv_create_cq(e->context, 1000, NULL, NULL, 0));
  EXPECT(e->buf = aligned_alloc(4096, BUFFER));
  memset(e->buf, 0, BUFFER);
  EXPECT(e->mr = ibv_reg_mr(e->pd, e->buf, BUFFER,
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND));
  return true;
}

bool end_qp(struct end* e, enum ibv_qp_type type) {
  struct ibv_qp_init_attr attr = {.send_cq = e->cq, .recv_cq = e->recv_cq, .srq = e->srq, .qp_type = type};
  attr.cap = (struct ibv_qp_cap){DEPTH, e->srq ? 0 : DEPTH, 30, e->srq ? 0 : 30, 128};
  if (type == IBV_QPT_UD) attr.cap.max_send_sge = 27; /* the address vector takes three places */
  EXPECT(e->qp = ibv_create_qp(e->pd, &attr));
  return true;
}

bool end_close(struct end* e) {
  EXPECT(!e->qp || !ibv_destroy_qp(e->qp));
  EXPECT(!e->srq || !ibv_destroy_srq(e->srq));
  EXPECT(!ibv_destroy_cq(e->cq) && !ibv_destroy_cq(e->recv_cq));
  EXPECT(!ibv_destroy_comp_channel(e->channel));
  EXPECT(!ibv_dereg_mr(e->mr) && !ibv_dealloc_pd(e->pd) && !ibv_close_device(e->context));
  free(e->buf);
  return true;
}

bool connect_qp(struct end* e, uint32_t dest_qpn, const struct setup* s) {
  bool ud = s->type == IBV_QPT_UD, rc = s->type == 0 || s->type == IBV_QPT_RC;
  struct ibv_qp_attr attr = {
      .qp_state = IBV_QPS_INIT,
      .port_num = 1,
      .qkey = 0x11111111,
      .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
  EXPECT(!ibv_modify_qp(e->qp, &attr,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                              .path_mtu = IBV_MTU_1024,
                              .dest_qp_num = dest_qpn,
                              .max_dest_rd_atomic = 16,
                              .min_rnr_timer = 12,
                              .ah_attr = {.is_global = 1, .grh = {.sgid_index = 3, .hop_limit = 64}, .port_num = 1}};
  EXPECT(!ibv_query_gid(e->context, 1, 3, &attr.ah_attr.grh.dgid));
  EXPECT(!ibv_modify_qp(e->qp, &attr,
                        IBV_QP_STATE | (ud ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) |
                            (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                              .timeout = s->weak ? s->timeout : 14,
                              .retry_cnt = s->weak ? s->retry_cnt : 7,
                              .rnr_retry = s->weak ? s->rnr_retry : 7,
                              .max_rd_atomic = 16};
  EXPECT(!ibv_modify_qp(e->qp, &attr,
                        IBV_QP_STATE | IBV_QP_SQ_PSN |
                            (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)));
  return true;
}

bool pair_open(struct pair* p, struct setup s) {
  EXPECT(end_open(&p->a, 0) && end_open(&p->b, s.one_device ? 0 : 1));
  EXPECT(end_qp(&p->a, s.type ? s.type : IBV_QPT_RC) && end_qp(&p->b, s.type ? s.type : IBV_QPT_RC));
  EXPECT(connect_qp(&p->a, p->b.qp->qp_num, &s) && connect_qp(&p->b, p->a.qp->qp_num, &s));
  return true;
}

bool pair_close(struct pair* p) {
  EXPECT(end_close(&p->a) && end_close(&p->b));
  return true;
}

int qp_state(struct ibv_qp* qp) {
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  return ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) ? -1 : (int)attr.qp_state;
}

int post_to(struct end* from, enum ibv_wr_opcode op, void* local, uint32_t length, uint32_t lkey, uint64_t remote,
            uint32_t rkey, uint64_t id) {
  struct ibv_sge sge = {(uintptr_t)local, length, lkey};
  struct ibv_send_wr wr = {.wr_id = id,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .opcode = op,
                           .send_flags = IBV_SEND_SIGNALED,
                           .imm_data = htonl(0x1234)};
  struct ibv_send_wr* bad;
  wr.wr.rdma.remote_addr = remote;
  wr.wr.rdma.rkey = rkey;
  return ibv_post_send(from->qp, &wr, &bad);
}

int post_rdma(struct end* from, enum ibv_wr_opcode op, int flags, uint32_t length, const struct end* to, uint64_t id) {
  struct ibv_sge sge = {(uintptr_t)from->buf, length, from->mr->lkey};
  struct ibv_send_wr wr = {
      .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = flags, .imm_data = htonl(0x1234)};
  struct ibv_send_wr* bad;
  wr.wr.rdma.remote_addr = (uintptr_t)to->buf;
  wr.wr.rdma.rkey = to->mr->rkey;
  return ibv_post_send(from->qp, &wr, &bad);
}

int post_receive(struct end* e, void* p, uint32_t length, uint64_t id) {
  struct ibv_sge sge = {(uintptr_t)p, length, e->mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
  return e->srq ? ibv_post_srq_recv(e->srq, &wr, &bad) : ibv_post_recv(e->qp, &wr, &bad);
}

struct ibv_wc next_completion(struct ibv_cq* cq) {
  struct ibv_wc wc = {.status = -1};
  for (uint64_t start = now(); !ibv_poll_cq(cq, 1, &wc) && now() - start < 3000000000ull;)
    ;
  return wc;
}

bool completes(struct ibv_cq* cq, uint64_t id, enum ibv_wc_status status) {
  struct ibv_wc wc = next_completion(cq);
  if (wc.status == status && wc.wr_id == id) return true;
  printf("  completion %llu, %s: expected %llu, %s\n", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status),
         (unsigned long long)id, ibv_wc_status_str(status));
  return false;
}

bool quiet(struct ibv_cq* cq) {
  struct ibv_wc wc;
  usleep(20000);
  return ibv_poll_cq(cq, 1, &wc) == 0;
}

int run_self(const char* argument, const char* setting) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    if (setting) putenv((char*)setting);
    execl("/proc/self/exe", "check", "child", argument, (char*)NULL);
    _exit(127);
  }
  int status;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

int main(int argc, char** argv) {
  if (argc > 2 && !strcmp(argv[1], "child")) return child_task(argv[2]);
  if (argc > 2 && !strcmp(argv[1], "bench")) return benchmark(atol(argv[2]));
  const char* only = argc > 1 ? argv[1] : "";
  const struct check* groups[] = {data_checks, cq_checks,  error_checks, object_checks,
                                  dc_checks,   xrc_checks, ioctl_checks, process_checks};
  int passed = 0, failed = 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
    for (const struct check* c = groups[g]; c->name; c++) {
      if (!strstr(c->name, only)) continue;
      errno = 0;
      bool ok = c->run();
      printf("%s %s\n", ok ? "ok  " : "FAIL", c->name);
      if (ok)
        passed++;
      else
        failed++;
    }
  printf("%d passed, %d failed\n", passed, failed);
  return failed || !passed;
}
