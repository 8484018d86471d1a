// What the rings of ordinary and of extended completion queues have in common: completions that were taken out of the
// queue before somebody polled for them. All that is in the queue comes here when a queue pair goes that takes from a
// shared receive queue; what is not of that queue pair is given out first at the next poll.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <memory>

#include "datapath/doorbell.h"
#include "datapath/wc_extra.h"
#include "handles/cq_handle.h"

namespace rdma {

class CompletionRing : public SharedList, public Poller {
 public:
  ~CompletionRing() override;
  void Forget(uint32_t qp_num) final;

 protected:
  CompletionRing(std::shared_ptr<CqHandle> cq, const WorkQueues& queues);

  bool has_taken() const { return !taken_.empty(); }
  // An ordinary queue has nothing extra.
  void Take(const ibv_wc& wc, uint32_t qp_num, const WcExtra& extra = {}) { taken_.push_back({wc, extra, qp_num}); }
  // Gives out at most `max` of what was taken; returns how many. `extra` may be null.
  int GiveOut(int32_t max, ibv_wc* wc, double* wr_ids, WcExtra* extra);

  std::shared_ptr<CqHandle> cq_;
  // The doorbell's, which owns this ring.
  const WorkQueues& queues_;

 private:
  struct Taken {
    ibv_wc wc;
    WcExtra extra;
    // An extended queue may have been made not to tell it.
    uint32_t qp_num;
  };
  std::deque<Taken> taken_;
};

}  // namespace rdma
