// Polling of extended completion queues: ibv_start_poll and what belongs to it, ibv_create_cq_ex(3).
#include <infiniband/verbs.h>

#include <cerrno>

#include "core/args.h"
#include "core/environment.h"
#include "datapath/completion_ring.h"
#include "verbs/verbs.h"

namespace rdma {

namespace {

// As the ring of an ordinary queue, and behind the callers' wrIds what only an extended one tells.
class WcRingEx final : public CompletionRing {
 public:
  // (cq, capacity)
  static Napi::Value Create(const Napi::CallbackInfo& info) {
    auto cq = HandleArg<CqHandle>(info, 0);
    if (cq->ex() == nullptr) ThrowType(info.Env(), "cq is not extended");
    // Beyond what TypeScript asks for.
    const size_t capacity = CountArg(info, 1, "capacity", 1U << 16);
    auto memory = Napi::ArrayBuffer::New(info.Env(), capacity * (sizeof(ibv_wc) + sizeof(double) + sizeof(WcExtra)));
    auto* wc = static_cast<ibv_wc*>(memory.Data());
    return Doorbell::Publish(
        memory, std::unique_ptr<SharedList>(new WcRingEx(std::move(cq), Environment::Of(info.Env()).doorbell->queues,
                                                         wc, static_cast<int32_t>(capacity))));
  }

  // Polls for at most `count` completions. Leaves their number, or a negative value when polling failed.
  //
  // Each completion is started and ended by itself: rdma_rxe of rdma-core before 59 advances and unlocks a second time
  // in end_poll when next_poll has found the queue empty, and nobody can know beforehand that it is going to.
  void Ring(int32_t* words) override {
    const int32_t max = words[kCount];
    ibv_cq_ex* const cq = cq_->ex();
    if (max < 1 || max > capacity_ || cq == nullptr) {
      words[kResult] = -1;
      return;
    }
    int kept = 0;
    int rc = 0;
    if (has_taken()) kept = GiveOut(max, wc_, wr_ids_, extra_);
    while (kept < max) {
      ibv_poll_cq_attr attr{};
      rc = ibv_start_poll(cq, &attr);
      // Nothing was started then, so there is nothing to end.
      if (rc != 0) break;
      // Some providers leave the completions of a destroyed queue pair in the queue; those are dropped on all.
      WorkQueue* const queue = queues_.Find(static_cast<uint32_t>(cq->wr_id >> 32));
      if (queue != nullptr && queue->Complete(static_cast<uint32_t>(cq->wr_id), &wr_ids_[kept])) {
        Read(cq, wc_[kept], extra_[kept]);
        kept++;
      }
      ibv_end_poll(cq);
    }
    words[kResult] = kept == 0 && rc != ENOENT ? -1 : kept;
  }

  void TakeIn() override {
    ibv_cq_ex* const cq = cq_->ex();
    for (ibv_poll_cq_attr attr{}; ibv_start_poll(cq, &attr) == 0; ibv_end_poll(cq)) {
      ibv_wc wc{};
      WcExtra extra{};
      Read(cq, wc, extra);
      Take(wc, ibv_wc_read_qp_num(cq), extra);
    }
  }

 private:
  WcRingEx(std::shared_ptr<CqHandle> cq, const WorkQueues& queues, ibv_wc* wc, int32_t capacity)
      : CompletionRing(std::move(cq), queues),
        flags_(cq_->wc_flags()),
        wc_(wc),
        wr_ids_(reinterpret_cast<double*>(wc + capacity)),
        extra_(reinterpret_cast<WcExtra*>(wr_ids_ + capacity)),
        capacity_(capacity) {}

  // A field that was not asked for has no function to read it. Of a failed completion the others mean nothing.
  void Read(ibv_cq_ex* cq, ibv_wc& wc, WcExtra& extra) const {
    wc = {};
    extra = {};
    wc.wr_id = cq->wr_id;
    wc.status = cq->status;
    wc.vendor_err = ibv_wc_read_vendor_err(cq);
    if ((flags_ & IBV_WC_EX_WITH_QP_NUM) != 0) wc.qp_num = ibv_wc_read_qp_num(cq);
    if (wc.status != IBV_WC_SUCCESS) return;
    wc.opcode = ibv_wc_read_opcode(cq);
    wc.wc_flags = ibv_wc_read_wc_flags(cq);
    if ((flags_ & IBV_WC_EX_WITH_BYTE_LEN) != 0) wc.byte_len = ibv_wc_read_byte_len(cq);
    // The key of an invalidation is read by the same function.
    if ((flags_ & IBV_WC_EX_WITH_IMM) != 0) wc.imm_data = ibv_wc_read_imm_data(cq);
    if ((flags_ & IBV_WC_EX_WITH_SRC_QP) != 0) wc.src_qp = ibv_wc_read_src_qp(cq);
    if ((flags_ & IBV_WC_EX_WITH_SLID) != 0) wc.slid = static_cast<uint16_t>(ibv_wc_read_slid(cq));
    if ((flags_ & IBV_WC_EX_WITH_SL) != 0) wc.sl = ibv_wc_read_sl(cq);
    if ((flags_ & IBV_WC_EX_WITH_DLID_PATH_BITS) != 0) wc.dlid_path_bits = ibv_wc_read_dlid_path_bits(cq);
    if ((flags_ & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) != 0) extra.completion_ts = ibv_wc_read_completion_ts(cq);
    if ((flags_ & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) != 0) {
      extra.completion_wallclock_ns = ibv_wc_read_completion_wallclock_ns(cq);
    }
    if ((flags_ & IBV_WC_EX_WITH_CVLAN) != 0) extra.cvlan = ibv_wc_read_cvlan(cq);
    if ((flags_ & IBV_WC_EX_WITH_FLOW_TAG) != 0) extra.flow_tag = ibv_wc_read_flow_tag(cq);
    if ((flags_ & IBV_WC_EX_WITH_TM_INFO) != 0) {
      ibv_wc_tm_info info{};
      ibv_wc_read_tm_info(cq, &info);
      extra.tm_tag = info.tag;
      extra.tm_priv = info.priv;
    }
  }

  const uint64_t flags_;
  ibv_wc* wc_;
  double* wr_ids_;
  WcExtra* extra_;
  int32_t capacity_;
};

}  // namespace

void ExportWcRingEx(Napi::Object exports) { Export(exports, "createWcRingEx", WcRingEx::Create); }

}  // namespace rdma
