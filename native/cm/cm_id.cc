// rdma_create_id(3) and what an id does before it is connected: binding, resolving, options, multicast groups.
#include <rdma/rdma_cma.h>

#include "cm/address.h"
#include "cm/cm.h"
#include "core/args.h"
#include "core/promise_worker.h"

namespace rdma {

namespace {

// (channel, portSpace)
Napi::Value CreateCmId(const Napi::CallbackInfo& info) {
  const uint32_t number = Environment::Of(info.Env()).NextCmNumber();
  auto id =
      Unwrap(info.Env(), CmIdHandle::Create(HandleArg<CmChannelHandle>(info, 0),
                                            static_cast<rdma_port_space>(Uint32Arg(info, 1, "portSpace")), number));
  Napi::Object object = Napi::Object::New(info.Env());
  SetNumber(object, "number", number);
  object.Set("handle", WrapHandle(info.Env(), std::move(id)));
  return object;
}

// What librdmacm knows of an id now.
Napi::Value QueryCmId(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  const rdma_cm_id* id = HandleArg<CmIdHandle>(info, 0)->get();
  Napi::Object object = Napi::Object::New(env);
  SetNumber(object, "portSpace", id->ps);
  SetNumber(object, "portNum", id->port_num);
  const bool is_bound = id->verbs != nullptr;
  object.Set("device", is_bound ? Napi::String::New(env, ibv_get_device_name(id->verbs->device)) : env.Null());
  SetNumber(object, "transportType", is_bound ? id->verbs->device->transport_type : IBV_TRANSPORT_UNKNOWN);
  object.Set("localAddr", AddressObject(env, &id->route.addr.src_addr));
  object.Set("peerAddr", AddressObject(env, &id->route.addr.dst_addr));
  return object;
}

// (id, address, port)
Napi::Value BindAddr(const Napi::CallbackInfo& info) {
  auto id = HandleArg<CmIdHandle>(info, 0);
  sockaddr_storage address = AddressArg(info, 1);
  errno = 0;
  Check(info.Env(), FromErrno("rdma_bind_addr", rdma_bind_addr(id->get(), Generic(&address))));
  return info.Env().Undefined();
}

// (id, dstAddress, dstPort, srcAddress | null, srcPort, timeoutMs)
Napi::Value ResolveAddr(const Napi::CallbackInfo& info) {
  auto id = HandleArg<CmIdHandle>(info, 0);
  sockaddr_storage dst = AddressArg(info, 1);
  sockaddr_storage src{};
  const bool has_src = !info[3].IsNull();
  if (has_src) src = AddressArg(info, 3);
  const auto timeout = static_cast<int>(Uint32Arg(info, 5, "timeoutMs"));
  errno = 0;
  Check(info.Env(), FromErrno("rdma_resolve_addr",
                              rdma_resolve_addr(id->get(), has_src ? Generic(&src) : nullptr, Generic(&dst), timeout)));
  return info.Env().Undefined();
}

// librdmacm goes on as if there were a device, and follows a null pointer.
void RequireDevice(Napi::Env env, const CmIdHandle& id, const char* verb) {
  if (id.get()->verbs == nullptr) Check(env, {verb, EINVAL});
}

// (id, timeoutMs). On the pool, since on InfiniBand librdmacm may ask a daemon, ibacm, and wait for its answer.
Napi::Value ResolveRoute(const Napi::CallbackInfo& info) {
  auto id = HandleArg<CmIdHandle>(info, 0);
  const auto timeout = static_cast<int>(Uint32Arg(info, 1, "timeoutMs"));
  RequireDevice(info.Env(), *id, "rdma_resolve_route");
  auto busy = std::make_shared<Parent<CmIdHandle>>(id);
  return PromiseWorker<bool>::Queue(
      info.Env(), "rdma_resolve_route",
      [id, busy, timeout]() -> Outcome<bool> {
        errno = 0;
        VerbError error = FromErrno("rdma_resolve_route", rdma_resolve_route(id->get(), timeout));
        if (error) return error;
        return true;
      },
      [](Napi::Env env, bool) -> napi_value { return env.Undefined(); });
}

// Opens the devices, which librdmacm would do on the event loop when the first id is bound to one, and keeps open.
Napi::Value OpenCmDevices(const Napi::CallbackInfo& info) {
  return PromiseWorker<bool>::Queue(
      info.Env(), "rdma_get_devices",
      []() -> Outcome<bool> {
        errno = 0;
        auto list = FromPtr("rdma_get_devices", rdma_get_devices(nullptr));
        if (list.error) return list.error;
        rdma_free_devices(list.value);
        return true;
      },
      [](Napi::Env env, bool) -> napi_value { return env.Undefined(); });
}

// (id, name, value): the level is RDMA_OPTION_ID; those of one byte are told by their name.
Napi::Value SetCmOption(const Napi::CallbackInfo& info) {
  auto id = HandleArg<CmIdHandle>(info, 0);
  const auto name = static_cast<int>(Uint32Arg(info, 1, "name"));
  auto byte = static_cast<uint8_t>(Uint32Arg(info, 2, "value"));
  int number = byte;
  const bool is_byte = name == RDMA_OPTION_ID_TOS || name == RDMA_OPTION_ID_ACK_TIMEOUT;
  void* value = is_byte ? static_cast<void*>(&byte) : static_cast<void*>(&number);
  errno = 0;
  Check(info.Env(), FromErrno("rdma_set_option", rdma_set_option(id->get(), RDMA_OPTION_ID, name, value,
                                                                 is_byte ? sizeof byte : sizeof number)));
  return info.Env().Undefined();
}

// (id, channel)
Napi::Value MigrateCmId(const Napi::CallbackInfo& info) {
  Check(info.Env(), HandleArg<CmIdHandle>(info, 0)->Migrate(HandleArg<CmChannelHandle>(info, 1)));
  return info.Env().Undefined();
}

// (id, address, joinFlags | null, number): the event brings the number back.
Napi::Value JoinMulticast(const Napi::CallbackInfo& info) {
  auto id = HandleArg<CmIdHandle>(info, 0);
  sockaddr_storage address = AddressArg(info, 1);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): it is a number to us, and nothing to librdmacm
  void* number = reinterpret_cast<void*>(uintptr_t{Uint32Arg(info, 4, "number")});
  errno = 0;
  if (info[3].IsNull()) {
    Check(info.Env(), FromErrno("rdma_join_multicast", rdma_join_multicast(id->get(), Generic(&address), number)));
    return info.Env().Undefined();
  }
  rdma_cm_join_mc_attr_ex attr{};
  attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
  attr.join_flags = Uint32Arg(info, 3, "joinFlags");
  attr.addr = Generic(&address);
  Check(info.Env(), FromErrno("rdma_join_multicast_ex", rdma_join_multicast_ex(id->get(), &attr, number)));
  return info.Env().Undefined();
}

// (id, address)
Napi::Value LeaveMulticast(const Napi::CallbackInfo& info) {
  auto id = HandleArg<CmIdHandle>(info, 0);
  sockaddr_storage address = AddressArg(info, 1);
  errno = 0;
  Check(info.Env(), FromErrno("rdma_leave_multicast", rdma_leave_multicast(id->get(), Generic(&address))));
  return info.Env().Undefined();
}

}  // namespace

void ExportCmId(Napi::Object exports) {
  Export(exports, "createCmId", CreateCmId);
  Export(exports, "destroyCmId", CloseHandle<CmIdHandle>);
  Export(exports, "queryCmId", QueryCmId);
  Export(exports, "openCmDevices", OpenCmDevices);
  Export(exports, "bindAddr", BindAddr);
  Export(exports, "resolveAddr", ResolveAddr);
  Export(exports, "resolveRoute", ResolveRoute);
  Export(exports, "setCmOption", SetCmOption);
  Export(exports, "migrateCmId", MigrateCmId);
  Export(exports, "joinMulticast", JoinMulticast);
  Export(exports, "leaveMulticast", LeaveMulticast);
}

}  // namespace rdma
