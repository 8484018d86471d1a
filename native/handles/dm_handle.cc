#include "handles/dm_handle.h"

namespace rdma {

Outcome<std::shared_ptr<DmHandle>> DmHandle::Alloc(std::shared_ptr<ContextHandle> context, size_t length,
                                                   uint32_t log_align) {
  ibv_alloc_dm_attr attr{};
  attr.length = length;
  attr.log_align_req = log_align;
  errno = 0;
  auto dm = FromPtr("ibv_alloc_dm", ibv_alloc_dm(context->get(), &attr));
  if (dm.error) return dm.error;
  return std::shared_ptr<DmHandle>(new DmHandle(std::move(context), dm.value, false));
}

Outcome<std::shared_ptr<DmHandle>> DmHandle::Import(std::shared_ptr<ContextHandle> context, uint32_t handle) {
  errno = 0;
  auto dm = FromPtr("ibv_import_dm", ibv_import_dm(context->get(), handle));
  if (dm.error) return dm.error;
  return std::shared_ptr<DmHandle>(new DmHandle(std::move(context), dm.value, true));
}

VerbError DmHandle::CopyTo(uint64_t offset, const void* host, size_t length) {
  errno = 0;
  return FromRet("ibv_memcpy_to_dm", ibv_memcpy_to_dm(dm_, offset, host, length));
}

VerbError DmHandle::CopyFrom(void* host, uint64_t offset, size_t length) {
  errno = 0;
  return FromRet("ibv_memcpy_from_dm", ibv_memcpy_from_dm(host, dm_, offset, length));
}

VerbError DmHandle::Destroy() {
  if (dm_ == nullptr) return {};
  if (imported_) {
    ibv_unimport_dm(dm_);
  } else {
    VerbError error = FromDestroy(FromRet("ibv_free_dm", ibv_free_dm(dm_)));
    if (error) return error;
  }
  dm_ = nullptr;
  context_.Reset();
  return {};
}

}  // namespace rdma
