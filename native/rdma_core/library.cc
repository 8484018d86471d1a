#include "rdma_core/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

namespace rdma {

bool Library::Open() {
  std::call_once(once_, [this] {
    const char* named = std::getenv(override_variable_);
    path_ = named != nullptr && *named != '\0' ? named : soname_;
    handle_ = dlopen(path_, RTLD_NOW | RTLD_LOCAL);
    const char* reason = handle_ == nullptr ? dlerror() : nullptr;
    error_ = new std::string(reason == nullptr ? "" : reason);
  });
  return handle_ != nullptr;
}

void* Library::Lookup(const char* name) const { return dlsym(handle_, name); }

namespace {
thread_local MissingFunction missing_function{nullptr, nullptr};
}

void SetMissingFunction(const char* name, const char* since) { missing_function = {name, since}; }

MissingFunction TakeMissingFunction() {
  MissingFunction taken = missing_function;
  missing_function = {nullptr, nullptr};
  return taken;
}

bool IsFunctionOf(const void* function, const char* file) {
  Dl_info found{};
  if (dladdr(function, &found) == 0 || found.dli_fname == nullptr) return false;
  const char* slash = strrchr(found.dli_fname, '/');
  return strncmp(slash == nullptr ? found.dli_fname : slash + 1, file, strlen(file)) == 0;
}

Library& Libibverbs() {
  static Library library("libibverbs.so.1", "NODE_RDMA_LIBIBVERBS");
  return library;
}

Library& Libmlx5() {
  static Library library("libmlx5.so.1", "NODE_RDMA_LIBMLX5");
  return library;
}

Library& Librdmacm() {
  static Library library("librdmacm.so.1", "NODE_RDMA_LIBRDMACM");
  return library;
}

}  // namespace rdma
