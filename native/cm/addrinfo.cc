// rdma_getaddrinfo(3) and rdma_create_ep(3): both may ask name servers or the network, so both run on the pool.
#include <netdb.h>
#include <rdma/rdma_cma.h>

#include <memory>
#include <string>
#include <vector>

#include "cm/address.h"
#include "cm/cm.h"
#include "core/args.h"
#include "core/promise_worker.h"

namespace rdma {

namespace {

// A struct rdma_addrinfo that owns what it points to.
struct AddrInfo {
  rdma_addrinfo info{};
  sockaddr_storage src{};
  sockaddr_storage dst{};
  std::vector<uint8_t> route;
  std::vector<uint8_t> connect;

  void Point() {
    if (info.ai_src_len != 0) info.ai_src_addr = Generic(&src);
    if (info.ai_dst_len != 0) info.ai_dst_addr = Generic(&dst);
    info.ai_route = route.data();
    info.ai_route_len = route.size();
    info.ai_connect = connect.data();
    info.ai_connect_len = connect.size();
  }
};

void ReadAddress(const Napi::Object& object, const char* name, sockaddr_storage* storage, socklen_t* length) {
  if (!object.Get(name).IsObject()) return;
  auto address = object.Get(name).As<Napi::Object>();
  if (!address.Get("address").IsString()) ThrowType(object.Env(), std::string(name) + " is not an address");
  *storage = ParseAddress(object.Env(), address.Get("address").As<Napi::String>().Utf8Value(),
                          static_cast<uint16_t>(Uint32Field(address, "port")));
  *length = AddressLength(*storage);
}

std::vector<uint8_t> ReadBytes(const Napi::Object& object, const char* name) {
  if (!object.Get(name).IsTypedArray()) return {};
  auto bytes = object.Get(name).As<Napi::Uint8Array>();
  return {bytes.Data(), bytes.Data() + bytes.ByteLength()};
}

std::shared_ptr<AddrInfo> AddrInfoArg(const Napi::CallbackInfo& info, size_t index) {
  const Napi::Object object = ObjectArg(info, index, "addrinfo");
  auto result = std::make_shared<AddrInfo>();
  result->info.ai_flags = static_cast<int>(Uint32Field(object, "flags"));
  result->info.ai_family = static_cast<int>(Uint32Field(object, "family"));
  result->info.ai_qp_type = static_cast<int>(Uint32Field(object, "qpType"));
  result->info.ai_port_space = static_cast<int>(Uint32Field(object, "portSpace"));
  ReadAddress(object, "srcAddr", &result->src, &result->info.ai_src_len);
  ReadAddress(object, "dstAddr", &result->dst, &result->info.ai_dst_len);
  result->route = ReadBytes(object, "route");
  result->connect = ReadBytes(object, "connect");
  result->Point();
  return result;
}

Napi::Value OptionalText(Napi::Env env, const char* text) {
  return text == nullptr ? env.Null() : Napi::String::New(env, text);
}

Napi::Object AddrInfoObject(Napi::Env env, const rdma_addrinfo& info) {
  Napi::Object object = Napi::Object::New(env);
  SetNumber(object, "flags", info.ai_flags);
  SetNumber(object, "qpType", info.ai_qp_type);
  SetNumber(object, "portSpace", info.ai_port_space);
  object.Set("srcAddr", AddressObject(env, info.ai_src_len == 0 ? nullptr : info.ai_src_addr));
  object.Set("dstAddr", AddressObject(env, info.ai_dst_len == 0 ? nullptr : info.ai_dst_addr));
  object.Set("srcCanonname", OptionalText(env, info.ai_src_canonname));
  object.Set("dstCanonname", OptionalText(env, info.ai_dst_canonname));
  object.Set("route", Napi::Buffer<uint8_t>::Copy(env, static_cast<uint8_t*>(info.ai_route), info.ai_route_len));
  object.Set("connect", Napi::Buffer<uint8_t>::Copy(env, static_cast<uint8_t*>(info.ai_connect), info.ai_connect_len));
  return object;
}

// What the look-up gave: a list, or the reason of getaddrinfo(3).
struct Lookup {
  int gai_error = 0;
  std::shared_ptr<rdma_addrinfo> list;
};

std::string TextArg(const Napi::CallbackInfo& info, size_t index, const char* name) {
  return info[index].IsNull() ? std::string() : StringArg(info, index, name);
}

// (node | null, service | null, hints): the list, or a string that says why there is none.
Napi::Value GetAddrInfo(const Napi::CallbackInfo& info) {
  const std::string node = TextArg(info, 0, "node");
  const std::string service = TextArg(info, 1, "service");
  std::shared_ptr<AddrInfo> hints = AddrInfoArg(info, 2);
  return PromiseWorker<Lookup>::Queue(
      info.Env(), "rdma_getaddrinfo",
      [node, service, hints]() -> Outcome<Lookup> {
        rdma_addrinfo* list = nullptr;
        errno = 0;
        // 0, -1 with errno set, or another EAI_ code (EAI_BADFLAGS is -1 too, but sets no errno).
        const int rc = rdma_getaddrinfo(node.empty() ? nullptr : node.c_str(),
                                        service.empty() ? nullptr : service.c_str(), &hints->info, &list);
        if (rc == -1 && errno != 0) return VerbError{"rdma_getaddrinfo", errno};
        if (rc == EAI_SYSTEM) return VerbError{"rdma_getaddrinfo", errno != 0 ? errno : EIO};
        if (rc != 0) return Lookup{rc, nullptr};
        return Lookup{0, std::shared_ptr<rdma_addrinfo>(list, rdma_freeaddrinfo)};
      },
      [](Napi::Env env, const Lookup& lookup) -> napi_value {
        if (lookup.gai_error != 0) return Napi::String::New(env, gai_strerror(lookup.gai_error));
        Napi::Array array = Napi::Array::New(env);
        uint32_t count = 0;
        for (const rdma_addrinfo* at = lookup.list.get(); at != nullptr; at = at->ai_next) {
          array.Set(count++, AddrInfoObject(env, *at));
        }
        return array;
      });
}

// (channel, addrinfo): an id that is bound, or has its address and route resolved, on the channel.
Napi::Value CreateEp(const Napi::CallbackInfo& info) {
  auto channel = HandleArg<CmChannelHandle>(info, 0);
  std::shared_ptr<AddrInfo> wanted = AddrInfoArg(info, 1);
  const uint32_t number = Environment::Of(info.Env()).NextCmNumber();
  auto busy = std::make_shared<Parent<CmChannelHandle>>(channel);
  return PromiseWorker<std::shared_ptr<CmIdHandle>>::Queue(
      info.Env(), "rdma_create_ep",
      [channel, busy, wanted, number]() -> Outcome<std::shared_ptr<CmIdHandle>> {
        rdma_cm_id* id = nullptr;
        errno = 0;
        VerbError error = FromErrno("rdma_create_ep", rdma_create_ep(&id, &wanted->info, nullptr, nullptr));
        if (error) return error;
        // It is made for calls that block, with a channel of its own.
        std::shared_ptr<CmIdHandle> handle = CmIdHandle::Adopt(channel, id, number);
        error = handle->Migrate(channel);
        if (error) return error;
        return handle;
      },
      [number](Napi::Env env, std::shared_ptr<CmIdHandle> id) -> napi_value {
        Napi::Object object = Napi::Object::New(env);
        SetNumber(object, "number", number);
        object.Set("handle", WrapHandle(env, std::move(id)));
        return object;
      });
}

}  // namespace

void ExportAddrInfo(Napi::Object exports) {
  Export(exports, "getAddrInfo", GetAddrInfo);
  Export(exports, "createEp", CreateEp);
}

}  // namespace rdma
