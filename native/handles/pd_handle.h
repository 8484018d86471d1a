#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "handles/context_handle.h"

namespace rdma {

// A protection domain: struct ibv_pd.
class PdHandle final : public Owner {
 public:
  static Outcome<std::shared_ptr<PdHandle>> Alloc(std::shared_ptr<ContextHandle> context);
  ~PdHandle() override { Destroy(); }
  VerbError Destroy() override;

  ibv_pd* get() const { return pd_; }

 private:
  PdHandle(std::shared_ptr<ContextHandle> context, ibv_pd* pd) : context_(std::move(context)), pd_(pd) {}
  Parent<ContextHandle> context_;
  ibv_pd* pd_;
};

}  // namespace rdma
