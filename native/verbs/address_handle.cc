// ibv_create_ah(3), ibv_create_ah_from_wc(3).
#include <infiniband/verbs.h>

#include <cstring>

#include "core/args.h"
#include "verbs/verbs.h"

namespace rdma {

Napi::Object AhAttr(Napi::Env env, const ibv_ah_attr& attr) {
  Napi::Object object = Napi::Object::New(env);
  Napi::Object grh = Napi::Object::New(env);
  grh.Set("dgid", Napi::Buffer<uint8_t>::Copy(env, attr.grh.dgid.raw, sizeof attr.grh.dgid.raw));
  SetNumber(grh, "flowLabel", attr.grh.flow_label);
  SetNumber(grh, "sgidIndex", attr.grh.sgid_index);
  SetNumber(grh, "hopLimit", attr.grh.hop_limit);
  SetNumber(grh, "trafficClass", attr.grh.traffic_class);
  object.Set("grh", grh);
  SetNumber(object, "dlid", attr.dlid);
  SetNumber(object, "sl", attr.sl);
  SetNumber(object, "srcPathBits", attr.src_path_bits);
  SetNumber(object, "staticRate", attr.static_rate);
  object.Set("isGlobal", attr.is_global != 0);
  SetNumber(object, "portNum", attr.port_num);
  return object;
}

// A complete struct ibv_ah_attr: TypeScript has filled in the defaults.
ibv_ah_attr GetAhAttr(const Napi::Object& parent, const char* name) {
  Napi::Env env = parent.Env();
  if (!parent.Get(name).IsObject()) ThrowType(env, std::string(name) + " is not an object");
  auto object = parent.Get(name).As<Napi::Object>();
  ibv_ah_attr attr{};
  attr.is_global = object.Get("isGlobal").ToBoolean() ? 1 : 0;
  if (attr.is_global != 0) {
    auto grh = object.Get("grh").As<Napi::Object>();
    auto dgid = grh.Get("dgid").As<Napi::Uint8Array>();
    if (!dgid.IsTypedArray() || dgid.ByteLength() != sizeof attr.grh.dgid.raw) ThrowType(env, "dgid is not 16 bytes");
    memcpy(attr.grh.dgid.raw, dgid.Data(), sizeof attr.grh.dgid.raw);
    attr.grh.flow_label = Uint32Field(grh, "flowLabel");
    attr.grh.sgid_index = static_cast<uint8_t>(Uint32Field(grh, "sgidIndex"));
    attr.grh.hop_limit = static_cast<uint8_t>(Uint32Field(grh, "hopLimit"));
    attr.grh.traffic_class = static_cast<uint8_t>(Uint32Field(grh, "trafficClass"));
  }
  attr.dlid = static_cast<uint16_t>(Uint32Field(object, "dlid"));
  attr.sl = static_cast<uint8_t>(Uint32Field(object, "sl"));
  attr.src_path_bits = static_cast<uint8_t>(Uint32Field(object, "srcPathBits"));
  attr.static_rate = static_cast<uint8_t>(Uint32Field(object, "staticRate"));
  attr.port_num = static_cast<uint8_t>(Uint32Field(object, "portNum"));
  return attr;
}

namespace {

Napi::Object Create(const Napi::CallbackInfo& info, ibv_ah_attr* attr) {
  auto ah = Unwrap(info.Env(), AhHandle::Create(HandleArg<PdHandle>(info, 0), attr, Environment::Of(info.Env()).ahs));
  Napi::Object object = Napi::Object::New(info.Env());
  SetNumber(object, "number", ah->number());
  object.Set("handle", WrapHandle(info.Env(), std::move(ah)));
  return object;
}

// (pd, {ahAttr})
Napi::Value CreateAh(const Napi::CallbackInfo& info) {
  ibv_ah_attr attr = GetAhAttr(ObjectArg(info, 1, "attr"), "ahAttr");
  return Create(info, &attr);
}

// (pd, context, portNum, wc, grh): wc has the fields that libibverbs looks at; grh is 40 bytes, or null.
Napi::Value CreateAhFromWc(const Napi::CallbackInfo& info) {
  auto context = HandleArg<ContextHandle>(info, 1);
  const uint32_t port = Uint32Arg(info, 2, "portNum");
  const Napi::Object fields = ObjectArg(info, 3, "wc");
  ibv_wc wc{};
  wc.wc_flags = Uint32Field(fields, "wcFlags");
  wc.slid = static_cast<uint16_t>(Uint32Field(fields, "slid"));
  wc.sl = static_cast<uint8_t>(Uint32Field(fields, "sl"));
  wc.dlid_path_bits = static_cast<uint8_t>(Uint32Field(fields, "dlidPathBits"));
  ibv_grh grh{};
  if (!info[4].IsNull()) {
    auto bytes = info[4].As<Napi::Uint8Array>();
    if (!info[4].IsTypedArray() || bytes.ByteLength() != sizeof grh) ThrowType(info.Env(), "grh is not 40 bytes");
    memcpy(&grh, bytes.Data(), sizeof grh);
  }
  ibv_ah_attr attr{};
  errno = 0;
  Check(info.Env(), FromErrno("ibv_init_ah_from_wc",
                              ibv_init_ah_from_wc(context->get(), static_cast<uint8_t>(port), &wc, &grh, &attr)));
  Napi::Object object = Create(info, &attr);
  object.Set("attr", AhAttr(info.Env(), attr));
  return object;
}

}  // namespace

void ExportAddressHandle(Napi::Object exports) {
  Export(exports, "createAh", CreateAh);
  Export(exports, "createAhFromWc", CreateAhFromWc);
  Export(exports, "destroyAh", CloseHandle<AhHandle>);
}

}  // namespace rdma
