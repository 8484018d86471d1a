#pragma once

#include <infiniband/verbs.h>

#include <list>
#include <memory>

#include "handles/qp_handle.h"

namespace rdma {

// Counters that flows count into: struct ibv_counters.
class CountersHandle final : public Owner {
 public:
  static Outcome<std::shared_ptr<CountersHandle>> Create(std::shared_ptr<ContextHandle> context);
  ~CountersHandle() override { Destroy(); }
  VerbError Destroy() override;

  ibv_counters* get() const { return counters_; }

 private:
  CountersHandle(std::shared_ptr<ContextHandle> context, ibv_counters* counters)
      : context_(std::move(context)), counters_(counters) {}
  Parent<ContextHandle> context_;
  ibv_counters* counters_;
};

// A flow steering rule: struct ibv_flow.
class FlowHandle final : public Owner {
 public:
  // `counters` are those that the specs of `attr` point to.
  static Outcome<std::shared_ptr<FlowHandle>> Create(std::shared_ptr<QpHandle> qp, ibv_flow_attr* attr,
                                                     const std::list<std::shared_ptr<CountersHandle>>& counters);
  ~FlowHandle() override { Destroy(); }
  VerbError Destroy() override;

  ibv_flow* get() const { return flow_; }

 private:
  FlowHandle(std::shared_ptr<QpHandle> qp, ibv_flow* flow) : qp_(std::move(qp)), flow_(flow) {}
  Parent<QpHandle> qp_;
  std::list<Parent<CountersHandle>> counters_;
  ibv_flow* flow_;
};

}  // namespace rdma
