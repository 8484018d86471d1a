// ibv_create_wq(3), ibv_modify_wq(3), ibv_create_rwq_ind_table(3). Posting is in datapath/.
#include <infiniband/verbs.h>

#include "core/args.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

// (context, wqs): as many as a power of two.
Napi::Value CreateRwqIndTable(const Napi::CallbackInfo& info) {
  auto context = HandleArg<ContextHandle>(info, 0);
  const auto wqs = HandleListArg<WqHandle>(info, 1, "wqs");
  uint32_t log_size = 0;
  while (size_t{1} << log_size < wqs.size()) log_size++;
  if (size_t{1} << log_size != wqs.size()) ThrowType(info.Env(), "wqs are not as many as a power of two");
  auto table = Unwrap(info.Env(), RwqIndTableHandle::Create(std::move(context), log_size, wqs));
  Napi::Object object = Napi::Object::New(info.Env());
  SetNumber(object, "indTblNum", static_cast<uint32_t>(table->get()->ind_tbl_num));
  object.Set("handle", WrapHandle(info.Env(), std::move(table)));
  return object;
}

// (pd, cq, maxWr, maxSge, createFlags, id): events name the queue by its id.
Napi::Value CreateWq(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  ibv_wq_init_attr attr{};
  attr.max_wr = Uint32Arg(info, 2, "maxWr");
  attr.max_sge = Uint32Arg(info, 3, "maxSge");
  attr.create_flags = Uint32Arg(info, 4, "createFlags");
  if (attr.create_flags != 0) attr.comp_mask = IBV_WQ_INIT_ATTR_FLAGS;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): it is a number to us, and nothing to libibverbs
  attr.wq_context = reinterpret_cast<void*>(uintptr_t{Uint32Arg(info, 5, "id")});
  auto wq = Unwrap(env, WqHandle::Create(HandleArg<PdHandle>(info, 0), HandleArg<CqHandle>(info, 1), &attr));
  Napi::Object object = Napi::Object::New(env);
  SetNumber(object, "wqNum", wq->get()->wq_num);
  SetNumber(object, "maxWr", attr.max_wr);
  SetNumber(object, "maxSge", attr.max_sge);
  object.Set("handle", WrapHandle(env, std::move(wq)));
  return object;
}

// (wq, mask, wqState, currWqState, flags, flagsMask)
Napi::Value ModifyWq(const Napi::CallbackInfo& info) {
  auto wq = HandleArg<WqHandle>(info, 0);
  ibv_wq_attr attr{};
  attr.attr_mask = Uint32Arg(info, 1, "mask");
  attr.wq_state = static_cast<ibv_wq_state>(Uint32Arg(info, 2, "wqState"));
  attr.curr_wq_state = static_cast<ibv_wq_state>(Uint32Arg(info, 3, "currWqState"));
  attr.flags = Uint32Arg(info, 4, "flags");
  attr.flags_mask = Uint32Arg(info, 5, "flagsMask");
  errno = 0;
  Check(info.Env(), FromRet("ibv_modify_wq", ibv_modify_wq(wq->get(), &attr)));
  return info.Env().Undefined();
}

}  // namespace

void ExportReceiveWorkQueue(Napi::Object exports) {
  Export(exports, "createWq", CreateWq);
  Export(exports, "modifyWq", ModifyWq);
  Export(exports, "destroyWq", CloseHandle<WqHandle>);
  Export(exports, "createRwqIndTable", CreateRwqIndTable);
  Export(exports, "destroyRwqIndTable", CloseHandle<RwqIndTableHandle>);
}

}  // namespace rdma
