#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "handles/pd_handle.h"

namespace rdma {

// A memory window: struct ibv_mw.
class MwHandle final : public Owner {
 public:
  static Outcome<std::shared_ptr<MwHandle>> Alloc(std::shared_ptr<PdHandle> pd, ibv_mw_type type);
  ~MwHandle() override { Destroy(); }
  VerbError Destroy() override;

  ibv_mw* get() const { return mw_; }

 private:
  MwHandle(std::shared_ptr<PdHandle> pd, ibv_mw* mw) : pd_(std::move(pd)), mw_(mw) {}
  Parent<PdHandle> pd_;
  ibv_mw* mw_;
};

}  // namespace rdma
