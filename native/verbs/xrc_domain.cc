// ibv_open_xrcd(3).
#include <infiniband/verbs.h>

#include "core/args.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

// (context, fd, oflags): fd -1 for a domain of this process alone.
Napi::Value OpenXrcd(const Napi::CallbackInfo& info) {
  auto context = HandleArg<ContextHandle>(info, 0);
  int32_t fd = -1;
  if (napi_get_value_int32(info.Env(), info[1], &fd) != napi_ok) ThrowType(info.Env(), "fd is not a number");
  const auto oflags = static_cast<int>(Uint32Arg(info, 2, "oflags"));
  return WrapHandle(info.Env(), Unwrap(info.Env(), XrcdHandle::Open(std::move(context), fd, oflags)));
}

}  // namespace

void ExportXrcDomain(Napi::Object exports) {
  Export(exports, "openXrcd", OpenXrcd);
  Export(exports, "closeXrcd", CloseHandle<XrcdHandle>);
}

}  // namespace rdma
