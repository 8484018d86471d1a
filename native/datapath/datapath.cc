// Posting and polling: ibv_post_send(3), ibv_post_recv(3), ibv_poll_cq(3).
#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <type_traits>

#include "core/args.h"
#include "datapath/completion_ring.h"
#include "datapath/doorbell.h"
#include "datapath/extended_post.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

// Beyond what any provider grants: rdma_rxe has 2^20 requests.
constexpr uint32_t kMaxCapacity = 1U << 22;

inline int PostClassic(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) { return ibv_post_send(qp, wr, bad); }
inline int PostRecv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) { return ibv_post_recv(qp, wr, bad); }
inline int PostWqRecv(ibv_wq* wq, ibv_recv_wr* wr, ibv_recv_wr** bad) { return ibv_post_wq_recv(wq, wr, bad); }
inline int PostSrqRecv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) { return ibv_post_srq_recv(srq, wr, bad); }

// What is numbered by a mask has a power of two of slots.
uint32_t SlotsFor(size_t capacity) {
  uint32_t size = 1;
  while (size < capacity) size *= 2;
  return size;
}

// (capacity, inOrder): the queue's words, and its id. It goes with them, or when the queue pair is closed.
Napi::Value CreateWorkQueue(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  const size_t capacity = CountArg(info, 0, "capacity", kMaxCapacity);
  const uint32_t size = SlotsFor(capacity);
  auto doorbell = Environment::Of(env).doorbell;
  uint32_t id = 0;
  if (!doorbell->queues.Reserve(&id)) throw Napi::RangeError::New(env, "Too many queues in one thread");
  const bool in_order = info[1].ToBoolean();
  auto memory = Napi::ArrayBuffer::New(env, kQueueWords * sizeof(int32_t) + (in_order ? 0 : size));
  doorbell->queues.Enter(std::make_shared<WorkQueue>(id, static_cast<uint32_t>(capacity), size, in_order,
                                                     static_cast<int32_t*>(memory.Data())));
  memory.AddFinalizer([doorbell, id](Napi::Env, void*) { doorbell->queues.Leave(id, 0); }, static_cast<void*>(nullptr));
  Napi::Object object = Napi::Object::New(env);
  object.Set("memory", memory);
  SetNumber(object, "id", id);
  return object;
}

// (id, capacity) of a queue that does not complete in order: its words, when they are others now; else null.
Napi::Value ResizeWorkQueue(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto doorbell = Environment::Of(env).doorbell;
  const uint32_t id = Uint32Arg(info, 0, "id");
  const auto capacity = static_cast<uint32_t>(CountArg(info, 1, "capacity", kMaxCapacity));
  WorkQueue* const queue = doorbell->queues.Find(id);
  if (queue == nullptr || !queue->is_shared()) ThrowType(env, "id is not of a shared queue");
  if (capacity < queue->in_flight()) throw Napi::RangeError::New(env, "More are in flight");
  if (capacity <= queue->size()) {
    queue->SetCapacity(capacity);
    return env.Null();
  }
  const uint32_t size = SlotsFor(capacity);
  auto memory = Napi::ArrayBuffer::New(env, kQueueWords * sizeof(int32_t) + size);
  queue->Grow(size, static_cast<int32_t*>(memory.Data()));
  queue->SetCapacity(capacity);
  memory.AddFinalizer(
      [doorbell, id, generation = queue->generation()](Napi::Env, void*) { doorbell->queues.Leave(id, generation); },
      static_cast<void*>(nullptr));
  return memory;
}

// (id): nothing of what is in flight will complete.
Napi::Value ClearWorkQueue(const Napi::CallbackInfo& info) {
  WorkQueue* queue = Environment::Of(info.Env()).doorbell->queues.Find(Uint32Arg(info, 0, "id"));
  if (queue != nullptr) queue->Clear();
  return info.Env().Undefined();
}

// (id): completions of this queue that still come are not its any more.
Napi::Value DestroyWorkQueue(const Napi::CallbackInfo& info) {
  Environment::Of(info.Env()).doorbell->queues.Leave(Uint32Arg(info, 0, "id"));
  return info.Env().Undefined();
}

