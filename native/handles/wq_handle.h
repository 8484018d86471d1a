#pragma once

#include <infiniband/verbs.h>

#include <list>
#include <memory>

#include "handles/cq_handle.h"
#include "handles/pd_handle.h"

namespace rdma {

// A receive work queue: struct ibv_wq.
class WqHandle final : public Owner {
 public:
  // Fills in the parents of `attr`, and leaves the granted capacities in it.
  static Outcome<std::shared_ptr<WqHandle>> Create(std::shared_ptr<PdHandle> pd, std::shared_ptr<CqHandle> cq,
                                                   ibv_wq_init_attr* attr);
  ~WqHandle() override { Destroy(); }
  VerbError Destroy() override;

  ibv_wq* get() const { return wq_; }

 private:
  WqHandle(std::shared_ptr<PdHandle> pd, std::shared_ptr<CqHandle> cq, ibv_wq* wq)
      : pd_(std::move(pd)), cq_(std::move(cq)), wq_(wq) {}
  Parent<PdHandle> pd_;
  Parent<CqHandle> cq_;
  ibv_wq* wq_;
};

// A table of receive work queues, which packets are spread over: struct ibv_rwq_ind_table.
class RwqIndTableHandle final : public Owner {
 public:
  // `wqs`: 2^log_size of them.
  static Outcome<std::shared_ptr<RwqIndTableHandle>> Create(std::shared_ptr<ContextHandle> context, uint32_t log_size,
                                                            const std::list<std::shared_ptr<WqHandle>>& wqs);
  ~RwqIndTableHandle() override { Destroy(); }
  VerbError Destroy() override;

  ibv_rwq_ind_table* get() const { return table_; }

 private:
  RwqIndTableHandle(std::shared_ptr<ContextHandle> context, ibv_rwq_ind_table* table)
      : context_(std::move(context)), table_(table) {}
  Parent<ContextHandle> context_;
  std::list<Parent<WqHandle>> wqs_;
  ibv_rwq_ind_table* table_;
};

}  // namespace rdma
