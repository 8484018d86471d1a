#include "handles/context_handle.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

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

Outcome<std::shared_ptr<ContextHandle>> ContextHandle::Import(int cmd_fd) {
  // fstat() would ask for glibc 2.33.
  struct statx st {};
  const int fd = fcntl(cmd_fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return VerbError{"ibv_import_device", errno};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_TYPE, &st) != 0 || !S_ISCHR(st.stx_mode)) {
    close(fd);
    return VerbError{"ibv_import_device", EINVAL};
  }
  errno = 0;
  auto context = FromPtr("ibv_import_device", ibv_import_device(fd));
  if (context.error) {
    // No such device, or no such function: then nobody has taken the descriptor over. Else it is closed already.
    if (context.error.err == ENODEV || context.error.err == EOPNOTSUPP) close(fd);
    return context.error;
  }
  return std::shared_ptr<ContextHandle>(new ContextHandle(context.value));
}

VerbError ContextHandle::Destroy() {
  if (context_ == nullptr) return {};
  VerbError error = FromDestroy(FromErrno("ibv_close_device", ibv_close_device(context_)));
  if (!error) context_ = nullptr;
  return error;
}

}  // namespace rdma
