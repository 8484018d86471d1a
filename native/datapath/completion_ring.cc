#include "datapath/completion_ring.h"

#include <algorithm>

namespace rdma {

CompletionRing::CompletionRing(std::shared_ptr<CqHandle> cq, const WorkQueues& queues)
    : cq_(std::move(cq)), queues_(queues) {
  cq_->SetPoller(this);
}

CompletionRing::~CompletionRing() {
  if (cq_->poller() == this) cq_->SetPoller(nullptr);
}

void CompletionRing::Forget(uint32_t qp_num) {
  const auto is_gone = [this, qp_num](const Taken& taken) {
    if (taken.qp_num != qp_num) return false;
    double wr_id = 0;
    WorkQueue* const queue = queues_.Find(static_cast<uint32_t>(taken.wc.wr_id >> 32));
    if (queue != nullptr) queue->Complete(static_cast<uint32_t>(taken.wc.wr_id), &wr_id);
    return true;
  };
  taken_.erase(std::remove_if(taken_.begin(), taken_.end(), is_gone), taken_.end());
}

int CompletionRing::GiveOut(int32_t max, ibv_wc* wc, double* wr_ids, WcExtra* extra) {
  int count = 0;
  for (; count < max && !taken_.empty(); taken_.pop_front()) {
    const Taken& taken = taken_.front();
    WorkQueue* const queue = queues_.Find(static_cast<uint32_t>(taken.wc.wr_id >> 32));
    if (queue == nullptr || !queue->Complete(static_cast<uint32_t>(taken.wc.wr_id), &wr_ids[count])) continue;
    wc[count] = taken.wc;
    if (extra != nullptr) extra[count] = taken.extra;
    count++;
  }
  return count;
}

}  // namespace rdma
