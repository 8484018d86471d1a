// ibv_get_device_list(3), and the texts that libibverbs has for its enums.
#include <infiniband/verbs.h>

#include <cstdio>
#include <mutex>

#include "core/args.h"
#include "rdma_core/library.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

// As ibv_devinfo prints it.
std::string FormatGuid(__be64 guid) {
  unsigned char b[8];
  memcpy(b, &guid, sizeof b);
  char text[20];
  (void)snprintf(text, sizeof text, "%02x%02x:%02x%02x:%02x%02x:%02x%02x", b[0], b[1], b[2], b[3], b[4], b[5], b[6],
                 b[7]);
  return text;
}

Napi::Value GetDeviceList(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  int count = 0;
  errno = 0;
  ibv_device** list = Unwrap(env, FromPtr("ibv_get_device_list", ibv_get_device_list(&count)));
  const std::shared_ptr<ibv_device*> guard(list, ibv_free_device_list);
  Napi::Array devices = Napi::Array::New(env, static_cast<size_t>(count));
  for (int i = 0; i < count; i++) {
    ibv_device* device = list[i];
    Napi::Object object = Napi::Object::New(env);
    object.Set("name", ibv_get_device_name(device));
    object.Set("guid", FormatGuid(ibv_get_device_guid(device)));
    SetNumber(object, "index", ibv_get_device_index(device));
    SetNumber(object, "nodeType", device->node_type);
    SetNumber(object, "transportType", device->transport_type);
    object.Set("devName", device->dev_name);
    object.Set("ibdevPath", device->ibdev_path);
    devices.Set(static_cast<uint32_t>(i), object);
  }
  return devices;
}

// Whether libibverbs is there, and what the loader said.
Napi::Value LoadState(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  Library& library = Libibverbs();
  Napi::Object state = Napi::Object::New(env);
  state.Set("available", library.Open());
  state.Set("path", library.path());
  state.Set("error", library.error());
  return state;
}

// Protects registered pages from the copy on write of fork(), where the kernel does not do it by itself. Must come
// before the first registration of the process, and costs a page-granular madvise() for each, so it is done only where
// it is needed: ibv_is_fork_initialized(3).
void InitForkOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (ibv_is_fork_initialized() == IBV_FORK_DISABLED) ibv_fork_init();
  });
}

Napi::Value IsForkInitialized(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), ibv_is_fork_initialized());
}

Napi::Object DescribeContext(Napi::Env env, std::shared_ptr<ContextHandle> context) {
  Napi::Object result = Napi::Object::New(env);
  SetNumber(result, "numCompVectors", context->get()->num_comp_vectors);
  SetNumber(result, "transportType", context->get()->device->transport_type);
  SetNumber(result, "cmdFd", context->get()->cmd_fd);
  result.Set("name", ibv_get_device_name(context->get()->device));
  result.Set("handle", WrapHandle(env, std::move(context)));
  return result;
}

Napi::Value OpenDevice(const Napi::CallbackInfo& info) {
  const std::string name = StringArg(info, 0, "name");
  InitForkOnce();
  return DescribeContext(info.Env(), Unwrap(info.Env(), ContextHandle::Open(name)));
}

// (cmdFd)
Napi::Value ImportDevice(const Napi::CallbackInfo& info) {
  const auto fd = static_cast<int>(Uint32Arg(info, 0, "cmdFd"));
  InitForkOnce();
  return DescribeContext(info.Env(), Unwrap(info.Env(), ContextHandle::Import(fd)));
}

template <class Enum, const char* (*Text)(Enum)>
Napi::Value EnumText(const Napi::CallbackInfo& info) {
  const char* text = Text(static_cast<Enum>(Uint32Arg(info, 0, "value")));
  return text == nullptr ? info.Env().Null() : Napi::String::New(info.Env(), text);
}

}  // namespace

void ExportDevice(Napi::Object exports) {
  Export(exports, "loadState", LoadState);
  Export(exports, "getDeviceList", GetDeviceList);
  Export(exports, "openDevice", OpenDevice);
  Export(exports, "importDevice", ImportDevice);
  Export(exports, "isForkInitialized", IsForkInitialized);
  Export(exports, "wcStatusStr", EnumText<ibv_wc_status, ibv_wc_status_str>);
  Export(exports, "eventTypeStr", EnumText<ibv_event_type, ibv_event_type_str>);
  Export(exports, "nodeTypeStr", EnumText<ibv_node_type, ibv_node_type_str>);
  Export(exports, "portStateStr", EnumText<ibv_port_state, ibv_port_state_str>);
}

}  // namespace rdma
