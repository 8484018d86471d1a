#include "handles/pd_handle.h"

namespace rdma {

Outcome<std::shared_ptr<PdHandle>> PdHandle::Alloc(std::shared_ptr<ContextHandle> context) {
  errno = 0;
  auto pd = FromPtr("ibv_alloc_pd", ibv_alloc_pd(context->get()));
  if (pd.error) return pd.error;
  return std::shared_ptr<PdHandle>(new PdHandle(std::move(context), pd.value));
}

VerbError PdHandle::Destroy() {
  if (pd_ == nullptr) return {};
  VerbError error = FromDestroy(FromRet("ibv_dealloc_pd", ibv_dealloc_pd(pd_)));
  if (error) return error;
  pd_ = nullptr;
  context_.Reset();
  return {};
}

}  // namespace rdma
