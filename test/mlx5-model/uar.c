/*
 * Doorbell pages that are allocated one by one. libmlx5 maps and rings them, but nobody looks at what is written there
 * (device_mmap() gives plain memory): all there is to one is its number.
 */
#include <errno.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <stdlib.h>
#include <unistd.h>

#include "model.h"

struct uar {
  struct object o;
};

int method_uar_alloc(struct call* call) {
  struct uar* uar = calloc(1, sizeof *uar);
  if (!uar || !object_add(call->ctx, KIND_UAR, &uar->o)) {
    free(uar);
    return ENOMEM;
  }
  uint64_t offset = 0;
  uint32_t length = (uint32_t)sysconf(_SC_PAGESIZE);
  call_out(call, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, &offset, sizeof offset);
  call_out(call, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, &length, sizeof length);
  call_out(call, MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, &uar->o.id, sizeof uar->o.id);
  call_out_handle(call, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, uar->o.id);
  return 0;
}

int method_uar_destroy(struct call* call) {
  struct uar* uar = call_object(call, MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE, KIND_UAR);
  if (!uar) return ENOENT;
  object_remove(&uar->o);
  free(uar);
  return 0;
}
