#include "handles/flow_handle.h"

namespace rdma {

Outcome<std::shared_ptr<CountersHandle>> CountersHandle::Create(std::shared_ptr<ContextHandle> context) {
  ibv_counters_init_attr attr{};
  errno = 0;
  auto counters = FromPtr("ibv_create_counters", ibv_create_counters(context->get(), &attr));
  if (counters.error) return counters.error;
  return std::shared_ptr<CountersHandle>(new CountersHandle(std::move(context), counters.value));
}

VerbError CountersHandle::Destroy() {
  if (counters_ == nullptr) return {};
  errno = 0;
  VerbError error = FromDestroy(FromRet("ibv_destroy_counters", ibv_destroy_counters(counters_)));
  if (error) return error;
  counters_ = nullptr;
  context_.Reset();
  return {};
}

Outcome<std::shared_ptr<FlowHandle>> FlowHandle::Create(std::shared_ptr<QpHandle> qp, ibv_flow_attr* attr,
                                                        const std::list<std::shared_ptr<CountersHandle>>& counters) {
  errno = 0;
  auto flow = FromPtr("ibv_create_flow", ibv_create_flow(qp->get(), attr));
  if (flow.error) return flow.error;
  std::shared_ptr<FlowHandle> handle(new FlowHandle(std::move(qp), flow.value));
  for (const auto& each : counters) handle->counters_.emplace_back(each);
  return handle;
}

VerbError FlowHandle::Destroy() {
  if (flow_ == nullptr) return {};
  errno = 0;
  VerbError error = FromDestroy(FromRet("ibv_destroy_flow", ibv_destroy_flow(flow_)));
  if (error) return error;
  flow_ = nullptr;
  qp_.Reset();
  counters_.clear();
  return {};
}

}  // namespace rdma
