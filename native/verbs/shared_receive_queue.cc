// ibv_create_srq(3), ibv_modify_srq(3), ibv_query_srq(3). Posting is in datapath/.
#include <infiniband/verbs.h>

#include "core/args.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

// (pd, xrcd | null, cq | null, attr): events name the queue by its `id`. Tags are matched where there are `maxNumTags`.
Napi::Value CreateSrq(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  const Napi::Object given = ObjectArg(info, 3, "attr");
  ibv_srq_init_attr_ex attr{};
  attr.attr.max_wr = Uint32Field(given, "maxWr");
  attr.attr.max_sge = Uint32Field(given, "maxSge");
  attr.srq_type = static_cast<ibv_srq_type>(Uint32Field(given, "srqType"));
  if (attr.srq_type != IBV_SRQT_BASIC) attr.comp_mask |= IBV_SRQ_INIT_ATTR_TYPE;
  if (attr.srq_type == IBV_SRQT_TM) {
    attr.comp_mask |= IBV_SRQ_INIT_ATTR_TM;
    attr.tm_cap.max_num_tags = Uint32Field(given, "maxNumTags");
    attr.tm_cap.max_ops = Uint32Field(given, "maxOps");
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): it is a number to us, and nothing to libibverbs
  attr.srq_context = reinterpret_cast<void*>(uintptr_t{Uint32Field(given, "id")});
  SrqParents parents;
  parents.pd = HandleArg<PdHandle>(info, 0);
  if (!info[1].IsNull()) parents.xrcd = HandleArg<XrcdHandle>(info, 1);
  if (!info[2].IsNull()) parents.cq = HandleArg<CqHandle>(info, 2);
  auto srq = Unwrap(env, SrqHandle::Create(std::move(parents), &attr));
  Napi::Object object = Napi::Object::New(env);
  SetNumber(object, "maxWr", attr.attr.max_wr);
  SetNumber(object, "maxSge", attr.attr.max_sge);
  object.Set("handle", WrapHandle(env, std::move(srq)));
  return object;
}

Napi::Value GetSrqNum(const Napi::CallbackInfo& info) {
  auto srq = HandleArg<SrqHandle>(info, 0);
  uint32_t number = 0;
  errno = 0;
  Check(info.Env(), FromRet("ibv_get_srq_num", ibv_get_srq_num(srq->get(), &number)));
  return Napi::Number::New(info.Env(), number);
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
  Export(exports, "getSrqNum", GetSrqNum);
  Export(exports, "modifySrq", ModifySrq);
  Export(exports, "querySrq", QuerySrq);
  Export(exports, "destroySrq", CloseHandle<SrqHandle>);
}

}  // namespace rdma
