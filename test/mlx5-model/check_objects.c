/* Checks: what the kernel refuses is refused with its errno, and nothing leaks. */
#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* The call must fail with this errno, whether it returns it or sets it. */
#define REFUSED(call, expected) EXPECT((errno = 0, (call) == 0) && errno == (expected))

static bool devices_and_gids(void) {
  int n;
  struct ibv_device** list = ibv_get_device_list(&n);
  EXPECT(list && n == 2);
  ibv_free_device_list(list);
  for (int dev = 0; dev < 2; dev++) {
    struct ibv_context* c = open_device(dev);
    struct ibv_gid_entry table[16], one;
    struct ibv_port_attr port;
    EXPECT(c && !ibv_query_port(c, 1, &port) && port.link_layer == IBV_LINK_LAYER_ETHERNET);
    EXPECT(port.state == IBV_PORT_ACTIVE && ibv_query_port(c, 2, &port) == EINVAL);
    EXPECT(ibv_query_gid_table(c, table, 16, 0) == 4);
    for (uint32_t i = 0; i < 4; i++) {
      union ibv_gid gid;
      EXPECT(!ibv_query_gid_ex(c, 1, i, &one, 0) && !memcmp(&one.gid, &table[i].gid, 16));
      EXPECT(!ibv_query_gid(c, 1, (int)i, &gid) && !memcmp(&one.gid, &gid, 16));
      EXPECT(one.gid_type == (i % 2 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1) && table[i].gid_index == i);
      EXPECT(one.ndev_ifindex == if_nametoindex("lo"));
    }
    EXPECT(table[3].gid.raw[15] == dev + 1 && ibv_query_gid_ex(c, 1, 5, &one, 0) == ENODATA);
    EXPECT(!ibv_close_device(c));
  }
  return true;
}

static bool busy_parents(void) {
  struct pair p = {0};
  struct ibv_srq_init_attr attr = {.attr = {16, 1, 0}};
  EXPECT(end_open(&p.a, 0) && (p.a.srq = ibv_create_srq(p.a.pd, &attr)) && end_qp(&p.a, IBV_QPT_RC));
  EXPECT(ibv_dealloc_pd(p.a.pd) == EBUSY && ibv_destroy_cq(p.a.cq) == EBUSY && ibv_destroy_cq(p.a.recv_cq) == EBUSY);
  EXPECT(ibv_destroy_srq(p.a.srq) == EBUSY);
  struct ibv_ah_attr to = {.is_global = 1, .grh = {.sgid_index = 3}, .port_num = 1};
  struct ibv_pd* pd = ibv_alloc_pd(p.a.context);
  EXPECT(!ibv_query_gid(p.a.context, 1, 3, &to.grh.dgid));
  struct ibv_ah* ah = ibv_create_ah(pd, &to);
  EXPECT(ah && ibv_dealloc_pd(pd) == EBUSY && !ibv_destroy_ah(ah));
  struct ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
  EXPECT(mw && ibv_dealloc_pd(pd) == EBUSY && !ibv_dealloc_mw(mw) && !ibv_dealloc_pd(pd));
  return end_close(&p.a);
}

static bool foreign_and_stale_handles(void) {
  struct end a, b;
  EXPECT(end_open(&a, 0) && end_open(&b, 0));
  uint32_t own = a.pd->handle;
  a.pd->handle = b.pd->handle; /* of another context */
  REFUSED(ibv_reg_mr(a.pd, a.buf, 4096, 0), EINVAL);
  EXPECT(ibv_dealloc_pd(a.pd) == ENOENT);
  a.pd->handle = own;
  own = a.mr->handle;
  a.mr->handle = 0x3ffff;
  EXPECT(ibv_dereg_mr(a.mr) == ENOENT);
  a.mr->handle = own;
  return end_close(&a) && end_close(&b);
}

