/*
 * Device memory: a piece of each device's own memory, which the program maps, and regions of it.
 *
 * The memory is a memfd, so that the program's mapping and ours are of the same pages. As in mlx5_ib each allocation
 * has pages of its own.
 */
#include <errno.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "model.h"

#define MAX_LOG_ALIGNMENT 6

static struct {
  int fd; /* 0: not there yet */
  uint8_t* memory;
  bool taken[DM_SIZE >> 12];
} device[MAX_DEVICES];

static bool device_memory(int dev) {
  if (device[dev].fd) return true;
  int fd = memfd_create("mlx5model-dm", MFD_CLOEXEC);
  if (fd < 0) return false;
  void* p = ftruncate(fd, DM_SIZE)
                ? MAP_FAILED
                : (void*)syscall(SYS_mmap, NULL, DM_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
  if (p == MAP_FAILED) {
    real_close(fd);
    return false;
  }
  device[dev].memory = p;
  device[dev].fd = fd;
  return true;
}

/* Maps the device's memory from a page on. */
void* dm_map(const struct ctx* c, void* addr, size_t length, uint64_t page) {
  return (void*)syscall(SYS_mmap, addr, length, PROT_READ | PROT_WRITE, MAP_SHARED, device[c->dev].fd,
                        page * sysconf(_SC_PAGESIZE));
}

/* The first of so many free pages in a row; DM_SIZE when there are not. */
static uint32_t find_pages(int dev, uint32_t pages) {
  uint32_t all = (uint32_t)(DM_SIZE / sysconf(_SC_PAGESIZE)), run = 0;
  for (uint32_t i = 0; i < all; i++) {
    run = device[dev].taken[i] ? 0 : run + 1;
    if (run == pages) return i + 1 - pages;
  }
  return DM_SIZE;
}

static void mark(const struct dm* dm, bool taken) {
  for (uint32_t i = 0; i < dm->pages; i++) device[dm->o.ctx->dev].taken[dm->page + i] = taken;
}

int method_dm_alloc(struct call* call) {
  uint64_t length = call_u64(call, UVERBS_ATTR_ALLOC_DM_LENGTH), page_size = sysconf(_SC_PAGESIZE);
  if (call_u64(call, MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE) != MLX5_IB_UAPI_DM_TYPE_MEMIC) return EOPNOTSUPP;
  if (!length || length > DM_SIZE || call_u64(call, UVERBS_ATTR_ALLOC_DM_ALIGNMENT) > MAX_LOG_ALIGNMENT) return EINVAL;
  struct dm* dm = calloc(1, sizeof *dm);
  if (!dm) return ENOMEM;
  dm->length = length;
  dm->pages = (uint32_t)((length + page_size - 1) / page_size);
  dm->page = device_memory(call->ctx->dev) ? find_pages(call->ctx->dev, dm->pages) : DM_SIZE;
  if (dm->page == DM_SIZE || !object_add(call->ctx, KIND_DM, &dm->o)) {
    free(dm);
    return ENOMEM;
  }
  mark(dm, true);
  uint64_t offset = 0;
  uint16_t page = (uint16_t)dm->page;
  call_out(call, MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, &offset, sizeof offset);
  call_out(call, MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, &page, sizeof page);
  call_out_handle(call, UVERBS_ATTR_ALLOC_DM_HANDLE, dm->o.id);
  return 0;
}

/* For who imports it. */
int method_dm_query(struct call* call) {
  const struct dm* dm = call_object(call, MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE, KIND_DM);
  if (!dm) return ENOENT;
  uint64_t offset = 0;
  uint16_t page = (uint16_t)dm->page;
  call_out(call, MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET, &offset, sizeof offset);
  call_out(call, MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX, &page, sizeof page);
  call_out(call, MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH, &dm->length, sizeof dm->length);
  return 0;
}

void dm_destroy(struct dm* dm) {
  mark(dm, false);
  object_remove(&dm->o);
  free(dm);
}

int method_dm_free(struct call* call) {
  struct dm* dm = call_object(call, UVERBS_ATTR_FREE_DM_HANDLE, KIND_DM);
  if (!dm) return ENOENT;
  if (dm->o.users) return EBUSY;
  dm_destroy(dm);
  return 0;
}

int method_dm_reg_mr(struct call* call) {
  struct pd* pd = call_object(call, UVERBS_ATTR_REG_DM_MR_PD_HANDLE, KIND_PD);
  struct dm* dm = call_object(call, UVERBS_ATTR_REG_DM_MR_DM_HANDLE, KIND_DM);
  uint64_t offset = call_u64(call, UVERBS_ATTR_REG_DM_MR_OFFSET), length = call_u64(call, UVERBS_ATTR_REG_DM_MR_LENGTH);
  uint32_t access = (uint32_t)call_u64(call, UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS);
  if (!pd || !dm || !(access & IBV_ACCESS_ZERO_BASED)) return EINVAL;
  if (offset > dm->length || length > dm->length - offset) return EINVAL;
  int err = check_access(access);
  if (err) return err;
  struct mkey* m = mkey_new(pd, access);
  if (!m) return ENOMEM;
  m->dm = dm;
  dm->o.users++;
  m->va = device[dm->o.ctx->dev].memory + dm->page * sysconf(_SC_PAGESIZE) + offset;
  m->length = length;
  call_out(call, UVERBS_ATTR_REG_DM_MR_RESP_LKEY, &m->key, sizeof m->key);
  call_out(call, UVERBS_ATTR_REG_DM_MR_RESP_RKEY, &m->key, sizeof m->key);
  call_out_handle(call, UVERBS_ATTR_REG_DM_MR_HANDLE, m->o.id);
  return 0;
}
