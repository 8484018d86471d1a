#include "handles/context_handle.h"

#include <cstring>

namespace rdma {

Outcome<std::shared_ptr<ContextHandle>> ContextHandle::Open(const std::string& device_name) {
  int count = 0;
  auto list = FromPtr("ibv_get_device_list", ibv_get_device_list(&count));
  if (list.error) return list.error;
  Outcome<ibv_context*> opened = VerbError{"ibv_open_device", ENODEV};
  for (int i = 0; i < count; i++) {
    if (device_name == ibv_get_device_name(list.value[i])) {
      errno = 0;
      opened = FromPtr("ibv_open_device", ibv_open_device(list.value[i]));
      break;
    }
  }
  ibv_free_device_list(list.value);
  if (opened.error) return opened.error;
  return std::shared_ptr<ContextHandle>(new ContextHandle(opened.value));
}

VerbError ContextHandle::Destroy() {
  if (context_ == nullptr) return {};
  VerbError error = FromDestroy(FromErrno("ibv_close_device", ibv_close_device(context_)));
  if (!error) context_ = nullptr;
  return error;
}

}  // namespace rdma
