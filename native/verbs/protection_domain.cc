// ibv_alloc_pd(3).
#include "core/args.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

Napi::Value AllocPd(const Napi::CallbackInfo& info) {
  return WrapHandle(info.Env(), Unwrap(info.Env(), PdHandle::Alloc(HandleArg<ContextHandle>(info, 0))));
}

}  // namespace

void ExportProtectionDomain(Napi::Object exports) {
  Export(exports, "allocPd", AllocPd);
  Export(exports, "deallocPd", CloseHandle<PdHandle>);
}

}  // namespace rdma
