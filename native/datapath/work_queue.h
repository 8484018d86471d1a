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
  // `words` are the queue's in shared memory; `size` is a power of two, at least its capacity. A queue that does not
  // complete in order (shared receives) numbers its requests by free slots, and says in a byte each which are in
  // flight.
  WorkQueue(uint32_t id, uint32_t capacity, uint32_t size, bool in_order, int32_t* words)
      : id_(id),
        capacity_(capacity),
        mask_(size - 1),
        words_(words),
        in_use_(in_order ? nullptr : reinterpret_cast<uint8_t*>(words + kQueueWords)),
        wr_ids_(size) {
    words_[kHead] = words_[kTail] = static_cast<int32_t>(tail_);
    if (in_order) return;
    for (uint32_t slot = size; slot > 0; slot--) free_.push_back(slot - 1);
  }

  bool is_shared() const { return in_use_ != nullptr; }
  // Slots that there are.
  uint32_t size() const { return mask_ + 1; }
  // Not less than are in flight.
  void SetCapacity(uint32_t capacity) { capacity_ = capacity; }
  // Moves a shared one to words for more slots. What is in flight keeps its slot.
  void Grow(uint32_t size, int32_t* words);
  // Which words it has: a number that goes up when it moves.
  uint32_t generation() const { return generation_; }

  uint32_t id() const { return id_; }
  // Whether its words may be gone: who kept a share must ask first.
  bool is_gone() const { return is_gone_; }
  void Leave() { is_gone_ = true; }

  // Numbers `count` requests that are about to be posted: no more than fit the queue.
  template <class Wr>
  void Number(Wr* wr, uint32_t count) const {
    const uint64_t queue = uint64_t{id_} << 32;
    if (in_use_ == nullptr) {
      const uint32_t first = tail_;
      for (uint32_t i = 0; i < count; i++) wr[i].wr_id = queue | (first + i);
    } else {
      for (uint32_t i = 0; i < count; i++) wr[i].wr_id = queue | free_[free_.size() - 1 - i];
    }
  }

  uint32_t in_flight() const { return tail_ - head_; }
  // How many requests there is room for.
  uint32_t room() const { return capacity_ - in_flight(); }

  // `count` requests were posted. True now and then: when what is known of them by their numbers must be begun anew, so
  // that no comparison of two numbers is of ones too far apart.
  bool Push(const double* wr_ids, uint32_t count) {
    const uint32_t first = tail_;
    tail_ = first + count;
    words_[kTail] = static_cast<int32_t>(tail_);
    if (in_use_ == nullptr) {
      const uint32_t slot = first & mask_;
      const uint32_t before_end = std::min(count, mask_ + 1 - slot);
      std::copy_n(wr_ids, before_end, &wr_ids_[slot]);
      std::copy_n(wr_ids + before_end, count - before_end, wr_ids_.data());
      return ((first ^ tail_) & ~kEra) != 0;
    }
    for (uint32_t i = 0; i < count; i++) {
      const uint32_t slot = free_.back();
      free_.pop_back();
      wr_ids_[slot] = wr_ids[i];
      in_use_[slot] = 1;
    }
    return false;
  }

  // Nothing that is in flight will complete: the queue pair was reset.
  void Clear() {
    head_ = tail_;
    words_[kHead] = words_[kTail];
  }

  // A request was completed, and with it, where a queue completes in order, the unsignalled ones in front of it. False
  // for one that is not in flight.
  bool Complete(uint32_t number, double* wr_id) {
    if (in_use_ != nullptr) {
      if (number > mask_ || in_use_[number] == 0) return false;
      in_use_[number] = 0;
      free_.push_back(number);
      head_++;
    } else {
      if (number - head_ >= tail_ - head_) return false;
      head_ = number + 1;
    }
    words_[kHead] = static_cast<int32_t>(head_);
    *wr_id = wr_ids_[number & mask_];
    return true;
  }

 private:
  // Numbers of one era can be compared, and those of the next with them.
  static constexpr uint32_t kEra = (1U << 29) - 1;

  const uint32_t id_;
  uint32_t capacity_;
  uint32_t mask_;
  uint32_t generation_ = 0;
  // Shortly before the wrap, so that no queue lives without passing it. The words follow.
  uint32_t head_ = static_cast<uint32_t>(-64);
  uint32_t tail_ = static_cast<uint32_t>(-64);
  bool is_gone_ = false;
  int32_t* words_;
  uint8_t* in_use_;
  std::vector<double> wr_ids_;
  std::vector<uint32_t> free_;
};

// The queues of an environment, by the place in their id.
class WorkQueues {
 public:
  // A new queue's id: a place, and a generation that tells it from earlier queues there. False when there are too many.
  bool Reserve(uint32_t* id);
  void Enter(std::shared_ptr<WorkQueue> queue) { places_[queue->id() & kPlaceMask] = std::move(queue); }
  void Leave(uint32_t id);
  // The words of that generation were collected.
  void Leave(uint32_t id, uint32_t generation) {
    const WorkQueue* const queue = Find(id);
    if (queue != nullptr && queue->generation() == generation) Leave(id);
  }

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
