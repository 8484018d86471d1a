// Posting and polling: ibv_post_send(3), ibv_post_recv(3), ibv_poll_cq(3).
#include <infiniband/verbs.h>

#include "core/args.h"
#include "datapath/doorbell.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

inline int PostVerb(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) { return ibv_post_send(qp, wr, bad); }
inline int PostVerb(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) { return ibv_post_recv(qp, wr, bad); }

// A list of work requests of one queue pair. `next` and `sg_list` are linked here once; TypeScript writes the rest.
template <class Wr>
class PostList final : public SharedList {
 public:
  // (qp, capacity, maxSge, queueId)
  static Napi::Value Create(const Napi::CallbackInfo& info) {
    auto qp = HandleArg<QpHandle>(info, 0);
    const size_t capacity = Uint32Arg(info, 1, "capacity");
    const size_t max_sge = Uint32Arg(info, 2, "maxSge");
    auto memory = Napi::ArrayBuffer::New(info.Env(), capacity * (sizeof(Wr) + max_sge * sizeof(ibv_sge)));
    auto* wr = static_cast<Wr*>(memory.Data());
    auto* sge = reinterpret_cast<ibv_sge*>(wr + capacity);
    for (size_t i = 0; i < capacity; i++) {
      wr[i].next = i + 1 < capacity ? &wr[i + 1] : nullptr;
      wr[i].sg_list = sge + i * max_sge;
    }
    return Doorbell::Publish(
        memory, std::unique_ptr<SharedList>(
                    new PostList(std::move(qp), wr, static_cast<int32_t>(capacity), Uint32Arg(info, 3, "queueId"))));
  }

  // Posts the first `count` requests, numbered from `sequence` on: wr_id is the queue and that number. Leaves 0 or the
  // errno value, and how many were taken.
  void Ring(int32_t* words) override {
    const int32_t count = words[kCount];
    ibv_qp* const qp = qp_->get();
    if (count < 1 || count > capacity_ || qp == nullptr) {
      words[kResult] = EBADF;
      words[kIndex] = 0;
      return;
    }
    const auto sequence = static_cast<uint32_t>(words[kSequence]);
    for (int32_t i = 0; i < count; i++) wr_[i].wr_id = queue_id_ | (sequence + static_cast<uint32_t>(i));
    Wr& last = wr_[count - 1];
    Wr* const next = last.next;
    last.next = nullptr;
    Wr* bad = nullptr;
    const int rc = PostVerb(qp, wr_, &bad);
    last.next = next;
    words[kResult] = 0;
    words[kIndex] = count;
    if (rc == 0) return;
    words[kResult] = FromRet("", rc).err;
    // A provider that fails without naming a request has queued them all and failed at the doorbell.
    if (bad != nullptr) words[kIndex] = static_cast<int32_t>(bad - wr_);
  }

 private:
  PostList(std::shared_ptr<QpHandle> qp, Wr* wr, int32_t capacity, uint32_t queue_id)
      : qp_(std::move(qp)), wr_(wr), capacity_(capacity), queue_id_(uint64_t{queue_id} << 32) {}

  std::shared_ptr<QpHandle> qp_;
  Wr* wr_;
  int32_t capacity_;
  uint64_t queue_id_;
};

// The completions that one poll of a queue found.
class WcRing final : public SharedList {
 public:
  // (cq, capacity)
  static Napi::Value Create(const Napi::CallbackInfo& info) {
    auto cq = HandleArg<CqHandle>(info, 0);
    const size_t capacity = Uint32Arg(info, 1, "capacity");
    auto memory = Napi::ArrayBuffer::New(info.Env(), capacity * sizeof(ibv_wc));
    auto* wc = static_cast<ibv_wc*>(memory.Data());
    return Doorbell::Publish(
        memory, std::unique_ptr<SharedList>(new WcRing(std::move(cq), wc, static_cast<int32_t>(capacity))));
  }

  // Polls for at most `count` completions. Leaves their number, or a negative value when ibv_poll_cq failed.
  void Ring(int32_t* words) override {
    const int32_t max = words[kCount];
    ibv_cq* const cq = cq_->get();
    words[kResult] = max < 1 || max > capacity_ || cq == nullptr ? -1 : ibv_poll_cq(cq, max, wc_);
  }

 private:
  WcRing(std::shared_ptr<CqHandle> cq, ibv_wc* wc, int32_t capacity)
      : cq_(std::move(cq)), wc_(wc), capacity_(capacity) {}

  std::shared_ptr<CqHandle> cq_;
  ibv_wc* wc_;
  int32_t capacity_;
};

}  // namespace

void ExportDatapath(Napi::Object exports) {
  Environment::Of(exports.Env()).doorbell->Export(exports);
  Export(exports, "createSendList", PostList<ibv_send_wr>::Create);
  Export(exports, "createRecvList", PostList<ibv_recv_wr>::Create);
  Export(exports, "createWcRing", WcRing::Create);
}

}  // namespace rdma
