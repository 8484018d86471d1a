// ibv_alloc_pd(3).
#include "core/args.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

Napi::Value AllocPd(const Napi::CallbackInfo& info) {
  return WrapHandle(info.Env(), Unwrap(info.Env(), PdHandle::Alloc(HandleArg<ContextHandle>(info, 0))));
}

// close(handle): the destroy verb of whatever the handle is, through its owner.
template <class T>
Napi::Value CloseHandle(const Napi::CallbackInfo& info) {
  Cell::From(info.Env(), info[0], HandleType<T>::tag, HandleType<T>::name).Close(info.Env());
  return info.Env().Undefined();
}

}  // namespace

void ExportProtectionDomain(Napi::Object exports) {
  Export(exports, "allocPd", AllocPd);
  Export(exports, "closeDevice", CloseHandle<ContextHandle>);
  Export(exports, "deallocPd", CloseHandle<PdHandle>);
  Export(exports, "deregMr", CloseHandle<MrHandle>);
  Export(exports, "destroyCompChannel", CloseHandle<ChannelHandle>);
  Export(exports, "destroyCq", CloseHandle<CqHandle>);
  Export(exports, "destroyQp", CloseHandle<QpHandle>);
}

}  // namespace rdma
