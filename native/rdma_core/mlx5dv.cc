// Defines the functions of libmlx5 that we call as trampolines into the library that is opened at first use. It is the
// same file as libibverbs' provider, so that both mean the same device by a context.
#include <infiniband/mlx5dv.h>

#define RDMA_LIBRARY Libmlx5
#include "rdma_core/trampolines.h"
//
#include "rdma_core/mlx5dv.def"
