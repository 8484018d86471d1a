// What is in flight on one send or receive queue. The wr_id that the device carries is ours: which queue (high word)
// and which request of it (low word, a sequence number). So a completion finds the caller's wrId by two reads, whatever
// wrId the caller chose, and one of a queue pair that is gone is recognised.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace rdma {

// Words that TypeScript reads: sequence numbers, which wrap around, of the oldest request in flight and of the next.
enum QueueWord { kHead = 0, kTail = 1, kQueueWords = 2 };

class WorkQueue {
 public:
  // `words` are the queue's in shared memory; `size` is a power of two, at least its capacity.
  WorkQueue(uint32_t id, uint32_t size, int32_t* words) : id_(id), words_(words), wr_ids_(size), mask_(size - 1) {
    // Shortly before the wrap, so that no queue lives without passing it.
    words_[kHead] = words_[kTail] = -64;
  }

  uint32_t id() const { return id_; }

  // Numbers `count` requests that are about to be posted.
  template <class Wr>
  void Number(Wr* wr, uint32_t count) const {
    const uint64_t queue = uint64_t{id_} << 32;
    const uint32_t first = tail();
    for (uint32_t i = 0; i < count; i++) wr[i].wr_id = queue | (first + i);
  }

  // `count` requests were posted.
  void Push(const double* wr_ids, uint32_t count) {
    const uint32_t first = tail();
    const uint32_t slot = first & mask_;
    const uint32_t before_end = std::min(count, mask_ + 1 - slot);
    std::copy_n(wr_ids, before_end, &wr_ids_[slot]);
    std::copy_n(wr_ids + before_end, count - before_end, wr_ids_.data());
    words_[kTail] = static_cast<int32_t>(first + count);
  }

  // A request was completed, and with it, since a queue completes in order, the unsignalled ones in front of it. False
  // for one that is not in flight.
  bool Complete(uint32_t sequence, double* wr_id) {
    const uint32_t head = static_cast<uint32_t>(words_[kHead]);
    if (sequence - head >= tail() - head) return false;
    *wr_id = wr_ids_[sequence & mask_];
    words_[kHead] = static_cast<int32_t>(sequence + 1);
    return true;
  }

 private:
  uint32_t tail() const { return static_cast<uint32_t>(words_[kTail]); }

  const uint32_t id_;
  int32_t* const words_;
  std::vector<double> wr_ids_;
  const uint32_t mask_;
};

// The queues of an environment, by the place in their id.
class WorkQueues {
 public:
  // A new queue's id: a place, and a generation that tells it from earlier queues there. False when there are too many.
  bool Reserve(uint32_t* id);
  void Enter(std::shared_ptr<WorkQueue> queue) { places_[queue->id() & kPlaceMask] = std::move(queue); }
  void Leave(uint32_t id);

  // Null when it is gone.
  WorkQueue* Find(uint32_t id) const {
    const uint32_t place = id & kPlaceMask;
    if (place >= places_.size()) return nullptr;
    WorkQueue* queue = places_[place].get();
    return queue != nullptr && queue->id() == id ? queue : nullptr;
  }
  std::shared_ptr<WorkQueue> Share(uint32_t id) const {
    return Find(id) == nullptr ? nullptr : places_[id & kPlaceMask];
  }

 private:
  static constexpr uint32_t kPlaceBits = 20;
  static constexpr uint32_t kPlaceMask = (1U << kPlaceBits) - 1;
  std::vector<std::shared_ptr<WorkQueue>> places_;
  std::vector<uint32_t> free_;
};

}  // namespace rdma
