/* Checks: what goes through the ioctl interface only. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

static bool without_ioctl(void) {
  EXPECT(run_self("program", "MLX5MODEL_IOCTL=0") == 0);
  return true;
}

/* Who has the device file has the context, and finds its domains by handle. */
static bool import_device(void) {
  struct end e;
  EXPECT(end_open(&e, 1));
  struct ibv_context* c = ibv_import_device(dup(e.context->cmd_fd));
  EXPECT(c && !strcmp(ibv_get_device_name(c->device), "mlx5_1") && c->num_comp_vectors == 8);
  struct ibv_pd* pd = ibv_import_pd(c, e.pd->handle);
  EXPECT(pd && (errno = 0, !ibv_import_pd(c, 0x3ffff)) && errno == ENOENT);
  struct ibv_mr* mr = ibv_reg_mr(pd, e.buf, BUFFER, IBV_ACCESS_LOCAL_WRITE);
  EXPECT(mr && !ibv_dereg_mr(mr));
  ibv_unimport_pd(pd);
  struct ibv_values_ex clock = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
  EXPECT(!ibv_close_device(c));
  EXPECT(!ibv_query_rt_values_ex(e.context, &clock) && clock.raw_clock.tv_nsec);
  EXPECT((mr = ibv_reg_mr(e.pd, e.buf, 4096, IBV_ACCESS_LOCAL_WRITE)) && !ibv_dereg_mr(mr)); /* goes on */
  return end_close(&e);
}

static const int all_access =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/* On-demand memory is looked at when it is used, or when it is advised of. */
static bool on_demand(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  char* two = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct ibv_mr* mr = ibv_reg_mr(p.b.pd, two, 8192, all_access | IBV_ACCESS_ON_DEMAND);
  struct ibv_mr* everything = ibv_reg_mr(p.b.pd, NULL, SIZE_MAX, all_access | IBV_ACCESS_ON_DEMAND);
  EXPECT(two != MAP_FAILED && mr && everything && !munmap(two + 4096, 4096));
  struct ibv_sge good = {(uintptr_t)two, 4096, mr->lkey}, hole = {(uintptr_t)two, 4097, mr->lkey},
                 pinned = {(uintptr_t)p.b.buf, 8, p.b.mr->lkey};
  enum ibv_advise_mr_advice advice = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
  EXPECT(!ibv_advise_mr(p.b.pd, advice, IBV_ADVISE_MR_FLAG_FLUSH, &good, 1));
  EXPECT(ibv_advise_mr(p.b.pd, advice, IBV_ADVISE_MR_FLAG_FLUSH, &hole, 1) == EFAULT);
  EXPECT(ibv_advise_mr(p.b.pd, advice, IBV_ADVISE_MR_FLAG_FLUSH, &pinned, 1) == ENOENT);
  strcpy(p.a.buf, "faulted in");
  EXPECT(!post_to(&p.a, IBV_WR_RDMA_WRITE, p.a.buf, 64, p.a.mr->lkey, (uintptr_t)two, mr->rkey, 1));
  EXPECT(completes(p.a.cq, 1, IBV_WC_SUCCESS) && !strcmp(two, "faulted in"));
  EXPECT(!post_to(&p.a, IBV_WR_RDMA_WRITE, p.a.buf, 64, p.a.mr->lkey, (uintptr_t)two + 1024, everything->rkey, 2));
  EXPECT(completes(p.a.cq, 2, IBV_WC_SUCCESS) && !strcmp(two + 1024, "faulted in"));
  EXPECT(!post_to(&p.a, IBV_WR_RDMA_WRITE, p.a.buf, 64, p.a.mr->lkey, (uintptr_t)two + 4090, mr->rkey, 3));
  EXPECT(completes(p.a.cq, 3, IBV_WC_REM_ACCESS_ERR));
  EXPECT(!ibv_dereg_mr(mr) && !ibv_dereg_mr(everything) && !munmap(two, 4096));
  return pair_close(&p);
}

/* The null MR takes what is written, and reads as zeros. */
static bool null_mr(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  struct ibv_mr* mr = ibv_alloc_null_mr(p.a.pd);
  EXPECT(mr);
  memset(p.b.buf, 7, 128);
  EXPECT(!post_to(&p.a, IBV_WR_RDMA_READ, NULL, 128, mr->lkey, (uintptr_t)p.b.buf, p.b.mr->rkey, 1));
  EXPECT(completes(p.a.cq, 1, IBV_WC_SUCCESS));
  EXPECT(!post_to(&p.a, IBV_WR_RDMA_WRITE, NULL, 100, mr->lkey, (uintptr_t)p.b.buf, p.b.mr->rkey, 2));
  EXPECT(completes(p.a.cq, 2, IBV_WC_SUCCESS) && p.b.buf[0] == 0 && p.b.buf[99] == 0 && p.b.buf[100] == 7);
  struct ibv_sge some[2] = {{0, 8, mr->lkey}, {(uintptr_t)p.a.buf, 32, p.a.mr->lkey}};
  struct ibv_recv_wr wr = {.wr_id = 3, .sg_list = some, .num_sge = 2}, *bad;
  for (int i = 0; i < 40; i++) p.b.buf[i] = (char)i;
  EXPECT(!ibv_post_recv(p.a.qp, &wr, &bad) && !post_rdma(&p.b, IBV_WR_SEND, IBV_SEND_SIGNALED, 40, &p.a, 4));
  EXPECT(completes(p.a.recv_cq, 3, IBV_WC_SUCCESS) && p.a.buf[0] == 8 && p.a.buf[31] == 39);
  EXPECT(!ibv_dereg_mr(mr));
  return pair_close(&p);
}

