// Defines the functions that libibverbs exports as trampolines into the library that is opened at first use, so that
// the header's macros and inline functions, and the code above, work as written and nothing links rdma-core.
// They are hidden: another copy of libibverbs in the process never meets them.
#include <infiniband/verbs.h>

#include <cerrno>

#include "rdma_core/library.h"

// The header turns these into macros that end in the functions of the same names.
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

namespace {

template <class Function>
Function* Find(const char* name) {
  return reinterpret_cast<Function*>(rdma::Libibverbs().Symbol(name));
}

}  // namespace

#define MISSING_VOID
#define MISSING_PTR (errno = EOPNOTSUPP, nullptr)
#define MISSING_ERRNO (errno = EOPNOTSUPP, -1)
#define MISSING_RET EOPNOTSUPP
#define MISSING_COUNT (-EOPNOTSUPP)

#define RDMA_FUNCTION(type, name, parameters, arguments, since, missing) \
  __attribute__((visibility("hidden"))) type name parameters {           \
    static auto* const function = Find<decltype(name)>(#name);           \
    if (function == nullptr) {                                           \
      rdma::SetMissingFunction(#name, since);                            \
      return missing;                                                    \
    }                                                                    \
    return function arguments;                                           \
  }

#include "rdma_core/ibverbs.def"
