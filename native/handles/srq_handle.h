#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "handles/cq_handle.h"
#include "handles/pd_handle.h"
#include "handles/xrcd_handle.h"

namespace rdma {

// What a shared receive queue needs; the latter two may be null.
struct SrqParents {
  std::shared_ptr<PdHandle> pd;
  std::shared_ptr<XrcdHandle> xrcd;
  std::shared_ptr<CqHandle> cq;
};

// A shared receive queue: struct ibv_srq.
class SrqHandle final : public Owner {
 public:
  // Fills in the parents of `attr`, and leaves the granted capacities in it. Its type decides on the verb.
  static Outcome<std::shared_ptr<SrqHandle>> Create(SrqParents parents, ibv_srq_init_attr_ex* attr);
  ~SrqHandle() override { Destroy(); }
  VerbError Destroy() override;

  ibv_srq* get() const { return srq_; }

 private:
  SrqHandle(SrqParents parents, ibv_srq* srq)
      : pd_(std::move(parents.pd)), xrcd_(std::move(parents.xrcd)), cq_(std::move(parents.cq)), srq_(srq) {}
  Parent<PdHandle> pd_;
  Parent<XrcdHandle> xrcd_;
  Parent<CqHandle> cq_;
  ibv_srq* srq_;
};

}  // namespace rdma
