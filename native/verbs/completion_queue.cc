// ibv_create_cq(3) and ibv_req_notify_cq(3). Polling is in datapath/.
#include <infiniband/verbs.h>

#include "core/args.h"
#include "verbs/verbs.h"

namespace rdma {

// (context, cqe, channel | null, compVector, id)
Napi::Value CreateCompletionQueue(const Napi::CallbackInfo& info, mlx5dv_cq_init_attr* mlx5) {
  Napi::Env env = info.Env();
  std::shared_ptr<ChannelHandle> channel;
  if (!info[2].IsNull()) channel = HandleArg<ChannelHandle>(info, 2);
  auto cq = Unwrap(env, CqHandle::Create(HandleArg<ContextHandle>(info, 0), static_cast<int>(Uint32Arg(info, 1, "cqe")),
                                         std::move(channel), static_cast<int>(Uint32Arg(info, 3, "compVector")),
                                         Uint32Arg(info, 4, "id"), mlx5));
  Napi::Object object = Napi::Object::New(env);
  SetNumber(object, "cqe", cq->get()->cqe);
  object.Set("handle", WrapHandle(env, std::move(cq)));
  return object;
}

namespace {

Napi::Value CreateCq(const Napi::CallbackInfo& info) { return CreateCompletionQueue(info, nullptr); }

Napi::Value ReqNotifyCq(const Napi::CallbackInfo& info) {
  auto cq = HandleArg<CqHandle>(info, 0);
  Check(info.Env(), FromRet("ibv_req_notify_cq", ibv_req_notify_cq(cq->get(), info[1].ToBoolean() ? 1 : 0)));
  return info.Env().Undefined();
}

}  // namespace

void ExportCompletionQueue(Napi::Object exports) {
  Export(exports, "createCq", CreateCq);
  Export(exports, "destroyCq", CloseHandle<CqHandle>);
  Export(exports, "reqNotifyCq", ReqNotifyCq);
}

}  // namespace rdma
