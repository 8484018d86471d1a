// Posting and polling: ibv_post_send(3), ibv_post_recv(3), ibv_poll_cq(3).
#include <infiniband/verbs.h>

#include "core/args.h"
#include "datapath/shared_list.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

inline int PostVerb(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) { return ibv_post_send(qp, wr, bad); }
inline int PostVerb(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) { return ibv_post_recv(qp, wr, bad); }

// A list of work requests of one queue pair. `next` and `sg_list` are linked here once; TypeScript writes the rest.
template <class Wr>
class PostList final : public SharedList {
 public:
  // (qp, capacity, maxSge)
  static Napi::Value Create(const Napi::CallbackInfo& info) {
    std::unique_ptr<SharedList> list(new PostList(info.Env(), HandleArg<QpHandle>(info, 0),
                                                  Uint32Arg(info, 1, "capacity"), Uint32Arg(info, 2, "maxSge")));
    return Publish(info.Env(), std::move(list), Post);
  }

 private:
  PostList(Napi::Env env, std::shared_ptr<QpHandle> qp, uint32_t capacity, uint32_t max_sge)
      : SharedList(env, capacity * (sizeof(Wr) + size_t{max_sge} * sizeof(ibv_sge))),
        qp_(std::move(qp)),
        wr_(reinterpret_cast<Wr*>(structs())),
        capacity_(static_cast<int32_t>(capacity)) {
    auto* sge = reinterpret_cast<ibv_sge*>(wr_ + capacity);
    for (uint32_t i = 0; i < capacity; i++) {
      wr_[i].next = i + 1 < capacity ? &wr_[i + 1] : nullptr;
      wr_[i].sg_list = sge + size_t{i} * max_sge;
    }
  }

  // Posts the first `count` requests. Leaves 0 or the errno value, and how many were taken.
  static napi_value Post(napi_env env, napi_callback_info info) {
    auto& self = Self<PostList>(env, info);
    const int32_t count = self.header(kCount);
    if (count < 1 || count > self.capacity_ || self.qp_->get() == nullptr) {
      self.header(kResult) = EBADF;
      self.header(kIndex) = 0;
      return nullptr;
    }
    Wr& last = self.wr_[count - 1];
    Wr* const next = last.next;
    last.next = nullptr;
    Wr* bad = nullptr;
    const int rc = PostVerb(self.qp_->get(), self.wr_, &bad);
    last.next = next;
    // A provider that fails without naming a request has queued them all and failed at the doorbell.
    self.header(kIndex) = rc != 0 && bad != nullptr ? static_cast<int32_t>(bad - self.wr_) : count;
    self.header(kResult) = rc == 0 ? 0 : FromRet("", rc).err;
    return nullptr;
  }

  std::shared_ptr<QpHandle> qp_;
  Wr* wr_;
  int32_t capacity_;
};

// The completions that one poll of a queue found.
class WcRing final : public SharedList {
 public:
  // (cq, capacity)
  static Napi::Value Create(const Napi::CallbackInfo& info) {
    std::unique_ptr<SharedList> ring(
        new WcRing(info.Env(), HandleArg<CqHandle>(info, 0), Uint32Arg(info, 1, "capacity")));
    return Publish(info.Env(), std::move(ring), Poll);
  }

 private:
  WcRing(Napi::Env env, std::shared_ptr<CqHandle> cq, uint32_t capacity)
      : SharedList(env, capacity * sizeof(ibv_wc)),
        cq_(std::move(cq)),
        wc_(reinterpret_cast<ibv_wc*>(structs())),
        capacity_(static_cast<int32_t>(capacity)) {}

  // Polls for at most `count` completions. Leaves their number, or a negative value when ibv_poll_cq failed.
  static napi_value Poll(napi_env env, napi_callback_info info) {
    auto& self = Self<WcRing>(env, info);
    const int32_t max = self.header(kCount);
    if (max < 1 || max > self.capacity_ || self.cq_->get() == nullptr) {
      self.header(kResult) = -1;
      return nullptr;
    }
    self.header(kResult) = ibv_poll_cq(self.cq_->get(), max, self.wc_);
    return nullptr;
  }

  std::shared_ptr<CqHandle> cq_;
  ibv_wc* wc_;
  int32_t capacity_;
};

}  // namespace

void ExportDatapath(Napi::Object exports) {
  Export(exports, "createSendList", PostList<ibv_send_wr>::Create);
  Export(exports, "createRecvList", PostList<ibv_recv_wr>::Create);
  Export(exports, "createWcRing", WcRing::Create);
}

}  // namespace rdma
