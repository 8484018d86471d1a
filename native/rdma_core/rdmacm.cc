// Defines the functions of librdmacm that we call as trampolines into the library that is opened at first use.
#include <rdma/rdma_cma.h>

#define RDMA_LIBRARY Librdmacm
#include "rdma_core/trampolines.h"
//
#include "rdma_core/rdmacm.def"
