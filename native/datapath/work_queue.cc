#include "datapath/work_queue.h"

namespace rdma {

bool WorkQueues::Reserve(uint32_t* id) {
  if (free_.empty()) {
    if (places_.size() > kPlaceMask) return false;
    *id = static_cast<uint32_t>(places_.size());
    places_.emplace_back();
    return true;
  }
  // The place that has been free for longest, with its next generation: 4096 of them before one repeats.
  *id = free_.front() + (1U << kPlaceBits);
  free_.erase(free_.begin());
  return true;
}

void WorkQueues::Leave(uint32_t id) {
  if (Find(id) == nullptr) return;
  places_[id & kPlaceMask]->Leave();
  places_[id & kPlaceMask].reset();
  free_.push_back(id);
}

}  // namespace rdma
