#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "handles/pd_handle.h"

namespace rdma {

// A shared receive queue: struct ibv_srq.
class SrqHandle final : public Owner {
 public:
  // Leaves the granted capacities in `attr`.
  static Outcome<std::shared_ptr<SrqHandle>> Create(std::shared_ptr<PdHandle> pd, ibv_srq_init_attr* attr);
  ~SrqHandle() override { Destroy(); }
  VerbError Destroy() override;

  ibv_srq* get() const { return srq_; }

 private:
  SrqHandle(std::shared_ptr<PdHandle> pd, ibv_srq* srq) : pd_(std::move(pd)), srq_(srq) {}
  Parent<PdHandle> pd_;
  ibv_srq* srq_;
};

}  // namespace rdma
