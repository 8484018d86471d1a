#include "handles/pd_handle.h"

namespace rdma {

Outcome<std::shared_ptr<PdHandle>> PdHandle::Alloc(std::shared_ptr<ContextHandle> context) {
  errno = 0;
  auto pd = FromPtr("ibv_alloc_pd", ibv_alloc_pd(context->get()));
  if (pd.error) return pd.error;
  return std::shared_ptr<PdHandle>(new PdHandle(std::move(context), pd.value));
}

Outcome<std::shared_ptr<PdHandle>> PdHandle::AllocParent(std::shared_ptr<ContextHandle> context,
                                                         std::shared_ptr<PdHandle> pd, std::shared_ptr<TdHandle> td) {
  ibv_parent_domain_init_attr attr{};
  attr.pd = pd->get();
  attr.td = td ? td->get() : nullptr;
  errno = 0;
  auto made = FromPtr("ibv_alloc_parent_domain", ibv_alloc_parent_domain(context->get(), &attr));
  if (made.error) return made.error;
  std::shared_ptr<PdHandle> parent(new PdHandle(std::move(context), made.value));
  parent->inner_.Replace(std::move(pd));
  parent->td_.Replace(std::move(td));
  return parent;
}

Outcome<std::shared_ptr<PdHandle>> PdHandle::Import(std::shared_ptr<ContextHandle> context, uint32_t handle) {
  errno = 0;
  auto pd = FromPtr("ibv_import_pd", ibv_import_pd(context->get(), handle));
  if (pd.error) return pd.error;
  return std::shared_ptr<PdHandle>(new PdHandle(std::move(context), pd.value, true));
}

VerbError PdHandle::Destroy() {
  if (pd_ == nullptr) return {};
  if (imported_) {
    ibv_unimport_pd(pd_);
  } else {
    VerbError error = FromDestroy(FromRet("ibv_dealloc_pd", ibv_dealloc_pd(pd_)));
    if (error) return error;
  }
  pd_ = nullptr;
  inner_.Reset();
  td_.Reset();
  context_.Reset();
  return {};
}

}  // namespace rdma
