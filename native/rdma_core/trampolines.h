// The macros that make a .def file into trampolines: each function of the list is defined here as a call into the
// library that RDMA_LIBRARY names, which is opened at first use. They are hidden: another copy of the library in the
// process never meets them. Included by one .cc file for each library.
#include <cerrno>

#include "rdma_core/library.h"

#define MISSING_VOID
#define MISSING_PTR (errno = EOPNOTSUPP, nullptr)
#define MISSING_ERRNO (errno = EOPNOTSUPP, -1)
#define MISSING_RET EOPNOTSUPP
#define MISSING_COUNT (-EOPNOTSUPP)

#define RDMA_FUNCTION(type, name, parameters, arguments, since, missing)                                 \
  __attribute__((visibility("hidden"))) type name parameters {                                           \
    static auto* const function = reinterpret_cast<decltype(name)*>(rdma::RDMA_LIBRARY().Symbol(#name)); \
    if (function == nullptr) {                                                                           \
      rdma::SetMissingFunction(#name, since);                                                            \
      return missing;                                                                                    \
    }                                                                                                    \
    return function arguments;                                                                           \
  }