static bool creation_limits(void) {
  struct end e;
  EXPECT(end_open(&e, 0));
  struct ibv_device_attr dev;
  EXPECT(!ibv_query_device(e.context, &dev));
  REFUSED(ibv_create_cq(e.context, dev.max_cqe + 1, NULL, NULL, 0), EINVAL);
  REFUSED(ibv_create_cq(e.context, 16, NULL, NULL, 8), EINVAL);
  struct ibv_qp_init_attr qp = {.send_cq = e.cq, .recv_cq = e.recv_cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
  struct ibv_qp_init_attr bad = qp;
  bad.cap.max_send_wr = (uint32_t)dev.max_qp_wr + 1;
  REFUSED(ibv_create_qp(e.pd, &bad), EINVAL);
  bad = qp;
  bad.cap.max_recv_sge = 1000;
  REFUSED(ibv_create_qp(e.pd, &bad), EINVAL);
  bad = qp;
  bad.cap.max_inline_data = 5000;
  REFUSED(ibv_create_qp(e.pd, &bad), EINVAL);
  struct ibv_srq_init_attr srq = {.attr = {.max_wr = (uint32_t)dev.max_srq_wr + 1, .max_sge = 1}};
  REFUSED(ibv_create_srq(e.pd, &srq), EINVAL);
  return end_close(&e);
}

static bool memory_registration(void) {
  struct end e;
  EXPECT(end_open(&e, 0));
  char* two = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT(two != MAP_FAILED && !munmap(two + 4096, 4096) && !mprotect(two + 8192, 4096, PROT_READ));
  struct ibv_mr* mr = ibv_reg_mr(e.pd, two, 4096, IBV_ACCESS_LOCAL_WRITE);
  EXPECT(mr && !ibv_dereg_mr(mr));
  REFUSED(ibv_reg_mr(e.pd, two, 4097, IBV_ACCESS_LOCAL_WRITE), EFAULT); /* into the hole */
  REFUSED(ibv_reg_mr(e.pd, two + 8192, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
  EXPECT((mr = ibv_reg_mr(e.pd, two + 8192, 4096, IBV_ACCESS_REMOTE_READ)) && !ibv_dereg_mr(mr));
  REFUSED(ibv_reg_mr(e.pd, e.buf, 0, IBV_ACCESS_LOCAL_WRITE), EINVAL);
  EXPECT((mr = ibv_reg_mr(e.pd, e.buf + 1, 0, IBV_ACCESS_LOCAL_WRITE)) && !ibv_dereg_mr(mr));
  REFUSED(ibv_reg_mr(e.pd, e.buf, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE), EINVAL);
  REFUSED(ibv_reg_mr(e.pd, e.buf, 4096, IBV_ACCESS_REMOTE_WRITE), EINVAL);
  REFUSED(ibv_reg_mr_iova(e.pd, e.buf, 4096, 0x1001, IBV_ACCESS_LOCAL_WRITE), EINVAL);
  EXPECT((mr = ibv_reg_mr_iova(e.pd, e.buf, 4096, 0x1000, IBV_ACCESS_LOCAL_WRITE)) && !ibv_dereg_mr(mr));
  EXPECT(!munmap(two, 4096) && !munmap(two + 8192, 4096));
  return end_close(&e);
}

static bool memlock_limit(void) {
  EXPECT(run_self("memlock", "MLX5MODEL_MEMLOCK=8388608") == 0);
  return true;
}

static bool memlock_child(void) {
  struct end e;
  EXPECT(end_open(&e, 0));
  char* big = aligned_alloc(4096, 8 << 20);
  REFUSED(ibv_reg_mr(e.pd, big, 8 << 20, IBV_ACCESS_LOCAL_WRITE), ENOMEM);
  for (int i = 0; i < 100; i++) { /* what is deregistered, and what failed, is given back */
    struct ibv_mr* mr = ibv_reg_mr(e.pd, big, 6 << 20, IBV_ACCESS_LOCAL_WRITE);
    EXPECT(mr);
    REFUSED(ibv_reg_mr(e.pd, big, 6 << 20, IBV_ACCESS_LOCAL_WRITE), ENOMEM);
    EXPECT(!ibv_dereg_mr(mr));
  }
  free(big);
  return end_close(&e);
}

/* Each attribute that must be there is missed, each that may not be is refused. */
static bool attribute_masks(void) {
  enum { ALL = IBV_QP_RATE_LIMIT - 1 };
  static const struct {
    enum ibv_qp_type type;
    int to, must, may;
  } steps[] = {
      {IBV_QPT_RC, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
      {IBV_QPT_RC, IBV_QPS_RTR,
       IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
       IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
      {IBV_QPT_RC, IBV_QPS_RTS,
       IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
       IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
      {IBV_QPT_UC, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
      {IBV_QPT_UC, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
       IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
      {IBV_QPT_UC, IBV_QPS_RTS, IBV_QP_SQ_PSN,
       IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE},
      {IBV_QPT_UD, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0},
      {IBV_QPT_UD, IBV_QPS_RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
      {IBV_QPT_UD, IBV_QPS_RTS, IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY},
  };
  struct end e;
  EXPECT(end_open(&e, 0));
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    if (steps[i].to == IBV_QPS_INIT) EXPECT((!e.qp || !ibv_destroy_qp(e.qp)) && end_qp(&e, steps[i].type));
    struct ibv_qp_attr attr = {.qp_state = (enum ibv_qp_state)steps[i].to,
                               .port_num = 1,
                               .path_mtu = IBV_MTU_1024,
                               .cur_qp_state = IBV_QPS_RTR,
                               .ah_attr = {.is_global = 1, .grh.sgid_index = 3, .port_num = 1}};
    EXPECT(!ibv_query_gid(e.context, 1, 3, &attr.ah_attr.grh.dgid));
    int must = steps[i].must | IBV_QP_STATE;
    for (int bit = 2; bit < ALL; bit <<= 1) { /* not the state itself, bit 0 */
      int mask = must & bit ? must & ~bit : must | bit;
      if (!(steps[i].may & bit)) EXPECT(ibv_modify_qp(e.qp, &attr, mask) == EINVAL);
    }
    EXPECT(!ibv_modify_qp(e.qp, &attr, must) && qp_state(e.qp) == steps[i].to);
  }
  return end_close(&e);
}

static bool attribute_values(void) {
  struct end e;
  EXPECT(end_open(&e, 0) && end_qp(&e, IBV_QPT_RC));
  const int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  const int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 2};
  EXPECT(ibv_modify_qp(e.qp, &attr, init) == EINVAL);
  attr.port_num = 1;
  attr.pkey_index = 7;
  EXPECT(ibv_modify_qp(e.qp, &attr, init) == EINVAL);
  attr.pkey_index = 0;
  EXPECT(!ibv_modify_qp(e.qp, &attr, init));
  const struct ibv_qp_attr good = {.qp_state = IBV_QPS_RTR,
                                   .path_mtu = IBV_MTU_1024,
                                   .ah_attr = {.is_global = 1, .grh.sgid_index = 3, .port_num = 1}};
  attr = good;
  attr.path_mtu = 6;
  EXPECT(ibv_modify_qp(e.qp, &attr, rtr) == EINVAL);
  attr = good;
  attr.ah_attr.is_global = 0;
  EXPECT(ibv_modify_qp(e.qp, &attr, rtr) == EINVAL);
  attr = good;
  attr.ah_attr.grh.sgid_index = 8;
  EXPECT(ibv_modify_qp(e.qp, &attr, rtr) == EINVAL);
  attr.ah_attr.grh.sgid_index = 5;
  EXPECT(ibv_modify_qp(e.qp, &attr, rtr) == ENODATA);
  attr = good;
  attr.max_dest_rd_atomic = 17;
  EXPECT(ibv_modify_qp(e.qp, &attr, rtr) == EINVAL);
  attr = good;
  attr.qp_state = IBV_QPS_SQD;
  EXPECT(ibv_modify_qp(e.qp, &attr, IBV_QP_STATE) == EINVAL); /* no such transition */
  return end_close(&e);
}

static int open_files(void) {
  int n = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (readdir(dir)) n++;
  closedir(dir);
  return n;
}

struct objects {
  struct ibv_pd* pd;
  struct ibv_comp_channel* channel;
  struct ibv_cq* cq;
  struct ibv_srq* srq;
  struct ibv_qp* qp;
  struct ibv_mr* mr;
  struct ibv_mw* mw;
  struct ibv_ah* ah;
};

static bool create_all(struct ibv_context* c, struct objects* o) {
  static char buf[8192];
  struct ibv_srq_init_attr srq_attr = {.attr = {8, 1, 0}};
  struct ibv_qp_init_attr qp_attr = {.qp_type = IBV_QPT_RC, .cap = {4, 0, 1, 0, 0}};
  struct ibv_ah_attr to = {.is_global = 1, .grh = {.sgid_index = 3}, .port_num = 1};
  EXPECT((o->pd = ibv_alloc_pd(c)) && (o->channel = ibv_create_comp_channel(c)));
  EXPECT((o->cq = ibv_create_cq(c, 10, NULL, o->channel, 0)) && (o->srq = ibv_create_srq(o->pd, &srq_attr)));
  qp_attr.send_cq = qp_attr.recv_cq = o->cq;
  qp_attr.srq = o->srq;
  EXPECT((o->qp = ibv_create_qp(o->pd, &qp_attr)) && (o->ah = ibv_create_ah(o->pd, &to)));
  EXPECT((o->mr = ibv_reg_mr(o->pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE)));
  EXPECT((o->mw = ibv_alloc_mw(o->pd, IBV_MW_TYPE_2)));
  return true;
}

static bool destroy_all(struct objects* o) {
  EXPECT(!ibv_destroy_ah(o->ah) && !ibv_dealloc_mw(o->mw) && !ibv_dereg_mr(o->mr) && !ibv_destroy_qp(o->qp));
  EXPECT(!ibv_destroy_srq(o->srq) && !ibv_destroy_cq(o->cq) && !ibv_destroy_comp_channel(o->channel));
  EXPECT(!ibv_dealloc_pd(o->pd));
  return true;
}

static bool lives_of_contexts(void) {
  int files = open_files();
  for (int round = 0; round < 2000; round++) {
    struct objects o;
    struct ibv_context* c = open_device(round % 2);
    EXPECT(c && create_all(c, &o) && destroy_all(&o) && !ibv_close_device(c));
  }
  EXPECT(open_files() == files);
  return true;
}

/* The device file takes what the program left behind. In a child, as libmlx5 leaks its own part of that. */
static bool context_takes_all(void) {
  fflush(stdout);
  pid_t pid = fork();
  int status;
  if (pid == 0) {
    struct objects o;
    int files = open_files();
    struct ibv_context* c = open_device(0);
    bool ok = c && create_all(c, &o) && !ibv_close_device(c) && !close(o.channel->fd);
    _exit(!ok || open_files() != files);
  }
  EXPECT(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return true;
}

/* 10,000 lives of each kind in one context; memory and descriptors must not grow after the first tenth. */
static bool lives_of_objects(void) {
  struct end e;
  size_t used = 0;
  int files = 0;
  EXPECT(end_open(&e, 0));
  for (int i = 0; i < 10000; i++) {
    if (i == 1000) {
      used = mallinfo2().uordblks;
      files = open_files();
    }
    struct objects o;
    EXPECT(create_all(e.context, &o) && destroy_all(&o));
  }
  EXPECT(open_files() == files && mallinfo2().uordblks <= used + 4096);
  return end_close(&e);
}

/* More lives than there are ids. */
static bool ids_are_reused(void) {
  struct end e;
  EXPECT(end_open(&e, 0));
  for (int i = 0; i < 300000; i++) {
    struct ibv_mr* mr = ibv_reg_mr(e.pd, e.buf, 4096, IBV_ACCESS_LOCAL_WRITE);
    EXPECT(mr && !ibv_dereg_mr(mr));
  }
  return end_close(&e);
}

int child_objects(const char* name) { return strcmp(name, "memlock") || !memlock_child(); }

const struct check object_checks[] = {
    {"devices, ports and GID tables", devices_and_gids},
    {"EBUSY while children live", busy_parents},
    {"foreign and stale handles", foreign_and_stale_handles},
    {"creation beyond the limits", creation_limits},
    {"memory registration: what is refused", memory_registration},
    {"memlock limit", memlock_limit},
    {"attribute masks of every transition", attribute_masks},
    {"attribute values out of range", attribute_values},
    {"2,000 lives of a context with everything in it", lives_of_contexts},
    {"a context takes what is in it", context_takes_all},
    {"10,000 lives of every object", lives_of_objects},
    {"300,000 regions: ids are reused", ids_are_reused},
    {0},
};