// A list of work requests of one queue. In shared memory: the requests, their scatter/gather elements, the caller's
// wrIds, and the numbers of the address handles of datagrams. `next` and `sg_list` are linked here once; TypeScript
// writes the rest. `Post` is the function that takes a list of them.
template <class Target, class Wr, auto Post>
class PostList final : public SharedList {
 public:
  // (target, capacity, maxSge, queueId, isDatagram)
  static Napi::Value Create(const Napi::CallbackInfo& info) {
    Napi::Env env = info.Env();
    auto target = HandleArg<Target>(info, 0);
    const size_t capacity = CountArg(info, 1, "capacity", kMaxCapacity);
    const size_t max_sge = CountArg(info, 2, "maxSge", kMaxSge);
    auto queue = Environment::Of(env).doorbell->queues.Share(Uint32Arg(info, 3, "queueId"));
    if (!queue) ThrowType(env, "queueId is not of a queue");
    const bool is_datagram = info[4].ToBoolean();
    auto memory = Napi::ArrayBuffer::New(env, capacity * (sizeof(Wr) + max_sge * sizeof(ibv_sge) + sizeof(double) +
                                                          (is_datagram ? sizeof(uint32_t) : 0)));
    std::unique_ptr<PostList> list(new PostList);
    list->wr_ = static_cast<Wr*>(memory.Data());
    auto* sge = reinterpret_cast<ibv_sge*>(list->wr_ + capacity);
    auto* wr_ids = reinterpret_cast<double*>(sge + capacity * max_sge);
    for (size_t i = 0; i < capacity; i++) {
      list->wr_[i].next = i + 1 < capacity ? &list->wr_[i + 1] : nullptr;
      list->wr_[i].sg_list = sge + i * max_sge;
    }
    list->target_ = std::move(target);
    list->queue_ = std::move(queue);
    list->wr_ids_ = wr_ids;
    list->capacity_ = static_cast<int32_t>(capacity);
    if (is_datagram) {
      list->ahs_ = Environment::Of(env).ahs;
      list->ah_numbers_ = reinterpret_cast<const uint32_t*>(wr_ids + capacity);
    }
    return Doorbell::Publish(memory, std::move(list));
  }

  // Posts the first `count` requests, as far as the queue has room. Leaves 0, the errno value, or kNewEra; and how many
  // were taken.
  void Ring(int32_t* words) override {
    const int32_t wanted = words[kCount];
    auto* const target = target_->get();
    words[kIndex] = 0;
    if (wanted < 1 || wanted > capacity_ || target == nullptr || !FindAddresses(static_cast<uint32_t>(wanted))) {
      words[kResult] = EBADF;
      return;
    }
    const uint32_t count = std::min(static_cast<uint32_t>(wanted), queue_->room());
    int32_t result = count < static_cast<uint32_t>(wanted) ? ENOMEM : 0;
    uint32_t taken = count;
    if (count > 0) {
      queue_->Number(wr_, count);
      Wr& last = wr_[count - 1];
      Wr* const next = last.next;
      last.next = nullptr;
      Wr* bad = nullptr;
      const int rc = Post(target, wr_, &bad);
      last.next = next;
      if (rc != 0) {
        // A provider that fails without naming a request has queued them all and failed at the doorbell.
        if (bad != nullptr) taken = static_cast<uint32_t>(bad - wr_);
        result = FromRet("", rc).err;
      }
      const bool is_new_era = queue_->Push(wr_ids_, taken);
      if (is_new_era && result == 0) result = kNewEra;
    }
    words[kResult] = result;
    words[kIndex] = static_cast<int32_t>(taken);
  }

 private:
  PostList() = default;

  // Puts the address handles into the requests of datagrams, and of DC initiators; false when one is gone.
  bool FindAddresses(uint32_t count) {
    if constexpr (std::is_same_v<Wr, ibv_send_wr>) {
      if (ah_numbers_ == nullptr) return true;
      const bool is_datagram = target_->get()->qp_type == IBV_QPT_UD;
      for (uint32_t i = 0; i < count; i++) {
        ibv_ah* const ah = ahs_->Find(ah_numbers_[i]);
        if (ah == nullptr) return false;
        if (is_datagram) {
          wr_[i].wr.ud.ah = ah;
        } else {
          wr_[i].bind_mw.mw = reinterpret_cast<ibv_mw*>(ah);  // see SetTarget() of extended_post.cc
        }
      }
    }
    return true;
  }

  std::shared_ptr<Target> target_;
  std::shared_ptr<WorkQueue> queue_;
  Wr* wr_ = nullptr;
  const double* wr_ids_ = nullptr;
  int32_t capacity_ = 0;
  std::shared_ptr<AhTable> ahs_;
  const uint32_t* ah_numbers_ = nullptr;
};

