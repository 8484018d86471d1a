#include "handles/wq_handle.h"

#include <vector>

namespace rdma {

Outcome<std::shared_ptr<WqHandle>> WqHandle::Create(std::shared_ptr<PdHandle> pd, std::shared_ptr<CqHandle> cq,
                                                    ibv_wq_init_attr* attr) {
  attr->wq_type = IBV_WQT_RQ;
  attr->pd = pd->get();
  attr->cq = cq->get();
  errno = 0;
  auto wq = FromPtr("ibv_create_wq", ibv_create_wq(pd->get()->context, attr));
  if (wq.error) return wq.error;
  return std::shared_ptr<WqHandle>(new WqHandle(std::move(pd), std::move(cq), wq.value));
}

VerbError WqHandle::Destroy() {
  if (wq_ == nullptr) return {};
  errno = 0;
  VerbError error = FromDestroy(FromRet("ibv_destroy_wq", ibv_destroy_wq(wq_)));
  if (error) return error;
  wq_ = nullptr;
  pd_.Reset();
  cq_.Reset();
  return {};
}

Outcome<std::shared_ptr<RwqIndTableHandle>> RwqIndTableHandle::Create(std::shared_ptr<ContextHandle> context,
                                                                      uint32_t log_size,
                                                                      const std::list<std::shared_ptr<WqHandle>>& wqs) {
  std::vector<ibv_wq*> entries;
  entries.reserve(wqs.size());
  for (const auto& wq : wqs) entries.push_back(wq->get());
  ibv_rwq_ind_table_init_attr attr{};
  attr.log_ind_tbl_size = log_size;
  attr.ind_tbl = entries.data();
  errno = 0;
  auto table = FromPtr("ibv_create_rwq_ind_table", ibv_create_rwq_ind_table(context->get(), &attr));
  if (table.error) return table.error;
  std::shared_ptr<RwqIndTableHandle> handle(new RwqIndTableHandle(std::move(context), table.value));
  for (const auto& wq : wqs) handle->wqs_.emplace_back(wq);
  return handle;
}

VerbError RwqIndTableHandle::Destroy() {
  if (table_ == nullptr) return {};
  errno = 0;
  VerbError error = FromDestroy(FromRet("ibv_destroy_rwq_ind_table", ibv_destroy_rwq_ind_table(table_)));
  if (error) return error;
  table_ = nullptr;
  context_.Reset();
  wqs_.clear();
  return {};
}

}  // namespace rdma
