#include "datapath/work_queue.h"

namespace rdma {

void WorkQueue::Grow(uint32_t size, int32_t* words) {
  auto* const in_use = reinterpret_cast<uint8_t*>(words + kQueueWords);
  std::copy_n(words_, kQueueWords, words);
  std::copy_n(in_use_, mask_ + 1, in_use);
  for (uint32_t slot = size; slot > mask_ + 1; slot--) free_.push_back(slot - 1);
  wr_ids_.resize(size);
  mask_ = size - 1;
  words_ = words;
  in_use_ = in_use;
  generation_++;
}

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
