// ibv_create_cq(3), ibv_create_cq_ex(3), ibv_resize_cq(3), ibv_modify_cq(3), ibv_req_notify_cq(3). Polling is in
// datapath/.
#include <infiniband/verbs.h>

#include "core/args.h"
#include "core/promise_worker.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

Napi::Object Created(Napi::Env env, std::shared_ptr<CqHandle> cq) {
  Napi::Object object = Napi::Object::New(env);
  SetNumber(object, "cqe", cq->get()->cqe);
  object.Set("handle", WrapHandle(env, std::move(cq)));
  return object;
}

std::shared_ptr<ChannelHandle> ChannelArg(const Napi::CallbackInfo& info, size_t index) {
  return info[index].IsNull() ? nullptr : HandleArg<ChannelHandle>(info, index);
}

}  // namespace

// (context, cqe, channel | null, compVector, id)
Napi::Value CreateCompletionQueue(const Napi::CallbackInfo& info, mlx5dv_cq_init_attr* mlx5) {
  auto cq = CqHandle::Create(HandleArg<ContextHandle>(info, 0), static_cast<int>(Uint32Arg(info, 1, "cqe")),
                             ChannelArg(info, 2), static_cast<int>(Uint32Arg(info, 3, "compVector")),
                             Uint32Arg(info, 4, "id"), mlx5);
  return Created(info.Env(), Unwrap(info.Env(), std::move(cq)));
}

namespace {

Napi::Value CreateCq(const Napi::CallbackInfo& info) { return CreateCompletionQueue(info, nullptr); }

// (context, cqe, channel | null, compVector, id, wcFlags, flags, parentDomain | null)
Napi::Value CreateCqEx(const Napi::CallbackInfo& info) {
  ibv_cq_init_attr_ex attr{};
  attr.cqe = Uint32Arg(info, 1, "cqe");
  attr.comp_vector = Uint32Arg(info, 3, "compVector");
  attr.wc_flags = Uint32Arg(info, 5, "wcFlags");
  attr.flags = Uint32Arg(info, 6, "flags");
  // A provider that knows no flags refuses the mask.
  if (attr.flags != 0) attr.comp_mask |= IBV_CQ_INIT_ATTR_MASK_FLAGS;
  std::shared_ptr<PdHandle> parent_domain;
  if (!info[7].IsNull()) parent_domain = HandleArg<PdHandle>(info, 7);
  auto cq = CqHandle::CreateEx(HandleArg<ContextHandle>(info, 0), &attr, ChannelArg(info, 2), Uint32Arg(info, 4, "id"),
                               std::move(parent_domain));
  return Created(info.Env(), Unwrap(info.Env(), std::move(cq)));
}

// (cq, cqe): the entries granted.
Napi::Value ResizeCqSync(const Napi::CallbackInfo& info) {
  auto cq = HandleArg<CqHandle>(info, 0);
  Check(info.Env(), cq->Resize(static_cast<int>(Uint32Arg(info, 1, "cqe"))));
  return Napi::Number::New(info.Env(), cq->get()->cqe);
}

Napi::Value ResizeCq(const Napi::CallbackInfo& info) {
  auto cq = HandleArg<CqHandle>(info, 0);
  auto busy = std::make_shared<Parent<CqHandle>>(cq);
  const int cqe = static_cast<int>(Uint32Arg(info, 1, "cqe"));
  return PromiseWorker<int>::Queue(
      info.Env(), "ibv_resize_cq",
      [cq, busy, cqe]() -> Outcome<int> {
        VerbError error = cq->Resize(cqe);
        if (error) return error;
        return cq->get()->cqe;
      },
      [](Napi::Env env, int granted) -> napi_value { return Napi::Number::New(env, granted); });
}

// (cq, cqCount, cqPeriod)
Napi::Value ModifyCq(const Napi::CallbackInfo& info) {
  auto cq = HandleArg<CqHandle>(info, 0);
  ibv_modify_cq_attr attr{};
  attr.attr_mask = IBV_CQ_ATTR_MODERATE;
  attr.moderate.cq_count = static_cast<uint16_t>(Uint32Arg(info, 1, "cqCount"));
  attr.moderate.cq_period = static_cast<uint16_t>(Uint32Arg(info, 2, "cqPeriod"));
  errno = 0;
  Check(info.Env(), FromRet("ibv_modify_cq", ibv_modify_cq(cq->get(), &attr)));
  return info.Env().Undefined();
}

Napi::Value ReqNotifyCq(const Napi::CallbackInfo& info) {
  auto cq = HandleArg<CqHandle>(info, 0);
  Check(info.Env(), FromRet("ibv_req_notify_cq", ibv_req_notify_cq(cq->get(), info[1].ToBoolean() ? 1 : 0)));
  return info.Env().Undefined();
}

}  // namespace

void ExportCompletionQueue(Napi::Object exports) {
  Export(exports, "createCq", CreateCq);
  Export(exports, "createCqEx", CreateCqEx);
  Export(exports, "resizeCq", ResizeCq);
  Export(exports, "resizeCqSync", ResizeCqSync);
  Export(exports, "modifyCq", ModifyCq);
  Export(exports, "destroyCq", CloseHandle<CqHandle>);
  Export(exports, "reqNotifyCq", ReqNotifyCq);
}

}  // namespace rdma