static bool device_memory(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  struct ibv_alloc_dm_attr attr = {.length = 8192, .log_align_req = 3};
  struct ibv_dm *dm = ibv_alloc_dm(p.b.context, &attr), *other = ibv_alloc_dm(p.b.context, &attr);
  EXPECT(dm && other && !ibv_memcpy_to_dm(dm, 64, "in the device", 16));
  struct ibv_mr* mr = ibv_reg_dm_mr(p.b.pd, dm, 64, 4096, all_access | IBV_ACCESS_ZERO_BASED);
  EXPECT(mr && (errno = 0, !ibv_reg_dm_mr(p.b.pd, dm, 64, 8192, IBV_ACCESS_ZERO_BASED)) && errno == EINVAL);
  EXPECT(!post_to(&p.a, IBV_WR_RDMA_READ, p.a.buf, 64, p.a.mr->lkey, 0, mr->rkey, 1));
  EXPECT(completes(p.a.cq, 1, IBV_WC_SUCCESS) && !strcmp(p.a.buf, "in the device"));
  strcpy(p.a.buf, "written there");
  EXPECT(!post_to(&p.a, IBV_WR_RDMA_WRITE, p.a.buf, 16, p.a.mr->lkey, 4080, mr->rkey, 2));
  char copy[16];
  EXPECT(completes(p.a.cq, 2, IBV_WC_SUCCESS) && !ibv_memcpy_from_dm(copy, dm, 4144, 16));
  EXPECT(!strcmp(copy, "written there"));
  EXPECT(ibv_free_dm(dm) == EBUSY && !ibv_dereg_mr(mr) && !ibv_free_dm(dm) && !ibv_free_dm(other));
  struct ibv_dm* all[64];
  attr.length = 1 << 18;
  EXPECT((all[0] = ibv_alloc_dm(p.b.context, &attr)) && !ibv_free_dm(all[0])); /* nothing was lost */
  attr.length = 4096;
  for (int i = 0; i < 64; i++) EXPECT(all[i] = ibv_alloc_dm(p.b.context, &attr));
  EXPECT((errno = 0, !ibv_alloc_dm(p.b.context, &attr)) && errno == ENOMEM);
  for (int i = 0; i < 64; i++) EXPECT(!ibv_free_dm(all[i]));
  return pair_close(&p);
}

/* A memfd stands for a DMA-BUF. */
static bool dmabuf(void) {
  struct pair p;
  EXPECT(pair_open(&p, (struct setup){0}));
  int fd = memfd_create("exported", MFD_CLOEXEC);
  EXPECT(fd >= 0 && !ftruncate(fd, 16384));
  char* view = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  EXPECT(view != MAP_FAILED);
  EXPECT((errno = 0, !ibv_reg_dmabuf_mr(p.b.pd, 100, 64, 0x10000, fd, all_access)) && errno == EINVAL);
  EXPECT((errno = 0, !ibv_reg_dmabuf_mr(p.b.pd, 0, 16385, 0, fd, all_access)) && errno == EINVAL);
  EXPECT((errno = 0, !ibv_reg_dmabuf_mr(p.b.pd, 0, 64, 0, 9999, all_access)) && errno == EBADF);
  struct ibv_mr* mr = ibv_reg_dmabuf_mr(p.b.pd, 4196, 8192, 0x7000000064, fd, all_access);
  EXPECT(mr && !close(fd));
  strcpy(p.a.buf, "through the exporter's memory");
  EXPECT(!post_to(&p.a, IBV_WR_RDMA_WRITE, p.a.buf, 64, p.a.mr->lkey, 0x7000000064, mr->rkey, 1));
  EXPECT(completes(p.a.cq, 1, IBV_WC_SUCCESS) && !strcmp(view + 4196, p.a.buf));
  EXPECT(!ibv_dereg_mr(mr) && !munmap(view, 16384));
  return pair_close(&p);
}

const struct check ioctl_checks[] = {
    {"a kernel without the ioctl interface", without_ioctl},
    {"a device and its domain are imported", import_device},
    {"on-demand memory", on_demand},
    {"the null MR", null_mr},
    {"device memory", device_memory},
    {"a DMA-BUF", dmabuf},
    {0},
};
