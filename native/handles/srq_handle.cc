#include "handles/srq_handle.h"

namespace rdma {

Outcome<std::shared_ptr<SrqHandle>> SrqHandle::Create(std::shared_ptr<PdHandle> pd, ibv_srq_init_attr* attr) {
  errno = 0;
  auto srq = FromPtr("ibv_create_srq", ibv_create_srq(pd->get(), attr));
  if (srq.error) return srq.error;
  return std::shared_ptr<SrqHandle>(new SrqHandle(std::move(pd), srq.value));
}

VerbError SrqHandle::Destroy() {
  if (srq_ == nullptr) return {};
  VerbError error = FromDestroy(FromRet("ibv_destroy_srq", ibv_destroy_srq(srq_)));
  if (!error) srq_ = nullptr;
  return error;
}

}  // namespace rdma
