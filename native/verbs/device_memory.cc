// ibv_alloc_dm(3), ibv_memcpy_to_dm, ibv_memcpy_from_dm, ibv_reg_dm_mr, ibv_import_dm(3).
#include <infiniband/verbs.h>

#include "core/args.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

Napi::Object Describe(Napi::Env env, std::shared_ptr<DmHandle> dm) {
  Napi::Object object = Napi::Object::New(env);
  SetNumber(object, "nativeHandle", dm->get()->handle);
  object.Set("handle", WrapHandle(env, std::move(dm)));
  return object;
}

// (context, length, logAlign)
Napi::Value AllocDm(const Napi::CallbackInfo& info) {
  auto context = HandleArg<ContextHandle>(info, 0);
  return Describe(info.Env(), Unwrap(info.Env(), DmHandle::Alloc(std::move(context), SizeArg(info, 1, "length"),
                                                                 Uint32Arg(info, 2, "logAlign"))));
}

// (context, handle)
Napi::Value ImportDm(const Napi::CallbackInfo& info) {
  auto context = HandleArg<ContextHandle>(info, 0);
  return Describe(info.Env(), Unwrap(info.Env(), DmHandle::Import(std::move(context), Uint32Arg(info, 1, "handle"))));
}

// (dm, offset, bytes)
Napi::Value MemcpyToDm(const Napi::CallbackInfo& info) {
  auto dm = HandleArg<DmHandle>(info, 0);
  const size_t offset = SizeArg(info, 1, "offset");
  if (!info[2].IsTypedArray()) ThrowType(info.Env(), "bytes is not a Uint8Array");
  auto bytes = info[2].As<Napi::Uint8Array>();
  Check(info.Env(), dm->CopyTo(offset, bytes.Data(), bytes.ByteLength()));
  return info.Env().Undefined();
}

// (dm, offset, bytes): fills the bytes.
Napi::Value MemcpyFromDm(const Napi::CallbackInfo& info) {
  auto dm = HandleArg<DmHandle>(info, 0);
  const size_t offset = SizeArg(info, 1, "offset");
  if (!info[2].IsTypedArray()) ThrowType(info.Env(), "bytes is not a Uint8Array");
  auto bytes = info[2].As<Napi::Uint8Array>();
  Check(info.Env(), dm->CopyFrom(bytes.Data(), offset, bytes.ByteLength()));
  return info.Env().Undefined();
}

// (pd, dm, offset, length, access)
Napi::Value RegDmMr(const Napi::CallbackInfo& info) {
  auto pd = HandleArg<PdHandle>(info, 0);
  auto dm = HandleArg<DmHandle>(info, 1);
  return DescribeMr(info.Env(),
                    Unwrap(info.Env(), MrHandle::RegisterDm(std::move(pd), std::move(dm), SizeArg(info, 2, "offset"),
                                                            SizeArg(info, 3, "length"), Uint32Arg(info, 4, "access"))));
}

}  // namespace

void ExportDeviceMemory(Napi::Object exports) {
  Export(exports, "allocDm", AllocDm);
  Export(exports, "importDm", ImportDm);
  Export(exports, "freeDm", CloseHandle<DmHandle>);
  Export(exports, "memcpyToDm", MemcpyToDm);
  Export(exports, "memcpyFromDm", MemcpyFromDm);
  Export(exports, "regDmMr", RegDmMr);
}

}  // namespace rdma
