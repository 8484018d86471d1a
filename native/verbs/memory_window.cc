// ibv_alloc_mw(3), ibv_bind_mw(3), and IBV_WR_BIND_MW of ibv_post_send(3).
#include <infiniband/verbs.h>

#include "core/args.h"
#include "datapath/extended_post.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

// (pd, type)
Napi::Value AllocMw(const Napi::CallbackInfo& info) {
  auto type = static_cast<ibv_mw_type>(Uint32Arg(info, 1, "type"));
  auto mw = Unwrap(info.Env(), MwHandle::Alloc(HandleArg<PdHandle>(info, 0), type));
  Napi::Object object = Napi::Object::New(info.Env());
  SetNumber(object, "rkey", mw->get()->rkey);
  object.Set("handle", WrapHandle(info.Env(), std::move(mw)));
  return object;
}

// (qp, mw, mr, addr, length, access, sendFlags, queueId, wrId): one request on the send queue. Returns the window's
// new key. A window of type 1 is bound by a verb of its own, one of type 2 by a work request.
Napi::Value BindMw(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto qp = HandleArg<QpHandle>(info, 0);
  auto mw = HandleArg<MwHandle>(info, 1);
  auto mr = HandleArg<MrHandle>(info, 2);
  auto queue = Environment::Of(env).doorbell->queues.Share(Uint32Arg(info, 7, "queueId"));
  if (!queue) ThrowType(env, "queueId is not of a queue");
  double wr_id = 0;
  if (napi_get_value_double(env, info[8], &wr_id) != napi_ok) ThrowType(env, "wrId is not a number");
  ibv_mw_bind_info bind{};
  bind.mr = mr->get();
  bind.addr = Uint64Arg(info, 3, "addr");
  bind.length = SizeArg(info, 4, "length");
  bind.mw_access_flags = Uint32Arg(info, 5, "access");
  const uint32_t flags = Uint32Arg(info, 6, "sendFlags");
  uint32_t rkey = 0;
  errno = 0;
  if (mw->get()->type == IBV_MW_TYPE_1) {
    ibv_mw_bind request{};
    queue->Number(&request, 1);
    request.send_flags = flags;
    request.bind_info = bind;
    Check(env, FromRet("ibv_bind_mw", ibv_bind_mw(qp->get(), mw->get(), &request)));
    rkey = mw->get()->rkey;
  } else {
    ibv_send_wr request{};
    ibv_send_wr* bad = nullptr;
    queue->Number(&request, 1);
    request.opcode = IBV_WR_BIND_MW;
    request.send_flags = flags;
    request.bind_mw.mw = mw->get();
    request.bind_mw.rkey = rkey = ibv_inc_rkey(mw->get()->rkey);
    request.bind_mw.bind_info = bind;
    const char* verb = qp->posting() == Posting::kClassic ? "ibv_post_send" : "ibv_wr_complete";
    Check(env, FromRet(verb, PostSend(*qp, &request, &bad)));
    mw->get()->rkey = rkey;
  }
  queue->Push(&wr_id, 1);
  return Napi::Number::New(env, rkey);
}

}  // namespace

void ExportMemoryWindow(Napi::Object exports) {
  Export(exports, "allocMw", AllocMw);
  Export(exports, "bindMw", BindMw);
  Export(exports, "deallocMw", CloseHandle<MwHandle>);
}

}  // namespace rdma
