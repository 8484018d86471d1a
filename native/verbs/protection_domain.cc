// ibv_alloc_pd(3), ibv_alloc_td(3), ibv_alloc_parent_domain(3), ibv_import_pd(3).
#include "core/args.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

Napi::Object Describe(Napi::Env env, std::shared_ptr<PdHandle> pd) {
  Napi::Object object = Napi::Object::New(env);
  SetNumber(object, "nativeHandle", pd->get()->handle);
  object.Set("handle", WrapHandle(env, std::move(pd)));
  return object;
}

Napi::Value AllocPd(const Napi::CallbackInfo& info) {
  return Describe(info.Env(), Unwrap(info.Env(), PdHandle::Alloc(HandleArg<ContextHandle>(info, 0))));
}

// (context, handle)
Napi::Value ImportPd(const Napi::CallbackInfo& info) {
  auto context = HandleArg<ContextHandle>(info, 0);
  return Describe(info.Env(), Unwrap(info.Env(), PdHandle::Import(std::move(context), Uint32Arg(info, 1, "handle"))));
}

Napi::Value AllocTd(const Napi::CallbackInfo& info) {
  return WrapHandle(info.Env(), Unwrap(info.Env(), TdHandle::Alloc(HandleArg<ContextHandle>(info, 0))));
}

// (context, pd, td or null)
Napi::Value AllocParentDomain(const Napi::CallbackInfo& info) {
  auto context = HandleArg<ContextHandle>(info, 0);
  auto pd = HandleArg<PdHandle>(info, 1);
  auto td = info[2].IsNull() ? nullptr : HandleArg<TdHandle>(info, 2);
  return Describe(info.Env(),
                  Unwrap(info.Env(), PdHandle::AllocParent(std::move(context), std::move(pd), std::move(td))));
}

}  // namespace

void ExportProtectionDomain(Napi::Object exports) {
  Export(exports, "allocPd", AllocPd);
  Export(exports, "deallocPd", CloseHandle<PdHandle>);
  Export(exports, "importPd", ImportPd);
  Export(exports, "allocTd", AllocTd);
  Export(exports, "deallocTd", CloseHandle<TdHandle>);
  Export(exports, "allocParentDomain", AllocParentDomain);
}

}  // namespace rdma
