#include "handles/ah_handle.h"

namespace rdma {

uint32_t AhTable::Enter(ibv_ah* ah) {
  if (free_.empty()) {
    handles_.push_back(ah);
    return static_cast<uint32_t>(handles_.size() - 1);
  }
  const uint32_t number = free_.back();
  free_.pop_back();
  handles_[number] = ah;
  return number;
}

void AhTable::Leave(uint32_t number) {
  handles_[number] = nullptr;
  free_.push_back(number);
}

Outcome<std::shared_ptr<AhHandle>> AhHandle::Create(std::shared_ptr<PdHandle> pd, ibv_ah_attr* attr,
                                                    std::shared_ptr<AhTable> table) {
  errno = 0;
  auto ah = FromPtr("ibv_create_ah", ibv_create_ah(pd->get(), attr));
  if (ah.error) return ah.error;
  return std::shared_ptr<AhHandle>(new AhHandle(std::move(pd), ah.value, std::move(table)));
}

VerbError AhHandle::Destroy() {
  if (ah_ == nullptr) return {};
  VerbError error = FromDestroy(FromRet("ibv_destroy_ah", ibv_destroy_ah(ah_)));
  if (error) return error;
  ah_ = nullptr;
  table_->Leave(number_);
  return {};
}

}  // namespace rdma
