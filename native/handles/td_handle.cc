#include "handles/td_handle.h"

namespace rdma {

Outcome<std::shared_ptr<TdHandle>> TdHandle::Alloc(std::shared_ptr<ContextHandle> context) {
  ibv_td_init_attr attr{};
  errno = 0;
  auto td = FromPtr("ibv_alloc_td", ibv_alloc_td(context->get(), &attr));
  if (td.error) return td.error;
  return std::shared_ptr<TdHandle>(new TdHandle(std::move(context), td.value));
}

VerbError TdHandle::Destroy() {
  if (td_ == nullptr) return {};
  VerbError error = FromDestroy(FromRet("ibv_dealloc_td", ibv_dealloc_td(td_)));
  if (error) return error;
  td_ = nullptr;
  context_.Reset();
  return {};
}

}  // namespace rdma
