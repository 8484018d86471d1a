// ibv_create_srq(3), ibv_modify_srq(3), ibv_query_srq(3). Posting is in datapath/.
#include <infiniband/verbs.h>

#include "core/args.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

// (pd, maxWr, maxSge, id): events name the queue by its id.
Napi::Value CreateSrq(const Napi::CallbackInfo& info) {
  ibv_srq_init_attr attr{};
  attr.attr.max_wr = Uint32Arg(info, 1, "maxWr");
  attr.attr.max_sge = Uint32Arg(info, 2, "maxSge");
  // NOLINTNEXTLINE(performance-no-int-to-ptr): it is a number to us, and nothing to libibverbs
  attr.srq_context = reinterpret_cast<void*>(uintptr_t{Uint32Arg(info, 3, "id")});
  auto srq = Unwrap(info.Env(), SrqHandle::Create(HandleArg<PdHandle>(info, 0), &attr));
  Napi::Object object = Napi::Object::New(info.Env());
  SetNumber(object, "maxWr", attr.attr.max_wr);
  SetNumber(object, "maxSge", attr.attr.max_sge);
  object.Set("handle", WrapHandle(info.Env(), std::move(srq)));
  return object;
}

// (srq, mask, maxWr, srqLimit)
Napi::Value ModifySrq(const Napi::CallbackInfo& info) {
  auto srq = HandleArg<SrqHandle>(info, 0);
  ibv_srq_attr attr{};
  attr.max_wr = Uint32Arg(info, 2, "maxWr");
  attr.srq_limit = Uint32Arg(info, 3, "srqLimit");
  errno = 0;
  Check(info.Env(),
        FromRet("ibv_modify_srq", ibv_modify_srq(srq->get(), &attr, static_cast<int>(Uint32Arg(info, 1, "mask")))));
  return info.Env().Undefined();
}

Napi::Value QuerySrq(const Napi::CallbackInfo& info) {
  auto srq = HandleArg<SrqHandle>(info, 0);
  ibv_srq_attr attr{};
  errno = 0;
  Check(info.Env(), FromRet("ibv_query_srq", ibv_query_srq(srq->get(), &attr)));
  Napi::Object object = Napi::Object::New(info.Env());
  SetNumber(object, "maxWr", attr.max_wr);
  SetNumber(object, "maxSge", attr.max_sge);
  SetNumber(object, "srqLimit", attr.srq_limit);
  return object;
}

}  // namespace

void ExportSharedReceiveQueue(Napi::Object exports) {
  Export(exports, "createSrq", CreateSrq);
  Export(exports, "modifySrq", ModifySrq);
  Export(exports, "querySrq", QuerySrq);
  Export(exports, "destroySrq", CloseHandle<SrqHandle>);
}

}  // namespace rdma
