#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "handles/context_handle.h"

namespace rdma {

// A thread domain: struct ibv_td.
class TdHandle final : public Owner {
 public:
  static Outcome<std::shared_ptr<TdHandle>> Alloc(std::shared_ptr<ContextHandle> context);
  ~TdHandle() override { Destroy(); }
  VerbError Destroy() override;

  ibv_td* get() const { return td_; }

 private:
  TdHandle(std::shared_ptr<ContextHandle> context, ibv_td* td) : context_(std::move(context)), td_(td) {}
  Parent<ContextHandle> context_;
  ibv_td* td_;
};

}  // namespace rdma
