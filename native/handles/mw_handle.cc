#include "handles/mw_handle.h"

namespace rdma {

Outcome<std::shared_ptr<MwHandle>> MwHandle::Alloc(std::shared_ptr<PdHandle> pd, ibv_mw_type type) {
  errno = 0;
  auto mw = FromPtr("ibv_alloc_mw", ibv_alloc_mw(pd->get(), type));
  if (mw.error) return mw.error;
  return std::shared_ptr<MwHandle>(new MwHandle(std::move(pd), mw.value));
}

VerbError MwHandle::Destroy() {
  if (mw_ == nullptr) return {};
  VerbError error = FromDestroy(FromRet("ibv_dealloc_mw", ibv_dealloc_mw(mw_)));
  if (!error) mw_ = nullptr;
  return error;
}

}  // namespace rdma
