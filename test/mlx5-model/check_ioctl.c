/* Checks: what goes through the ioctl interface only. */
#include <errno.h>
#include <string.h>
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
  EXPECT(!ibv_close_device(c));
  EXPECT((mr = ibv_reg_mr(e.pd, e.buf, 4096, IBV_ACCESS_LOCAL_WRITE)) && !ibv_dereg_mr(mr)); /* goes on */
  return end_close(&e);
}

const struct check ioctl_checks[] = {
    {"a kernel without the ioctl interface", without_ioctl},
    {"a device and its domain are imported", import_device},
    {0},
};
