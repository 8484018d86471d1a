#include "handles/xrcd_handle.h"

namespace rdma {

Outcome<std::shared_ptr<XrcdHandle>> XrcdHandle::Open(std::shared_ptr<ContextHandle> context, int fd, int oflags) {
  ibv_xrcd_init_attr attr{};
  attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  attr.fd = fd;
  attr.oflags = oflags;
  errno = 0;
  auto xrcd = FromPtr("ibv_open_xrcd", ibv_open_xrcd(context->get(), &attr));
  if (xrcd.error) return xrcd.error;
  return std::shared_ptr<XrcdHandle>(new XrcdHandle(std::move(context), xrcd.value));
}

VerbError XrcdHandle::Destroy() {
  if (xrcd_ == nullptr) return {};
  VerbError error = FromDestroy(FromRet("ibv_close_xrcd", ibv_close_xrcd(xrcd_)));
  if (error) return error;
  xrcd_ = nullptr;
  context_.Reset();
  return {};
}

}  // namespace rdma
