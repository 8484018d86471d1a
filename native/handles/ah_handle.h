#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <vector>

#include "handles/pd_handle.h"

namespace rdma {

// The address handles of an environment, by number: a work request names one by a number in shared memory, never by a
// pointer.
class AhTable {
 public:
  uint32_t Enter(ibv_ah* ah);
  void Leave(uint32_t number);
  // Null when it is gone.
  ibv_ah* Find(uint32_t number) const { return number < handles_.size() ? handles_[number] : nullptr; }

 private:
  std::vector<ibv_ah*> handles_;
  std::vector<uint32_t> free_;
};

// An address handle: struct ibv_ah.
class AhHandle final : public Owner {
 public:
  static Outcome<std::shared_ptr<AhHandle>> Create(std::shared_ptr<PdHandle> pd, ibv_ah_attr* attr,
                                                   std::shared_ptr<AhTable> table);
  ~AhHandle() override { Destroy(); }
  VerbError Destroy() override;

  uint32_t number() const { return number_; }

 private:
  AhHandle(std::shared_ptr<PdHandle> pd, ibv_ah* ah, std::shared_ptr<AhTable> table)
      : pd_(std::move(pd)), ah_(ah), table_(std::move(table)), number_(table_->Enter(ah)) {}
  Parent<PdHandle> pd_;
  ibv_ah* ah_;
  std::shared_ptr<AhTable> table_;
  const uint32_t number_;
};

}  // namespace rdma
