// Defines the functions that libibverbs exports as trampolines into the library that is opened at first use, so that
// the header's macros and inline functions, and the code above, work as written and nothing links rdma-core.
#include <infiniband/verbs.h>

// The header turns these into macros that end in the functions of the same names.
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define RDMA_LIBRARY Libibverbs
#include "rdma_core/trampolines.h"
//
#include "rdma_core/ibverbs.def"