// Each way to post has lists of its own, so that none asks which it is.
Napi::Value CreateSendList(const Napi::CallbackInfo& info) {
  switch (HandleArg<QpHandle>(info, 0)->posting()) {
    case Posting::kExtended:
      return PostList<QpHandle, ibv_send_wr, PostExtended>::Create(info);
    case Posting::kExtendedRxe:
      return PostList<QpHandle, ibv_send_wr, PostExtendedRxe>::Create(info);
    default:
      return PostList<QpHandle, ibv_send_wr, PostClassic>::Create(info);
  }
}

// The completions that one poll of a queue found. In shared memory: the completions, and the callers' wrIds.
class WcRing final : public CompletionRing {
 public:
  // (cq, capacity)
  static Napi::Value Create(const Napi::CallbackInfo& info) {
    auto cq = HandleArg<CqHandle>(info, 0);
    const size_t capacity = CountArg(info, 1, "capacity", kMaxCapacity);
    auto memory = Napi::ArrayBuffer::New(info.Env(), capacity * (sizeof(ibv_wc) + sizeof(double)));
    auto* wc = static_cast<ibv_wc*>(memory.Data());
    return Doorbell::Publish(
        memory, std::unique_ptr<SharedList>(new WcRing(std::move(cq), Environment::Of(info.Env()).doorbell->queues, wc,
                                                       static_cast<int32_t>(capacity))));
  }

  // Polls for at most `count` completions. Leaves their number, or a negative value when ibv_poll_cq failed.
  void Ring(int32_t* words) override {
    const int32_t max = words[kCount];
    ibv_cq* const cq = cq_->get();
    if (max < 1 || max > capacity_ || cq == nullptr) {
      words[kResult] = -1;
      return;
    }
    int count = 0;
    int kept = 0;
    if (has_taken()) kept = GiveOut(max, wc_, wr_ids_, nullptr);
    if (kept > 0) {
      words[kResult] = kept;
      return;
    }
    do {
      count = ibv_poll_cq(cq, max, wc_);
      for (int i = 0; i < count; i++) {
        const uint64_t wr_id = wc_[i].wr_id;
        const auto id = static_cast<uint32_t>(wr_id >> 32);
        if (!last_ || last_->id() != id || last_->is_gone()) last_ = queues_.Share(id);
        WorkQueue* const queue = last_.get();
        // Some providers leave the completions of a destroyed queue pair in the queue; those are dropped on all.
        if (queue == nullptr || !queue->Complete(static_cast<uint32_t>(wr_id), &wr_ids_[kept])) continue;
        if (kept != i) wc_[kept] = wc_[i];
        kept++;
      }
      // Who finds nothing goes to sleep, so what was dropped must not look as if the queue were empty.
    } while (kept == 0 && count == max);
    words[kResult] = count < 0 ? count : kept;
  }

  void TakeIn() override {
    // What the last poll found is still read.
    std::array<ibv_wc, 32> wc{};
    int count = 0;
    do {
      count = ibv_poll_cq(cq_->get(), static_cast<int>(wc.size()), wc.data());
      for (int i = 0; i < count; i++) Take(wc[i], wc[i].qp_num);
    } while (count == static_cast<int>(wc.size()));
  }

 private:
  WcRing(std::shared_ptr<CqHandle> cq, const WorkQueues& queues, ibv_wc* wc, int32_t capacity)
      : CompletionRing(std::move(cq), queues),
        wc_(wc),
        wr_ids_(reinterpret_cast<double*>(wc + capacity)),
        capacity_(capacity) {}

  // That of the last completion: mostly the next one is of the same.
  std::shared_ptr<WorkQueue> last_;
  ibv_wc* wc_;
  double* wr_ids_;
  int32_t capacity_;
};

}  // namespace

void ExportDatapath(Napi::Object exports) {
  Environment::Of(exports.Env()).doorbell->Export(exports);
  Export(exports, "createWorkQueue", CreateWorkQueue);
  Export(exports, "resizeWorkQueue", ResizeWorkQueue);
  Export(exports, "clearWorkQueue", ClearWorkQueue);
  Export(exports, "destroyWorkQueue", DestroyWorkQueue);
  Export(exports, "createSendList", CreateSendList);
  Export(exports, "createRecvList", PostList<QpHandle, ibv_recv_wr, PostRecv>::Create);
  Export(exports, "createWqRecvList", PostList<WqHandle, ibv_recv_wr, PostWqRecv>::Create);
  Export(exports, "createSrqRecvList", PostList<SrqHandle, ibv_recv_wr, PostSrqRecv>::Create);
  Export(exports, "createWcRing", WcRing::Create);
}

}  // namespace rdma
