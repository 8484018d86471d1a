#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "handles/td_handle.h"

namespace rdma {

// A protection domain: struct ibv_pd. One that was made of another one, with a thread domain or without, needs both.
class PdHandle final : public Owner {
 public:
  static Outcome<std::shared_ptr<PdHandle>> Alloc(std::shared_ptr<ContextHandle> context);
  static Outcome<std::shared_ptr<PdHandle>> AllocParent(std::shared_ptr<ContextHandle> context,
                                                        std::shared_ptr<PdHandle> pd, std::shared_ptr<TdHandle> td);
  // The domain that another context of the same device file has allocated; it deallocates it.
  static Outcome<std::shared_ptr<PdHandle>> Import(std::shared_ptr<ContextHandle> context, uint32_t handle);
  ~PdHandle() override { Destroy(); }
  VerbError Destroy() override;

  ibv_pd* get() const { return pd_; }

 private:
  PdHandle(std::shared_ptr<ContextHandle> context, ibv_pd* pd, bool imported = false)
      : context_(std::move(context)), inner_(nullptr), td_(nullptr), pd_(pd), imported_(imported) {}
  Parent<ContextHandle> context_;
  Parent<PdHandle> inner_;
  Parent<TdHandle> td_;
  ibv_pd* pd_;
  const bool imported_;
};

}  // namespace rdma
